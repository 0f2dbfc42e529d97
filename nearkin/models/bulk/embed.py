"""Embedding shards: chunk by chunk into an unfinished folder, then into one part; whatever was finished is kept."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Protocol

import numpy as np
from PIL import Image

from nearkin.data.dataset import ROW, SAMPLE_RATE, BadFile, Dataset
from nearkin.data.stores import UnreadableError
from nearkin.errors import DataError
from nearkin.models.bulk.folders import (
    Folder,
    check_division,
    check_shard,
    open_folder,
    part_name,
    shard_rows,
    unfinished_name,
)
from nearkin.models.bulk.parts import Batch, DamagedError, Facts, read_facts, read_part, write_part
from nearkin.models.engines import Encoder
from nearkin.progress import Progress

if TYPE_CHECKING:
    from nearkin.models.embedder import Embedder


CHUNK = 1024
"""Items that are embedded between two writes, so at most so many are embedded again after a crash."""


class Encodes(Protocol):
    """What embeds: an `Encoder`, or anything that encodes as it does."""

    def encode(self, items: Dataset, *, batch_size: int, progress: bool, workers: int) -> np.ndarray:
        """Embeddings float32 (n, d) of a data set's items, in order."""
        ...


@dataclass(frozen=True)
class ShardReport:
    """What became of a shard.

    Args:
        place: its file.
        rows: embeddings in it.
        left_out: items that could not be read.
        written: False if it was there already.
    """

    place: str
    rows: int
    left_out: tuple[BadFile, ...]
    written: bool


def embed_shards(
    model: Embedder,
    dataset: Dataset,
    out: str | os.PathLike[str],
    *,
    shards: int = 1,
    only: Sequence[int] | None = None,
    encoder: Encodes | None = None,
    name: str = "",
    batch_size: int = 64,
    workers: int = 2,
    chunk: int = CHUNK,
    skip_bad: bool = False,
    overwrite: bool = False,
    progress: bool = True,
) -> list[ShardReport]:
    """Embed a data set in shards, each into the file `part-00003-of-00016.parquet` of a folder.

    A shard is a run of rows that depends on nothing but their number, so any process on any machine can do any shard,
    and all parts together are the data in its order. A part that is there is not made again. One that was interrupted
    goes on after its last whole chunk, and becomes bit for bit what it would have been. Files are read once, while they
    are encoded, and only those of the shard.

    Args:
        model: what made the vectors; parts are tied to its fingerprint.
        dataset: what to embed.
        out: a folder, or its URL.
        shards: how many parts the data is divided into.
        only: which of them to do; None: all, one after the other.
        encoder: what embeds; None: the model's own `Encoder`.
        name: what people call the data; empty: the data set's own name.
        batch_size: items that go through the network together.
        workers: threads that read and decode.
        chunk: items between two writes.
        skip_bad: leave out items that cannot be read, and list them in the part, instead of stopping.
        overwrite: replace parts of another model, or of other data, instead of refusing.
        progress: show a bar for each shard.

    Returns:
        What became of each shard.
    """
    check_shard(0, shards)
    chosen = range(shards) if only is None else only
    for shard in chosen:
        check_shard(shard, shards)
    if chunk < 1:
        raise DataError(f"chunk must be at least 1 item, not {chunk}.")
    folder = open_folder(out)
    there = check_division(folder, shards)
    facts = Facts.of(model, dataset, shards, name)
    worker = _ShardWorker(dataset, folder, facts, chunk, batch_size, workers, skip_bad, overwrite, progress)
    reports = []
    for shard in chosen:
        report = worker.finished(shard)
        # A worker that was killed at the very end leaves its chunks beside the part.
        if report is None or unfinished_name(shard, shards) in there:
            encoder = Encoder(model) if encoder is None else encoder
            report = worker.embed(shard, encoder)
        reports.append(report)
    return reports


