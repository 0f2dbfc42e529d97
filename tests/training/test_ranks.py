"""Several processes: the same training as one, files written once, all stop together.

This file is also the program of the processes: see `main`.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from torch import nn

from nearkin.api import fit_run
from nearkin.data.augment import BatchAugment
from nearkin.data.inputs import InputSpec
from nearkin.data.samplers import BalancedBatchSampler
from nearkin.errors import DataError, LostProcessError, TrainingError
from nearkin.objectives import Objective
from nearkin.recipe import TrainingSection, load_recipe
from nearkin.training import Run
from nearkin.training.ranks import Ranks, make_fabric, naming_lost_process
from nearkin.training.run import generator_tensors, load_state, restore_generator, seed_generator

# Batch norm would see slices of a batch: a frozen backbone has none that learns.
FROZEN = ["model.freeze=all", "training.max_steps=8", "training.evaluate_every=4"]
CACHED = [*FROZEN, "model.cache=true", "model.cache_views={flip: true, crops: 2}"]
AUGMENTED = [*FROZEN, "data.jitter=0.3", "data.flip=true", "data.crop=random"]

LEARNED_MARGIN = "a margin that learns, and a miner that draws"

RECIPES = {
    "contrastive": ("contrastive", CACHED),
    "proxies": ("proxy-anchor", [*AUGMENTED, "training.clip=0.5", "training.ema=0.9"]),
    LEARNED_MARGIN: ("margin", [*AUGMENTED, "data.workers=1"]),
    "memory": (
        "contrastive-xbm",
        [*CACHED, "training.cross_batch_memory={batches: 2, warmup_steps: 3}"],
    ),
    "chance-constrained": (
        "contrastive-ccp",
        [
            *CACHED,
            "training.max_steps=12",
            "training.evaluate_every=2",
            "training.patience=null",
            "training.chance_constrained={proxies: 2, pool: 4, patience: 1, proximal: 0.1}",
        ],
    ),
}
RECIPES["prototypes"] = (
    "contrastive-gsp",
    [
        *CACHED,
        "model.backbone=resnet20",
        "model.dimension=null",
        "model.local_dimension=8",
        "model.pooling_parameters={prototypes: 4}",
    ],
)
RECIPES["idle prototypes"] = (
    "contrastive-gsp",
    [
        *RECIPES["prototypes"][1],
        "model.pooling_parameters={prototypes: 4, budget: 1}",
        "objective.regularisers=[]",
    ],
)
RECIPES["adversary"] = (
    "contrastive",
    [
        *FROZEN,
        "model.local_dimension=8",
        "training.ema=0.9",
        "objective.regularisers=[{name: class-adversary, weight: 0.5, parameters: {hidden: 16, epoch_steps: 3}}]",
    ],
)
RECIPES["episodes"] = (
    "1nn-dr",
    [
        *CACHED,
        "model.space=sphere",  # Euclidean distances do not see the head's bias, whose gradient would be rounding alone
        "training.episodic={way: 4, shot: 2, query: 1, validation_way: 2, validation_episodes: 20, record_every: 4}",
    ],
)
RECIPES["moving proxies and scale"] = (
    "proxy-dr",
    [
        *AUGMENTED,
        "objective.parameters={proxies: ema, ema_rate: 0.1, scale: dynamic}",
        "data.split=items",
        "data.val_items=0.3",
    ],
)
RECIPES["learned similarity"] = (
    "learned-similarity",
    [*AUGMENTED, "objective.parameters.target_spread=0.2", "objective.parameters.auxiliary_weight=0"],
)
RECIPES["adversarial"] = (
    "normface",
    [
        *AUGMENTED,
        "objective.parameters={proxies: ema, ema_rate: 0.1}",
        "training.schedule=adversarial",
        "training.adversarial={steps: 2}",
    ],
)
# What is compared with the input's own prediction or point has next to no slope there, and rounding decides the signs
# that steps in linf are made of: smooth steps, in l2.
RECIPES["adversarial similarity"] = (
    "learned-similarity",
    [
        *AUGMENTED,
        "model.space=euclidean",  # a fixed length of 8 makes eight times as much of every rounding
        "training.schedule=adversarial",
        "training.adversarial={mode: trades, steps: 2, norm: l2, eps: 0.5}",
    ],
)
RECIPES["adversarial pairs"] = (
    "contrastive",
    [
        *FROZEN,
        "objective.regularisers=[{name: class-adversary, weight: 0.5, parameters: {vectors: embeddings, hidden: 16}}]",
        "training.schedule=adversarial",
        "training.adversarial={steps: 2, norm: l2, eps: 0.5}",
    ],
)
HALF = ("proxy-anchor", [*AUGMENTED, "training.precision=bf16-mixed"])
RESUMED = ("memory", "chance-constrained", "adversary", "proxies")
STOP_AT = 7
"""Between two validations."""


def train(photos: Path, recipe: tuple[str, list[str]], path: Path, tiny: list[str], resume: bool = False) -> bool:
    """Whether the training was interrupted."""
    from nearkin.api import fit_run

    base, more = recipe
    resolved = load_recipe(base, [*tiny, *more])
    return fit_run(photos, resolved, Run(path), resume=resume, progress=False).interrupted


def train_until(step: int, *arguments) -> bool:
    """Train, with a Ctrl-C during the given step."""
    from nearkin.training import loop

    plain = loop.Loop._step

    def interrupted(self, inputs, labels):
        if self.state.step + 1 == step:
            os.kill(os.getpid(), signal.SIGINT)
        return plain(self, inputs, labels)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop.Loop, "_step", interrupted)
        return train(*arguments)


# What the processes do.


def main(folder: Path, photos: Path, tiny: list[str]) -> None:
    ranks = Ranks.from_environment()
    ranks.meet("cpu")
    found = {"gradients": gradients(ranks), "collectives": collectives(ranks), "draws": draws(ranks)}
    torch.save(found, folder / f"found{ranks.rank}.pt")
    for name, recipe in {**RECIPES, "half": HALF}.items():
        train(photos, recipe, folder / "two" / name, tiny)
    train_with_an_idle_margin(photos, RECIPES[LEARNED_MARGIN], folder / "two" / "idle", tiny)
    for name in RESUMED:
        # The signal reaches one process only, and not the first.
        stop = train_until if ranks.rank == 1 else lambda _, *arguments: train(*arguments)
        stopped = stop(STOP_AT, photos, RECIPES[name], folder / "stopped" / name, tiny)
        (folder / f"stopped{ranks.rank}-{name}").write_text(str(stopped))
        train(photos, RECIPES[name], folder / "stopped" / name, tiny, resume=True)
    stop(STOP_AT, photos, RECIPES["proxies"], folder / "taken up by one", tiny)


def train_with_an_idle_margin(*arguments) -> None:
    """Train, with a step whose loss is zero and knows of no margin."""
    plain, calls = Objective.forward, []

    def sometimes_idle(self, embeddings, *others):
        calls.append(1)
        return embeddings.sum() * 0.0 if len(calls) == 3 else plain(self, embeddings, *others)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Objective, "forward", sometimes_idle)
        train(*arguments)


class Learner(nn.Module):
    """A network with proxies, and a loss of the whole batch."""

    def __init__(self, ranks: Ranks) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.ranks = ranks
        self.network = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
        self.proxies = nn.Parameter(torch.randn(4, 3))
        self.idle = nn.Parameter(torch.ones(2))  # as a margin that no pair of the batch crosses

    def forward(self, inputs, labels):
        embeddings = self.ranks.gather(self.network(inputs))
        labels = self.ranks.gather_labels(labels)
        # Every pair of the batch, weighed by both: a slice alone cannot know this loss.
        pairs = torch.cdist(embeddings, embeddings) * torch.outer(labels + 1.0, labels + 2.0)
        loss = pairs.square().mean() + (embeddings - self.proxies[labels]).square().sum()
        return self.ranks.reach(loss, [self.proxies, self.idle])


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(3)
    return torch.from_numpy(rng.normal(size=(8, 6))).float(), torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])


def gradients(ranks: Ranks) -> list[dict[str, torch.Tensor]]:
    """Of two steps: what one leaves unfinished, the next would refuse."""
    inputs, labels = (whole.chunk(ranks.world_size)[ranks.rank] for whole in batch())
    learner = Learner(ranks)
    fabric = make_fabric(TrainingSection(accelerator="cpu"), ranks)
    module, _ = fabric.setup(learner, torch.optim.SGD(learner.parameters()))
    steps = []
    for _ in range(2):
        learner.zero_grad(set_to_none=True)
        fabric.backward(module(inputs, labels))
        steps.append({name: parameter.grad.clone() for name, parameter in learner.named_parameters()})
    return steps


def collectives(ranks: Ranks) -> dict[str, object]:
    module = nn.Linear(2, 2).requires_grad_(False)
    module.weight.fill_(ranks.rank + 1.0)
    ranks.agree(module)
    log = []
    ranks.in_turn(lambda: log.append(time.monotonic()))
    return {
        "rows": ranks.gather_labels(torch.full((2, 3), ranks.rank)),
        "any": [ranks.any(ranks.rank == number) for number in range(3)],
        "tensor": ranks.broadcast(torch.full((2,), ranks.rank + 7)),
        "object": ranks.broadcast_object({"rank": ranks.rank}),
        "agreed": module.weight,
        "turn": log[0],
    }


def draws(ranks: Ranks) -> list[torch.Tensor]:
    """After seeding, later, and again after going back."""
    seed_generator(3, ranks)
    first = torch.rand(4)
    kept = generator_tensors(ranks)
    later = torch.rand(4)
    restore_generator(kept, 3, ranks, step=9)
    return [first, later, torch.rand(4)]


# What they are compared with.


@pytest.fixture(scope="module")
def done(tmp_path_factory, photos, tiny, cache, two_processes) -> Path:
    """A folder with what two processes left."""
    folder = tmp_path_factory.mktemp("ranks")
    two_processes(__file__, folder, photos, *tiny)
    return folder


def found(done: Path) -> list[dict]:
    return [torch.load(done / f"found{rank}.pt") for rank in range(2)]


def test_the_gradient_of_slices_is_the_gradient_of_the_batch(done):
    learner = Learner(Ranks())
    learner(*batch()).backward()
    assert learner.idle.grad is None
    learner.idle.grad = torch.zeros(2)
    for theirs in (step for values in found(done) for step in values["gradients"]):
        for name, parameter in learner.named_parameters():
            torch.testing.assert_close(theirs[name], parameter.grad)


def test_what_passes_between_processes(done):
    first, second = (values["collectives"] for values in found(done))
    assert first.pop("turn") < second.pop("turn")
    for values in (first, second):
        assert values["rows"].tolist() == [[0] * 3] * 2 + [[1] * 3] * 2
        assert values["any"] == [True, True, False]
        assert values["tensor"].tolist() == [7, 7]
        assert values["object"] == {"rank": 0}
        assert values["agreed"].tolist() == [[1.0, 1.0], [1.0, 1.0]]


def test_each_process_has_its_own_random_state(done):
    one, two = (values["draws"] for values in found(done))
    for first, later, again in (one, two):
        assert torch.equal(later, again)
        assert not torch.equal(first, later)
    assert not torch.equal(one[0], two[0])
    torch.manual_seed(3)
    assert torch.equal(one[0], torch.rand(4))


def test_a_process_that_joins_at_a_checkpoint_is_seeded_by_its_step():
    second, drawn = Ranks(rank=1, world_size=2, local_rank=1, local_world_size=2), {}
    with torch.random.fork_rng():
        for step in (9, 9, 10):
            restore_generator({"torch": torch.get_rng_state()}, 3, second, step)
            drawn.setdefault(step, []).append(torch.rand(4))
    assert torch.equal(*drawn[9])
    assert not torch.equal(drawn[9][0], drawn[10][0])


def test_a_step_that_has_no_use_for_a_margin_stops_nobody(done):
    rows = Run(done / "two" / "idle").history()
    assert rows[-1]["step"] == 8


def assert_close_runs(ours: Path, theirs: Path, tolerance: float) -> None:
    left, right = Run(ours).history(), Run(theirs).history()
    assert [row.keys() for row in left] == [row.keys() for row in right]
    for one, two in zip(left, right, strict=True):
        assert list(one.values()) == pytest.approx(list(two.values()), rel=tolerance, abs=tolerance)
    mine, others = Run(ours).model(), Run(theirs).model()
    for name, value in mine.state_dict().items():
        torch.testing.assert_close(others.state_dict()[name], value, rtol=tolerance, atol=tolerance)
    assert others.card["validation"] == pytest.approx(mine.card["validation"], abs=tolerance)


@pytest.mark.parametrize("name", RECIPES)
def test_two_processes_train_as_one_does(name, done, photos, tiny, tmp_path):
    train(photos, RECIPES[name], tmp_path / "one", tiny)
    assert_close_runs(tmp_path / "one", done / "two" / name, 1e-5)
    assert names(tmp_path / "one") == names(done / "two" / name)


def names(run: Path) -> set[str]:
    """The files of a run; those of TensorBoard carry the time."""
    return {path.relative_to(run).as_posix() for path in run.rglob("*") if path.parent.name != "events"}


def test_several_instances_were_compared(done):
    rows = Run(done / "two" / "chance-constrained").history()
    assert sum("instance" in row for row in rows) > 2


def test_half_precision(done, photos, tiny, tmp_path):
    train(photos, HALF, tmp_path / "one", tiny)
    ours, theirs = (Run(path).history() for path in (tmp_path / "one", done / "two" / "half"))
    losses = [[row["loss"] for row in rows if "loss" in row] for rows in (ours, theirs)]
    assert losses[0] == pytest.approx(losses[1], rel=0.02)


@pytest.mark.parametrize("name", RESUMED)
def test_stopped_in_one_process_and_resumed_is_bit_equal(name, done):
    assert [(done / f"stopped{rank}-{name}").read_text() for rank in range(2)] == ["True", "True"]
    assert Run(done / "stopped" / name).log_file.read_text() == Run(done / "two" / name).log_file.read_text()
    ours, theirs = (Run(done / kind / name).model().state_dict() for kind in ("stopped", "two"))
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)


def test_stopped_with_two_processes_and_resumed_with_one(done, photos, tiny):
    train(photos, RECIPES["proxies"], done / "taken up by one", tiny, resume=True)
    assert_close_runs(done / "two" / "proxies", done / "taken up by one", 1e-5)


def test_events_are_written_once(done):
    pytest.importorskip("tensorboard", reason="tensorboard is an optional package")
    assert len(list(Run(done / "two" / "contrastive").events_folder.iterdir())) == 1


def command(photos: Path, out: Path, sets: list[str], *more: str) -> list[str]:
    chosen = [part for assignment in sets for part in ("--set", assignment)]
    return ["-m", "nearkin", "train", str(photos), "--recipe", "proxy-anchor", "--out", str(out), *chosen, *more]


@pytest.mark.slow
def test_the_command_stops_with_torchrun(photos, tiny, cache, torchrun, tmp_path):
    sets = [*tiny, *FROZEN, "training.max_steps=100000", "training.patience=null", "data.workers=1"]
    process = torchrun(*command(photos, tmp_path / "run", sets))
    run = Run(tmp_path / "run")
    deadline = time.monotonic() + 60
    while not run.state_file.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    said, errors = process.communicate(timeout=60)
    assert said.count("Stopped") == 1, errors
    _, facts = load_state(run.state_file)
    assert re.search(rf"Stopped\D+{facts['state']['step']}\b", said)
    assert run.model().card["finished"] is False
    assert not list(run.path.glob(".*tmp"))


def test_wrong_input_is_refused_once(photos, tiny, cache, programs, start_two, tmp_path):
    first, other = start_two(*command(photos, tmp_path / "run", [*tiny, "data.classes_per_batch=3"])[2:])
    assert programs.ended(first) == [2]
    os.kill(other, signal.SIGTERM)  # as torchrun does then
    assert programs.ended(other) != [0]
    assert programs.errors.count("nearkin: ") == 1
    assert "data.classes_per_batch" in programs.errors
    assert not Run(tmp_path / "run").exists


# Without other processes.


def test_one_process_gives_back_what_it_is_given():
    ranks = Ranks()
    tensor = torch.ones(2, 3, requires_grad=True)
    assert ranks.is_first
    assert ranks.machines == 1
    assert ranks.accelerator("mps") == "mps"
    for function in (ranks.gather, ranks.gather_labels, ranks.broadcast, ranks.broadcast_object):
        assert function(tensor) is tensor
    assert (ranks.any(False), ranks.any(True)) == (False, True)
    assert ranks.in_turn(lambda: 3) == 3
    ranks.meet("cpu")
    ranks.barrier()
    ranks.agree(nn.Linear(2, 2))
    assert not torch.distributed.is_initialized()


def test_the_environment_counts_only_when_torchrun_made_it():
    cluster = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    assert Ranks.from_environment(cluster) == Ranks()
    ranks = Ranks.from_environment({**cluster, "TORCHELASTIC_RUN_ID": "none"})
    assert ranks == Ranks(rank=3, world_size=4, local_rank=1, local_world_size=2)
    assert ranks.machines == 2
    assert not ranks.is_first


def test_what_processes_cannot_share_is_refused(monkeypatch):
    uneven = {"RANK": "0", "WORLD_SIZE": "5", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "x"}
    with pytest.raises(TrainingError, match="--nproc-per-node"):
        Ranks.from_environment(uneven)
    two = Ranks(world_size=2, local_world_size=2)
    with pytest.raises(TrainingError, match="GPU"):
        two.accelerator("mps")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert two.accelerator("cpu") == "cpu"
    with pytest.raises(TrainingError, match="GPU"):
        two.accelerator("auto")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert two.accelerator("auto") == "gpu"
    with pytest.raises(DataError, match=r"data\.classes_per_batch"):
        BalancedBatchSampler(np.repeat(np.arange(5), 3), 3, 2, world_size=2)


@pytest.mark.parametrize("whole", [4, 12])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_slice_is_augmented_as_among_the_others(channels, whole):
    # With 4 items the order of the four changes of colour could be taken for one draw an item.
    spec = InputSpec(channels=channels, size=8, mean=(0.5,) * channels, std=(0.5,) * channels)
    augment = BatchAugment(spec, flip=True, jitter=(0.3, 0.3, 0.3, 0.1), seed=2)
    images = torch.randint(0, 256, (whole, channels, 8, 8), dtype=torch.uint8)
    half = whole // 2
    slices = [augment(images[first : first + half], 9, first, whole) for first in (0, half)]
    torch.testing.assert_close(torch.cat(slices), augment(images, 9))


SETS = [
    "model.freeze=all",
    "training.max_steps=100000",
    "training.evaluate_every=5",
    "training.patience=null",
    "data.workers=0",
]
SOON = 25.0
"""Seconds; a machine with other work to do is slow."""


@pytest.fixture
def training(photos, tiny, programs, start_two, tmp_path, monkeypatch):
    """Two processes that train, with a checkpoint written; ended with the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    sets = [part for one in [*tiny, *SETS] for part in ("--set", one)]
    out = tmp_path / "run"
    words = ("train", photos, "--recipe", "proxy-anchor", "--out", out, *sets)
    started = [psutil.Process(number) for number in start_two(*words, NEARKIN_PROCESS_TIMEOUT="4")]
    deadline = time.monotonic() + 60
    while not Run(out).state_file.exists() and started[0].is_running() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert Run(out).state_file.exists(), programs.errors
    yield started, Run(out)
    for process in started:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    programs.ended()


