"""Recipes that learn by episodes in a book: their budgets are told, and MAP@R stays MAP@R."""

from __future__ import annotations

import json
import re

import pytest

from nearkin.errors import DataError

EPISODES = (
    "training.episodic={way: 2, shot: 1, query: 2, validation_way: 2, validation_episodes: 10, record_every: null}"
)
SHAPE = ["data.classes_per_batch=2", EPISODES]


def test_an_episodic_recipe_stands_beside_a_plain_one(bench, candidate, tmp_path):
    plain = candidate("contrastive", "contrastive", "data.per_class=4")
    episodic = candidate("protonet-dr", "protonet-dr", *SHAPE)
    smaller = candidate(
        "fewer queries",
        "protonet-dr",
        "data.classes_per_batch=2",
        EPISODES.replace("query: 2", "query: 1"),
        "data.per_class=2",
    )
    done = bench([plain, episodic, smaller], tmp_path / "book", against="contrastive", keep_runs=True)
    assert done.summary.missing == 0
    told, others = done.contents.unequal_budgets()
    assert re.search(r"data\.classes_per_batch\D+2\D+4\D+data\.per_class\D+3\D+4", told)
    assert re.search(r"data\.per_class\D+2\D+4", others)
    rows = [json.loads(line) for line in done.book.ledger_file.read_text().splitlines()]
    told = [row["validation_MAP@R"] for row in rows if row["recipe"] == "protonet-dr" and row["validation_MAP@R"]]
    cards = [json.loads(path.read_text()) for path in (tmp_path / "book").rglob("card.json")]
    mine = [card for card in cards if card["recipe"]["training"]["episodic"]["query"] == 2]
    assert len(told) == len(mine) == 2
    assert sorted(told) == pytest.approx(sorted(card["validation"]["val_MAP@R"] for card in mine), abs=1e-5)
    assert any(card["validation"]["val_accuracy"] != pytest.approx(card["validation"]["val_MAP@R"]) for card in mine)


def test_episodes_that_the_folds_do_not_offer_are_refused_before_anything_starts(bench, candidate, tmp_path):
    wide = candidate("protonet-s", "protonet-s", *SHAPE, "training.episodic.validation_way=50")
    with pytest.raises(DataError, match="validation_way"):
        bench([wide], tmp_path / "book")
    assert not list(tmp_path.rglob("metrics.jsonl"))
