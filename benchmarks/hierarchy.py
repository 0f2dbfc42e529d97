"""What measures against a class tree cost: HS@250 and AHS@250 against a loop over queries, and mean correlation.

    python benchmarks/hierarchy.py            the table (about two minutes); writes benchmarks/hierarchy.json
    python benchmarks/hierarchy.py --check    exit code 0 only if all bars hold
    python benchmarks/hierarchy.py --quick    half a minute: fewer rounds and looped queries, nothing is written
    python benchmarks/hierarchy.py --json F   writes the result to F instead

Similarity: both sides are given 20,000 embeddings of 128 numbers, their classes and the distances of a tree of 100
classes in 20 groups of 5, and give HS@250 and AHS@250 of every query. The loop is written in numpy, one query at a
time, and keeps the contract of ours, the order of double precision with equal distances by index: a product of the
matrix with the query, a stable argsort, the best order by sorting the similarities of all others, sums and the
trapezoid rule. Every query must agree to 1e-9. Three loops that keep less have no bar: with an argsort that leaves
ties anyhow, the same in single precision, and the leanest, which looks for the 250 nearest by argpartition, sorts
only these and is given the best sums of each class; their means over queries must agree to 1e-6. Loops run over a
fixed sample of queries, and their time is scaled to all of them, as each costs the same. Contenders take turns in one
process, and figures are ratios of medians. Mean correlation: 1,000 classes in 50 groups, the tree against distances
of random points.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from nearkin.allocator import tune_allocator

tune_allocator()  # as the nearkin command does, before anything is imported that starts threads

import numpy as np
from bars import in_turns, kept, tell, write

from nearkin.data.hierarchy import Hierarchy
from nearkin.metrics.hierarchy import best_sums, class_distance_matrix, hierarchical_similarity, mean_correlation

SEED = 0
IMAGES, CLASSES, GROUPS, DIMENSION, DEPTH = 20_000, 100, 20, 128, 250
LOOPED = {"full": 1000, "quick": 200}
"""Queries that the loop runs over in a round."""
ROUNDS = {"full": 7, "quick": 3}
AGREEMENT, EXACTLY = 1e-6, 1e-9
MANY_CLASSES, MANY_GROUPS = 1000, 50
SIMILARITY = f"HS@{DEPTH} and AHS@{DEPTH}"
LOOP, DOUBLE, SINGLE, LEANEST = "loop", "loop, ties anyhow", "loop in single precision", "leanest loop"
LESSER = (DOUBLE, SINGLE, LEANEST)
CORRELATION = "mean correlation"
BARS: dict[str, tuple[str, str, float]] = {
    SIMILARITY: (f"{SIMILARITY} of {IMAGES:,} images, {CLASSES} classes: loop over queries / ours", ">=", 30.0),
    CORRELATION: (f"mean correlation of {MANY_CLASSES:,} classes, seconds", "<=", 1.0),
}
RESULT = kept("hierarchy.json")


def tree_distances(classes: int, groups: int) -> np.ndarray:
    """Path distances (C, C) of classes in groups."""
    names = [f"class {number}" for number in range(classes)]
    return Hierarchy.from_paths({name: [f"group {row % groups}"] for row, name in enumerate(names)}).distances(names)


def embeddings() -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors (n, d) of overlapping classes that lie nearer to their own group, and class numbers (n,)."""
    rng = np.random.default_rng(SEED)
    groups = rng.normal(size=(GROUPS, DIMENSION)) * 0.3
    centres = groups[np.arange(CLASSES) % GROUPS] + rng.normal(size=(CLASSES, DIMENSION)) * 0.3
    labels = rng.permutation(np.arange(IMAGES) % CLASSES)
    points = (centres[labels] + rng.normal(size=(IMAGES, DIMENSION))).astype(np.float32)
    return points / np.linalg.norm(points, axis=1, keepdims=True), labels


def by_stable_sorting(scores: np.ndarray) -> np.ndarray:
    """The nearest (250,) by sorting all scores (n,), equal ones by index."""
    return np.argsort(-scores, kind="stable")[:DEPTH]


def by_sorting(scores: np.ndarray) -> np.ndarray:
    """The nearest (250,) by sorting all scores (n,), equal ones anyhow."""
    return np.argsort(-scores)[:DEPTH]


def by_parting(scores: np.ndarray) -> np.ndarray:
    """The same by sorting these alone."""
    near = np.argpartition(scores, -DEPTH)[-DEPTH:]
    return near[np.argsort(-scores[near])]


def looped(
    points: np.ndarray,
    labels: np.ndarray,
    tree: np.ndarray,
    queries: np.ndarray,
    nearest: Callable[[np.ndarray], np.ndarray],
) -> np.ndarray:
    """HS@250 and AHS@250 (q, 2) of some queries."""
    similarities = 1 - (tree / (1 + tree)) ** 2
    found = np.empty((len(queries), 2))
    for place, query in enumerate(queries):
        scores = points @ points[query]
        scores[query] = -np.inf
        near = nearest(scores)
        similar = similarities[labels[query]][labels]
        reached = similar[near].cumsum()
        similar[query] = 0.0
        curve = reached / np.sort(similar)[: -DEPTH - 1 : -1].cumsum()
        found[place] = curve[-1], (curve.sum() - (curve[0] + curve[-1]) / 2) / (DEPTH - 1)
    return found


