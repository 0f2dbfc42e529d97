"""Class trees from files, the shipped one against the table it comes from, and what is refused with its line."""

import csv
import json
import re
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from nearkin.data.catalogue import open_named
from nearkin.data.hierarchy import Hierarchy
from nearkin.data.hierarchy_files import list_hierarchies, load_hierarchy
from nearkin.errors import DataError, UnknownNameError

TREE = Hierarchy.from_nested({"animals": {"fish": ["shark", "trout"], "mammals": ["dog"]}, "things": ["live oak"]})

FILES = {
    "tree.yaml": "animals:\n  fish: [shark, trout]\n  mammals:\n    dog:\nthings:\n  - live oak\n",
    "flow.YML": "{animals: {fish: [shark, trout], mammals: dog}, things: [live oak]}",
    "tree.json": json.dumps(TREE.to_nested()),
    "paths.csv": "label,level0,level1\nshark,animals,fish\ntrout,animals,fish\ndog,animals,mammals\nlive oak,things,\n",
    "class.csv": "top,Class,next\nanimals,shark,fish\nanimals , trout, fish\n\nanimals,dog,mammals\nthings,live oak,\n",
    "parents.csv": (
        "parent,child\nfish,shark\nfish,trout\nanimals,fish\nanimals,mammals\nmammals,dog\n"
        ",animals\n,things\nthings,live oak\n"
    ),
    "tree.nwk": "(((shark,trout)fish,(dog)mammals)animals,('live oak')things);\n",
    "tree.newick": "(((shark,trout)fish,(dog)mammals)animals,('live oak')things);",
    "tree.tree": "[a comment](((shark,trout)fish,(dog)mammals)animals,('live oak')things);",
}

# Table S1 of Kim 2023, article IV, with the class names of the data set.
TABLE = """
Animals|Invertebrates|insects|bee, beetle, butterfly, caterpillar, cockroach
Animals|Invertebrates|non-insect invertebrates|crab, lobster, snail, spider, worm
Animals|Mammals|aquatic mammals|beaver, dolphin, otter, seal, whale
Animals|Mammals|large carnivores|bear, leopard, lion, tiger, wolf
Animals|Mammals|large omnivores and herbivores|camel, cattle, chimpanzee, elephant, kangaroo
Animals|Mammals|medium-sized mammals|fox, porcupine, possum, raccoon, skunk
Animals|Mammals|people|baby, boy, girl, man, woman
Animals|Mammals|small mammals|hamster, mouse, rabbit, shrew, squirrel
Animals|Non-mammal vertebrates|fish|aquarium_fish, flatfish, ray, shark, trout
Animals|Non-mammal vertebrates|reptiles|crocodile, dinosaur, lizard, snake, turtle
Artificial|Artificial (indoor)|food containers|bottle, bowl, can, cup, plate
Artificial|Artificial (indoor)|household electrical devices|clock, keyboard, lamp, telephone, television
Artificial|Artificial (indoor)|household furniture|bed, chair, couch, table, wardrobe
Artificial|Artificial (outdoor)|large man-made outdoor things|bridge, castle, house, road, skyscraper
Artificial|Artificial (outdoor)|vehicles 1|bicycle, bus, motorcycle, pickup_truck, train
Artificial|Artificial (outdoor)|vehicles 2|lawn_mower, rocket, streetcar, tank, tractor
Nature (non-animal)|Nature (non-specific organism)|large natural outdoor scenes|cloud, forest, mountain, plain, sea
Nature (non-animal)|Plants|flowers|orchid, poppy, rose, sunflower, tulip
Nature (non-animal)|Plants|fruit and vegetables|apple, mushroom, orange, pear, sweet_pepper
Nature (non-animal)|Plants|trees|maple_tree, oak_tree, palm_tree, pine_tree, willow_tree
"""


@pytest.fixture
def written(tmp_path):
    """Write a file and give its path."""

    def write(name, text):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


@pytest.mark.parametrize("name", FILES)
def test_every_format_gives_the_same_tree(written, name):
    assert load_hierarchy(written(name, FILES[name])) == TREE


