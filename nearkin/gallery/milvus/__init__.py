"""Items in Milvus, on a server or in a Milvus Lite database."""

from nearkin.gallery.milvus.store import MilvusStore

__all__ = ["MilvusStore"]
