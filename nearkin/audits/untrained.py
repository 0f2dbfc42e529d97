"""What items look like before anything is learned: as pixels, and to a network of random weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from PIL import Image

from nearkin.data.dataset import Dataset
from nearkin.models import Embedder
from nearkin.models.build import assemble
from nearkin.progress import track
from nearkin.spaces import Euclidean, Sphere

INPUT, NORMALISED = "input space", "normalised input space"
_SIDE = 32


class Untrained:
    """Views of reference items that no training had a part in.

    Args:
        embedder: the model under audit, whose architecture the random network takes.
        dataset: the reference items: those that a model of seen classes was trained on, else the audited ones.
        baseline: gives the untrained features (n, F) of all reference items, or None; called at most once.
        progress: whether to show bars.
    """

    def __init__(
        self,
        embedder: Embedder,
        dataset: Dataset,
        baseline: Callable[[], np.ndarray | None],
        progress: bool = True,
    ) -> None:
        self.labels = dataset.labels
        self.baseline = baseline
        self._embedder = embedder
        self._dataset = dataset
        self._progress = progress

    @property
    def has_pixels(self) -> bool:
        """Whether the items are images."""
        return self._dataset.kind == "image"

    def pixel_prototypes(self, groups: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """The mean image of each class, (C, 3072), and the mean direction of its images, by the name of the space.

        Args:
            groups: rows of each class; images are 32 x 32 RGB, from 0 to 1.
        """
        means: dict[str, list[torch.Tensor]] = {INPUT: [], NORMALISED: []}
        # Class by class: the pixels of all items together may not fit in memory.
        for rows in track(groups, "Averaging pixels", len(groups), self._progress):
            pixels = torch.from_numpy(np.stack([_pixels(self._dataset.image(int(row))) for row in rows]))
            means[INPUT].append(Euclidean().mean(pixels))
            means[NORMALISED].append(Sphere().mean(pixels))
        return {name: torch.stack(found).numpy() for name, found in means.items()}

    def random_network(self, rows: np.ndarray, seed: int) -> np.ndarray:
        """Embeddings (r, d) of items by the model's architecture with weights drawn by a seed."""
        network = assemble(self._embedder.architecture(), pretrained=False, seed=seed)
        return network.eval().encode(self._dataset.select(rows), progress=self._progress)


def _pixels(image: Image.Image) -> np.ndarray:
    small = image.convert("RGB").resize((_SIDE, _SIDE))
    return np.asarray(small, dtype=np.float32).ravel() / 255.0
