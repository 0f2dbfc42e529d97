"""Article IV of Kim's thesis: mean correlations during training and without any, and what goes together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.stats import rankdata

from studies.claims.claim import Claim, Compared, Evidence, Table
from studies.claims.distance_readings import by_seed, mean_of, share, told
from studies.claims.distance_taxonomy import COMMAND, PAGE, SETTING, cells
from studies.taxonomy.stats import rank_correlation

RESAMPLES, NO_TRADE_OFF, EARLY = 1000, -0.3, 0.4
"""A rank correlation above this is no trade-off; what the article calls a relatively high correlation."""
PROXYDR = ("ProxyDR, standard", "ProxyDR, dynamic")
RANKS = {
    "AHD@5": ("-0.8856", "-0.2877", "0.4561"), "HP@5": ("0.8955", "0.2439", "-0.4902"),
    "HS@250": ("0.5514", "0.5535", "0.0955"), "AHS@250": ("0.3335", "0.8517", "0.3157"),
    "AHD@1": ("-0.1821", "-0.9507", "-0.4245"), "HS@50": ("0.1878", "0.8967", "0.2515"),
    "top-1": ("0.1675", "", "0.4398"), "top-5": ("-0.3364", "0.4398", ""),
}  # fmt: skip
"""Tables S2 to S4, CIFAR-100: with the mean correlation of proxies, with top-1, with top-5."""


def curve(line: Mapping[str, Any], key: str) -> dict[int, float]:
    """Step to value, of a run's log."""
    return {row["step"]: row[key] for row in line["curves"] if key in row}


def gap(line: Mapping[str, Any]) -> tuple[float, float]:
    """How far proxies and prototypes are apart in their correlation with the tree, at first and at the end."""
    proxies, prototypes = curve(line, "MC_proxies"), curve(line, "MC_prototypes")
    ends = min(proxies), max(proxies)
    first, last = (abs(proxies[step] - prototypes[step]) for step in ends)
    return first, last


def untrained_prototypes() -> Evidence:
    """The correlation of prototypes after the first look, about an epoch."""
    models = cells()
    found = []
    for name in PROXYDR:
        first = [curve(line, "MC_prototypes")[min(curve(line, "MC_prototypes"))] for line in models[name].values()]
        found.append(mean_of(f"{name}, prototypes after one epoch", first, above=EARLY, digits=3))
    return Evidence(found)


def gap_narrows(names: Sequence[str]) -> Evidence:
    """The gap at the end minus that at first."""
    models = cells()
    found, rows = [], []
    for name in names:
        first, last = ({seed: gap(line)[end] for seed, line in models[name].items()} for end in (0, 1))
        found.append(by_seed(f"{name}, gap at the end against at first", last, first, below=0.0, digits=3))
        rows.append([name, told(list(first.values()), 3), told(list(last.values()), 3)])
    return Evidence(found, Table(["model", "gap at first", "gap at the end"], rows))


def best_steps_differ() -> Evidence:
    """In how many runs the step of the best accuracy is not that of the highest correlation of prototypes."""
    lines = [line for name in PROXYDR for line in cells()[name].values()]
    differ = 0
    for line in lines:
        prototypes = curve(line, "MC_prototypes")
        differ += max(prototypes, key=lambda step: prototypes[step]) != line["best_step"]
    return Evidence([share("runs whose best steps differ, %", differ, len(lines), above=50.0)])


def rising_while_falling() -> Evidence:
    """NormFace with a dynamic scale: what accuracy and correlation do after the best accuracy."""
    lines = list(cells()["NormFace, dynamic"].values())
    accuracy, correlation = [], []
    for line in lines:
        right, likeness = curve(line, "val_accuracy"), curve(line, "MC_prototypes")
        accuracy.append(right[max(right)] - max(right.values()))
        correlation.append(likeness[max(likeness)] - likeness[line["best_step"]])
    return Evidence(
        [
            mean_of("accuracy at the end against its best, points", accuracy, scale=100, below=0.0),
            mean_of("correlation of prototypes at the end against where accuracy is best", correlation, above=0.0,
                    digits=3),
        ]
    )  # fmt: skip


def ranked(asked: Mapping[str, Mapping[str, float]], against: str, column: int) -> Evidence:
    """Spearman's coefficients over all runs but softmax and the controls; intervals by drawing models anew."""
    models = {name: runs for name, runs in cells().items() if name != "softmax" and ", s =" not in name}
    lines = [line for runs in models.values() for line in runs.values()]
    owners = np.repeat(np.arange(len(models)), [len(runs) for runs in models.values()])
    found, rows = [], []
    for measure, expected in asked.items():
        value, _ = rank_correlation(lines, measure, against)
        pairs = np.array([[line["values"][name] for name in (measure, against)] for line in lines])
        low, high = _models_drawn(pairs, owners)
        found.append(
            Compared(f"{measure} with {against}", value, min(low, value), max(high, value), digits=2, **expected)
        )
        rows.append([measure, f"{value:+.2f} ({low:+.2f} to {high:+.2f})", RANKS[measure][column]])
    return Evidence(found, Table(["measure", f"with {against}", "article"], rows))


def _models_drawn(pairs: np.ndarray, owners: np.ndarray) -> tuple[float, float]:
    """Percentiles of Spearman's coefficient of pairs (n, 2) when their models (n,) are drawn anew."""
    rng = np.random.default_rng(0)
    members = [np.flatnonzero(owners == owner) for owner in range(owners.max() + 1)]
    drawn = []
    for _ in range(RESAMPLES):
        rows = np.concatenate([members[one] for one in rng.integers(len(members), size=len(members))])
        ranks = rankdata(pairs[rows], axis=0)
        if (np.ptp(ranks, axis=0) > 0).all():
            drawn.append(np.corrcoef(ranks.T)[0, 1])
    low, high = np.percentile(drawn, (2.5, 97.5))
    return float(low), float(high)


