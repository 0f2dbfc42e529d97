"""Nature: the birds of CUB-200-2011 and NABirds, the flowers of Flowers-102 and the plankton of ZooScanNet."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from nearkin.data.catalogue.download import download_all
from nearkin.data.catalogue.entry import published
from nearkin.data.catalogue.layout import ClassFolders, PublishedFolder, files_in, read_matlab, read_pairs, read_rows
from nearkin.data.dataset import Dataset
from nearkin.data.decode import IMAGE_SUFFIXES

_BIRD_LISTS = ("images", "image_class_labels", "classes", "train_test_split")
_CUB_TRAINING_CLASSES = 100


@published(
    "cub200",
    title="CUB-200-2011",
    classes=200,
    items=11_788,
    homepage="https://www.vision.caltech.edu/datasets/cub_200_2011/",
    licence="non-commercial research and education",
    layout="CUB_200_2011/ with images.txt, image_class_labels.txt, classes.txt, train_test_split.txt and "
    "images/<class>/*.jpg",
    split="classes 1-100 train, 101-200 test (unseen); published_split: the images of each class",
    tested="real data",
    folders=("CUB_200_2011",),
    fetch=download_all(
        ("https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz", "97eceeb196236b17998738112f37df78")
    ),
    class_folders=ClassFolders(training=_CUB_TRAINING_CLASSES),
)
def open_cub200(at: PublishedFolder) -> Dataset:
    """CUB-200-2011 in its published folder; `published_split` is the publisher's split of the images of each class."""
    images, class_of, names, training = (read_pairs(at.file(f"{name}.txt")) for name in _BIRD_LISTS)
    for image in images:
        if class_of.get(image) not in names or not class_of[image].isdigit() or image not in training:
            raise at.refusal(f"its lists say nothing of image {image}")
    paths = [f"images/{path}" for path in images.values()]
    at.all_present(paths)
    return at.dataset(
        paths,
        [names[class_of[image]] for image in images],
        split=["train" if int(class_of[image]) <= _CUB_TRAINING_CLASSES else "test" for image in images],
        published_split=["train" if training[image] == "1" else "test" for image in images],
    )


@published(
    "nabirds",
    title="NABirds",
    classes=555,
    items=48_562,
    homepage="https://dl.allaboutbirds.org/nabirds",
    licence="non-commercial research; a form to sign",
    layout="nabirds/ with images.txt, image_class_labels.txt, classes.txt, train_test_split.txt, hierarchy.txt and "
    "images/<class number>/*.jpg",
    split="published train/test of the images of each class (closed); superclass: the parent in the hierarchy",
    tested="layout-tested",
    folders=("nabirds", "NABirds"),
)
def open_nabirds(at: PublishedFolder) -> Dataset:
    """NABirds in its published folder; `superclass` is the parent of a class in hierarchy.txt."""
    images, class_of, names, training = (read_pairs(at.file(f"{name}.txt")) for name in _BIRD_LISTS)
    parent_of = read_pairs(at.file("hierarchy.txt"))
    for image in images:
        known = class_of.get(image) in names and image in training
        if not known or parent_of.get(class_of[image]) not in names:
            raise at.refusal(f"its lists say nothing of image {image}")
    paths = [f"images/{path}" for path in images.values()]
    at.all_present(paths)
    return at.dataset(
        paths,
        [_unique_name(class_of[image], names) for image in images],
        split=["train" if training[image] == "1" else "test" for image in images],
        superclass=[_unique_name(parent_of[class_of[image]], names) for image in images],
    )


def _unique_name(number: str, names: dict[str, str]) -> str:
    # A species and the node above it often share a name, so the number stays in front of it.
    return f"{number.zfill(4)}.{names[number]}"


_FLOWERS_TRAINING_CLASSES = 51
_FLOWERS_ADDRESS = "https://www.robots.ox.ac.uk/~vgg/data/flowers/102/"


