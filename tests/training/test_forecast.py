"""What is found out before training begins: memory, precision and time; and what is refused then."""

from __future__ import annotations

import copy
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from nearkin.allocator import tune_threads
from nearkin.errors import RecipeError, TrainingError
from nearkin.models import Embedder, build_embedder
from nearkin.recipe import load_recipe
from nearkin.training import Run, forecast, train

CPU = torch.device("cpu")


class Inputs:
    """Batches of random inputs of the size asked for."""

    start = None

    def __init__(self, size: int = 16) -> None:
        self.size = size

    def plain(self, positions):
        return torch.randn(len(positions), 3, self.size, self.size, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def embedder(tiny):
    return build_embedder(load_recipe("triplet", tiny).model, seed=0)


def run_training(patterns, recipe, path, **more):
    return train(patterns, recipe, Run(path), source="patterns", cache_directory=path / "cache", **more)


def test_the_bytes_of_a_graph_are_those_that_layers_keep():
    """By hand: a convolution keeps its input, a batch norm its input, a ReLU its output, and a mean nothing."""
    layers = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 1), nn.Sigmoid())

    class Network(nn.Module):
        def forward(self, x, start=None):
            return layers(x).mean(dim=(2, 3))

    x = torch.randn(2, 3, 10, 10)
    by_hand = 4 * 2 * 100 * (3 + 8 + 4)  # the input; the ReLU's output, which the next layer takes; the sigmoid's
    network = Network()
    network.layers = layers
    assert forecast.graph_bytes(network, x) == by_hand


def test_a_graph_grows_with_items_and_area_and_ends_where_nothing_learns(embedder):
    embedder.train()
    one = forecast.graph_bytes(embedder, Inputs().plain(range(2)))
    assert forecast.graph_bytes(embedder, Inputs().plain(range(8))) == pytest.approx(4 * one, rel=0.05)
    assert forecast.graph_bytes(embedder, Inputs(32).plain(range(2))) == pytest.approx(4 * one, rel=0.2)
    embedder.freeze("all")
    assert forecast.graph_bytes(embedder, Inputs().plain(range(2))) < one / 20


def test_a_batch_that_does_not_fit_names_one_that_does(embedder, tiny, monkeypatch):
    section = load_recipe("triplet", tiny).training
    check = (embedder, Inputs(), section, CPU)
    with forecast.without_trace(embedder, CPU):
        one = forecast._SLACK * forecast.graph_bytes(embedder, Inputs().plain(range(2))) / 2
    monkeypatch.setattr(forecast, "free_bytes", lambda _: int(10.5 * one))
    forecast.check_memory(*check, items=10, per_class=2)
    with pytest.raises(TrainingError, match=r"a batch of 9 .*classes_per_batch=3\).*gradient_cache=10"):
        forecast.check_memory(*check, items=12, per_class=3)
    cached = section.model_copy(update={"gradient_cache": 10})
    forecast.check_memory(embedder, Inputs(), cached, CPU, items=1000, per_class=3)
    with pytest.raises(TrainingError, match="gradient_cache to 10"):
        forecast.check_memory(
            embedder, Inputs(), cached.model_copy(update={"gradient_cache": 11}), CPU, items=1000, per_class=3
        )
    monkeypatch.setattr(forecast, "free_bytes", lambda _: int(one / 2))
    with pytest.raises(TrainingError, match=r"lower model\.size"):
        forecast.check_memory(*check, items=12, per_class=3)
    monkeypatch.setattr(forecast, "free_bytes", lambda _: None)  # nobody knows
    forecast.check_memory(*check, items=10**9, per_class=3)


