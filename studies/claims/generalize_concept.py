"""Chance-constrained programming, the proof of the concept (section 3.3.1): proxies, radii and unseen classes."""

from __future__ import annotations

from functools import partial

from studies.claims.claim import Claim, Evidence, Table
from studies.claims.generalize_reading import by_seed, ledger, over_seeds, paired, seed_table

SINGLE, CCP, SAMPLES = "single proxy problem", "CCP", "CCP, samples as anchors"
SPREAD, RADIUS, BETWEEN = "proxies' spread", "covering radius", "distance between classes"
TOY = (
    "Fashion-MNIST in place of MNIST, a LeNet in place of ResNetV2-20; 4 proxies a class and a pool of 16 as theirs; "
    "three seeds, paired."
)
UNSEEN = (
    "CUB with a linear head on a frozen EfficientNet-Lite0, contrastive loss at 1e-3; a third of the first 100 classes "
    "validates, drawn anew for each of five seeds, paired. Each model has the weights that validated best."
)


def _toy(first: str, second: str, measure: str, *, scale: float = 1.0, digits: int = 3, **expected: float) -> Evidence:
    """One variant of the toy against another, seed by seed."""
    lines = ledger("ccp_toy")
    values = {name: by_seed(lines, measure, variant=name) for name in (first, second)}
    shown = {name: [[scale * value for value in found.values()]] for name, found in values.items()}
    compared = paired(
        f"{first} against {second}, {measure}", values[first], values[second], scale=scale, digits=digits, **expected
    )
    return Evidence([compared], seed_table("", shown, [measure], f".{digits}f"))


def _collapse() -> Evidence:
    """The spread of a class's converged proxies, in percent of the distance between classes."""
    cells = [line for line in ledger("ccp_toy") if line["variant"] == SINGLE]
    shares = [100 * line[SPREAD] / line[BETWEEN] for line in cells]
    what = "spread of a class's proxies after a single problem, percent of the distance between classes"
    return Evidence(
        [over_seeds(what, shares, below=1.0, digits=2)], seed_table("", {SINGLE: [shares]}, ["percent"], ".2f")
    )


def _unseen(measure: str, *, scale: float = 1.0, digits: int = 3, **expected: float) -> Evidence:
    """CCP against a single proxy problem on validation classes of CUB, seed by seed."""
    lines = ledger("ccp_unseen")
    values = {name: by_seed(lines, measure, variant=name) for name in (CCP, SINGLE)}
    shown = {name: [[scale * value for value in found.values()]] for name, found in values.items()}
    what = f"{CCP} against {SINGLE}, {measure} of validation classes"
    compared = paired(what, values[CCP], values[SINGLE], scale=scale, digits=digits, **expected)
    return Evidence([compared], seed_table("", shown, [measure], f".{digits}f"))


def _toy_claim(
    key: str, text: str, evidence: partial[Evidence], numbers: Table | None = None, remark: str = ""
) -> Claim:
    return Claim(
        key,
        text,
        "section 3.3.1, figure 3.2",
        numbers,
        setting=TOY,
        evidence=evidence,
        command="python studies/ccp_toy/run.py",
        picture="ccp-geometry.png",
        page="results/ccp.md",
        remark=remark,
    )


def _unseen_claim(key: str, text: str, evidence: partial[Evidence]) -> Claim:
    return Claim(
        key,
        text,
        "section 3.3.1, figure 3.3",
        None,
        setting=UNSEEN,
        evidence=evidence,
        command="python studies/ccp_unseen/run.py",
        page="results/ccp.md",
        remark="The print shows one run with its numbers inside the picture.",
    )


CLAIMS = [
    _toy_claim(
        "toy-proxies-collapse",
        "Trained to the end, the proxies of a class in a single proxy-based problem collapse to one point (we say: "
        "their spread falls below 1 % of the distance between classes).",
        partial(_collapse),
        remark="They start in an untrained network, which already puts everything near one point.",
    ),
    _toy_claim(
        "toy-proxies-diverse",
        "Chance-constrained programming ends with diverse proxies: they spread wider than those of a single problem.",
        partial(_toy, CCP, SINGLE, SPREAD, above=0.0),
        remark="So in two seeds of three; in the third the first instance validated best.",
    ),
    _toy_claim(
        "toy-covering-radius",
        "Going on with chance-constrained programming after the single problem has converged lowers the covering "
        "radius.",
        partial(_toy, CCP, SINGLE, RADIUS, below=0.0),
        remark="Three seeds leave a wide interval; the radius falls in two of them.",
    ),
    _toy_claim(
        "toy-performance",
        "Chance-constrained programming has a higher MAP@R than the single problem.",
        partial(_toy, CCP, SINGLE, "MAP@R", scale=100, digits=1, above=0.0),
        remark="Better in every seed, by 1.2, 1.3 and 7.0 points; three seeds leave a wide interval.",
    ),
    _toy_claim(
        "toy-samples-or-proxies",
        "Proxies stand in well for the samples they come from: with samples as anchors MAP@R is only 0.85 points "
        "higher (we say: proxies lose less than 2 points).",
        partial(_toy, CCP, SAMPLES, "MAP@R", scale=100, digits=1, above=-2.0),
        Table(["anchors", "MAP@R"], [["samples", "98.06"], ["proxies", "97.21"]]),
    ),
    _unseen_claim(
        "unseen-performance",
        "What is gained on training classes transfers: on classes not trained on, CCP has a higher MAP@R than a single "
        "proxy problem.",
        partial(_unseen, "MAP@R", scale=100, digits=1, above=0.0),
    ),
    _unseen_claim(
        "unseen-covering-radius",
        "On classes not trained on, CCP has a smaller covering radius than a single proxy problem.",
        partial(_unseen, RADIUS, below=0.0),
    ),
    _unseen_claim(
        "unseen-class-distances",
        "On classes not trained on, CCP has larger distances between classes than a single proxy problem.",
        partial(_unseen, BETWEEN, above=0.0),
    ),
]
