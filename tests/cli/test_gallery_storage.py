"""`nearkin gallery import`, `index` and `precision` at the prompt."""

from __future__ import annotations

import json
import re

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from nearkin.gallery import Gallery

ROWS, WIDTH = 60, 6


@pytest.fixture
def shards(tmp_path):
    """Two shards as `nearkin embed` writes them, with a column more."""
    folder = tmp_path / "vectors"
    folder.mkdir()
    vectors = np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype(np.float32)
    for shard, rows in enumerate(np.split(np.arange(ROWS), 2)):
        table = {
            "path": [f"photos/{row}.jpg" for row in rows],
            "label": [f"c{row % 3}" for row in rows],
            "shop": [f"shop {row % 2}" for row in rows],
            "embedding": pa.FixedSizeListArray.from_arrays(pa.array(vectors[rows].ravel()), WIDTH),
        }
        parquet.write_table(pa.table(table), folder / f"part-{shard:05d}-of-00002.parquet")
    return folder


def create(nearkin, path, *more):
    code, _, err = nearkin("gallery", "create", path, "--dimension", WIDTH, "--name", "x", *more)
    return code, err


def test_shards_go_into_a_gallery_of_int8(nearkin, tmp_path, shards):
    path = tmp_path / "g.gallery"
    assert create(nearkin, path, "--dtype", "int8") == (0, "")
    code, out, err = nearkin("gallery", "import", path, shards, "--quiet")
    assert (code, err) == (0, "")
    assert "60 items" in out
    assert "replaced" not in out
    code, out, _ = nearkin("gallery", "import", path, *sorted(shards.iterdir()), "--json")
    assert json.loads(out) == {"imported": 60, "resumed": 0, "replaced": 60, "items": 60}
    _, out, _ = nearkin("gallery", "info", path)
    assert "int8" in out
    _, out, _ = nearkin("gallery", "import", path, shards / "part-*.parquet", "--id-column", "path", "--anew", "-q")
    assert "replaced" in out


def test_an_import_that_was_cut_off_says_so_and_goes_on(nearkin, tmp_path, shards, monkeypatch):
    from nearkin.errors import StorageError
    from nearkin.gallery import bulk_import
    from nearkin.gallery.sqlite import SqliteStore

    monkeypatch.setattr(bulk_import, "_ROWS", 10)
    path = tmp_path / "g.gallery"
    create(nearkin, path)

    def fail(*_):
        raise StorageError("The disk is full.")

    with monkeypatch.context() as broken:
        broken.setattr(SqliteStore, "set_note", fail)
        code, out, err = nearkin("gallery", "import", path, shards, "-q")
    assert (code, out) == (1, "")
    assert "30 of 60" in err
    assert "Traceback" not in err
    code, out, _ = nearkin("gallery", "import", path, shards, "--json")
    assert json.loads(out)["items"] == 60


def test_partitions_and_indexes_of_milvus(nearkin, tmp_path, shards):
    pytest.importorskip("pymilvus", exc_type=ImportError)
    pytest.importorskip("milvus_lite", exc_type=ImportError)
    path = f"{tmp_path}/m.db"
    chosen = ("--partition-by", "shop", "--partitions", 16, "--index", "hnsw", "--index-param", "M=8")
    assert create(nearkin, path, *chosen) == (0, "")
    assert nearkin("gallery", "import", path, shards, "-q")[0] == 0
    _, out, _ = nearkin("gallery", "info", path)
    assert re.search(r"hnsw.*\bM\W+8\b.*\b16\b.*\bshop\b", out)
    _, out, _ = nearkin("gallery", "items", path, "--where", "shop = 'shop 1'", "--json")
    assert len(json.loads(out)["items"]) == 30
    code, out, _ = nearkin("gallery", "index", path, "exact")
    assert (code, "exact" in out) == (0, True)
    code, _, err = nearkin("gallery", "index", path, "diskann")
    assert (code, err.count("\n")) == (1, 1)
    assert "diskann" in err
    code, _, err = nearkin("gallery", "index", path, "hnsw", "--index-param", "M=many")
    assert code == 1
    assert "many" in err


@pytest.mark.parametrize("form", ["shards", "gallery", "npy"])
def test_precision_is_told_of_any_vectors(nearkin, tmp_path, shards, form):
    path = tmp_path / "g.gallery"
    create(nearkin, path)
    nearkin("gallery", "import", path, shards, "-q")
    with Gallery.open(path) as gallery:
        items = gallery.items()
        np.save(tmp_path / "v.npy", gallery.store.vectors([item.id for item in items]))
    (tmp_path / "labels.txt").write_text("".join(f"{item.label}\n" for item in items))
    source = {"shards": [shards], "gallery": [path], "npy": [tmp_path / "v.npy", "--labels", tmp_path / "labels.txt"]}
    code, out, err = nearkin("gallery", "precision", *source[form], "--dtype", "int8", "--json")
    assert (code, err) == (0, "")
    usual, small = json.loads(out)["precision"]
    assert (usual["dtype"], small["dtype"], small["bytes"]) == ("float32", "int8", WIDTH + 4)
    assert usual["recall"] == {"1": 1.0, "10": 1.0}
    assert 0.9 < small["recall"]["10"] <= 1
    assert set(small["metrics"]) == {"MAP@R", "P@1"}
    code, out, _ = nearkin("gallery", "precision", *source[form], "-q")
    assert [line.split()[0] for line in out.splitlines()][:4] == ["stored", "float32", "float16", "int8"]
    assert "60" in out.splitlines()[4]


def test_what_has_no_float32_any_more_is_told(nearkin, tmp_path, shards):
    path = tmp_path / "g.gallery"
    create(nearkin, path, "--dtype", "int8")
    for arguments, told in (
        ((path,), "int8"),
        ((tmp_path / "nothing.npy",), "nothing.npy"),
        ((tmp_path / "nothing.parquet",), "nothing.parquet"),
        ((shards, "--dtype", "int3"), "int3"),
        ((shards, "--space", "nowhere"), "nowhere"),
    ):
        code, out, err = nearkin("gallery", "precision", *arguments)
        assert (code, out) == (1, "")
        assert told in err
        assert "Traceback" not in err
    code, _, err = nearkin("gallery", "precision", shards, "--labels", tmp_path / "l.txt")
    assert code == 2


def test_labels_are_no_partitions(nearkin, tmp_path):
    path = tmp_path / "g.db"
    code, _, err = nearkin("gallery", "create", path, "--dimension", 4, "--name", "x", "--partition-by", "label")
    assert code == 1
    assert "label" in err
    assert not path.exists()
