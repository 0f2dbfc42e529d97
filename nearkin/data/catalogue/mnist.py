"""MNIST and its kin: MNIST and Fashion-MNIST in idx files, and the small digits that ship with scikit-learn.

Fashion-MNIST comes from the first source that answers: the data directory, the publisher's address, Debian's package.
Debian repacks the files, so what is verified, whatever the source, is the content after unpacking.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import shutil
import sys
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nearkin.data.catalogue.download import debian_package, download, download_all, new_folder
from nearkin.data.catalogue.entry import Entry, catalogue, published, reading_places, writing_place
from nearkin.data.catalogue.layout import PublishedFolder
from nearkin.data.dataset import Dataset
from nearkin.data.manifest import Manifest
from nearkin.data.stores import ArrayStore
from nearkin.errors import DataError, StorageError

PARTS = {"train": "train", "test": "t10k"}
"""Split to the beginning of its files' names."""

FILES = tuple(f"{part}-{what}-ubyte" for part in PARTS.values() for what in ("images-idx3", "labels-idx1"))
"""The four files of a data set in this format, without '.gz'."""

_UNSIGNED_BYTE = 8
_MOST_BYTES = 1 << 30


def find_file(folder: Path, name: str) -> Path | None:
    """A file of a folder as published (`.gz`), unpacked, or renamed by a common unpacker (`.idx` for `-idx`)."""
    variants = (name, name.replace("-idx", ".idx"))
    return next(
        (folder / f"{v}{end}" for v in variants for end in (".gz", "") if (folder / f"{v}{end}").is_file()), None
    )


def read_content(path: Path) -> bytes:
    """The content of a file, unpacked if it is gzipped."""
    try:
        with open(path, "rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rb") if packed else open(path, "rb") as handle:
            content = handle.read(_MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} could not be read ({error}): get it again.") from error
    if len(content) > _MOST_BYTES:
        raise DataError(
            f"{path} holds more than {_MOST_BYTES:,} bytes, more than any idx file of this data set: download it again."
        )
    return content


