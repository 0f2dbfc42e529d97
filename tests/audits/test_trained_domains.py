"""Which domains a model was trained on, and how many items its accuracies are of."""

import numpy as np
import pytest

from nearkin.audits import Subject, domains, run_suites
from nearkin.audits.domain_pool import trained_domains
from nearkin.data.dataset import Dataset
from nearkin.data.manifest import Manifest
from nearkin.data.splits import Split
from nearkin.models.card import Card
from nearkin.recipe import AuditSection
from nearkin.spaces import Euclidean

SECTION = AuditSection(resamples=20, suites=["domains"], classification_k=[1])


def test_the_picture_of_accuracies_says_of_how_many_items_they_are(monkeypatch):
    drawn = []
    monkeypatch.setattr(domains, "draw_bars", lambda bars, _: drawn.extend(bars) or b"")
    found = {"queries": 3, "values": {"accuracy": 1.0}, "intervals": {"accuracy": [1.0, 1.0]}}
    own = {"SIM": {"sketch": found, "art": {**found, "queries": 1200}}}
    domains.draw_accuracies(own, {"sketch": "held out", "art": "trained on"})
    assert [bar.label for bar in drawn] == ["sketch (3 items)", "art (1,200 items)"]


@pytest.mark.parametrize(("steps", "role"), [(5, "trained on"), (0, "not trained on")])
def test_a_model_of_no_steps_was_trained_on_nothing(steps, role):
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(90, 6)).astype(np.float32)
    labels = np.array([f"c{number}" for number in rng.integers(4, size=90)], dtype=object)
    domains = np.array(["art", "photo", "sketch"], dtype=object)[np.arange(90) % 3]
    names = [f"{i}.png" for i in range(90)]
    data = Dataset(Manifest.from_rows(names, labels.tolist(), domain=domains.tolist()), None)
    card = {"steps": steps, "domains": {"train": ["art", "photo"], "test": ["sketch"]}}
    card["recipe"] = {"data": {"split": "domains"}}
    rows = [np.flatnonzero(domains != "sketch")[start::2] for start in range(2)]
    held = np.flatnonzero(domains == "sketch")

    def embed(items):
        return vectors[[int(path[:-4]) for path in items.manifest.paths]]

    divided = Split(*rows, held)
    card = Card.from_dict(card)
    known = trained_domains(card, data, divided, embed, lambda items: None)
    assert known.role("art") == trained_domains(card, data, None, embed, lambda items: None).role("art") == role
    subject = Subject(vectors[held], labels[held], Euclidean(), domains=domains[held], trained_domains=known)
    result = run_suites(subject, SECTION)
    assert f"P@1, {role}, cross-domain" in result.values
    assert "P@1, held out, cross-domain" in result.values
