"""Chapter 5 of Kim's thesis, and chapter 1's example: adversarial training, input distances and feature space."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from studies.claims.claim import Claim, Evidence, Table
from studies.claims.distance_readings import by_seed, ledger, once_run, pearson, share, share_difference, told
from studies.robustness.parts import BUDGETS, STANDARD
from studies.unified.measures import unpack

COMMAND, NEAREST = "python studies/robustness/run.py cifar", "python studies/nearest/run.py"
PAGE = "results/robustness.md"
SETTING = (
    "LeNet at 32 px on 20 classes of CIFAR-100, some 1,800 images and 600 steps, where the thesis has CIFAR-10 and a "
    "larger network; measured on 1,000 training items. Three seeds; intervals by Student's t over paired seeds."
)
INPUTS = "20 classes of CIFAR-100, 2,000 training and 600 test images, where the thesis has all ten of CIFAR-10."
SVHN = "SVHN is not among the data here."
MOST = "AT, l2 1.0"
TABLE_5_4 = {
    "MC, l2": ("0.0818", "0.1586", "0.2109", "0.3003", "0.2719"),
    "MC, linf": ("0.0517", "0.1239", "0.1689", "0.2229", "0.1914"),
    "D_inter": ("1.0245", "0.6783", "0.6500", "0.5376", "0.5312"),
    "D_intra": ("0.0683", "0.1312", "0.1513", "0.2606", "0.1991"),
    "phi": ("15.0003", "5.1692", "4.2946", "2.0631", "2.6684"),
    "R2": ("0.8709", "0.6993", "0.6590", "0.4814", "0.5456"),
    "d_DoV": ("32", "51", "76", "75", "71"),
    "rho": ("2.4053", "1.6701", "0.9996", "1.4570", "1.3003"),
}
"""Tables 5.1 and 5.4: ST, then the budgets in the order of `BUDGETS`."""
CHANGES = {
    "MC, l2": (1, "the mean correlation of feature distances with L2 distances of pixels", "table 5.1"),
    "MC, linf": (1, "the mean correlation of feature distances with L-inf distances of pixels", "table 5.1"),
    "D_inter": (-1, "the variance between classes, D_inter,", "table 5.4"),
    "D_intra": (1, "the variance within classes, D_intra,", "table 5.4"),
    "phi": (-1, "the discriminative value phi", "table 5.4"),
    "R2": (-1, "the class separation R2", "table 5.4"),
    "d_DoV": (1, "the number of directions of significant variance, d_DoV,", "table 5.4"),
}
TABLE_5_6 = {"phi": ("-0.9058", -1), "R2": ("-0.9917", -1), "d_DoV": ("0.9115", 1), "rho": ("-0.7513", -1)}


def values(cell: str, name: str) -> dict[int, float]:
    """Seed to a measure of a training."""
    lines = [line for line in ledger("robustness") if (line["part"], line["cell"]) == ("cifar", cell)]
    return {line["seed"]: line["values"][name] for line in lines}


def changes(name: str, sign: int, cells: Sequence[str]) -> Evidence:
    """Adversarial minus standard training."""
    expected = {"above": 0.0} if sign > 0 else {"below": 0.0}
    found = [
        by_seed(f"{cell} against ST, {name}", values(cell, name), values(STANDARD, name), digits=3, **expected)
        for cell in cells
    ]
    return Evidence(found, Table(["training", name], [[c, told(list(values(c, name).values()), 3)] for c in
                                                      (STANDARD, *BUDGETS)]))  # fmt: skip


def larger_budgets() -> Evidence:
    """Each L2 budget minus the next smaller one, in the mean correlation."""
    names = [cell for cell in BUDGETS if "l2" in cell]
    found = [
        by_seed(f"{more} against {less}, MC, l2", values(more, "MC, l2"), values(less, "MC, l2"), above=0.0, digits=3)
        for less, more in pairwise(names)
    ]
    return Evidence(found)


def trainings(name: str) -> list[float]:
    """Means over seeds of the five trainings."""
    return [float(np.mean(list(values(cell, name).values()))) for cell in (STANDARD, *BUDGETS)]


def goes_with(name: str, sign: int) -> Evidence:
    """Pearson's correlation with the mean correlation, over the five trainings."""
    expected = {"above": 0.0} if sign > 0 else {"below": 0.0}
    found = pearson(f"{name} with MC, l2", trainings(name), trainings("MC, l2"), digits=2, **expected)
    return Evidence([found])


