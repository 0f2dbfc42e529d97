"""How a step comes by its gradients: with the graph of the whole batch, or part by part.

Gradient caching: the loss of a batch needs all embeddings at once, but not the graphs of all of them. First the parts
of the batch are embedded without a graph; then the loss gives its gradient at each embedding; then each part goes
through the network again, with a graph, and takes these gradients on from there. Memory is that of one part, and the
gradients are those of the whole batch. When to use it: docs/guide/large-batches.md.
Reference: Gao, Zhang, Han, Callan 2021, Scaling deep contrastive learning batch size under memory limited setup.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor, nn

from nearkin.models.features import to_device
from nearkin.training.deferred import Inputs, part, whole
from nearkin.training.generators import generator_state, set_generator_state
from nearkin.training.ranks import together
from nearkin.training.step import Outputs, Step

Gradients = Callable[[Inputs, Tensor], Tensor]
"""From inputs and labels (b,) of this process to the loss, detached; the gradients are left at the parameters."""


class WholeBatch:
    """One forward pass and one backward pass.

    Args:
        module: the step, as Fabric may have wrapped it.
        backward: of a loss.
        device: where the module is.
    """

    def __init__(self, module: nn.Module, backward: Callable[[Tensor], None], device: torch.device) -> None:
        self.module = module
        self.backward = backward
        self.device = device

    def __call__(self, inputs: Inputs, labels: Tensor) -> Tensor:
        """The loss, a scalar; see `Gradients`."""
        with together():
            loss = self.module(
                to_device(whole(inputs), self.device, non_blocking=True), labels.to(self.device, non_blocking=True)
            )
            self.backward(loss)
        return loss.detach()


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

    def __init__(
        self,
        step: Step,
        backward: Callable[[Tensor], None],
        device: torch.device,
        size: int,
        autocast: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self.step = step
        self.backward = backward
        self.device = device
        self.size = size
        self.autocast = autocast
        self.learned = [parameter for parameter in step.parameters() if parameter.requires_grad]

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
        with unmoved(self.step.embedder), torch.random.fork_rng(self._gpus()):
            for place, state in enumerate(states):
                set_generator_state(state, self.device)
                self._go_back(self._outputs(inputs, place * self.size), cached, place * self.size)
        self.step.ranks.average([_gradient(parameter) for parameter in self.learned])
        return loss.detach()

    def _outputs(self, inputs: Inputs, first: int) -> Outputs:
        """What the step makes of one part."""
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

    def _gpus(self) -> list[torch.device]:
        return [self.device] if self.device.type == "cuda" else []


def _gradient(parameter: nn.Parameter) -> Tensor:
    """The gradient of a parameter, made if there is none: every process must have the same."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad


@contextmanager
def unmoved(module: nn.Module) -> Iterator[None]:
    """Inside the block batch norms may count what passes; afterwards every buffer is as it was."""
    kept = [buffer.clone() for buffer in module.buffers()]
    try:
        yield
    finally:
        for buffer, before in zip(module.buffers(), kept, strict=True):
            buffer.copy_(before)
