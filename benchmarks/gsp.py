"""What generalized sum pooling costs: its solver against the paper's iteration, and a training step against GAP's.

    python benchmarks/gsp.py            the table (about three minutes); writes benchmarks/gsp.json
    python benchmarks/gsp.py --check    exit code 0 only if every bar holds
    python benchmarks/gsp.py --quick    under a minute, without the steps at 224 px; nothing is written

Every time is a ratio of contenders that take turns in one process, by the medians of single rounds. The peers are the
paper's: 100 steps of its fixed point, either unrolled by autograd or with its closed-form gradient (as corrected in
docs/methods/gsp.md). Both are written lean: the sums of the kernel over prototypes, which never change, are computed
once, and each peer has the costs in the layout it likes best. Needs the extra `train`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from nearkin.allocator import tune_allocator

tune_allocator()  # as the nearkin command does, before anything is imported that starts threads

import torch
from bars import in_turns, kept, tell, write
from torch import Tensor

from nearkin.models import build_embedder
from nearkin.models.pooling.gsp import soft_minimum, spend
from nearkin.models.section import ModelSection
from nearkin.models.speed import as_channels_last
from nearkin.objectives import make_objective
from nearkin.objectives.section import ObjectiveSection
from nearkin.recipe import TrainingSection
from nearkin.training import Loop, Run

SEED = 0
SHARPNESS, BUDGET, ITERATIONS = 5.0, 0.3, 100
SMALL, LARGE = (32, 64, 49), (32, 128, 196)
"""Batch, prototypes, positions."""
SOLVER_ROUNDS = {"full": 400, "quick": 150}
SHARPNESSES = (0.01, 0.1, 0.5, 1.0, 5.0, 10.0, 50.0, 100.0, 200.0)
BUDGETS = (0.01, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 0.99)
CLASSES, BATCH = 50, {"classes": 8, "per_class": 4}
STEPS = {
    # name: (settings of the model, shape of an item, start, steps in the full run, in the quick run)
    "cached maps 7x7x1280": ({"freeze": "all"}, (1280, 7, 7), "last", 300, 60),
    "224 px": ({}, (3, 224, 224), None, 12, 0),
}
POOLINGS: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "GAP": ("gap", []),
    "GSP": ("gsp", []),
    "GSP and zero-shot loss": ("gsp", [{"name": "zero-shot", "weight": 0.1}]),
}
"""Contender to its pooling and regularisers."""
WARM = 3
BARS: dict[str, tuple[str, str, float]] = {
    "unrolled": ("weights from costs, forward + backward, 32x64x49: unrolled / ours", ">=", 4.0),
    "unrolled, large": ("the same, 32x128x196", ">=", 4.0),
    "closed form": ("100 steps with the closed-form gradient / ours, 32x64x49", ">=", 1.5),
    "closed form, large": ("the same, 32x128x196", ">=", 1.0),
    "memory": ("saved for backward beyond the costs, 32x64x49: ours / unrolled", "<=", 0.1),
    "memory, large": ("the same, 32x128x196", "<=", 0.1),
    "residual": ("largest |sum of weights - 1| over sharpness 0.01-200, budget 0.01-0.99", "<=", 1e-6),
    "not finite": ("gradients that are not finite over the same", "<=", 0.0),
    "step, cached maps 7x7x1280": ("training step on cached maps 7x7x1280, batch 32: GSP / GAP", "<=", 2.0),
    "step, 224 px": ("training step of EfficientNet-Lite0 at 224 px, batch 32: GSP / GAP", "<=", 1.05),
}
RESULT = kept("gsp.json")


# ---------------------------------------------------------------- the solver and its peers


def ours(costs: Tensor) -> Tensor:
    """Weights (B, N) from costs (B, N, M)."""
    return spend(soft_minimum(costs, SHARPNESS), BUDGET)


def unrolled(costs: Tensor, iterations: int = ITERATIONS) -> Tensor:
    """The paper's iteration, differentiated by autograd: weights (B, N) from costs (B, M, N)."""
    positions = costs.shape[2]
    sums = torch.exp(-SHARPNESS * costs).sum(1)
    t = costs.new_ones(len(costs), 1)
    for _ in range(iterations):
        rho = 1 / positions / (1 + t * sums)
        t = BUDGET / (sums * rho).sum(1, keepdim=True)
    return (1 / positions - rho) / BUDGET


