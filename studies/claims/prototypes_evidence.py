"""What the ledgers of unified, robustness and similarity_attacks say of the claims in `prototypes.py`.

Differences are in points, paired by seed, on PACS by domain; where the right answers were kept there is a second
interval over what was tested, and a claim needs both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from studies.claims.claim import Compared, Evidence, Table
from studies.paired_seeds import half_width, paired_differences, paired_t
from studies.robustness import run as robustness
from studies.robustness.parts import LEARNED_AT, SOFTMAX_AT
from studies.robustness.parts import SEEDS as ATTACK_SEEDS
from studies.similarity_attacks import run as similarity_attacks
from studies.unified import run as unified
from studies.unified.claims import DOL, OWN, SIM
from studies.unified.measures import RECALLS, SCORES, SETTINGS
from studies.unified.parts import ANCHOR, DOMAINS, LEARNED, NO_AUXILIARY, SOFTMAX
from studies.unified.stats import (
    MARGIN,
    Cells,
    Claim,
    Side,
    cells_of,
    item_interval,
    of_differences,
    run_values,
    seed_means,
    unit_differences,
)

Lines = Sequence[Mapping[str, Any]]
AS_GOOD = -100 * MARGIN
"""What "as good" may be below, in points."""
STRONG = 0.3
"""Epsilon of the paper's MNIST and of our Fashion-MNIST."""
FASHION_ATTACKS = tuple(f"{name} {STRONG:g}" for name in ("FGSM (1)", "PGD (40)", "PGD (100)"))
CIFAR_ATTACKS = tuple(similarity_attacks.ATTACKS)
_TESTED = {"speakers": "speakers", "cub": "classes", "omniglot": "episodes"}
"""What an interval over what was tested draws, where it is not single images."""


@cache
def unified_lines() -> Lines:
    """Finished models of unified/run.py."""
    return unified.read_ledger()


@cache
def attack_lines(data: str) -> Lines:
    """Finished models that were attacked: of Fashion-MNIST ("fashion") or of CIFAR-100 ("cifar")."""
    if data == "cifar":
        return similarity_attacks.read_ledger()
    return [line for line in robustness.read_ledger() if line["part"] == data]


def attacked(data: str, cells: Sequence[str]) -> bool:
    """Whether every seed of these models is there."""
    found = {(line["cell"], line["seed"]) for line in attack_lines(data)}
    return all((cell, seed) in found for cell in cells for seed in ATTACK_SEEDS)


def compare(
    part: str,
    what: str,
    first: Side,
    second: Side,
    *,
    above: float | None = None,
    below: float | None = None,
    case: str | None = None,
) -> list[Compared]:
    """First minus second of a part's cells: over seeds or domains, and over what was tested where that was kept.

    Args:
        part: of unified/run.py.
        what: in words.
        first: cell and measure.
        second: likewise.
        above: where the claim puts the difference, in points; or
        below: likewise.
        case: only this domain, whose seeds are then the units.
    """
    cells = cells_of([line for line in unified_lines() if case in (None, line["case"])], part)
    sides = run_values(cells, first), run_values(cells, second)
    test = of_differences(paired_differences(*sides) if case else unit_differences(*sides))
    if test is None:
        raise ValueError(f"nothing is finished of {what!r}: run unified/run.py {part}")
    units = "domains" if part == "pacs" and not case else "seeds"
    found = [_points(f"{what}, over {test.seeds} {units}", (test.mean, test.low, test.high), above, below)]
    items = item_interval(cells, Claim(what, part, first, second, "higher"))
    if items is not None:
        found.append(_points(f"{what}, over test {_TESTED.get(part, 'images')}", (test.mean, *items), above, below))
    return found


def _points(what: str, interval: tuple[float, float, float], above: float | None, below: float | None) -> Compared:
    value, low, high = (100 * number for number in interval)
    return Compared(what, value, low, high, above=above, below=below)


