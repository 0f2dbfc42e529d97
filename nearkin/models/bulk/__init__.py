"""Embedding more than one process should: shards of a data set, each written as one part, and read back as one."""

from nearkin.models.bulk.embed import Encodes, ShardReport, embed_shards
from nearkin.models.bulk.folders import shard_rows
from nearkin.models.bulk.parts import (
    Embeddings,
    Facts,
    ShardState,
    embedding_batches,
    part_files,
    read_embeddings,
    shard_states,
)

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
