"""The processes of one training: who this one is, where it computes, and what passes between them.

Each process embeds its slice of a batch, and all take the loss of the whole batch. So a run of n processes computes
what a run of one computes, up to rounding. With one process every function here gives back what it was given.
"""

from __future__ import annotations

import atexit
import gc
import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from nearkin.errors import LostProcessError, RecipeError, TrainingError, require
from nearkin.recipe import TrainingSection

T = TypeVar("T")

_LAUNCHED = "TORCHELASTIC_RUN_ID"
"""Only torchrun sets it; clusters set RANK and WORLD_SIZE for purposes of their own."""

_TIMEOUT = "NEARKIN_PROCESS_TIMEOUT"
"""Seconds that a step waits for the other processes."""

_USUAL_TIMEOUT = 1800.0

_LONGEST_WAIT = timedelta(hours=24)
"""The others wait while the first process computes a feature cache, or validates."""

_step_groups: list[dist.ProcessGroup] = []
"""The second connection of this process, beside the one that PyTorch keeps; for the life of the process, too."""


@dataclass(frozen=True)
class Ranks:
    """The place of a process among those that train together; by default it is the only one.

    Args:
        rank: its number, from 0.
        world_size: how many there are.
        local_rank: its number on its machine.
        local_world_size: how many there are on each machine.
        timeout: seconds that a step waits for the others before this one gives up.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    timeout: float = _USUAL_TIMEOUT

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Ranks:
        """The place that torchrun gave to this process; without torchrun, the only one."""
        if _LAUNCHED not in environment:
            return cls()
        names = {"rank": "RANK", "world_size": "WORLD_SIZE"}
        names |= {f"local_{field}": f"LOCAL_{name}" for field, name in names.items()}
        places = {field: int(environment[name]) for field, name in names.items()}
        ranks = cls(**places, timeout=_read_timeout(environment))
        if ranks.world_size % ranks.local_world_size:
            raise TrainingError(
                f"{ranks.world_size} processes are not shared equally by the machines, of which one has "
                f"{ranks.local_world_size}: give torchrun the same --nproc-per-node on every machine."
            )
        return ranks

    @property
    def is_first(self) -> bool:
        """Whether this is the one process that writes, validates and speaks."""
        return self.rank == 0

    @property
    def machines(self) -> int:
        """How many machines take part."""
        return self.world_size // self.local_world_size

    def accelerator(self, asked: str) -> str:
        """The device for Fabric: what the recipe asks for, if each process can have one."""
        if self.world_size == 1:
            return asked
        if asked == "mps":
            raise TrainingError(
                f"{self.world_size} processes cannot share this machine's GPU: set training.accelerator to cpu, or "
                "start one process."
            )
        if asked == "cpu" or (asked == "auto" and not torch.cuda.is_available()):
            return "cpu"
        if torch.cuda.device_count() < self.local_world_size:
            raise TrainingError(
                f"{self.local_world_size} processes need a GPU each and this machine has {torch.cuda.device_count()}: "
                "start fewer with --nproc-per-node, or set training.accelerator to cpu."
            )
        return "gpu"

    def meet(self, accelerator: str) -> None:
        """Wait for the others; the first time, connect to them for the life of the process.

        Call it when nothing is left to refuse: a process that stops before it leaves no other waiting.

        Args:
            accelerator: what `accelerator` gave.
        """
        if self.world_size > 1 and not dist.is_initialized():
            # Small things on the CPU pass between the processes without waiting for a GPU.
            backend = "gloo" if accelerator == "cpu" else "cpu:gloo,cuda:nccl"
            if accelerator != "cpu":
                torch.cuda.set_device(self.local_rank)
            dist.init_process_group(backend, timeout=_LONGEST_WAIT)
            # Steps are short: there the others are missed sooner than while one of them works alone.
            _step_groups.append(dist.new_group(backend=backend, timeout=timedelta(seconds=self.timeout)))
            atexit.register(_part)
        self.barrier()

    def gather(self, embeddings: Tensor) -> Tensor:
        """The whole batch (B, d) of the slices (b, d) that the processes hold, in their order, with gradients.

        The gradient that comes back to a slice is multiplied by the number of processes, since what synchronises
        weights takes their mean. Each process adds the network's gradient for its slice only: the mean of n times
        these is their sum, which is the gradient of the whole batch. Proxies meet the whole batch in every process: the
        mean of n equal gradients is that gradient.
        """
        if self.world_size == 1:
            return embeddings
        gathered: Tensor = _Gather.apply(embeddings, self)
        return gathered

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors by their means over the processes, in place, in one message for each type of number."""
        if self.world_size == 1:
            return
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):  # in the same order in every process
            some = [tensor for tensor in tensors if tensor.dtype == dtype]
            flat = torch.cat([tensor.reshape(-1) for tensor in some])
            with naming_lost_process():
                dist.all_reduce(flat, group=step_group())
            flat /= self.world_size
            for tensor, mean in zip(some, flat.split([tensor.numel() for tensor in some]), strict=True):
                tensor.copy_(mean.view(tensor.shape))

    def reach(self, loss: Tensor, parameters: Iterable[nn.Parameter]) -> Tensor:
        """The same loss, known to what synchronises weights as one of all the parameters.

        That waits for every parameter's gradient in every step, also for a proxy or a margin that a step has no use
        for. Such a one gets a gradient of zeros.
        """
        if self.world_size == 1:
            return loss
        reaching: Tensor = _Reach.apply(loss, *parameters)
        return reaching

    def gather_labels(self, labels: Tensor) -> Tensor:
        """The labels (B,), or rows of any other tensor, of the whole batch, in the order of the processes."""
        return labels if self.world_size == 1 else _gathered(labels, self.world_size)

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in any process, for what all must do in the same step."""
        if self.world_size == 1:
            return flag
        shared = torch.tensor(int(flag))
        with naming_lost_process():
            dist.all_reduce(shared, dist.ReduceOp.MAX, group=step_group())
        return bool(shared)

    def barrier(self) -> None:
        """Wait until every process is here, however long one of them works alone."""
        if self.world_size > 1:
            with naming_lost_process():
                dist.all_reduce(torch.zeros(1))

    def await_first(self) -> None:
        """Wait for the first process, however long it works alone; it misses the others as soon as in any step."""
        if self.world_size == 1:
            return
        token = torch.zeros(1)
        with naming_lost_process():
            if not self.is_first:
                dist.recv(token, src=0)
            # Not waited for: whether they arrived, the next exchange tells.
            sent = [dist.isend(token, other) for other in range(1, self.world_size)] if self.is_first else []
        self.any(False)
        del sent

    def broadcast(self, tensor: Tensor) -> Tensor:
        """The first process's tensor; the others give one of the same shape, which is left alone."""
        if self.world_size == 1:
            return tensor
        self.await_first()
        return _sent_by_first(tensor)

    def broadcast_object(self, value: T) -> T:
        """The first process's value, of any kind that can be pickled."""
        if self.world_size == 1:
            return value
        shared: list[Any] = [value if self.is_first else None]
        self.await_first()
        with naming_lost_process():
            dist.broadcast_object_list(shared, src=0, group=step_group(), device=torch.device("cpu"))
        taken: T = shared[0]
        return taken

    @torch.no_grad()
    def agree(self, module: nn.Module) -> None:
        """Give every process the first one's parameters and buffers, in place."""
        if self.world_size == 1:
            return
        self.await_first()
        for tensor in chain(module.parameters(), module.buffers()):
            tensor.copy_(_sent_by_first(tensor))

    def in_turn(self, make: Callable[[], T]) -> T:
        """Call `make` in the first process, then in the first of every other machine, then in the rest.

        What the earlier ones leave on disk is there for those whose turn comes later.
        """
        turn = 0 if self.is_first else 1 if self.local_rank == 0 else 2
        for _ in range(turn):
            self.barrier()
        made = make()
        for _ in range(turn, 2):
            self.barrier()
        return made


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, embeddings: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        return _gathered(embeddings, ranks.world_size)

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, None]:
        ranks: Ranks = ctx.ranks
        return outer[0].chunk(ranks.world_size)[ranks.rank] * ranks.world_size, None