def check_whole(run: Run) -> None:
    """The checkpoint can be read, and nothing is half-written."""
    tensors, facts = load_state(run.state_file)
    assert facts["state"]["step"] >= 5
    assert all(torch.isfinite(value).all() for value in tensors["embedder"].values())
    assert not list(run.path.glob(".*tmp"))


@pytest.mark.parametrize("lost", [0, 1])
def test_the_others_stop_when_one_is_killed(lost, training, programs, photos):
    processes, run = training
    processes[lost].kill()
    began = time.monotonic()
    (code,) = programs.ended(processes[1 - lost].pid)
    assert time.monotonic() - began < SOON
    assert code > 0
    assert programs.errors.count("nearkin: ") == 1
    assert "Traceback (most recent call last)" not in programs.errors
    check_whole(run)
    if lost:
        goes_on(run, photos)


def goes_on(run: Run, photos: Path) -> None:
    """What was saved is taken up by one process, to the results of a run that nobody killed."""
    recipe = run.recipe()
    steps = load_state(run.state_file)[1]["state"]["step"] + 5
    short = recipe.model_copy(update={"training": recipe.training.model_copy(update={"max_steps": steps})})
    short.save(run.recipe_file)
    whole = Run(run.path.parent / "whole")
    fit_run(photos, short, run, resume=True, progress=False)
    fit_run(photos, short, whole, progress=False)
    ours, theirs = (one.history()[-1] for one in (run, whole))
    assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-4)


