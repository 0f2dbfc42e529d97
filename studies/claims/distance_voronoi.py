"""Article III of Kim's thesis and its preface: adversaries in Voronoi cells, and the nearest neighbour."""

from __future__ import annotations

from typing import Any

from studies.claims.claim import Claim, Evidence, Table
from studies.claims.distance_readings import by_seed, exact, ledger, mean_of, once_run, told

COMMAND, NEAREST = "python studies/robustness/run.py toy", "python studies/nearest/run.py"
PAGE = "results/robustness.md"
SETTING = (
    "The article's eight points in the plane, and 300 images of Fashion-MNIST; 1-NN on its own data, in L2 and in "
    "L-inf, attacked by gradient ascent. The article has the proof and the plane."
)
SMALL = (
    "Small networks of one hidden layer on 1,000 images of Fashion-MNIST, trained as they are (ST) or on images "
    "perturbed by 1.0 in L2 (AT); five seeds."
)
OWN = "It is about the very points that were attacked, so there is nothing to sample and no interval."
NOTHING, SEEDS = 1e-9, 5
"""What rounding may leave; how many seeds the networks have."""


def lines() -> list[dict[str, Any]]:
    """1-NN on both data sets in both norms."""
    return [line for line in ledger("robustness") if line["part"] == "toy"]


def _name(line: dict[str, Any]) -> str:
    return f"{line['cell'].partition(', ')[2]}, {line['norm']}"


def curves() -> Table:
    """SAA and VAA over epsilon."""
    rows = []
    for line in lines():
        for kind in ("SAA", "VAA"):
            pairs = zip(line["epsilons"], line[kind], strict=True)
            rows.append([_name(line), kind, ", ".join(f"{eps:.3g}: {100 * value:.0f}" for eps, value in pairs)])
    return Table(["data", "", "epsilon: accuracy in %"], rows)


def in_balls() -> Evidence:
    """SAA of 1-NN at the largest epsilon minus its accuracy."""
    found = [exact(f"{_name(line)}, SAA at epsilon {line['epsilons'][-1]:.3g} against clean accuracy, points",
                   100 * (line["SAA"][-1] - line["accuracy"]), below=0.0) for line in lines()]  # fmt: skip
    return Evidence(found, curves())


def in_cells() -> Evidence:
    """The lowest VAA of 1-NN over all epsilons, and without a ball."""
    found = []
    for line in lines():
        worst = min(*line["VAA"], line["global Voronoi robustness"])
        found.append(exact(f"{_name(line)}, lowest VAA at any epsilon, %", 100 * worst, above=100 - NOTHING))
    return Evidence(found, curves())


def below_half() -> Evidence:
    """SAA minus VAA where epsilon is below half the smallest distance."""
    found = []
    for line in lines():
        for eps, standard, voronoi in zip(line["epsilons"], line["SAA"], line["VAA"], strict=True):
            if eps < line["smallest distance"] / 2:
                what = f"{_name(line)}, epsilon {eps:.3g}, SAA against VAA, points"
                found.append(exact(what, 100 * (standard - voronoi), above=-NOTHING, below=NOTHING))
    return Evidence(found)


def networks(part: str) -> dict[int, dict[str, Any]]:
    """Seed to the line of a small network."""
    return {line["seed"]: line for line in ledger("nearest") if line["part"] == part}


def others_fall() -> Evidence:
    """Global Voronoi robustness of networks on images that they were trained on, minus that of 1-NN."""
    found = []
    for part in ("ST", "AT"):
        gaps = [line["attacked"]["global Voronoi robustness"] - 1 for line in networks(part).values()]
        found.append(mean_of(f"{part}, accuracy in whole cells against 1-NN's, points", gaps, scale=100, below=0.0))
    rows = [
        [part, told([line["attacked"]["accuracy"] for line in networks(part).values()], 1, 100),
         told([line["attacked"]["global Voronoi robustness"] for line in networks(part).values()], 1, 100)]
        for part in ("ST", "AT")
    ]  # fmt: skip
    return Evidence(found, Table(["network", "clean accuracy on these images (%)", "in whole cells (%)"], rows))


