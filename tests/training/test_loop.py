"""The loop: exact resumption, early stopping, clean stops, refusals."""

from __future__ import annotations

import json
import math
import os
import signal
import threading

import numpy as np
import pytest
import torch

from nearkin.api import fit_run
from nearkin.errors import CheckpointError, DataError, RecipeError, RunError, StorageError, TrainingError
from nearkin.models import build_embedder
from nearkin.recipe import load_recipe
from nearkin.storage import WriterLock
from nearkin.training import Run, train
from nearkin.training.batches import TrainingPool
from nearkin.training.ranks import Ranks
from nearkin.training.run import Logbook, generator_tensors, load_state, restore_generator, save_state

TWO = Ranks(world_size=2, local_world_size=2)


def run_training(dataset, recipe, path, cache, resume=False, ranks=None):
    run = Run(path)
    return train(
        dataset, recipe, run, source="patterns", cache_directory=cache, resume=resume, progress=False, ranks=ranks
    )


def weights(path):
    return Run(path).model().state_dict()


def assert_same_run(left, right):
    assert Run(left).log_file.read_text() == Run(right).log_file.read_text()
    assert_equal_tensors(weights(left), weights(right))
    (ours, our_facts), (theirs, their_facts) = (load_state(Run(path).state_file) for path in (left, right))
    assert ours.keys() == theirs.keys() >= {"embedder", "random"}
    for group in ours:
        assert_equal_tensors(ours[group], theirs[group])
    for facts in (our_facts, their_facts):
        del facts["state"]["seconds"], facts["identity"]
    assert our_facts == their_facts


def assert_equal_tensors(ours, theirs):
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []


RECIPES = {
    "proxies": ("proxy-anchor", []),
    "mined triplets, averaged weights": ("triplet", ["training.ema=0.9"]),
    "random miner": ("margin", []),
    "sgd, clipped, cosine": (
        "contrastive",
        ["training.optimizer=sgd", "training.clip=0.5", "training.lr_schedule=cosine", "training.warmup_steps=3"],
    ),
    "chance-constrained": (
        "contrastive-ccp",
        ["training.chance_constrained={proxies: 2, pool: 3, patience: 1}", "training.evaluate_every=2"],
    ),
    "sample anchors": (
        "multi-similarity-ccp",
        ["training.chance_constrained={proxies: 1, pool: 3, patience: 1, anchors: samples}"],
    ),
    "cross-batch memory": ("contrastive-xbm", ["training.cross_batch_memory={batches: 2, warmup_steps: 5}"]),
    # Step 7 is in the middle of an epoch, too.
    "class adversary": (
        "triplet",
        ["objective.regularisers=[{name: class-adversary, weight: 0.5, parameters: {epoch_steps: 4, dropout: 0.3}}]"],
    ),
    "episodes": ("protonet-dr", ["training.episodic={way: 4, shot: 1, query: 2, validation_way: 2, record_every: 5}"]),
    "learned similarity, seen classes": (
        "learned-similarity",
        ["objective.parameters.target_spread=0.2", "data.split=items"],
    ),
    "moving proxies and scale, seen classes": (
        "proxy-dr",
        ["objective.parameters={proxies: ema, ema_rate: 0.1, scale: dynamic}", "data.split=items"],
    ),
    "adversarial, moving proxies and scale": (
        "normface",
        [
            "training.schedule=adversarial",
            "training.adversarial={mode: negative-margin, steps: 2}",
            "objective.parameters={proxies: ema, ema_rate: 0.1, scale: dynamic}",
        ],
    ),
    "prefixes": ("normface", ["objective.prefixes=[4, 8]", "objective.parameters={proxies: ema, scale: dynamic}"]),
    "switched negatives": ("triplet", ["objective.switch=0.3"]),
    "augmented": ("supcon", ["data.jitter=0.3", "training.head_warmup_steps=5"]),
    "plateau, layer-wise decay, mean of the best": (
        "proxy-anchor",
        [
            "training.lr_schedule=plateau",
            "training.plateau_patience=0",
            "training.evaluate_every=1",
            "training.layer_decay=0.5",
            "training.betas=[0.5, 0.9]",
            "training.average_best=3",
            "training.select=P@1",
        ],
    ),
    "accumulated, dropped paths, erased": (
        "contrastive-xbm",
        [
            "training.cross_batch_memory={batches: 2, warmup_steps: 5}",
            "model.backbone=resnet20",
            "model.drop_path=0.5",
            "data.erase=0.5",
            "data.rotation=20",
            "data.colour=0.4",
            "training.gradient_accumulation=2",
            "training.max_steps=9",
        ],
    ),
}


