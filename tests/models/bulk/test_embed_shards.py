"""Shards embedded whole, in pieces, by a process that is killed, of data that is damaged, onto disks that are full."""

import errno
import os
import signal
import time

import numpy as np
import pytest

from nearkin.data import ArrayStore, Dataset
from nearkin.data.stores import UnreadableError
from nearkin.data.url_store import UnreachableError
from nearkin.errors import DataError, StorageError
from nearkin.models.bulk import read_embeddings, shard_states
from nearkin.models.bulk.folders import part_name, unfinished_name


class Failing(ArrayStore):
    """A store some of whose items cannot be read, and that tells what was."""

    def __init__(self, dataset: Dataset, errors: dict[str, Exception]) -> None:
        paths = dataset.manifest.paths
        super().__init__({path: dataset.store.read(path) for path in paths})
        self.errors = errors
        self.asked: list[str] = []

    def read(self, path: str) -> np.ndarray:
        self.asked.append(path)
        if path in self.errors:
            raise self.errors[path]
        return super().read(path)


@pytest.mark.parametrize(("items", "shards"), [(1, 1), (30, 1), (30, 3), (7, 12), (24, 2)])
def test_all_shards_are_the_whole(embed, tree, model, make_images, tmp_path, items, shards):
    dataset = make_images(items)
    reports = embed(model, dataset, tmp_path / "out", shards=shards)
    assert [report.written for report in reports] == [True] * shards
    found = read_embeddings(tmp_path / "out")
    whole = model.encode(dataset, batch_size=items, progress=False)
    assert np.abs(found.vectors - whole).max() < 1e-6
    assert found.vectors.dtype == np.float32
    assert found.paths.tolist() == dataset.manifest.paths.tolist()
    assert found.labels.tolist() == dataset.labels.tolist()
    assert found.facts.model == model.fingerprint()
    assert sorted(tree(tmp_path / "out")) == [part_name(shard, shards) for shard in range(shards)]


def test_any_process_does_any_shard_and_reads_no_other(embed, tree, model, make_images, tmp_path):
    images = make_images(30)
    store = Failing(images, {})
    dataset = Dataset(images.manifest, store)
    embed(model, dataset, tmp_path / "one", shards=3, only=[1])
    assert sorted(store.asked) == sorted(images.manifest.paths[10:20])  # each once
    for shard in (2, 0):
        embed(model, dataset, tmp_path / "one", shards=3, only=[shard])
    embed(model, dataset, tmp_path / "all", shards=3)
    assert tree(tmp_path / "one") == tree(tmp_path / "all")


def test_what_is_there_is_not_made_again(embed, counting, model, make_images, tmp_path):
    dataset, encoder = make_images(20), counting(model)
    embed(model, dataset, tmp_path, shards=2, only=[1], encoder=encoder)
    reports = embed(model, dataset, tmp_path, shards=2, encoder=encoder)
    assert [report.written for report in reports] == [True, False]
    assert [report.rows for report in reports] == [10, 10]
    assert encoder.items == 20


@pytest.mark.parametrize("calls", [0, 1, 2, 3])
def test_a_shard_goes_on_after_its_last_chunk(embed, counting, tree, model, make_images, tmp_path, calls):
    dataset = make_images(30)
    embed(model, dataset, tmp_path / "whole")
    with pytest.raises(RuntimeError, match="stopped"):
        embed(model, dataset, tmp_path / "out", encoder=counting(model, calls))
    assert not list((tmp_path / "out").glob("part-*"))
    encoder = counting(model)
    embed(model, dataset, tmp_path / "out", encoder=encoder)
    assert encoder.items == 30 - 8 * calls
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")


def test_chunks_left_beside_a_part_are_removed(embed, counting, tree, model, make_images, tmp_path):
    dataset = make_images(30)
    with pytest.raises(RuntimeError):
        embed(model, dataset, tmp_path / "begun", encoder=counting(model, 3))
    embed(model, dataset, tmp_path / "out")
    before = tree(tmp_path / "out")
    (tmp_path / "begun" / unfinished_name(0, 1)).rename(tmp_path / "out" / unfinished_name(0, 1))
    assert not embed(model, dataset, tmp_path / "out")[0].written
    assert tree(tmp_path / "out") == before


WORKER = """
import sys, time, numpy as np
from pathlib import Path
from nearkin.data import open_data
from nearkin.models import Embedder, Encoder
from nearkin.models.bulk import embed_shards

class Slow(Encoder):
    def encode(self, items, **options):
        time.sleep(0.15)
        return super().encode(items, **options)

model = Embedder.load(sys.argv[1])
embed_shards(model, open_data(sys.argv[2]), sys.argv[3], shards=2, only=[1], encoder=Slow(model), batch_size=2,
             chunk=2, progress=False)
"""


