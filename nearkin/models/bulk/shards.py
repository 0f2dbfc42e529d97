"""Shards: equal runs of a data set's rows, and the names of the files that hold what became of each."""

from __future__ import annotations

import re

from nearkin.errors import DataError

MAX_SHARDS = 100_000

_PART = re.compile(r"part-(\d{5})-of-(\d{5,6})\.parquet")


def shard_rows(shard: int, shards: int, items: int) -> range:
    """The rows of one shard: runs in the data's order whose lengths differ by one at most; none where shards abound."""
    check_shard(shard, shards)
    return range(shard * items // shards, (shard + 1) * items // shards)


def check_shard(shard: int, shards: int) -> None:
    """Refuse a number of shards, or of one, that there cannot be."""
    if not 1 <= shards <= MAX_SHARDS:
        raise DataError(f"Data is embedded in 1 to {MAX_SHARDS:,} shards, not {shards}.")
    if not 0 <= shard < shards:
        raise DataError(f"There is no shard {shard} of {shards}: they are counted from 0 to {shards - 1}.")


def part_name(shard: int, shards: int) -> str:
    """The file of a shard."""
    return f"part-{shard:05d}-of-{shards:05d}.parquet"


def unfinished_name(shard: int, shards: int) -> str:
    """The folder of a shard that is being embedded; hidden, so that nobody takes its chunks for parts."""
    return f".part-{shard:05d}-of-{shards:05d}.unfinished"


def parsed_part(name: str) -> tuple[int, int] | None:
    """Which shard of how many a file is, by its name; None of other files."""
    found = _PART.fullmatch(name)
    return (int(found[1]), int(found[2])) if found else None
