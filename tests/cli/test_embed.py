"""`nearkin embed` in shards, as schedulers call it, and with manifests behind URLs."""

import fsspec
import numpy as np
import pytest

from nearkin.cli.gallery_input import read_table
from nearkin.cli.model import SCHEDULERS
from nearkin.gallery import Gallery
from nearkin.models import ModelSection, build_embedder
from nearkin.models.bulk import read_embeddings


@pytest.fixture
def model(tmp_path):
    file = tmp_path / "model.safetensors"
    build_embedder(ModelSection(backbone="conv4", channels=3, size=16, dimension=16)).save(file)
    return file


@pytest.fixture
def remote(photos):
    """The photos and a manifest of them behind URLs."""
    files = fsspec.filesystem("memory")
    files.store.clear()
    rows = []
    for path in sorted(photos.rglob("*.png")):
        name = path.relative_to(photos).as_posix()
        files.pipe(f"/shop/{name}", path.read_bytes())
        rows.append(f"{name},{path.parent.name}\n")
    files.pipe("/shop/manifest.csv", ("path,label\n" + "".join(rows)).encode())
    yield "memory://shop/manifest.csv"
    files.store.clear()


def test_shards_one_by_one_are_the_file(nearkin, model, photos, tmp_path, monkeypatch):
    for name in SCHEDULERS:
        monkeypatch.delenv(name, raising=False)
    out = tmp_path / "vectors"
    command = ("embed", model, photos, "--out", out, "--shards", 4, "-q")
    code, told, error = nearkin(*command, "--shard", 1)
    assert (code, error) == (0, "")
    assert "12 embeddings" in told
    for shard, name in zip((0, 2, 3), SCHEDULERS, strict=True):
        code, told, _ = nearkin(*command, "--status")
        assert code == 3
        assert "missing" in told
        monkeypatch.setenv(name, str(shard))
        assert nearkin(*command, "--shard", "auto")[0] == 0
        monkeypatch.delenv(name)
    code, told, _ = nearkin(*command, "--status")
    assert code == 0
    assert "4 of 4" in told
    assert nearkin("embed", model, photos, "--out", tmp_path / "v.npz", "-q")[0] == 0
    whole, found = np.load(tmp_path / "v.npz"), read_embeddings(out)
    assert np.abs(whole["embeddings"] - found.vectors).max() < 1e-6
    assert whole["paths"].tolist() == found.paths.tolist()


@pytest.mark.parametrize("more", [(), ("--status",)])
def test_a_shard_that_there_is_not_is_refused(nearkin, model, photos, tmp_path, more):
    code, _, error = nearkin("embed", model, photos, "--out", tmp_path / "v", "--shards", 4, "--shard", 9, *more, "-q")
    assert code == 2
    assert "shard 9" in error
    assert not (tmp_path / "v").exists()


def test_one_process_does_what_is_missing(nearkin, model, photos, tmp_path):
    command = ("embed", model, photos, "--out", tmp_path / "vectors", "--shards", 3, "-q")
    assert nearkin(*command, "--shard", 2)[0] == 0
    code, told, _ = nearkin(*command)
    assert code == 0
    assert (told.count("Wrote"), told.count("already")) == (2, 1)


