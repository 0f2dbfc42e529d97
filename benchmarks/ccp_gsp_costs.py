"""What chance-constrained training and generalized sum pooling cost, round by round, so that ratios have intervals.

    python benchmarks/ccp_gsp_costs.py            finish the cases, print the table
    python benchmarks/ccp_gsp_costs.py --quick    few rounds; the ledger is not touched

Gürbüz 2022, the computational analyses of sections 3.3.2.3 and 5.3.4.4: a training step with proxies and proximal term
against a plain one (the contenders of `ccp.py`); the pooling weights of 32 maps of 7 x 7 by 64 prototypes and their
gradient, by the print's iteration with its closed-form gradient and differentiated by autograd (the contenders of
`gsp.py`), for several numbers of iterations; and how far the weights of these iterations are from the exact ones.

Contenders take turns, and the processor time of each round is kept, which other work on the machine hardly changes: a
ratio is that of medians, its 95 % interval resamples rounds. Each finished case is a line of `ccp_gsp_costs.jsonl`; a
run that is stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import ccp
import gsp
import torch
from bars import in_turns, kept, median_ratio

ROUNDS = {"step": 60, "pooling": 60}
QUICK = {"step": 4, "pooling": 10}
WARM = 5
ITERATIONS = (10, 25, 50, 100, 200)
STEP, POOLING, APART = "training step", "pooling weights and gradient", "distance from the exact weights"
PLAIN, CCP = "plain", "chance-constrained"
CLOSED, UNROLLED = "closed form", "autograd"
LEDGER = kept("ccp_gsp_costs.jsonl")


def time_steps(rounds: int) -> dict[str, list[float]]:
    """Processor seconds of single training steps of ResNet-20 at 32 px, by schedule."""
    section, shape, *_ = ccp.STEPS["ResNet-20 at 32 px"]
    items = ccp._Items(shape)
    with tempfile.TemporaryDirectory() as folder:
        loops = {kind: ccp.ready_loop(section, items, kind, Path(folder)) for kind in (PLAIN, CCP)}
        return in_turns(
            {kind: partial(items.step, loop) for kind, loop in loops.items()}, rounds, WARM, time.process_time
        )


def time_pooling(rounds: int) -> dict[str, list[float]]:
    """Processor seconds of forward and backward by contender and iterations, all in turns."""
    costs, upstream = _turned_costs().requires_grad_(), torch.ones(gsp.SMALL[0], gsp.SMALL[2])
    contenders = {
        f"{name}, {k}": partial(_both_ways, run, k, costs, upstream)
        for name, run in ((CLOSED, gsp.ClosedForm.apply), (UNROLLED, gsp.unrolled))
        for k in ITERATIONS
    }
    return in_turns(contenders, rounds, WARM, time.process_time)


def _both_ways(run: Any, iterations: int, costs: torch.Tensor, upstream: torch.Tensor) -> None:
    torch.autograd.grad(run(costs, iterations), costs, upstream)


def distances() -> dict[str, list[float]]:
    """For each number of iterations the total variation between its weights and the exact ones, map by map."""
    costs = _turned_costs().double()
    exact = gsp.ours(costs.transpose(1, 2))
    return {str(k): (0.5 * (gsp.unrolled(costs, k) - exact).abs().sum(dim=1)).tolist() for k in ITERATIONS}


def _turned_costs() -> torch.Tensor:
    """Costs (B, M, N)."""
    return gsp.random_costs(*gsp.SMALL).transpose(1, 2).contiguous()


def read_ledger() -> dict[str, dict[str, list[float]]]:
    """Case to contender to what its rounds gave."""
    lines = LEDGER.read_text(encoding="utf-8").splitlines() if LEDGER.exists() else []
    return {case["case"]: case["rounds"] for case in map(json.loads, lines)}


def print_table(cases: dict[str, dict[str, list[float]]]) -> None:
    rows = [(STEP, f"{CCP} / {PLAIN}", *median_ratio(cases[STEP][CCP], cases[STEP][PLAIN]))]
    pooling = cases[POOLING]
    for k in ITERATIONS:
        found = median_ratio(pooling[f"{UNROLLED}, {k}"], pooling[f"{CLOSED}, {k}"])
        rows.append((POOLING, f"{UNROLLED} / {CLOSED}, {k}", *found))
    for name in (CLOSED, UNROLLED):
        rows.append((POOLING, f"{name}, 200 / 10", *median_ratio(pooling[f"{name}, 200"], pooling[f"{name}, 10"])))
    for case, what, value, low, high in rows:
        print(f"{case:30} {what:30} {value:6.2f} ({low:.2f} to {high:.2f})")
    for k, values in cases[APART].items():
        print(f"{APART:30} {k:>30} {max(values):.2g}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="few rounds")
    arguments = parser.parse_args()
    rounds, cases = (QUICK, {}) if arguments.quick else (ROUNDS, read_ledger())
    wanted = {
        STEP: lambda: time_steps(rounds["step"]),
        POOLING: lambda: time_pooling(rounds["pooling"]),
        APART: distances,
    }
    for case, measure in wanted.items():
        if case not in cases:
            cases[case] = {name: [float(f"{x:.4g}") for x in values] for name, values in measure().items()}
            if not arguments.quick:
                with open(LEDGER, "a", encoding="utf-8") as ledger:
                    ledger.write(json.dumps({"case": case, "rounds": cases[case]}) + "\n")
    print_table(cases)
    return 0


if __name__ == "__main__":
    sys.exit(main())
