"""Hugging Face directories, written here byte for byte as the library writes them, without the library."""

from __future__ import annotations

import io
import json
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from nearkin.data import ArrowStore, UnreadableError, find_bad, huggingface, open_data
from nearkin.errors import DataError

NAMES = ["ant", "bee", "cow"]
FEATURES = {
    "image": {"_type": "Image"},
    "label": {"names": NAMES, "_type": "ClassLabel"},
    "camera": {"dtype": "string", "_type": "Value"},
}


def picture(shade):
    buffer = io.BytesIO()
    Image.new("L", (4, 4), shade).save(buffer, "PNG")
    return buffer.getvalue()


def table(shades, features=FEATURES, image="image", **columns):
    """Rows whose picture's shade tells which row it is; labels cycle through the classes."""
    shades = list(shades)
    cells = [{"bytes": picture(shade), "path": f"{shade}.png"} for shade in shades]
    arrays = {
        image: pa.array(cells, pa.struct({"bytes": pa.binary(), "path": pa.string()})),
        "label": pa.array([shade % 3 for shade in shades], pa.int64()),
        "camera": pa.array([f"c{shade % 2}" for shade in shades]),
        **columns,
    }
    metadata = {"huggingface": json.dumps({"info": {"features": features}})} if features else None
    return pa.table(arrays).replace_schema_metadata(metadata)


def write_stream(rows, path, chunk=2):
    path.parent.mkdir(parents=True, exist_ok=True)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows, max_chunksize=chunk)


def save(folder, shards, split="train", features=FEATURES):
    """What `Dataset.save_to_disk` leaves behind."""
    names = [f"data-{index:05d}-of-{len(shards):05d}.arrow" for index in range(len(shards))]
    for name, rows in zip(names, shards, strict=True):
        write_stream(rows, folder / name)
    state = {"_data_files": [{"filename": name} for name in names], "_fingerprint": "ab", "_split": split}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text(json.dumps({"features": features, "description": ""}))
    return folder


def hub(folder, files, group=2):
    for name, rows in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows, folder / name, row_group_size=group)
    return folder


def shades(data):
    return [int(np.asarray(data.load(index))[0, 0]) for index in range(len(data))]


def check(data, expected, splits=None):
    assert shades(data) == expected
    assert data.labels.tolist() == [NAMES[shade % 3] for shade in expected]
    assert data.manifest.column("camera").tolist() == [f"c{shade % 2}" for shade in expected]
    assert len(set(data.manifest.paths)) == len(expected)
    assert find_bad(data, progress=False) == []
    if splits is None:
        assert not data.manifest.has("split")
    else:
        assert data.manifest.column("split").tolist() == splits


def test_a_saved_data_set(tmp_path):
    data = open_data(save(tmp_path / "set", [table(range(5)), table(range(5, 8))]))
    check(data, list(range(8)), ["train"] * 8)
    assert data.kind == "image"
    assert data.name == "set"


def test_a_saved_dictionary_of_splits(tmp_path):
    for split, rows in {"train": range(4), "validation": range(4, 6), "test": range(6, 9)}.items():
        save(tmp_path / split, [table(rows)], split)
    (tmp_path / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "validation", "test"]}))
    check(open_data(tmp_path), list(range(9)), ["train"] * 4 + ["val"] * 2 + ["test"] * 3)


def test_a_saved_set_without_a_split_name(tmp_path):
    check(open_data(save(tmp_path, [table(range(3))], split=None)), [0, 1, 2])


def test_the_librarys_cache_folder(tmp_path):
    (tmp_path / "dataset_info.json").write_text(json.dumps({"features": FEATURES}))
    write_stream(table(range(3)), tmp_path / "beans-train.arrow")
    write_stream(table(range(3, 5)), tmp_path / "beans-test-00000-of-00001.arrow")
    write_stream(table(range(9)), tmp_path / "cache-0123456789.arrow")
    check(open_data(tmp_path), [3, 4, 0, 1, 2], ["test"] * 2 + ["train"] * 3)


