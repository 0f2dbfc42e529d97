"""A gallery in a directory: items in SQLite, vectors in blocks beside them, searched in memory."""

from nearkin.gallery.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
