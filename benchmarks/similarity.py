"""What a learned similarity costs: all pairs of queries and items against concatenating them, and a search's memory.

    python benchmarks/similarity.py            the table (a few minutes); writes benchmarks/similarity.json
    python benchmarks/similarity.py --check    exit code 0 only if all bars hold
    python benchmarks/similarity.py --quick    about a minute: fewer rounds and queries, nothing is written
    python benchmarks/similarity.py --json F   writes the result to F instead

Scoring: 1,000 queries with 20,000 items, 128 numbers each, by a network of 512 hidden units, of either form. The peer
repeats both embeddings of every pair (a concatenation puts them side by side) and lets the network have blocks of them;
of a few sizes of block it takes the one that was fastest for it. A second peer without a bar computes the first layer
once for every embedding, and then is the network again: of a concatenation it adds what both sides give, of a
difference it has |g(a) - g(b)| and g(a) g(b). Peers run over the first of the queries, and their time is scaled to all
of them, as each costs the same; ours runs over all, and computes the sides in every round. All must agree to 1e-5.
Contenders take turns in one process, and figures are ratios of medians.

Memory: the most that `search.exact` takes beside its inputs, with one budget, for 20,000 and for 100,000 items; each in
a process of its own, after a small search.
"""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

from nearkin.allocator import tune_allocator

tune_allocator()  # as the nearkin command does, before anything is imported that starts threads

import torch
from bars import in_turns, kept, tell, write
from torch import Tensor
from torch.nn import functional

from nearkin.models.similarity import Form, LearnedSpace, PairSimilarity
from nearkin.search import exact
from nearkin.spaces import Euclidean

SEED = 0
QUERIES, ITEMS, MANY_ITEMS, DIMENSION, HIDDEN, NEAREST = 1000, 20_000, 100_000, 128, 512, 10
PEER_QUERIES = {"full": 50, "quick": 10}
"""Queries that the peers run over in a round."""
PEER_PAIRS = (500, 2_000, 10_000, 50_000)
"""Pairs in a block, of which the peer takes the fastest."""
ROUNDS = {"full": 5, "quick": 1}
AGREEMENT = 1e-5
BUDGET_MB = 64
MB = 2**20
CONCATENATED, ADDED = "concatenated pairs", "first layer added"
PAIRS, SHARED = "pairs, each embedding again", "first layer shared"
SCORING, DIFFERENCE, MEMORY = "scoring", "difference", "memory"
FORMS: dict[str, tuple[Form, str, str]] = {
    SCORING: ("concatenation", CONCATENATED, ADDED),
    DIFFERENCE: ("difference", PAIRS, SHARED),
}
"""Key of a figure to the form it is of, and what its peers are called."""
BARS: dict[str, tuple[str, str, float]] = {
    SCORING: (f"scoring {QUERIES:,} x {ITEMS:,}: concatenating pairs / ours", ">=", 8.0),
    DIFFERENCE: (f"scoring {QUERIES:,} x {ITEMS:,} by differences: pair after pair / ours", ">=", 8.0),
    MEMORY: (f"peak extra memory of a search, {MANY_ITEMS:,} / {ITEMS:,} items", "<=", 1.25),
}
RESULT = kept("similarity.json")


def network(form: Form = "concatenation") -> PairSimilarity:
    """A network with random weights."""
    torch.manual_seed(SEED)
    return PairSimilarity(DIMENSION, HIDDEN, form=form).eval()


