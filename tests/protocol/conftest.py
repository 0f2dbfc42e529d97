"""A small benchmark that many tests look at."""

from __future__ import annotations

import pytest

from nearkin.protocol import Candidate, run_benchmark
from nearkin.protocol import benchmark as work
from nearkin.recipe import load_recipe

SHORT = ["training.max_steps=6", "training.evaluate_every=2"]


@pytest.fixture(scope="session")
def candidate(tiny):
    """Make a candidate that trains in a moment: a recipe under a name."""

    def make(name, recipe=None, *overrides):
        return Candidate(name, load_recipe(recipe or name, [*tiny, *SHORT, *overrides]))

    return make


@pytest.fixture(scope="session")
def bench(patterns):
    """Run a benchmark on the patterns, two folds and one seed unless told otherwise."""

    def run(candidates, path, dataset=patterns, **options):
        options = {"folds": 2, "seeds": 1, "progress": False, "cache_directory": path.parent / "cache", **options}
        return run_benchmark(dataset, candidates, path, **options)

    return run


@pytest.fixture(scope="session")
def sound(bench, candidate, tmp_path_factory):
    """The folder of a benchmark of one recipe that nothing has disturbed: copy it to change it."""
    path = tmp_path_factory.mktemp("sound") / "book"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nearkin.protocol.tables.draw_benchmark", lambda *_, **__: b"")
        bench([candidate("triplet")], path)
    return path


@pytest.fixture(scope="session")
def halfway(bench, candidate, tmp_path_factory):
    """The same, interrupted when all models were trained and not yet judged together: copy it to go on."""

    def interrupted(*_):
        raise KeyboardInterrupt

    path = tmp_path_factory.mktemp("halfway") / "book"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nearkin.protocol.tables.draw_benchmark", lambda *_, **__: b"")
        patch.setattr(work.BookWorker, "_together", interrupted)
        assert bench([candidate("triplet")], path).interrupted
    return path


@pytest.fixture(scope="session")
def benchmark(bench, candidate, tmp_path_factory):
    """Two recipes, two folds, two seeds; the runs are kept."""
    path = tmp_path_factory.mktemp("benchmark") / "book"
    return bench([candidate("triplet"), candidate("contrastive")], path, seeds=2, keep_runs=True)