@published(
    "flowers102",
    title="Flowers-102",
    classes=102,
    items=8_189,
    homepage=_FLOWERS_ADDRESS,
    licence="not stated; images from the web, for research",
    layout="flowers-102/ with imagelabels.mat, setid.mat and jpg/image_00001.jpg to image_08189.jpg",
    split="classes 1-51 train, 52-102 test (unseen); published_split: the images of each class",
    tested="layout-tested",
    folders=("flowers-102", "102flowers"),
    fetch=download_all(
        (f"{_FLOWERS_ADDRESS}102flowers.tgz", "52808999861908f626f3c1f4e79d11fa"),
        (f"{_FLOWERS_ADDRESS}imagelabels.mat", "e0620be6f572b9609742df49c70aed4d"),
        (f"{_FLOWERS_ADDRESS}setid.mat", "a5357ecc9cb78c4bef273ce3793fc85c"),
    ),
    class_folders=ClassFolders(training=_FLOWERS_TRAINING_CLASSES),
)
def open_flowers102(at: PublishedFolder) -> Dataset:
    """Flowers-102 in its published folder; `published_split` is the publisher's split of the images of each class.

    The publisher's files hold class numbers only, so the labels are '001' to '102'.
    """
    numbers = read_matlab(at.file("imagelabels.mat"), "labels")["labels"]
    sets = read_matlab(at.file("setid.mat"), "trnid", "valid", "tstid")
    part_of = {
        int(image): part
        for name, part in (("trnid", "train"), ("valid", "val"), ("tstid", "test"))
        for image in sets[name]
    }
    images = range(1, len(numbers) + 1)
    unplaced = next((image for image in images if image not in part_of), None)
    if unplaced is not None:
        raise at.refusal(f"setid.mat says nothing of image {unplaced}")
    paths = [f"jpg/image_{image:05d}.jpg" for image in images]
    at.all_present(paths)
    return at.dataset(
        paths,
        [f"{number:03d}" for number in numbers],
        split=["train" if number <= _FLOWERS_TRAINING_CLASSES else "test" for number in numbers],
        published_split=[part_of[image] for image in images],
    )


@published(
    "zooscan",
    title="ZooScan plankton (ZooScanNet)",
    classes=98,
    items=1_451_745,
    homepage="https://www.seanoe.org/data/00446/55741/",
    licence="CC BY-NC",
    layout="ZooScanNet/ with imgs/<taxon>/<objid>.* and, for names and splits, taxa.csv.gz",
    split="published train/val/test of the images of each taxon (closed), in versions that have it",
    tested="layout-tested",
    folders=("ZooScanNet", "ZooScanNet_data"),
)
def open_zooscan(at: PublishedFolder) -> Dataset:
    """ZooScanNet in its published folder, by the old or the new form of taxa.csv.gz; without it, by taxon folder."""
    images = files_in(at.directory("imgs"), IMAGE_SUFFIXES)
    if not images:
        raise at.refusal("imgs is empty")
    table = next((at.path / name for name in ("taxa.csv.gz", "taxa.csv") if (at.path / name).is_file()), None)
    if table is not None:
        return _zooscan_by_table(at, images, table)
    if loose := next((path for path in images if "/" not in path), None):
        raise at.refusal(f"the image imgs/{loose} is in no taxon's folder")
    return at.dataset([f"imgs/{path}" for path in images], [PurePosixPath(path).parent.name for path in images])


def _zooscan_by_table(at: PublishedFolder, images: list[str], table: Path) -> Dataset:
    listed = read_rows(table, ("objid",))
    if not listed:
        raise at.refusal(f"{table.name} lists no objects")
    taxon = next((name for name in ("taxon_level1", "taxon") if name in listed[0]), None)
    if taxon is None:
        raise at.refusal(f"{table.name} has no column 'taxon' or 'taxon_level1'")
    of_object: dict[str, dict[str, str]] = {}
    for row in listed:
        if not row[taxon]:
            raise at.refusal(f"{table.name} has no {taxon} for the object '{row['objid']}'")
        known = of_object.setdefault(row["objid"], row)[taxon]
        if known != row[taxon]:
            raise at.refusal(f"{table.name} has the object '{row['objid']}' as '{known}' and as '{row[taxon]}'")
    rows = list(of_object.values())
    path_of: dict[str, str] = {}
    for path in images:
        name = PurePosixPath(path).stem
        if name in of_object and path_of.setdefault(name, f"imgs/{path}") != f"imgs/{path}":
            raise at.refusal(f"the object '{name}' has two images, {path_of[name]} and imgs/{path}")
    missing = [name for name in of_object if name not in path_of]
    if missing:
        raise at.refusal(f"imgs lacks {len(missing):,} of {len(rows):,} objects, {missing[0]} first")
    published = {"lineage": ("lineage_level1", "lineage"), "superclass": ("taxon_level2",), "split": ("set",)}
    more = {
        column: [row[name] for row in rows] for column, names in published.items() for name in names if name in rows[0]
    }
    return at.dataset([path_of[name] for name in of_object], [row[taxon] for row in rows], **more)
