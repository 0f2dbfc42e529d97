"""One training step: the loss of the whole batch, its gradients at once or part by part, and the update.

The learning rate is a pure function of the step, and of the validation values so far where it waits for a plateau.

Gradient caching: the loss of a batch needs all embeddings at once, but not the graphs of all of them. First the parts
of the batch are embedded without a graph; then the loss gives its gradient at each embedding; then each part goes
through the network again, with a graph, and takes these gradients on from there. Memory is that of one part, and the
gradients are those of the whole batch. When to use it: docs/guide/large-batches.md.
Reference: Gao, Zhang, Han, Callan 2021, Scaling deep contrastive learning batch size under memory limited setup.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from nearkin.models import Embedder
from nearkin.models.embedder import Features, to_device
from nearkin.objectives import Objective
from nearkin.recipe import TrainingSection
from nearkin.training.batches import Inputs, part, whole
from nearkin.training.ranks import Ranks, naming_lost_process
from nearkin.training.run import generator_state, set_generator_state
from nearkin.training.strategies import Schedule


class Outputs(NamedTuple):
    """What the network makes of inputs, as far as the objective takes it.

    Attributes:
        embeddings: raw, (b, d).
        attributes: (b, M) that the pooling gives, where the objective needs them.
        features: (b, F) that the head takes, where the objective needs them.
    """

    embeddings: Tensor
    attributes: Tensor | None = None
    features: Tensor | None = None

    def given(self) -> list[Tensor]:
        """Those that are there."""
        return [one for one in self if one is not None]

    @classmethod
    def joined(cls, parts: Sequence[Outputs]) -> Outputs:
        """Parts of a batch as one, without their graphs, ready to collect gradients."""
        columns = [[one for one in column if one is not None] for column in zip(*parts, strict=True)]
        return cls(*(torch.cat(there).requires_grad_() if there else None for there in columns))  # type: ignore[arg-type]


class Step(nn.Module):
    """Embedder, objective and schedule as one module, so that Fabric wraps a single forward pass.

    The loss is taken of the batch of all processes, and always in single precision: its exponentials overflow in half.
    """

    def __init__(
        self, embedder: Embedder, objective: Objective, schedule: Schedule, start: str | None, ranks: Ranks
    ) -> None:
        super().__init__()
        self.embedder = embedder
        self.objective = objective
        self.schedule = schedule
        self.start = start
        self.ranks = ranks
        modules = (embedder.pooling, *embedder.taught_by_loss(), objective, schedule)
        self.learned = [parameter for module in modules for parameter in _trainable(module)]

    def forward(self, inputs: Features, labels: Tensor) -> Tensor:
        """The value to minimise, a scalar, for this process's inputs (b, ...) and labels (b,)."""
        return self.loss(self.represent(self.schedule.views(self.embedder, self.objective, inputs, labels)), labels)

    def represent(self, inputs: Features) -> Outputs:
        """What the network makes of inputs (b, ...)."""
        attributes = None
        if self.objective.takers("attributes"):
            features, attributes = self.embedder.pooled_with_attributes(inputs, start=self.start)
        else:
            features = self.embedder.pooled(inputs, start=self.start)
        embeddings = self.embedder.head(features)
        return Outputs(embeddings, attributes, features if self.objective.takers("features") else None)

    def loss(self, outputs: Outputs, labels: Tensor) -> Tensor:
        """The value to minimise, of what this process's network made of its inputs and of their labels (b,)."""
        with torch.autocast(outputs.embeddings.device.type, enabled=False):
            gathered = [None if one is None else self.ranks.gather(one.float()) for one in outputs]
            embeddings, attributes, features = gathered
            loss: Tensor = self.schedule(
                self.objective, embeddings, self.ranks.gather_labels(labels), attributes, features
            )
        return self.ranks.reach(loss, self.learned)


Gradients = Callable[[Inputs, Tensor], Tensor]
"""From inputs and labels (b,) of this process to the loss, detached; the gradients are left at the parameters."""


@dataclass(eq=False)
class WholeBatch:
    """One forward pass and one backward pass.

    Args:
        module: the step, as Fabric may have wrapped it.
        backward: of a loss.
        device: where the module is.
    """

    module: nn.Module
    backward: Callable[[Tensor], None]
    device: torch.device

    def __call__(self, inputs: Inputs, labels: Tensor) -> Tensor:
        """The loss, a scalar; see `Gradients`."""
        with naming_lost_process():
            loss = self.module(
                to_device(whole(inputs), self.device, non_blocking=True), labels.to(self.device, non_blocking=True)
            )
            self.backward(loss)
        return loss.detach()


