"""What a reader has at hand: photographs, recordings and the data sets of the catalogue, all small and made up."""

from __future__ import annotations

import io
import shutil
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
from fsspec.implementations.local import LocalFileSystem
from PIL import Image

from nearkin.data.manifest import Manifest, write_manifest

BIRDS = (
    *("robin", "wren", "finch", "jay", "heron", "owl", "tern", "gull", "kite"),
    *("rook", "crane", "stork", "lark", "swift", "coot", "teal", "smew", "ruff"),
)
FASHION = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
DOMAINS = ("art_painting", "cartoon", "photo", "sketch")
TAXA = {"Calanoida": 503, "Oncaeidae": 502, "Harpacticoida": 501, "detritus": 12, "Aglaura": 12}
Row = tuple[str, dict[str, str]]


def pictures(labels: list[str], side: int, channels: int = 3, seed: int = 0) -> Iterator[np.ndarray]:
    """An image for each label: the pattern of its class plus noise."""
    rng = np.random.default_rng(seed)
    shape = (side, side, 3)[: 3 if channels == 3 else 2]
    patterns = {label: rng.integers(0, 256, shape) for label in dict.fromkeys(labels)}
    for label in labels:
        yield np.clip(patterns[label] + rng.normal(0, 40, shape), 0, 255).astype(np.uint8)


def write_photos(root: Path, names: tuple[str, ...] = BIRDS, items: int = 7, seed: int = 0) -> None:
    """A folder with one folder for each class."""
    labels = [name for name in names for _ in range(items)]
    for number, (label, image) in enumerate(zip(labels, pictures(labels, 24, seed=seed), strict=True)):
        (root / label).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(root / label / f"{number % items + 1}.jpg", quality=95)


