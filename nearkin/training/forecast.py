"""What training will take, found out on a few items before it begins: memory, the faster precision, and time.

Nothing is updated: passes leave no gradients, running statistics and random state are put back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from nearkin.errors import TrainingError
from nearkin.models import Embedder
from nearkin.models.embedder import Features, to_device
from nearkin.models.speed import channels_last
from nearkin.recipe import TrainingSection
from nearkin.training.batches import Batches, part
from nearkin.training.step import keeping_buffers

_MEASURED = 2
"""Items whose graph tells the memory of one."""
_SLACK = 1.3
"""Memory of a backward pass beside the graph: gradients of maps, and room between blocks."""
_TIMED_ITEMS, _TIMED_ROUNDS = 8, 3
_TIMED_STEPS = 2
"""Steps that are timed before the first one, after one that is not."""
_CLEARLY_FASTER = 1.25
"""By how much bf16 must be faster to be taken: less is noise, and rounding is not free."""


def takes_images(batches: Batches, embedder: Embedder) -> bool:
    """Whether the steps go through the backbone's lower stages: others are over soon, and need little memory."""
    return batches.start is None and any(parameter.requires_grad for parameter in embedder.parameters())


@contextmanager
def without_trace(embedder: Embedder, device: torch.device) -> Iterator[None]:
    """Inside the block the embedder is on a device and may be trained on; afterwards only its gradients are gone."""
    training, before = embedder.training, embedder.normalise.mean.device
    embedder.to(device)
    learns = [parameter for parameter in embedder.parameters() if parameter.requires_grad]
    with keeping_buffers(embedder), torch.random.fork_rng([device] if device.type == "cuda" else []):
        embedder.train()
        try:
            yield
        finally:
            embedder.train(training)
            for parameter in learns:
                parameter.grad = None
            embedder.to(before)


def graph_bytes(embedder: Embedder, inputs: Features, start: str | None = None) -> int:
    """Bytes that a forward pass keeps for the backward pass, beside the weights.

    Args:
        embedder: the network, in training mode.
        inputs: as it takes them, on its device.
        start: where they enter it.
    """
    known = {tensor.untyped_storage().data_ptr() for tensor in (*embedder.parameters(), *embedder.buffers())}
    kept: dict[int, int] = {}
    alive: list[Tensor] = []  # or memory is freed on the way and counted once for two tensors

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        embedder(inputs, start=start)
    return sum(kept.values())


