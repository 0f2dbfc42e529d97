"""Speed of judging: retrieval metrics, exact search, verification and calibration, each beside whoever has it."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import faiss
import numpy as np
import torch
from peers_cases import OURS, Case
from peers_packages import OML, TORCHMETRICS
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from retrieval import BUDGET_MB, DIMENSIONS, SEED, around_centres, clustered, ours, pml
from sklearn.metrics import roc_curve
from sklearn.neighbors import NearestNeighbors
from torch import Tensor

from nearkin.metrics import calibration_from_probabilities, retrieval_metrics, verification_from_scores
from nearkin.search import exact

TWO = ("P@1", "R-precision")
"""What PML, OML and torchmetrics all define alike, where every class has as many items."""
MIXED = {"6,000 items, 100 classes": (6_000, 100, False), "20,000 items, 20 classes": (20_000, 20, True)}
EVEN = {"6,000 items, 100 classes of one size": (6_000, 100), "1,000 items, 20 classes of one size": (1_000, 20)}
PAIRWISE = 1_000
"""How many items torchmetrics is asked for: it takes the scores of all pairs."""
SEARCH = {"queries": 2_000, "items": 50_000, "k": 10}
TRIALS = 1_000_000
ANSWERS, CLASSES, BINS = 100_000, 100, 15

Metrics = dict[str, float]


def cases() -> list[Case]:
    """The comparisons that the installed packages allow."""
    return [*_mixed(), *_even(), _search(), _verification(), *_calibration()]


# ---------------------------------------------------------------- retrieval metrics


def _mixed() -> list[Case]:
    found = []
    for size, (items, classes, large) in MIXED.items():
        x, labels = clustered(items, classes)
        contenders = {OURS: partial(ours, x, labels), "PML": partial(pml, x, labels)}
        found.append(Case("metrics", f"P@1, R-precision, MAP@R: {size}", contenders, _near(2e-5), large=large))
    return found


def _even() -> list[Case]:
    found = []
    for size, (items, classes) in EVEN.items():
        generator = torch.Generator().manual_seed(SEED)
        labels = torch.arange(items) % classes
        x = around_centres(labels, classes, generator)
        contenders: dict[str, Callable[[], Metrics]] = {
            OURS: partial(_ours_two, x, labels),
            "PML": partial(_pml_two, x, labels),
        }
        if OML.version:
            contenders["OML"] = partial(_oml_two, x, labels, items // classes - 1)
        if TORCHMETRICS.version and items <= PAIRWISE:
            contenders["torchmetrics"] = partial(_torchmetrics_two, x, labels)
        found.append(Case("metrics", f"P@1, R-precision: {size}", contenders, _near(2e-5)))
    return found


def _ours_two(x: Tensor, labels: Tensor) -> Metrics:
    return retrieval_metrics(x, labels, metrics=TWO, memory_mb=BUDGET_MB).values


def _pml_two(x: Tensor, labels: Tensor) -> Metrics:
    wanted = ("precision_at_1", "r_precision")
    found = AccuracyCalculator(include=wanted, k="max_bin_count").get_accuracy(x, labels)
    return dict(zip(TWO, (found[name] for name in wanted), strict=True))


def _oml_two(x: Tensor, labels: Tensor, relevant: int) -> Metrics:
    from oml.functional.knn import batched_knn
    from oml.functional.metrics import calc_retrieval_metrics

    everybody = torch.arange(len(x))
    _, found, truth = batched_knn(x, everybody, everybody, top_n=relevant, labels_gt=labels)
    told = calc_retrieval_metrics(
        found, truth, cmc_top_k=(1,), precision_top_k=(relevant,), map_top_k=(), verbose=False
    )
    return dict(zip(TWO, (float(told["cmc"][1]), float(told["precision"][relevant])), strict=True))


def _torchmetrics_two(x: Tensor, labels: Tensor) -> Metrics:
    from torchmetrics.retrieval import RetrievalPrecision, RetrievalRPrecision

    n = len(x)
    others = ~torch.eye(n, dtype=torch.bool)
    scores = (x @ x.T)[others]
    relevant = (labels.unsqueeze(1) == labels)[others]
    queries = torch.arange(n).unsqueeze(1).expand(n, n)[others]
    told = []
    for metric in (RetrievalPrecision(top_k=1), RetrievalRPrecision()):
        metric.update(scores, relevant, indexes=queries)
        told.append(float(metric.compute()))
    return dict(zip(TWO, told, strict=True))


# ---------------------------------------------------------------- search, verification, calibration


def _search() -> Case:
    generator = torch.Generator().manual_seed(SEED)
    x = torch.randn(SEARCH["queries"], DIMENSIONS, generator=generator)
    y = torch.randn(SEARCH["items"], DIMENSIONS, generator=generator)
    k = SEARCH["k"]
    flat = faiss.IndexFlatL2(DIMENSIONS)
    flat.add(y.numpy())
    brute = NearestNeighbors(n_neighbors=k, algorithm="brute").fit(y.numpy())
    contenders: dict[str, Callable[[], np.ndarray]] = {
        OURS: lambda: exact(x, y, k, space="euclidean", memory_mb=BUDGET_MB)[1].numpy(),
        "faiss": lambda: flat.search(x.numpy(), k)[1],
        "scikit-learn": lambda: brute.kneighbors(x.numpy(), return_distance=False),
    }
    if OML.version:
        contenders["OML"] = partial(_oml_search, x, y, k)
    what = f"exact {k}-NN: {SEARCH['queries']:,} queries in {SEARCH['items']:,} items"
    return Case("search", what, contenders, partial(_as_near, x.double().numpy(), y.double().numpy()))


def _as_near(x: np.ndarray, y: np.ndarray, mine: np.ndarray, theirs: np.ndarray) -> bool:
    """Whether neighbours (q, k) lie as near as others do, in double precision: near ties may change places."""
    ours, others = (np.linalg.norm(x[:, None] - y[found], axis=2) for found in (mine, theirs))
    return bool(np.allclose(ours, others, rtol=1e-5, atol=0))


def _oml_search(x: Tensor, y: Tensor, k: int) -> np.ndarray:
    from oml.functional.knn import batched_knn_qg

    return torch.stack(list(batched_knn_qg(x, y, top_n=k)[1])).numpy()


def _verification() -> Case:
    rng = np.random.default_rng(SEED)
    same = rng.random(TRIALS) < 0.1
    scores = (1 / (1 + np.exp(-rng.normal(loc=2.0 * same)))).astype(np.float32)
    contenders: dict[str, Callable[[], float]] = {
        OURS: lambda: verification_from_scores(scores, same).values["EER"],
        "scikit-learn": lambda: _equal_error(*roc_curve(same, scores, drop_intermediate=False)[:2]),
    }
    if TORCHMETRICS.version:
        contenders["torchmetrics"] = partial(_torchmetrics_error, torch.from_numpy(scores), torch.from_numpy(same))
    note = "ours gives ROC-AUC, TPR at FPRs, minDCF and the DET curve as well"
    return Case("metrics", f"equal error rate: {TRIALS:,} scored pairs", contenders, _close(1e-4), note=note)


def _equal_error(accepted: np.ndarray, hits: np.ndarray) -> float:
    missed = 1 - hits
    place = int(np.abs(missed - accepted).argmin())
    return float(missed[place] + accepted[place]) / 2


def _torchmetrics_error(scores: Tensor, same: Tensor) -> float:
    from torchmetrics.functional.classification import binary_eer

    return float(binary_eer(scores, same.long()))


def _calibration() -> list[Case]:
    if not TORCHMETRICS.version:
        return []
    generator = torch.Generator().manual_seed(SEED)
    probabilities = torch.softmax(2 * torch.randn(ANSWERS, CLASSES, generator=generator), dim=1)
    targets = torch.multinomial(probabilities.sqrt(), 1, generator=generator).squeeze(1)
    contenders: dict[str, Callable[[], float]] = {
        OURS: lambda: calibration_from_probabilities(probabilities, targets, bins=BINS).values["ECE"],
        "torchmetrics": partial(_torchmetrics_calibration, probabilities, targets),
    }
    note = "ours gives adaptive ECE, MCE, NLL, Brier and AURC as well"
    what = f"calibration error: {ANSWERS:,} answers, {CLASSES} classes"
    return [Case("metrics", what, contenders, _close(1e-4), note=note)]


def _torchmetrics_calibration(probabilities: Tensor, targets: Tensor) -> float:
    from torchmetrics.functional.classification import multiclass_calibration_error

    return float(multiclass_calibration_error(probabilities, targets, num_classes=CLASSES, n_bins=BINS))


# ---------------------------------------------------------------- agreement


def _near(tolerance: float) -> Callable[[Any, Any], bool]:
    return lambda mine, theirs: all(math.isclose(mine[name], theirs[name], abs_tol=tolerance) for name in theirs)


def _close(tolerance: float) -> Callable[[float, float], bool]:
    return lambda mine, theirs: math.isclose(mine, theirs, abs_tol=tolerance)
