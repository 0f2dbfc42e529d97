"""From a decoded sample to what a model takes: crops and padding of images with Pillow, batches with kornia.

Crops come first and one by one, since images differ in size; they give uint8 tensors, which are small to hand from a
worker process to the trainer. All else happens to the whole batch. Nothing is random without a generator or a seed.
An image that is padded keeps its scale if it fits, so that small things stay small; a larger one is scaled down until
its longer side fits.
"""

from __future__ import annotations

import math
from typing import Any, Protocol, cast

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from nearkin.data.audio import LogMelTransform
from nearkin.data.audio_augment import AudioAugment
from nearkin.data.dataset import ROW, Dataset
from nearkin.data.decode import ORIGINAL_SIZE
from nearkin.data.inputs import InputSpec
from nearkin.data.section import DataSection
from nearkin.errors import DataError, require

# Pillow first shrinks large images by whole factors to this multiple of the target: much faster, hardly visible.
REDUCING_GAP = 2.0


def padded(image: Image.Image, side: int, most: int | None = None) -> Image.Image:
    """An image of mode L or RGB in the middle of a square.

    Args:
        image: the image.
        side: the smallest side of the square, in pixels.
        most: the largest; an image whose longer side is between the two keeps its scale and decides. None: `side`.
    """
    most = side if most is None else most
    width, height = fitting(image.width, image.height, most)
    if (width, height) != image.size:
        image = image.resize((width, height), Image.Resampling.BILINEAR, reducing_gap=REDUCING_GAP)
    side = max(side, width, height)
    if (width, height) == (side, side):
        return image
    square = Image.new(image.mode, (side, side), border_colour(image))
    square.paste(image, margins(width, height, side))
    return square


def fitting(width: int, height: int, most: int) -> tuple[int, int]:
    """Width and height of an image after its longer side was brought to `most` pixels, if it was longer."""
    longer = max(width, height)
    if longer <= most:
        return width, height
    return max(1, round(width * most / longer)), max(1, round(height * most / longer))


def margins(width: int, height: int, side: int) -> tuple[int, int]:
    """Pixels to the left of and above an image in the middle of a square; an odd one more is right or below."""
    return (side - width) // 2, (side - height) // 2


