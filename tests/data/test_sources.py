"""Opening data: every form gives the same data set, and every unusable form one clear sentence."""

from __future__ import annotations

import io
import os
import zipfile

import numpy as np
import pytest
from PIL import Image

from nearkin.data import Manifest, find_bad, open_data, write_manifest
from nearkin.errors import DataError


def picture(shade=0):
    buffer = io.BytesIO()
    Image.new("L", (4, 4), shade).save(buffer, "PNG")
    return buffer.getvalue()


def place(root, files):
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


def zipped(path, files):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


TREE = {"cat/1.png": picture(1), "cat/2.png": picture(2), "dog/1.png": picture(3)}
CSV = b"path,label,split\ncat/1.png,cat,train\ncat/2.png,cat,train\ndog/1.png,dog,test\n"


def rows(data):
    shades = [int(np.asarray(data.load(index))[0, 0]) for index in range(len(data))]
    return sorted(zip(data.manifest.paths, data.labels, shades, strict=True))


EXPECTED = [("cat/1.png", "cat", 1), ("cat/2.png", "cat", 2), ("dog/1.png", "dog", 3)]


def forms(tmp_path):
    yield place(tmp_path / "tree", TREE)
    yield str(tmp_path / "tree")
    yield place(tmp_path / "with_manifest", {**TREE, "manifest.csv": CSV, "notes/unlisted.txt": b"x"})
    yield place(tmp_path / "beside", {**TREE, "birds.csv": CSV}) / "birds.csv"
    place(tmp_path / "parquet", TREE)
    manifest = Manifest.from_rows([path for path, _, _ in EXPECTED], [label for _, label, _ in EXPECTED])
    write_manifest(manifest, tmp_path / "parquet" / "manifest.parquet")
    yield tmp_path / "parquet"
    yield tmp_path / "parquet" / "manifest.parquet"
    yield zipped(tmp_path / "listed.zip", {**TREE, "manifest.csv": CSV, "README.md": b"x"})
    yield zipped(
        tmp_path / "parquet.zip", {**TREE, "manifest.parquet": (tmp_path / "parquet/manifest.parquet").read_bytes()}
    )
    wrapped = {f"photos/{name}": content for name, content in TREE.items()}
    yield zipped(tmp_path / "wrapped_listed.zip", {**wrapped, "photos/manifest.csv": CSV})
    yield zipped(tmp_path / "tree.zip", TREE)
    yield zipped(tmp_path / "wrapped.zip", {"photos/": b"", **wrapped, "__MACOSX/photos/cat/._1.png": b"x"})


def test_all_forms_give_the_same_items(tmp_path):
    count = 0
    for source in forms(tmp_path):
        data = open_data(source)
        assert rows(data) == EXPECTED, source
        assert data.kind == "image"
        assert data.name
        count += 1
    assert count == 11


def test_a_data_set_is_returned_as_it_is(tmp_path):
    data = open_data(place(tmp_path, TREE))
    assert open_data(data) is data


def test_extra_columns_are_kept(tmp_path):
    data = open_data(zipped(tmp_path / "z.zip", {**TREE, "manifest.csv": CSV}))
    assert data.where(split="test").labels.tolist() == ["dog"]


def test_nested_folders_give_nested_labels(tmp_path):
    data = open_data(place(tmp_path, {"bird/owl/1.png": picture(), "bird/1.png": picture(), "b ü/x.JPG": picture()}))
    assert sorted(data.labels) == ["b ü", "bird", "bird/owl"]


def test_top_folders_called_train_and_test_are_splits(tmp_path):
    files = {f"{top}/{label}/1.png": picture() for top in ("Train", "validation", "test") for label in ("cat", "a/b")}
    for source in (place(tmp_path / "tree", files), zipped(tmp_path / "z.zip", files)):
        data = open_data(source)
        assert data.classes == ["a/b", "cat"]
        assert sorted(set(data.manifest.column("split"))) == ["test", "train", "val"]
        assert data.where(split="val").manifest.paths.tolist() == ["validation/a/b/1.png", "validation/cat/1.png"]


