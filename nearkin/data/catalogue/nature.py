"""Nature: the birds of CUB-200-2011 and NABirds, the flowers of Flowers-102 and the plankton of ZooScanNet."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from nearkin.data.catalogue.download import download_all
from nearkin.data.catalogue.entry import Entry, add_entry
from nearkin.data.catalogue.layout import PublishedLayout, files_in, read_matlab, read_pairs, read_rows
from nearkin.data.catalogue.mirror import ClassFolders
from nearkin.data.dataset import Dataset
from nearkin.data.decode import IMAGE_SUFFIXES
from nearkin.data.manifest import Manifest
from nearkin.data.stores import FolderStore

_CUB_LAYOUT = PublishedLayout(
    "CUB-200-2011",
    "CUB_200_2011/ with images.txt, image_class_labels.txt, classes.txt, train_test_split.txt and images/<class>/*.jpg",
)
_CUB_TRAINING_CLASSES = 100


def open_cub200(folder: Path) -> Dataset:
    """CUB-200-2011 in its published folder; `published_split` is the publisher's split of the images of each class."""
    images = read_pairs(_CUB_LAYOUT.file(folder, "images.txt"))
    class_of = read_pairs(_CUB_LAYOUT.file(folder, "image_class_labels.txt"))
    names = read_pairs(_CUB_LAYOUT.file(folder, "classes.txt"))
    training = read_pairs(_CUB_LAYOUT.file(folder, "train_test_split.txt"))
    for image in images:
        if class_of.get(image) not in names or not class_of[image].isdigit() or image not in training:
            raise _CUB_LAYOUT.refusal(folder, f"its lists say nothing of image {image}")
    paths = [f"images/{path}" for path in images.values()]
    _CUB_LAYOUT.all_present(folder, paths)
    manifest = Manifest.from_rows(
        paths,
        [names[class_of[image]] for image in images],
        split=["train" if int(class_of[image]) <= _CUB_TRAINING_CLASSES else "test" for image in images],
        published_split=["train" if training[image] == "1" else "test" for image in images],
    )
    return Dataset(manifest, FolderStore(folder), name="cub200")


add_entry(
    Entry(
        name="cub200",
        title=_CUB_LAYOUT.title,
        classes=200,
        items=11_788,
        homepage="https://www.vision.caltech.edu/datasets/cub_200_2011/",
        licence="non-commercial research and education",
        layout=_CUB_LAYOUT.shape,
        split="classes 1-100 train, 101-200 test (unseen); published_split: the images of each class",
        tested="real data",
        open=open_cub200,
        folders=("CUB_200_2011",),
        fetch=download_all(
            (
                "https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz",
                "97eceeb196236b17998738112f37df78",
            )
        ),
        class_folders=ClassFolders(training=_CUB_TRAINING_CLASSES),
    )
)


_NABIRDS_LAYOUT = PublishedLayout(
    "NABirds",
    "nabirds/ with images.txt, image_class_labels.txt, classes.txt, train_test_split.txt, hierarchy.txt and "
    "images/<class number>/*.jpg",
)


def open_nabirds(folder: Path) -> Dataset:
    """NABirds in its published folder; `superclass` is the parent of a class in hierarchy.txt."""
    images = read_pairs(_NABIRDS_LAYOUT.file(folder, "images.txt"))
    class_of = read_pairs(_NABIRDS_LAYOUT.file(folder, "image_class_labels.txt"))
    names = read_pairs(_NABIRDS_LAYOUT.file(folder, "classes.txt"))
    training = read_pairs(_NABIRDS_LAYOUT.file(folder, "train_test_split.txt"))
    parent_of = read_pairs(_NABIRDS_LAYOUT.file(folder, "hierarchy.txt"))
    for image in images:
        known = class_of.get(image) in names and image in training
        if not known or parent_of.get(class_of[image]) not in names:
            raise _NABIRDS_LAYOUT.refusal(folder, f"its lists say nothing of image {image}")
    paths = [f"images/{path}" for path in images.values()]
    _NABIRDS_LAYOUT.all_present(folder, paths)
    manifest = Manifest.from_rows(
        paths,
        [_unique_name(class_of[image], names) for image in images],
        split=["train" if training[image] == "1" else "test" for image in images],
        superclass=[_unique_name(parent_of[class_of[image]], names) for image in images],
    )
    return Dataset(manifest, FolderStore(folder), name="nabirds")