def means_table(part: str, sides: Sequence[Side], case: str | None = None) -> Table:
    """Mean and 95 % interval over seeds of cells and measures, in percent."""
    cells = cells_of(unified_lines(), part)
    rows = []
    for cell, measure in sides:
        values = 100 * seed_means(cells, (cell, measure), case)
        rows.append([cell, measure, str(len(values)), _mean(values)])
    return Table(["model", "measure", "seeds", "%"], rows)


def _mean(values: np.ndarray) -> str:
    return f"{values.mean():.1f}" + (f" ± {half_width(values):.1f}" if len(values) > 1 else "")


def classifies(part: str) -> Evidence:
    """The similarity names known classes as well as softmax."""
    found = compare(part, "SIM minus softmax, accuracy", (LEARNED, SIM), (SOFTMAX, OWN), above=AS_GOOD)
    return Evidence(found, means_table(part, [(SOFTMAX, OWN), (LEARNED, SIM), (LEARNED, DOL)]))


def left_out() -> Evidence:
    """The similarity is better than softmax where the domain changes, on average."""
    found = compare("pacs", "SIM minus softmax, mean accuracy", (LEARNED, SIM), (SOFTMAX, OWN), above=0)
    return Evidence(found, domains_table())


def left_out_domains(domains: Sequence[str], **expected: float) -> Evidence:
    """The same, a domain for itself."""
    found: list[Compared] = []
    for domain in domains:
        what = f"SIM minus softmax, {domain.replace('_', ' ')} left out"
        found += compare("pacs", what, (LEARNED, SIM), (SOFTMAX, OWN), case=domain, **expected)
    return Evidence(found, domains_table())


def domains_table() -> Table:
    """Accuracy on each domain that was left out, and the mean."""
    cells: Cells = cells_of(unified_lines(), "pacs")
    rows = []
    for side in ((SOFTMAX, OWN), (LEARNED, SIM), (LEARNED, DOL)):
        shown = [_mean(100 * seed_means(cells, side, case)) for case in (*DOMAINS, None)]
        rows.append([side[0], side[1], *shown])
    return Table(["model", "measure", *(domain.replace("_", " ") for domain in DOMAINS), "mean"], rows)


def verifies() -> Evidence:
    """The sum of cosine and similarity verifies better than either."""
    both = SCORES[-1]
    found: list[Compared] = []
    for other in SCORES[:-1]:
        sides = (LEARNED, f"EER, {both}"), (LEARNED, f"EER, {other}")
        found += compare("speakers", f"EER of {both} minus that of {other}", *sides, below=0)
    return Evidence(found, means_table("speakers", [(LEARNED, f"EER, {score}") for score in SCORES]))


def retrieves() -> Evidence:
    """The similarity finds unseen birds as well as softmax and a loss made for retrieval."""
    found: list[Compared] = []
    for rival in (SOFTMAX, ANCHOR):
        for k in RECALLS:
            sides = (LEARNED, f"Recall@{k}, SIM"), (rival, f"Recall@{k}, cosine")
            found += compare("cub", f"SIM minus {rival}, Recall@{k}", *sides, above=AS_GOOD)
    shown = [(LEARNED, "SIM"), (LEARNED, "cosine"), (SOFTMAX, "cosine"), (ANCHOR, "cosine")]
    return Evidence(found, means_table("cub", [(cell, f"Recall@{k}, {way}") for cell, way in shown for k in RECALLS]))


def few_shot() -> Evidence:
    """With prototypes replaced by means of a few items the similarity answers as well as softmax by distance."""
    found: list[Compared] = []
    sides = []
    for way, shot in SETTINGS:
        setting = f"{way}-way {shot}-shot"
        pair = (LEARNED, f"{setting}, SIM"), (SOFTMAX, f"{setting}, distance")
        found += compare("omniglot", f"SIM minus softmax by distance, {setting}", *pair, above=AS_GOOD)
        sides += pair
    return Evidence(found, means_table("omniglot", sides))


def auxiliary_helps() -> Evidence:
    """The auxiliary loss makes the similarity more accurate."""
    found: list[Compared] = []
    for part, data in (("fashion", "Fashion-MNIST"), ("pacs", "PACS")):
        what = f"with minus without the auxiliary loss, accuracy of SIM, {data}"
        found += compare(part, what, (LEARNED, SIM), (NO_AUXILIARY, SIM), above=0)
    return Evidence(found)