@dataclass(eq=False)
class GradientCache:
    """Three passes over a batch in parts: embed, take the loss, embed again and go back.

    Dropout draws the same both times. Running statistics move in the first pass only; a batch norm that learns takes
    its statistics from a part. Processes add up their gradients once, at the end.

    Args:
        step: the step itself, not wrapped.
        backward: of a loss.
        device: where the step is.
        size: items of a part.
        autocast: makes the context of a forward pass in the precision of the training.
    """

    step: Step
    backward: Callable[[Tensor], None]
    device: torch.device
    size: int
    autocast: Callable[[], AbstractContextManager[None]]

    def __post_init__(self) -> None:
        self.learned = _trainable(self.step)

    def __call__(self, inputs: Inputs, labels: Tensor) -> Tensor:
        """The loss, a scalar; see `Gradients`."""
        states: list[list[Tensor]] = []
        found: list[Outputs] = []
        with torch.no_grad():
            for first in range(0, len(labels), self.size):
                states.append(generator_state(self.device))
                found.append(self._outputs(inputs, first))
        cached = Outputs.joined(found)
        del found
        loss = self.step.loss(cached, labels.to(self.device, non_blocking=True))
        self.backward(loss)
        gpus = [self.device] if self.device.type == "cuda" else []
        with keeping_buffers(self.step.embedder), torch.random.fork_rng(gpus):
            for place, state in enumerate(states):
                set_generator_state(state, self.device)
                self._go_back(self._outputs(inputs, place * self.size), cached, place * self.size)
        for parameter in self.learned:
            if parameter.grad is None:  # every process must have the same
                parameter.grad = torch.zeros_like(parameter)
        self.step.ranks.average([parameter.grad for parameter in self.learned if parameter.grad is not None])
        return loss.detach()

    def _outputs(self, inputs: Inputs, first: int) -> Outputs:
        """What the step makes of one part."""
        if (draws := self.step.embedder.backbone.path_draws) is not None:
            draws.first = first
        taken = to_device(part(inputs, first, first + self.size), self.device, non_blocking=True)
        with self.autocast():
            return self.step.represent(taken)

    def _go_back(self, outputs: Outputs, cached: Outputs, first: int) -> None:
        """Take the loss's gradients at the embeddings of a part on to the weights."""
        known = {
            one: all_of_them.grad[first : first + len(one)].to(one.dtype)
            for one, all_of_them in zip(outputs.given(), cached.given(), strict=True)
            if one.requires_grad and all_of_them.grad is not None
        }
        if known:
            torch.autograd.backward(list(known), list(known.values()))


@contextmanager
def keeping_buffers(module: nn.Module) -> Iterator[None]:
    """Inside the block batch norms may count what passes; afterwards every buffer is as it was."""
    kept = [buffer.clone() for buffer in module.buffers()]
    try:
        yield
    finally:
        for buffer, before in zip(module.buffers(), kept, strict=True):
            buffer.copy_(before)


def make_optimiser(
    embedder: Embedder, objective: Objective, section: TrainingSection, schedule: nn.Module | None = None
) -> torch.optim.Optimizer:
    """An optimiser over four groups: head (with pooling and attention), proxies, backbone, regularisers.

    With layer-wise decay the backbone is one group a stage. Empty groups are left out. Proxies are the trainable
    parameters of the objective and of the schedule; networks that a regulariser brings are no proxies and learn at the
    head's rate.
    Each group carries `name` and `base_lr`; `set_learning_rates` derives its `lr` from them at every step.
    """
    backbone = _trainable(embedder.backbone)
    inside = {id(parameter) for parameter in backbone}
    head = [parameter for parameter in _trainable(embedder) if id(parameter) not in inside]
    proxies = objective.proxies() + ([] if schedule is None else _trainable(schedule))
    groups = [
        _group("head", head, section.lr, section.weight_decay),
        _group("proxies", proxies, section.lr * section.proxy_lr_factor, 0.0),
        *_backbone_groups(embedder, section),
        _group("regularisers", objective.networks(), section.lr, 0.0),
    ]
    groups = [group for group in groups if group["params"]]
    if section.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=section.lr, momentum=section.momentum)
    kind = torch.optim.Adam if section.optimizer == "adam" else torch.optim.AdamW
    return kind(groups, lr=section.lr, betas=section.betas, fused=_fusable(groups))


