"""Generalized sum pooling: its settings (figure 5.8, section 5.3.4.5), by the book `gsp-settings` once it is there."""

from __future__ import annotations

from typing import Any

from studies.claims.claim import Claim, Table
from studies.claims.generalize_benchmarks import LITTLE, MAPS_COST, SETTING
from studies.claims.generalize_reading import Pairs, gain, if_kept
from studies.gsp.run import USUAL

MODELS = 40
"""Of the book, each a line, beside concatenated ones and the untrained features."""
TABLE_54 = Table(
    ["prototypes", "budget", "sharpness", "lambda", "MAP@R, C2", "MAP@R, PNCA"],
    [
        ["16", "0.3", "0.5", "0.1", "40.63", "40.59"],
        ["16", "0.7", "0.5", "0.5", "40.41", "40.34"],
        ["128", "0.3", "0.5", "0.5", "40.22", "40.35"],
        ["128", "0.7", "0.5", "0.1", "40.07", "40.85"],
        ["16", "0.3", "20", "0.5", "36.11", "40.51"],
        ["16", "0.7", "20", "0.1", "39.11", "39.88"],
        ["128", "0.3", "20", "0.1", "39.61", "39.12"],
        ["128", "0.7", "20", "0.5", "35.36", "39.92"],
        ["baseline", "", "", "", "39.77", "39.90"],
    ],
)


def _claim(key: str, text: str, where: str, pairs: Pairs, numbers: Table | None = None, **expected: Any) -> Claim:
    tested = if_kept(
        "studies/gsp/gsp-settings/ledger.jsonl",
        MODELS,
        gain("gsp-settings", pairs, kinds=("separate",), **expected),
        "python studies/gsp/run.py settings",
        f"{MAPS_COST} {MODELS} models of half a minute, on two cores",
    )
    setting = (
        f"{SETTING} One setting changed at a time ({USUAL} otherwise), single models, measured on the test classes."
    )
    return Claim(key, text, where, numbers, setting=setting, page="results/gsp.md", **tested)


CLAIMS = [
    _claim(
        "budget-low",
        "Low budgets do alike (we say: 0.1 is within half a point of 0.3).",
        "section 5.3.4.3, figure 5.8",
        [("budget 0.1", USUAL)],
        above=-LITTLE,
        below=LITTLE,
    ),
    _claim(
        "budget-high",
        "With a higher budget, 0.6, MAP@R falls towards that of GAP.",
        "section 5.3.4.3, figure 5.8, and table 5.4",
        [("budget 0.6", USUAL)],
        TABLE_54,
        below=0.0,
    ),
    _claim(
        "zero-shot-weight",
        "A lower weight of the zero-shot loss is better: 0.1 than 0.5.",
        "section 5.3.4.5, table 5.4",
        [(USUAL, "lambda 0.5")],
        TABLE_54,
    ),
    _claim(
        "sharpness-pair-losses",
        "For C2 a sharpness of 5 is better than 0.5 and 20.",
        "section 5.3.4.5, figure 5.10",
        [(USUAL, "sharpness 0.5"), (USUAL, "sharpness 20")],
    ),
    _claim(
        "sharpness-proxy-losses",
        "For ProxyAnchor a sharpness of 0.5 is better than 5.",
        "section 5.3.4.5",
        [("proxy-anchor, sharpness 0.5", "proxy-anchor, sharpness 5")],
    ),
    _claim(
        "prototypes-insignificant",
        "The number of prototypes has no large effect (we say: 16 and 256 are within half a point of 64).",
        "section 5.3.4.5, table 5.4",
        [("16 prototypes", USUAL), ("256 prototypes", USUAL)],
        TABLE_54,
        above=-LITTLE,
        below=LITTLE,
    ),
    _claim(
        "prototypes-best",
        "64 prototypes are the best choice for C2 on CUB.",
        "section 5.3.4.5, figure 5.10",
        [(USUAL, "16 prototypes"), (USUAL, "256 prototypes")],
    ),
    Claim(
        "prototypes-large-data",
        "On SOP and In-shop any number of prototypes from 64 on improves GAP, and more bring little.",
        "section 5.3.4.5, figure 5.11",
        None,
        why_not="the data of SOP and In-shop is not here.",
    ),
]