class _Reach(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loss: Tensor, *parameters: Tensor) -> Tensor:
        ctx.parameters = len(parameters)
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        return outer[0], *[None] * ctx.parameters


def _sent_by_first(tensor: Tensor) -> Tensor:
    """The first process's tensor, as a new one."""
    shared = tensor.detach().clone(memory_format=torch.contiguous_format)
    with naming_lost_process():
        dist.broadcast(shared, src=0, group=step_group())
    return shared


def _gathered(rows: Tensor, world_size: int) -> Tensor:
    """Rows (b, ...) of every process one below the other, (b * world_size, ...)."""
    whole = rows.new_empty(len(rows) * world_size, *rows.shape[1:])
    with naming_lost_process():
        dist.all_gather(list(whole.chunk(world_size)), rows.detach().contiguous(), group=step_group())
    return whole


def _part() -> None:
    """Disconnect while Python still runs: threads of a connection that outlives it abort the process.

    What synchronised weights holds on to the connection, and may be waiting for the garbage collector.
    """
    _step_groups.clear()
    gc.collect()
    if dist.is_initialized():
        dist.destroy_process_group()


def step_group() -> dist.ProcessGroup | None:
    """What the processes exchange in every step goes through here; None: through PyTorch's own connection."""
    return _step_groups[-1] if _step_groups else None


