"""Fitting NED's temperature against a grid search, and predicting against scikit-learn's KNeighborsClassifier.

    python benchmarks/confidence.py            the table (about two minutes); writes benchmarks/confidence.json
    python benchmarks/confidence.py --check    exit code 0 only if every bar holds
    python benchmarks/confidence.py --quick    under a minute; bars that do not fit are printed as not checked

Contenders take turns in one run, each counts by its best round. Neighbours are given to both sides, so only what is
done with them is timed, the checks of the input among it.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import sklearn
import torch
from bars import kept
from sklearn.neighbors import KNeighborsClassifier

from nearkin.confidence import NED
from nearkin.search import exact

SEED = 0
POINTS = 10_000
K = 200
DIMENSIONS = 128
NOISE = 1.5
"""Standard deviation of a class around its centre, where centres have 1."""
FIT_CLASSES = 1000
PUBLISHED: dict[str, Any] = {"criterion": "likelihood", "widening": 0.0}
"""What the peers compute: NED as its paper has it."""
GRID = np.geomspace(1e-3, 10.0, 100)
"""The peer's grid of temperatures."""
FINE = np.exp(np.arange(-0.15, 0.15, 0.0005))
"""The fine grid, as multiples of the peer's best temperature."""
PREDICT_CLASSES = (100, 1000)
FIT_ROUNDS = {"full": 9, "quick": 7}
PREDICT_ROUNDS = {"full": {100: 5, 1000: 3}, "quick": {100: 1, 1000: 1}}
RESULT = kept("confidence.json")

BARS: dict[str, tuple[str, str, float]] = {
    "fit seconds": ("fitting T on 10,000 points, k = 200: seconds", "<=", 1.0),
    "fit over grid": ("fitting T: time of a 100-point grid search in NumPy / ours", ">=", 20.0),
    "fit error": ("fitting T: |T - optimum of a fine grid| / optimum, in percent", "<=", 1.0),
    "predict 100": ("predicting 10,000 queries, 100 classes: scikit-learn's time / ours", ">=", 5.0),
    "predict 1000": ("predicting 10,000 queries, 1,000 classes: scikit-learn's time / ours", ">=", 5.0),
}


def clustered(classes: int) -> tuple[torch.Tensor, np.ndarray]:
    """Unit vectors (n, d) around class centres, and their labels (n,)."""
    generator = torch.Generator().manual_seed(SEED)
    labels = torch.randint(classes, (POINTS,), generator=generator)
    centres = torch.randn(classes, DIMENSIONS, generator=generator)
    noise = torch.randn(POINTS, DIMENSIONS, generator=generator)
    return torch.nn.functional.normalize(centres[labels] + NOISE * noise, dim=1), labels.numpy()


def likelihoods(distances: np.ndarray, positive: np.ndarray, temperatures: np.ndarray) -> np.ndarray:
    """The peer: mean log-likelihood of every temperature, in plain NumPy, float64."""
    kept = positive.any(axis=1)
    squares, positive = distances[kept].astype(np.float64) ** 2, positive[kept]
    squares -= squares.min(axis=1, keepdims=True)
    found = []
    for temperature in temperatures:
        weights = np.exp(-squares / temperature)
        shares = (weights * positive).sum(axis=1) / weights.sum(axis=1)
        found.append(np.log(np.maximum(shares, 1e-12)).mean())
    return np.array(found)


def best_times(contenders: dict[str, Callable[[], Any]], rounds: int) -> tuple[dict[str, float], dict[str, Any]]:
    """Seconds of each contender's best round, and what it gave."""
    times = dict.fromkeys(contenders, float("inf"))
    given: dict[str, Any] = {}
    for _ in range(rounds):
        for name, call in contenders.items():
            began = time.perf_counter()
            given[name] = call()
            times[name] = min(times[name], time.perf_counter() - began)
    return times, given


def measure_fit(rounds: int) -> dict[str, float]:
    points, labels = clustered(FIT_CLASSES)
    neighbours = exact(points, k=K)
    distances, indices = (part.numpy() for part in neighbours)
    positive = labels[indices] == labels[:, None]
    times, given = best_times(
        {
            "ours": lambda: NED(k=K, **PUBLISHED).fit(points, labels, neighbours=neighbours).temperature_,
            "grid": lambda: GRID[np.argmax(likelihoods(distances, positive, GRID))],
        },
        rounds,
    )
    fine = given["grid"] * FINE
    optimum = fine[np.argmax(likelihoods(distances, positive, fine))]
    return {
        "fit seconds": times["ours"],
        "grid seconds": times["grid"],
        "fit over grid": times["grid"] / times["ours"],
        "temperature": given["ours"],
        "fine grid": optimum,
        "fit error": 100 * abs(given["ours"] - optimum) / optimum,
    }


class Injected(KNeighborsClassifier):
    """scikit-learn's classifier with its neighbours given instead of searched for."""

    def kneighbors(self, X: Any = None, n_neighbors: Any = None, return_distance: bool = True) -> Any:
        return self.injected


def measure_predict(classes: int, rounds: int) -> dict[str, float]:
    points, labels = clustered(classes)
    distances, indices = exact(points, k=K)
    ned = NED(k=K, **PUBLISHED).fit(points, labels, neighbours=(distances, indices))
    peer = Injected(n_neighbors=K, weights="distance").fit(points.numpy(), labels)
    peer.injected = (distances.numpy(), indices.numpy())
    times, _ = best_times(
        {
            "ours": lambda: ned.predict_proba(distances, indices).labels,
            "scikit-learn": lambda: peer.predict(points.numpy()),
        },
        rounds,
    )
    return {
        f"predict {classes} seconds": times["ours"],
        f"scikit-learn {classes} seconds": times["scikit-learn"],
        f"predict {classes}": times["scikit-learn"] / times["ours"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="fail unless every bar that was checked holds")
    parser.add_argument("--quick", action="store_true", help="fewer rounds; nothing is written")
    arguments = parser.parse_args()
    size = "quick" if arguments.quick else "full"
    figures = measure_fit(FIT_ROUNDS[size])
    for classes in PREDICT_CLASSES:
        figures |= measure_predict(classes, PREDICT_ROUNDS[size][classes])
    print("\n| what | measured | bar | |\n|---|---|---|---|")
    holds = True
    for name, (meaning, sign, bar) in BARS.items():
        met = figures[name] <= bar if sign == "<=" else figures[name] >= bar
        holds &= met
        print(f"| {meaning} | {figures[name]:.3g} | {sign} {bar:g} | {'holds' if met else 'FAILS'} |")
    machine = {
        "cpu": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "scikit-learn": sklearn.__version__,
    }
    if not arguments.quick:
        RESULT.write_text(json.dumps({"machine": machine, "figures": figures, "bars": BARS}, indent=2) + "\n")
    print(
        f"\nfitting T takes {1000 * figures['fit seconds']:.0f} ms, {figures['fit over grid']:.0f} x faster than the "
        f"grid and {figures['fit error']:.2f} % from its optimum; predicting is {figures['predict 100']:.0f} x and "
        f"{figures['predict 1000']:.0f} x faster than scikit-learn at 100 and 1,000 classes"
    )
    return 1 if arguments.check and not holds else 0


if __name__ == "__main__":
    sys.exit(main())
