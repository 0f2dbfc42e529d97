"""What several processes must hold alike: statistics, queues, batches, gradients; and who may write.

This file is also the program of the processes: see `main`.
"""

from __future__ import annotations

import copy
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from nearkin.errors import TrainingError
from nearkin.recipe import load_recipe
from nearkin.training import Run, loop
from nearkin.training.batch_norm import synchronised
from nearkin.training.batches import DecodedBatches
from nearkin.training.ranks import Ranks
from nearkin.training.run import load_state

# Adam divides by the size of a gradient: of one that is rounding alone it makes a whole step.
LEARNING = ["training.optimizer=sgd", "training.lr=0.002", "training.max_steps=8", "data.flip=true"]
MEMORY = "training.cross_batch_memory={batches: 2, warmup_steps: 2}"

RECIPES = {
    "pairs with batch norm": ("multi-similarity", LEARNING),
    "proxies with batch norm": ("proxy-anchor", LEARNING),
    "episodes with batch norm": (
        "protonet-s",
        [*LEARNING, "training.episodic={way: 4, shot: 1, query: 2, validation_way: 2, validation_episodes: 20}"],
    ),
    "chance-constrained with batch norm": (
        "contrastive-ccp",
        [
            *LEARNING,
            "training.evaluate_every=2",
            "training.patience=null",
            "training.chance_constrained={proxies: 2, pool: 4, patience: 1, proximal: 0.1}",
        ],
    ),
    "gradient cache": (
        "contrastive-gsp",
        [
            "model.backbone=resnet20",
            "model.freeze=all",
            "model.dimension=null",
            "model.local_dimension=8",
            "model.pooling_parameters={prototypes: 4}",
            "training.gradient_cache=4",
            "training.clip=0.5",
        ],
    ),
    "memory": ("contrastive-xbm", [*LEARNING, MEMORY]),
}
TAKEN_UP = ("memory", "chance-constrained with batch norm")
"""Begun by one process and taken up by two."""
STOP_AT = 5


def train(photos: Path, recipe: tuple[str, list[str]], path: Path, tiny: list[str], **options) -> bool:
    """Whether the training was interrupted."""
    from nearkin.api import fit_run

    base, more = recipe
    return fit_run(photos, load_recipe(base, [*tiny, *more]), Run(path), progress=False, **options).interrupted


def begin(photos: Path, recipe: tuple[str, list[str]], path: Path, tiny: list[str]) -> None:
    """Train some steps and stop."""
    plain = loop.Loop._step

    def stopping(self, inputs, labels):
        if self.state.step + 1 == STOP_AT:
            os.kill(os.getpid(), 2)
        return plain(self, inputs, labels)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop.Loop, "_step", stopping)
        assert train(photos, recipe, path, tiny)


# What the processes do.


def main(folder: Path, photos: Path, tiny: list[str]) -> None:
    ranks = Ranks.from_environment()
    ranks.meet("cpu")
    seen: dict[str, list] = {"norms": norms(ranks), "labels": [], "memory": [], "written": []}
    watch_writes(folder, seen["written"])
    plain_stream, plain_save = DecodedBatches.stream, loop.Loop._save

    def stream(self, first, last):
        for inputs, labels in plain_stream(self, first, last):
            seen["labels"].append(labels.tolist())
            yield inputs, labels

    def save(self):
        if hasattr(self.schedule, "memory"):
            seen["memory"].append({name: value.clone() for name, value in self.schedule.state_dict().items()})
        plain_save(self)

    DecodedBatches.stream, loop.Loop._save = stream, save
    for name, recipe in RECIPES.items():
        seen["labels"].clear()
        train(photos, recipe, folder / "two" / name, tiny)
    for name in TAKEN_UP:
        train(photos, RECIPES[name], folder / "begun" / name, tiny, resume=True)
    written = [path for path in seen.pop("written") if not path.endswith(".pyc")]
    torch.save({**seen, "written": written}, folder.parent / f"seen{ranks.rank}.pt")


def watch_writes(folder: Path, written: list[str]) -> None:
    """Note every file below a folder that this process opens for writing, makes, renames or removes."""

    def hook(event: str, arguments: tuple) -> None:
        if event == "open":
            path, _, flags = arguments
            if not isinstance(flags, int) or not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                return
        elif event in ("os.rename", "os.mkdir", "os.remove"):
            path = arguments[0]
        else:
            return
        if str(path).startswith(str(folder)):
            written.append(str(path))

    sys.addaudithook(hook)


def network() -> nn.Sequential:
    torch.manual_seed(2)
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.BatchNorm1d(64, momentum=None), nn.Linear(64, 2)
    )
    net[1].weight.data.uniform_(0.5, 2.0)
    return net


def images() -> torch.Tensor:
    # Slices of different means and spreads, far from zero: sums of squares would lose their digits.
    generator = torch.Generator().manual_seed(3)
    noise = torch.randn(8, 3, 6, 6, generator=generator)
    return noise * torch.linspace(0.1, 3.0, 8).view(8, 1, 1, 1) + torch.linspace(50, 60, 8).view(8, 1, 1, 1)