@dataclass(frozen=True)
class _ShardWorker:
    """One process's share of the work; fields as the arguments of `embed_shards`."""

    dataset: Dataset
    folder: Folder
    facts: Facts
    chunk: int
    batch_size: int
    workers: int
    skip_bad: bool
    overwrite: bool
    progress: bool

    def finished(self, shard: int) -> ShardReport | None:
        """The report of a shard whose part is there, or None."""
        name = part_name(shard, self.facts.shards)
        facts = self._kept(self.folder, name, self._expected(shard))
        if facts is None:
            return None
        if facts.left_out and not self.skip_bad:
            raise DataError(
                f"{self.folder.place(name)} was made without {len(facts.left_out)} items that could not be read "
                f"({facts.left_out[0]}): pass --skip-bad to accept that, or repair them and remove the file."
            )
        return ShardReport(self.folder.place(name), facts.rows, facts.left_out, written=False)

    def embed(self, shard: int, encoder: Encodes) -> ShardReport:
        """Do what is left of a shard."""
        name, unfinished = part_name(shard, self.facts.shards), unfinished_name(shard, self.facts.shards)
        chunks = self.folder.below(unfinished)
        with chunks.held():
            # Whoever held it before may just have finished it.
            report = self.finished(shard) or self._embed(shard, name, chunks, encoder)
            chunks.discard()
        return report

    def _embed(self, shard: int, name: str, chunks: Folder, encoder: Encodes) -> ShardReport:
        rows = self._expected(shard)
        starts = range(rows.first, rows.stop, self.chunk)
        told: list[Facts] = []
        title = f"Embedding shard {shard} of {self.facts.shards}"
        with Progress(title, rows.stop - rows.first, self.progress) as bar:
            for start in starts:
                wanted = self.facts.over(shard, range(start, min(start + self.chunk, rows.stop)))
                found = self._kept(chunks, _chunk_name(start), wanted)
                if found is None or (found.left_out and not self.skip_bad):
                    found = self._encode_chunk(wanted, chunks, encoder, bar)
                else:
                    bar.advance(found.stop - found.first)
                told.append(found)
        left_out = tuple(chain.from_iterable(facts.left_out for facts in told))
        facts = self.facts.over(shard, range(rows.first, rows.stop), left_out)
        batches = (_read_chunk(chunks, _chunk_name(start)) for start in starts)
        write_part(self.folder, name, facts, chain.from_iterable(batches))
        return ShardReport(self.folder.place(name), facts.rows, left_out, written=True)

    def _encode_chunk(self, wanted: Facts, chunks: Folder, encoder: Encodes, bar: Progress) -> Facts:
        """Embed some rows and write them down."""
        rows = np.arange(wanted.first, wanted.stop)
        items = _Lenient(self.dataset.select(rows), self.skip_bad, bar)
        try:
            embeddings = encoder.encode(items, batch_size=self.batch_size, progress=False, workers=self.workers)
        except UnreadableError as error:
            raise DataError(
                f"{str(error).removesuffix('.')}: repair or remove it, or leave such items out with --skip-bad; what "
                f"shard {wanted.shard} has finished is kept."
            ) from error
        good = np.array([row not in items.bad for row in range(len(items))], dtype=bool)
        kept = items.manifest.select(good)
        facts = replace(wanted, left_out=tuple(items.bad[row] for row in sorted(items.bad)))
        batch: Batch = (kept.paths.tolist(), kept.labels.tolist(), embeddings[good])
        write_part(chunks, _chunk_name(wanted.first), facts, [batch])
        return facts

    def _expected(self, shard: int) -> Facts:
        return self.facts.over(shard, shard_rows(shard, self.facts.shards, self.facts.items))

    def _kept(self, folder: Folder, name: str, wanted: Facts) -> Facts | None:
        """What a file says if it is whole and what is wanted; None if it has to be made."""
        try:
            found = read_facts(folder, name)
            difference = found.difference(wanted)
            if difference is not None and not self.overwrite:
                raise DataError(
                    f"{folder.place(name)} is of {difference}: write to another folder, or replace it with --overwrite."
                )
            if (difference, found.shard, found.first, found.stop) != (None, wanted.shard, wanted.first, wanted.stop):
                return None
            deque(read_part(folder, name), maxlen=0)  # all pages have the checksums they were written with
        except (FileNotFoundError, DamagedError):
            return None
        return found


class _Lenient(Dataset):
    """A data set that goes on after items that cannot be read: blank in their place, they are dropped afterwards.

    So the others stay in the batches they would be in, and nothing has to be read twice.
    """

    def __init__(self, dataset: Dataset, skip_bad: bool, bar: Progress) -> None:
        super().__init__(dataset.manifest, dataset.store, dataset.kind, dataset.name)
        self.bad: dict[int, BadFile] = {}
        self._skip_bad = skip_bad
        self._bar = bar
        self._lock = threading.Lock()

    def load(self, index: int, hint: int | None = None) -> Image.Image | np.ndarray:
        """Decode one item, or a blank one."""
        try:
            return super().load(index, hint)
        except UnreadableError as error:
            if not self._skip_bad:
                raise
            self.bad[index] = BadFile(error.path, error.reason)
            if self.kind == "audio":
                return np.zeros(SAMPLE_RATE, dtype=np.float32)
            blank = Image.new("RGB", (32, 32))
            blank.info[ROW] = (self.manifest, index)
            return blank
        finally:
            with self._lock:
                self._bar.advance()


def _read_chunk(chunks: Folder, name: str) -> Iterator[Batch]:
    try:
        yield from read_part(chunks, name)
    except (FileNotFoundError, DamagedError) as error:
        raise DataError(
            f"{chunks.place(name)} is gone or damaged; another process may be at the same shard: when none is, give "
            "the same command again."
        ) from error


def _chunk_name(start: int) -> str:
    return f"rows-{start:010d}.parquet"
