"""Trees out of a table of species and out of a list of what is a what."""

from __future__ import annotations

import pytest

from nearkin.data.taxonomies import plain_name, read_is_a, read_taxonomy
from nearkin.errors import DataError

TABLE = """TAXON_ORDER,PRIMARY COM NAME,SCI_NAME,ORDER,FAMILY
1,Brandt's Cormorant,Urile penicillatus,Suliformes,Phalacrocoracidae
2,Pelagic Cormorant,Urile pelagicus,Suliformes,Phalacrocoracidae
3,Black-footed Albatross,Phoebastria nigripes,Procellariiformes,Diomedeidae
4,Barn Owl,Tyto alba,Strigiformes,Tytonidae
"""
BIRDS = ["001.Black_footed_Albatross", "023.Brandt_Cormorant", "025.Pelagic_Cormorant"]
IS_A = """entity animal
entity plant
animal mammal
animal pet
mammal dog
pet dog
mammal whale
mammal carnivore
carnivore cat
plant oak
"""
WORDS = "dog\tdog, domestic dog\nwhale\twhale\ncat\tcat, true cat\noak\toak tree\nmammal\tmammal, mammalian\n"


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("023.Brandt_Cormorant", "Brandt's Cormorant"),
        ("Black_footed_Albatross", "black-footed albatross"),
        ("105.Whip_poor_Will", "Whip-poor-will"),
        ("Wilson\u2019s Warbler", "180.Wilson_Warbler"),
        ("3-toed gull", "3-toed  Gull"),
    ],
)
def test_spellings_of_one_name(one, other):
    assert plain_name(one) == plain_name(other)
    assert plain_name("Tree Swallow") != plain_name("Tree Sparrow")


def test_a_table_of_species_gives_orders_families_and_genera(tmp_path):
    tree = read_taxonomy(write(tmp_path / "birds.csv", TABLE), BIRDS)
    assert set(tree.classes) == set(BIRDS)
    names = [tree.names[node] for node in tree.ancestors("023.Brandt_Cormorant")[1:]]
    assert names == ["Urile", "Phalacrocoracidae", "Suliformes", ""]
    assert tree.distances(BIRDS).tolist() == [[0, 8, 8], [8, 0, 2], [8, 2, 0]]
    tabs = write(tmp_path / "birds.tsv", TABLE.replace(",", "\t"))
    flat = read_taxonomy(tabs, BIRDS, names="Primary Com Name", levels=["order"])
    assert flat.distances(BIRDS).tolist() == [[0, 4, 4], [4, 0, 2], [4, 2, 0]]


def test_what_a_table_lacks_is_told(tmp_path):
    path = write(tmp_path / "birds.csv", TABLE)
    with pytest.raises(DataError, match="pelagic cormorant"):
        read_taxonomy(path, [*BIRDS, "Pelagic_Cormorants"])
    with pytest.raises(DataError, match="kingdom"):
        read_taxonomy(path, BIRDS, levels=["kingdom"])
    with pytest.raises(DataError, match="names="):
        read_taxonomy(write(tmp_path / "odd.csv", "a,order\n1,2\n"), BIRDS)
    with pytest.raises(DataError, match="read"):
        read_taxonomy(tmp_path / "none.csv", BIRDS)


def test_a_list_gives_the_shortest_way_up_without_groups_of_one(tmp_path):
    path = write(tmp_path / "is_a.txt", IS_A)
    tree = read_is_a(path, ["dog", "whale", "cat", "oak"])
    # cat's group has one child, and so has what plants are; a dog is a mammal, which the list names first.
    wanted = [[0, 2, 2, 3], [2, 0, 2, 3], [2, 2, 0, 3], [3, 3, 3, 0]]
    assert tree.distances(["dog", "whale", "cat", "oak"]).tolist() == wanted
    named = read_is_a(path, ["Domestic_dog", "true cat", "whale"], words=write(tmp_path / "words.txt", WORDS))
    assert set(named.classes) == {"Domestic_dog", "true cat", "whale"}
    assert named.names[0] == "mammal"


def test_lists_that_are_no_trees_are_refused(tmp_path):
    with pytest.raises(DataError, match="line 1"):
        read_is_a(write(tmp_path / "a.txt", "one two three\n"), ["one"])
    with pytest.raises(DataError, match="lacks"):
        read_is_a(write(tmp_path / "b.txt", "a b\nb a\n"), ["a", "b"])  # a cycle has no top
    words = write(tmp_path / "w.txt", "x\tbat\ny\tbat\n")
    with pytest.raises(DataError, match="identifiers"):
        read_is_a(write(tmp_path / "c.txt", "top x\ntop y\n"), ["bat"], words=words)
    with pytest.raises(DataError, match="tab"):
        read_is_a(write(tmp_path / "d.txt", "top x\ntop y\n"), ["x", "y"], words=write(tmp_path / "v.txt", "x bat\n"))
