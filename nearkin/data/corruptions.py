"""Corruptions: images as a worse camera, worse weather or a worse file would have given them.

The fifteen common corruptions of Hendrycks and Dietterich 2019 in five severities, drawn by the package
imagecorruptions. It takes its noise from wherever it likes: numpy's global generator, scikit-image's, numba's. Here all
noise is a function of a seed.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np
from numpy.random import mtrand
from PIL import Image

from nearkin.checks import is_whole
from nearkin.data.dataset import Dataset
from nearkin.errors import DataError, MissingExtraError, UnknownNameError, require, suggestion

FAMILIES: dict[str, tuple[str, ...]] = {
    "noise": ("gaussian_noise", "shot_noise", "impulse_noise"),
    "blur": ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    "weather": ("snow", "frost", "fog", "brightness"),
    "digital": ("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
}
"""The corruptions of each family."""

CORRUPTIONS: tuple[str, ...] = tuple(name for family in FAMILIES.values() for name in family)
"""All corruptions, in the order of the literature."""

SEVERITIES: tuple[int, ...] = (1, 2, 3, 4, 5)
"""From hardly visible to hardly recognisable."""

SMALLEST = 32
"""The short side, in pixels, below which an image is enlarged to be corrupted."""

LONGEST = 8192
"""The longest side that can be corrupted: fog grows with its square."""

# What draws from numpy's global generator, and what takes a seed; the other six draw nothing.
_GLOBAL = frozenset({"gaussian_noise", "shot_noise", "motion_blur", "snow", "frost", "fog", "elastic_transform"})
_SEEDED = frozenset({"impulse_noise", "glass_blur"})

_LOCK = threading.Lock()


def corrupt(image: Image.Image, name: str, severity: int, seed: int) -> Image.Image:
    """Corrupt one image; the same arguments give the same pixels, in any thread and process.

    A grey image is corrupted as a colour image and made grey again, so noise is weaker in it. An image with a side
    under 32 pixels is enlarged so that its short side has 32, corrupted, and resized back, which softens what was done
    to it. The strengths are those for images of about 224 pixels: a corruption of the same severity destroys a smaller
    image more, a larger one less.

    Some corruptions borrow numpy's global generator. It is given back as it was, and calls of this function wait for
    each other, but another thread that uses `np.random.normal` and its like meanwhile would disturb both.

    Args:
        image: of mode L or RGB.
        name: one of `CORRUPTIONS`.
        severity: 1 to 5.
        seed: of the noise, at least 0; `defocus_blur`, `zoom_blur`, `brightness`, `contrast`, `pixelate` and
            `jpeg_compression` have none.

    Returns:
        A new image of the same size and mode.

    Raises:
        UnknownNameError: there is no such corruption.
        DataError: the image, the severity or the seed cannot be used.
        MissingExtraError: imagecorruptions is not installed, or does not load.
    """
    severity, seed = _checked(name, severity, seed)
    size = _working_size(image)
    package = _package()
    colour = image.convert("RGB")
    if size != image.size:
        colour = colour.resize(size, Image.Resampling.BILINEAR)
    pixels, sequence = np.asarray(colour), np.random.SeedSequence(seed)
    if name in _GLOBAL:
        with _lent(np.random.MT19937(sequence)):
            corrupted = Image.fromarray(package.corrupt(pixels, severity, name))
    else:
        options = {"seed": int(sequence.generate_state(1)[0])} if name in _SEEDED else {}
        corrupted = Image.fromarray(package.corrupt(pixels, severity, name, **options))
    if size != image.size:
        corrupted = corrupted.resize(image.size, Image.Resampling.BILINEAR)
    return corrupted.convert(image.mode)


class CorruptedDataset(Dataset):
    """A data set whose images are corrupted as they are loaded.

    The noise of an item is a function of the seed, the item's path, the corruption and the severity: it is the same in
    every selection and order. Labels, paths and the store are those of the data set given; only `load` and `image`
    corrupt.

    Args:
        dataset: the images.
        name: one of `CORRUPTIONS`.
        severity: 1 to 5.
        seed: of the noise, at least 0.
        side: images with a longer short side are reduced to it, in pixels, before they are corrupted; at least 32. The
            severities are made for about 224 pixels, and a photo of 4000 would hardly notice them. None corrupts
            images at the size they have.

    Example:
        >>> foggy = CorruptedDataset(queries, "fog", severity=3, side=224)
        >>> embedder.encode(foggy)
    """

    def __init__(self, dataset: Dataset, name: str, severity: int, *, seed: int = 0, side: int | None = None) -> None:
        self.severity, self.seed = _checked(name, severity, seed)
        if not isinstance(dataset, Dataset):
            raise DataError(f"Pass a Dataset to corrupt, as open_data returns it, not a {type(dataset).__name__}.")
        if dataset.kind != "image":
            raise DataError(f"The data set '{dataset.name}' holds {dataset.kind}: only images can be corrupted.")
        if side is not None and (not is_whole(side) or side < SMALLEST):
            raise DataError(f"The side to reduce images to must be an integer of at least {SMALLEST}, not {side!r}.")
        _package()  # what is missing is said now, not by a thread in the middle of the work
        super().__init__(dataset.manifest, dataset.store, dataset.kind, dataset.name)
        self.dataset = dataset
        self.corruption = name
        self.side = None if side is None else int(side)

    def __repr__(self) -> str:
        return f"CorruptedDataset({self.dataset!r}, {self.corruption!r}, severity={self.severity})"

    def load(self, index: int, hint: int | None = None) -> Image.Image:
        """Decode and corrupt one item: an image of mode RGB or L.

        Args:
            index: the row.
            hint: not used, so that what is seen does not depend on who looks; `side` says at which size to decode.
        """
        image: Any = self.dataset.load(index, self.side)
        info = dict(image.info)
        if self.side is not None and (shortest := min(image.size)) > self.side:
            width, height = (max(self.side, round(length * self.side / shortest)) for length in image.size)
            image = image.resize((width, height), Image.Resampling.BILINEAR)
        path = str(self.manifest.paths[index])
        seed = int.from_bytes(_digest([self.seed, path, self.corruption, self.severity]))
        try:
            corrupted = corrupt(image, self.corruption, self.severity, seed)
            corrupted.info.update(info)  # an object is as large as it was
            return corrupted
        except DataError as error:
            raise DataError(f"{path}: {error}") from error

    def select(self, rows: np.ndarray | Sequence[int] | Sequence[bool]) -> CorruptedDataset:
        """The items given by indices, in that order, or by a boolean mask; corrupted as here."""
        return self._around(self.dataset.select(rows))

    def where(self, **equals: str) -> CorruptedDataset:
        """The items whose columns equal the given values, corrupted as here."""
        return self._around(self.dataset.where(**equals))

    def fingerprint(self) -> str:
        """A sha256, in hex, of the fingerprint of the clean data and of what is done to it."""
        return _digest([self.dataset.fingerprint(), self.corruption, self.severity, self.seed, self.side]).hex()

    def _around(self, dataset: Dataset) -> CorruptedDataset:
        return CorruptedDataset(dataset, self.corruption, self.severity, seed=self.seed, side=self.side)


def _digest(values: list[Any]) -> bytes:
    return hashlib.sha256(json.dumps(values).encode("ascii")).digest()


def _checked(name: str, severity: int, seed: int) -> tuple[int, int]:
    """The severity and the seed as plain integers, or an error for one of the three."""
    if name not in CORRUPTIONS:
        raise UnknownNameError(f"There is no corruption '{name}'.{suggestion(str(name), CORRUPTIONS)}")
    if not is_whole(severity) or severity not in SEVERITIES:
        raise DataError(f"The severity of a corruption must be 1, 2, 3, 4 or 5, not {severity!r}.")
    if not is_whole(seed) or seed < 0:
        raise DataError(f"The seed of a corruption must be an integer of at least 0, not {seed!r}.")
    return int(severity), int(seed)


def _working_size(image: Image.Image) -> tuple[int, int]:
    """Width and height at which an image is corrupted."""
    if not isinstance(image, Image.Image):
        raise DataError(f"Only a PIL image can be corrupted, not a {type(image).__name__}: use Image.fromarray.")
    if image.mode not in ("L", "RGB"):
        raise DataError(f"Only images of mode L or RGB can be corrupted, not {image.mode}: convert the image first.")
    width, height = image.size
    if not width or not height:
        raise DataError(f"An image of {width} x {height} pixels has nothing to corrupt.")
    scale = max(1.0, SMALLEST / min(width, height))
    width, height = round(width * scale), round(height * scale)
    if max(width, height) > LONGEST:
        raise DataError(
            f"An image of {image.width} x {image.height} pixels, corrupted at {width} x {height}, is too long: reduce "
            f"or cut it so that no side is above {LONGEST}."
        )
    return width, height


def _package() -> ModuleType:
    """The package imagecorruptions, or one sentence that tells a missing package from one that does not load."""
    try:
        return require("imagecorruptions", extra="audit")
    except (MissingExtraError, OSError) as error:
        cause = error if isinstance(error, OSError) else error.__cause__
        if isinstance(cause, ModuleNotFoundError):
            raise
        raise MissingExtraError(
            f"The package 'imagecorruptions' is installed but does not load ({cause}): install what is named there; "
            "for libGL that is the system package libgl1, or opencv-python-headless in the place of opencv-python."
        ) from error


@contextmanager
def _lent(generator: np.random.MT19937) -> Iterator[None]:
    """Put a generator behind numpy's global functions, for one thread at a time, and take it away again."""
    with _LOCK:
        found, state = mtrand.get_bit_generator(), mtrand.get_state(legacy=False)
        mtrand.set_bit_generator(generator)
        try:
            yield
        finally:
            mtrand.set_bit_generator(found)
            mtrand.set_state(state)  # setting a generator drops the half of a normal pair that numpy keeps beside it