@pytest.mark.parametrize(
    "files",
    [["train/1.png", "test/1.png"], ["train/cat/1.png", "train/dog/1.png"], ["train/cat/1.png", "bus/cat/1.png"]],
)
def test_classes_that_are_called_train_stay_classes(tmp_path, files):
    data = open_data(place(tmp_path, {name: picture() for name in files}))
    assert data.labels.tolist() == [name.rpartition("/")[0] for name in sorted(files)]
    assert not data.manifest.has("split")


def test_system_litter_and_loose_texts_are_ignored(tmp_path):
    litter = {
        ".DS_Store": b"x",
        "cat/.hidden.png": b"x",
        "cat/Thumbs.db": b"x",
        "dog/desktop.ini": b"x",
        ".git/cat/1.png": b"x",
        "__MACOSX/cat/._1.png": b"x",
        "README.md": b"x",
        "LICENSE": b"x",
    }
    (tmp_path / "tree" / "empty_class").mkdir(parents=True)
    assert rows(open_data(place(tmp_path / "tree", {**TREE, **litter}))) == EXPECTED
    assert rows(open_data(zipped(tmp_path / "z.zip", {**TREE, **litter}))) == EXPECTED


def test_other_files_in_class_folders_are_items_for_the_check_to_name(tmp_path):
    data = open_data(place(tmp_path, {**TREE, "cat/notes.txt": b"x", "cat/table.csv": b"x"}))
    assert len(data) == 5
    assert data.kind == "image"


def test_items_come_in_sorted_order_whatever_the_disk_says(tmp_path):
    names = [f"c{index % 3}/{index}.png" for index in range(20)]
    data = open_data(place(tmp_path, {name: picture() for name in reversed(names)}))
    assert data.manifest.paths.tolist() == sorted(names)


def test_audio_is_known_by_its_suffixes(tmp_path):
    assert open_data(place(tmp_path / "a", {"x/1.wav": b"", "y/1.FLAC": b"", "y/notes.txt": b""})).kind == "audio"
    with pytest.raises(DataError, match=r"x/1\.wav"):
        open_data(place(tmp_path / "b", {"x/1.wav": b"", "y/1.png": b""}))


@pytest.mark.parametrize("files", [{}, {".DS_Store": b"x"}, {"README.md": b"x"}])
def test_an_empty_folder_or_zip(tmp_path, files):
    (tmp_path / "nothing").mkdir()
    with pytest.raises(DataError, match="nothing"):
        open_data(place(tmp_path / "nothing", files))
    with pytest.raises(DataError, match=r"z\.zip"):
        open_data(zipped(tmp_path / "z.zip", files))


def test_images_outside_class_folders(tmp_path):
    with pytest.raises(DataError, match=r"a\.png"):
        open_data(place(tmp_path, {"a.png": picture(), "b.png": picture(), "README": b"x"}))


@pytest.mark.parametrize("path", ["../x.png", "/etc/hostname", "a/../../x.png", "..\\x.png", "C:\\x.png"])
def test_manifests_that_point_outside_are_refused_before_anything_is_read(tmp_path, path):
    place(
        tmp_path, {"x.png": picture(), "in/cat/1.png": picture(), "in/manifest.csv": f"path,label\n{path},a\n".encode()}
    )
    with pytest.raises(DataError, match="outside"):
        open_data(tmp_path / "in")
    with pytest.raises(DataError, match="outside"):
        open_data(zipped(tmp_path / "z.zip", {"manifest.csv": f"path,label\n{path},a\n"}))


def test_links_that_leave_are_refused(tmp_path):
    place(
        tmp_path, {"far/1.png": picture(), "tree/cat/1.png": picture(), "listed/manifest.csv": b"path,label\n1.png,a\n"}
    )
    (tmp_path / "listed" / "1.png").symlink_to(tmp_path / "far" / "1.png")
    with pytest.raises(DataError, match="link"):
        open_data(tmp_path / "listed")
    link = tmp_path / "tree" / "cat" / "2.png"
    link.symlink_to(tmp_path / "far" / "1.png")
    with pytest.raises(DataError, match="link"):
        open_data(tmp_path / "tree")
    link.unlink()
    (tmp_path / "tree" / "dog").symlink_to(tmp_path / "far")
    with pytest.raises(DataError, match="link"):
        open_data(tmp_path / "tree")


