"""Article I of Kim's thesis: embeddings by triplets name trained classes and others; clusters while they form."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from nearkin.metrics import paired_permutation
from studies.claims.claim import Claim, Compared, Evidence, Table
from studies.claims.distance_readings import by_seed, ledger, share, unpaired

COMMAND, BESIDE = "python studies/plankton/run.py", "python studies/separation/run.py"
PAGE = "guide/plankton.md"
SETTING = (
    "Birds of CUB-200-2011 in place of plankton, 100 seen and 100 unseen species; a linear head of 128 dimensions on a "
    "frozen EfficientNet-Lite0 in place of a whole Inception v3; ten photographs of a class are its reference and ten "
    "are named, in place of fifty. Three seeds."
)
OVER_CLASSES = "Means over seeds; the interval is over classes."
UNEQUAL = "The classifier has learned from some 40 photographs of a class by Adam, votes have ten to compare with."
FAR, SLIGHT, RESAMPLES = 5.0, 5.0, 2000
"""Points of F1: more than this is a large margin, and less is slight; the article gives no bound."""
VOTES, CENTROID = "10-NN", "centroid"
PRIVATE = "ZooScanNet is not among the data here, and the claim is about its classes by name."


def scores(part: str, classifier: str) -> dict[str, float]:
    """Class to its F1, the mean over seeds."""
    lines = [line[part]["F1"][classifier] for line in ledger("plankton")]
    return {name: float(np.mean([line[name] for line in lines])) for name in lines[0]}


def classifier_scores() -> dict[str, float]:
    """The same of the softmax classifier of the seen classes."""
    lines = [line["F1"] for line in ledger("separation") if line["cell"] == "classifier"]
    return {name: float(np.mean([line[name] for line in lines])) for name in lines[0]}


def over_classes(what: str, first: Mapping[str, float], second: Mapping[str, float], **expected: float) -> Compared:
    """The first minus the second in points, paired over classes."""
    found = paired_permutation(dict(first), dict(second))
    ends = (found.difference, found.low, found.high)
    return Compared(what, *(100 * float(value) for value in ends), **expected)


def macro(**parts: Mapping[str, float]) -> Table:
    return Table(["", "macro F1 (%)"], [[n.replace("_", " "), f"{100 * np.mean(list(v.values())):.1f}"]
                                        for n, v in parts.items()])  # fmt: skip


def beside_classifier(**expected: float) -> Evidence:
    """The classifier minus the embedding with ten votes, on seen classes."""
    ours, other = scores("seen", VOTES), classifier_scores()
    return Evidence([over_classes("classifier against embedding with ten votes, macro F1, points", other, ours,
        **expected)],
                    macro(classifier=other, embedding_with_ten_votes=ours))  # fmt: skip


def votes_against(others: Sequence[str], part: str, **expected: float) -> Evidence:
    """Ten votes minus another way to name, over classes."""
    ten = scores(part, VOTES)
    found = [
        over_classes(f"ten votes against {name}, {part} classes, macro F1, points", ten, scores(part, name), **expected)
        for name in others
    ]
    return Evidence(found, macro(**{name: scores(part, name) for name in (VOTES, *others)}))


def unseen_lower() -> Evidence:
    """Unseen minus seen classes, by ten votes."""
    unseen, seen = (scores(part, VOTES) for part in ("unseen", "seen"))
    compared = unpaired("unseen against seen classes, ten votes, macro F1, points", list(unseen.values()),
                        list(seen.values()), scale=100, below=0.0)  # fmt: skip
    return Evidence([compared], macro(seen=seen, unseen=unseen))


def variable() -> Evidence:
    """The spread of F1 over unseen classes against that over seen ones, by centroids."""
    unseen, seen = (np.array(list(scores(part, CENTROID).values())) for part in ("unseen", "seen"))
    rng = np.random.default_rng(0)
    first, second = (rng.choice(each, (RESAMPLES, len(each))).std(axis=1, ddof=1) for each in (unseen, seen))
    low, high = np.percentile(first - second, (2.5, 97.5))
    value = float(unseen.std(ddof=1) - seen.std(ddof=1))
    rows = [[name, *(f"{one:.2f}" for one in (x.min(), x.max(), x.std(ddof=1)))] for name, x in
            (("seen", seen), ("unseen", unseen))]  # fmt: skip
    compared = Compared("standard deviation of F1 over unseen classes against over seen ones", value, float(low),
                        float(high), above=0.0, digits=3)  # fmt: skip
    return Evidence([compared], Table(["classes", "lowest F1", "highest", "standard deviation"], rows))


def relatives(part: str) -> Evidence:
    """How many of the commonest confusions are between species of one name, against what chance would give."""
    lines = ledger("plankton")
    pairs = {tuple(pair[:2]) for line in lines for pair in line[part]["confusions"]}
    families = [_family(name) for name in lines[0][part]["F1"][VOTES]]
    alike = sum(_family(true) == _family(taken) for true, taken in pairs)
    same = sum(families.count(name) - 1 for name in families) / (len(families) * (len(families) - 1))
    compared = share(f"commonest confusions between {part} species of one name, %", alike, len(pairs), above=100 * same)
    rows = [[true, taken, "yes" if _family(true) == _family(taken) else "no"] for true, taken in sorted(pairs)[:10]]
    return Evidence([compared], Table(["species", "taken for", "of one name"], rows))


def _family(name: str) -> str:
    """Shrike, of 112.Great_Grey_Shrike."""
    return re.split(r"[._]", name)[-1].lower()


def measured(key: str, text: str, where: str, theirs: Table | None, evidence: Callable[[], Evidence],
    command: str = COMMAND, remark: str = "",
             picture: str = "plankton-f1-seen.png") -> Claim:  # fmt: skip
    return Claim(key, text, f"article I, {where}", theirs, SETTING, evidence, command=command, picture=picture,
        page=PAGE,
                 remark=remark)  # fmt: skip


F1 = Table(["", "average F1"], [["classifier", "0.87"], ["embedding, kNN, k = 10", "0.84"]])


def clusters(key: str, **expected: float) -> Evidence:
    """A measure of the clusters at the end of training minus at the first look."""
    ends = [{line["seed"]: line["clusters"][key][place] for line in ledger("plankton")} for place in (0, -1)]
    scale, digits = (100.0, 1) if key == "accuracy" else (1.0, 3)
    names = {
        "radius": "cluster radius",
        "drift": "movement of centroids",
        "accuracy": "items nearest to their centroid",
    }
    what = f"{names[key]}, last look against the first" + (", points" if scale > 1 else "")
    return Evidence([by_seed(what, ends[1], ends[0], scale=scale, digits=digits, **expected)])


def gains_shrink() -> Evidence:
    """What centroids gain in the last three quarters of training minus what they gain in the first."""
    curves = {line["seed"]: line["clusters"]["accuracy"] for line in ledger("plankton")}
    first = {seed: curve[len(curve) // 4] - curve[0] for seed, curve in curves.items()}
    later = {seed: curve[-1] - curve[len(curve) // 4] for seed, curve in curves.items()}
    return Evidence([by_seed("gain of later looks against that of the first quarter, points", later, first, scale=100,
                             below=0.0)])  # fmt: skip


CLAIMS = (
    Claim(
        "plankton-classifier",
        "An Inception v3 classifier reaches 87.7 % on 65 classes of plankton.",
        "article I, section 3.1",
        Table(["", "accuracy"], [["test set", "87.7%"]]),
        why_not="ZooScanNet is not among the data here, and there is no GPU to train an Inception v3 for 200 epochs.",
    ),
    measured(
        "classifier-ahead",
        "On classes that were trained, a classifier is better than the embedding.",
        "discussion",
        F1,
        lambda: beside_classifier(above=0.0),
        BESIDE,
        f"{OVER_CLASSES} {UNEQUAL}",
    ),
    measured(
        "classifier-comparable",
        "The embedding names trained classes with accuracy comparable to a classifier's.",
        "abstract; discussion",
        F1,
        lambda: beside_classifier(below=FAR),
        BESIDE,
        f"{OVER_CLASSES} Comparable is taken to be less than {FAR:g} points behind. {UNEQUAL}",
    ),
    Claim(
        "embedding-ahead-somewhere",
        "The embedding is better than the classifier on several classes.",
        "article I, section 3.4, figure 3; discussion",
        Table(["F1", "classifier", "embedding"], [["Calanoida", "0.50", "0.96"], ["larvae_Crustacea", "0.62", "0.84"]]),
        why_not="The claim names no number of classes, and with ten photographs of each some come out ahead by "
        "chance alone; it would take hundreds of each class to tell.",
    ),
    Claim(
        "classifier-fine",
        "The classifier is better at classes that look alike, such as eggs or nauplii.",
        "article I, section 3.4; discussion",
        Table(
            ["F1", "classifier", "embedding"],
            [
                ["nauplii_Cirripedia", "0.97", "0.51"],
                ["egg_Cavolinia_inflexa", "0.93", "0.33"],
                ["egg_Actinopterygii", "0.94", "0.70"],
            ],
        ),
        why_not=PRIVATE,
    ),
    measured(
        "ten-votes",
        "Ten neighbours are a good number to vote: more right than one or five.",
        "section 3.4",
        None,
        lambda: votes_against(("1-NN", "5-NN"), "seen", above=0.0),
        remark=OVER_CLASSES,
    ),
    measured(
        "confusions-seen",
        "Trained classes are confused with what they resemble: parts, stages and similar species.",
        "section 3.4, table 1",
        Table(
            ["true", "taken for", "rate"],
            [["tail_Appendicularia", "tail_Chaetognatha", "0.380"], ["Oncaeidae", "Harpacticoida", "0.260"]],
        ),
        lambda: relatives("seen"),
        remark="Species resemble each other here if their names end alike, as those of two terns do. The ten "
        "commonest confusions of three seeds, against the share of all pairs of species.",
    ),
    measured(
        "confusions-unseen",
        "So are classes that never trained.",
        "section 3.5, table 2",
        Table(
            ["true", "taken for", "rate"],
            [["eudoxie Abylopsis tetragona", "nectophore", "0.320"], ["Scyphozoa", "ephyra", "0.280"]],
        ),
        lambda: relatives("unseen"),
        picture="plankton-f1-unseen.png",
        remark="As above.",
    ),
    measured(
        "unseen-modest",
        "Classes that never trained are named by the same embedding, less well than trained ones.",
        "section 3.5; discussion",
        Table(["", "average F1"], [["seen", "0.84"], ["unseen", "0.61"]]),
        unseen_lower,
        remark=f"{OVER_CLASSES} Untrained features name the unseen birds better than this embedding does.",
        picture="plankton-f1-unseen.png",
    ),
    measured(
        "unseen-variable",
        "How well unseen classes are named varies much, more than among seen ones.",
        "section 3.5, figure 5",
        Table(
            ["class", "F1"],
            [
                ["Rhopalonema", "0.86"],
                ["egg_other", "0.83"],
                ["badfocus_artifact", "0.82"],
                ["Aglaura", "0.19"],
                ["eudoxie", "0.11"],
                ["Euchirella", "0.07"],
            ],
        ),
        variable,
        remark="The interval draws classes anew. The article shows the variation and gives no measure of it.",
        picture="plankton-f1-unseen.png",
    ),
    measured(
        "votes-slightly-ahead",
        "On unseen classes votes are slightly better than centroids.",
        "section 3.5, figure 5",
        None,
        lambda: votes_against((CENTROID,), "unseen", above=0.0, below=SLIGHT),
        remark=OVER_CLASSES + " The article says so of several classes.",
        picture="plankton-f1-unseen.png",
    ),
    Claim(
        "map",
        "Classes form clusters that can be seen in a t-SNE map of the embedding.",
        "article I, figures 2 and 6",
        None,
        why_not="The claim is of a picture and has no figure. Our maps: plankton-map-seen.png and "
        "plankton-map-unseen.png in docs/images.",
        picture="plankton-map-unseen.png",
        page=PAGE,
    ),
    Claim(
        "ensemble",
        "Both ways together are likely best, and more diverse data is likely to help new classes.",
        "article I, discussion",
        None,
        why_not="The article supposes so and did not try it.",
    ),
    measured(
        "radii-shrink",
        "As training goes on, the radii of clusters shrink.",
        "section 3.2",
        None,
        lambda: clusters("radius", below=0.0),
        picture="plankton-clusters.png",
    ),
    measured(
        "drift-falls",
        "As training goes on, centroids move less.",
        "section 3.2",
        None,
        lambda: clusters("drift", below=0.0),
        picture="plankton-clusters.png",
    ),
    measured(
        "centroids-improve",
        "As training goes on, more items are nearest to the centroid of their own class.",
        "section 3.2",
        None,
        lambda: clusters("accuracy", above=0.0),
        picture="plankton-clusters.png",
        remark="The first look is after 100 of 4,000 steps, when most has been learned.",
    ),
    measured(
        "gains-shrink",
        "That improves fast at first and hardly later.",
        "section 3.2",
        None,
        gains_shrink,
        picture="plankton-clusters.png",
        remark="The first quarter of what was looked at, against the rest.",
    ),
)
