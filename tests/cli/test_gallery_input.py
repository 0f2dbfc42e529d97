"""What the gallery's commands read and show: values, vectors of one's own, tables; no gallery needed."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pyarrow as pa
import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from nearkin.cli.gallery_input import (
    items_to_add,
    queries_from,
    read_labelled,
    read_table,
    read_vectors,
)
from nearkin.cli.options import parse_assignments, parse_value
from nearkin.cli.output import printable, show_facts, show_json, show_table
from nearkin.errors import DataError
from nearkin.gallery.values import Item, Neighbour


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("20", 20),
        ("2.5", 2.5),
        ("true", True),
        ("null", None),
        ('"20"', "20"),
        ('["a", 1]', ["a", 1]),
        ("red", "red"),
        ("", ""),
        ("007", "007"),
        ("NaN", "NaN"),
        ("Infinity", "Infinity"),
        ("a=b", "a=b"),
    ],
)
def test_a_value_is_json_where_it_can_be_read_so(text, value):
    assert parse_value(text) == value
    assert type(parse_value(text)) is type(value)
    assert parse_assignments([f" name ={text}"], "--param") == {"name": value}


@pytest.mark.parametrize("text", ["red", "=red", " = 3", ""])
def test_what_sets_nothing_is_wrong_usage(text):
    with pytest.raises(typer.BadParameter, match="name=value"):
        parse_assignments([text], "--param")


@pytest.mark.parametrize("dtype", ["float16", "float64", "int8"])
def test_vectors_of_a_file(tmp_path, dtype):
    rows = np.arange(6).reshape(2, 3).astype(dtype)
    np.save(tmp_path / "v.npy", rows)
    np.save(tmp_path / "one.npy", rows[0])
    assert np.array_equal(read_vectors(tmp_path / "v.npy"), rows.astype(np.float32))
    assert read_vectors(tmp_path / "v.npy").dtype == np.float32
    assert read_vectors(tmp_path / "one.npy").shape == (1, 3)


def test_files_that_hold_no_vectors_are_told_in_a_sentence(tmp_path):
    file = tmp_path / "v.npy"
    with pytest.raises(DataError, match=r"v\.npy"):
        read_vectors(file)
    file.write_bytes(b"not an array")
    with pytest.raises(DataError, match=r"\.npy"):
        read_vectors(file)
    np.save(file, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match=r"\.npy"):
        read_vectors(file)
    for wrong in (np.zeros((2, 2, 2)), np.array(["a", "b"]), np.float32(1), np.zeros(2, dtype=complex)):
        np.save(file, wrong)
        with pytest.raises(DataError, match="shape"):
            read_vectors(file)
    np.savez(tmp_path / "v.npz", a=np.zeros(2))
    with pytest.raises(DataError, match="shape"):
        read_vectors(tmp_path / "v.npz")


def test_labels_of_a_text_file_keep_their_characters(tmp_path):
    np.save(tmp_path / "v.npy", np.eye(3))
    (tmp_path / "labels.txt").write_text("[red] Ära\n\nfish,\u2028& chips\n", encoding="utf-8")
    given_ = read_labelled(tmp_path / "v.npy", tmp_path / "labels.txt")
    assert given_["labels"] == ["[red] Ära", None, "fish,\u2028& chips"]
    assert read_labelled(tmp_path / "v.npy", None).keys() == {"items"}


def test_columns_of_a_csv_become_ids_and_metadata(tmp_path):
    np.save(tmp_path / "v.npy", np.eye(2))
    text = '\ufeffid,label,price,code,note,new\na1,"shoe, left",19.5,12,,true\na2,,20,007,"two\nlines",\n'
    (tmp_path / "labels.csv").write_text(text, encoding="utf-8")
    given_ = read_labelled(tmp_path / "v.npy", tmp_path / "labels.csv")
    assert given_["ids"] == ["a1", "a2"]
    assert given_["labels"] == ["shoe, left", None]
    assert given_["metadata"] == [
        {"price": 19.5, "code": "12", "new": True},
        {"price": 20, "code": "007", "note": "two\nlines"},
    ]


def test_labels_that_do_not_fit_the_vectors_are_refused(tmp_path):
    np.save(tmp_path / "v.npy", np.eye(3))
    labels = tmp_path / "labels.txt"
    with pytest.raises(DataError, match=r"labels\.txt"):
        read_labelled(tmp_path / "v.npy", labels)
    labels.write_text("a\nb\n")
    with pytest.raises(DataError, match=r"\b2\b"):
        read_labelled(tmp_path / "v.npy", labels)
    labels.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="UTF-8"):
        read_labelled(tmp_path / "v.npy", labels)
    (tmp_path / "labels.csv").write_text("label\n" + "x" * 200_000)
    with pytest.raises(DataError, match="CSV"):
        read_labelled(tmp_path / "v.npy", tmp_path / "labels.csv")
    (tmp_path / "labels.csv").write_text("name,price\na,1\n")
    with pytest.raises(DataError, match=r"\blabel\b"):
        read_labelled(tmp_path / "v.npy", tmp_path / "labels.csv")


@pytest.mark.parametrize("fixed", [True, False])
def test_a_table_as_embed_writes_it(tmp_path, fixed):
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), 3) if fixed else pa.array(rows.tolist())
    table = {"path": ["a.png", "b.png"], "label": ["x", None], "embedding": vectors, "stock": [3, None]}
    parquet.write_table(pa.table(table), tmp_path / "v.parquet")
    given_ = read_table(tmp_path / "v.parquet")
    assert np.array_equal(given_["items"], rows)
    assert given_["labels"] == ["x", None]
    assert given_["metadata"] == [{"path": "a.png", "stock": 3}, {"path": "b.png", "stock": None}]
    assert len(set(given_["ids"])) == 2
    assert read_table(tmp_path / "v.parquet")["ids"] == given_["ids"]  # adding it again adds nothing


def test_tables_without_vectors_are_refused(tmp_path):
    file = tmp_path / "v.parquet"
    with pytest.raises(DataError, match=r"v\.parquet"):
        read_table(file)
    parquet.write_table(pa.table({"label": ["a"]}), file)
    with pytest.raises(DataError, match="embedding"):
        read_table(file)
    parquet.write_table(pa.table({"embedding": pa.array([], pa.list_(pa.float32(), 3))}), file)
    with pytest.raises(DataError, match=r"v\.parquet"):
        read_table(file)
    with pytest.raises(DataError, match="photos"):
        read_table(tmp_path / "photos")


def test_only_chooses_rows_by_their_columns(photos, tmp_path):
    photos = shutil.copytree(photos, tmp_path / "photos")
    paths = [f"class0{c}/0{i}.png" for c in range(2) for i in range(3)]
    rows = [f"{path},{path[:7]},{'new' if '02' in path else 'old'}" for path in paths]
    (photos / "only.csv").write_text("\n".join(["path,label,age", *rows]))
    chosen = items_to_add(str(photos / "only.csv"), None, None, ["age=new", "label=class01"], of_vectors=False)["items"]
    assert list(chosen.manifest.paths) == ["class01/02.png"]
    with pytest.raises(DataError, match="age=none"):
        items_to_add(str(photos / "only.csv"), None, None, ["age=none"], of_vectors=False)
    with pytest.raises(DataError, match=r"\bage\b"):
        items_to_add(str(photos / "only.csv"), None, None, ["aeg=new"], of_vectors=False)
    with pytest.raises(typer.BadParameter, match="name=value"):
        items_to_add(str(photos / "only.csv"), None, None, ["age"], of_vectors=False)


def test_options_that_contradict_each_other_are_wrong_usage(tmp_path):
    file = tmp_path / "v.npy"
    for items, vectors, labels, only in (
        ("photos", file, None, None),
        ("photos", None, file, None),
        (None, file, None, ["split=test"]),
        ("v.parquet", None, None, ["split=test"]),
    ):
        with pytest.raises(typer.BadParameter):
            items_to_add(items, vectors, labels, only, of_vectors=True)
    assert items_to_add(None, None, None, None, of_vectors=True) == {}
    assert items_to_add("photos", None, None, None, of_vectors=False) == {"items": "photos"}


def test_queries_of_vectors_are_named_by_file_and_row(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((2, 3)))
    np.save(tmp_path / "b.npy", np.ones(3))
    np.save(tmp_path / "c.npy", np.ones(4))
    names, vectors = queries_from([tmp_path / "a.npy", tmp_path / "b.npy"], of_vectors=True)
    assert names == [f"{tmp_path}/a.npy[0]", f"{tmp_path}/a.npy[1]", f"{tmp_path}/b.npy"]
    assert np.array_equal(vectors, [[0, 0, 0], [0, 0, 0], [1, 1, 1]])
    with pytest.raises(DataError, match="dimensions"):
        queries_from([tmp_path / "a.npy", tmp_path / "c.npy"], of_vectors=True)
    with pytest.raises(DataError, match=r"none\.png"):
        queries_from([tmp_path / "none.png"], of_vectors=False)


@given(st.text())
def test_shown_text_never_steers_a_terminal(text):
    shown = printable(text)
    assert shown.isprintable()
    assert shown == text or not text.isprintable()


def test_a_table_in_a_pipe_shows_everything(capsys):
    long = "x" * 300
    show_table(
        ("id", "label", "empty", "n"),
        [(long, "[bold]no markup[/bold]\x1b[31m", None, 1), ("b", ":smile:", "", 22)],
        numbers=("n",),
    )
    out = capsys.readouterr().out
    assert long in out
    assert "[bold]no markup[/bold]\\x1b[31m" in out
    assert ":smile:" in out
    assert "empty" not in out
    assert "\x1b" not in out
    assert {len(line.rstrip()) for line in out.splitlines()} == {len(out.splitlines()[0].rstrip())}  # flush right
    show_facts({"a": 1, "longer": None, "b": "x\ny"})
    assert capsys.readouterr().out == "a       1\nb       x\\ny\n"


def test_json_of_values(capsys):
    item = Item("a", "Ära \udcff", {"n": 1})
    show_json({"found": [Neighbour(item, 0.5)], "f": np.float32(0.5), "v": np.arange(2)})
    plain = json.loads(capsys.readouterr().out)
    assert plain["found"][0]["item"]["metadata"] == {"n": 1}
    assert plain["found"][0]["item"]["label"] == "Ära \udcff"
    assert plain["f"] == 0.5
    assert plain["v"] == [0, 1]
    with pytest.raises(TypeError, match="object"):
        show_json(object())
