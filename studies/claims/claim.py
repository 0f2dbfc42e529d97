"""A claim of a seed document, and what our runs say of it.

A claim holds if every comparison that it is about is shown by its 95 % interval, and only then. What cannot be tested
here says why. The claims of each document are beside this file; `book/run.py` runs the studies and writes the pages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """What our runs say of a claim."""

    HOLDS = "holds"
    DOES_NOT = "does not hold"
    UNTESTED = "cannot be tested here"


@dataclass(frozen=True)
class Table:
    """Numbers as they are shown: a head and rows of text."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Compared:
    """One thing that a claim says of our runs: a figure, its 95 % interval, and where the claim puts it.

    Args:
        what: in words, such as "contrastive + CCP against contrastive, MAP@R".
        value: our figure, usually a paired difference, in the unit shown.
        low: lower end of its 95 % interval.
        high: upper end.
        above: the claim says that the figure lies above this; or
        below: below this. Both for a claim that something changes little.
        digits: after the point, as shown.
    """

    what: str
    value: float
    low: float
    high: float
    above: float | None = None
    below: float | None = None
    digits: int = 1

    def __post_init__(self) -> None:
        if self.above is None and self.below is None:
            raise ValueError(f"say what the claim expects of {self.what!r}: above, below or both")
        if not self.low <= self.high:
            raise ValueError(f"the interval of {self.what!r} ends before it begins")

    @property
    def shown(self) -> bool:
        """Whether the whole interval lies where the claim puts it."""
        return (self.above is None or self.low > self.above) and (self.below is None or self.high < self.below)

    @property
    def opposed(self) -> bool:
        """Whether the whole interval lies where the claim does not."""
        return (self.above is not None and self.high < self.above) or (self.below is not None and self.low > self.below)

    @property
    def state(self) -> str:
        """What the interval says, in words."""
        return "shown" if self.shown else "the opposite is shown" if self.opposed else "not shown"


@dataclass(frozen=True)
class Evidence:
    """What our runs found: the comparisons that decide, and a table of what stands behind them."""

    compared: Sequence[Compared]
    table: Table | None = None

    def __post_init__(self) -> None:
        if not self.compared:
            raise ValueError("evidence needs a comparison; a claim without one cannot be tested: say why")


@dataclass(frozen=True)
class Claim:
    """One claim: what the document says, and how we look at it.

    Args:
        key: short name in lower case with hyphens, unique in its document.
        text: the claim in a sentence or two, in our words.
        where: section, table or figure of the document.
        theirs: the document's own numbers.
        setting: how ours differs from theirs (data, network, budget), in a sentence.
        evidence: reads the ledgers and compares; None if the claim cannot be tested here.
        why_not: then, why.
        command: what makes our numbers, as typed at the prompt from the root of a clone.
        picture: file in `docs/images`, or "".
        page: of `docs/results` or `docs/methods` that says more, such as "results/ccp.md", or "".
        remark: what a reader should know beside the verdict.
    """

    key: str
    text: str
    where: str
    theirs: Table | None
    setting: str = ""
    evidence: Callable[[], Evidence] | None = None
    why_not: str = ""
    command: str = ""
    picture: str = ""
    page: str = ""
    remark: str = ""

    def __post_init__(self) -> None:
        if (self.evidence is None) != bool(self.why_not):
            raise ValueError(f"claim {self.key!r} needs either evidence or the reason why it cannot be tested")
        if self.evidence is not None and not self.command:
            raise ValueError(f"claim {self.key!r} needs the command that makes its numbers")


@dataclass(frozen=True)
class Document:
    """A seed document and its claims.

    Args:
        slug: file name of its page in `docs/book`, without the ending.
        title: as published.
        authors: and the year.
        claims: in the order of the document.
    """

    slug: str
    title: str
    authors: str
    claims: Sequence[Claim]


def verdict_of(evidence: Evidence | None) -> Verdict:
    """Holds if every comparison is shown; no evidence, no test."""
    if evidence is None:
        return Verdict.UNTESTED
    return Verdict.HOLDS if all(each.shown for each in evidence.compared) else Verdict.DOES_NOT
