"""Embedding more than one process should: shards of a data set, each written as one part, and read back as one."""

from nearkin.models.bulk.embedding import Encodes, ShardReport, embed_shards
from nearkin.models.bulk.parts import Facts
from nearkin.models.bulk.reading import (
    Embeddings,
    ShardState,
    embedding_batches,
    part_files,
    read_embeddings,
    shard_states,
)
from nearkin.models.bulk.shards import shard_rows

__all__ = [
    "Embeddings",
    "Encodes",
    "Facts",
    "ShardReport",
    "ShardState",
    "embed_shards",
    "embedding_batches",
    "part_files",
    "read_embeddings",
    "shard_rows",
    "shard_states",
]