@pytest.mark.parametrize("name", RECIPES)
def test_same_seed_resumed_after_a_stop_is_bit_equal(name, patterns, tiny, tmp_path):
    """Which a second run with the seed must be, too: the stopped one is its first part."""
    base, more = RECIPES[name]
    recipe = load_recipe(base, [*tiny, *more])
    run_training(patterns, recipe, tmp_path / "once", tmp_path)
    # Step 7 is between two log lines and between two validations.
    stopped = stop_at(7, patterns, recipe, tmp_path / "stopped", tmp_path)
    assert stopped.interrupted
    assert stopped.state.step == 7
    resumed = run_training(patterns, recipe, tmp_path / "stopped", tmp_path, resume=True)
    assert resumed.state.step == recipe.training.max_steps
    assert_same_run(tmp_path / "once", tmp_path / "stopped")


@pytest.mark.parametrize("workers", [0, 1])
def test_dropout_goes_on_where_it_was(workers, patterns, tiny, tmp_path, monkeypatch):
    def with_dropout(*arguments, **settings):
        embedder = build_embedder(*arguments, **settings)
        embedder.head.register_forward_pre_hook(
            lambda module, inputs: (torch.nn.functional.dropout(inputs[0], 0.3, module.training),)
        )
        return embedder

    monkeypatch.setattr("nearkin.training.fit.build_embedder", with_dropout)
    recipe = load_recipe("triplet", [*tiny, f"data.workers={workers}"])
    run_training(patterns, recipe, tmp_path / "once", tmp_path)
    stop_at(7, patterns, recipe, tmp_path / "stopped", tmp_path)
    run_training(patterns, recipe, tmp_path / "stopped", tmp_path, resume=True)
    assert_same_run(tmp_path / "once", tmp_path / "stopped")


def test_the_random_state_of_a_gpu_is_kept(monkeypatch):
    put_back = []
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda: torch.arange(16, dtype=torch.uint8))
    monkeypatch.setattr(torch.cuda, "set_rng_state", put_back.append)
    assert generator_tensors(Ranks()).keys() == {"torch"}
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    kept = generator_tensors(Ranks())
    restore_generator(kept, 0, Ranks(), 1)
    assert [state.tolist() for state in put_back] == [list(range(16))]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)  # resumed on a CPU
    restore_generator(kept, 0, Ranks(), 1)
    assert len(put_back) == 1


def stop_at(step, dataset, recipe, path, cache):
    """Train, with a Ctrl-C during the given step."""
    from nearkin.training import loop

    plain = loop.Loop._step

    def interrupted(self, inputs, labels):
        if self.state.step + 1 == step:
            os.kill(os.getpid(), signal.SIGINT)
        return plain(self, inputs, labels)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop.Loop, "_step", interrupted)
        return run_training(dataset, recipe, path, cache)


@pytest.mark.parametrize(
    ("sets", "word"),
    [
        (["training.warmup_steps=12"], r"training\.warmup_steps"),
        (["training.head_warmup_steps=20"], r"training\.head_warmup_steps"),
        (["data.val_classes=0", "training.lr_schedule=plateau"], r"data\.val_classes"),
        (["data.val_classes=0", "training.average_best=2"], r"training\.average_best"),
        (["data.val_classes=0", "training.select=P@1"], r"training\.select"),
        (["training.select=accuracy"], r"training\.select"),
    ],
)
def test_a_warm_up_that_never_ends_and_values_that_never_come_are_refused(sets, word, patterns, tiny, tmp_path):
    with pytest.raises(RecipeError, match=word):
        run_training(patterns, load_recipe("triplet", [*tiny, *sets]), tmp_path / "run", tmp_path)
    assert not Run(tmp_path / "run").exists


