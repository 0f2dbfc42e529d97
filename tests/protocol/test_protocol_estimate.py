"""How long a benchmark may take is told before it begins."""

from __future__ import annotations

import torch

from nearkin.data.splits import class_folds
from nearkin.models import Embedder
from nearkin.protocol import Candidate, benchmark
from nearkin.protocol.benchmark import Estimate, estimate_model
from nearkin.recipe import load_recipe


def test_an_estimate_counts_steps_and_validations_and_leaves_no_trace(patterns, tiny):
    recipe = load_recipe("triplet", [*tiny, "training.max_steps=1001", "training.evaluate_every=100"])
    split = class_folds(patterns.labels, 2)[0]
    state = torch.get_rng_state()
    found = estimate_model(recipe, patterns, split)
    assert torch.equal(torch.get_rng_state(), state)
    assert (found.steps, found.validations) == (1001, 12)
    assert 0 < found.step < 5
    assert found.seconds == 1001 * found.step + 12 * found.validation


def test_steps_go_through_the_whole_network(patterns, tiny, monkeypatch):
    plain, seen = Embedder.forward, []

    def forward(self, inputs, **options):
        seen.append((tuple(inputs.shape), self.training))
        return plain(self, inputs, **options)

    monkeypatch.setattr(Embedder, "forward", forward)
    estimate_model(load_recipe("triplet", tiny), patterns, class_folds(patterns.labels, 2)[0])
    assert seen[:3] == [((12, 3, 16, 16), True)] * 3


def test_cached_features_have_no_estimate(patterns, tiny):
    recipe = load_recipe("triplet", [*tiny, "model.freeze=all", "model.cache=true"])
    assert estimate_model(recipe, patterns, class_folds(patterns.labels, 2)[0]) is None


def test_a_benchmark_tells_its_estimate_before_it_begins(patterns, tiny, bench, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(benchmark, "estimate_model", lambda *_: Estimate(2.0, 30.0, 3600, 120))
    monkeypatch.setattr(benchmark, "_WORTH_ESTIMATING", 1)
    monkeypatch.setattr("nearkin.protocol.tables.draw_benchmark", lambda *_, **__: b"")
    candidates = [Candidate("triplet", load_recipe("triplet", [*tiny, "training.max_steps=3"]))]
    bench(candidates, tmp_path / "book", progress=True)
    told = capsys.readouterr().err
    assert "triplet: about 2 s a step and 30 s a validation; 2 models of at most 3,600 steps: 6 h." in told
    assert told.index("A full run takes about 6 h") < told.index("Model 1 of 2")
