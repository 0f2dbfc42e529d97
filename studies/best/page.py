"""The page of `run.py`: what its ledger says, as tables, a picture and sentences that follow from them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nearkin.metrics import class_bootstrap
from nearkin.metrics.retrieval import over_classes as over_classes_name
from nearkin.report.comparison import ComparisonRow, draw_comparison
from nearkin.storage import replacing
from studies.page_tables import table
from studies.paired_seeds import mean_interval
from studies.places import DOCS, IMAGES, book_folder

Rows = Sequence[dict[str, Any]]
Interval = tuple[float, float, float]
"""Mean and the ends of its 95 % interval."""

SEED_SEPARATE, SEED_CONCATENATED = 22.67, 28.02
"""C2+CCP-L on CUB with a fine-tuned BN-Inception (Gürbüz 2022, table 3.1): MAP@R at 128 and 512 dimensions."""

FOLDS = (1, 2, 3, 4)
UNTRAINED, TOGETHER, RERANKED = "untrained", "concatenated", "concatenated, re-ranked"
EARLIER = (
    ("CCP", "contrastive on cosines", "cub", "contrastive-cosine-ccp", "contrastive-cosine"),
    ("CCP", "multi-similarity", "cub", "multi-similarity-ccp", "multi-similarity"),
    (
        "CCP, rate 1e-4 for both",
        "multi-similarity",
        "cub",
        "multi-similarity-ccp, lr 1e-4",
        "multi-similarity, lr 1e-4",
    ),
    ("GSP + zero-shot loss", "proxy-anchor", "gsp-cub", "proxy-anchor + GSP + ZS", "proxy-anchor"),
    ("GSP + zero-shot loss", "multi-similarity", "gsp-cub", "multi-similarity + GSP + ZS", "multi-similarity"),
    ("attention", "ProxyNCA", "adversary-cub", "proxy-nca + GDFL", "proxy-nca"),
    ("attention + adversary", "ProxyNCA", "adversary-cub", "proxy-nca + Adapt-Adv", "proxy-nca"),
)
"""Parts that earlier books tried behind a frozen EfficientNet-Lite0: part, loss, book, candidate, without it."""

BY_CLASS = over_classes_name("MAP@R")

COMMANDS = {
    "cub": "python studies/ccp/run.py cub",
    "gsp-cub": "python studies/gsp/run.py cub",
    "adversary-cub": "python studies/adversary/run.py cub",
}

LARGEST = "efficientnet-lite2, 224 px", "efficientnet-lite2, 260 px"
LONGEST_TRIED = "multi-similarity, moving average, 480 steps"
PAGE = Path(__file__).with_suffix(".md")
"""The page, to be filled in by `page_text`."""


def per_class(rows: Rows, study: str, candidate: str, folds: Sequence[int | str]) -> dict[str, float]:
    """MAP@R of each class in percent; where several folds measured it, their mean."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if (row["study"], row["candidate"]) == (study, candidate) and row["fold"] in folds:
            for name, value in row["classes"].items():
                found.setdefault(name, []).append(100 * value)
    return {name: float(np.mean(values)) for name, values in sorted(found.items())}


def over_classes(values: dict[str, float]) -> Interval:
    """Mean over classes with its 95 % interval, classes drawn anew."""
    points = np.array(list(values.values()))
    return float(points.mean()), *class_bootstrap(points, np.array(list(values)))


def over_queries(rows: Rows, study: str, candidate: str, folds: Sequence[int | str]) -> float:
    """MAP@R as papers have it, the mean over queries, in percent; of several folds their mean."""
    return measured(rows, study, candidate, folds, "MAP@R")


def measured(rows: Rows, study: str, candidate: str, folds: Sequence[int | str], metric: str) -> float:
    """A metric in percent, the mean over queries and then over folds."""
    mine = [row for row in rows if (row["study"], row["candidate"]) == (study, candidate) and row["fold"] in folds]
    return 100 * float(np.mean([row[metric] for row in mine]))


def difference(ours: dict[str, float], theirs: dict[str, float]) -> Interval:
    """Mean difference over the classes that both have."""
    return over_classes({name: ours[name] - theirs[name] for name in sorted(set(ours) & set(theirs))})