def test_training_refuses_it_before_it_begins(patterns, tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(forecast, "free_bytes", lambda _: 1000)
    with pytest.raises(TrainingError, match="free"):
        run_training(patterns, load_recipe("triplet", tiny), tmp_path / "run", progress=False)
    assert not Run(tmp_path / "run").exists


def test_free_memory_is_known_on_this_machine():
    free = forecast.free_bytes(CPU)
    assert free is None or free > 0


def test_an_allocation_that_fails_later_says_what_to_change(tiny):
    section = load_recipe("triplet", tiny).training
    for error in (torch.OutOfMemoryError("CUDA"), RuntimeError("DefaultCPUAllocator: can't allocate memory")):
        with pytest.raises(TrainingError, match="gradient_cache to 6"), forecast.naming_full_memory(12, section):
            raise error
    with pytest.raises(TrainingError, match=r"lower model\.size"), forecast.naming_full_memory():
        raise torch.OutOfMemoryError("CUDA")
    with pytest.raises(RuntimeError, match="shapes"), forecast.naming_full_memory(12, section):
        raise RuntimeError("The shapes do not agree.")


@pytest.mark.parametrize("where", ["forecast.graph_bytes", "fit.measure_start", "fit.start_model"])
def test_a_full_memory_before_the_first_step_says_so(where, patterns, tiny, tmp_path, monkeypatch):
    def full(*_, **__):
        raise torch.OutOfMemoryError("CUDA")

    monkeypatch.setattr(f"nearkin.training.{where}", full)
    with pytest.raises(TrainingError, match=r"model\.size"):
        run_training(patterns, load_recipe("triplet", tiny), tmp_path / "run", progress=False)
    assert not Run(tmp_path / "run").exists


def test_accumulated_batches_and_parts_of_a_cache_count_in_the_time_of_a_step(patterns, tiny, monkeypatch):
    sizes, plain = [], Embedder.forward

    def forward(self, inputs, **options):
        sizes.append(len(inputs))
        return plain(self, inputs, **options)

    class Steps(Inputs):
        def stream(self, first, last):
            for _ in range(first, last + 1):
                yield self.plain(range(6)), torch.arange(6)

    ticks = iter(range(1000))
    monkeypatch.setattr(forecast.time, "perf_counter", lambda: float(next(ticks)))
    monkeypatch.setattr(Embedder, "forward", forward)
    found = {}
    for more in ("gradient_accumulation=1", "gradient_accumulation=3", "gradient_cache=4"):
        section = load_recipe("triplet", [*tiny, f"training.{more}"]).training
        sizes.clear()
        found[more] = forecast.timed_steps(build_embedder(load_recipe("triplet", tiny).model, 0), Steps(), section, CPU)
    assert sizes == [4, 2, 4, 2] * 3
    assert found["gradient_accumulation=3"] == tuple(3 * one for one in found["gradient_accumulation=1"])


def test_measuring_leaves_no_trace(embedder):
    before, state = copy.deepcopy(embedder.state_dict()), torch.get_rng_state()
    forecast.choose_precision(embedder, Inputs(), 80, CPU)
    with forecast.without_trace(embedder, CPU):
        torch.rand(3)
        embedder(Inputs().plain(range(4))).sum().backward()
    after = embedder.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert torch.equal(state, torch.get_rng_state())
    assert all(parameter.grad is None for parameter in embedder.parameters())


@pytest.mark.parametrize(("plain", "half", "found"), [(1.0, 0.5, "bf16-mixed"), (1.0, 0.95, "32-true")])
def test_half_precision_is_taken_only_where_it_is_clearly_faster(plain, half, found, embedder, monkeypatch):
    contexts = []
    monkeypatch.setattr(forecast, "_pass", lambda embedder, inputs, start, context: contexts.append(type(context())))
    times = {"nullcontext": plain, "autocast": half}

    def timed(run, device):
        run()
        return times[contexts[-1].__name__]

    monkeypatch.setattr(forecast, "_timed", timed)
    assert forecast.choose_precision(embedder, Inputs(), 80, CPU) == found
    assert {context.__name__ for context in contexts} == set(times)


def test_a_run_keeps_the_precision_that_it_began_with(patterns, tiny, tmp_path, monkeypatch):
    from nearkin.training import fit

    recipe, asked = load_recipe("triplet", [*tiny, "training.precision=auto"]), []
    monkeypatch.setattr(fit, "choose_precision", lambda *_: asked.append(1) or "bf16-mixed")
    run_training(patterns, recipe, tmp_path / "auto", progress=False)
    run_training(patterns, recipe, tmp_path / "auto", progress=False, resume=True)
    assert len(asked) == 1
    said = load_recipe("triplet", [*tiny, "training.precision=bf16-mixed"])
    run_training(patterns, said, tmp_path / "said", progress=False)
    assert Run(tmp_path / "auto").log_file.read_text() == Run(tmp_path / "said").log_file.read_text()


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.2, "1 s"), (40, "40 s"), (700, "12 min"), (3570, "1 h"), (6000, "1 h 40 min"), (7200, "2 h"), (90000, "25 h")],
)
def test_durations_are_told_as_people_say_them(seconds, said):
    assert forecast.duration(seconds) == said


@pytest.mark.parametrize("more", [[], ["training.gradient_cache=4", "data.workers=1"]])
def test_the_time_is_told_before_the_first_step_and_changes_nothing(more, patterns, tiny, tmp_path, capsys):
    settings = [*tiny, "training.max_steps=30", "training.evaluate_every=15", "training.head_warmup_steps=5", *more]
    recipe = load_recipe("multi-similarity", settings)
    run_training(patterns, recipe, tmp_path / "told")
    told = capsys.readouterr().err
    assert re.search(r"Training takes about .* on this machine \(30 steps of .* s\).*max_steps", told)
    assert told.index("on this machine") < told.index("training: 30/30")
    run_training(patterns, recipe, tmp_path / "silent", progress=False)
    assert "on this machine" not in capsys.readouterr().err
    assert Run(tmp_path / "told").log_file.read_text() == Run(tmp_path / "silent").log_file.read_text()