def test_the_others_stop_when_one_hangs(training, programs):
    (other, frozen), run = training
    frozen.suspend()
    began = time.monotonic()
    (code,) = programs.ended(other.pid)
    assert 2.0 < time.monotonic() - began < SOON
    assert code > 0
    assert "NEARKIN_PROCESS_TIMEOUT" in programs.errors
    check_whole(run)


@pytest.mark.parametrize(
    ("told", "word"),
    [
        ("[gloo/transport/tcp/pair.cc:538] Connection closed by peer [127.0.0.1]:3", "stopped"),
        ("[gloo/transport/tcp/buffer.cc:72] Timed out waiting 4000ms for recv", "NEARKIN_PROCESS_TIMEOUT"),
    ],
)
def test_what_a_lost_connection_is_called(told, word):
    with pytest.raises(LostProcessError, match=word), naming_lost_process():
        raise RuntimeError(told)


def test_other_errors_pass():
    with pytest.raises(RuntimeError, match="shapes"), naming_lost_process():
        raise RuntimeError("shapes do not fit")


@pytest.mark.parametrize("given", ["soon", "0", "-3", "nan", "1e9"])
def test_a_time_out_is_a_number_of_seconds(given):
    place = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "x"}
    assert Ranks.from_environment({**place, "NEARKIN_PROCESS_TIMEOUT": "7.5"}).timeout == 7.5
    assert Ranks.from_environment(place).timeout == 1800
    with pytest.raises(TrainingError, match="NEARKIN_PROCESS_TIMEOUT"):
        Ranks.from_environment({**place, "NEARKIN_PROCESS_TIMEOUT": given})


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