class ClosedForm(torch.autograd.Function):
    """The paper's iteration with its closed-form gradient, costs (B, M, N)."""

    @staticmethod
    def forward(ctx: Any, costs: Tensor, iterations: int = ITERATIONS) -> Tensor:
        positions = costs.shape[2]
        kernel = torch.exp(-SHARPNESS * costs)
        sums = kernel.sum(1)
        t = costs.new_ones(len(costs), 1)
        for _ in range(iterations):
            rho = 1 / positions / (1 + t * sums)
            t = BUDGET / (sums * rho).sum(1, keepdim=True)
        ctx.save_for_backward(kernel, rho, t)
        return (1 / positions - rho) / BUDGET

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        kernel, rho, t = ctx.saved_tensors
        positions = rho.shape[1]
        q = rho * (-gradient / BUDGET)
        eta = q.sum(1, keepdim=True) - positions * (q * rho).sum(1, keepdim=True)
        kappa = 1 / (1 - BUDGET - positions * (rho * rho).sum(1, keepdim=True))
        return kernel * ((q - eta * kappa * rho) * positions * t * rho * SHARPNESS).unsqueeze(1), None


def random_costs(batch: int, prototypes: int, positions: int) -> Tensor:
    """Costs (B, N, M) between points of the unit ball."""
    generator = torch.Generator().manual_seed(SEED)
    points = torch.randn(batch, positions, 16, generator=generator)
    centers = torch.randn(prototypes, 16, generator=generator)
    return torch.cdist(*(x / x.norm(dim=-1, keepdim=True).clamp(min=1) for x in (points, centers)))


def measure_solver(mode: str, figures: dict[str, float], table: list[dict[str, Any]]) -> None:
    for (batch, prototypes, positions), suffix in ((SMALL, ""), (LARGE, ", large")):
        costs = random_costs(batch, prototypes, positions).requires_grad_()
        turned = costs.detach().transpose(1, 2).contiguous().requires_grad_()
        upstream = torch.randn(batch, positions, generator=torch.Generator().manual_seed(SEED))
        contenders: dict[str, tuple[Callable[[Tensor], Tensor], Tensor]] = {
            "ours": (ours, costs),
            "unrolled": (unrolled, turned),
            "closed form": (ClosedForm.apply, turned),
        }
        gradients = {name: torch.autograd.grad(run(x), x, upstream)[0] for name, (run, x) in contenders.items()}
        apart = (gradients["ours"] - gradients["closed form"].transpose(1, 2)).abs().max()
        if apart > 1e-4 * gradients["ours"].abs().max():
            raise SystemExit("The gradients of ours and of the closed form differ.")
        times = in_turns(
            {name: partial(_both_ways, run, x, upstream) for name, (run, x) in contenders.items()},
            SOLVER_ROUNDS[mode],
            WARM,
        )
        middle = {name: median(values) for name, values in times.items()}
        kept = {name: _saved_bytes(contenders[name][0], contenders[name][1]) for name in ("ours", "unrolled")}
        figures[f"unrolled{suffix}"] = middle["unrolled"] / middle["ours"]
        figures[f"closed form{suffix}"] = middle["closed form"] / middle["ours"]
        figures[f"memory{suffix}"] = kept["ours"] / kept["unrolled"]
        case = f"weights, {batch}x{prototypes}x{positions}"
        table += [{"case": case, "contender": name, "milliseconds": 1e3 * value} for name, value in middle.items()]
        table += [{"case": case, "contender": f"{name}, saved", "kilobytes": size / 1e3} for name, size in kept.items()]


def _both_ways(run: Callable[[Tensor], Tensor], costs: Tensor, upstream: Tensor) -> None:
    torch.autograd.grad(run(costs), costs, upstream)


def _saved_bytes(run: Callable[[Tensor], Tensor], costs: Tensor) -> int:
    """What autograd holds on to between forward and backward, without the costs themselves."""
    storages: dict[int, int] = {}

    def count(saved: Tensor) -> Tensor:
        storages[saved.untyped_storage().data_ptr()] = saved.untyped_storage().nbytes()
        return saved

    with torch.autograd.graph.saved_tensors_hooks(count, lambda saved: saved):
        kept = run(costs)
    storages.pop(costs.untyped_storage().data_ptr(), None)
    del kept
    return sum(storages.values())


