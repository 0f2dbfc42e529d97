"""The threshold of generalized sum pooling as ONNX operators: the solver of `pooling/gsp.py`, step by step.

An exporter that follows one run of the solver would keep the number of steps that this run took. Here they are a loop
of the graph, which ends when every map of the batch has spent its budget. Imported only where a model is exported:
onnxscript reads the source of `_solved`.
"""

# The types of a graph's values are no classes with operators.
# mypy: disable-error-code="arg-type,operator"
from __future__ import annotations

import math
from typing import Any

import onnx
import onnxscript
from onnxscript import DOUBLE
from onnxscript import opset18 as op

from nearkin.models.pooling.gsp import STEPS, TOLERANCE


def threshold(scores: Any, budget: float) -> Any:
    """What stands for the operator `nearkin::threshold` in a graph: tau (B, 1) of scores (B, N), float64."""
    goal = math.log(budget) - math.log1p(-budget)
    accepted = TOLERANCE * min(budget, 1 - budget)
    return _solved(scores, _double(goal), _double(budget), _double(accepted))


@onnxscript.script()
def _solved(scores: DOUBLE, goal: DOUBLE, budget: DOUBLE, accepted: DOUBLE) -> DOUBLE:
    axis = op.Constant(value_ints=[1])
    low = goal - op.ReduceMax(scores, axis)
    high = goal - op.ReduceMin(scores, axis)
    tau = goal - op.ReduceMean(scores, axis)
    for _ in range(STEPS):
        gates = op.Sigmoid(scores + tau)
        spent = op.ReduceMean(gates, axis)
        excess = spent - budget
        met = op.ReduceMax(op.Abs(excess), keepdims=0) <= accepted
        below = spent < budget
        low = op.Where(below, tau, low)
        high = op.Where(below, high, tau)
        slope = op.ReduceMean(gates - gates * gates, axis)
        newton = tau - (op.Log(spent / (1.0 - spent)) - goal) * (spent - spent * spent) / slope
        inside = op.And(newton >= low, newton <= high)
        tau = op.Where(met, tau, op.Where(inside, newton, 0.5 * (low + high)))
        if met:
            break
    return tau


def _double(value: float) -> Any:
    return op.Constant(value=onnx.helper.make_tensor("scalar", onnx.TensorProto.DOUBLE, [], [value]))
