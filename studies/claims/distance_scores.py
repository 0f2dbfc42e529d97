"""Articles II and IV and appendix A of Kim's thesis: what can be computed of scores and balls without any data."""

from __future__ import annotations

from typing import Any

import numpy as np

from studies.claims.claim import Claim, Compared, Evidence, Table
from studies.claims.distance_readings import exact, kept

COMMAND = "python studies/dr_pictures/run.py"
EXAMPLES = "python studies/distance_examples/run.py"
PAGE = "methods/distance-ratio.md"
SAME = "The document's own example, computed anew."
COMPUTED = "Computed, not sampled: no interval."
NEAR, TINY = 0.01, 1e-6
RED, OTHERS = {"plane": [0.0, 0.6], "sphere": [0.0, 0.0, 1.0]}, {"sphere": [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]],
                                                                "plane": [[-0.6, -0.3], [0.6, -0.3]]}  # fmt: skip


def toy_scale() -> Evidence:
    """Table 1: what doubling all distances does to both losses."""
    once, twice = kept("dr_pictures")["table"]
    rows = [
        [name, f"{row['softmax_loss']:.5g}", f"{row['dr_loss']:.5g}"] for name, row in (("(a)", once), ("(b)", twice))
    ]
    return Evidence(
        [
            exact("S, loss of the doubled case against the first", twice["softmax_loss"] - once["softmax_loss"],
                  below=-0.048, digits=6),
            exact("DR, the same", twice["dr_loss"] - once["dr_loss"], above=-TINY, below=TINY, digits=6),
        ],
        Table(["case", "loss of S", "loss of DR"], rows),
    )  # fmt: skip


def distance(points: Any, of: Any) -> float:
    """Of the nearest point (m, d) to any of those given (n, d)."""
    gaps = np.asarray(points, dtype=float)[:, None] - np.asarray(of, dtype=float)[None]
    return float(np.linalg.norm(gaps, axis=2).min())


def peaks(models: dict[str, str], apart: bool) -> Evidence:
    """How far the largest p(red) is from red's representative, and the smallest from those of the others."""
    found: list[Compared] = []
    rows = []
    seen = kept("dr_pictures")["models"]
    for name, where in models.items():
        most = distance(seen[name]["largest"]["points"], [RED[where]])
        least = distance(seen[name]["smallest"]["points"], OTHERS[where])
        expected = {"above": NEAR} if apart else {"below": NEAR}
        found += [exact(f"{name}, distance of the largest p(red) from red", most, digits=2, **expected),
                  exact(f"{name}, distance of the smallest from green and blue", least, digits=2,
                      **expected)]  # fmt: skip
        rows.append([name, f"{seen[name]['own']:.3f}", f"{seen[name]['largest']['p']:.3f}"])
    return Evidence(found, Table(["model", "p(red) at red", "largest p(red)"], rows))


def opposite() -> Evidence:
    """Figure 8: softmax by angles is least likely red opposite of red."""
    points = kept("dr_pictures")["models"]["softmax, angle"]["smallest"]["points"]
    gap = distance(points, [[-value for value in RED["sphere"]]])
    return Evidence(
        [exact("distance of the smallest p(red) from the point opposite of red", gap, below=NEAR, digits=3)]
    )


def on_circle() -> Evidence:
    """Figure 2 of article IV."""
    found = kept("distance_examples")["circle"]
    compared = [
        exact(f"{name}, degrees from {'135' if name.startswith('Norm') else '90'}",
              one["degrees"] - (135 if name.startswith("Norm") else 90), above=-0.06, below=0.06, digits=2)
        for name, one in found.items()
    ]  # fmt: skip
    return Evidence(
        compared, Table(["model", "likeliest at, degrees"], [[n, f"{o['degrees']:g}"] for n, o in found.items()])
    )


def hull(flat: bool) -> Evidence:
    """Appendix A: the hull's gauge over that of the combined ball."""
    rows = [row for row in kept("distance_examples")["balls"] if (row["d"] == 2) == flat]
    compared = []
    for row in rows:
        name = f"d = {row['d']}, eps1 = {row['eps1']:g} eps_inf"
        if flat:
            compared.append(exact(f"{name}, largest ratio of gauges", row["largest"], below=1 + 2e-6, digits=6))
        else:
            compared.append(exact(f"{name}, hull's gauge at x*", row["hull at x*"], above=1 + 2e-6, digits=3))
        compared.append(exact(f"{name}, smallest ratio of gauges", row["smallest"], above=1 - 2e-6, digits=6))
    told = [[str(row["d"]), f"{row['eps1']:g}", f"{row['smallest']:.4f} to {row['largest']:.4f}"] for row in rows]
    return Evidence(compared, Table(["d", "eps1 / eps_inf", "gauge of the hull over that of the ball"], told))