def earlier(book: str, candidate: str, base: str) -> Interval:
    """What a part added to the validation MAP@R of an earlier book, over its four folds."""
    lines = (book_folder(book) / "ledger.jsonl").read_text(encoding="utf-8").splitlines()
    found: dict[tuple[str, int], float] = {}
    for row in map(json.loads, lines):
        if row["kind"] == "separate":
            found[row["recipe"], row["fold"]] = 100 * row["validation_MAP@R"]
    return mean_interval(np.array([found[candidate, fold] - found[base, fold] for fold in FOLDS]))


def plain(interval: Interval) -> str:
    mean, low, high = interval
    return f"{mean:.1f} ({low:.1f} to {high:.1f})"


def signed(interval: Interval) -> str:
    mean, low, high = interval
    return f"{mean:+.1f} ({low:+.1f} to {high:+.1f})"


def trunk_table(rows: Rows) -> str:
    """Raw features of each backbone."""
    names = [row["candidate"] for row in rows if row["study"] == "trunk"]
    first = per_class(rows, "trunk", names[0], (0,))
    lines = []
    for name in names:
        mine = per_class(rows, "trunk", name, (0,))
        against = "" if name == names[0] else signed(difference(mine, first))
        lines.append([name, f"{over_queries(rows, 'trunk', name, (0,)):.1f}", plain(over_classes(mine)), against])
    return table(["backbone", "MAP@R", BY_CLASS, f"difference to {names[0]}"], lines)


def study_table(rows: Rows, study: str, base: str, folds: Sequence[int]) -> str:
    """Candidates of a study on the validation classes, the best first, each against the base."""
    names = dict.fromkeys(row["candidate"] for row in rows if row["study"] == study)
    whole = {name: per_class(rows, study, name, folds) for name in names}
    ranked = sorted(names, key=lambda name: -np.mean(list(whole[name].values())))
    lines = []
    for name in ranked:
        mine = [row for row in rows if (row["study"], row["candidate"]) == (study, name) and row["fold"] in folds]
        if {row["fold"] for row in mine} != set(folds):
            continue
        against = "" if name == base else signed(difference(whole[name], whole[base]))
        steps = ", ".join(str(row["best step"]) for row in mine)
        seconds = np.mean([row["seconds"] for row in mine])
        mean = f"{over_queries(rows, study, name, folds):.1f}"
        lines.append([name, mean, plain(over_classes(whole[name])), against, steps, f"{seconds:.0f}"])
    return table(["candidate", "MAP@R", BY_CLASS, f"difference to {base}", "best step", "seconds a model"], lines)


def report_table(rows: Rows) -> str:
    """The chosen recipes on the test classes."""
    lines = []
    for name in ("best-frozen", "best"):
        raw = per_class(rows, "report", name, (UNTRAINED,))
        for what, folds in (("separate, 128 dimensions", FOLDS), ("concatenated, 512", (TOGETHER,)),
                            ("concatenated and re-ranked", (RERANKED,))):  # fmt: skip
            mine = per_class(rows, "report", name, folds)
            lines.append([f"`{name}`", what, f"{over_queries(rows, 'report', name, folds):.1f}",
                          plain(over_classes(mine)), signed(difference(mine, raw)),
                          f"{measured(rows, 'report', name, folds, 'P@1'):.1f}"])  # fmt: skip
    raw = per_class(rows, "report", "best", (UNTRAINED,))
    means = [f"{measured(rows, 'report', 'best', (UNTRAINED,), metric):.1f}" for metric in ("MAP@R", "P@1")]
    lines.append(["raw features", "1280", means[0], plain(over_classes(raw)), "", means[1]])
    return table(["recipe", "embedding", "MAP@R", BY_CLASS, "gain over raw features (classes)", "P@1"], lines)


def _one(rows: Rows, study: str, candidate: str, fold: int) -> dict[str, Any]:
    (row,) = (row for row in rows if (row["study"], row["candidate"], row["fold"]) == (study, candidate, fold))
    return row


def minutes(rows: Rows, name: str) -> float:
    """Of training one model."""
    mine = [
        row["seconds"] for row in rows if row["study"] == "report" and row["candidate"] == name and row["fold"] in FOLDS
    ]
    return float(np.mean(mine)) / 60