def norms(ranks: Ranks) -> dict[str, object]:
    """A slice through shared norms: outputs, gradients, running statistics, eval mode, and back to plain norms."""
    net, kinds = network(), [type(one) for one in network()]
    mine = images().chunk(ranks.world_size)[ranks.rank].clone().requires_grad_()
    with synchronised(net, ranks):
        first = net(mine)
        (first.pow(3).sum() * 1.0).backward()
        second = net(mine.detach())
        shared = [type(one) for one in net]
        resting = copy.deepcopy(net).eval()(mine.detach())
    return {
        "outputs": ranks.gather_labels(first.detach()),
        "again": ranks.gather_labels(second.detach()),
        "resting": ranks.gather_labels(resting.detach()),
        "of inputs": ranks.gather_labels(mine.grad),
        "of weights": [ranks.gather_labels(one.grad[None]).sum(0) for one in net.parameters()],
        "state": net.state_dict(),
        "plain again": [type(one) for one in net] == kinds != shared,
    }


# What they are compared with.


@pytest.fixture(scope="module")
def done(tmp_path_factory, photos, tiny, cache, two_processes) -> Path:
    """A folder with what two processes left, after one process had begun some of it."""
    folder = tmp_path_factory.mktemp("ranks") / "runs"
    for name in TAKEN_UP:
        begin(photos, RECIPES[name], folder / "begun" / name, tiny)
    two_processes(__file__, folder, photos, *tiny)
    return folder


def seen(done: Path) -> list[dict]:
    return [torch.load(done.parent / f"seen{rank}.pt") for rank in range(2)]


def test_shared_batch_norm_is_batch_norm_of_the_whole_batch(done):
    net, whole = network(), images().requires_grad_()
    outputs = net(whole)
    outputs.pow(3).sum().backward()
    again = net(whole.detach())
    for mine in (one["norms"] for one in seen(done)):
        torch.testing.assert_close(mine["outputs"], outputs, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(mine["again"], again, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(mine["resting"], net.eval()(images()), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(mine["of inputs"], whole.grad, rtol=1e-4, atol=1e-4)
        for theirs, parameter in zip(mine["of weights"], net.parameters(), strict=True):
            torch.testing.assert_close(theirs, parameter.grad, rtol=1e-4, atol=1e-3)
        for name, value in net.state_dict().items():
            torch.testing.assert_close(mine["state"][name], value, rtol=1e-5, atol=1e-5)
        assert mine["plain again"]


@pytest.mark.parametrize("name", RECIPES)
def test_two_processes_train_as_one_does(name, done, photos, tiny, tmp_path):
    train(photos, RECIPES[name], tmp_path / "one", tiny)
    assert_close_runs(tmp_path / "one", done / "two" / name)


@pytest.mark.parametrize("name", TAKEN_UP)
def test_begun_by_one_process_and_taken_up_by_two(name, done):
    assert_close_runs(done / "begun" / name, done / "two" / name)


def assert_close_runs(ours: Path, theirs: Path) -> None:
    left, right = Run(ours).history(), Run(theirs).history()
    assert [row.keys() for row in left] == [row.keys() for row in right]
    for one, two in zip(left, right, strict=True):
        assert list(one.values()) == pytest.approx(list(two.values()), rel=1e-5, abs=1e-5)
    mine, others = (load_state(Run(path).state_file)[0]["embedder"] for path in (ours, theirs))
    for name, value in mine.items():
        torch.testing.assert_close(others[name], value, rtol=1e-5, atol=1e-5)


def test_the_memory_is_in_the_same_order_in_every_process(done, photos, tiny, tmp_path):
    first, second = (one["memory"] for one in seen(done))
    assert len(first) == len(second) > 2
    for ours, theirs in zip(first, second, strict=True):
        assert torch.equal(ours["memory"], theirs["memory"])
        assert torch.equal(ours["memory_labels"], theirs["memory_labels"])
    # And in the order of one process.
    train(photos, RECIPES["memory"], tmp_path / "one", tiny)
    alone = load_state(Run(tmp_path / "one").state_file)[0]["schedule"]
    assert torch.equal(alone["memory_labels"], first[-1]["memory_labels"])
    torch.testing.assert_close(alone["memory"], first[-1]["memory"], rtol=1e-5, atol=1e-5)


def test_batches_are_balanced_across_processes(done):
    first, second = (one["labels"] for one in seen(done))
    assert len(first) == len(second) > 0
    for ours, theirs in zip(first, second, strict=True):
        classes, counts = np.unique([*ours, *theirs], return_counts=True)
        assert (len(classes), set(counts)) == (4, {3})
        assert not set(ours) & set(theirs)


def test_only_the_first_process_writes(done):
    first, second = (one["written"] for one in seen(done))
    assert any("last.safetensors" in path for path in first)
    assert second == []


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.04)])
def test_of_one_process_it_is_the_plain_norm_in_any_precision(dtype, tolerance, affine):
    plain, shared = (nn.BatchNorm2d(4, affine=affine) for _ in range(2))
    generator = torch.Generator().manual_seed(4)
    pixels, outer = (torch.randn(6, 4, 5, 5, generator=generator).to(dtype) for _ in range(2))
    inputs = [pixels.clone().requires_grad_() for _ in range(2)]
    with synchronised(shared, Ranks()):
        outputs = [norm(x) for norm, x in zip((plain, shared), inputs, strict=True)]
        for output in outputs:
            output.backward(outer)
    torch.testing.assert_close(*outputs, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(inputs[0].grad, inputs[1].grad, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(plain.running_var, shared.running_var, rtol=1e-5, atol=1e-5)
    for theirs, ours in zip(plain.parameters(), shared.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=tolerance, atol=tolerance)


class OwnNorm(nn.BatchNorm2d):
    """As timm has them, with an activation inside."""


def test_norms_of_another_kind_are_refused_if_they_learn():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), OwnNorm(4))
    with pytest.raises(TrainingError, match="OwnNorm"):
        synchronised(net, Ranks(world_size=2)).__enter__()
    assert type(net[1]) is OwnNorm


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
