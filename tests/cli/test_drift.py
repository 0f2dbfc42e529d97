"""`nearkin drift`: what it prints and writes, its exit codes, and its errors."""

import json
import re
import shutil

import numpy as np
import pytest
from PIL import Image, ImageOps

import nearkin as nk


@pytest.fixture(scope="module")
def run(photos, tiny, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "tiny"
    nk.fit(photos, "triplet", out=out, overrides=tiny, progress=False)
    return out


@pytest.fixture(scope="module")
def halves(photos, tmp_path_factory):
    """The photos of each class in two folders, and the second half once more with dark and bright exchanged."""
    root = tmp_path_factory.mktemp("halves")
    for file in sorted(photos.rglob("*.png")):
        half = root / ("a" if int(file.stem) < 3 else "b")
        (half / file.parent.name).mkdir(parents=True, exist_ok=True)
        shutil.copy(file, half / file.parent.name)
        if half.name == "b":
            (root / "dark" / file.parent.name).mkdir(parents=True, exist_ok=True)
            dark = ImageOps.invert(Image.open(file)).point(lambda value: value // 3)
            dark.save(root / "dark" / file.parent.name / file.name)
    return root


def test_no_drift_between_halves(nearkin, run, halves, tmp_path):
    code, out, err = nearkin("drift", halves / "a", halves / "b", "--model", run, "--out", tmp_path / "o", "-q")
    assert (code, err) == (0, "")
    assert "p = " in out
    assert re.search(r"\b24\b", out)
    assert str(tmp_path / "o" / "drift.html") in out
    assert json.loads((tmp_path / "o" / "drift.json").read_text())["drift"] is False


def test_drift_is_told_and_may_end_with_a_code(nearkin, run, halves, tmp_path):
    asked = ("drift", halves / "a", halves / "dark", "--model", run, "--out", tmp_path, "-q", "--by-class")
    code, out, err = nearkin(*asked)
    assert (code, err) == (0, "")
    assert "p = 0.001" in out
    assert "class07" in out
    assert "Holm" in out
    quick = ("--model", run, "--out", tmp_path, "-q", "--permutations", 99, "--fail-on-drift")
    for other, expected in (("dark", 3), ("b", 0)):
        code, _, _ = nearkin("drift", halves / "a", halves / other, *quick)
        assert code == expected


def test_json_alone_is_printed(nearkin, run, halves, tmp_path):
    code, out, err = nearkin(
        "drift", halves / "a", halves / "dark", "--model", run / "model.safetensors", "--out", tmp_path, "--json",
        "--permutations", 99, "--limit", 10, "--seed", 4, "--kernel", "gaussian",
    )  # fmt: skip
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["new"]["items"] == 10
    assert found["facts"]["permutations"] == "99"
    assert found["p_value"] >= 0.01
    assert np.isfinite(found["statistic"])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--kernel", "learned"), "learned"),
        (("--alpha", "0.0001"), "9999"),
        (("--only-a", "domain"), "--only-a"),
        (("--only-b", "domain=photo"), "domain"),
        (("--model", "resnet-of-mine"), "resnet-of-mine"),
        (("--out", "{file}"), "/file"),
    ],
)
def test_errors_are_one_sentence(nearkin, run, halves, tmp_path, arguments, told):
    (tmp_path / "file").write_text("")
    arguments = [argument.format(file=tmp_path / "file") for argument in arguments]
    model = () if "--model" in arguments else ("--model", run)
    out = () if "--out" in arguments else ("--out", tmp_path / "out")
    code, out, err = nearkin("drift", halves / "a", halves / "b", *model, *out, *arguments, "-q")
    assert (code, out) == (1, "")
    assert told in " ".join(err.split())
    assert not (tmp_path / "out").exists()