def test_a_killed_worker_loses_nothing_that_was_finished(embed, counting, tree, model, photos, programs, tmp_path):
    from nearkin.data import open_data

    model.save(tmp_path / "model.safetensors")
    out, dataset = tmp_path / "out", open_data(photos)
    chunks = out / unfinished_name(1, 2)
    options = {"shards": 2, "only": [1], "batch_size": 2, "chunk": 2}
    embed(model, dataset, tmp_path / "whole", **options)
    (worker,) = programs.start(WORKER, tmp_path / "model.safetensors", photos, out)
    deadline = time.monotonic() + 60
    while len(list(chunks.glob("rows-*"))) < 3 and not programs.errors and time.monotonic() < deadline:
        time.sleep(0.01)
    with pytest.raises(StorageError, match=str(worker)):
        embed(model, dataset, out, **options)
    os.kill(worker, signal.SIGKILL)
    programs.ended()
    kept = len(list(chunks.glob("rows-*")))
    assert 3 <= kept < 12
    assert not list(out.glob("part-*"))
    assert [state.state for state in shard_states(model, dataset, out, shards=2)] == ["missing", "unfinished"]
    encoder = counting(model)
    embed(model, dataset, out, encoder=encoder, **options)
    assert encoder.items == 24 - 2 * kept
    assert tree(out) == tree(tmp_path / "whole")


def test_parts_of_another_work_are_refused_until_told_otherwise(
    embed, tree, model, make_embedder, make_images, tmp_path
):
    other, dataset, more = make_embedder(seed=1), make_images(20), make_images(21)
    renamed = Dataset(dataset.manifest.with_column("label", ["x"] * 20), dataset.store)
    embed(model, dataset, tmp_path, shards=2)
    before = tree(tmp_path)
    for wrong, data, word in (
        (other, dataset, "model"),
        (model, more, "data"),
        (model, renamed, "data"),
    ):
        with pytest.raises(DataError, match=word):
            embed(wrong, data, tmp_path, shards=2)
        states = [state.state for state in shard_states(wrong, data, tmp_path, shards=2)]
        assert states == ["other", "other"]
    with pytest.raises(DataError, match="shards"):
        embed(model, dataset, tmp_path, shards=3)
    with pytest.raises(DataError, match="shards"):
        list(shard_states(model, dataset, tmp_path, shards=3))
    assert tree(tmp_path) == before
    embed(other, dataset, tmp_path, shards=2, only=[0], overwrite=True)
    with pytest.raises(DataError, match="model"):
        read_embeddings(tmp_path)
    embed(other, dataset, tmp_path, shards=2, overwrite=True)
    assert read_embeddings(tmp_path).facts.model == other.fingerprint()


def test_unfinished_chunks_of_another_model_are_not_mixed_in(
    embed, counting, tree, model, make_embedder, make_images, tmp_path
):
    other, dataset = make_embedder(seed=1), make_images(30)
    with pytest.raises(RuntimeError):
        embed(other, dataset, tmp_path / "out", encoder=counting(other, 2))
    with pytest.raises(DataError, match="model"):
        embed(model, dataset, tmp_path / "out")
    embed(model, dataset, tmp_path / "out", overwrite=True)
    embed(model, dataset, tmp_path / "whole")
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")


def test_the_same_work_with_other_chunks_begins_anew(embed, counting, tree, model, make_images, tmp_path):
    dataset = make_images(30)
    with pytest.raises(RuntimeError):
        embed(model, dataset, tmp_path / "out", encoder=counting(model, 2))
    embed(model, dataset, tmp_path / "out", chunk=12)
    embed(model, dataset, tmp_path / "whole", chunk=12)
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")


@pytest.mark.parametrize("damage", ["cut", "empty", "other", "flipped"])
def test_damaged_chunks_are_made_again(embed, counting, tree, model, make_images, tmp_path, damage):
    dataset = make_images(30)
    embed(model, dataset, tmp_path / "whole")
    with pytest.raises(RuntimeError):
        embed(model, dataset, tmp_path / "out", encoder=counting(model, 2))
    chunk = min((tmp_path / "out" / unfinished_name(0, 1)).glob("rows-*"))
    chunk.write_bytes(damaged(chunk.read_bytes(), damage, read_embeddings(tmp_path / "whole").vectors[3]))
    embed(model, dataset, tmp_path / "out")
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")


