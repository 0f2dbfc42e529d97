"""Studies measured before heads started from the data: their recipes must stay what their ledgers are of."""

from __future__ import annotations

import pytest

from nearkin.protocol.candidates import Candidate
from studies.random_start import load_recipe

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
