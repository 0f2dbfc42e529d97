"""Optimiser groups and the learning rate as a pure function of the step, so that resuming needs no scheduler state."""

from __future__ import annotations

import math

import torch
from torch import nn

from nearkin.models import Embedder
from nearkin.objectives import Objective
from nearkin.recipe import TrainingSection


def make_optimiser(
    embedder: Embedder, objective: Objective, section: TrainingSection, schedule: nn.Module | None = None
) -> torch.optim.Optimizer:
    """An optimiser over four groups: head (with pooling and attention), proxies, backbone, regularisers.

    Empty groups are left out. Proxies are the trainable parameters of the objective and of the schedule; networks that
    a regulariser brings are no proxies and learn at the head's rate.
    Each group carries `name` and `base_lr`; `set_learning_rates` derives its `lr` from them at every step.
    """
    backbone = _trainable(embedder.backbone)
    inside = {id(parameter) for parameter in backbone}
    head = [parameter for parameter in _trainable(embedder) if id(parameter) not in inside]
    proxies = objective.proxies() + ([] if schedule is None else _trainable(schedule))
    groups = [
        _group("head", head, section.lr, section.weight_decay),
        _group("proxies", proxies, section.lr * section.proxy_lr_factor, 0.0),
        _group("backbone", backbone, section.lr * section.backbone_lr_factor, section.weight_decay),
        _group("regularisers", objective.networks(), section.lr, 0.0),
    ]
    groups = [group for group in groups if group["params"]]
    if section.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=section.lr, momentum=section.momentum)
    kind = torch.optim.Adam if section.optimizer == "adam" else torch.optim.AdamW
    return kind(groups, lr=section.lr, fused=_fusable(groups))


def set_learning_rates(optimiser: torch.optim.Optimizer, step: int, section: TrainingSection) -> None:
    """Set every group's learning rate for the update that makes `step` steps."""
    scale = learning_rate_scale(step, section)
    for group in optimiser.param_groups:
        resting = group["name"] == "backbone" and step <= section.head_warmup_steps
        group["lr"] = 0.0 if resting else group["base_lr"] * scale


def learning_rate_scale(step: int, section: TrainingSection) -> float:
    """What multiplies every base learning rate at `step` (counted from 1)."""
    warm = min(1.0, step / section.warmup_steps) if section.warmup_steps else 1.0
    done = max(0, step - 1 - section.warmup_steps)
    if section.lr_schedule == "cosine":
        span = max(1, section.max_steps - section.warmup_steps)
        return warm * 0.5 * (1.0 + math.cos(math.pi * min(1.0, done / span)))
    if section.lr_schedule == "step":
        return warm * section.step_factor ** (done // section.step_every)
    return warm


def _trainable(module: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def _group(name: str, parameters: list[nn.Parameter], lr: float, weight_decay: float) -> dict[str, object]:
    return {"name": name, "params": parameters, "lr": lr, "base_lr": lr, "weight_decay": weight_decay}


def _fusable(groups: list[dict[str, object]]) -> bool:
    """Fused updates exist for floating point parameters on CPU and CUDA."""
    parameters: list[nn.Parameter] = [p for group in groups for p in group["params"]]  # type: ignore[attr-defined]
    return all(p.device.type in ("cpu", "cuda") and p.is_floating_point() for p in parameters)