def test_files_that_a_manifest_names_and_nobody_has(tmp_path):
    text = b"path,label\ncat/1.png,cat\ncat/9.png,cat\n"
    with pytest.raises(DataError, match=r"cat/9\.png"):
        open_data(place(tmp_path / "folder", {**TREE, "manifest.csv": text}))
    with pytest.raises(DataError, match=r"cat/9\.png"):
        open_data(zipped(tmp_path / "z.zip", {**TREE, "manifest.csv": text}))


def test_missing_labels_in_a_zipped_manifest_name_zip_and_row(tmp_path):
    with pytest.raises(DataError, match="row 3"):
        open_data(zipped(tmp_path / "z.zip", {**TREE, "manifest.csv": b"path,label\ncat/1.png,cat\ncat/2.png,\n"}))


def test_several_manifests_in_a_zip(tmp_path):
    with pytest.raises(DataError, match="manifests"):
        open_data(zipped(tmp_path / "z.zip", {"a/manifest.csv": CSV, "b/manifest.csv": CSV}))


def test_a_corrupt_zip(tmp_path):
    (tmp_path / "z.zip").write_bytes(b"not a zip")
    with pytest.raises(DataError, match=r"z\.zip"):
        open_data(tmp_path / "z.zip")


def test_a_single_image_is_no_data_set(tmp_path):
    with pytest.raises(DataError, match=r"1\.png"):
        open_data(place(tmp_path, TREE) / "cat" / "1.png")


def test_a_folder_without_permission(tmp_path, monkeypatch):
    place(tmp_path, TREE)
    scan = os.scandir

    def refuse(path):
        if str(path).endswith("cat"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(DataError, match="cat"):
        open_data(tmp_path)


def test_broken_links_and_pipes_are_left_for_the_check_to_name(tmp_path):
    place(tmp_path, TREE)
    (tmp_path / "cat" / "broken.png").symlink_to(tmp_path / "cat" / "gone.png")
    os.mkfifo(tmp_path / "dog" / "pipe.png")
    bad = find_bad(open_data(tmp_path), progress=False)
    assert [item.path for item in bad] == ["cat/broken.png", "dog/pipe.png"]


@pytest.mark.parametrize("name", ["", "  "])
def test_an_empty_name_is_not_the_current_folder(name):
    with pytest.raises(DataError, match="empty"):
        open_data(name)


@pytest.mark.parametrize("name", ["no/such/folder", "nothing.csv", "nothing.zip"])
def test_paths_that_are_not_there(name):
    with pytest.raises(DataError, match=name):
        open_data(name)


def test_unknown_names_get_a_suggestion():
    with pytest.raises(DataError, match="'omniglot'"):
        open_data("omniglott")


def test_catalogue_names_are_passed_on(monkeypatch, tmp_path):
    from nearkin.data import catalogue

    data = open_data(place(tmp_path, TREE))
    asked = []
    monkeypatch.setattr(catalogue, "open_named", lambda *given: asked.append(given) or data)
    assert open_data("omniglot", data_root=tmp_path, progress=False) is data
    assert asked == [("omniglot", tmp_path, False)]


@pytest.mark.data
def test_a_real_tree_in_loose_files_matches_its_zip(data_root, tmp_path):
    source = open_data(data_root / "cifar100.zip").where(split="test")
    files = {
        f"{label}/{path.rpartition('/')[2]}": source.store.read(path)
        for path, label in zip(source.manifest.paths[:300], source.labels[:300], strict=True)
    }
    data = open_data(place(tmp_path, files))
    assert len(data) == len(files)
    assert data.classes == sorted(set(source.labels[:300]))
    assert all(data.load(index).size == (32, 32) for index in range(0, 300, 37))
