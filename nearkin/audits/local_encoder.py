"""The local features of a model: what it pools, in the coordinates of its embeddings."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from nearkin.data.dataset import Dataset
from nearkin.models import Embedder, Encoder
from nearkin.models.items import ItemLoader
from nearkin.progress import Progress

_ITEMS = 64
"""Items whose maps are held at once."""


@dataclass(frozen=True, eq=False)
class LocalFeatures:
    """What a model pools.

    Args:
        features: (r, n, d) float32, the positions of a map row by row.
        grid: how many rows and columns of positions a map has; n is their product.
        attributes: (r, M) float32, where the pooling gives attributes.
    """

    features: Tensor
    grid: tuple[int, int]
    attributes: Tensor | None


class LocalEncoder:
    """A model on the items of one data set, stopped before the pooling.

    A linear head behind the pooling is applied to each local feature: it is affine, so the mean of what it gives is
    what it gives for the mean. Not so where the pooling does not keep the coordinates of the map, or where attention
    comes between: the head then takes more than the pooled vector.

    Args:
        embedder: the model.
        dataset: the items.
    """

    def __init__(self, embedder: Embedder, dataset: Dataset) -> None:
        self.embedder = embedder
        self.dataset = dataset
        self._encoder: Encoder | None = None

    @property
    def pooling(self) -> str:
        """The name of the model's own pooling."""
        config = self.embedder.pooling.config
        return type(self.embedder.pooling).__name__ if config is None else config["name"]

    @property
    def through_head(self) -> bool:
        """Whether a linear head is applied to each local feature."""
        return isinstance(self.embedder.head, nn.Linear) and self._pooled_alike

    @property
    def in_coordinates(self) -> bool:
        """Whether local features and embeddings, before these are projected, have the same coordinates."""
        return self.through_head or (isinstance(self.embedder.head, nn.Identity) and self._pooled_alike)

    @property
    def _pooled_alike(self) -> bool:
        """Whether what the head takes has the coordinates of a local feature; an equal size alone does not tell."""
        pooling = self.embedder.pooling
        alike = pooling.keeps_coordinates and pooling.out_channels == pooling.channels
        return alike and self.embedder.attention is None

    def __call__(self, rows: np.ndarray, *, progress: bool = False) -> LocalFeatures:
        """The local features of the items `rows` (r,), r >= 1."""
        features, attributes, grid = torch.empty(0), [], (0, 0)
        with Progress("Local features", len(rows), progress) as bar:
            for start in range(0, len(rows), _ITEMS):
                some = rows[start : start + _ITEMS]
                found, grid, given = self._of(some)
                if start == 0:
                    features = found.new_empty(len(rows), *found.shape[1:])
                features[start : start + len(some)] = found
                attributes += given
                bar.advance(len(some))
        return LocalFeatures(features, grid, torch.cat(attributes) if attributes else None)

    @torch.inference_mode()
    def _of(self, rows: np.ndarray) -> tuple[Tensor, tuple[int, int], list[Tensor]]:
        """Local features (r, n, d), the grid, and attributes (r, M) in a list, which is empty without any."""
        last = self.embedder.backbone.stage_names[-1]
        if self._encoder is None:
            self._encoder = Encoder(self.embedder, at=last)
        model = self._encoder.embedder
        maps = torch.from_numpy(self._encoder.encode(self.dataset.select(rows), progress=False))
        local = model.local_features(maps.to(self._encoder.device), start=last)
        given = [model.pooling.with_attributes(local)[1].float().cpu()] if model.pooling.gives_attributes else []
        positions = local.flatten(2).transpose(1, 2)
        features = model.head(positions) if self.through_head else positions
        return features.float().cpu(), (local.shape[2], local.shape[3]), given

    def view(self, row: int) -> Image.Image:
        """The image of an item as the model sees it: resized and cropped."""
        sample = ItemLoader(self.embedder.spec).of_dataset(self.dataset, row)
        pixels = sample.permute(1, 2, 0).numpy()
        return Image.fromarray(pixels if pixels.shape[2] == 3 else pixels[:, :, 0])