def test_seen_classes_may_be_selected_by_what_is_retrieved(patterns, tiny, tmp_path):
    sets = [*tiny, "data.split=items", "data.val_items=0.4", "training.max_steps=4"]
    for select, chosen in (("null", "val_accuracy"), ("MAP@R", "val_MAP@R"), ("accuracy", "val_accuracy")):
        recipe = load_recipe("normface", [*sets, f"training.select={select}"])
        result = run_training(patterns, recipe, tmp_path / select, tmp_path)
        values = [row[chosen] for row in Run(tmp_path / select).history() if chosen in row]
        assert [value for _, value in result.state.validated] == values
    single = load_recipe("normface", [*sets, "data.val_items=0.1", "training.select=MAP@R"])
    with pytest.raises(DataError, match="val_items"):
        run_training(patterns, single, tmp_path / "single", tmp_path)


def test_another_seed_is_another_run(patterns, tiny, tmp_path):
    for seed in (0, 1):
        run_training(patterns, load_recipe("triplet", [*tiny, f"training.seed={seed}"]), tmp_path / str(seed), tmp_path)
    assert Run(tmp_path / "0").log_file.read_text() != Run(tmp_path / "1").log_file.read_text()


def test_cached_and_resumed_are_bit_equal(patterns, tiny, tmp_path):
    frozen = ["model.freeze=all", "model.cache=true", "model.cache_views={flip: true, crops: 1}"]
    recipe = load_recipe("proxy-anchor", [*tiny, *frozen])
    run_training(patterns, recipe, tmp_path / "once", tmp_path / "cache")
    stop_at(6, patterns, recipe, tmp_path / "stopped", tmp_path / "cache")
    run_training(patterns, recipe, tmp_path / "stopped", tmp_path / "cache", resume=True)
    assert_same_run(tmp_path / "once", tmp_path / "stopped")


KILLED = """
import os, signal, sys
from pathlib import Path
from nearkin.api import fit_run
from nearkin.recipe import load_recipe
from nearkin.training import Run, loop

out, photos, kill_at = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
plain = loop.Loop._step
def step(self, inputs, labels):
    if self.state.step + 1 == kill_at:
        os.kill(os.getpid(), signal.SIGKILL)
    return plain(self, inputs, labels)
loop.Loop._step = step
fit_run(photos, load_recipe(sys.argv[4], sys.argv[5:]), Run(out), progress=False)
"""

INSTANCES = [
    "training.chance_constrained={proxies: 2, pool: 3, patience: 2}",
    "training.evaluate_every=1",
    "training.patience=null",
]


@pytest.fixture
def one_thread():
    """As the process that is killed has it: sums in another order are not equal to the last bit."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


FINE_TUNED = [
    "data.workers=2",
    "model.frozen_batch_norm=false",  # the network of the tests has no weights
    "training.head_warmup_steps=4",
    "training.lr_schedule=cosine",
    "training.ema=0.9",
]
"""The steps that are repeated begin in the middle of the cosine, after the head's warm-up."""


@pytest.mark.parametrize(("name", "more"), [("triplet", []), ("contrastive-ccp", INSTANCES), ("fine-tune", FINE_TUNED)])
def test_kill_9_then_resume_is_bit_equal_to_an_uninterrupted_run(
    name, more, photos, tiny, one_thread, programs, tmp_path
):
    recipe = load_recipe(name, [*tiny, *more])
    fit_run(photos, recipe, Run(tmp_path / "whole"), progress=False)
    # In the middle of the second instance, which has failed to gain once when its last step begins.
    ends = [row["step"] for row in Run(tmp_path / "whole").history() if "instance" in row]
    settings = [str(photos), str(ends[1] if ends else 10), name, *tiny, *more]
    code, _, errors = programs.run(KILLED, tmp_path / "killed", *settings)
    assert code == -signal.SIGKILL, errors
    assert not Run(tmp_path / "killed").model_file.exists()
    if ends:
        _, facts = load_state(Run(tmp_path / "killed").state_file)
        assert (facts["schedule"]["instance"], facts["schedule"]["stale"]) == (2, 1)
    fit_run(photos, recipe, Run(tmp_path / "killed"), resume=True, progress=False)
    assert_same_run(tmp_path / "whole", tmp_path / "killed")
    whole, killed = (Run(tmp_path / out).instances() for out in ("whole", "killed"))
    assert len(whole) == len(killed)
    for ours, theirs in zip(whole, killed, strict=True):
        assert_equal_tensors(ours, theirs)


