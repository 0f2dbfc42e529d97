import errno

import fsspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearkin.data import Dataset, Manifest
from nearkin.errors import DataError, StorageError
from nearkin.models.bulk import read_embeddings, shard_rows
from nearkin.models.bulk.folders import MAX_SHARDS, LocalFolder, parsed_part, part_name
from nearkin.models.bulk.parts import DamagedError, Facts, read_facts, write_part


@given(items=st.integers(0, 400), shards=st.integers(1, 60))
def test_shards_cover_every_row_once_in_order_and_are_equal(items, shards):
    runs = [shard_rows(shard, shards, items) for shard in range(shards)]
    assert [row for run in runs for row in run] == list(range(items))
    assert max(map(len, runs)) - min(map(len, runs)) <= 1


@pytest.mark.parametrize(("shard", "shards"), [(3, 3), (-1, 3), (0, 0), (0, -1), (0, MAX_SHARDS + 1)])
def test_shards_that_cannot_be_are_refused(shard, shards):
    with pytest.raises(DataError, match="shard"):
        shard_rows(shard, shards, 10)


@given(st.integers(1, MAX_SHARDS).flatmap(lambda n: st.tuples(st.integers(0, n - 1), st.just(n))))
def test_names_tell_the_shard_and_sort_as_it(part):
    name = part_name(*part)
    assert parsed_part(name) == part
    assert parsed_part(f".{name}.ab.tmp") is None
    assert sorted([part_name(9, 100_000), part_name(10, 100_000)]) == [part_name(9, 100_000), part_name(10, 100_000)]


def test_a_folder_behind_a_url(embed, counting, tree, model, make_images, tmp_path):
    files = fsspec.filesystem("memory")
    files.store.clear()
    dataset = make_images(30)
    with pytest.raises(RuntimeError):
        embed(model, dataset, "memory://a/out/", shards=2, encoder=counting(model, 3))
    embed(model, dataset, "memory://a/out", shards=2)
    embed(model, dataset, tmp_path, shards=2)
    assert sorted(files.find("/a")) == [f"/a/out/{part_name(shard, 2)}" for shard in range(2)]
    assert {name: files.cat(f"/a/out/{name}") for name in tree(tmp_path)} == tree(tmp_path)
    assert np.array_equal(read_embeddings("memory://a/out").vectors, read_embeddings(tmp_path).vectors)
    files.store.clear()


def test_places_that_cannot_be_written_are_told_of(embed, model, make_images, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="file"):
        embed(model, make_images(3), tmp_path / "file")
    with pytest.raises(StorageError):
        embed(model, make_images(3), f"zip://a::file://{tmp_path}/none.zip")


def test_names_that_no_table_can_hold_are_told_of(embed, model, make_images, tmp_path):
    images = make_images(3)
    named = images.manifest.with_column("label", ["a", "b", "\udcff"])
    with pytest.raises(DataError, match="Unicode"):
        embed(model, Dataset(named, images.store), tmp_path)


def test_a_disk_without_locks_will_do(embed, model, make_images, tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", refuse)
    assert embed(model, make_images(10), tmp_path)[0].rows == 10


def test_folders_that_are_not_complete_are_not_read(embed, model, make_images, tmp_path):
    with pytest.raises(DataError, match="--shards"):
        read_embeddings(tmp_path)
    embed(model, make_images(30), tmp_path, shards=12, only=[1, 5])
    with pytest.raises(DataError, match="0, 2, 3, 4, 6"):
        read_embeddings(tmp_path)
    (tmp_path / part_name(0, 2)).write_bytes(b"")
    with pytest.raises(DataError, match=r"2\b.*12"):
        read_embeddings(tmp_path)


def test_a_part_is_a_table_for_anybody(embed, counting, model, make_images, tmp_path):
    from pyarrow import dataset as tables

    images = make_images(30)
    images = Dataset(Manifest(images.manifest.columns), images.store, name="s3://ann:secret@host/x")
    with pytest.raises(RuntimeError):
        embed(model, images, tmp_path, shards=2, encoder=counting(model, 3))  # unfinished chunks are no parts
    assert tables.dataset(tmp_path, format="parquet").to_table().num_rows == 15
    embed(model, images, tmp_path, shards=2)
    table = tables.dataset(tmp_path, format="parquet").to_table()
    assert table.column_names == ["path", "label", "embedding"]
    assert np.array_equal(np.stack(table["embedding"].to_numpy()), read_embeddings(tmp_path).vectors)
    facts = read_embeddings(tmp_path).facts
    assert (facts.items, facts.shards, facts.dimension, facts.data) == (30, 2, 8, "s3://host/x")
    assert facts.space == model.space.to_dict()


def test_a_part_with_fewer_rows_than_it_says_is_not_whole(model, make_images, tmp_path):
    images = make_images(6)
    facts, folder = Facts.of(model, images, 1), LocalFolder(tmp_path)
    for rows, whole in ((6, True), (5, False)):
        write_part(folder, "a.parquet", facts.over(0, range(6)), [(["a"] * rows, ["x"] * rows, np.ones((rows, 8)))])
        if whole:
            assert read_facts(folder, "a.parquet").rows == 6
        else:
            with pytest.raises(DamagedError):
                read_facts(folder, "a.parquet")


def test_a_part_that_may_not_be_read_is_not_made_again(embed, model, make_images, tmp_path, monkeypatch):
    embed(model, make_images(6), tmp_path)

    def refuse(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(LocalFolder, "open", refuse)
    for call in (lambda: embed(model, make_images(6), tmp_path), lambda: read_embeddings(tmp_path)):
        with pytest.raises(StorageError, match="Permission"):
            call()