@pytest.mark.parametrize(
    "names",
    [
        ["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet", "data/test-00000-of-00001.parquet"],
        [
            "train-00000-of-00002-0123456789abcdef.parquet",
            "train-00001-of-00002-fedcba9876543210.parquet",
            "test-00000-of-00001.parquet",
        ],
        ["train.parquet", "train-00001-of-00002.parquet", "test.parquet"],
        [
            "plain/train-00000-of-00002.parquet",
            "plain/train-00001-of-00002.parquet",
            "plain/test-00000-of-00001.parquet",
        ],
        ["default/train/0000.parquet", "default/train/0001.parquet", "default/test/0000.parquet"],
    ],
)
def test_the_hubs_layouts(tmp_path, names):
    tables = [table(range(5)), table(range(5, 8)), table(range(8, 10))]
    data = open_data(hub(tmp_path, dict(zip(names, tables, strict=True))))
    assert sorted(zip(shades(data), data.manifest.column("split"), data.labels, strict=True)) == [
        (shade, "train" if shade < 8 else "test", NAMES[shade % 3]) for shade in range(10)
    ]


def test_one_shard_on_its_own(tmp_path):
    hub(tmp_path, {"data/train-00000-of-00001.parquet": table(range(3))})
    check(open_data(tmp_path / "data" / "train-00000-of-00001.parquet"), [0, 1, 2], ["train"] * 3)


def test_several_configurations_must_be_told_apart(tmp_path):
    hub(tmp_path, {f"{name}/train-00000-of-00001.parquet": table(range(3)) for name in ("fine", "coarse")})
    with pytest.raises(DataError, match="coarse"):
        open_data(tmp_path)
    check(open_data(tmp_path / "fine"), [0, 1, 2], ["train"] * 3)


def test_a_stray_parquet_file_does_not_hide_class_folders(tmp_path):
    for label in ("x", "y"):
        (tmp_path / label).mkdir()
        (tmp_path / label / "1.png").write_bytes(picture(1))
    pq.write_table(pa.table({"weight": [1.0]}), tmp_path / "weights.parquet")
    assert open_data(tmp_path).classes == ["x", "y"]


def test_columns_are_guessed_where_features_are_missing(tmp_path):
    rows = table(range(3), features=None, image="img", label=pa.array(["p", "q", "p"]))
    data = open_data(hub(tmp_path, {"train.parquet": rows}))
    assert data.labels.tolist() == ["p", "q", "p"]
    assert shades(data) == [0, 1, 2]


def test_the_usual_label_is_preferred_and_other_classes_become_columns(tmp_path):
    features = {
        "image": {"_type": "Image"},
        "coarse_label": {"names": ["animal"], "_type": "ClassLabel"},
        "fine_label": {"names": NAMES, "_type": "ClassLabel"},
    }
    rows = table(range(3), features).drop_columns(["label"])
    rows = rows.append_column("coarse_label", pa.array([0, -1, None])).append_column("fine_label", pa.array([2, 1, 0]))
    data = open_data(hub(tmp_path, {"train.parquet": rows}))
    assert data.labels.tolist() == ["cow", "bee", "ant"]
    assert data.manifest.column("coarse_label").tolist() == ["animal", "", ""]


def test_nested_columns_and_names_of_ours_are_left_out(tmp_path):
    rows = table(range(2), boxes=pa.array([[1], [2]]), path=pa.array(["x", "y"]), split=pa.array(["a", "b"]))
    data = open_data(hub(tmp_path, {"train.parquet": rows}))
    assert set(data.manifest.columns) == {"path", "label", "split", "camera"}
    assert data.manifest.paths[0] == "train.parquet/000000.png"
    assert data.manifest.column("split").tolist() == ["train", "train"]


def test_audio_columns(tmp_path):
    soundfile = pytest.importorskip("soundfile")
    buffer = io.BytesIO()
    soundfile.write(buffer, np.sin(np.arange(1600) / 9), 8000, format="WAV")
    features = {"audio": {"_type": "Audio", "sampling_rate": 8000}, "label": {"dtype": "string", "_type": "Value"}}
    cells = pa.array([{"bytes": buffer.getvalue(), "path": None}])
    rows = pa.table({"audio": cells, "label": ["ann"]})
    data = open_data(save(tmp_path, [rows], features=features))
    assert data.kind == "audio"
    assert data.load(0).shape == (3200,)
    assert data.manifest.paths[0].endswith(".wav")