def test_a_run_that_is_being_trained_is_refused_until_it_ends(patterns, tiny, tmp_path):
    """Refused from the first step on, whichever way it is asked for."""
    from nearkin.training import loop

    recipe, path = load_recipe("triplet", tiny), tmp_path / "run"
    plain, refusals = loop.Loop._step, []

    def step(self, inputs, labels):
        if self.state.step in (0, 5):
            for ranks in (None, TWO):
                with pytest.raises(StorageError, match=str(os.getpid())) as refusal:
                    run_training(patterns, recipe, path, tmp_path, resume=True, ranks=ranks)
                refusals.append(refusal)
        return plain(self, inputs, labels)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop.Loop, "_step", step)
        run_training(patterns, recipe, path, tmp_path)
    assert len(refusals) == 4
    run_training(patterns, recipe, path, tmp_path, resume=True)
    run_training(patterns, recipe, tmp_path / "whole", tmp_path)
    assert_same_run(path, tmp_path / "whole")


def test_two_that_begin_at_once_are_one_run(patterns, tiny, tmp_path):
    recipe, path = load_recipe("triplet", tiny), tmp_path / "run"
    path.mkdir()
    with WriterLock(path).held(), pytest.raises(StorageError, match=str(os.getpid())):
        run_training(patterns, recipe, path, tmp_path)
    assert not Run(path).exists
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "save_model", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run_training(patterns, recipe, path, tmp_path)
    run_training(patterns, recipe, path, tmp_path, resume=True)
    assert Run(path).model_file.exists()


def test_a_run_that_cannot_be_written_is_told(patterns, tiny, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=str(tmp_path / "file")):
        run_training(patterns, load_recipe("triplet", tiny), tmp_path / "file" / "run", tmp_path)


@pytest.mark.parametrize(("processes", "change"), [(2, r"data\.classes_per_batch"), (7, r"\b5\b")])
def test_fewer_classes_than_a_batch_asks_for_and_processes_cannot_share(processes, change, patterns, tiny, tmp_path):
    sets = [*tiny, "data.classes_per_batch=8", "data.test_classes=0.5", "data.val_classes=0"]
    ranks = Ranks(world_size=processes, local_world_size=processes)
    with pytest.raises(DataError, match=change):
        run_training(patterns, load_recipe("triplet", sets), tmp_path / "run", tmp_path, ranks=ranks)
    assert not Run(tmp_path / "run").exists


def test_a_pool_that_cannot_be_read_leaves_the_network_training(patterns, tiny):
    class Unreadable:
        start = None

        def plain(self, positions):
            raise DataError("Unreadable.")

    embedder = build_embedder(load_recipe("triplet", tiny).model, seed=0).train()
    with pytest.raises(DataError, match="Unreadable"):
        TrainingPool(Unreadable(), embedder, np.zeros(3, dtype=np.int64), seed=0).embed(np.arange(3))
    assert embedder.training


def test_the_model_keeps_the_best_weights_not_the_last(patterns, tiny, tmp_path):
    from nearkin.metrics import retrieval_metrics

    # A learning rate this large ruins what the first steps learned, with most seeds.
    settings = [*tiny, "training.lr=0.3", "training.max_steps=24"]
    early = []
    for seed in range(4):
        path = tmp_path / str(seed)
        result = run_training(patterns, load_recipe("triplet", [*settings, f"training.seed={seed}"]), path, tmp_path)
        validations = [row for row in Run(path).history() if "val_MAP@R" in row]
        best = max(validations, key=lambda row: row["val_MAP@R"])
        assert result.state.best_step == best["step"]
        val = patterns.select([label in result.embedder.card["classes"]["val"] for label in patterns.labels])
        values = retrieval_metrics(result.embedder.encode(val, progress=False), val.labels).values
        assert values["MAP@R"] == pytest.approx(best["val_MAP@R"], abs=1e-6)
        early.append(best["step"] < 24 and best["val_MAP@R"] > validations[-1]["val_MAP@R"] + 1e-3)
    assert any(early)