def leanly_looped(points: np.ndarray, labels: np.ndarray, tree: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """HS@250 and AHS@250 (q, 2) of some queries, with no more work than it takes."""
    similarities = 1 - (tree / (1 + tree)) ** 2
    best = best_sums(similarities, np.bincount(labels), DEPTH)
    found = np.empty((len(queries), 2))
    for place, query in enumerate(queries):
        scores = points @ points[query]
        scores[query] = -np.inf
        curve = similarities[labels[query]][labels[by_parting(scores)]].cumsum() / best[labels[query]]
        found[place] = curve[-1], (curve.sum() - (curve[0] + curve[-1]) / 2) / (DEPTH - 1)
    return found


def ours(points: np.ndarray, labels: np.ndarray, tree: np.ndarray) -> np.ndarray:
    """HS@250 and AHS@250 (n, 2) of all queries."""
    result = hierarchical_similarity(points, labels, tree, at=(DEPTH,), area=DEPTH)
    return np.stack(list(result.per_query.values()), axis=1)


def measure_similarity(mode: str, figures: dict[str, float], table: list[dict[str, Any]]) -> None:
    points, labels = embeddings()
    tree = tree_distances(CLASSES, GROUPS)
    queries = np.random.default_rng(SEED).choice(IMAGES, LOOPED[mode], replace=False)
    exact = points.astype(np.float64)
    exact /= np.linalg.norm(exact, axis=1, keepdims=True)
    contenders = {
        "ours": partial(ours, points, labels, tree),
        LOOP: partial(looped, exact, labels, tree, queries, by_stable_sorting),
        DOUBLE: partial(looped, exact, labels, tree, queries, by_sorting),
        SINGLE: partial(looped, points, labels, tree, queries, by_sorting),
        LEANEST: partial(leanly_looped, points, labels, tree, queries),
    }
    found = {name: run() for name, run in contenders.items()}
    expected = found["ours"][queries]
    gaps = {name: float(np.abs(found[name].mean(axis=0) - expected.mean(axis=0)).max()) for name in LESSER}
    gap = float(np.abs(found[LOOP] - expected).max())
    if gap > EXACTLY or max(gaps.values()) > AGREEMENT:
        raise SystemExit(f"The contenders do not measure the same: queries differ by {gap:.2g}, means by {gaps}.")
    times = in_turns(contenders, ROUNDS[mode], warm=1)
    seconds = {name: median(each) * (1 if name == "ours" else IMAGES / len(queries)) for name, each in times.items()}
    figures[SIMILARITY] = seconds[LOOP] / seconds["ours"]
    figures |= {name: seconds[name] / seconds["ours"] for name in LESSER}
    for name, value in seconds.items():
        table.append({"case": f"{SIMILARITY}, {IMAGES:,} images", "contender": name, "seconds": value})


def measure_correlation(mode: str, figures: dict[str, float], table: list[dict[str, Any]]) -> None:
    tree = tree_distances(MANY_CLASSES, MANY_GROUPS)
    points = np.random.default_rng(SEED).normal(size=(MANY_CLASSES, DIMENSION))
    learned = class_distance_matrix(points)
    times = in_turns({"ours": partial(mean_correlation, tree, learned)}, ROUNDS[mode], warm=1)
    figures[CORRELATION] = median(times["ours"])
    case = f"{CORRELATION}, {MANY_CLASSES:,} classes"
    table.append({"case": case, "contender": "ours", "seconds": figures[CORRELATION]})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="fail unless all bars hold")
    parser.add_argument("--quick", action="store_true", help="half a minute: fewer rounds, nothing is written")
    parser.add_argument("--json", type=Path, default=None, metavar="F", help="where to write the result")
    arguments = parser.parse_args()
    mode = "quick" if arguments.quick else "full"
    figures: dict[str, float] = {}
    table: list[dict[str, Any]] = []
    measure_similarity(mode, figures, table)
    measure_correlation(mode, figures, table)
    print(f"\n{'case':44} {'contender':24} {'':>12}")
    for row in table:
        print(f"{row['case']:44} {row['contender']:24} {row['seconds']:10.3f} s")
    print()
    holds = tell(BARS, figures)
    path = arguments.json or (None if arguments.quick else RESULT)
    if path is not None:
        write(path, BARS, figures, table)
    print(
        f"\nSimilarity to the tree is {figures[SIMILARITY]:.1f} x as fast as a loop with the same answers, "
        f"{figures[SINGLE]:.1f} x as one in single precision, {figures[LEANEST]:.1f} x as the leanest; mean "
        f"correlation takes {figures[CORRELATION]:.3f} s"
    )
    return 1 if arguments.check and not holds else 0


if __name__ == "__main__":
    sys.exit(main())