def defended() -> Evidence:
    """Clean and attacked accuracy of LeNet with softmax on Fashion-MNIST, trained with attacks at 0.3 or without."""
    lines = [line for line in ledger("robustness") if line["part"] == "fashion"]
    of = {
        (cell, key): {line["seed"]: line["values"][f"softmax, {key}"] for line in lines if line["cell"] == cell}
        for cell in ("softmax", "softmax + AT")
        for key in ("clean", "PGD (40) 0.1")
    }
    return Evidence(
        [
            by_seed("AT against ST, clean accuracy, points", of["softmax + AT", "clean"], of["softmax", "clean"],
                    scale=100, below=0.0),
            by_seed("AT against ST, accuracy under PGD at 0.1, points", of["softmax + AT", "PGD (40) 0.1"],
                    of["softmax", "PGD (40) 0.1"], scale=100, above=0.0),
        ]
    )  # fmt: skip


def inputs() -> dict[str, Any]:
    """What was measured of pixels."""
    return next(line for line in ledger("nearest") if line["part"] == "inputs")


def pixels(norm: str, way: str) -> tuple[int, int]:
    """Right answers by pixels, and how many were asked."""
    line = inputs()
    hits = unpack(line[norm][way], line["items"]["test"])
    return int(hits.sum()), len(hits)


def by_pixels() -> Evidence:
    """Accuracy of 1-NN and the nearest class mean, in both norms."""
    found = [
        share(f"{way}, {norm}, %", *pixels(norm, way), below=50.0) for way in ("1-NN", "NPC") for norm in ("l2", "linf")
    ]
    rows = [[f"phi, {norm}", f"{inputs()[norm]['phi']:.4f}"] for norm in ("l2", "linf")]
    return Evidence(found, Table(["of pixels", ""], rows))


def shifted() -> Evidence:
    """Images for which one of another class is nearer than their own copy, shifted by one pixel."""
    line = inputs()
    key = "another class nearer than the shifted image"
    hits = {norm: unpack(line[norm][key], line["items"]["train"]) for norm in ("l2", "linf")}
    return Evidence([share(f"{norm}, images nearer to another class than to their shifted copy, %", int(h.sum()),
        len(h),
                           above=0.0) for norm, h in hits.items()])  # fmt: skip


def change_claim(name: str, every: bool) -> Claim:
    """That adversarial training changes a measure: by the largest budget, or by the others too."""
    sign, words, where = CHANGES[name]
    slug = name.lower().replace(", ", "-").replace("_", "-")
    cells = [cell for cell in BUDGETS if cell != MOST] if every else [MOST]
    text = f"Adversarial training {'raises' if sign > 0 else 'lowers'} {words} "
    return Claim(
        f"{slug}-{'every-budget' if every else 'largest-budget'}",
        text.rstrip(", ")
        + (" with the smaller budgets and in L-inf, too." if every else ", with the largest budget in L2."),
        f"chapter 5, {where}",
        Table(["", STANDARD, *BUDGETS], [[name, *TABLE_5_4[name]]]),
        SETTING,
        lambda: changes(name, sign, cells),
        command=COMMAND,
        page=PAGE,
    )


def with_correlation(name: str) -> Claim:
    """That a measure goes with the mean correlation over trainings."""
    printed, sign = TABLE_5_6[name]
    return Claim(
        f"mc-with-{name.lower().replace('_', '-')}",
        f"Over trainings, {name} {'rises' if sign > 0 else 'falls'} with the mean correlation with pixels.",
        "chapter 5, table 5.6",
        Table(["", "Pearson, CIFAR-10"], [[name, printed]]),
        SETTING,
        lambda: goes_with(name, sign),
        command=COMMAND,
        page=PAGE,
        remark="Five trainings are five points, the means of three seeds; the interval is Fisher's."
        + (" The thesis says that its own is not significant." if name == "rho" else ""),
    )


def of_pixels(*said: Any, **more: Any) -> Claim:
    """A claim about the pixels themselves."""
    return once_run(Claim(*said, **more), "nearest", {"inputs": 1})


