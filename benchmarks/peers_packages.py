"""Which toolkits nearkin is compared with, and which of them are installed here.

Nothing is installed by the benchmark. `benchmarks/peers_requirements.txt` has what to add, to an environment apart.
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import torch


@dataclass(frozen=True)
class Package:
    """A toolkit.

    Args:
        name: what tables call it.
        distribution: its name on PyPI.
        module: what is imported.
        home: its documentation.
    """

    name: str
    distribution: str
    module: str
    home: str

    @property
    def version(self) -> str | None:
        """The installed version, or None."""
        try:
            return version(self.distribution)
        except PackageNotFoundError:
            return None


NEARKIN = Package("nearkin", "nearkin", "nearkin", "")
PML = Package(
    "PML",
    "pytorch-metric-learning",
    "pytorch_metric_learning",
    "https://kevinmusgrave.github.io/pytorch-metric-learning/",
)
OML = Package("OML", "open-metric-learning", "oml", "https://open-metric-learning.readthedocs.io/")
TORCHMETRICS = Package("torchmetrics", "torchmetrics", "torchmetrics", "https://lightning.ai/docs/torchmetrics/stable/")
FAISS = Package("faiss", "faiss-cpu", "faiss", "https://faiss.ai/")
SKLEARN = Package("scikit-learn", "scikit-learn", "sklearn", "https://scikit-learn.org/stable/")

TOOLKITS = (NEARKIN, PML, OML, TORCHMETRICS)
"""The columns of the table of features."""
MEASURED = (PML, OML, TORCHMETRICS, FAISS, SKLEARN)
"""Whom nearkin is timed against."""

_OPERATORS = ("nms", "qnms")


def missing(packages: tuple[Package, ...] = MEASURED) -> list[str]:
    """The distributions that are not installed."""
    return [package.distribution for package in packages if package.version is None]


def prepare_torchvision() -> str | None:
    """Make torchvision's Python part importable where its compiled part is not; says what was done, or None.

    OML and torchmetrics import torchvision. Its wheels on PyPI are built for CUDA, and beside a CPU build of torch
    their operators cannot be loaded; the import then stops at the first that it wants to describe. Declaring these
    lets the Python part load. Nothing that is measured calls them.
    """
    try:
        importlib.import_module("torchvision")
        return None
    except ModuleNotFoundError:
        return None
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    for name in _OPERATORS:
        _LIBRARY.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    importlib.import_module("torchvision")
    return "torchvision's compiled operators do not load beside this build of torch: declared, never called"


_LIBRARY = torch.library.Library("torchvision", "FRAGMENT")