def _backbone_groups(embedder: Embedder, section: TrainingSection) -> list[dict[str, object]]:
    """The backbone as one group; with layer-wise decay as one a stage, the last first, frozen ones counted."""
    rate, decay = section.lr * section.backbone_lr_factor, section.layer_decay
    if decay is None:
        return [_group("backbone", _trainable(embedder.backbone), rate, section.weight_decay)]
    stages = reversed(list(embedder.backbone.stages.items()))
    return [
        _group(f"backbone.{name}", _trainable(stage), rate * decay**depth, section.weight_decay)
        for depth, (name, stage) in enumerate(stages)
    ]


Validated = Sequence[tuple[int, float]]
"""The steps of the validations so far, and the value of each that chooses the weights."""


def set_learning_rates(
    optimiser: torch.optim.Optimizer, step: int, section: TrainingSection, validated: Validated = ()
) -> None:
    """Set every group's learning rate for the update that makes `step` steps."""
    scale = learning_rate_scale(step, section, validated)
    for group in optimiser.param_groups:
        resting = group["name"].startswith("backbone") and step <= section.head_warmup_steps
        group["lr"] = 0.0 if resting else group["base_lr"] * scale


def learning_rate_scale(step: int, section: TrainingSection, validated: Validated = ()) -> float:
    """What multiplies every base learning rate at `step` (counted from 1).

    Args:
        step: the update that is about to be made.
        section: the recipe's training section.
        validated: the validations before it; only lr_schedule=plateau looks at them.
    """
    warm = min(1.0, step / section.warmup_steps) if section.warmup_steps else 1.0
    done = max(0, step - 1 - section.warmup_steps)
    if section.lr_schedule == "cosine":
        span = max(1, section.max_steps - section.warmup_steps)
        return warm * 0.5 * (1.0 + math.cos(math.pi * min(1.0, done / span)))
    if section.lr_schedule == "step":
        return warm * section.step_factor ** (done // section.step_every)
    if section.lr_schedule == "plateau":
        warmed = max(section.warmup_steps, section.head_warmup_steps)
        values = [value for at, value in validated if at >= warmed]
        return warm * section.step_factor ** _plateaus(values, section.plateau_patience)
    return warm


def _plateaus(values: Sequence[float], patience: int) -> int:
    """How often more than `patience` values in a row were not above the best one before them."""
    best, waited, found = -math.inf, 0, 0
    for value in values:
        best, waited = (value, 0) if value > best else (best, waited + 1)
        if waited > patience:
            found, waited = found + 1, 0
    return found


def _trainable(module: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def _group(name: str, parameters: list[nn.Parameter], lr: float, weight_decay: float) -> dict[str, object]:
    return {"name": name, "params": parameters, "lr": lr, "base_lr": lr, "weight_decay": weight_decay}


def _fusable(groups: list[dict[str, object]]) -> bool:
    """Fused updates exist for floating point parameters on CPU and CUDA."""
    parameters: list[nn.Parameter] = [p for group in groups for p in group["params"]]  # type: ignore[attr-defined]
    return all(p.device.type in ("cpu", "cuda") and p.is_floating_point() for p in parameters)


@dataclass(eq=False)
class WeightAverage:
    """Shadow weights: shadow <- decay * shadow + (1 - decay) * weight, after every optimiser step.

    Buffers such as batch norm statistics are averages already and are copied.

    Args:
        module: whose trainable parameters are averaged.
        decay: share of the shadow that is kept, in (0, 1).
    """

    module: nn.Module
    decay: float

    def __post_init__(self) -> None:
        self.shadow = {name: p.detach().clone() for name, p in self.module.named_parameters() if p.requires_grad}

    @torch.no_grad()
    def update(self) -> None:
        """Update with the current weights."""
        weights = dict(self.module.named_parameters())
        for name, shadow in self.shadow.items():
            shadow.lerp_(weights[name], 1.0 - self.decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Inside the block the module has the averaged weights."""
        weights = dict(self.module.named_parameters())
        kept = {name: weights[name].detach().clone() for name in self.shadow}
        self._copy(self.shadow)
        try:
            yield
        finally:
            self._copy(kept)

    @torch.no_grad()
    def _copy(self, source: dict[str, Tensor]) -> None:
        weights = dict(self.module.named_parameters())
        for name, value in source.items():
            weights[name].copy_(value)


def mean_weights(kept: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of several states of one module, weight by weight, summed in double precision.

    Running statistics are weights here; counters, which are whole numbers, are those of the last state.
    """
    return {
        name: torch.stack([state[name].double() for state in kept]).mean(0).to(last)
        if last.is_floating_point()
        else last.clone()
        for name, last in kept[-1].items()
    }