def _unique_name(number: str, names: dict[str, str]) -> str:
    # A species and the node above it often share a name, so the number stays in front of it.
    return f"{number.zfill(4)}.{names[number]}"


add_entry(
    Entry(
        name="nabirds",
        title=_NABIRDS_LAYOUT.title,
        classes=555,
        items=48_562,
        homepage="https://dl.allaboutbirds.org/nabirds",
        licence="non-commercial research; a form to sign",
        layout=_NABIRDS_LAYOUT.shape,
        split="published train/test of the images of each class (closed); superclass: the parent in the hierarchy",
        tested="layout-tested",
        open=open_nabirds,
        folders=("nabirds", "NABirds"),
    )
)


_FLOWERS_LAYOUT = PublishedLayout(
    "Flowers-102", "flowers-102/ with imagelabels.mat, setid.mat and jpg/image_00001.jpg to image_08189.jpg"
)
_FLOWERS_TRAINING_CLASSES = 51
_FLOWERS_ADDRESS = "https://www.robots.ox.ac.uk/~vgg/data/flowers/102/"


def open_flowers102(folder: Path) -> Dataset:
    """Flowers-102 in its published folder; `published_split` is the publisher's split of the images of each class.

    The publisher's files hold class numbers only, so the labels are '001' to '102'.
    """
    numbers = read_matlab(_FLOWERS_LAYOUT.file(folder, "imagelabels.mat"), "labels")["labels"]
    sets = read_matlab(_FLOWERS_LAYOUT.file(folder, "setid.mat"), "trnid", "valid", "tstid")
    part_of = {
        int(image): part
        for name, part in (("trnid", "train"), ("valid", "val"), ("tstid", "test"))
        for image in sets[name]
    }
    images = range(1, len(numbers) + 1)
    unplaced = next((image for image in images if image not in part_of), None)
    if unplaced is not None:
        raise _FLOWERS_LAYOUT.refusal(folder, f"setid.mat says nothing of image {unplaced}")
    paths = [f"jpg/image_{image:05d}.jpg" for image in images]
    _FLOWERS_LAYOUT.all_present(folder, paths)
    manifest = Manifest.from_rows(
        paths,
        [f"{number:03d}" for number in numbers],
        split=["train" if number <= _FLOWERS_TRAINING_CLASSES else "test" for number in numbers],
        published_split=[part_of[image] for image in images],
    )
    return Dataset(manifest, FolderStore(folder), name="flowers102")


add_entry(
    Entry(
        name="flowers102",
        title=_FLOWERS_LAYOUT.title,
        classes=102,
        items=8_189,
        homepage=_FLOWERS_ADDRESS,
        licence="not stated; images from the web, for research",
        layout=_FLOWERS_LAYOUT.shape,
        split="classes 1-51 train, 52-102 test (unseen); published_split: the images of each class",
        tested="layout-tested",
        open=open_flowers102,
        folders=("flowers-102", "102flowers"),
        fetch=download_all(
            (f"{_FLOWERS_ADDRESS}102flowers.tgz", "52808999861908f626f3c1f4e79d11fa"),
            (f"{_FLOWERS_ADDRESS}imagelabels.mat", "e0620be6f572b9609742df49c70aed4d"),
            (f"{_FLOWERS_ADDRESS}setid.mat", "a5357ecc9cb78c4bef273ce3793fc85c"),
        ),
        class_folders=ClassFolders(training=_FLOWERS_TRAINING_CLASSES),
    )
)


_ZOOSCAN_LAYOUT = PublishedLayout(
    "ZooScanNet", "ZooScanNet/ with imgs/<taxon>/<objid>.* and, for names and splits, taxa.csv.gz"
)