@pytest.mark.parametrize("select", ["P@1", "NMI"])
def test_what_is_selected_by_is_best_among_the_weights_kept(select, patterns, tiny, tmp_path):
    sets = [*tiny, f"training.select={select}", "training.validation_metrics=[NMI]", "training.evaluate_every=1"]
    recipe = load_recipe("triplet", [*sets, "training.lr=0.1"])
    result = run_training(patterns, recipe, tmp_path / "run", tmp_path)
    rows = {row["step"]: row for row in Run(tmp_path / "run").history() if "val_NMI" in row}
    best = max(rows, key=lambda step: (rows[step][f"val_{select}"], -step))
    assert result.state.best_step == best
    assert result.state.best_value == rows[best][f"val_{select}"]
    # Else the test could not tell them apart.
    assert best != max(rows, key=lambda step: (rows[step]["val_MAP@R"], -step))


def test_a_plateau_lowers_the_rate(patterns, tiny, tmp_path):
    sets = ["training.lr_schedule=plateau", "training.plateau_patience=1", "training.step_factor=0.1"]
    still = ["training.lr=1e-12", "training.evaluate_every=1", "training.log_every=1", "training.max_steps=6"]
    run_training(patterns, load_recipe("triplet", [*tiny, *sets, *still]), tmp_path / "run", tmp_path)
    rates = [row["lr"] for row in Run(tmp_path / "run").history() if "lr" in row]
    # Step 0 is the best; the validations of steps 1 and 2 are no better, and so on.
    assert rates == pytest.approx([1e-12, 1e-12, 1e-13, 1e-13, 1e-14, 1e-14])


def test_the_mean_of_the_best_is_another_candidate(patterns, tiny, tmp_path, monkeypatch):
    """Validation is told what to find: each step is better than the one before, and the mean best or worst of all."""
    from nearkin.training import loop

    sets = [*tiny, "training.average_best=3", "training.evaluate_every=2"]
    for found in (0.95, 0.05):
        path, kept = tmp_path / str(found), []

        def values(self, validate, found=found, kept=kept):
            trying = sum(step == self.state.step for step, _ in self.state.validated) == 1 and self.state.step == 12
            if not trying:
                kept.append(self._weights())
            value = found if trying else 0.1 + self.state.step / 100
            return {"val_MAP@R": value, "val_P@1": value / 2}

        with monkeypatch.context() as patch:
            patch.setattr(loop.Loop, "_validation_values", values)
            result = run_training(patterns, load_recipe("triplet", sets), path, tmp_path)
            again = run_training(patterns, load_recipe("triplet", sets), path, tmp_path, resume=True)
        wins = found > 0.5
        mean = {name: sum(one[name].double() for one in kept[4:]) / 3 for name in kept[-1]}
        wanted = mean if wins else kept[-1]
        for model in (result.embedder, again.embedder, Run(path).model()):
            for name, value in model.state_dict().items():
                if value.is_floating_point():
                    torch.testing.assert_close(value, wanted[name].float())
        card = Run(path).model().card
        assert (result.state.averaged, again.state.averaged, card.averaged) == ((3, 3, 3) if wins else (0, 0, None))
        assert card.validation == {"val_MAP@R": pytest.approx(found if wins else 0.22), "val_P@1": pytest.approx(
            (found if wins else 0.22) / 2)}  # fmt: skip
        assert [row for row in Run(path).history() if "averaged_MAP@R" in row] == [
            {"step": 12, "averaged_MAP@R": found, "averaged_P@1": found / 2}
        ]


def test_patience_stops_early(patterns, tiny, tmp_path):
    still = ["training.lr=1e-12", "training.patience=2", "training.max_steps=100"]
    result = run_training(patterns, load_recipe("triplet", [*tiny, *still]), tmp_path / "run", tmp_path)
    assert result.state.step == 12  # validated at 4 (best), 8 and 12 (no gain)