def test_bad_files_are_named_or_left_out(nearkin, model, photos, tmp_path):
    folder = tmp_path / "photos"
    for path in photos.rglob("class0[01]/*.png"):
        (folder / path.parent.name).mkdir(parents=True, exist_ok=True)
        (folder / path.parent.name / path.name).write_bytes(path.read_bytes())
    (folder / "class01" / "03.png").write_bytes(b"no picture")
    command = ("embed", model, folder, "--out", tmp_path / "vectors", "--shards", 2, "-q")
    code, _, error = nearkin(*command)
    assert code == 2
    assert "class01/03.png" in error
    assert "--skip-bad" in error
    code, told, _ = nearkin(*command, "--skip-bad")
    assert code == 0
    assert "class01/03.png" in told
    assert len(read_embeddings(tmp_path / "vectors")) == 11


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--shard", "1"], "--shards"),
        (["--status"], "--shards"),
        (["--overwrite"], "--shards"),
        (["--shards", "0"], "--shards"),
        (["--shards", "2", "--shard", "2"], "shard 2"),
        (["--shards", "2", "--shard", "-1"], "-1"),
        (["--shards", "2", "--shard", "auto"], "SLURM_ARRAY_TASK_ID"),
        (["--shards", "2", "--out", "v.parquet"], "folder"),
        (["--out", "vectors"], "--shards"),
        (["--out", "memory://v.parquet"], "--shards"),
    ],
)
def test_wrong_usage_is_told(nearkin, model, photos, monkeypatch, tmp_path, options, message):
    monkeypatch.chdir(tmp_path)
    for name in SCHEDULERS:
        monkeypatch.delenv(name, raising=False)
    code, _, error = nearkin("embed", model, photos, *options)
    assert code == 2
    assert message in error
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.safetensors"]


@pytest.mark.parametrize(
    ("names", "message"), [({"SLURM_ARRAY_TASK_ID": "x"}, "SLURM_ARRAY_TASK_ID"), (None, "JOB_COMPLETION_INDEX")]
)
def test_schedulers_that_contradict_each_other(nearkin, model, photos, monkeypatch, tmp_path, names, message):
    for name, value in (names or {name: str(row) for row, name in enumerate(SCHEDULERS)}).items():
        monkeypatch.setenv(name, value)
    code, _, error = nearkin("embed", model, photos, "--out", tmp_path / "v", "--shards", 9, "--shard", "auto")
    assert code == 2
    assert message in error


def test_a_gallery_of_vectors_takes_the_folder(nearkin, model, photos, tmp_path):
    out = tmp_path / "vectors"
    assert nearkin("embed", model, photos, "--out", out, "--shards", 3, "--shard", 0, "-q")[0] == 0
    create = ("gallery", "create", tmp_path / "shop.gallery", out, "--dimension", 16, "--name", "mine")
    code, _, error = nearkin(*create)
    assert code == 1
    assert "2 of 3" in error
    assert nearkin("embed", model, photos, "--out", out, "--shards", 3, "-q")[0] == 0
    code, _, error = nearkin(*create)
    assert (code, error) == (0, "")
    with Gallery.open(tmp_path / "shop.gallery") as gallery:
        assert len(gallery) == 48
    assert len(set(read_table(out)["ids"])) == 48
    assert read_table(out)["ids"] == read_table(out)["ids"]


def test_items_and_vectors_behind_urls(nearkin, model, photos, remote, tmp_path):
    assert nearkin("embed", model, remote, "--out", "memory://vectors", "--shards", 2, "-q")[0] == 0
    assert nearkin("embed", model, photos, "--out", tmp_path / "v", "--shards", 2, "-q")[0] == 0
    there, here = read_embeddings("memory://vectors"), read_embeddings(tmp_path / "v")
    assert np.array_equal(there.vectors, here.vectors)
    assert there.labels.tolist() == here.labels.tolist()
    assert there.facts.data == remote
    assert nearkin("embed", model, remote, "--out", tmp_path / "v.npy", "-q")[0] == 0
    assert np.abs(np.load(tmp_path / "v.npy") - here.vectors).max() < 1e-6


def test_training_audits_and_galleries_take_urls(nearkin, remote, tiny, tmp_path):
    settings = [word for override in tiny for word in ("--set", override)]
    run = tmp_path / "run"
    code, _, error = nearkin("train", remote, "--recipe", "proxy-anchor", "--out", run, "-q", *settings)
    assert code == 0, error
    code, told, error = nearkin("audit", run, "--no-baseline", "-q")  # the card knows the URL
    assert code == 0, error
    assert "MAP@R" in told
    gallery = tmp_path / "shop.gallery"
    code, _, error = nearkin("gallery", "create", gallery, remote, "--model", run)
    assert code == 0, error
    with Gallery.open(gallery) as opened:
        assert len(opened) == 48
