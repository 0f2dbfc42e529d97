"""Collages of CIFAR-100 (Gürbüz 2022, section 5.3.2): one image that matters among three that all classes share.

Of each of the 20 super-classes two sub-classes train, one validates and two test. Four super-classes are the shared
ones. A collage is 2 x 2 images (the print's "4x4" is a misprint): one of a sub-class of the other 16, at a random
place, and three of sub-classes of the shared ones with the same role. So neither what is to be found in a test collage
nor what surrounds it was ever in a training collage.

The label of a collage is the super-class of the image that matters, with its role: 16 classes in each role, as the
print counts them, made of other sub-classes each time. What transfers is what a super-class has in common. (With
sub-classes as labels, the other way to read the print, every pooling stays near chance on so little data.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nearkin.data.dataset import Dataset
from nearkin.data.manifest import Manifest
from nearkin.data.stores import ArrayStore
from nearkin.errors import DataError

ROLES = {"train": 2, "val": 1, "test": 2}
"""Role to how many sub-classes of each super-class have it."""
SHARED = 4
SIDE = 32
TILES = 4

SUPER_CLASSES = {
    "aquatic mammals": "beaver dolphin otter seal whale",
    "fish": "aquarium_fish flatfish ray shark trout",
    "flowers": "orchid poppy rose sunflower tulip",
    "food containers": "bottle bowl can cup plate",
    "fruit and vegetables": "apple mushroom orange pear sweet_pepper",
    "household electrical devices": "clock keyboard lamp telephone television",
    "household furniture": "bed chair couch table wardrobe",
    "insects": "bee beetle butterfly caterpillar cockroach",
    "large carnivores": "bear leopard lion tiger wolf",
    "large man-made outdoor things": "bridge castle house road skyscraper",
    "large natural outdoor scenes": "cloud forest mountain plain sea",
    "large omnivores and herbivores": "camel cattle chimpanzee elephant kangaroo",
    "medium-sized mammals": "fox porcupine possum raccoon skunk",
    "non-insect invertebrates": "crab lobster snail spider worm",
    "people": "baby boy girl man woman",
    "reptiles": "crocodile dinosaur lizard snake turtle",
    "small mammals": "hamster mouse rabbit shrew squirrel",
    "trees": "maple_tree oak_tree palm_tree pine_tree willow_tree",
    "vehicles 1": "bicycle bus motorcycle pickup_truck train",
    "vehicles 2": "lawn_mower rocket streetcar tank tractor",
}


@dataclass(frozen=True)
class Cast:
    """Who plays what: role to the sub-classes that matter, and to those that surround them, sorted.

    `super_of` has the super-class of every sub-class.
    """

    foreground: dict[str, list[str]]
    background: dict[str, list[str]]
    super_of: dict[str, str]

    def classes(self, role: str) -> list[str]:
        """All sub-classes of a role, sorted."""
        return sorted([*self.foreground[role], *self.background[role]])


@dataclass(frozen=True, eq=False)
class Collages:
    """The collages and, item by item, the images that matter in them.

    Args:
        whole: images (n, 64, 64, 3) with the columns `sub_class`, `split` (train, val or test), `place` (0 to 3, row
            by row) and `parts` (the four images, row by row, as rows of the source).
        plain: the same items without their surroundings, (n, 32, 32, 3); all else is equal.
    """

    whole: Dataset
    plain: Dataset


def cast_classes(super_classes: Mapping[str, Sequence[str]], seed: int = 0, shared: int = SHARED) -> Cast:
    """Draw the shared super-classes, and the role of every sub-class.

    Args:
        super_classes: super-class to its sub-classes, five each.
        seed: of the draw.
        shared: how many super-classes surround the others.
    """
    rng = np.random.default_rng(seed)
    names = sorted(super_classes)
    behind = {names[place] for place in rng.permutation(len(names))[:shared]}
    foreground: dict[str, list[str]] = {role: [] for role in ROLES}
    background: dict[str, list[str]] = {role: [] for role in ROLES}
    ends = np.cumsum(list(ROLES.values()))
    for name in names:
        classes = sorted(super_classes[name])
        if len(classes) != ends[-1]:
            raise DataError(f"The super-class '{name}' has {len(classes)} sub-classes, not {ends[-1]}: give as many.")
        drawn = [classes[place] for place in rng.permutation(len(classes))]
        for role, part in zip(ROLES, np.split(np.array(drawn), ends[:-1]), strict=True):
            (background if name in behind else foreground)[role].extend(map(str, part))
    sides = ({role: sorted(classes) for role, classes in side.items()} for side in (foreground, background))
    return Cast(*sides, {part: name for name in names for part in super_classes[name]})


def make_collages(
    images: np.ndarray, labels: np.ndarray, cast: Cast, per_class: Mapping[str, int], seed: int = 0
) -> Collages:
    """Make the collages of all roles.

    Args:
        images: uint8 (n, 32, 32, 3).
        labels: the sub-class of each, (n,).
        cast: the roles.
        per_class: role to collages a sub-class; more than a sub-class has images use each several times, with other
            surroundings.
        seed: of all that is drawn.
    """
    parts, places, roles, kinds = [], [], [], []
    for number, role in enumerate(ROLES):
        rng = np.random.default_rng([seed, number])
        main = np.concatenate([_drawn(labels == name, per_class[role], name, rng) for name in cast.foreground[role]])
        around = np.flatnonzero(np.isin(labels, cast.background[role]))
        if not len(around):
            raise DataError(f"There are no images to surround others with in the role '{role}': add some.")
        place = rng.integers(TILES, size=len(main))
        tiles = rng.choice(around, size=(len(main), TILES))
        tiles[np.arange(len(main)), place] = main
        parts.append(tiles)
        places.append(place)
        roles += [role] * len(main)
        kinds += list(labels[main])
    tiles, place = np.concatenate(parts), np.concatenate(places)
    manifest = Manifest.from_rows(
        [f"{role}/{index:05d}" for index, role in enumerate(roles)],
        [f"{cast.super_of[kind]} ({role})" for kind, role in zip(kinds, roles, strict=True)],
        sub_class=kinds,
        split=roles,
        place=place.tolist(),
        parts=[" ".join(map(str, row)) for row in tiles],
    )
    main = tiles[np.arange(len(tiles)), place]
    paths = list(manifest.paths)
    return Collages(
        Dataset(manifest, ArrayStore(stitch(images[tiles]), paths), name="collages of CIFAR-100"),
        Dataset(manifest, ArrayStore(images[main], paths), name="CIFAR-100 without surroundings"),
    )


def stitch(tiles: np.ndarray) -> np.ndarray:
    """Images (n, 2 h, 2 w, 3) from four tiles each, (n, 4, h, w, 3), row by row."""
    count, _, height, width, channels = tiles.shape
    grid = tiles.reshape(count, 2, 2, height, width, channels).swapaxes(2, 3)
    return np.ascontiguousarray(grid.reshape(count, 2 * height, 2 * width, channels))


def _drawn(mask: np.ndarray, count: int, name: str, rng: np.random.Generator) -> np.ndarray:
    """So many of the rows of a mask, (count,), each as often as any other, give or take one."""
    rows = np.flatnonzero(mask)
    if not len(rows):
        raise DataError(f"There are no images of the sub-class '{name}': give data that has some.")
    return np.resize(rng.permutation(rows), count)
