"""Fashion-MNIST: articles of clothing in idx files, from the first source that answers.

The sources, in order: the data directory, the publisher's address, Debian's package. Debian packs the files anew, so
what is verified, whatever the source, is the content after unpacking.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from nearkin.data.catalogue.debian import debian_package
from nearkin.data.catalogue.entry import Entry, enter
from nearkin.data.catalogue.fetch import building, download
from nearkin.data.catalogue.idx import FILES, dataset_of, find_file, read_content
from nearkin.data.catalogue.layout import Layout
from nearkin.data.catalogue.places import reading_places, writing_place
from nearkin.data.dataset import Dataset
from nearkin.errors import DataError, StorageError

_LAYOUT = Layout(
    "Fashion-MNIST",
    "fashion-mnist/ with {train,t10k}-images-idx3-ubyte and {train,t10k}-labels-idx1-ubyte, gzipped or not",
)
CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
"""Class names in the order of the published labels 0 to 9."""

_ADDRESS = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
_PACKAGE = "dataset-fashion-mnist"
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
            return Opened(open_folder(folder), f"the data directory ({folder})")
    for folder in (*places, Path("/") / _INSTALLED):
        # These folders may hold the files of MNIST, which have the same names.
        if _holds_fashion(folder):
            return Opened(open_folder(folder), f"the data directory ({folder})")

    failures = []
    for where, fetch in (("the publisher's address", _from_publisher), (f"Debian's package {_PACKAGE}", _from_debian)):
        try:
            kept = writing_place(data_root) / "fashion-mnist"
            fetch(kept, progress)
            return Opened(open_folder(kept), f"{where} (kept in {kept})")
        except (DataError, StorageError) as error:
            failures.append(f"{where}: {str(error).rstrip('.')}")
    raise DataError(
        f"No source of Fashion-MNIST answered ({'; '.join(failures)}): "
        f"put its four idx files into {places[0] / 'fashion-mnist'}."
    )


def open_folder(folder: Path) -> Dataset:
    """Fashion-MNIST in a folder with its four files, which must be the published ones."""
    contents = {}
    for name in FILES:
        path = find_file(folder, name)
        if path is None:
            raise _LAYOUT.refusal(folder, f"'{name}.gz' is missing")
        content = read_content(path)
        if hashlib.sha256(content).hexdigest() != _CONTENT_SHA256[name]:
            raise DataError(f"{path} is not the published file of Fashion-MNIST: delete it and it is fetched again.")
        contents[name] = (content, path)
    return dataset_of(contents, CLASSES, "fashion-mnist")


def _holds_fashion(folder: Path) -> bool:
    """Whether the smallest file of a folder is Fashion-MNIST's."""
    name = "t10k-labels-idx1-ubyte"
    path = find_file(folder, name)
    return path is not None and hashlib.sha256(read_content(path)).hexdigest() == _CONTENT_SHA256[name]


def _from_publisher(folder: Path, progress: bool) -> None:
    with building(folder) as temporary:
        for name in reversed(FILES):  # labels are small: a dead address is noticed before the large files
            download(f"{_ADDRESS}{name}.gz", temporary / f"{name}.gz", _PUBLISHED_MD5[name], progress, _SECONDS)


def _from_debian(folder: Path, progress: bool) -> None:
    with building(folder) as temporary, debian_package(_PACKAGE, progress) as root:
        for name in FILES:
            source = root / _INSTALLED / f"{name}.gz"
            if not source.is_file():
                raise DataError(f"the package holds no {name}.gz")
            if hashlib.sha256(read_content(source)).hexdigest() != _CONTENT_SHA256[name]:
                raise DataError(f"the package's {name}.gz is not the published file")
            shutil.copyfile(source, temporary / source.name)


def _find(data_root: Path | None, progress: bool) -> Dataset:
    opened = open_fashion_mnist(data_root, progress=progress)
    if progress:
        print(f"Fashion-MNIST from {opened.where}", file=sys.stderr, flush=True)
    return opened.dataset


enter(
    Entry(
        name="fashion-mnist",
        title=_LAYOUT.title,
        classes=10,
        items=70_000,
        homepage="https://github.com/zalandoresearch/fashion-mnist",
        licence="MIT",
        layout=_LAYOUT.shape,
        split="published train/test (closed)",
        tested="real data",
        open=open_folder,
        folders=("FashionMNIST/raw",),
        find=_find,
        sources="downloaded by name, from its publisher or as a Debian package",
    )
)
