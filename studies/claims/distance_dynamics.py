"""Article II of Kim's thesis: what an update moves, by distance ratios (DR) and by softmax (S)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from studies.claims.claim import Evidence, Table
from studies.claims.distance_ratio import CHECKPOINTS, RESNET, cell, formulations, refused, trained, values
from studies.claims.distance_readings import share_difference, unpaired


def norm_ratio(task: str, shots: Sequence[int]) -> Evidence:
    """S minus DR in the logarithm of the norm ratio, whose mean is that of the geometric mean."""
    found, rows = [], []
    for shot in shots:
        softmax, ratio = (np.log(values(cell(task, "protonet", form, shot), "norm_ratio")) for form in ("s", "dr"))
        what = f"{shot}-shot, S against DR, logarithm of the norm ratio"
        found.append(unpaired(what, softmax, ratio, below=0.0, digits=5))
        rows.append([f"{shot}-shot", f"{np.exp(softmax.mean()):.5f}", f"{np.exp(ratio.mean()):.5f}"])
    return Evidence(found, Table(["geometric mean", "S", "DR"], rows))


def proper(task: str, shots: Sequence[int], measure: str) -> Evidence:
    """DR minus S in the share of checkpoints that learned properly."""
    found, rows = [], []
    for shot in shots:
        counts = []
        for form in ("dr", "s"):
            seen = values(cell(task, "protonet", form, shot), measure)
            counts.append((int((seen > 1).sum() if measure == "div_alpha" else (seen < 1).sum()), len(seen)))
        found.append(share_difference(f"{shot}-shot, DR against S, properly learned, points", *counts, above=0.0))
        rows.append([f"{shot}-shot", *(f"{100 * hits / of:.1f} of {of}" for hits, of in reversed(counts))])
    return Evidence(found, Table(["properly learned (%)", "S", "DR"], rows))


CLAIMS = (
    trained(
        "cub-norm-ratio",
        "With Conv4 on CUB, more of S's updates than of DR's goes into scale: its norm ratio is smaller.",
        "tables 3 and 7",
        formulations(["1-shot", "0.97218", "0.99898"], ["5-shot", "0.98439", "0.99863"]),
        partial(norm_ratio, "cub", (1, 5)),
        "cub",
        CHECKPOINTS,
        "1shot-dynamics",
    ),
    trained(
        "mini-norm-ratio",
        "The same on mini-ImageNet.",
        "tables 5 and 9",
        formulations(["1-shot", "0.97620", "0.99940"], ["5-shot", "0.98565", "0.99930"]),
        partial(norm_ratio, "omniglot", (1, 5)),
        "omniglot",
        CHECKPOINTS,
        "1shot-dynamics",
    ),
    refused(
        "resnet-norm-ratio",
        "With ResNet-18 the norm ratio is close to 1 in both formulations.",
        "tables 4, 6, 8 and 10",
        formulations(
            ["CUB, 1-shot", "0.99778", "0.99789"],
            ["mini-ImageNet, 1-shot", "0.99889", "0.99705"],
            ["CUB, 5-shot", "0.99790", "0.99928"],
            ["mini-ImageNet, 5-shot", "0.99925", "0.99914"],
        ),
        RESNET,
    ),
    trained(
        "cub-con-alpha",
        "With one shot on CUB, queries come nearer to their own class in more of DR's updates.",
        "table 3",
        formulations(["properly converged", "0.87000", "0.95667"]),
        partial(proper, "cub", (1,), "con_alpha"),
        "cub",
        CHECKPOINTS,
        "1shot-dynamics",
    ),
    trained(
        "mini-con-alpha",
        "The same on mini-ImageNet.",
        "table 5",
        formulations(["properly converged", "0.85500", "0.95000"]),
        partial(proper, "omniglot", (1,), "con_alpha"),
        "omniglot",
        CHECKPOINTS,
        "1shot-dynamics",
    ),
    trained(
        "cub-div-alpha",
        "On CUB, queries move away from other classes in more of DR's updates, with one shot and with five.",
        "tables 3 and 7",
        formulations(["1-shot", "0.63667", "0.80833"], ["5-shot", "0.70500", "0.91500"]),
        partial(proper, "cub", (1, 5), "div_alpha"),
        "cub",
        CHECKPOINTS,
        "1shot-dynamics",
    ),
    trained(
        "mini-div-alpha",
        "The same on mini-ImageNet.",
        "tables 5 and 9",
        formulations(["1-shot", "0.67500", "0.83333"], ["5-shot", "0.78000", "0.96000"]),
        partial(proper, "omniglot", (1, 5), "div_alpha"),
        "omniglot",
        CHECKPOINTS,
        "1shot-dynamics",
    ),
    trained(
        "cub-con-div",
        "On CUB, the own class comes nearer relative to the others in more of DR's updates.",
        "tables 3 and 7",
        formulations(["1-shot", "0.96833", "0.99500"], ["5-shot", "0.92000", "0.97000"]),
        partial(proper, "cub", (1, 5), "con_div"),
        "cub",
        CHECKPOINTS,
        "1shot-dynamics",
    ),
    trained(
        "mini-con-div",
        "The same on mini-ImageNet with one shot.",
        "table 5",
        formulations(["1-shot", "0.95333", "0.99000"]),
        partial(proper, "omniglot", (1,), "con_div"),
        "omniglot",
        CHECKPOINTS,
        "1shot-dynamics",
    ),
    refused(
        "resnet-ratios",
        "With ResNet-18 and one shot, more of DR's updates converge and diverge properly, too.",
        "tables 4 and 6",
        formulations(
            ["CUB, converged", "0.94833", "0.99333"],
            ["CUB, diverged", "0.72500", "0.86000"],
            ["mini-ImageNet, converged", "0.95000", "0.98333"],
            ["mini-ImageNet, diverged", "0.67167", "0.88167"],
        ),
        RESNET,
    ),
)