def open_zooscan(folder: Path) -> Dataset:
    """ZooScanNet in its published folder, by the old or the new form of taxa.csv.gz; without it, by taxon folder."""
    images = files_in(_ZOOSCAN_LAYOUT.directory(folder, "imgs"), IMAGE_SUFFIXES)
    if not images:
        raise _ZOOSCAN_LAYOUT.refusal(folder, "imgs is empty")
    table = next((folder / name for name in ("taxa.csv.gz", "taxa.csv") if (folder / name).is_file()), None)
    manifest = _zooscan_by_folder(folder, images) if table is None else _zooscan_by_table(folder, images, table)
    return Dataset(manifest, FolderStore(folder), name="zooscan")


def _zooscan_by_folder(folder: Path, images: list[str]) -> Manifest:
    if loose := next((path for path in images if "/" not in path), None):
        raise _ZOOSCAN_LAYOUT.refusal(folder, f"the image imgs/{loose} is in no taxon's folder")
    return Manifest.from_rows([f"imgs/{path}" for path in images], [PurePosixPath(path).parent.name for path in images])


def _zooscan_by_table(folder: Path, images: list[str], table: Path) -> Manifest:
    rows = read_rows(table, ("objid",))
    if not rows:
        raise _ZOOSCAN_LAYOUT.refusal(folder, f"{table.name} lists no objects")
    if not {"taxon", "taxon_level1"} & rows[0].keys():
        raise _ZOOSCAN_LAYOUT.refusal(folder, f"{table.name} has no column 'taxon' or 'taxon_level1'")
    taxon = "taxon_level1" if "taxon_level1" in rows[0] else "taxon"
    rows = _one_row_each(folder, rows, taxon, table.name)
    path_of = _zooscan_paths(folder, images, {row["objid"] for row in rows})
    missing = [row["objid"] for row in rows if row["objid"] not in path_of]
    if missing:
        raise _ZOOSCAN_LAYOUT.refusal(
            folder, f"imgs lacks {len(missing):,} of {len(rows):,} objects, {missing[0]} first"
        )
    published = {"lineage": ("lineage_level1", "lineage"), "superclass": ("taxon_level2",), "split": ("set",)}
    more = {
        column: [row[name] for row in rows] for column, names in published.items() for name in names if name in rows[0]
    }
    return Manifest.from_rows([path_of[row["objid"]] for row in rows], [row[taxon] for row in rows], **more)


def _one_row_each(folder: Path, rows: list[dict[str, str]], taxon: str, table: str) -> list[dict[str, str]]:
    """The rows, one for each object; refuse an object without a taxon or with two."""
    kept: dict[str, dict[str, str]] = {}
    for row in rows:
        if not row[taxon]:
            raise _ZOOSCAN_LAYOUT.refusal(folder, f"{table} has no {taxon} for the object '{row['objid']}'")
        known = kept.setdefault(row["objid"], row)[taxon]
        if known != row[taxon]:
            reason = f"{table} has the object '{row['objid']}' as '{known}' and as '{row[taxon]}'"
            raise _ZOOSCAN_LAYOUT.refusal(folder, reason)
    return list(kept.values())


def _zooscan_paths(folder: Path, images: list[str], listed: set[str]) -> dict[str, str]:
    """Where the image of each listed object is; refuse an object with two."""
    path_of: dict[str, str] = {}
    for path in images:
        name = PurePosixPath(path).stem
        if name in listed and path_of.setdefault(name, f"imgs/{path}") != f"imgs/{path}":
            raise _ZOOSCAN_LAYOUT.refusal(
                folder, f"the object '{name}' has two images, {path_of[name]} and imgs/{path}"
            )
    return path_of


add_entry(
    Entry(
        name="zooscan",
        title="ZooScan plankton (ZooScanNet)",
        classes=98,
        items=1_451_745,
        homepage="https://www.seanoe.org/data/00446/55741/",
        licence="CC BY-NC",
        layout=_ZOOSCAN_LAYOUT.shape,
        split="published train/val/test of the images of each taxon (closed), in versions that have it",
        tested="layout-tested",
        open=open_zooscan,
        folders=("ZooScanNet", "ZooScanNet_data"),
    )
)
