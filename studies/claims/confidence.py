"""Calibrated neighborhood aware confidence measure for deep metric learning: what it claims, and where we look."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from nearkin.audits.calibration import OURS
from studies.claims.claim import Claim, Document, Table
from studies.claims.confidence_evidence import (
    RISING_KS,
    RIVALS,
    against,
    bins_calibrated,
    birds,
    flatter,
    gain_grows,
    over_ks,
    overconfident,
    sets,
    votes_over_one,
)
from studies.claims.confidence_models import ATTACKED, LOSSES, PAGE
from studies.ned.page import VOTES

NED_COMMAND, LOSSES_COMMAND = "python studies/ned/run.py", "python studies/ned_losses/run.py"
BIRDS = (
    "A head of 128 dimensions on frozen EfficientNet-Lite0 features, far below the paper's network, which is "
    "trained throughout: once by its normalised softmax, once by ProxyAnchor. Half of each of the 100 unseen classes "
    "is the support; five divisions, intervals over classes."
)
OTHERS = (
    "CUB-200-2011 (head on frozen features), and instead of CARS196, SOP and In-shop two data sets with small networks "
    "from random weights: 50 unseen classes of CIFAR-100 and 659 of Omniglot. Five divisions, intervals over classes."
)
CORRUPTED = (
    "The same models; 15 corruptions and 5 severities of 1,000 queries of the first division, support and temperature "
    "as for clean queries. Images of CIFAR-100 and Omniglot are smaller than the corruptions are made for."
)
ONE_LOSS = "CUB-200-2011 with a head on frozen features, trained by the paper's normalised softmax; five divisions."
CLEAN = Table(
    ["", "CUB-200", "ECE", "CARS196", "ECE", "SOP", "ECE", "InShop", "ECE"],
    [
        ["1NN", "67.2", "-", "89.1", "-", "81.2", "-", "90.9", "-"],
        ["kNN", "73.8", "9.2", "90.1", "10.0", "81.2", "24.4", "90.9", "32.5"],
        ["WkNN (Dudani)", "74.3", "20.5", "91.3", "12.2", "81.2", "5.2", "91.0", "17.8"],
        ["WkNN (Gou)", "74.3", "20.7", "91.3", "12.3", "81.2", "5.2", "91.1", "17.9"],
        ["NED", "74.9", "2.4", "91.5", "1.5", "81.2", "2.2", "91.3", "0.3"],
    ],
)
SHIFTED = Table(
    CLEAN.head,
    [
        ["1NN", "52.8", "-", "72.9", "-", "74.1", "-", "80.2", "-"],
        ["kNN", "60.5", "12.3", "76.0", "14.1", "75.1", "27.3", "81.8", "34.4"],
        ["WkNN (Dudani)", "62.1", "25.6", "77.0", "16.8", "75.2", "10.5", "82.5", "20.6"],
        ["WkNN (Gou)", "62.2", "25.6", "77.0", "16.9", "75.2", "10.5", "82.5", "20.6"],
        ["NED", "64.8", "3.0", "77.2", "2.3", "75.7", "2.9", "85.6", "0.9"],
    ],
)
ABSENT = "CARS196, Stanford Online Products and In-shop Clothes Retrieval are not among our data."
NO_FIGURE = "The figure itself is not in our copy of the document."
LEAST_GAIN, LEAST_ECE, LEAST_SHIFTED = 0.3, 3.0, 1.6
"""Points that the text names as the least."""


def _claim(key: str, text: str, where: str, theirs: Table | None, **more: Any) -> Claim:
    """A claim that the page on confidence says more of."""
    return Claim(key, text, where, theirs, page=PAGE, **more)


TABLE_1 = (
    _claim(
        "accuracy-1nn-cub",
        "NED names more queries right than the nearest neighbour, on CUB-200-2011.",
        "table 1",
        CLEAN,
        setting=BIRDS,
        evidence=lambda: against(birds(), ["1NN"], "accuracy", above=0),
        command=f"{NED_COMMAND} && {LOSSES_COMMAND}",
    ),
    _claim(
        "accuracy-votes-cub",
        "NED names more queries right than plain and weighted votes, on CUB-200-2011.",
        "table 1",
        CLEAN,
        setting=BIRDS,
        evidence=lambda: against(birds(), VOTES, "accuracy", above=0),
        command=f"{NED_COMMAND} && {LOSSES_COMMAND}",
    ),
    _claim(
        "ece-cub",
        "NED has a lower ECE than plain and weighted votes, on CUB-200-2011.",
        "table 1",
        CLEAN,
        setting=BIRDS,
        evidence=lambda: against(birds(), VOTES, "ECE", below=0),
        command=f"{NED_COMMAND} && {LOSSES_COMMAND}",
        picture="confidence-reliability.png",
    ),
    _claim(
        "accuracy-least",
        f"On every data set NED's accuracy is at least {LEAST_GAIN:g} points above that of 1NN.",
        "section 4, table 1",
        CLEAN,
        setting=OTHERS,
        evidence=lambda: against(sets("clean"), ["1NN"], "accuracy", above=LEAST_GAIN),
        command=NED_COMMAND,
        remark="The text says 0.3 to 7.3 points; the document's own table has 0.0 on SOP and 7.7 on CUB-200.",
    ),
    _claim(
        "accuracy-votes-others",
        "NED names more queries right than every vote, on data sets other than birds.",
        "section 4, table 1",
        CLEAN,
        setting=OTHERS,
        evidence=lambda: against(sets("clean", ["cifar100", "omniglot"]), VOTES, "accuracy", above=0),
        command=NED_COMMAND,
    ),
    _claim(
        "ece-others",
        "NED has a lower ECE than every vote, on data sets other than birds.",
        "section 4, table 1",
        CLEAN,
        setting=OTHERS,
        evidence=lambda: against(sets("clean", ["cifar100", "omniglot"]), VOTES, "ECE", below=0),
        command=NED_COMMAND,
    ),
    _claim(
        "ece-least",
        f"On every data set the votes' ECE is at least {LEAST_ECE:g} points above NED's.",
        "section 4, table 1",
        CLEAN,
        setting=OTHERS,
        evidence=lambda: against(sets("clean"), VOTES, "ECE", below=-LEAST_ECE),
        command=NED_COMMAND,
        remark="The text says 3 to 31.2 points; the document's own table has up to 32.2, on In-shop.",
    ),
    _claim(
        "votes-over-1nn",
        "Plain and weighted votes, too, name more queries right than the nearest neighbour alone.",
        "section 4, table 1",
        CLEAN,
        setting="CUB-200-2011 with heads on frozen features, every loss of ned_losses/run.py that is finished.",
        evidence=votes_over_one,
        command=LOSSES_COMMAND,
        remark="On SOP and In-shop the document's own table has kNN equal to 1NN.",
    ),
    _claim(
        "scarce-accuracy",
        "With few items a class (SOP has 2 to 12) NED is as accurate as 1NN and votes, no more.",
        "section 4, table 1",
        CLEAN,
        setting="Omniglot, 10 support items a class, for SOP; as accurate is within a point.",
        evidence=lambda: against(sets("clean", ["omniglot"]), RIVALS, "accuracy", above=-1, below=1),
        command=NED_COMMAND,
    ),
    _claim(
        "scarce-ece",
        "With few items a class NED is still better calibrated than votes.",
        "section 4, table 1",
        CLEAN,
        setting="Omniglot, 10 support items a class, for SOP.",
        evidence=lambda: against(sets("clean", ["omniglot"]), VOTES, "ECE", below=0),
        command=NED_COMMAND,
    ),
    _claim("clean-absent", "The same on CARS196, SOP and In-shop.", "table 1", CLEAN, why_not=ABSENT),
)
FIGURES = (
    _claim(
        "votes-overconfident",
        "Plain and weighted votes are surer than they are right.",
        "section 4, figure 1",
        None,
        setting=f"{ONE_LOSS} The figure is of CARS196. Votes have the k that names most support points right.",
        evidence=overconfident,
        command=LOSSES_COMMAND,
        remark=NO_FIGURE,
    ),
    _claim(
        "bins-calibrated",
        "All bins of NED's reliability diagram are well calibrated, which those of votes are not.",
        "section 4, figure 1",
        None,
        setting=f"{ONE_LOSS} The figure is of CARS196. Compared is the worst bin that holds 1 % of the queries.",
        evidence=bins_calibrated,
        command=LOSSES_COMMAND,
        remark=NO_FIGURE,
    ),
    _claim(
        "k-plain-falls",
        "The accuracy of the plain vote falls as k grows.",
        "section 4, figure 2",
        None,
        setting=ONE_LOSS,
        evidence=lambda: over_ks([(("kNN", "200"), ("kNN", "10"))], below=0),
        command=LOSSES_COMMAND,
        picture="confidence-sensitivity.png",
        remark=f"{NO_FIGURE} The picture here is of ProxyAnchor.",
    ),
    _claim(
        "k-weighted-better",
        "At a large k weighted votes are better than plain ones.",
        "section 4, figure 2",
        None,
        setting=ONE_LOSS,
        evidence=lambda: over_ks([((vote, "200"), ("kNN", "200")) for vote in VOTES[1:]], above=0),
        command=LOSSES_COMMAND,
        remark=NO_FIGURE,
    ),
    _claim(
        "k-large",
        "At a large k NED is better than plain and weighted votes.",
        "section 4, figure 2",
        None,
        setting=ONE_LOSS,
        evidence=lambda: over_ks([((OURS, "200"), (vote, "200")) for vote in VOTES], above=0),
        command=LOSSES_COMMAND,
        remark=NO_FIGURE,
    ),
    _claim(
        "k-monotonic",
        "NED's accuracy improves with every larger k.",
        "section 4, figure 2",
        None,
        setting=f"{ONE_LOSS} Steps from k = 5 to 200, the temperature fitted anew at each.",
        evidence=lambda: over_ks([((OURS, after), (OURS, before)) for before, after in pairwise(RISING_KS)], above=0),
        command=LOSSES_COMMAND,
        remark=NO_FIGURE,
    ),
    _claim(
        "k-flat",
        "NED's accuracy varies less with k than that of votes, so that k need not be chosen with care.",
        "section 4, figure 2",
        None,
        setting=ONE_LOSS,
        evidence=flatter,
        command=LOSSES_COMMAND,
        remark=NO_FIGURE,
    ),
)
TABLE_2 = (
    _claim(
        "corrupted-accuracy-least",
        f"On corrupted queries NED is at least {LEAST_SHIFTED:g} points more accurate than 1NN, on every data set.",
        "section 5, table 2",
        SHIFTED,
        setting=CORRUPTED,
        evidence=lambda: against(sets("corrupted"), ["1NN"], "accuracy", above=LEAST_SHIFTED),
        command=NED_COMMAND,
        picture="confidence-severity.png",
    ),
    _claim(
        "corrupted-gain-grows",
        "NED's gain over 1NN is larger on corrupted queries than on clean ones.",
        "section 5, tables 1 and 2",
        SHIFTED,
        setting=f"{CORRUPTED} The two gains were not resampled together: their half widths add up.",
        evidence=gain_grows,
        command=NED_COMMAND,
    ),
    _claim(
        "corrupted-accuracy-votes",
        "On corrupted queries NED is more accurate than plain and weighted votes.",
        "section 5, table 2",
        SHIFTED,
        setting=CORRUPTED,
        evidence=lambda: against(sets("corrupted"), VOTES, "accuracy", above=0),
        command=NED_COMMAND,
        picture="confidence-severity.png",
    ),
    _claim(
        "corrupted-ece",
        "On corrupted queries NED has a lower ECE than plain and weighted votes.",
        "section 5, table 2",
        SHIFTED,
        setting=CORRUPTED,
        evidence=lambda: against(sets("corrupted"), VOTES, "ECE", below=0),
        command=NED_COMMAND,
        picture="confidence-severity.png",
    ),
    _claim("corrupted-absent", "The same on CARS196, SOP and In-shop.", "table 2", SHIFTED, why_not=ABSENT),
)
DOCUMENT = Document(
    slug="confidence",
    title="Calibrated neighborhood aware confidence measure for deep metric learning",
    authors="Maryna Karpusha, Sunghee Yun, Istvan Fehervari, preprint",
    claims=(*TABLE_1, *FIGURES, *TABLE_2, *ATTACKED, *LOSSES),
)