def rank_claim(key: str, text: str, where: str, asked: Mapping[str, Mapping[str, float]], against: str, column: int,
               remark: str = "") -> Claim:  # fmt: skip
    """A claim about tables S2 to S4."""
    theirs = Table(["measure", "CIFAR-100"], [[name, RANKS[name][column]] for name in asked])
    how = "Intervals draw the 13 models anew: runs of one model with other seeds are not independent."
    return Claim(key, text, f"article IV, {where}", theirs, SETTING, lambda: ranked(asked, against, column),
                 command=COMMAND, page=PAGE, remark=f"{how} {remark}".strip())  # fmt: skip


UP, DOWN = {"above": 0.0}, {"below": 0.0}
CLAIMS = (
    rank_claim(
        "correlation-with-measures",
        "AHD of five guesses, HP@5, HS@250 and AHS@250 go together with the mean correlation of proxies.",
        "table S2",
        {"AHD@5": DOWN, "HP@5": UP, "HS@250": UP, "AHS@250": UP},
        "MC proxies",
        0,
    ),
    rank_claim(
        "correlation-top-1",
        "There is no trade-off between top-1 accuracy and the mean correlation of proxies.",
        "table S2",
        {"top-1": {"above": NO_TRADE_OFF}},
        "MC proxies",
        0,
        f"No trade-off is taken to be a coefficient above {NO_TRADE_OFF:g}.",
    ),
    rank_claim(
        "correlation-top-5",
        "There is a trade-off between top-5 accuracy and the mean correlation of proxies.",
        "table S2",
        {"top-5": DOWN},
        "MC proxies",
        0,
    ),
    rank_claim(
        "top-1-with-measures",
        "AHD of the first guess, HS@50 and AHS@250 go together with top-1 accuracy.",
        "table S3",
        {"AHD@1": DOWN, "HS@50": UP, "AHS@250": UP},
        "top-1",
        1,
    ),
    Claim(
        "top-5-with-nothing",
        "No measure goes together with top-5 accuracy on all five data sets.",
        "article IV, table S4",
        Table(["measure", "CIFAR-100"], [[k, v[2]] for k, v in RANKS.items() if v[2]]),
        why_not="This is about five data sets together, of which only CIFAR-100 is here.",
    ),
    Claim(
        "prototypes-early",
        "After one epoch, prototypes of ProxyDR already have a relatively high mean correlation with the tree, about "
        "0.4.",
        "article IV, figure 9",
        Table(["", "after one epoch"], [["CIFAR-100", "0.4"]]),
        SETTING,
        untrained_prototypes,
        command=COMMAND,
        picture="taxonomy-cifar-curves.png",
        page=PAGE,
        remark="Without the diagonal, which makes it harder. The frozen features that we begin with are at 0.50.",
    ),
    Claim(
        "gap-narrows",
        "Proxies of ProxyDR begin with a low mean correlation, and the difference to that of prototypes shrinks as "
        "training goes on.",
        "article IV, figure 9",
        None,
        SETTING,
        lambda: gap_narrows(PROXYDR),
        command=COMMAND,
        picture="taxonomy-cifar-curves.png",
        page=PAGE,
    ),
    Claim(
        "best-epochs-differ",
        "The epoch with the best validation accuracy is often not the one with the highest mean correlation.",
        "article IV, figure 9",
        None,
        SETTING,
        best_steps_differ,
        command=COMMAND,
        page=PAGE,
        remark="Often is taken to be more than half of the runs; 10 runs, looked at every 300 steps.",
    ),
    Claim(
        "dynamic-late-rise",
        "With a dynamic scale, ProxyDR's mean correlation of prototypes rises after 20 to 40 epochs and is highest "
        "near the end of 100.",
        "article IV, figure 9",
        None,
        why_not="Not run: our trainings have 11 epochs of a linear layer. Training the whole network for 100 "
        "epochs of 45,000 images, twice, would take about a week on two CPU cores.",
    ),
    Claim(
        "normface-falls-and-rises",
        "NormFace with a dynamic scale loses accuracy after some epochs, and its mean correlation rises even then.",
        "article IV, figure S19",
        None,
        SETTING,
        rising_while_falling,
        command=COMMAND,
        picture="taxonomy-cifar-curves.png",
        page=PAGE,
        remark="That the accuracy at the end lies below the best of ten looks is partly a matter of choosing the best.",
    ),
    Claim(
        "prototypes-approach-proxies",
        "With the tree and a dynamic scale, the mean correlation of prototypes approaches that of the fixed proxies; "
        "with CORR too.",
        "article IV, figures S19 to S21",
        None,
        SETTING,
        lambda: gap_narrows(("NormFace, MDS + dynamic", "ProxyDR, MDS + dynamic", "CORR, MDS")),
        command=COMMAND,
        page=PAGE,
    ),
    Claim(
        "proxies-from-prototypes",
        "Beginning with proxies at the prototypes may improve the first epochs.",
        "article IV, discussion and conclusion",
        None,
        why_not="The article proposes it and does not try it; no loss of the package begins so. Not run: it needs "
        "a new way to begin a bank of proxies, then some 20 trainings of 12 seconds.",
    ),
    Claim(
        "confusion-matrix",
        "Estimating the relations of classes by proxies is better than by a confusion matrix, above all where "
        "classes have few items.",
        "section 4.2; article IV, introduction",
        None,
        why_not="The document argues so and gives no figures to compare with.",
    ),
)
