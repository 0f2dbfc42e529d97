"""What the gallery's commands say: how many, how far along, and what to change when something is wrong."""

from __future__ import annotations

import json
import re
import warnings

import numpy as np
import pytest
from PIL import Image

from nearkin.gallery import Gallery
from nearkin.models import ModelSection, build_embedder


@pytest.fixture
def parts(tmp_path):
    """Ninety vectors of six classes, from which nothing was learned yet; one item is of a wrong class."""
    rng = np.random.default_rng(0)
    codes = np.repeat(np.arange(6), 15)
    rows = rng.normal(size=(6, 12))[codes] + 0.3 * rng.normal(size=(90, 12))
    path = tmp_path / "parts.gallery"
    with Gallery.create(path, dimension=12, name="made-up") as gallery:
        gallery.add(rows, [f"part {code}" for code in codes], ids=[f"i{n:02d}" for n in range(90)])
    np.save(tmp_path / "query.npy", rows[0])
    return path


@pytest.fixture
def query(tmp_path, parts):
    return tmp_path / "query.npy"


@pytest.fixture
def shop(tmp_path):
    model = build_embedder(ModelSection(backbone="conv4", size=32, dimension=12), seed=1).eval()
    pixels = np.random.default_rng(0).integers(0, 255, (2, 32, 32, 3), np.uint8)
    with Gallery.create(tmp_path / "shop.gallery", model, pixels, progress=False) as gallery:
        return gallery.path


def test_vectors_are_not_added_to_a_gallery_that_makes_its_own(nearkin, shop, query):
    code, _, err = nearkin("gallery", "add", shop, "--vectors", query)
    assert code == 1
    assert "model" in err
    with Gallery.open(shop) as gallery:
        assert len(gallery) == 2


@pytest.mark.parametrize("shape", [(0, 12), (0,)])
def test_a_file_without_vectors_asks_nothing(nearkin, parts, tmp_path, shape):
    np.save(tmp_path / "none.npy", np.empty(shape))
    for command in (("identify", parts), ("search", parts), ("gallery", "enrol", parts, "part 0")):
        code, out, err = nearkin(*command, tmp_path / "none.npy")
        assert (code, out) == (1, "")
        assert "none.npy" in err


@pytest.mark.parametrize("value", [1e300, np.nan])
def test_a_number_that_cannot_be_one_is_told_with_its_file_and_nothing_else(nearkin, parts, tmp_path, value):
    rows = np.ones((3, 12))
    rows[2, 1] = value
    np.save(tmp_path / "big.npy", rows)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        code, _, err = nearkin("identify", parts, tmp_path / "big.npy")
    assert code == 1
    assert len(err.splitlines()) == 1
    assert "row 2" in err
    assert "big.npy" in err


def test_one_thing_is_not_said_as_if_it_were_several(nearkin, parts, query):
    for command in (("enrol", parts, "new", query), ("remove", parts, "i00"), ("relabel", parts, "part 1", "i01")):
        assert re.search(r"\b1 item\b", nearkin("gallery", *command)[1])


def test_ids_that_no_item_has_are_counted(nearkin, parts):
    code, out, err = nearkin("gallery", "remove", parts, "nobody", "none")
    assert (code, err) == (0, "")
    assert "0 of 2" in out
    assert "1 of 2" in nearkin("gallery", "remove", parts, "i00", "none")[1]
    assert " of 2" not in nearkin("gallery", "remove", parts, "i01", "i02")[1]


def test_a_label_can_be_taken_away(nearkin, parts):
    code, out, _ = nearkin("gallery", "relabel", parts, "--none", "i00", "i01", "--json")
    assert code == 0
    assert json.loads(out) == {"label": None, "relabelled": 2, "items": 90}
    with Gallery.open(parts) as gallery:
        assert [gallery.get(id).label for id in ("i00", "i01", "i02")] == [None, None, "part 0"]
    assert nearkin("gallery", "relabel", parts, "part 0")[0] == 2


@pytest.mark.parametrize("accept", ["0.2", "0.9995"])
def test_any_share_may_be_accepted(nearkin, parts, accept):
    assert nearkin("gallery", "recalibrate", parts, "--accept", accept, "-q")[0] == 0
    with Gallery.open(parts) as gallery:
        assert gallery.calibration.accept == float(accept)


@pytest.mark.parametrize("accept", ["0", "1", "-1", "nan"])
def test_a_share_lies_between_none_and_all(nearkin, parts, accept):
    assert nearkin("gallery", "recalibrate", parts, f"--accept={accept}")[0] == 2


@pytest.mark.parametrize(
    "command",
    [
        ("gallery", "recalibrate", "{}"),
        ("identify", "{}", "query"),
        ("verify", "{}", "query", "query"),
        ("gallery", "duplicates", "{}"),
        ("gallery", "suspects", "{}"),
    ],
)
def test_slow_commands_say_how_far_they_are(nearkin, parts, query, command):
    words = [{"{}": parts, "query": query}.get(word, word) for word in command]
    assert nearkin(*words, "--quiet")[2] == ""
    with Gallery.open(parts) as gallery:
        gallery.store.set_note("calibration", None)
    assert nearkin(*words, "--json")[2] == ""
    with Gallery.open(parts) as gallery:
        gallery.store.set_note("calibration", None)
    assert "90/90" in nearkin(*words)[2]


def test_messages_speak_to_people_at_a_prompt_too(nearkin, tmp_path, parts, shop):
    err = nearkin("gallery", "create", tmp_path / "x.gallery", "--dimension", "3")[2]
    assert "dimension" in err
    err += nearkin("gallery", "rebuild", parts, "--model", "conv4")[2]
    assert "vectors" in err
    (tmp_path / "shop.gallery").rename(tmp_path / "moved.gallery")
    for file in (tmp_path / "moved.gallery").glob("model-*"):
        file.unlink()
    err += nearkin("gallery", "info", tmp_path / "moved.gallery")[2]
    assert "moved.gallery" in err
    assert "=" not in err


def test_an_unreadable_file_says_what_can_be_done(nearkin, tmp_path, shop):
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "bad.png").write_bytes(b"no image")
    Image.new("RGB", (32, 32)).save(folder / "good.png")
    code, _, err = nearkin("gallery", "add", shop, folder, "-q")
    assert code == 1
    assert "bad.png" in err
    assert "skip" in err
    assert re.search(r"\b1 item\b", nearkin("gallery", "add", shop, folder, "--skip-bad", "-q")[1])