def test_both_formats_give_the_same_bytes_to_threads_and_other_processes(tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface, "_CACHE_BYTES", 1)  # every row group is dropped at once, the hardest case
    places = [save(tmp_path / "a", [table(range(40))]), hub(tmp_path / "b", {"train.parquet": table(range(40))}, 7)]
    for data in map(open_data, places):
        order = np.random.default_rng(0).permutation(40).tolist() * 3
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda index, data=data: int(np.asarray(data.load(index))[0, 0]), order))
        assert found == order
        assert shades(pickle.loads(pickle.dumps(data))) == list(range(40))


def test_row_groups_are_kept_while_they_fit(tmp_path, monkeypatch):
    data = open_data(hub(tmp_path, {"train.parquet": table(range(20))}, 5))
    shades(data)
    assert len(data.store._groups) == 4
    monkeypatch.setattr(pq, "ParquetFile", None)  # nothing is opened again
    assert shades(data) == list(range(20))


def test_fingerprints_follow_content_not_place(tmp_path):
    first, copy = (open_data(save(tmp_path / name, [table(range(5))])).fingerprint() for name in ("a", "b"))
    other = open_data(save(tmp_path / "c", [table([0, 1, 2, 3, 7])])).fingerprint()
    assert first == copy != other


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda root: (root / "state.json").write_text("{"), r"state\.json"),
        (lambda root: (root / "state.json").write_text("[]"), "JSON"),
        (lambda root: (root / "state.json").write_text("{}"), r"\.parquet"),
        (
            lambda root: (root / "state.json").write_text('{"_data_files": [{"filename": "../x.arrow"}]}'),
            "outside",
        ),
        (
            lambda root: (root / "state.json").write_text('{"_data_files": [{"filename": "gone.arrow"}]}'),
            r"gone\.arrow",
        ),
        (lambda root: (root / "data-00000-of-00001.arrow").write_bytes(b"nonsense"), r"data-00000-of-00001\.arrow"),
        (lambda root: (root / "data-00000-of-00001.arrow").write_bytes(b""), r"data-00000-of-00001\.arrow"),
    ],
)
def test_a_spoilt_folder_gets_one_sentence(tmp_path, spoil, message):
    spoil(save(tmp_path, [table(range(3))]))
    with pytest.raises(DataError, match=message):
        open_data(tmp_path)


def test_unlabelled_rows_and_absent_columns_get_one_sentence(tmp_path):
    hidden = table(range(2), label=pa.array([0, -1]))
    with pytest.raises(DataError, match=r"test\.parquet"):
        open_data(hub(tmp_path / "a", {"test.parquet": hidden}))
    with pytest.raises(DataError, match="label"):
        open_data(hub(tmp_path / "b", {"test.parquet": table(range(2)).drop_columns(["label"])}))
    with pytest.raises(DataError, match="audio"):
        open_data(save(tmp_path / "c", [table(range(2)).drop_columns(["image"])]))
    with pytest.raises(DataError, match="rows"):
        open_data(save(tmp_path / "d", [table([])]))
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / "train.parquet").write_bytes(b"PAR1 nonsense")
    with pytest.raises(DataError, match=r"train\.parquet"):
        open_data(tmp_path / "e")


def test_rows_without_bytes_are_bad_items(tmp_path):
    cells = pa.array([{"bytes": picture(0), "path": "0.png"}, {"bytes": None, "path": "/tmp/1.png"}, None])
    data = open_data(hub(tmp_path, {"train.parquet": table(range(3)).set_column(0, "image", cells)}))
    assert [item.path for item in find_bad(data, progress=False)] == data.manifest.paths[1:].tolist()
    assert "no embedded file" in find_bad(data, progress=False)[0].reason


@pytest.mark.parametrize("path", ["train.parquet/000009.png", "train.parquet/x", "train.parquet"])
def test_paths_that_name_no_row(tmp_path, path):
    hub(tmp_path, {"train.parquet": table(range(3))})
    with pytest.raises(UnreadableError):
        ArrowStore(tmp_path, "image").read(path)
    with pytest.raises(DataError, match="outside"):
        ArrowStore(tmp_path, "image").read(f"../{path}")
