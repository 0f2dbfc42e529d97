"""What stands for each training class in a finished run: the proxies that its best weights were trained with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from nearkin.errors import RunError
from nearkin.storage import replacing

_FILE = "classes.safetensors"
_FORMAT = "nearkin.classes"


@dataclass(frozen=True, eq=False)
class RunProxies:
    """Proxies of a run.

    Attributes:
        names: of the C training classes.
        proxies: points of the model's space, float32 (C, d), in the order of the names.
    """

    names: tuple[str, ...]
    proxies: np.ndarray


def write_class_vectors(folder: Path, names: Sequence[str], proxies: Tensor) -> None:
    """Keep the proxies (C, d) of the named classes in a run's directory."""
    metadata = {"format": _FORMAT, "names": json.dumps(list(names))}
    with replacing(folder / _FILE) as temporary:
        save_file({"proxies": proxies.detach().float().cpu().contiguous()}, temporary, metadata=metadata)


def read_class_vectors(folder: Path) -> RunProxies | None:
    """What `write_class_vectors` kept; None where the run's loss had no proxies.

    Raises:
        RunError: the file is damaged.
    """
    path = folder / _FILE
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as handle:
            metadata = handle.metadata() or {}
            names = tuple(map(str, json.loads(metadata["names"])))
            proxies = handle.get_tensor("proxies").to(torch.float32).numpy()
        whole = metadata.get("format") == _FORMAT and proxies.ndim == 2 and len(proxies) == len(names)
    except (OSError, SafetensorError, KeyError, ValueError, TypeError):
        whole = False
    if not whole:
        raise RunError(f"{path} is damaged: remove it to go on without the run's proxies, or train again.")
    return RunProxies(names, proxies)