@contextmanager
def naming_lost_process() -> Iterator[None]:
    """Turn a connection that broke, because another process did, into a sentence; let any other error pass."""
    try:
        yield
    except RuntimeError as error:
        told = str(error)
        if not isinstance(error, dist.DistError) and "gloo" not in told:
            raise
        if "imed out" in told or "imeout" in told:
            raise LostProcessError(
                f"Another process of this training did not answer in time ({_TIMEOUT} sets how many seconds it has): "
                "see whether it, or its machine, hangs, then continue with --resume."
            ) from error
        raise LostProcessError(
            "Another process of this training stopped: read its output, then continue with --resume."
        ) from error


def _read_timeout(environment: Mapping[str, str]) -> float:
    given = environment.get(_TIMEOUT, "")
    if not given:
        return _USUAL_TIMEOUT
    try:
        seconds = float(given)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= _LONGEST_WAIT.total_seconds():
        raise TrainingError(f"{_TIMEOUT} is {given!r}: set it to a number of seconds, at most a day.")
    return seconds


def check_accelerator(asked: str) -> None:
    """Refuse `training.accelerator` where this machine has none of the kind.

    Args:
        asked: what the recipe says.
    """
    cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if (asked == "mps" and not mps) or (asked == "gpu" and not (cuda or mps)):
        raise RecipeError(
            f"training.accelerator is {asked}, and PyTorch finds no such device on this machine: set it to auto or cpu."
        )


def make_fabric(section: TrainingSection, ranks: Ranks) -> Any:
    """Lightning Fabric for one process, or for all of them with DistributedDataParallel.

    With gradient caching every process is on its own: what they add up, they do so after the last part.

    Args:
        section: the recipe's training section.
        ranks: the processes, which have met.
    """
    fabric = require("lightning_fabric", extra="train")
    strategies = require("lightning_fabric.strategies", extra="train")
    accelerator = ranks.accelerator(section.accelerator)
    if ranks.world_size == 1:
        return fabric.Fabric(accelerator=accelerator, devices=1, precision=section.precision)
    if section.gradient_cache is not None:
        device = torch.device("cpu") if accelerator == "cpu" else torch.device("cuda", ranks.local_rank)
        alone = strategies.SingleDeviceStrategy(device)
        return fabric.Fabric(accelerator=accelerator, devices=1, strategy=alone, precision=section.precision)
    # Statistics of batch norm are equal, or stay with their process, where only the first one's are ever used.
    renamed = "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
    buffers = "forward_sync_buffers" if renamed else "broadcast_buffers"  # whether to send them around in every step
    strategy = strategies.DDPStrategy(**{buffers: False, "process_group": step_group()})
    shared = fabric.Fabric(
        accelerator=accelerator,
        devices=ranks.local_world_size,
        num_nodes=ranks.machines,
        strategy=strategy,
        precision=section.precision,
    )
    shared.launch()
    return shared