def test_files_of_windows_are_read(written):
    path = written("tree.csv", b"\xef\xbb\xbf" + FILES["paths.csv"].replace("\n", "\r\n").encode())
    assert load_hierarchy(str(path)) == TREE


def test_the_shipped_tree_is_the_table_of_the_article():
    paths = {}
    for line in TABLE.strip().splitlines():
        *levels, classes = line.split("|")
        paths |= dict.fromkeys(classes.split(", "), levels)
    tree = load_hierarchy("cifar100")
    names = sorted(paths)
    assert sorted(tree.classes) == names
    np.testing.assert_array_equal(tree.distances(names), Hierarchy.from_paths(paths).distances(names))
    for name in names:
        assert [tree.names[node] for node in tree.ancestors(name)] == [name, *reversed(paths[name]), ""]


def test_the_shipped_tree_has_four_even_levels():
    tree = load_hierarchy("cifar100")
    distances, counts = np.unique(tree.distances()[0], return_counts=True)
    assert distances.tolist() == [0, 2, 4, 6, 8]
    assert counts.sum() == 100
    assert tree.heights()[0] == 4
    np.testing.assert_array_equal(tree.distances(how="lcs") * 8, tree.distances())
    with (resources.files("nearkin.data") / "hierarchies" / "cifar100.csv").open(encoding="utf-8") as handle:
        assert next(csv.reader(handle)) == ["label", "level0", "level1", "level2"]


@pytest.mark.data
def test_the_shipped_tree_has_the_classes_of_the_data_set(data_root):
    if not (data_root / "cifar100.zip").exists():
        pytest.skip("cifar100.zip is not in the data directory")
    classes = open_named("cifar100").manifest.classes
    tree = load_hierarchy("cifar100")
    tree.check(classes)
    assert set(tree.classes) == set(classes)