CLAIMS = (
    Claim(
        "scale",
        "Doubling an embedding changes the loss of S and not that of DR.",
        "article II, table 1",
        Table(
            ["case", "loss of S", "loss of DR"], [["(a)", "0.048587", "0.22314"], ["(b)", "6.1442 × 10⁻⁶", "0.22314"]]
        ),
        SAME,
        toy_scale,
        command=COMMAND,
        picture="dr-plane.png",
        page=PAGE,
        remark=COMPUTED,
    ),
    Claim(
        "plane-softmax",
        "In the plane, S is not most certain of a class at its prototype, nor least certain at those of others.",
        "article II, figure 1a",
        None,
        SAME,
        lambda: peaks({"SD-softmax": "plane"}, apart=True),
        command=COMMAND,
        picture="dr-plane.png",
        page=PAGE,
        remark=COMPUTED,
    ),
    Claim(
        "plane-ratio",
        "DR is most certain of a class at its prototype and least certain at those of others.",
        "article II, figures 1b and 1c, equations 7 and 8",
        None,
        SAME,
        lambda: peaks({"DR, rho 2": "plane", "DR, rho 8": "plane"}, apart=False),
        command=COMMAND,
        picture="dr-plane.png",
        page=PAGE,
        remark=COMPUTED,
    ),
    Claim(
        "sphere-cosine",
        "On the sphere, NormFace, SphereFace, CosFace and ArcFace are most certain of a class away from its vector, "
        "and least certain away from those of others.",
        "article II, appendix E, figure 7",
        None,
        SAME,
        lambda: peaks(dict.fromkeys(("NormFace", "SphereFace, k = 0", "CosFace", "ArcFace"), "sphere"), apart=True),
        command=COMMAND,
        picture="dr-sphere-cosine.png",
        page=PAGE,
        remark=COMPUTED,
    ),
    Claim(
        "sphere-angle",
        "By angles, softmax is most certain of a class away from its vector.",
        "article II, appendix E, figure 8",
        None,
        SAME,
        lambda: peaks({"softmax, angle": "sphere"}, apart=True),
        command=COMMAND,
        picture="dr-sphere-angle.png",
        page=PAGE,
        remark=COMPUTED,
    ),
    Claim(
        "sphere-angle-opposite",
        "It is least certain of it at the point opposite of its vector.",
        "article II, appendix E, figure 8",
        None,
        SAME,
        opposite,
        command=COMMAND,
        picture="dr-sphere-angle.png",
        page=PAGE,
        remark=COMPUTED,
    ),
    Claim(
        "sphere-ratio",
        "By angles, DR is most certain at the class's vector and least certain at those of others.",
        "article II, appendix E, figure 8",
        None,
        SAME,
        lambda: peaks({"DR, angle, rho 2": "sphere"}, apart=False),
        command=COMMAND,
        picture="dr-sphere-angle.png",
        page=PAGE,
        remark=COMPUTED,
    ),
    Claim(
        "circle",
        "With proxies (0, 1) and (1, 0), NormFace with s = 2 is most certain of class 1 at 135 degrees; DR "
        "is at its proxy, at 90 degrees, for any s.",
        "article IV, SD softmax and DR formulation, figure 2",
        None,
        SAME,
        on_circle,
        command=EXAMPLES,
        page=PAGE,
        remark=f"{COMPUTED} Exponents of 0.5, 2 and 10 are tried.",
    ),
    Claim(
        "hull-plane",
        "In two dimensions, the convex hull of an l1 and an linf ball is the ball of the combined distance.",
        "appendix A",
        None,
        "Random points stand for all of them.",
        lambda: hull(flat=True),
        command=EXAMPLES,
        remark="The gauges of both sets are equal at 5,000 points for each of three radii.",
    ),
    Claim(
        "hull-space",
        "In more dimensions, the hull is a proper part of that ball.",
        "appendix A",
        None,
        "Random points stand for all of them; the point x* is that of the proof.",
        lambda: hull(flat=False),
        command=EXAMPLES,
        remark="5,000 points for each of three radii, in 3, 10 and 784 dimensions.",
    ),
)
