"""Article IV of Kim's thesis: what it brings and costs to give models the class tree."""

from __future__ import annotations

from functools import partial

import numpy as np

from studies.claims.claim import Claim, Evidence, Table
from studies.claims.distance_readings import exact
from studies.claims.distance_taxonomy import (
    BOUND,
    COMMAND,
    COMPARABLE,
    FIGURES,
    PAGE,
    SETTING,
    better,
    cells,
    claim,
    compare,
)

BOTH = ("NormFace", "ProxyDR")
TREE = [(f"{model}, MDS", f"{model}, standard") for model in BOTH]
MOVING = [(f"{model}, MDS + dynamic", f"{model}, MDS") for model in BOTH]
OTHERS = [f"{model}, {option}" for model in BOTH for option in ("MDS", "MDS + dynamic")]
LITTLE = {"AHD@1": 0.1, "HS@50": 1.0, "AHS@250": 1.0}
"""Edges or points within which we call a change small; the article gives no bound."""


def placed() -> Evidence:
    """How well proxies that are placed by the tree can follow it in 128 dimensions; the same in every run."""
    printed = 0.8580
    found = {
        name: [line["values"]["MC proxies, with diagonal"] for line in runs.values()]
        for name, runs in cells().items()
        if "MDS" in name
    }
    value = float(np.mean([one for values in found.values() for one in values]))
    rows = [[name, f"{np.mean(values):.4f}"] for name, values in found.items()]
    compared = exact("mean correlation of MDS proxies, ours minus the article's", value - printed, digits=4,
                     above=-0.002, below=0.002)  # fmt: skip
    return Evidence([compared], Table(["model", "mean correlation of its proxies, with diagonal"], rows))


def small(measure: str) -> Claim:
    """That a measure gains nothing noticeable."""
    bound = LITTLE[measure]
    unit = "edges" if measure.startswith("AHD") else "points"
    return claim(
        f"tree-no-gain-{measure.lower().replace('@', '-')}",
        f"On CIFAR-100 the tree, given as MDS proxies, brings no noticeable improvement in {measure}.",
        "results, figure 7",
        partial(compare, TREE, (measure,), above=-bound, below=bound),
        f"{FIGURES} Not noticeable is taken to be within {bound:g} {unit}.",
    )


CLAIMS = (
    claim(
        "tree-top-5",
        "The tree, given as MDS proxies, lowers the top-5 accuracy of NormFace and of ProxyDR.",
        "results, figure 3; discussion",
        partial(compare, TREE, ("top-5",), below=0.0),
    ),
    claim(
        "tree-top-1",
        "The tree leaves top-1 accuracy comparable or raises it.",
        "results, figure 3; discussion",
        partial(compare, TREE, ("top-1",), above=-COMPARABLE),
        BOUND,
    ),
    claim(
        "corr-top-1",
        "CORR has a top-1 accuracy comparable to that of the other models with the tree.",
        "results, figure 3",
        partial(compare, [("CORR, MDS", name) for name in OTHERS], ("top-1",), above=-COMPARABLE, below=COMPARABLE),
        BOUND,
    ),
    claim(
        "corr-top-5",
        "CORR has the lowest top-5 accuracy of all models with the tree.",
        "results, figure 3; conclusion",
        partial(compare, [("CORR, MDS", name) for name in OTHERS], ("top-5",), below=0.0),
    ),
    claim(
        "corr-top-5-softmax",
        "CORR's top-5 accuracy is even lower than that of the softmax classifier.",
        "results, figure 3",
        partial(compare, [("CORR, MDS", "softmax")], ("top-5",), below=0.0),
    ),
    claim(
        "tree-dynamic-top-5",
        "With the tree, a dynamic scale lowers the top-5 accuracy further.",
        "results, figure 3",
        partial(compare, MOVING, ("top-5",), below=0.0),
    ),
    claim(
        "tree-correlation",
        "The tree, given as MDS proxies, greatly raises the mean correlation of prototypes, of NormFace and of "
        "ProxyDR.",
        "results, figure 5",
        partial(compare, TREE, ("MC prototypes",), above=0.0),
    ),
    claim(
        "corr-correlation",
        "Of the models with the tree, CORR has the highest mean correlation of prototypes.",
        "results, figure 5",
        partial(compare, [("CORR, MDS", name) for name in OTHERS], ("MC prototypes",), above=0.0),
        FIGURES + " It says so of most cases.",
    ),
    claim(
        "proxydr-tree-correlation",
        "With the tree, ProxyDR's mean correlation of prototypes is typically second after CORR's, above NormFace's.",
        "results, figure 5",
        partial(
            compare,
            [(f"ProxyDR, {o}", f"NormFace, {o}") for o in ("MDS", "MDS + dynamic")],
            ("MC prototypes",),
            above=0.0,
        ),
        FIGURES + " Here ProxyDR comes first, before CORR.",
    ),
    Claim(
        "mds-proxies",
        "Proxies placed by multidimensional scaling of the CIFAR-100 tree in 128 dimensions have a mean correlation of "
        "0.8580 with it.",
        "article IV, figure 5",
        Table(["", "mean correlation of MDS proxies"], [["CIFAR-100", "0.8580"]]),
        SETTING + " What is compared needs no training.",
        placed,
        command=COMMAND,
        page=PAGE,
        remark="Computed, not sampled: no interval. It counts each class's distance to itself, as the article does.",
    ),
    *map(small, LITTLE),
    claim(
        "tree-hs250",
        "The tree improves HS@250.",
        "results, figure 7",
        partial(better, TREE, ("HS@250",)),
        FIGURES + " It calls the improvement on CIFAR-100 marginal and that on most other data significant.",
    ),
    claim(
        "tree-ahd-hp",
        "The tree improves AHD of five guesses and HP@5, of NormFace and of ProxyDR.",
        "results, figure 7; discussion",
        partial(better, TREE, ("AHD@5", "HP@5")),
    ),
    claim(
        "corr-ahd-hp",
        "CORR is the best of all models in AHD of five guesses and in HP@5.",
        "results, figure 7; conclusion",
        partial(better, [("CORR, MDS", name) for name in OTHERS], ("AHD@5", "HP@5")),
    ),
    claim(
        "corr-informed",
        "With the tree, CORR has the best performance in the measures that know it.",
        "conclusion",
        partial(better, [("CORR, MDS", name) for name in OTHERS], ("AHD@1", "HS@50", "HS@250", "AHS@250")),
        FIGURES + " These are the four measures beside AHD@5 and HP@5, which have a claim of their own.",
    ),
    claim(
        "tree-dynamic-ahd-hp",
        "With the tree, a dynamic scale improves AHD of five guesses and HP@5 of NormFace.",
        "results, figure 7",
        partial(better, MOVING[:1], ("AHD@5", "HP@5")),
        FIGURES + " It excepts ProxyDR on CIFAR-100; here ProxyDR gains too.",
    ),
    Claim(
        "other-data-bars",
        "The same comparisons on birds and on three sets of plankton, with and without the tree.",
        "article IV, figures 4, 6, 8 and S4 to S18",
        Table(
            ["", "mean correlation of MDS proxies"],
            [
                ["NABirds", "0.4476"],
                ["MicroS, whole and living", "0.9306, 0.9011"],
                ["MicroL, whole and living", "0.9543, 0.9426"],
                ["MesoZ, whole and living", "0.9783, 0.9602"],
            ],
        ),
        why_not="NABirds is not among the data here, and the plankton images are the institute's own, not published.",
    ),
)