def damaged(raw: bytes, damage: str, vector: np.ndarray | None = None) -> bytes:
    if damage != "flipped":
        return {"cut": raw[: len(raw) // 2], "empty": b"", "other": b"hello"}[damage]
    flipped = bytearray(raw)
    flipped[raw.index(vector[:2].tobytes())] ^= 1  # the least bit of one value
    return bytes(flipped)


@pytest.mark.parametrize("damage", ["cut", "empty", "other"])
def test_parts_that_are_not_whole_are_made_again(embed, tree, model, make_images, tmp_path, damage):
    dataset = make_images(30)
    embed(model, dataset, tmp_path, shards=2)
    before = tree(tmp_path)
    part = tmp_path / part_name(1, 2)
    part.write_bytes(damaged(part.read_bytes(), damage))
    assert [state.state for state in shard_states(model, dataset, tmp_path, shards=2)] == ["finished", "damaged"]
    with pytest.raises(DataError, match=part.name):
        read_embeddings(tmp_path)
    embed(model, dataset, tmp_path, shards=2)
    assert tree(tmp_path) == before


def test_a_flipped_bit_in_a_part_is_noticed(embed, model, make_images, tmp_path):
    dataset = make_images(30)
    embed(model, dataset, tmp_path)
    part = tmp_path / part_name(0, 1)
    part.write_bytes(damaged(part.read_bytes(), "flipped", read_embeddings(tmp_path).vectors[3]))
    assert [state.state for state in shard_states(model, dataset, tmp_path, shards=1)] == ["damaged"]
    with pytest.raises(DataError, match=part.name):
        read_embeddings(tmp_path)


BAD = {"3.png": UnreadableError("3.png", "is truncated"), "17.png": UnreadableError("17.png", "is empty")}


def test_bad_items_are_left_out_and_listed_and_change_no_other(embed, model, make_images, tmp_path):
    images = make_images(30)
    dataset = Dataset(images.manifest, Failing(images, BAD))
    embed(model, images, tmp_path / "good", shards=2)
    with pytest.raises(DataError, match="--skip-bad"):
        embed(model, dataset, tmp_path / "out", shards=2)
    reports = embed(model, dataset, tmp_path / "out", shards=2, skip_bad=True)
    assert [[str(item) for item in report.left_out] for report in reports] == [
        ["3.png is truncated"],
        ["17.png is empty"],
    ]
    good, found = read_embeddings(tmp_path / "good"), read_embeddings(tmp_path / "out")
    kept = [row for row in range(30) if row not in (3, 17)]
    assert np.array_equal(found.vectors, good.vectors[kept])
    assert found.paths.tolist() == good.paths[kept].tolist()
    assert [item.path for item in found.left_out] == ["3.png", "17.png"]
    with pytest.raises(DataError, match=r"3\.png"):
        embed(model, dataset, tmp_path / "out", shards=2)
    assert [report.written for report in embed(model, dataset, tmp_path / "out", shards=2, skip_bad=True)] == [
        False
    ] * 2


def test_a_bad_item_stops_a_shard_but_keeps_its_chunks(embed, counting, model, make_images, tmp_path):
    images = make_images(30)
    broken = Dataset(images.manifest, Failing(images, {"17.png": BAD["17.png"]}))
    with pytest.raises(DataError, match=r"17\.png"):
        embed(model, broken, tmp_path)
    encoder = counting(model)
    embed(model, images, tmp_path, encoder=encoder)  # repaired
    assert encoder.items == 30 - 16


def test_chunks_that_left_items_out_are_tried_again_if_none_may_be(embed, counting, model, make_images, tmp_path):
    images = make_images(30)
    broken = Dataset(images.manifest, Failing(images, {"3.png": BAD["3.png"]}))
    with pytest.raises(RuntimeError):
        embed(model, broken, tmp_path, encoder=counting(model, 2), skip_bad=True)
    assert embed(model, images, tmp_path)[0].rows == 30


def test_a_network_that_is_down_makes_no_item_bad(embed, model, make_images, tmp_path):
    images = make_images(10)
    dataset = Dataset(images.manifest, Failing(images, {"3.png": UnreachableError("no network")}))
    with pytest.raises(UnreachableError):
        embed(model, dataset, tmp_path, skip_bad=True)


def test_a_full_disk_leaves_no_half_file(embed, counting, tree, model, make_images, tmp_path, monkeypatch):
    from pyarrow import parquet

    dataset = make_images(30)
    embed(model, dataset, tmp_path / "whole")
    real = parquet.ParquetWriter.write_table
    left = [5]  # three chunks and a row group of the part

    def write(self, *arguments, **options):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(self, *arguments, **options)

    monkeypatch.setattr(parquet.ParquetWriter, "write_table", write)
    with pytest.raises(StorageError, match="space"):
        embed(model, dataset, tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == [unfinished_name(0, 1)]
    monkeypatch.undo()
    encoder = counting(model)
    embed(model, dataset, tmp_path / "out", encoder=encoder)
    assert encoder.items == 0
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")
