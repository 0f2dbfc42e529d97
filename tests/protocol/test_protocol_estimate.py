"""How long a benchmark may take is told before it begins."""

from __future__ import annotations

import pytest
import torch

from nearkin.data.splits import class_folds
from nearkin.errors import TrainingError
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


def test_a_step_is_the_mean_of_those_with_a_resting_backbone_and_all_others(patterns, tiny, monkeypatch):
    monkeypatch.setattr(benchmark, "timed_steps", lambda *_: (2.0, 0.5))
    recipe = load_recipe("triplet", [*tiny, "training.max_steps=40", "training.head_warmup_steps=10"])
    assert estimate_model(recipe, patterns, class_folds(patterns.labels, 2)[0]).step == (10 * 0.5 + 30 * 2.0) / 40


def test_attacked_steps_have_no_estimate(patterns, tiny):
    recipe = load_recipe("triplet", [*tiny, "training.schedule=adversarial"])
    assert estimate_model(recipe, patterns, class_folds(patterns.labels, 2)[0]) is None


def test_a_full_memory_is_told_in_a_sentence(patterns, tiny, monkeypatch):
    def forward(self, inputs, **options):
        raise torch.OutOfMemoryError("CUDA")

    monkeypatch.setattr(Embedder, "forward", forward)
    with pytest.raises(TrainingError, match=r"or lower model\.size"):
        estimate_model(load_recipe("triplet", tiny), patterns, class_folds(patterns.labels, 2)[0])


def test_a_recipe_that_memory_is_too_small_for_holds_up_no_estimate(
    patterns, tiny, bench, tmp_path, monkeypatch, capsys
):
    def estimate(recipe, *_):
        if recipe.training.max_steps == 3:
            raise TrainingError("No room.")
        return Estimate(2.0, 30.0, 3600, 120)

    monkeypatch.setattr(benchmark, "estimate_model", estimate)
    monkeypatch.setattr(benchmark, "_WORTH_ESTIMATING", 1)
    monkeypatch.setattr("nearkin.protocol.tables.draw_benchmark", lambda *_, **__: b"")
    recipes = {f"steps {count}": load_recipe("triplet", [*tiny, f"training.max_steps={count}"]) for count in (3, 2)}
    bench([Candidate(*one) for one in recipes.items()], tmp_path / "book", progress=True)
    told = capsys.readouterr().err
    assert "steps 3: No room." in told
    assert "steps 2: about 2 s a step" in told


def test_a_benchmark_tells_its_estimate_before_it_begins(patterns, tiny, bench, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(benchmark, "estimate_model", lambda *_: Estimate(2.0, 30.0, 3600, 120))
    monkeypatch.setattr(benchmark, "_WORTH_ESTIMATING", 1)
    monkeypatch.setattr("nearkin.protocol.tables.draw_benchmark", lambda *_, **__: b"")
    candidates = [Candidate("triplet", load_recipe("triplet", [*tiny, "training.max_steps=3"]))]
    bench(candidates, tmp_path / "book", progress=True)
    told = capsys.readouterr().err
    assert "triplet: about 2 s a step and 30 s a validation; 2 models of at most 3,600 steps: 6 h." in told
    assert told.index("A full run takes about 6 h") < told.index("Model 1 of 2")