def test_a_loss_that_is_not_finite_names_the_step_and_keeps_the_checkpoint(patterns, tiny, tmp_path):
    from nearkin.training.step import Step

    plain = Step.forward
    calls = []

    def poisoned(self, inputs, labels):
        calls.append(1)
        loss = plain(self, inputs, labels)
        return loss * math.nan if len(calls) == 6 else loss

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Step, "forward", poisoned)
        with pytest.raises(TrainingError, match="step 6"):
            run_training(patterns, load_recipe("triplet", tiny), tmp_path / "run", tmp_path)
    _, facts = load_state(Run(tmp_path / "run").state_file)
    assert facts["state"]["step"] == 4
    run_training(patterns, load_recipe("triplet", tiny), tmp_path / "run", tmp_path, resume=True)
    run_training(patterns, load_recipe("triplet", tiny), tmp_path / "whole", tmp_path)
    assert_same_run(tmp_path / "run", tmp_path / "whole")


@pytest.mark.parametrize(
    ("more", "word"),
    [
        (["training.clip=1"], "gradients"),
        ([], "embedding-norm"),
    ],
    ids=["clipped", "plain"],
)
def test_a_weight_that_ruins_training_is_named(more, word, patterns, tiny, tmp_path):
    term = "objective.regularisers=[{name: embedding-norm, weight: 1e39}]"
    recipe = load_recipe("triplet", [*tiny, "model.space=euclidean", term, *more])
    with pytest.raises(TrainingError, match=word):
        run_training(patterns, recipe, tmp_path / "run", tmp_path)


@pytest.mark.parametrize("validation", ["data.val_classes=0.3", "data.val_classes=0.0"])
def test_weights_ruined_by_the_last_update_are_never_kept(validation, patterns, tiny, tmp_path):
    """The loss of the step before was finite, so only the weights can tell."""
    sets = [*tiny, validation, "training.evaluate_every=1", "training.lr=1e30", "training.optimizer=sgd"]
    with pytest.raises(TrainingError, match=r"training\.lr"):
        run_training(patterns, load_recipe("triplet", sets), tmp_path / "run", tmp_path)
    assert not Run(tmp_path / "run").model_file.exists()
    if Run(tmp_path / "run").state_file.exists():
        tensors, _ = load_state(Run(tmp_path / "run").state_file)
        assert all(torch.isfinite(value).all() for value in tensors["best"].values())


def test_a_run_stopped_before_its_first_validation_leaves_no_model(patterns, tiny, tmp_path):
    result = stop_at(2, patterns, load_recipe("triplet", tiny), tmp_path / "run", tmp_path)
    assert result.interrupted
    assert not Run(tmp_path / "run").model_file.exists()
    assert Run(tmp_path / "run").state_file.exists()


def test_a_model_of_a_stopped_run_says_so(patterns, tiny, tmp_path):
    stop_at(6, patterns, load_recipe("triplet", tiny), tmp_path / "run", tmp_path)
    assert Run(tmp_path / "run").model().card["finished"] is False
    run_training(patterns, load_recipe("triplet", tiny), tmp_path / "run", tmp_path, resume=True)
    assert Run(tmp_path / "run").model().card["finished"] is True


def test_an_existing_run_is_not_overwritten(patterns, tiny, tmp_path):
    recipe = load_recipe("triplet", tiny)
    run_training(patterns, recipe, tmp_path / "run", tmp_path)
    with pytest.raises(RunError, match="--resume"):
        run_training(patterns, recipe, tmp_path / "run", tmp_path)
    with pytest.raises(RunError, match="recipe"):
        run_training(patterns, load_recipe("margin", tiny), tmp_path / "run", tmp_path, resume=True)
    with pytest.raises(RunError, match="data"):
        run_training(patterns.select(range(1, 80)), recipe, tmp_path / "run", tmp_path, resume=True)
    with pytest.raises(RunError, match="nothing"):
        run_training(patterns, recipe, tmp_path / "nothing", tmp_path, resume=True)


