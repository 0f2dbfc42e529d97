"""What average pooling does (chapter 4): convex combinations of prototypes, and the hulls of classes."""

from __future__ import annotations

from functools import partial

import numpy as np

from studies.claims.claim import Claim, Evidence
from studies.claims.generalize_reading import if_kept, ledger, over_seeds, seed_table

RADIUS, LARGEST = "covering radius", "|PCC - GAP|, largest"
SHARED, OVERLAP = "active prototypes, in several classes", "class overlap, hulls"
SETTING = (
    "Ten super-classes of CIFAR-100 in place of CIFAR-10: ResNet-20 with two-dimensional local features, contrastive "
    "loss, 150 steps; 64 images a class that were not trained on, 48 prototypes by greedy k-center as theirs. Three "
    "studies.claims."
)
PLACE = "section 4.3, figures 4.2 to 4.4"


def _bound() -> Evidence:
    """The largest distance between GAP and PCC of any image, in units of the covering radius."""
    lines = ledger("gap_hulls")
    ratios = [line[LARGEST] / line[RADIUS] for line in lines]
    shown = {"ten classes": [[line[name] for line in lines] for name in (RADIUS, LARGEST)]}
    what = "largest distance between GAP and PCC of an image, of the covering radius"
    return Evidence([over_seeds(what, ratios, below=1.0, digits=2)], seed_table("", shown, [RADIUS, LARGEST], ".3f"))


def _measure(measure: str, what: str, **expected: float) -> Evidence:
    """A share of the study, in percent."""
    values = 100 * np.array([line[measure] for line in ledger("gap_hulls")])
    return Evidence([over_seeds(what, values, **expected)], seed_table("", {measure: [values.tolist()]}, ["%"], ".1f"))


def _claim(key: str, text: str, evidence: partial[Evidence], remark: str = "") -> Claim:
    return Claim(
        key,
        text,
        PLACE,
        None,
        setting=SETTING,
        page="methods/average-pooling.md",
        remark=remark,
        **if_kept(
            "studies/gap_hulls/ledger.jsonl",
            3,
            evidence,
            "python studies/gap_hulls/run.py",
            "some two minutes on one core",
        ),
    )


CLAIMS = [
    _claim(
        "gap-is-convex-combination",
        "Average pooling is nearly a convex combination of prototypes: for every image its distance from the average "
        "of the features' prototypes stays below the covering radius.",
        partial(_bound),
        "It must: the triangle inequality proves it. The print bounds the square of the distance, in the unit ball.",
    ),
    _claim(
        "gap-shared-prototypes",
        "Classes have active prototypes of their own, and share some: the share of active prototypes that are active "
        "in several classes lies between 0 and 100 %.",
        partial(_measure, SHARED, "active prototypes in several classes, percent", above=0.0, below=100.0),
    ),
    _claim(
        "gap-hulls-overlap",
        "The hulls of classes overlap under average pooling.",
        partial(_measure, OVERLAP, "overlap of two classes' hulls, percent of their union", above=0.0),
    ),
    Claim(
        "gap-prototypes-mean-something",
        "The prototypes correspond to semantic entities.",
        "section 4.3, figure 4.2",
        None,
        why_not="the print shows patches beside prototypes, to be judged by eye, and says no measure.",
    ),
    Claim(
        "gap-transfer",
        "Training transfers to unseen classes as far as these are made of the same local entities.",
        "sections 4.4 and 6.2",
        None,
        why_not="an explanation: the print has no experiment that varies how much is shared.",
    ),
]