def one_for_all() -> Evidence:
    """No task is answered worse than by what was trained for it, within a point."""
    pairs: list[tuple[str, str, Side, Side]] = [
        ("fashion", "SIM minus softmax, accuracy on Fashion-MNIST", (LEARNED, SIM), (SOFTMAX, OWN)),
        ("cifar", "SIM minus softmax, accuracy on CIFAR-100", (LEARNED, SIM), (SOFTMAX, OWN)),
        ("pacs", "SIM minus softmax, accuracy on left out domains of PACS", (LEARNED, SIM), (SOFTMAX, OWN)),
        ("cub", "SIM minus ProxyAnchor, Recall@1 on CUB", (LEARNED, "Recall@1, SIM"), (ANCHOR, "Recall@1, cosine")),
    ]
    found: list[Compared] = []
    for part, what, first, second in pairs:
        found += compare(part, what, first, second, above=AS_GOOD)
    return Evidence([*found, *few_shot().compared])


def withstands(
    data: str, pairs: Sequence[tuple[Side, Side]], attacks: Sequence[str], table: Sequence[Side]
) -> Callable[[], Evidence]:
    """Evidence that the first of each pair keeps more under every attack than the second; sides are cell and way."""

    def evidence() -> Evidence:
        found = []
        for first, second in pairs:
            for attack in attacks:
                what = f"{_name(first)} minus {_name(second)}, {attack}"
                found.append(_paired(data, what, first, second, attack))
        return Evidence(found, attack_table(data, table, attacks))

    return evidence


def keeps_clean(data: str) -> Evidence:
    """Adversarial training costs the learned model less clean accuracy than it costs softmax."""
    lost = {
        (cell, way): _values(data, (cell, way), "clean")
        for cell in (SOFTMAX, SOFTMAX_AT, LEARNED, LEARNED_AT)
        for way in (("softmax",) if cell in (SOFTMAX, SOFTMAX_AT) else ("SIM", "DOL"))
    }
    standard = _minus(lost[SOFTMAX_AT, "softmax"], lost[SOFTMAX, "softmax"])
    found = []
    for way in ("SIM", "DOL"):
        own = _minus(lost[LEARNED_AT, way], lost[LEARNED, way])
        found.append(
            _of(f"what AT changes of {way}'s clean accuracy minus what it changes of softmax's", own, standard)
        )
    return Evidence(found, attack_table(data, list(lost), []))


def attack_table(data: str, sides: Sequence[Side], attacks: Sequence[str]) -> Table:
    """Mean and 95 % interval over seeds, clean and under each attack, in percent."""
    rows = []
    for side in sides:
        values = [100 * np.array(list(_values(data, side, attack).values())) for attack in ("clean", *attacks)]
        rows.append([_name(side), *map(_mean, values)])
    return Table(["inference", "clean", *attacks], rows)


def _name(side: Side) -> str:
    return side[1] + (" + AT" if side[0] in (SOFTMAX_AT, LEARNED_AT) else "")


def _values(data: str, side: Side, attack: str) -> dict[int, float]:
    """Seed to accuracy."""
    cell, way = side
    return {line["seed"]: line["values"][f"{way}, {attack}"] for line in attack_lines(data) if line["cell"] == cell}


def _minus(first: Mapping[int, float], second: Mapping[int, float]) -> dict[int, float]:
    return {seed: first[seed] - second[seed] for seed in sorted(first.keys() & second.keys())}


def _paired(data: str, what: str, first: Side, second: Side, attack: str) -> Compared:
    return _of(what, _values(data, first, attack), _values(data, second, attack))


def _of(what: str, first: Mapping[int, float], second: Mapping[int, float]) -> Compared:
    """A difference paired by seed, of which the claim says that it is above zero."""
    test = paired_t(first, second)
    if test is None:
        raise ValueError(f"fewer than two seeds of {what!r} are finished")
    return _points(f"{what}, over {test.seeds} seeds", (test.mean, test.low, test.high), 0, None)
