"""Studies measured before heads started from the data: their recipes must stay what their ledgers are of.

And the page that shows each loss beside the start.
"""

from __future__ import annotations

import pytest

from nearkin.protocol.candidates import Candidate
from studies.random_start import load_recipe
from studies.training_pays.run import MEASURES, below_start, loss_table

BEFORE = {
    "proxy-anchor": "7b15794826814cc8",
    "multi-similarity": "78a412e32fe39ab1",
    "contrastive-ccp": "aa672c00314320e7",
    "multi-similarity-gsp": "7f926f6817d83218",
    "triplet-gdfl": "85b66efed74ab46c",
    "best": "d581afd55cb136d8",
    "best-frozen": "d7940bb84e07b04d",
    "plankton-triplet": "ee122a298a969f72",
    "learned-similarity": "66b1d58f0543f57c",
    "omniglot": "692e88d4ae101994",
    "hxe": "5c4d64ca39436d67",
}
"""Digests of recipes as release 0.1.0 shipped them."""


@pytest.mark.parametrize("name", BEFORE)
def test_a_study_of_random_starts_finds_its_ledger(name):
    recipe = load_recipe(name)
    assert recipe.model.head_start == "random"
    assert Candidate(name, recipe).digest() == BEFORE[name]


# ---------------------------------------------------------------- the page of the start that replaced it


def cell(recipe, seed, value, best_step):
    """A line of the ledger, of one start for each seed."""
    return {
        "data": "cub200",
        "seed": seed,
        "classes": 0,
        "items": 0,
        "recipe": recipe,
        "settings": "",
        "seconds": 1,
        "values": dict.fromkeys(MEASURES, value),
        "raw": dict.fromkeys(MEASURES, 0.5),
        "dimension": 64,
        "gain per class": {name: {"a": value - 0.5, "b": value - 0.5} for name in MEASURES},
        "validation": {"values": {"start": {"P@1": 80.0 + seed}}},
        "training classes": 9,
        "best step": best_step,
    }


def test_losses_are_shown_beside_their_own_start():
    lines = [cell("still", 0, 0.6, 0), cell("better", 0, 0.7, 100), cell("better", 1, 0.9, 300)]
    lines += [cell("worse", 0, 0.4, 50), cell("alone", 1, 0.8, 50)]
    rows = {row.split(" | ")[0].strip("| "): row for row in loss_table(lines)[2:]}
    assert "| 80.0 / 80.0 | 60.0 / 60.0 (1 of 2 seeds) | +10.0 / +10.0 | 200 |" in rows["better"]
    assert "| 60.0 / 60.0 | 60.0 / 60.0 | +0.0 / +0.0 | 0 |" in rows["still"]
    assert "| 80.0 / 80.0 | – | – | 50 |" in rows["alone"]
    start, raw, kept = below_start(lines).split(". ")
    assert start == "Below their own start in P@1 and MAP@R: worse"
    assert raw == "Below raw features in P@1: worse"
    assert kept.endswith("the start's, not the loss's: still.")
