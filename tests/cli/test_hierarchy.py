"""`nearkin hierarchy infer` and `check`, `nearkin audit --tree`: files, numbers, errors, and the guide's commands."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors import safe_open
from typer.main import get_command

import nearkin as nk
from nearkin.cli.app import app
from nearkin.data.hierarchy import Hierarchy, load_hierarchy
from nearkin.metrics.class_tree import infer_tree
from nearkin.metrics.hierarchy import class_distance_matrix

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "hierarchies.md"
TREE = {
    "left": {"a": ["class00", "class01"], "b": ["class02", "class03"]},
    "right": [f"class0{i}" for i in range(4, 8)],
}
CLASSES = [f"class0{i}" for i in range(8)]


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    file = tmp_path_factory.mktemp("tree") / "tree.json"
    file.write_text(json.dumps(TREE))
    return file


@pytest.fixture(scope="module")
def seen(photos, tiny, tree, tmp_path_factory):
    """A run of seen classes, with proxies and a tree."""
    out = tmp_path_factory.mktemp("runs") / "seen"
    changes = [f"data.hierarchy={tree}", "data.split=items", "data.val_items=0.34", "data.test_items=0.34"]
    drop = ("data.split", "data.test_classes", "data.val_classes")
    nk.fit(
        photos,
        "normface",
        out=out,
        overrides=[*(one for one in tiny if not one.startswith(drop)), *changes],
        progress=False,
    )
    return out


@pytest.fixture(scope="module")
def unseen(photos, tiny, tmp_path_factory):
    """A class-disjoint run without proxies or a tree."""
    out = tmp_path_factory.mktemp("runs") / "unseen"
    nk.fit(photos, "triplet", out=out, overrides=[*tiny, "data.test_classes=0.5"], progress=False)
    return out


def flat(text):
    return " ".join(text.split())


def test_an_audit_takes_the_tree_of_the_run(nearkin, seen, tmp_path):
    code, out, err = nearkin("audit", seen, "--suite", "hierarchy", "-q", "--out", tmp_path / "page.html")
    assert (code, err) == (0, "")
    stored = json.loads((tmp_path / "page.json").read_text())
    assert {"MC, prototypes", "MC, proxies", "MC, input space", "MC, random network", "top-1, proxies"} <= set(
        stored["values"]
    )
    assert {"MC, prototypes", "top-1", "AHD@5"} <= set(stored["baseline"]["values"])
    assert Hierarchy.from_newick(stored["details"]["hierarchy"]["tree"]) == Hierarchy.from_nested(TREE)
    assert "trained" in flat(out)
    assert stored["details"]["hierarchy"]["tree name"] == stored["facts"]["tree"]
    assert stored["facts"]["tree"] in flat(out)
    page = (tmp_path / "page.html").read_text()
    assert "Known tree and inferred tree" in page
    assert "Class tree during training" in page
    assert "Episodes" not in page
    assert "Distances between classes" in page


def test_an_audit_takes_a_tree_that_is_given(nearkin, unseen, tree, tmp_path):
    code, out, _ = nearkin("audit", unseen, "--suite", "hierarchy", "--tree", tree, "-q", "--no-baseline")
    assert code == 0
    assert "half" in flat(out)
    stored = json.loads((unseen / "audit-hierarchy.json").read_text())
    assert not [name for name in stored["values"] if "proxies" in name]
    assert stored["details"]["hierarchy"]["tree name"] == "tree.json"
    assert "tree.json" in flat(out)


def test_an_audit_says_what_is_wrong_with_the_tree(nearkin, unseen, tree):
    for arguments, told in [
        (("--suite", "hierarchy"), "tree"),
        (("--suite", "hierarchy", "--tree", "cifar100"), "4 of"),
        (("--suite", "hierarchy", "--tree", "nowhere.yaml"), "nowhere.yaml"),
        (("--tree", str(tree)), "--suite"),
    ]:
        code, out, err = nearkin("audit", unseen, "-q", *arguments)
        assert (code, out) == (2, "")
        assert told in flat(err)


@pytest.mark.pixels
@pytest.mark.parametrize(
    ("source", "method"),
    [("prototypes", "average"), ("proxies", "neighbour-joining"), ("confusions", "average")],
)
def test_a_tree_is_written_as_newick_and_as_a_picture(nearkin, seen, tmp_path, source, method):
    code, out, err = nearkin("hierarchy", "infer", seen, "--from", source, "--method", method, "--out", tmp_path, "-q")
    assert (code, err) == (0, "")
    stem = f"tree-{source}" + ("" if method == "average" else f"-{method}")
    assert sorted(file.name for file in tmp_path.iterdir()) == [f"{stem}.nwk", f"{stem}.png"]
    inferred = load_hierarchy(tmp_path / f"{stem}.nwk")
    assert set(inferred.classes) == set(CLASSES)
    assert inferred.lengths is not None
    assert Image.open(tmp_path / f"{stem}.png").width == 1440
    for words in (
        "cophenetic correlation with the known tree",
        "mean correlation",
        "Robinson-Foulds",
        "recovered groups",
    ):
        assert words in out
    assert f"{tmp_path / stem}.nwk" in out
    # What items are taken for depends on whether their classes were trained on; means do not.
    assert bool(re.search(r"(?i)\b(every|all) class", flat(out))) == (source == "confusions")
    assert ("weights" in flat(out)) == (source == "proxies")


def test_the_tree_of_proxies_is_that_of_their_distances(nearkin, seen, tmp_path):
    nearkin("hierarchy", "infer", seen, "--from", "proxies", "--out", tmp_path / "mine.nwk", "-q")
    with safe_open(seen / "classes.safetensors", framework="np") as file:
        vectors, names = file.get_tensor("proxies"), json.loads(file.metadata()["names"])
    wanted = infer_tree(class_distance_matrix(vectors), names)
    assert load_hierarchy(tmp_path / "mine.nwk") == wanted
    assert (tmp_path / "mine.png").exists()


def test_without_a_known_tree_nothing_is_compared(nearkin, unseen):
    code, out, err = nearkin("hierarchy", "infer", unseen, "-q")
    assert (code, err) == (0, "")
    assert "cophenetic correlation with these distances" in out
    assert "Robinson-Foulds" not in out
    assert (unseen / "tree-prototypes.nwk").exists()
    assert len(load_hierarchy(unseen / "tree-prototypes.nwk").classes) == 4


def test_other_data_may_be_taken(nearkin, unseen, photos, tree, tmp_path):
    code, out, _ = nearkin(
        "hierarchy", "infer", unseen, "--data", photos, "--tree", tree, "--out", tmp_path / "new" / "stem", "-q"
    )
    assert code == 0
    assert (tmp_path / "new" / "stem.nwk").exists()
    nearkin("hierarchy", "infer", unseen, "--tree", tree, "--out", f"{tmp_path}/folder/", "-q")
    assert sorted(file.name for file in (tmp_path / "folder").iterdir()) == [
        "tree-prototypes.nwk",
        "tree-prototypes.png",
    ]
    assert "Robinson-Foulds" in out


def test_the_tree_of_other_data_does_not_replace_that_of_the_run(nearkin, unseen, photos, tmp_path):
    nearkin("hierarchy", "infer", unseen, "-q")
    own = (unseen / "tree-prototypes.nwk").read_text()
    others = tmp_path / "others"
    for number in range(3):
        shutil.copytree(photos / f"class0{number}", others / f"new{number}")
    code, out, _ = nearkin("hierarchy", "infer", unseen, "--data", others, "-q")
    assert code == 0
    assert str(unseen / "tree-others-prototypes.nwk") in out
    assert (unseen / "tree-others-prototypes.png").exists()
    assert len(load_hierarchy(unseen / "tree-others-prototypes.nwk").classes) == 3
    assert (unseen / "tree-prototypes.nwk").read_text() == own
    nearkin("hierarchy", "infer", unseen, "--data", photos, "--out", f"{tmp_path}/same/", "-q")
    assert (tmp_path / "same" / "tree-prototypes.nwk").exists()


def test_data_of_one_class_gives_no_tree(nearkin, unseen, photos, tmp_path):
    shutil.copytree(photos / "class00", tmp_path / "one" / "new")
    code, out, err = nearkin("hierarchy", "infer", unseen, "--data", tmp_path / "one", "-q")
    assert (code, out) == (2, "")
    assert "1 class" in flat(err)


def test_a_place_that_takes_no_files_is_refused_before_the_work(nearkin, tmp_path):
    # The run does not exist, so this is told even before it is looked for.
    code, _, err = nearkin("hierarchy", "infer", tmp_path / "nowhere", "--out", "/proc/x/", "-q")
    assert code == 2
    assert "/proc" in flat(err)


def test_infer_says_what_is_wrong_and_writes_nothing(nearkin, unseen, seen, photos, tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    for run, arguments, told in [
        (unseen, ("--from", "proxies"), "proxies"),
        (seen, ("--from", "proxies", "--data", photos), "data"),
        (seen, ("--from", "prototype"), "prototypes"),
        (seen, ("--method", "neighbor-joining"), "neighbour-joining"),
        (seen, ("--tree", "cifar100"), "8 of"),
        (tmp_path / "nowhere", (), "nowhere"),
        (seen, ("--out", file / "stem"), str(file)),
        (seen, ("--out", tmp_path / "a.svg"), ".svg"),
    ]:
        out = () if "--out" in arguments else ("--out", tmp_path / "x")
        code, _, err = nearkin("hierarchy", "infer", run, "-q", *arguments, *out)
        assert code == 2
        assert told in flat(err)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


def test_a_tree_is_checked(nearkin, tree):
    code, out, _ = nearkin("hierarchy", "check", tree)
    assert code == 0
    assert flat(out).startswith("classes 8 depth 2 to 3")
    assert "groups 4 " in flat(out)
    assert re.search(r"left\W+4\b", out)
    code, out, _ = nearkin("hierarchy", "check", "cifar100")
    assert code == 0
    assert "groups 30" in flat(out)
    assert re.search(r"Animals\W+50\b", out)


def test_a_tree_is_checked_against_data(nearkin, tree, photos, tmp_path):
    code, out, _ = nearkin("hierarchy", "check", tree, "--data", photos, "-q")
    assert code == 0
    assert re.search(r"\b8 classes\b", out)
    small = tmp_path / "small.json"
    small.write_text(json.dumps({"left": ["class00", "class-01"], "right": ["class02", "other"]}))
    code, out, _ = nearkin("hierarchy", "check", small, "--data", photos, "-q")
    assert code == 3
    assert re.search(r"\b2 classes\b", out)
    assert re.search(r"\bclass01\b.*\bclass-01\b", out)


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("a.json", '{"a": ["x", "x"]}', "x"),
        ("a.csv", "child,parent\na,b\nb,a\n", "a.csv"),
        ("a.nwk", "(a,b", "a.nwk"),
        ("a.txt", "a", ".txt"),
    ],
)
def test_a_broken_tree_is_one_sentence(nearkin, tmp_path, name, text, told):
    (tmp_path / name).write_text(text)
    code, out, err = nearkin("hierarchy", "check", tmp_path / name)
    assert (code, out) == (2, "")
    assert told in err
    assert len(err.strip().splitlines()) == 1


def test_every_command_of_the_guide_can_be_given():
    """Names, options and arguments are checked; nothing is run."""
    lines = re.findall(r"^nearkin .*$", GUIDE.read_text(), flags=re.MULTILINE)
    assert len(lines) >= 8
    for line in lines:
        target, words = get_command(app), shlex.split(line)[1:]
        while hasattr(target, "commands"):
            target = target.commands[words.pop(0)]
        target.make_context("nearkin", words)


def test_names_that_are_long_or_odd_go_through(nearkin, tmp_path):
    names = [f"a class with, a comma: {i} ('quoted')" for i in range(4)]
    tree = Hierarchy.from_nested({"g": names[:2], "h": names[2:]})
    (tmp_path / "t.nwk").write_text(tree.to_newick())
    code, _, _ = nearkin("hierarchy", "check", tmp_path / "t.nwk")
    assert code == 0
    inferred = infer_tree(np.abs(np.subtract.outer([0, 1, 5, 7], [0, 1, 5, 7])), names)
    assert Hierarchy.from_newick(inferred.to_newick()) == inferred