def write_prices(photos: Path) -> None:
    """A manifest beside photographs, with what a shop knows of its wares."""
    lines = ["path,label,price,colour,stock"]
    for number, path in enumerate(sorted(photos.rglob("*.jpg"))):
        name = path.relative_to(photos).as_posix()
        lines.append(f"{name},{path.parent.name},{number % 40},{('red', 'blue', 'green')[number % 3]},{number % 5}")
    (photos / "manifest.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_zip(path: Path, rows: list[Row], files: Iterator[bytes]) -> None:
    """A zip as the catalogue looks for it: files and a manifest. A row is a path and its columns."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        lines = [",".join(["path", *rows[0][1]])]
        for (name, columns), raw in zip(rows, files, strict=True):
            archive.writestr(name, raw)
            lines.append(",".join([name, *columns.values()]))
        archive.writestr("manifest.csv", "\n".join(lines) + "\n")


def _images(rows: list[Row], side: int, channels: int = 3) -> Iterator[bytes]:
    for image in pictures([columns["label"] for _, columns in rows], side, channels):
        raw = io.BytesIO()
        Image.fromarray(image).save(raw, "png")
        yield raw.getvalue()


def _split(number: int, training: int) -> str:
    return "train" if number < training else "test"


def write_cub(folder: Path, training: int = 12, unseen: int = 100, items: int = 20) -> None:
    """Birds: some species train, the others are for the test."""
    rows = [
        (f"images/{bird}/{item}.png", {"label": f"{bird:03d}.Bird", "split": _split(bird, training)})
        for bird in range(training + unseen)
        for item in range(items)
    ]
    write_zip(folder / "cub200.zip", rows, _images(rows, 8))


def write_pacs(folder: Path) -> None:
    """Seven classes in four domains."""
    things = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
    rows = [
        (f"images/{domain}/{thing}/{item}.png", {"label": thing, "split": "", "domain": domain})
        for domain in DOMAINS
        for thing in things
        for item in range(6)
    ]
    write_zip(folder / "pacs.zip", rows, _images(rows, 16))


def write_omniglot(folder: Path) -> None:
    """Characters of four alphabets; the last one is for the test."""
    rows = [
        (f"images/{letter}/{item}.png", {"label": f"a{letter // 6}/c{letter}", "split": _split(letter, 18)})
        for letter in range(24)
        for item in range(8)
    ]
    write_zip(folder / "omniglot.zip", rows, _images(rows, 16, channels=1))


def write_fashion(folder: Path) -> None:
    """Grey pictures of ten kinds of clothes."""
    rows = [(f"{number}.png", {"label": FASHION[number % 10], "split": "train"}) for number in range(1210)]
    write_zip(folder / "fashion-mnist.zip", rows, _images(rows, 14, channels=1))


def write_voices(folder: Path) -> None:
    """Sixty people who say some digits three times: a tone of their own with noise; twenty are for the test."""
    import soundfile

    rng = np.random.default_rng(0)
    rows = [
        (f"audio/{who}/{take}.flac", {"label": f"speaker{who:02d}", "split": _split(who, 40), "digit": str(take // 3)})
        for who in range(60)
        for take in range(10 if who >= 40 else 3)
    ]

    def sounds() -> Iterator[bytes]:
        for _, columns in rows:
            tone = 0.02 + 0.004 * int(columns["label"][-2:]) + 0.002 * int(columns["digit"])
            raw = io.BytesIO()
            soundfile.write(
                raw, 0.3 * np.sin(np.arange(4000) * tone) + 0.1 * rng.normal(size=4000), 16_000, format="flac"
            )
            yield raw.getvalue()

    write_zip(folder / "audiomnist.zip", rows, sounds())


def write_plankton(folder: Path) -> None:
    """A folder as ZooScanNet is published: three large taxa, an artefact and a small one."""
    labels = [taxon for taxon, count in TAXA.items() for _ in range(count)]
    for number, (label, image) in enumerate(zip(labels, pictures(labels, 10, channels=1), strict=True)):
        place = folder / "ZooScanNet" / "imgs" / label
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(place / f"{number}.png")


CATALOGUE = {
    "cub200": write_cub,
    "few birds": partial(write_cub, unseen=5, items=6),
    "pacs": write_pacs,
    "omniglot": write_omniglot,
    "fashion-mnist": write_fashion,
    "audiomnist": write_voices,
    "zooscan": write_plankton,
}
"""What writes a data set into a data directory, by the name that a page asks for."""


class Bucket(LocalFileSystem):
    """A folder that answers as `s3://` does."""

    protocol = "s3"
    root = ""

    @classmethod
    def _strip_protocol(cls, path: Any) -> str:
        inside = str(path).removeprefix("s3://").rstrip("/")
        return inside if inside.startswith(cls.root) else f"{cls.root}/{inside}"


def write_bucket(folder: Path, photos: Path) -> None:
    """The bucket `s3://shop`: photographs, and manifests beside them and above them."""
    shutil.copytree(photos, folder / "shop" / "photos")
    paths = sorted(path.relative_to(photos).as_posix() for path in photos.rglob("*.jpg"))
    for place, prefix in (("photos/", ""), ("", "photos/")):
        rows = Manifest.from_rows([f"{prefix}{path}" for path in paths], [path.split("/")[0] for path in paths])
        write_manifest(rows, folder / "shop" / f"{place}manifest.parquet")


def write_vectors(folder: Path) -> None:
    """Vectors of some other network, with labels, in all the forms that a gallery takes."""
    rng = np.random.default_rng(0)
    labels = np.repeat(BIRDS, 10)
    vectors = np.repeat(rng.normal(size=(len(BIRDS), 512)), 10, axis=0) + rng.normal(size=(len(labels), 512))
    vectors = vectors.astype(np.float32)
    for name, rows in (("v", vectors), ("catalogue", vectors), ("query", vectors[0]), ("three", vectors[:, :3])):
        np.save(folder / f"{name}.npy", rows)
    (folder / "labels.txt").write_text("\n".join(labels) + "\n")
    lines = [f"{label},{number},{number % 40}" for number, label in enumerate(labels)]
    (folder / "catalogue.csv").write_text("label,id,price\n" + "\n".join(lines) + "\n")
    table = pyarrow.table({"label": labels, "embedding": list(vectors)})
    pyarrow.parquet.write_table(table, folder / "vectors.parquet")
    (folder / "vectors").mkdir()
    table = table.append_column("path", [[f"{number}.jpg" for number in range(len(labels))]])
    half = len(labels) // 2
    for part in range(2):
        pyarrow.parquet.write_table(
            table.slice(part * half, half), folder / f"vectors/part-{part:05d}-of-00002.parquet"
        )
