"""Manifests: round trips, selection, and one clear sentence for every way a table can be wrong."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nearkin.data import Manifest, read_manifest, write_manifest
from nearkin.data.manifest import manifest_bytes, parse_manifest
from nearkin.errors import DataError, StorageError

# Any text that UTF-8 can hold, weighted towards what breaks CSV files.
texts = st.text(
    st.one_of(st.sampled_from(",\"'\n\r;\t \\|é漢🦉\ufeff"), st.characters(exclude_categories=["Cs"])), max_size=12
)
filled = texts.filter(lambda text: bool(text) and not text.isspace())


@st.composite
def manifests(draw):
    paths = draw(st.lists(filled, min_size=1, max_size=6, unique=True))
    size = len(paths)
    columns = draw(st.lists(filled.filter(lambda name: name not in ("path", "label")), max_size=2, unique=True))
    more = {name: draw(st.lists(texts, min_size=size, max_size=size)) for name in columns}
    labels = draw(st.lists(filled, min_size=size, max_size=size))
    return Manifest({"path": paths, "label": labels, **more})


def as_lists(manifest):
    return {name: list(values) for name, values in manifest.columns.items()}


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@settings(max_examples=60, deadline=None)
@given(manifest=manifests())
def test_written_and_read_back_is_the_same(tmp_path_factory, suffix, manifest):
    path = tmp_path_factory.mktemp("manifest") / f"m{suffix}"
    write_manifest(manifest, path)
    assert as_lists(read_manifest(path)) == as_lists(manifest)


@settings(max_examples=60, deadline=None)
@given(manifest=manifests())
def test_csv_is_what_pythons_reader_understands(manifest):
    rows = list(csv.reader(io.StringIO(manifest_bytes(manifest).decode("utf-8"), newline="")))
    assert rows == [list(manifest.columns), *(list(row) for row in zip(*manifest.columns.values(), strict=True))]


def test_columns_classes_and_codes():
    manifest = Manifest.from_rows(["a", "b", "c", "d"], ["owl", "cat", "owl", 7], split=["train", "test", "", "train"])
    assert len(manifest) == 4
    assert manifest.classes == ["7", "cat", "owl"]
    assert manifest.class_ids().tolist() == [2, 1, 2, 0]
    assert manifest.class_ids().dtype == np.int64
    assert manifest.labels.tolist() == ["owl", "cat", "owl", "7"]
    assert manifest.has("split")
    assert not manifest.has("domain")
    assert all(type(label) is str for label in manifest.labels)


@given(st.lists(filled, min_size=1, max_size=40))
def test_class_ids_index_into_sorted_classes(labels):
    manifest = Manifest.from_rows(range(len(labels)), labels)
    assert manifest.classes == sorted(set(labels))
    assert [manifest.classes[code] for code in manifest.class_ids()] == labels


def test_select_where_and_with_column():
    manifest = Manifest.from_rows("abcd", "xyxy", split=["train", "test", "train", "train"])
    assert manifest.select([3, 0]).paths.tolist() == ["d", "a"]
    assert manifest.select([]).paths.tolist() == []
    assert manifest.select(np.array([True, False, False, True])).paths.tolist() == ["a", "d"]
    assert manifest.where(split="train", label="x").paths.tolist() == ["a", "c"]
    assert manifest.with_column("fold", [0, 1, 2, 3]).column("fold").tolist() == ["0", "1", "2", "3"]
    assert not manifest.has("fold")


def test_values_of_a_csv_stay_as_written(tmp_path):
    path = tmp_path / "m.csv"
    path.write_bytes(b"\xef\xbb\xbfpath,label,code\r\na.png,007,NA\r\nb.png,1e5,\r\n\r\n")
    manifest = read_manifest(path)
    assert manifest.labels.tolist() == ["007", "1e5"]
    assert manifest.column("code").tolist() == ["NA", ""]


def test_parquet_numbers_categories_and_nulls_become_text(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    path = tmp_path / "m.parquet"
    columns = {
        "path": ["a.png", "b.png"],
        "label": pa.array([3, 12]),
        "domain": pa.array(["x", None]).dictionary_encode(),
        "seen": [True, False],
    }
    pq.write_table(pa.table(columns), path)
    manifest = read_manifest(path)
    assert manifest.labels.tolist() == ["3", "12"]
    assert manifest.column("domain").tolist() == ["x", ""]
    assert manifest.column("seen").tolist() == ["true", "false"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"path,label\na,x\nb,\n", "row 3"),
        (b"path,label\na,x\nb,  \n", "row 3"),
        (b"path,label\n,x\n", "row 2"),
        (b"path,class\na,x\n", "'label'"),
        (b"file,label\na,x\n", "'path'"),
        (b"", "'path'"),
        (b"path,label\n", "rows"),
        (b"path,label\na,x\nb,y\na,z\n", "twice"),
        (b"path,label,label\na,x,y\n", "twice"),
        (b"path,label\na,x\nb,y,z\n", "CSV"),
        (b"path,label\na,\xff\xfe\n", "line 2"),
        ("path,label\na,x\n".encode("utf-16"), "UTF-8"),
    ],
)
def test_a_wrong_csv_gets_one_sentence(tmp_path, text, message):
    path = tmp_path / "m.csv"
    path.write_bytes(text)
    with pytest.raises(DataError, match=message) as caught:
        read_manifest(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_wrong_parquet_gets_one_sentence(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    damaged, nulls, nested = (tmp_path / name for name in ("d.parquet", "n.parquet", "x.parquet"))
    damaged.write_bytes(b"PAR1 nonsense")
    pq.write_table(pa.table({"path": ["a", "b"], "label": ["x", None]}), nulls)
    pq.write_table(pa.table({"path": ["a"], "label": ["x"], "box": [[1, 2]]}), nested)
    for path, message in [(damaged, "Parquet"), (nulls, "row 3"), (nested, "'box'")]:
        with pytest.raises(DataError, match=message):
            read_manifest(path)


def test_missing_and_unknown_files(tmp_path):
    with pytest.raises(DataError, match=r"absent\.csv"):
        read_manifest(tmp_path / "absent.csv")
    with pytest.raises(DataError, match=r"\.parquet"):
        parse_manifest(b"", "table.xlsx")
    with pytest.raises(DataError, match=r"\.parquet"):
        write_manifest(Manifest.from_rows("a", "b"), tmp_path / "m.tsv")


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_text_that_is_not_unicode_is_refused_and_the_old_file_stays(tmp_path, suffix):
    path = tmp_path / f"m{suffix}"
    path.write_bytes(b"old")
    with pytest.raises(DataError, match="Unicode"):
        write_manifest(Manifest.from_rows(["a\udcff.png"], ["x"]), path)
    assert path.read_bytes() == b"old"


def test_a_refused_write_names_the_file(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"m\.csv"):
        write_manifest(Manifest.from_rows("a", "b"), tmp_path / "file" / "m.csv")


def test_unequal_columns_unknown_columns_and_wrong_masks():
    with pytest.raises(DataError, match="'label'"):
        Manifest({"path": np.array(["a"], dtype=object)})
    with pytest.raises(DataError, match="length"):
        Manifest.from_rows(["a", "b"], ["x"])
    manifest = Manifest.from_rows(["a"], ["x"], domain=["photo"])
    with pytest.raises(DataError, match="'domain'"):
        manifest.column("domian")
    with pytest.raises(DataError, match="mask"):
        manifest.select(np.array([True, False]))


@pytest.mark.data
def test_real_manifests_survive_a_round_trip(data_root, tmp_path):
    import zipfile

    with zipfile.ZipFile(data_root / "pacs.zip") as archive:
        raw = archive.read("manifest.csv")
    manifest = parse_manifest(raw, "manifest.csv")
    assert len(manifest) == 9991
    assert len(manifest.classes) == 7
    assert sorted(set(manifest.column("domain"))) == ["art_painting", "cartoon", "photo", "sketch"]
    for name in ("m.csv", "m.parquet"):
        write_manifest(manifest, tmp_path / name)
        assert as_lists(read_manifest(tmp_path / name)) == as_lists(manifest)