def parts_table(rows: Rows) -> str:
    """From raw features to the best: what each part adds on the test classes, and what it costs."""
    places: tuple[tuple[str, Sequence[int | str]], ...] = (
        ("best", (UNTRAINED,)),
        ("best-frozen", FOLDS),
        ("best", FOLDS),
        ("best", (TOGETHER,)),
        ("best", (RERANKED,)),
    )
    raw, frozen, one, four, again = (per_class(rows, "report", *place) for place in places)
    means = [f"{over_queries(rows, 'report', *place):.1f}" for place in places]
    steps = (
        ("a head of 128 dimensions (`best-frozen`)", frozen, raw, f"{minutes(rows, 'best-frozen'):.1f} a model"),
        ("upper stages that learn (`best`)", one, frozen, f"{minutes(rows, 'best'):.1f} a model"),
        ("four models together", four, one, f"{4 * minutes(rows, 'best'):.0f} in all"),
        ("k-reciprocal re-ranking", again, four, "no training"),
    )
    lines = [["raw features, 1280 dimensions", means[0], plain(over_classes(raw)), "", "none"]]
    lines += [
        [what, mean, plain(over_classes(mine)), signed(difference(mine, before)), cost]
        for mean, (what, mine, before, cost) in zip(means[1:], steps, strict=True)
    ]
    return table(["part", "MAP@R", BY_CLASS, "adds (classes)", "minutes of training"], lines)


def picture(rows: Rows) -> bytes:
    """Every embedding of the report with its interval, and the seed's two numbers."""
    shown = []
    for name in ("best-frozen", "best"):
        for what, folds in (("one model", FOLDS), ("four together", (TOGETHER,)), ("four, re-ranked", (RERANKED,))):
            values = tuple(value / 100 for value in over_classes(per_class(rows, "report", name, folds)))
            shown.append(ComparisonRow(f"{name}, {what}", name, {BY_CLASS: values}))
    raw = tuple(value / 100 for value in over_classes(per_class(rows, "report", "best", (UNTRAINED,))))
    shown.append(ComparisonRow("raw features", "", {BY_CLASS: raw}))
    for what, value in (("one model", SEED_SEPARATE), ("four together", SEED_CONCATENATED)):
        shown.append(ComparisonRow(f"Gürbüz 2022, {what}", "", {BY_CLASS: (value / 100, math.nan, math.nan)}))
    return draw_comparison(shown, BY_CLASS)


def earlier_table() -> str:
    """What parts added behind a frozen EfficientNet-Lite0, by the validation folds of earlier books."""
    lines = [
        [part, loss, signed(earlier(book, name, base)), f"`{COMMANDS[book]}`"]
        for part, loss, book, name, base in EARLIER
    ]
    return table(["part", "with", "MAP@R of validation classes, points", "command"], lines)


def page_text(rows: Rows) -> str:
    """The whole page."""
    single, together, again = (per_class(rows, "report", "best", folds) for folds in (FOLDS, (TOGETHER,), (RERANKED,)))
    frozen = per_class(rows, "report", "best-frozen", FOLDS)
    return PAGE.read_text(encoding="utf-8").format(
        single=plain(over_classes(single)),
        together=plain(over_classes(together)),
        again=plain(over_classes(again)),
        tuned=signed(difference(single, frozen)),
        gathered=signed(difference(together, single)),
        query_single=f"{over_queries(rows, 'report', 'best', FOLDS):.1f}",
        query_together=f"{over_queries(rows, 'report', 'best', (TOGETHER,)):.1f}",
        query_again=f"{over_queries(rows, 'report', 'best', (RERANKED,)):.1f}",
        short=f"{SEED_SEPARATE - over_queries(rows, 'report', 'best', FOLDS):.1f}",
        short_together=f"{SEED_CONCATENATED - over_queries(rows, 'report', 'best', (TOGETHER,)):.1f}",
        seed_separate=SEED_SEPARATE,
        seed_concatenated=SEED_CONCATENATED,
        longest=100 * _one(rows, "report", "best", 1)["validation MAP@R"],
        shorter=100 * _one(rows, "upper", LONGEST_TRIED, 1)["MAP@R"],
        report=report_table(rows),
        parts=parts_table(rows),
        trunk=trunk_table(rows),
        head=study_table(rows, "head", "proxy-anchor", (1,)),
        upper=study_table(rows, "upper", "proxy-anchor", (1,)),
        earlier=earlier_table(),
        smaller=signed(difference(*(per_class(rows, "trunk", name, (0,)) for name in LARGEST))),
    )


def write_page(rows: Rows) -> None:
    """Write docs/results/best.md and its picture."""
    for path, content in (
        (DOCS / "results" / "best.md", page_text(rows).encode()),
        (IMAGES / "best.png", picture(rows)),
    ):
        with replacing(path) as temporary:
            temporary.write_bytes(content)