def test_a_checkpoint_of_another_version_or_damaged_is_refused(patterns, tiny, tmp_path):
    recipe = load_recipe("triplet", tiny)
    stop_at(6, patterns, recipe, tmp_path / "run", tmp_path)
    path = Run(tmp_path / "run").state_file
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nearkin.training.run._VERSION", "99")
        tensors, facts = {"a": {"b": torch.zeros(1)}}, {"identity": {}, "state": {}}
        save_state(tmp_path / "newer.safetensors", tensors, facts)
    with pytest.raises(CheckpointError, match="99"):
        load_state(tmp_path / "newer.safetensors")
    save_state(tmp_path / "empty.safetensors", tensors, {})
    with pytest.raises(CheckpointError, match=r"empty\.safetensors"):
        load_state(tmp_path / "empty.safetensors")
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match=path.name):
        run_training(patterns, recipe, tmp_path / "run", tmp_path, resume=True)


def test_training_works_off_the_main_thread(patterns, tiny, tmp_path):
    failures = []

    def work():
        try:
            run_training(patterns, load_recipe("triplet", tiny), tmp_path / "run", tmp_path)
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not failures
    assert Run(tmp_path / "run").model_file.exists()


def test_mixed_precision_trains(patterns, tiny, tmp_path):
    recipe = load_recipe("proxy-anchor", [*tiny, "training.precision=bf16-mixed"])
    result = run_training(patterns, recipe, tmp_path / "run", tmp_path)
    assert result.state.step == 12
    assert all(value.dtype != torch.bfloat16 for value in result.embedder.state_dict().values())


def test_decoding_in_workers_gives_the_same_run(patterns, tiny, tmp_path):
    run_training(patterns, load_recipe("triplet", tiny), tmp_path / "inline", tmp_path)
    run_training(patterns, load_recipe("triplet", [*tiny, "data.workers=2"]), tmp_path / "workers", tmp_path)
    assert_same_run(tmp_path / "inline", tmp_path / "workers")


def test_a_log_cut_short_by_a_crash_is_read_to_its_last_whole_line(tmp_path):
    run = Run(tmp_path)
    run.log_file.write_text(json.dumps({"step": 1, "loss": 2.0}) + '\n{"step": 2, "lo')
    assert run.history() == [{"step": 1, "loss": 2.0}]
    Logbook(run.log_file, keep_to=1).add(2, loss=1.0)
    assert run.history() == [{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0}]


@pytest.mark.parametrize("bad", ['{"step": 2, "lo', "", "3", '{"loss": 1.0}', "\0\0"])
def test_a_log_damaged_before_its_end_is_refused(bad, tmp_path):
    run = Run(tmp_path)
    row = json.dumps({"step": 1, "loss": 2.0})
    run.log_file.write_text(f"{row}\n{bad}\n{row}\n")
    before = run.log_file.read_bytes()
    with pytest.raises(RunError, match="line 2"):
        run.history()
    with pytest.raises(RunError, match="line 2"):
        Logbook(run.log_file, keep_to=5)
    assert run.log_file.read_bytes() == before


def test_tensorboard_events_are_written_when_it_is_installed(patterns, tiny, tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is an optional package")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run_training(patterns, load_recipe("triplet", tiny), tmp_path / "run", tmp_path)
    events = EventAccumulator(str(Run(tmp_path / "run").events_folder)).Reload()
    assert [event.step for event in events.Scalars("val_MAP@R")] == [0, 4, 8, 12]


def test_a_directory_that_another_process_just_made_is_not_a_run_yet(tmp_path, monkeypatch):
    """The first process makes it, with its lock, while the others look whether it is there."""
    assert not Run(tmp_path / "none").exists
    (tmp_path / "file").touch()
    assert Run(tmp_path / "file").exists
    made = Run(tmp_path / "made")
    made.path.mkdir()
    (made.path / "writer.lock").touch()
    with monkeypatch.context() as patch:
        patch.setattr(type(tmp_path), "is_dir", lambda self: False)  # as it was a moment ago
        assert not made.exists
    made.recipe_file.touch()
    assert made.exists