CLAIMS = (
    of_pixels(
        "shifted-image",
        "An image can be farther from its own copy, shifted by one pixel, than from an image of another class.",
        "chapter 1, figure 1.1",
        Table(
            ["distance to", "l2", "linf"],
            [["another image", "5.5699", "0.4431"], ["the shifted copy", "6.8126", "0.7804"]],
        ),
        "Training images of 20 classes of CIFAR-100 in place of two images of CIFAR-10.",
        shifted,
        command=NEAREST,
    ),
    *(change_claim(name, every) for name in CHANGES for every in (False, True)),
    Claim(
        "mc-with-budget",
        "The larger the budget, the higher the mean correlation.",
        "chapter 5, table 5.1",
        Table(["", STANDARD, *BUDGETS], [["MC, l2", *TABLE_5_4["MC, l2"]]]),
        SETTING,
        larger_budgets,
        command=COMMAND,
        page=PAGE,
    ),
    Claim(
        "rho-inconsistent",
        "rho changes inconsistently by adversarial training.",
        "chapter 5, table 5.4",
        Table(["", STANDARD, *BUDGETS], [["rho", *TABLE_5_4["rho"]]]),
        why_not="A claim of no consistent change, "
        "which no interval can show. Here rho rises with every budget (`python studies/robustness/run.py cifar`).",
        page=PAGE,
    ),
    Claim(
        "mc-norms",
        "Mean correlations by L2 and by L-inf distances of pixels go together over trainings.",
        "section 5.3",
        Table(["", "coefficient above"], [["both data sets", "0.98"]]),
        SETTING,
        lambda: Evidence(
            [pearson("MC, l2 with MC, linf", trainings("MC, l2"), trainings("MC, linf"), above=0.0, digits=3)]
        ),
        command=COMMAND,
        page=PAGE,
        remark="The thesis has a coefficient above 0.98; with five points an interval cannot tell that.",
    ),
    *map(with_correlation, TABLE_5_6),
    Claim(
        "svhn",
        "The same on SVHN.",
        "chapter 5, tables 5.2, 5.5 and 5.6",
        Table(
            ["", "ST", "AT, l2 1.0"],
            [
                ["MC, l2", "-0.0118", "0.1737"],
                ["D_inter", "1.2494", "0.4889"],
                ["D_intra", "0.0468", "0.2735"],
                ["phi", "26.6981", "1.7879"],
                ["R2", "0.9231", "0.4458"],
                ["d_DoV", "21", "52"],
                ["rho", "2.3753", "2.2234"],
            ],
        ),
        why_not=SVHN,
    ),
    of_pixels(
        "pixels-weak",
        "Pixels tell classes apart poorly: 1-NN and the nearest class mean are right in less than half.",
        "chapter 5, table 5.3",
        Table(
            ["CIFAR-10", "l2", "linf"],
            [["1-NN", "0.3546", "0.1816"], ["NPC", "0.2771", "0.2136"], ["phi", "0.1635", "0.1804"]],
        ),
        INPUTS,
        by_pixels,
        command=NEAREST,
        remark="Twenty classes are harder than ten.",
    ),
    of_pixels(
        "pixels-nearest",
        "In L2, 1-NN of pixels is more right than the nearest class mean.",
        "chapter 5, table 5.3",
        Table(["CIFAR-10", "l2"], [["1-NN", "0.3546"], ["NPC", "0.2771"]]),
        INPUTS,
        lambda: Evidence(
            [share_difference("1-NN against NPC, l2, points", pixels("l2", "1-NN"), pixels("l2", "NPC"), above=0.0)]
        ),
        command=NEAREST,
        remark="The interval takes both shares for independent, though the test images are the same.",
    ),
    Claim(
        "trade-off",
        "Adversarial training withstands attacks better and is less accurate on clean images.",
        "sections 3.2 and 3.3, after Tsipras et al. 2018",
        None,
        "LeNet on 9,000 images of Fashion-MNIST, trained with PGD at 0.3 in L-inf on half of each batch; three "
        "seeds, 500 test images.",
        defended,
        command="python studies/robustness/run.py fashion",
        page=PAGE,
        remark="The thesis cites it.",
    ),
    Claim(
        "transfer",
        "Adversarially trained models transfer better to new classes.",
        "section 3.2, after Salman et al. 2020",
        None,
        why_not="Not run: the thesis cites it for networks trained on ImageNet. On our 20 classes it "
        "would take the 15 trainings of `python studies/robustness/run.py cifar` anew, some 15 minutes, to keep the "
        "models and name other classes by them.",
    ),
)