def points(number: int, seed: int) -> Tensor:
    """Random embeddings (n, d)."""
    return torch.randn(number, DIMENSION, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def concatenated(similarity: PairSimilarity, queries: Tensor, items: Tensor, pairs: int) -> Tensor:
    """Similarities (q, n), both embeddings of every pair through the network."""
    scores = torch.empty(len(queries), len(items))
    for row, query in enumerate(queries):
        for start in range(0, len(items), pairs):
            some = items[start : start + pairs]
            scores[row, start : start + pairs] = similarity(some, query.repeat(len(some), 1))
    return scores


@torch.no_grad()
def added(similarity: PairSimilarity, queries: Tensor, items: Tensor, pairs: int) -> Tensor:
    """Similarities (q, n), what both sides give to the first layer computed once."""
    of_items, of_queries = similarity.first.weight.split(DIMENSION, dim=1)
    left, right = queries @ of_queries.T, items @ of_items.T + similarity.first.bias
    scores = torch.empty(len(queries), len(items))
    for row, query in enumerate(left):
        for start in range(0, len(items), pairs):
            hidden = functional.leaky_relu(right[start : start + pairs] + query, similarity.slope)
            scores[row, start : start + pairs] = similarity.second(hidden)[:, 0]
    return scores


@torch.no_grad()
def shared(similarity: PairSimilarity, queries: Tensor, items: Tensor, pairs: int) -> Tensor:
    """Similarities (q, n) by differences, what each embedding gives computed once."""
    left, right = similarity.first(queries), similarity.first(items)
    apart, together = similarity.second.weight.split(HIDDEN, dim=1)
    scores = torch.empty(len(queries), len(items))
    for row, query in enumerate(left):
        for start in range(0, len(items), pairs):
            some = right[start : start + pairs]
            one = functional.linear((some - query).abs(), apart, similarity.second.bias)
            scores[row, start : start + pairs] = one[:, 0] + ((some * query) @ together[0])
    return scores


def ours(similarity: PairSimilarity, queries: Tensor, items: Tensor) -> Tensor:
    """Similarities (q, n) by sides, which are computed too."""
    sides = similarity.taken_apart()
    return sides.scores(sides.of_queries(queries), sides.of_enrolled(items))


def measure_scoring(key: str, mode: str, figures: dict[str, float], table: list[dict[str, Any]]) -> None:
    """Time one form against its two peers."""
    form, *names = FORMS[key]
    similarity, queries, items = network(form), points(QUERIES, 1), points(ITEMS, 2)
    some = queries[: PEER_QUERIES[mode]]
    peers: dict[str, Any] = {}
    for name, peer in zip(names, (concatenated, added if key == SCORING else shared), strict=True):
        tried = {pairs: partial(peer, similarity, some[:4], items, pairs) for pairs in PEER_PAIRS}
        times = in_turns({str(pairs): run for pairs, run in tried.items()}, 2, warm=1)
        best = min(PEER_PAIRS, key=lambda pairs: min(times[str(pairs)]))
        peers[f"{name}, {best:,} at once"] = partial(peer, similarity, some, items, best)
    contenders = {"ours": partial(ours, similarity, queries, items), **peers}
    expected = contenders["ours"]()[: len(some)]
    gap = max(float((run() - expected).abs().max()) for run in peers.values())
    if gap > AGREEMENT:
        raise SystemExit(f"The contenders do not give the same similarities: they differ by {gap:.2g}.")
    times = in_turns(contenders, ROUNDS[mode], warm=0)
    seconds = {name: median(each) * (1 if name == "ours" else QUERIES / len(some)) for name, each in times.items()}
    for figure, name in zip((key, names[1]), peers, strict=True):
        figures[figure] = seconds[name] / seconds["ours"]
    figures["gap"] = max(gap, figures.get("gap", 0.0))
    for name, value in seconds.items():
        table.append({"case": f"{form}, {QUERIES:,} x {ITEMS:,}", "contender": name, "seconds": value})


def search(items: int) -> None:
    """The nearest of so many items."""
    space = LearnedSpace(Euclidean(), network())
    exact(points(QUERIES, 1), points(items, 2), NEAREST, space=space, memory_mb=BUDGET_MB)


def peak_memory(items: int) -> tuple[float, float]:
    """Seconds and peak extra MB of a search, in a fresh process."""
    context = get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_measure_memory, args=(there, items))
    process.start()
    answer: tuple[float, float] = here.recv()
    process.join()
    return answer


def _measure_memory(pipe: Connection, items: int) -> None:
    space, x, y = LearnedSpace(Euclidean(), network()), points(QUERIES, 1), points(items, 2)
    exact(x[:64], y[:256], NEAREST, space=space, memory_mb=BUDGET_MB)  # threads and libraries are there before
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts from here
    before = _status("VmRSS")
    began = time.perf_counter()
    exact(x, y, NEAREST, space=space, memory_mb=BUDGET_MB)
    pipe.send((time.perf_counter() - began, (_status("VmHWM") - before) / MB))


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:"))


def measure_memory(figures: dict[str, float], table: list[dict[str, Any]]) -> None:
    for items in (ITEMS, MANY_ITEMS):
        seconds, figures[f"{items} MB"] = peak_memory(items)
        table.append({"case": f"search {QUERIES:,} x {items:,}", "contender": "ours", "seconds": seconds})
    figures[MEMORY] = figures[f"{MANY_ITEMS} MB"] / figures[f"{ITEMS} MB"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="fail unless all bars hold")
    parser.add_argument("--quick", action="store_true", help="about a minute: fewer rounds, nothing is written")
    parser.add_argument("--json", type=Path, default=None, metavar="F", help="where to write the result")
    arguments = parser.parse_args()
    mode = "quick" if arguments.quick else "full"
    figures: dict[str, float] = {}
    table: list[dict[str, Any]] = []
    for key in FORMS:
        measure_scoring(key, mode, figures, table)
    measure_memory(figures, table)
    print(f"\n{'case':32} {'contender':40} {'':>12}")
    for row in table:
        print(f"{row['case']:32} {row['contender']:40} {row['seconds']:10.2f} s")
    print()
    holds = tell(BARS, figures)
    path = arguments.json or (None if arguments.quick else RESULT)
    if path is not None:
        write(path, BARS, figures, table)
    little, much = figures[f"{ITEMS} MB"], figures[f"{MANY_ITEMS} MB"]
    print(
        f"\nA search takes {little:.0f} MB for {ITEMS:,} items and {much:.0f} MB for {MANY_ITEMS:,}; "
        f"scoring all pairs is {figures[SCORING]:.1f} x as fast as concatenating them, "
        f"{figures[ADDED]:.1f} x as adding the first layer's terms; by differences {figures[DIFFERENCE]:.1f} x and "
        f"{figures[SHARED]:.1f} x"
    )
    return 1 if arguments.check and not holds else 0


if __name__ == "__main__":
    sys.exit(main())