def free_bytes(device: torch.device) -> int | None:
    """Bytes of free memory on a device; None if unknown."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type != "cpu":
        return None
    found = []
    try:
        fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        found.append(int(fields["MemAvailable"].split()[0]) * 1024)
    except (OSError, KeyError, ValueError):
        return None
    try:  # a container may allow less
        group = Path("/sys/fs/cgroup")
        found.append(int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
    except (OSError, ValueError):
        pass
    return max(0, min(found))


def check_memory(
    embedder: Embedder,
    batches: Batches,
    section: TrainingSection,
    device: torch.device,
    items: int,
    per_class: int,
) -> None:
    """Refuse a batch whose graph is larger than the memory that is free.

    Args:
        embedder: the network.
        batches: gives the two items that are measured.
        section: the recipe's training section.
        device: where it will train.
        items: of a step, in this process.
        per_class: how many of them are of one class.
    """
    together = min(section.gradient_cache or items, items)
    free = free_bytes(device)
    if free is None or not takes_images(batches, embedder):
        return
    with naming_full_memory(), without_trace(embedder, device):
        inputs = to_device(batches.plain(np.arange(_MEASURED)), device)
        one = _SLACK * graph_bytes(embedder, inputs, batches.start) / _MEASURED
    if one * together > free:
        raise _too_large(together, section, per_class, free, one)


def _too_large(together: int, section: TrainingSection, per_class: int, free: float, one: float) -> TrainingError:
    fits = int(free / one)
    needs = f"needs about {one * together / 2**30:.1f} GB for its graph, and {free / 2**30:.1f} GB are free"
    if section.gradient_cache is not None:
        change = f"set training.gradient_cache to {max(1, fits)}"
        return TrainingError(f"A part of {together} items {needs}: {change}, or lower model.size.")
    classes, cached = fits // per_class, max(1, min(fits, 32))
    smaller = f"a batch of {classes * per_class} would fit (data.classes_per_batch={classes})" if classes > 1 else ""
    change = f"with training.gradient_cache={cached} this one does" if fits else "lower model.size"
    return TrainingError(f"A batch of {together} items {needs}: {'; '.join(filter(None, (smaller, change)))}.")


@contextmanager
def naming_full_memory(items: int = 0, section: TrainingSection | None = None) -> Iterator[None]:
    """Inside the block an allocation that fails says what to change.

    Args:
        items: of a step.
        section: the recipe's training section; None: the block takes a few items at once, whatever the recipe says.
    """
    try:
        yield
    except RuntimeError as error:  # torch.OutOfMemoryError is one
        if not isinstance(error, torch.OutOfMemoryError) and "can't allocate memory" not in str(error):
            raise
        if section is None:
            raise TrainingError(
                "A few items at once do not fit into memory, whatever the batch: lower model.size."
            ) from error
        together = section.gradient_cache or items
        half = max(1, together // 2)
        raise TrainingError(
            f"{together} items at once do not fit into memory: {half} might. Lower data.classes_per_batch, or set "
            f"training.gradient_cache to {half}, which keeps the batch, or lower model.size."
        ) from error


def choose_precision(
    embedder: Embedder, batches: Batches, items: int, device: torch.device
) -> Literal["32-true", "bf16-mixed"]:
    """What `training.precision: auto` is: bf16-mixed where it is clearly faster, else 32-true.

    Args:
        embedder: the network.
        batches: gives the items that are timed.
        items: that train.
        device: where it will train.
    """
    if device.type == "mps" or not takes_images(batches, embedder):
        return "32-true"
    if device.type == "cuda" and not torch.cuda.is_bf16_supported():
        return "32-true"
    channels_last(embedder)
    contexts: dict[str, Callable[[], AbstractContextManager[Any]]] = {
        "32-true": nullcontext,
        "bf16-mixed": lambda: torch.autocast(device.type, torch.bfloat16),
    }
    seconds = dict.fromkeys(contexts, float("inf"))
    with without_trace(embedder, device):
        inputs = to_device(batches.plain(np.arange(_TIMED_ITEMS) % items), device)
        for turn in range(1 + _TIMED_ROUNDS):
            for name, context in contexts.items():
                taken = _timed(lambda context=context: _pass(embedder, inputs, batches.start, context), device)  # type: ignore[misc]
                if turn:
                    seconds[name] = min(seconds[name], taken)
    return "bf16-mixed" if seconds["32-true"] > _CLEARLY_FASTER * seconds["bf16-mixed"] else "32-true"


def timed_steps(
    embedder: Embedder, batches: Batches, section: TrainingSection, device: torch.device
) -> tuple[float, float]:
    """Seconds of a step, decoding included, and of one whose backbone rests; nothing is changed.

    The loss itself is left out: next to a network it takes no time.

    Args:
        embedder: the network.
        batches: that it would be trained on.
        section: the recipe's training section.
        device: where it will train.
    """
    seconds, passed = [], []
    with without_trace(embedder, device):
        began = time.perf_counter()
        for inputs, labels in batches.stream(1, _TIMED_STEPS + 1):
            size = section.gradient_cache or len(labels)
            with naming_full_memory(len(labels), section):
                taken = [to_device(part(inputs, at, at + size), device) for at in range(0, len(labels), size)]
                forward = time.perf_counter()
                with torch.no_grad():
                    for one in taken:
                        embedder(one, start=batches.start)
                # A gradient cache goes forward twice in a step, and twice while the backbone rests.
                again = 0.0 if section.gradient_cache is not None else time.perf_counter() - forward
                passed.append(time.perf_counter() - began)
                for one in taken:
                    embedder(one, start=batches.start).float().square().mean().backward()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            seconds.append(time.perf_counter() - began - again)
            began = time.perf_counter()
    # The first one starts decoders and threads.
    share = section.gradient_accumulation / _TIMED_STEPS
    return share * sum(seconds[1:]), share * sum(passed[1:])


def _pass(
    embedder: Embedder, inputs: Features, start: str | None, context: Callable[[], AbstractContextManager[Any]]
) -> None:
    with context():
        embeddings = embedder(inputs, start=start)
    embeddings.float().square().mean().backward()


def _timed(run: Callable[[], None], device: torch.device) -> float:
    began = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began


def duration(seconds: float) -> str:
    """A time as people say it: `40 s`, `12 min`, `1 h 40 min`."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min" if minutes % 60 else f"{minutes // 60} h"


def time_line(seconds: float, steps: int, step_seconds: float) -> str:
    """How long training will take, before it begins.

    Args:
        seconds: of all that is left.
        steps: that are left.
        step_seconds: of one of them.
    """
    return (
        f"about {duration(seconds)} on this machine ({steps} steps of {step_seconds:.2g} s); "
        "--set training.max_steps=... for less"
    )
