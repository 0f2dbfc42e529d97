"""Article I of Kim's thesis: clusters while they form."""

from __future__ import annotations

from claims import Evidence

from seeds.distance_plankton import measured
from seeds.distance_readings import by_seed, ledger


def clusters(key: str, **expected: float) -> Evidence:
    """A measure of the clusters at the end of training minus at the first look."""
    ends = [{line["seed"]: line["clusters"][key][place] for line in ledger("plankton.jsonl")} for place in (0, -1)]
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
    curves = {line["seed"]: line["clusters"]["accuracy"] for line in ledger("plankton.jsonl")}
    first = {seed: curve[len(curve) // 4] - curve[0] for seed, curve in curves.items()}
    later = {seed: curve[-1] - curve[len(curve) // 4] for seed, curve in curves.items()}
    return Evidence([by_seed("gain of later looks against that of the first quarter, points", later, first, scale=100,
                             below=0.0)])  # fmt: skip


CLAIMS = (
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
