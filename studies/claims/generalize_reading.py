"""How the claims of Gürbüz' thesis read our ledgers: books over classes, other studies over seeds."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from studies.claims.claim import Compared, Evidence, Table
from studies.claims.kept_book import KeptBook, kept_book
from studies.paired_seeds import mean_interval, paired_differences
from studies.places import located

KINDS = ("separate", "concatenated")
CUB_LINEAR = (
    "CUB-200-2011 at 192 px by the fair protocol, one seed: a linear head of 128 dimensions on a frozen "
    "EfficientNet-Lite0, where theirs is a BN-Inception that is trained as a whole."
)
NO_DATA = "the data of {} is not here"
SOP_SHOP_CARS = "Stanford Online Products, In-shop and Cars196"
Pairs = Sequence[tuple[str, str]]


def ledger(name: str) -> list[dict[str, Any]]:
    """The lines of a study's ledger."""
    return _lines(f"studies/{name}/ledger.jsonl")


def _lines(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in located(path).read_text(encoding="utf-8").splitlines()]


def if_kept(path: str, lines: int, evidence: Callable[[], Evidence], command: str, cost: str) -> dict[str, Any]:
    """How a claim is tested, once a study has kept that many lines; until then that it was not run, and its cost."""
    file = located(path)
    if file.exists() and len(file.read_text(encoding="utf-8").splitlines()) >= lines:
        return {"evidence": evidence, "command": command}
    return {"why_not": f"not run: `{command}`, {cost}."}


def if_timed(evidence: Callable[[], Evidence]) -> dict[str, Any]:
    """How a claim is tested by the cases of `ccp_gsp_costs`."""
    return if_kept(
        "benchmarks/ccp_gsp_costs.jsonl", 3, evidence, "python benchmarks/ccp_gsp_costs.py", "half a minute on one core"
    )


def rounds_of(case: str) -> dict[str, list[float]]:
    """Contender to its rounds, of a case of `ccp_gsp_costs`."""
    return next(line["rounds"] for line in _lines("benchmarks/ccp_gsp_costs.jsonl") if line["case"] == case)


# ---------------------------------------------------------------- books: paired over classes


def book_table(book: KeptBook, names: Iterable[str], metric: str = "MAP@R", kinds: Sequence[str] = KINDS) -> Table:
    """Values of candidates in percent, with their 95 % intervals over classes."""
    head = ["", *(metric if kind == "separate" else f"{metric}, folds concatenated" for kind in kinds)]
    return Table(head, [[name, *(book.told(name, metric, kind) for kind in kinds)] for name in names])


def gains(
    name: str,
    pairs: Pairs | Callable[[KeptBook], Pairs],
    *,
    kinds: Sequence[str] = KINDS,
    metric: str = "MAP@R",
    above: float | None = None,
    below: float | None = None,
) -> Evidence:
    """Of each pair the first against the second in points; without `above` and `below` the claim is a gain."""
    book = kept_book(name)
    found = pairs(book) if callable(pairs) else pairs
    compared = [
        book.compared(first, second, metric=metric, kind=kind, above=above, below=below, digits=2)
        for first, second in found
        for kind in kinds
    ]
    names = dict.fromkeys(candidate for pair in found for candidate in pair)
    return Evidence(compared, book_table(book, names, metric, kinds))


def gain(name: str, pairs: Pairs | Callable[[KeptBook], Pairs], **how: Any) -> partial[Evidence]:
    """The same, to be computed when a claim asks for it."""
    return partial(gains, name, pairs, **how)


def bootstrap(what: str, figure: Callable[[np.ndarray], float], classes: int, **expected: Any) -> Compared:
    """A figure of classes (rows of their numbers), with the 95 % interval that resampled classes give."""
    rng = np.random.default_rng(0)
    drawn = [figure(rng.integers(classes, size=classes)) for _ in range(2000)]
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Compared(what, figure(np.arange(classes)), float(low), float(high), **expected)


def relative_gains(name: str, pairs: Pairs) -> Evidence:
    """How much more of itself MAP@R gains than P@1, in percent of the baseline; single models, over classes."""
    book = kept_book(name)
    compared, rows = [], []
    for first, second in pairs:
        values = {
            metric: [np.array(list(book.per_class(each, metric).values())) for each in (first, second)]
            for metric in ("MAP@R", "P@1")
        }

        def relative(metric: str, drawn: np.ndarray, values: dict[str, list[np.ndarray]] = values) -> float:
            ours, theirs = (column[drawn].mean() for column in values[metric])
            return 100 * float(ours / theirs - 1)

        what = f"{first} against {second}, relative gain of MAP@R minus that of P@1, percent"
        compared.append(
            bootstrap(what, lambda d, r=relative: r("MAP@R", d) - r("P@1", d), len(book.classes), above=0.0)
        )
        everything = np.arange(len(book.classes))
        rows.append([f"{first} against {second}", *(f"{relative(m, everything):+.1f} %" for m in ("MAP@R", "P@1"))])
    return Evidence(compared, Table(["", "relative gain of MAP@R", "of P@1"], rows))


# ---------------------------------------------------------------- other studies: paired over seeds


def by_seed(lines: Iterable[Mapping[str, Any]], measure: str, **place: Any) -> dict[int, float]:
    """Seed to a measure, of the lines at a place such as `variant="CCP"`."""
    return {
        line["seed"]: line[measure]
        for line in lines
        if all(line[key] == value for key, value in place.items()) and line[measure] is not None
    }


def over_seeds(what: str, values: np.ndarray, *, scale: float = 1.0, digits: int = 1, **expected: Any) -> Compared:
    """The mean of values (m,), and its 95 % interval by Student's t."""
    mean, low, high = (scale * number for number in mean_interval(np.asarray(values, dtype=np.float64)))
    return Compared(what, mean, low, high, digits=digits, **expected)


def paired(what: str, first: Mapping[int, float], second: Mapping[int, float], **shown: Any) -> Compared:
    """The first minus the second, seed by seed."""
    return over_seeds(what, paired_differences(first, second), **shown)


def seed_table(head: str, rows: Mapping[str, Sequence[Iterable[float]]], measures: Sequence[str], form: str) -> Table:
    """A row a variant, a column a measure: mean and range over seeds."""

    def told(values: Iterable[float]) -> str:
        found = list(values)
        if not found:
            return "–"
        mean, low, high = (format(number, form) for number in (sum(found) / len(found), min(found), max(found)))
        return f"{mean} ({low} to {high})"

    return Table([head, *measures], [[name, *map(told, columns)] for name, columns in rows.items()])