def measure_range(figures: dict[str, float]) -> None:
    """How well the budget is met, and whether gradients are finite, over the whole range of settings."""
    worst, broken = 0.0, 0
    for positions in (1, 49, 196):
        costs = random_costs(16, 64, positions).requires_grad_()
        for sharpness in SHARPNESSES:
            for budget in BUDGETS:
                weights = spend(soft_minimum(costs, sharpness), budget)
                worst = max(worst, float((weights.detach().sum(1) - 1).abs().max()))
                (gradient,) = torch.autograd.grad(weights.square().sum(), costs)
                broken += int((~gradient.isfinite()).sum())
    figures["residual"], figures["not finite"] = worst, float(broken)


# ---------------------------------------------------------------- a training step


class _Items:
    """Random batches, held in memory."""

    def __init__(self, shape: tuple[int, ...], start: str | None) -> None:
        generator = torch.Generator().manual_seed(SEED)
        self.start = start
        labels = torch.arange(BATCH["classes"]).repeat_interleave(BATCH["per_class"])
        inputs = torch.randn(len(labels), *shape, generator=generator)
        self.batch = (as_channels_last(inputs.relu() if start else inputs), labels)


def ready_loop(settings: dict[str, Any], items: _Items, terms: list[dict[str, Any]], folder: Path) -> Loop:
    """Our loop, set up for single steps."""
    section = ModelSection(backbone="efficientnet-lite0", local_dimension=128, dimension=None, **settings)
    embedder = build_embedder(section, seed=SEED)
    objective = make_objective(
        ObjectiveSection(loss="contrastive", regularisers=terms), dimension=128, classes=CLASSES, space=embedder.space
    )
    if items.start is not None:
        items.start = list(embedder.backbone.stages)[-1]
    loop = Loop(embedder, objective, items, TrainingSection(lr=1e-4), Run(folder), None, progress=False)
    loop._set_up()
    loop.module.train()
    return loop


def measure_steps(mode: str, figures: dict[str, float], table: list[dict[str, Any]]) -> None:
    for name, (settings, shape, start, *turns) in STEPS.items():
        rounds = turns[mode == "quick"]
        if not rounds:
            continue
        items = _Items(shape, start)
        with tempfile.TemporaryDirectory() as folder:
            loops = {
                kind: ready_loop({**settings, "pooling": pooling}, items, terms, Path(folder))
                for kind, (pooling, terms) in POOLINGS.items()
            }
            steps = {kind: partial(loop._step, *items.batch) for kind, loop in loops.items()}
            middle = {kind: median(values) for kind, values in in_turns(steps, rounds, WARM).items()}
        figures[f"step, {name}"] = middle["GSP"] / middle["GAP"]
        figures[f"step with zero-shot loss, {name}"] = middle["GSP and zero-shot loss"] / middle["GAP"]
        table += [
            {"case": f"step, {name}", "contender": kind, "milliseconds": 1e3 * value} for kind, value in middle.items()
        ]


# ---------------------------------------------------------------- telling


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="fail unless every bar holds")
    parser.add_argument("--quick", action="store_true", help="under a minute: fewer rounds, nothing is written")
    arguments = parser.parse_args()
    mode = "quick" if arguments.quick else "full"
    figures: dict[str, float] = {}
    table: list[dict[str, Any]] = []
    measure_range(figures)
    measure_solver(mode, figures, table)
    measure_steps(mode, figures, table)
    print(f"\n{'case':28} {'contender':28} {'':>12}")
    for row in table:
        value = f"{row['milliseconds']:9.3f} ms" if "milliseconds" in row else f"{row['kilobytes']:9.1f} kB"
        print(f"{row['case']:28} {row['contender']:28} {value}")
    print()
    for name, value in figures.items():
        if name not in BARS:
            print(f"no bar: {name} {value:.3f} of GAP's")
    holds = tell(BARS, figures)
    if not arguments.quick:
        write(RESULT, BARS, figures, table)
    print(
        f"\nThe solver is {figures['unrolled']:.1f} x faster than 100 unrolled steps and "
        f"{figures['closed form']:.1f} x faster than 100 steps with the closed-form gradient"
    )
    return 1 if arguments.check and not holds else 0


if __name__ == "__main__":
    sys.exit(main())
