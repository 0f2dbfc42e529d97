"""Article IV of Kim's thesis: how much of the class tree is there where nothing was trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from studies.claims.claim import Claim, Compared, Evidence, Table
from studies.claims.distance_readings import by_seed, ledger, mean_of, told
from studies.claims.distance_taxonomy import PAGE
from studies.taxonomy.stats import cells_of, seed_values

SPACES = {
    "random weights": "0.2841 ± 0.0303", "pretrained": "0.3816 ± 0.0116", "input space": "0.3414 ± 0.0353",
    "normalised input space": "0.2609 ± 0.0416",
}  # fmt: skip
UNTRAINED = (
    "Three draws of 90 training images a class, with 128 px and EfficientNet-Lite0 or 32 px and ResNet-20 where the "
    "article has ResNet-50 and 450 images a class. The article counts the diagonal."
)
WITH_DIAGONAL = "MC prototypes, with diagonal"


def spaces(compared: Callable[[dict[str, dict[int, float]]], list[Compared]], measure: str) -> Evidence:
    """Mean correlations where nothing was trained."""
    models = cells_of(ledger("taxonomy"), "spaces")
    values = {name: {s: line["values"][measure] for s, line in runs.items()} for name, runs in models.items()}
    both = (measure, WITH_DIAGONAL) if measure != WITH_DIAGONAL else (measure,)
    rows = [[name, *(told(seed_values(runs, one), 3) for one in both)] for name, runs in models.items()]
    return Evidence(compared(values), Table(["space", *both], rows))


def _named(values: dict[str, dict[int, float]], start: str) -> dict[str, dict[int, float]]:
    return {name: runs for name, runs in values.items() if name.startswith(start)}


def chance(*starts: str) -> Evidence:
    """Above 0, without the diagonal, which would be like the tree by chance."""
    return spaces(
        lambda values: [
            mean_of(name, list(runs.values()), above=0.0, digits=3)
            for start in starts
            for name, runs in _named(values, start).items()
        ],
        "MC prototypes",
    )


def below(first: str, others: Sequence[str]) -> Evidence:
    """Spaces that begin like the first, against each of the others."""
    return spaces(
        lambda values: [
            by_seed(f"{name} against {other}", runs, one, below=0.0, digits=3)
            for name, runs in _named(values, first).items()
            for start in others
            for other, one in _named(values, start).items()
        ],
        WITH_DIAGONAL,
    )


TABLE_2 = Table(["space", "CIFAR-100"], [[name, value] for name, value in SPACES.items()])
CLAIMS = (
    Claim(
        "random-networks",
        "Prototypes of networks with random weights match the tree better than chance.",
        "article IV, abstract; table 2",
        TABLE_2,
        UNTRAINED,
        lambda: chance("random"),
        command="python studies/taxonomy/run.py spaces",
        page=PAGE,
    ),
    Claim(
        "input-space",
        "Prototypes of the pixels themselves, normalised or not, match the tree better than chance.",
        "article IV, table 2",
        TABLE_2,
        UNTRAINED,
        lambda: chance("input", "normalised"),
        command="python studies/taxonomy/run.py spaces",
        page=PAGE,
    ),
    Claim(
        "random-lowest",
        "Random networks match the tree less than pretrained ones and the pixels do.",
        "article IV, table 2",
        TABLE_2,
        UNTRAINED,
        lambda: below("random", ("pretrained", "input", "normalised")),
        command="python studies/taxonomy/run.py spaces",
        page=PAGE,
        remark="The article says so of its whole table; its own figures for CIFAR-100 have the normalised pixels "
        "lowest.",
    ),
    Claim(
        "pretrained-highest",
        "Pretrained networks match the tree better than the pixels do.",
        "article IV, table 2",
        TABLE_2,
        UNTRAINED,
        lambda: below("input", ("pretrained",)),
        command="python studies/taxonomy/run.py spaces",
        page=PAGE,
        remark="Pixels minus pretrained, so below 0.",
    ),
    Claim(
        "other-data-spaces",
        "The same for birds.",
        "article IV, table 2",
        Table(
            ["space", "NABirds"],
            [
                ["random weights", "0.1088 ± 0.0839"],
                ["pretrained", "0.2648 ± 0.0349"],
                ["input space", "0.1740 ± 0.0056"],
                ["normalised input space", "0.2369 ± 0.0039"],
            ],
        ),
        why_not="NABirds is not among the data here.",
    ),
)
