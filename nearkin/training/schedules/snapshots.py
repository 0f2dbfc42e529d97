"""Snapshots of the geometry: where some classes and their proxies lay at the end of each instance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from nearkin.storage import replacing
from nearkin.training.schedules.pool import Pool

_CLASSES = 10
_ITEMS = 50


class Snapshots:
    """A file an instance, with the same few items of the same few classes each time.

    Args:
        folder: where the files go.
        pool: the training items and the network.
    """

    def __init__(self, folder: Path, pool: Pool) -> None:
        self.folder = folder
        self._pool = pool
        self._classes = np.unique(np.linspace(0, pool.classes - 1, _CLASSES).round().astype(np.int64))
        self._items = np.unique(pool.draw(0, min(_ITEMS, int(pool.counts.max())))[self._classes])

    def take(self, instance: int, weights: Mapping[str, Tensor], converged: Tensor, following: np.ndarray) -> None:
        """Write where the items lie, the proxies that converged and those that follow, all raw and of one moment.

        Args:
            instance: its number.
            weights: the network's, for which the proxies converged.
            converged: proxies (C, K, d).
            following: positions (C, K) of the items that the next proxies start from.
        """
        with _having(self._pool.embedder, weights):
            tensors = {
                "points": self._pool.embed(self._items),
                "labels": torch.from_numpy(self._pool.class_ids[self._items]),
                "classes": torch.from_numpy(self._classes),
                "converged": converged[self._classes],
                "next": self._pool.embed(following[self._classes]),
            }
        with replacing(self.folder / f"{instance:04d}.safetensors") as temporary:
            save_file({name: value.cpu().contiguous() for name, value in tensors.items()}, temporary)


@contextmanager
def _having(module: nn.Module, weights: Mapping[str, Tensor]) -> Iterator[None]:
    """Inside the block the module has other weights."""
    own = module.state_dict()
    before = {name: own[name].clone() for name in weights}
    module.load_state_dict(weights, strict=False)
    try:
        yield
    finally:
        module.load_state_dict(before, strict=False)


def read_snapshots(folder: Path) -> list[dict[str, Tensor]]:
    """The snapshots of a run in order; none where there are none, and without those that cannot be read.

    Each has the tensors that `Snapshots.take` wrote, and as `instance` (a scalar) the number in its file's name.
    """
    numbered = {int(path.stem): path for path in folder.glob("*.safetensors") if path.stem.isdecimal()}
    found = {number: _read(numbered[number]) for number in sorted(numbered)}
    return [{**tensors, "instance": torch.tensor(number)} for number, tensors in found.items() if tensors is not None]


def _read(path: Path) -> dict[str, Tensor] | None:
    """The tensors of a snapshot; None if the file is damaged or another."""
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError):
        return None
    return tensors if _fit_together(tensors) else None


def _fit_together(tensors: Mapping[str, Tensor]) -> bool:
    """Whether they are all there, of the shapes that `Snapshots.take` gives them, and finite."""
    if not {"points", "labels", "classes", "converged", "next"} <= tensors.keys():
        return False
    points, labels, classes = (tensors[name] for name in ("points", "labels", "classes"))
    if points.dim() != 2 or labels.shape != points.shape[:1] or classes.dim() != 1:
        return False
    proxies = [tensors["converged"], tensors["next"]]
    return (
        all(part.dim() == 3 and part.shape[::2] == (len(classes), points.shape[1]) for part in proxies)
        and bool(torch.isin(labels, classes).all())
        and all(bool(part.isfinite().all()) for part in (points, *proxies))
    )