def parse_idx(content: bytes, path: Path) -> np.ndarray:
    """The uint8 array, (n,) or (n, H, W), that an idx file holds."""
    dimensions = content[3] if len(content) >= 4 else 0
    start = 4 + 4 * dimensions
    if content[:3] != bytes((0, 0, _UNSIGNED_BYTE)) or not dimensions or len(content) < start:
        raise DataError(f"{path} is not an idx file of bytes: get it again.")
    shape = tuple(int(size) for size in np.frombuffer(content, ">u4", dimensions, offset=4))
    if len(content) - start != math.prod(shape):
        raise DataError(
            f"{path} is truncated ({len(content) - start:,} bytes for the shape {shape}): download it again."
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _open_idx(at: PublishedFolder, classes: Sequence[str], checksums: Mapping[str, str]) -> Dataset:
    """The data set of a folder's four files; items are 'train/00000', ...

    Args:
        at: the folder.
        classes: names of the labels.
        checksums: the sha256 of the files' contents that must be as published.
    """
    contents = {}
    for name in FILES:
        path = find_file(at.path, name)
        if path is None:
            raise at.refusal(f"'{name}.gz' is missing")
        content = read_content(path)
        if name in checksums and hashlib.sha256(content).hexdigest() != checksums[name]:
            raise DataError(f"{path} is not the published file of {at.title}: delete it to have it downloaded again.")
        contents[name] = content, path
    images: list[np.ndarray] = []
    labels: list[str] = []
    paths: list[str] = []
    for split, part in PARTS.items():
        pixels = parse_idx(*contents[f"{part}-images-idx3-ubyte"])
        source = contents[f"{part}-labels-idx1-ubyte"][1]
        codes = parse_idx(*contents[f"{part}-labels-idx1-ubyte"])
        if pixels.ndim != 3 or codes.ndim != 1 or len(pixels) != len(codes):
            raise DataError(f"{source} has the shape {codes.shape} for images of shape {pixels.shape}: get both again.")
        if codes.size and codes.max() >= len(classes):
            raise DataError(f"{source} has a label {codes.max()} where there are {len(classes)} classes: get it again.")
        images.append(pixels)
        labels.extend(classes[code] for code in codes)
        paths.extend(f"{split}/{index:05d}" for index in range(len(codes)))
    if images[0].shape[1:] != images[1].shape[1:]:
        raise DataError(
            f"{at.path} has images of two sizes, {images[0].shape[1:]} and {images[1].shape[1:]}: download it again."
        )
    manifest = Manifest.from_rows(paths, labels, split=[path.partition("/")[0] for path in paths])
    return Dataset(manifest, ArrayStore(np.concatenate(images), paths), name=at.name)


_DIGITS = tuple("0123456789")

# The publisher's own address no longer serves the files; this copy of them is the one others use too.
_MNIST_ADDRESS = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_MNIST_SHA256 = {
    "train-images-idx3-ubyte": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}


@published(
    "mnist",
    title="MNIST",
    classes=10,
    items=70_000,
    homepage=_MNIST_ADDRESS,
    licence="CC BY-SA 3.0",
    layout="mnist/ with {train,t10k}-images-idx3-ubyte and {train,t10k}-labels-idx1-ubyte, gzipped or not",
    split="published train/test (closed)",
    tested="layout-tested",
    folders=("MNIST/raw", "MNIST"),
    fetch=download_all(*((f"{_MNIST_ADDRESS}{name}.gz", checksum) for name, checksum in _MNIST_SHA256.items())),
)
def open_mnist(at: PublishedFolder) -> Dataset:
    """MNIST in a folder with its four files."""
    return _open_idx(at, _DIGITS, {})


FASHION_CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
"""Class names in the order of the published labels 0 to 9."""

_ADDRESS = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
_FASHION_PACKAGE = "dataset-fashion-mnist"
_INSTALLED = Path("usr/share/datasets/fashion-mnist")
_SECONDS = 5.0

_CONTENT_SHA256 = {
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
_PUBLISHED_MD5 = {
    "train-images-idx3-ubyte": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte": "25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte": "bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte": "bb300cfdad3c16e7a12a480ee83cd310",
}


@dataclass(frozen=True)
class Opened:
    """A data set and, in words, the source that it came from."""

    dataset: Dataset
    where: str


def open_fashion_mnist(data_root: Path | None = None, *, progress: bool = True) -> Opened:
    """Open Fashion-MNIST from the first source that answers; what is downloaded is kept for the next time.

    Raises:
        DataError: no source answered.
    """
    places = reading_places(data_root)
    for folder in [place / name for place in places for name in ("fashion-mnist", "FashionMNIST/raw")]:
        if any(find_file(folder, name) for name in FILES):
            return Opened(open_fashion_folder(folder), f"the data directory ({folder})")
    for folder in (*places, Path("/") / _INSTALLED):
        # These folders may hold the files of MNIST, which have the same names.
        if _holds_fashion(folder):
            return Opened(open_fashion_folder(folder), f"the data directory ({folder})")

    failures = []
    debian = f"Debian's package {_FASHION_PACKAGE}"
    for where, fetch in (("the publisher's address", _fashion_from_publisher), (debian, _fashion_from_debian)):
        try:
            kept = writing_place(data_root) / "fashion-mnist"
            fetch(kept, progress)
            return Opened(open_fashion_folder(kept), f"{where} (kept in {kept})")
        except (DataError, StorageError) as error:
            failures.append(f"{where}: {str(error).rstrip('.')}")
    raise DataError(
        f"No source of Fashion-MNIST answered ({'; '.join(failures)}): "
        f"put its four idx files into {places[0] / 'fashion-mnist'}."
    )


def _holds_fashion(folder: Path) -> bool:
    """Whether the smallest file of a folder is Fashion-MNIST's."""
    name = "t10k-labels-idx1-ubyte"
    path = find_file(folder, name)
    return path is not None and hashlib.sha256(read_content(path)).hexdigest() == _CONTENT_SHA256[name]


def _fashion_from_publisher(folder: Path, progress: bool) -> None:
    with new_folder(folder) as temporary:
        for name in reversed(FILES):  # labels are small: a dead address is noticed before the large files
            download(f"{_ADDRESS}{name}.gz", temporary / f"{name}.gz", _PUBLISHED_MD5[name], progress, _SECONDS)


def _fashion_from_debian(folder: Path, progress: bool) -> None:
    with new_folder(folder) as temporary, debian_package(_FASHION_PACKAGE, progress) as root:
        for name in FILES:
            source = root / _INSTALLED / f"{name}.gz"
            if not source.is_file():
                raise DataError(f"the package holds no {name}.gz")
            if hashlib.sha256(read_content(source)).hexdigest() != _CONTENT_SHA256[name]:
                raise DataError(f"the package's {name}.gz is not the published file")
            shutil.copyfile(source, temporary / source.name)


def _find_fashion(data_root: Path | None, progress: bool) -> Dataset:
    opened = open_fashion_mnist(data_root, progress=progress)
    if progress:
        print(f"Fashion-MNIST from {opened.where}", file=sys.stderr, flush=True)
    return opened.dataset


@published(
    "fashion-mnist",
    title="Fashion-MNIST",
    classes=10,
    items=70_000,
    homepage="https://github.com/zalandoresearch/fashion-mnist",
    licence="MIT",
    layout="fashion-mnist/ with {train,t10k}-images-idx3-ubyte and {train,t10k}-labels-idx1-ubyte, gzipped or not",
    split="published train/test (closed)",
    tested="real data",
    folders=("FashionMNIST/raw",),
    find=_find_fashion,
    sources="downloaded by name, from its publisher or as a Debian package",
)
def open_fashion_folder(at: PublishedFolder) -> Dataset:
    """Fashion-MNIST in a folder with its four files, which must be the published ones."""
    return _open_idx(at, FASHION_CLASSES, _CONTENT_SHA256)


_DIGITS_BRIGHTEST = 16


def open_digits() -> Dataset:
    """The 1,797 digits of scikit-learn, 8 x 8 grey images."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = np.rint(digits.images * (255 / _DIGITS_BRIGHTEST)).astype(np.uint8)
    paths = [f"{index:04d}" for index in range(len(images))]
    return Dataset(Manifest.from_rows(paths, digits.target), ArrayStore(images, paths), name="digits")


catalogue.register("digits")(
    Entry(
        name="digits",
        title="Digits of scikit-learn",
        classes=10,
        items=1_797,
        homepage="https://archive.ics.uci.edu/dataset/80/optical+recognition+of+handwritten+digits",
        licence="CC BY 4.0",
        layout="none: the images are part of scikit-learn",
        split="none",
        tested="real data",
        open=lambda folder: open_digits(),
        find=lambda data_root, progress: open_digits(),
        sources="bundled with scikit-learn",
    )
)