def border_colour(image: Image.Image) -> int | tuple[int, ...]:
    """The median of each channel over the outermost pixels of an image, the lower one where two are in the middle.

    Not their mean: what is cut at one edge, or a frame around a part, would tint it.
    """
    pixels = np.asarray(image)
    pixels = pixels.reshape(*pixels.shape[:2], -1)
    rows, inner = pixels[:: max(1, len(pixels) - 1)], pixels[1:-1]
    columns = inner[:, :: max(1, pixels.shape[1] - 1)]
    border = np.concatenate([part.reshape(-1, pixels.shape[2]) for part in (rows, columns)])
    colour = tuple(int(value) for value in np.sort(border, axis=0)[(len(border) - 1) // 2])
    return colour[0] if len(colour) == 1 else colour


Box = tuple[float, float, float, float]

# Up to this size an image has no margin to spare: evaluation looks at all of it.
_SMALL = 64
_MARGIN = 1.143

# A picture of a padded image to draw on is not larger: a long image would need the square of its length.
_LARGEST_FRAME = 2048

_CROP_TRIES = 10


class Transform(Protocol):
    """Turns a decoded sample into a tensor; with a generator it may vary it, without it never does."""

    hint: int | None
    """Short side below which the tensor would be blown up: larger images may be decoded at a smaller size."""

    def __call__(self, sample: Any, rng: np.random.Generator | None = None) -> Tensor:
        """The tensor of one sample: (C, H, W)."""
        ...


class EvalTransform:
    """Resize the short side to `round(size * resize)` and cut the centre square of side `size`.

    Args:
        spec: what the model takes.
        resize: how much larger than the crop the short side is; None is what `spec.resize` says, else 1.143, or 1 for
            inputs of at most 64 pixels.
    """

    def __init__(self, spec: InputSpec, resize: float | None = None) -> None:
        self.spec = spec
        if resize is None and spec.resize is not None:
            resize = spec.resize / spec.size
        self.resize = resize if resize is not None else (1.0 if spec.size <= _SMALL else _MARGIN)
        if self.resize < 1.0:
            raise DataError(f"The resize factor of the centre crop must be at least 1, not {self.resize:g}.")
        self.hint: int | None = round(spec.size * self.resize)

    def __call__(self, sample: Image.Image, rng: np.random.Generator | None = None) -> Tensor:
        """The centre of the image, uint8 (C, size, size); `rng` is not used."""
        # Resizing and cropping are one step.
        return _resized(sample, self.box(sample.width, sample.height), self.spec)

    def box(self, width: int, height: int) -> Box:
        """Left, top, right and bottom of what the model sees of an image, in pixels of the image."""
        side = min(width, height) * self.spec.size / round(self.spec.size * self.resize)
        left, top = (width - side) / 2, (height - side) / 2
        return (left, top, left + side, top + side)

    def frame(self, image: Image.Image) -> tuple[Image.Image, Box]:
        """A picture to draw on, here the image itself, and the box of what the model sees in it."""
        return image, self.box(*image.size)


class PadTransform:
    """The whole image in the middle of a square of side `size`, never enlarged, its border's colour around it.

    Args:
        spec: what the model takes.
    """

    def __init__(self, spec: InputSpec) -> None:
        self.spec = spec
        self.hint: int | None = spec.size

    def __call__(self, sample: Image.Image, rng: np.random.Generator | None = None) -> Tensor:
        """The image and what is around it, uint8 (C, size, size); `rng` is not used."""
        return _tensor(padded(_in_mode(sample, self.spec), self.spec.size), self.spec)

    def box(self, width: int, height: int) -> Box:
        """Left, top, right and bottom of what the model sees, in pixels of the image: padding lies outside of it."""
        size = self.spec.size
        w, h = fitting(width, height, size)
        left, top = margins(w, h, size)
        across, down = width / w, height / h
        return (-left * across, -top * down, (size - left) * across, (size - top) * down)

    def frame(self, image: Image.Image) -> tuple[Image.Image, Box]:
        """A picture to draw on, the image with its padding, and the box of what the model sees in it: all."""
        picture = padded(_plain(image), self.spec.size, _LARGEST_FRAME)
        return picture, (0, 0, *picture.size)


class TrainTransform:
    """Random resized crop: a random box of random area and aspect ratio, resized to the square the model takes.

    Of an input that is padded, it is a crop of the padded image.

    Args:
        spec: what the model takes.
        scale: smallest and largest share of the image's area.
        ratio: narrowest and widest aspect ratio, width / height.
    """

    def __init__(
        self, spec: InputSpec, scale: tuple[float, float] = (0.2, 1.0), ratio: tuple[float, float] = (3 / 4, 4 / 3)
    ) -> None:
        if not 0.0 < scale[0] <= scale[1] <= 1.0 or not 0.0 < ratio[0] <= ratio[1]:
            raise DataError(f"A random crop needs an ascending scale in (0, 1] and ratio, not {scale} and {ratio}.")
        self.spec = spec
        self.scale = scale
        self.ratio = ratio
        # The shortest side of the smallest box, as a share of the image's short side.
        smallest = math.sqrt(scale[0] / max(ratio[1], 1 / ratio[0]))
        self.hint: int | None = math.ceil(spec.size / smallest)

    def __call__(self, sample: Image.Image, rng: np.random.Generator | None = None) -> Tensor:
        """A crop of the image, uint8 (C, size, size); without `rng` the largest centred one."""
        if self.spec.fit == "pad":
            # Shrunk to what the smallest crop needs: a long image would need the square of its length.
            sample = padded(_in_mode(sample, self.spec), self.spec.size, self.hint)
        if rng is None:
            box = central_box(sample.width, sample.height, self.ratio)
        else:
            box = random_box(sample.width, sample.height, self.scale, self.ratio, rng)
        return _resized(sample, box, self.spec)


def random_box(
    width: int, height: int, scale: tuple[float, float], ratio: tuple[float, float], rng: np.random.Generator
) -> Box:
    """Left, top, right and bottom of a random crop, drawn as torchvision's RandomResizedCrop does.

    The area is uniform in `scale`, the logarithm of the aspect ratio uniform in that of `ratio`; after ten draws that
    do not fit, it is the largest centred box of an allowed ratio.
    """
    lowest, highest = math.log(ratio[0]), math.log(ratio[1])
    for _ in range(_CROP_TRIES):
        area = width * height * rng.uniform(*scale)
        aspect = math.exp(rng.uniform(lowest, highest))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            top, left = int(rng.integers(height - h + 1)), int(rng.integers(width - w + 1))
            return (left, top, left + w, top + h)
    return central_box(width, height, ratio)


def central_box(width: int, height: int, ratio: tuple[float, float]) -> Box:
    """Left, top, right and bottom of the largest centred box whose aspect ratio is allowed."""
    w, h = width, height
    if width / height < ratio[0]:
        h = max(1, round(width / ratio[0]))
    elif width / height > ratio[1]:
        w = max(1, round(height * ratio[1]))
    left, top = (width - w) // 2, (height - h) // 2
    return (left, top, left + w, top + h)


def plain_view(spec: InputSpec) -> EvalTransform | PadTransform:
    """What evaluation, and whoever uses a model, sees of an image."""
    return PadTransform(spec) if spec.fit == "pad" else EvalTransform(spec)


def transform_for(spec: InputSpec, section: DataSection | None, train: bool, items: Dataset | None = None) -> Transform:
    """The transform of single samples that fits the input and the recipe's data section.

    Without a section it is what use and evaluation see, of a recording all that the model takes; with one, audio is cut
    to the recipe's length.

    Args:
        spec: what the model takes.
        section: the recipe's data section.
        train: whether a generator may vary the samples.
        items: the training items, whose recordings may become the noise in others.
    """
    if spec.kind == "audio":
        if section is None:
            return LogMelTransform(spec, whole=True)
        augment = AudioAugment(section.audio, items) if train and section.audio.augments else None
        return LogMelTransform(spec, section.audio_seconds, augment=augment)
    section = section or DataSection()
    if train and section.crop == "random":
        return with_size(TrainTransform(spec, section.crop_scale, section.crop_ratio), spec)
    return with_size(plain_view(spec), spec)


def with_size(transform: Transform, spec: InputSpec) -> Transform:
    """The transform itself, or one that adds the size of the image where the input has it."""
    return transform if spec.size_feature is None else SizedTransform(transform, spec)


class SizedTransform:
    """What another transform gives, as float32 in [0, 1], and two planes more: ln width and ln height of the image.

    Args:
        inner: gives the pixels (C, H, W).
        spec: says where the size is known from.
    """

    def __init__(self, inner: Transform, spec: InputSpec) -> None:
        self.inner = inner
        self.spec = spec
        self.hint = inner.hint

    def __call__(self, sample: Image.Image, rng: np.random.Generator | None = None) -> Tensor:
        """The tensor (C + 2, H, W) of an image."""
        return add_size(_unit(self.inner(sample, rng)), self.size(sample))

    def size(self, image: Image.Image) -> tuple[float, float]:
        """Width and height of an image before anything was done to it, or what the manifest says in their place."""
        if self.spec.size_feature == "pixels":
            found: tuple[float, float] = image.info.get(ORIGINAL_SIZE, image.size)
            return found
        names = cast(tuple[str, str], self.spec.size_feature)
        if ROW not in image.info:
            raise DataError(
                f"The model knows sizes from the columns {names[0]} and {names[1]} of a manifest, and this image is of "
                "none: give a data set with them, or train with model.size_feature: pixels."
            )
        manifest, row = image.info[ROW]
        told = [str(manifest.column(name)[row]) for name in names]
        try:
            width, height = map(float, told)
        except ValueError:
            width = height = math.nan
        if not (0 < width < math.inf and 0 < height < math.inf):
            raise DataError(
                f"{manifest.paths[row]} has {names[0]}={told[0]!r} and {names[1]}={told[1]!r} in the manifest, which "
                "must be sizes above 0: correct them, or set model.size_feature to pixels."
            )
        return width, height


def add_size(pixels: Tensor, size: tuple[float, float]) -> Tensor:
    """Pixels (..., C, H, W) with two planes more, which hold ln width and ln height everywhere."""
    logs = pixels.new_tensor([math.log(side) for side in size]).view(2, 1, 1)
    planes = logs.expand(*pixels.shape[:-3], 2, *pixels.shape[-2:])
    return torch.cat([pixels, planes], dim=-3)


def statistics_of(spec: InputSpec) -> tuple[Tensor, Tensor]:
    """Mean and std of an input, to be broadcast over (B, C, H, W): of each channel, or of each mel band."""
    shape = (1, 1, -1, 1) if spec.is_measured else (1, -1, 1, 1)
    return torch.tensor(spec.mean).view(shape), torch.tensor(spec.std).view(shape)


class Normalise(nn.Module):
    """Bring a batch to float32 and to the statistics the model was made for: (x - mean) / std.

    Args:
        spec: gives mean and std.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, spec: InputSpec) -> None:
        super().__init__()
        # Not part of the weights: they are in the spec, which is saved beside them.
        mean, std = statistics_of(spec)
        self.register_buffer("mean", mean, persistent=False)
        self.register_buffer("std", std, persistent=False)

    def forward(self, batch: Tensor) -> Tensor:
        """Normalise (B, C, H, W): uint8 in [0, 255] or float in [0, 1], for audio float log-mel values."""
        channels = self.mean.shape[1]
        if batch.ndim == 4 and batch.shape[1] > channels:  # what is beyond them is a size
            return torch.cat([self(batch[:, :channels]), batch[:, channels:]], dim=1)
        # (x - mean) / std as one multiply-add: one pass over the batch instead of two.
        return torch.addcmul(-self.mean / self.std, _unit(batch), 1.0 / self.std)


class BatchAugment(nn.Module):
    """Flip, colour-jitter and rotate a training batch, normalise it, then erase; the same step gives the same result.

    Args:
        spec: what the model takes.
        flip: mirror half of the images left to right.
        jitter: strengths of brightness, contrast, saturation and hue; grey images ignore the last two.
        seed: with the step, decides every draw; the global random state is left as it was.
        rotation: largest angle in degrees, to either side; what comes in at the corners mirrors the image.
        erase: share of the images of which a random rectangle gets the mean colour, which is 0 after normalisation.
    """

    def __init__(
        self,
        spec: InputSpec,
        flip: bool = True,
        jitter: tuple[float, float, float, float] | None = None,
        seed: int = 0,
        rotation: float = 0.0,
        erase: float = 0.0,
    ) -> None:
        super().__init__()
        jitter = jitter if jitter is not None and any(jitter) else None
        if spec.kind == "audio" and (flip or jitter or rotation or erase):
            raise DataError("Flips, colour jitter, rotation and erasing are for images: turn them off for audio.")
        self.seed = seed
        self.erase = erase
        self.normalise = Normalise(spec)
        self.augmentations = nn.Sequential()
        if not (flip or jitter or rotation):
            return
        kornia = require("kornia.augmentation", "train")
        if flip:
            self.augmentations.append(kornia.RandomHorizontalFlip(p=0.5))
        if jitter:
            strengths = jitter if spec.channels == 3 else (*jitter[:2], 0.0, 0.0)
            self.augmentations.append(kornia.ColorJitter(*strengths, p=1.0))
        if rotation:
            self.augmentations.append(kornia.RandomAffine(rotation, padding_mode="reflection", p=1.0))

    @classmethod
    def for_section(cls, spec: InputSpec, section: DataSection, seed: int = 0) -> BatchAugment:
        """The augmentation a recipe asks for; audio is only normalised."""
        if spec.kind == "audio":
            return cls(spec, flip=False, seed=seed, rotation=section.rotation, erase=section.erase)
        light = section.jitter
        colour = light if section.colour is None else section.colour
        return cls(spec, section.flip, (light, light, colour, colour / 4), seed, section.rotation, section.erase)

    def forward(self, batch: Tensor, step: int, first: int = 0, whole: int | None = None) -> Tensor:
        """Augment and normalise (B, C, H, W), uint8 or float in [0, 1], as float32 of the same shape.

        Args:
            batch: a batch, or the slice of one that this process has.
            step: with the seed, decides the draws.
            first: where in the whole batch the slice begins.
            whole: items in the whole batch; None: those given. Draws are made for all of them, so a slice is augmented
                as it would be among the others.
        """
        channels = self.normalise.mean.shape[1]
        if batch.ndim == 4 and batch.shape[1] > channels:  # what is beyond them is a size
            return torch.cat([self(batch[:, :channels], step, first, whole), batch[:, channels:]], dim=1)
        if not len(self.augmentations) and not self.erase:
            return self.normalise(batch)
        count = len(batch) if whole is None else whole
        seed = int(np.random.SeedSequence([self.seed, step]).generate_state(1, np.uint64)[0])
        with torch.random.fork_rng([batch.device] if batch.is_cuda else []):
            torch.manual_seed(seed)
            pixels = _unit(batch)
            for augmentation in self.augmentations:
                draws = augmentation.forward_parameters(torch.Size((count, *batch.shape[1:])))  # type: ignore[operator]
                ours = {
                    name: value if name in _OF_THE_BATCH else value[first : first + len(batch)]
                    for name, value in draws.items()
                }
                pixels = augmentation(pixels, params=ours)
            inputs: Tensor = self.normalise(pixels)
            if not self.erase:
                return inputs
            mask = erased(count, batch.shape[2], batch.shape[3], self.erase)[first:][: len(batch)]
            return inputs.masked_fill(mask.to(batch.device), 0)


_OF_THE_BATCH = ("order", "forward_input_shape")
"""Draws of kornia that are not one an item."""

_ERASED_AREA, _ERASED_RATIO = (0.02, 1 / 3), (0.3, 1 / 0.3)
"""Share of the image, and height to width, of a rectangle that is erased (Zhong et al. 2020)."""


def erased(count: int, height: int, width: int, share: float) -> Tensor:
    """Where images are erased, bool (count, 1, height, width): a rectangle in a share of them, drawn by torch.

    The area is uniform, and so is the logarithm of the ratio; a side that would be too long is that of the image.
    """
    chosen, area, ratio, down, across = torch.rand(5, count, dtype=torch.float64)
    lowest, highest = (math.log(one) for one in _ERASED_RATIO)
    area = (_ERASED_AREA[0] + (_ERASED_AREA[1] - _ERASED_AREA[0]) * area) * height * width
    ratio = (lowest + (highest - lowest) * ratio).exp()
    rows = (area * ratio).sqrt().round().clamp(1, height)
    columns = (area / ratio).sqrt().round().clamp(1, width)
    inside = _between(height, down, rows)[:, :, None] & _between(width, across, columns)[:, None, :]
    return (inside & (chosen < share)[:, None, None])[:, None]


def _between(length: int, place: Tensor, size: Tensor) -> Tensor:
    """Which positions (n, length) lie in stretches of `size` (n,) whose place (n,) is a share of what is free."""
    first = (place * (length - size + 1)).floor()[:, None]
    positions = torch.arange(length)[None]
    return (positions >= first) & (positions < first + size[:, None])


def _unit(batch: Tensor) -> Tensor:
    """The batch as float32, pixels in [0, 1]."""
    return batch.to(torch.float32) / 255.0 if batch.dtype == torch.uint8 else batch.to(torch.float32)


def _resized(image: Image.Image, box: Box, spec: InputSpec) -> Tensor:
    """The box of the image as a uint8 tensor (C, size, size)."""
    size = (spec.size, spec.size)
    image = _in_mode(image, spec)
    return _tensor(image.resize(size, Image.Resampling.BILINEAR, box=box, reducing_gap=REDUCING_GAP), spec)


def _in_mode(image: Image.Image, spec: InputSpec) -> Image.Image:
    """The image grey for an input of one channel, else grey or in colour as it is."""
    return image.convert("L") if spec.channels == 1 else _plain(image)


def _plain(image: Image.Image) -> Image.Image:
    return image if image.mode in ("L", "RGB") else image.convert("RGB")


def _tensor(image: Image.Image, spec: InputSpec) -> Tensor:
    """An image of the input's size as a uint8 tensor (C, size, size)."""
    # Grey images become colour only now: one channel is resized instead of three.
    pixels = np.array(image if spec.channels == 1 else image.convert("RGB"))
    # The channels stay innermost in memory, as Pillow has them and as convolutions like them.
    return torch.from_numpy(pixels.reshape(spec.size, spec.size, spec.channels)).permute(2, 0, 1)