def compare(key: str, **expected: float) -> Evidence:
    """AT minus ST in something of the test images."""
    robust, plain = ({seed: line[key] for seed, line in networks(part).items()} for part in ("AT", "ST"))
    keys = ("accuracy", "1-NN accuracy", "agreement", "agreement where 1-NN errs")
    rows = [
        [part, *(told([line[one] for line in networks(part).values()], 1, 100) for one in keys)]
        for part in ("ST", "AT")
    ]
    head = ["network", *(f"{one} (%)" for one in keys)]
    return Evidence([by_seed(f"AT against ST, {key}, points", robust, plain, scale=100, **expected)], Table(head, rows))


def of_networks(*said: Any, **more: Any) -> Claim:
    """A claim about the small networks, all seeds of which must be there."""
    return once_run(Claim(*said, **more), "nearest", {"ST": SEEDS, "AT": SEEDS})


CLAIMS = (
    Claim(
        "balls-trade-off",
        "Where epsilon is large, real points of other classes count as adversarial, and no classifier "
        "can be both accurate and robust by standard adversarial accuracy (SAA).",
        "article III, section 1.3, figure 1c",
        None,
        SETTING,
        in_balls,
        command=COMMAND,
        picture="voronoi-toy.png",
        page=PAGE,
        remark=f"{OWN} Shown for 1-NN, which is right on all its own points.",
    ),
    Claim(
        "cells-no-trade-off",
        "1-NN keeps full Voronoi-epsilon adversarial accuracy (VAA) on its own data at every epsilon and without one.",
        "article III, theorem 1, figure 2",
        None,
        SETTING,
        in_cells,
        command=COMMAND,
        picture="robustness-nearest.png",
        page=PAGE,
        remark=f"{OWN} An attack may miss a point; the theorem says that there is none to miss.",
    ),
    Claim(
        "small-epsilon",
        "SAA and VAA are equal where epsilon is below half the smallest distance of two points.",
        "article III, observation 1",
        None,
        SETTING,
        below_half,
        command=COMMAND,
        page=PAGE,
        remark=OWN,
    ),
    of_networks(
        "only-nearest",
        "1-NN alone has the highest global Voronoi-epsilon robustness: others are fooled within cells.",
        "article III, theorem 1",
        None,
        SMALL + " 100 of their own training images are attacked.",
        others_fall,
        command=NEAREST,
        remark="Two kinds of networks stand for all other classifiers.",
    ),
    of_networks(
        "robust-like-nearest",
        "Robust classifiers behave more like 1-NN than standard ones do.",
        "preface; article III, discussion",
        None,
        SMALL,
        lambda: compare("agreement", above=0.0),
        command=NEAREST,
        remark="The share of 1,000 test images that a network and 1-NN in L2 name alike.",
    ),
    of_networks(
        "robust-like-nearest-errors",
        "That holds where 1-NN is wrong, too.",
        "preface",
        None,
        SMALL,
        lambda: compare("agreement where 1-NN errs", above=0.0),
        command=NEAREST,
        remark="Agreement where 1-NN errs is not explained by both being right.",
    ),
    of_networks(
        "robust-less-accurate",
        "Robust training costs accuracy on clean images.",
        "section 3.3; preface",
        None,
        SMALL,
        lambda: compare("accuracy", below=0.0),
        command=NEAREST,
        page=PAGE,
        remark="The thesis cites it. The perturbation here is small; see also the claim on larger networks.",
    ),
    Claim(
        "nearest-mnist",
        "1-NN in L2 is more than 95 % right on MNIST.",
        "preface",
        Table(["", "accuracy"], [["MNIST", "0.95"]]),
        why_not="MNIST is not among the data here.",
    ),
    Claim(
        "certified-fooled",
        "Even models with certified robustness are fooled by large perturbations that keep the meaning of an image.",
        "article III, section 1.3, after Ghiasi et al. 2019",
        None,
        why_not="The article cites it; the attack is not in the package.",
    ),
)
