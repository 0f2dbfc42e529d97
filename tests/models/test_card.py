from __future__ import annotations

import json

import pytest

from nearkin.models import Card, Embedder
from nearkin.models.card import CardParts

WRITTEN = {
    "recipe": {"name": "triplet", "training": {"seed": 0}},
    "data": {
        "name": "d",
        "source": "/d",
        "kind": "image",
        "items": 4,
        "fingerprint": "f",
        "notes": ["3 files could not be read and were left out."],
    },
    "classes": {"train": ["a"], "val": ["b"], "test": ["c"]},
    "domains": {"train": ["photo"], "val": ["photo"], "test": ["sketch"]},
    "selected_on": "validation classes",
    "validation": {"val_MAP@R": 0.5},
    "finished": False,
    "steps": 0,
    "best_step": 0,
    "seconds": 0.0,
    "versions": {"nearkin": "0.1.0"},
}


@pytest.mark.parametrize(
    "stored",
    [
        {},
        WRITTEN,
        {**WRITTEN, "selected_on": None, "validation": {}, "classes": {"train": ["a"], "val": [], "test": []}},
        {**WRITTEN, "start": {"kind": "whitened"}, "gain": {"best_step": 0}, "mine": [1]},
        {"name": "resnet50", "note": "Pretrained."},
        {"others": 3},
    ],
)
def test_a_card_that_was_written_comes_back_as_it_was(stored):
    card = Card.from_dict(stored)
    assert card.to_dict() == stored == json.loads(json.dumps(card.to_dict()))
    assert card == stored
    assert Card.from_dict(card.to_dict()) == card
    assert {key: card[key] for key in card} == stored


def test_values_are_read_by_name_or_by_key():
    card = Card.from_dict(WRITTEN)
    assert card.classes == CardParts(["a"], ["b"], ["c"])
    assert card["classes"]["train"] == card.classes.train == ["a"]
    assert (card.domains.test, card.data.fingerprint, card.steps, card.finished) == (["sketch"], "f", 0, False)
    assert "hierarchy" not in card
    assert card.get("hierarchy") is card.hierarchy is None
    with pytest.raises(KeyError):
        card["hierarchy"]


def test_a_newer_version_may_say_more():
    card = Card.from_dict({"data": {"name": "d", "licence": "CC0"}, "colour": "red"})
    assert (card.data.name, card["colour"]) == ("d", "red")


def test_an_embedder_takes_a_dict_for_its_card(make_embedder, tmp_path):
    embedder = make_embedder()
    assert embedder.card == {}
    embedder.card = WRITTEN
    embedder.save(tmp_path / "model.safetensors")
    assert Embedder.load(tmp_path / "model.safetensors").card == WRITTEN