def test_short_trainings_are_not_measured(patterns, tiny, tmp_path, capsys):
    run_training(patterns, load_recipe("triplet", tiny), tmp_path / "run")
    assert "on this machine" not in capsys.readouterr().err


def test_the_time_is_steps_and_validations_without_the_gradients_that_rest(patterns, tiny, tmp_path, monkeypatch):
    from nearkin.training import loop

    told = {}
    monkeypatch.setattr(loop.Loop, "_timed_steps", lambda self: (2.0, 0.5))
    monkeypatch.setattr(loop, "time_line", lambda total, left, step: told.update(total=total, left=left, step=step))
    plain = loop.Loop._validate_start

    def validated(self, known):
        plain(self, known)
        self._validation_seconds = 3.0

    monkeypatch.setattr(loop.Loop, "_validate_start", validated)
    settings = [*tiny, "training.max_steps=40", "training.evaluate_every=10", "training.head_warmup_steps=8"]
    run_training(patterns, load_recipe("triplet", settings), tmp_path / "run")
    assert told == {"total": 8 * 0.5 + 32 * 2.0 + 4 * 3.0, "left": 40, "step": 2.0}


def test_a_trunk_without_weights_is_trained_from_scratch_only_if_asked(patterns, tiny, tmp_path):
    short = ["training.head_warmup_steps=1", "training.max_steps=2"]
    with pytest.raises(RecipeError, match=r"model\.pretrained.*frozen_batch_norm=false"):
        run_training(patterns, load_recipe("fine-tune", [*tiny, *short]), tmp_path / "run", progress=False)
    asked = load_recipe("fine-tune", [*tiny, *short, "model.frozen_batch_norm=false"])
    assert run_training(patterns, asked, tmp_path / "run", progress=False).state.step == 2


def test_the_backbone_gets_no_gradients_while_the_head_warms_up(patterns, tiny, tmp_path, monkeypatch):
    from nearkin.training import loop

    seen, plain = {}, loop.Loop._step

    def step(self, inputs, labels):
        before = [parameter.detach().clone() for parameter in self.embedder.backbone.parameters()]
        found = plain(self, inputs, labels)
        weights = list(self.embedder.backbone.parameters())
        moved = any(not torch.equal(one, other) for one, other in zip(before, weights, strict=True))
        seen[self.state.step + 1] = (any(weight.grad is not None for weight in weights), moved)
        return found

    monkeypatch.setattr(loop.Loop, "_step", step)
    recipe = load_recipe("triplet", [*tiny, "training.head_warmup_steps=3", "training.max_steps=5"])
    result = run_training(patterns, recipe, tmp_path / "run", progress=False)
    assert seen == {1: (False, False), 2: (False, False), 3: (False, False), 4: (True, True), 5: (True, True)}
    assert all(parameter.requires_grad for parameter in result.embedder.parameters())


@pytest.mark.parametrize(
    ("given", "kept"),
    [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, None)],
)
def test_threads_wait_asleep_unless_the_environment_says_otherwise(given, kept, monkeypatch):
    monkeypatch.setattr(os, "environ", dict(given))
    tune_threads()
    assert os.environ.get("GOMP_SPINCOUNT") == kept


@pytest.mark.parametrize("given", [{}, {"OPENBLAS_THREAD_TIMEOUT": "20"}])
def test_threads_of_numpys_products_wait_asleep_unless_the_environment_says_otherwise(given, monkeypatch):
    monkeypatch.setattr(os, "environ", dict(given))
    tune_threads()
    assert os.environ["OPENBLAS_THREAD_TIMEOUT"] == given.get("OPENBLAS_THREAD_TIMEOUT", "14")


def test_the_command_tunes_threads_before_torch_is_there():
    code = (
        "import sys, os; sys.argv = ['nearkin', '--help']\n"
        "from nearkin import allocator\n"
        "allocator.tune_threads = lambda: print('torch' in sys.modules)\n"
        "from nearkin.cli import main\n"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("False"), done.stderr


def test_fewer_items_than_are_measured_can_be_trained_on(patterns, tiny, tmp_path):
    few = patterns.select(np.flatnonzero(np.isin(patterns.labels, ["class00", "class01"]))[::4])  # four items
    settings = [*tiny, "data.val_classes=0", "data.test_classes=0", "training.precision=auto"]
    assert run_training(few, load_recipe("triplet", settings), tmp_path / "run", progress=False).state.step == 12
