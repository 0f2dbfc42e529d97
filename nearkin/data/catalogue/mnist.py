"""MNIST: handwritten digits in idx files."""

from __future__ import annotations

from pathlib import Path

from nearkin.data.catalogue.entry import Entry, enter
from nearkin.data.catalogue.fetch import published
from nearkin.data.catalogue.idx import FILES, dataset_of, find_file, read_content
from nearkin.data.catalogue.layout import Layout
from nearkin.data.dataset import Dataset

_LAYOUT = Layout(
    "MNIST", "mnist/ with {train,t10k}-images-idx3-ubyte and {train,t10k}-labels-idx1-ubyte, gzipped or not"
)
_DIGITS = tuple("0123456789")

# The publisher's own address no longer serves the files; this copy of them is the one others use too.
_ADDRESS = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_SHA256 = {
    "train-images-idx3-ubyte": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}


def open_mnist(folder: Path) -> Dataset:
    """MNIST in a folder with its four files."""
    contents = {}
    for name in FILES:
        path = find_file(folder, name)
        if path is None:
            raise _LAYOUT.refusal(folder, f"'{name}.gz' is missing")
        contents[name] = (read_content(path), path)
    return dataset_of(contents, _DIGITS, "mnist")


enter(
    Entry(
        name="mnist",
        title=_LAYOUT.title,
        classes=10,
        items=70_000,
        homepage=_ADDRESS,
        licence="CC BY-SA 3.0",
        layout=_LAYOUT.shape,
        split="published train/test (closed)",
        tested="layout-tested",
        open=open_mnist,
        folders=("MNIST/raw", "MNIST"),
        fetch=published(*((f"{_ADDRESS}{name}.gz", checksum) for name, checksum in _SHA256.items())),
    )
)