def test_numbers_are_names_as_they_are_written(written):
    tree = load_hierarchy(written("a.yaml", "1.10: [007, 1e3]\n2020-01-01: ['yes', 0x1f]"))
    assert tree.names == ("", "1.10", "007", "1e3", "2020-01-01", "yes", "0x1f")
    tree = load_hierarchy(written("a.json", '{"a": [1.10, 1e3], "b": [12345678901234567890, "c"]}'))
    assert tree.classes == ("1.10", "1e3", "12345678901234567890", "c")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.yaml", "", "tree"),
        ("a.yaml", "just text", "tree"),
        ("a.yaml", "a: [x, y\nb: 3", "line 2"),
        ("a.yaml", "a: [x, y]\n---\nb: [z]", "line 2"),
        ("a.yaml", "a: \x07", "YAML"),
        ("a.yaml", "a: [x, y]\nb: *nowhere", "alias"),
        ("a.yaml", "a: [x, no]", "'no'"),
        ("a.yaml", "a: [x, y]\nYes: [z]", "'Yes'"),
        ("a.yaml", "a: [x, y]\nb:\n- x", "twice"),
        ("a.yaml", "a: [x, y]\nb: [z]\na: [w]", "line 3"),
        ("a.yaml", "a: &a\n  b: *a\nc: [x, y]", "cycle"),
        ("a.yaml", "&a [x, *a]", "cycle"),
        ("a.yaml", "a: &a [x, y]\nb: *a", "twice"),
        ("a.yaml", "a: &a {x: , y: }\nb:\n  <<: *a", "<<"),
        ("a.yaml", "a: [!thing x, y]", "'x'"),
        ("a.yaml", "a: [x, y]\n? [b]\n: z", "text"),
        ("a.yaml", "a: [x, y]\n'': [z]", "blank"),
        ("a.yaml", "a: [x, y]\n~: [z]", "blank"),
        ("a.yaml", "a: [x, ]\nb: []", "'b'"),
        ("a.yaml", "a: [x]", "'x'"),
        ("a.yaml", "[" * 5000 + "x" + "]" * 5000, "nested"),
        ("a.json", "", "JSON"),
        ("a.json", '{"a": ["x",\n "y"}', "line 2"),
        ("a.json", '{"a": ["x", true]}', "True"),
        ("a.json", '{"a": ["x", "y"], "a": ["z"]}', "twice"),
        ("a.json", "3", "mapping"),
        ("a.json", "[" * 100_000 + "]" * 100_000, "nested"),
        ("a.csv", "", "empty"),
        ("a.csv", "label,level0\n", "empty"),
        ("a.csv", "child,parent\n", "empty"),
        ("a.csv", "name,level0\nx,a\n", "'label'"),
        ("a.csv", "label\nx\ny\n", "columns"),
        ("a.csv", "label,a,a\nx,b,c\n", "columns"),
        ("a.csv", ",label,a\n0,x,b\n", "columns"),
        ("a.csv", "label,level0\nx,a\ny,a,b\n", "line 3"),
        ("a.csv", "label,level0\nx,a\ny\n", "line 3"),
        ("a.csv", "label,level0\nx,a\n ,a\n", "blank"),
        ("a.csv", "label,level0\nx,a\ny,a\n\nx,b\n", "line 5"),
        ("a.csv", "label,level0,level1\nx,a,b\ny,,b\n", "line 3"),
        ("a.csv", "label,level0,level1\nx,a,b\ny,b,a\n", "cycle"),
        ("a.csv", 'label,level0\n"x,a\ny,b\n', "CSV"),
        ("a.csv", "child,parent\nx,a\ny,a\nx,b\n", "line 4"),
        ("a.csv", "child,parent\nx,a\ny,a\na,b\nb,a\n", "cycle"),
        ("a.csv", "child,parent\nx,a\n,a\n", "blank"),
        ("a.nwk", "(a,b", "column 5"),
        ("a.nwk", "", "empty"),
        ("a.yaml", b"a: [\xff\xfe]", r"a\.yaml"),
        ("a.txt", "(a,b);", r"\.newick"),
        ("cifar100.txt", "(a,b);", r"\.newick"),
    ],
)
def test_bad_files_are_refused_by_name(written, name, text, message):
    path = written(name, text)
    with pytest.raises(DataError, match=message) as refusal:
        load_hierarchy(path)
    assert str(path) in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cifar-100", "cifar100"),
        ("cifar10.csv", "cifar100"),
        ("nowhere/plankton.yaml", "cifar100"),
        ("x" * 5000, "cifar100"),
    ],
)
def test_what_is_not_there_names_what_is_shipped(name, message):
    with pytest.raises(UnknownNameError, match=message):
        load_hierarchy(name)


def test_a_folder_and_what_is_no_path_are_refused(tmp_path):
    folder = tmp_path / "tree.csv"
    folder.mkdir()
    with pytest.raises(DataError, match=r"tree\.csv"):
        load_hierarchy(folder)
    with pytest.raises(DataError, match="None"):
        load_hierarchy(None)


def test_shipped_names_are_listed():
    assert list_hierarchies() == ["cifar100"]


def test_the_forms_of_the_guide_are_one_tree(written, capsys):
    guide = Path(__file__).parents[2] / "docs" / "guide" / "hierarchies.md"
    section = guide.read_text(encoding="utf-8").partition("## Bring a tree")[2].partition("\n## ")[0]
    nested, paths, parents, newick = re.findall(r"```(?:yaml|csv|text)\n(.*?)```", section, re.DOTALL)
    tree = load_hierarchy(written("animals.yaml", nested))
    assert load_hierarchy(written("paths.csv", paths)) == load_hierarchy(written("tree.nwk", newick)) == tree
    names = list(tree.classes)
    assert load_hierarchy(written("parents.csv", parents)).clades() == tree.clades()
    np.testing.assert_array_equal(load_hierarchy(written("p.csv", parents)).distances(names), tree.distances(names))
    for snippet in re.findall(r"```python\n(.*?)```", section, re.DOTALL):
        exec(snippet, {})
    assert capsys.readouterr().out.startswith("('shark', 'trout', 'dog', 'cup')")
