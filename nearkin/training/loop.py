"""The loop: step, log, validate, keep the best, stop cleanly, resume exactly."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import NamedTuple

import torch
from torch import Tensor, nn

from nearkin.errors import RunError, TrainingError
from nearkin.models import Embedder
from nearkin.models.embedder import to_device
from nearkin.models.speed import channels_last, tune_allocator
from nearkin.objectives import Objective
from nearkin.objectives.proxy.bank import ClassVectors
from nearkin.progress import Progress, say
from nearkin.recipe import TrainingSection
from nearkin.training.batch_norm import synchronised
from nearkin.training.batches import Batches, Inputs, part
from nearkin.training.forecast import naming_full_memory, takes_images, time_line, timed_steps
from nearkin.training.ranks import Ranks, make_fabric
from nearkin.training.run import (
    Logbook,
    Run,
    generator_tensors,
    load_state,
    optimiser_tensors,
    restore_generator,
    restore_optimiser,
    save_state,
    seed_generator,
)
from nearkin.training.step import (
    GradientCache,
    Gradients,
    Step,
    WeightAverage,
    WholeBatch,
    keeping_buffers,
    make_optimiser,
    mean_weights,
    set_learning_rates,
)
from nearkin.training.strategies import Schedule

_WORTH_TELLING = 30
"""Steps whose time is worth measuring before they begin."""


class StopRequest:
    """While active, a first SIGINT or SIGTERM only sets `requested`; a second one interrupts at once."""

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[int, object] = {}

    def __enter__(self) -> StopRequest:
        # Only the main thread may set handlers; elsewhere (a notebook's worker, a server) signals stay as they are.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]


@dataclass
class LoopState:
    """Where training stands; with the tensors, all that a resumed run needs."""

    step: int = 0
    best_value: float = -math.inf
    best_step: int = 0
    stale: int = 0
    seconds: float = 0.0
    pending: list[float] = field(default_factory=list)
    """Losses since the last log line."""
    validated: list[tuple[int, float]] = field(default_factory=list)
    """Steps of the validations so far, and the values that choose the weights."""
    averaged: int | None = None
    """How many of the best weights the kept ones are the mean of; 0: the mean was not better; None: not tried."""


class Kept(NamedTuple):
    """Weights of the model, and the state of a loss that can name classes, which belongs to them; else nothing."""

    weights: dict[str, Tensor]
    loss: dict[str, Tensor]


def _of_mean(name: str) -> str:
    """What the log calls a validation value of the mean of the best weights."""
    return "averaged_" + name.removeprefix("val_")


class Loop:
    """Minimise an objective over batches, validating on the way.

    Args:
        embedder: the model; trained in place, and left with the weights that validated best.
        objective: what to minimise; a loss that can name classes is left as it was with those weights.
        batches: where each step's batch comes from.
        section: the recipe's training section.
        run: where log and checkpoints go.
        validate: gives validation values of the embedder, among them the one that the schedule selects by, or raises
            FloatingPointError; None without validation classes.
        schedule: what each batch is compared with; None: the plain one.
        identity: what must be equal for a checkpoint to be resumed (recipe and data).
        progress: whether to show a bar.
        ranks: the processes that train together; only the first validates and writes, and all hold the same state.
        watch: called with the step at every validation, in the first process; gives more for the log.
    """

    def __init__(
        self,
        embedder: Embedder,
        objective: Objective,
        batches: Batches,
        section: TrainingSection,
        run: Run,
        validate: Callable[[], dict[str, float]] | None,
        schedule: Schedule | None = None,
        identity: dict[str, str] | None = None,
        progress: bool = True,
        ranks: Ranks | None = None,
        watch: Callable[[int], dict[str, float]] | None = None,
    ) -> None:
        self.embedder = embedder
        self.objective = objective
        self.batches = batches
        self.section = section
        self.run = run
        self.validate = validate
        self.schedule = Schedule() if schedule is None else schedule
        self.identity = identity or {}
        self.progress = progress
        self.ranks = Ranks() if ranks is None else ranks
        self.watch = watch
        self._parts: list[Tensor] = []
        self.state = LoopState()
        self.interrupted = False
        self._validation_seconds = 0.0

    def train(self, resume: bool = False, known: Mapping[str, float] | None = None) -> LoopState:
        """Train until max_steps, until patience runs out, or until interrupted; return where it stands.

        An interrupted run has `state.step` short of the end and can be resumed to bit-equal results.

        Args:
            resume: continue from the run's checkpoint, if there is one.
            known: values to log at step 0, beside those of the start.
        """
        shared = self.ranks.world_size > 1 and self.section.sync_batch_norm
        with synchronised(self.embedder, self.ranks) if shared else nullcontext():
            return self._train(resume, known or {})

    def _train(self, resume: bool, known: Mapping[str, float]) -> LoopState:
        self._set_up()
        # A request to stop counts from the first checkpoint on, which is written by `_validate_start`.
        with StopRequest() as stop:
            resumed = resume and self.run.state_file.exists()
            if resumed:
                self._restore()
            else:
                self.schedule.begin()
            log, events = self.run.log_file, self.run.events_folder
            self.logbook = Logbook(log, self.state.step, events) if self.ranks.is_first else Logbook(None)
            if not resumed:
                self._validate_start(known)
            self._tell_time()
            began = time.monotonic() - self.state.seconds
            try:
                with Progress("training", self.section.max_steps, self.progress) as bar:
                    bar.advance(self.state.step)
                    self._steps(stop, bar, began)
                if self.finished:
                    self._finish()
            finally:
                self.logbook.close()
        self._restore_best()
        return self.state

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to do."""
        patience = self.section.patience
        return self.state.step >= self.section.max_steps or (patience is not None and self.state.stale >= patience)

    def values_at(self, step: int) -> dict[str, float]:
        """The validation values logged at a step."""
        rows = [row for row in self.logbook.rows if row["step"] == step]
        return {name: value for row in rows for name, value in row.items() if name.startswith("val_")}

    def best_values(self) -> dict[str, float]:
        """The validation values of the weights that are kept."""
        values = self.values_at(self.state.best_step)
        if not self.state.averaged:
            return values
        logged = {name: value for row in self.logbook.rows for name, value in row.items()}
        return {name: logged[_of_mean(name)] for name in values if _of_mean(name) in logged}

    def _set_up(self) -> None:
        tune_allocator()
        channels_last(self.embedder)
        self.fabric = make_fabric(self.section, self.ranks)
        seed_generator(self.section.seed, self.ranks)
        step = Step(self.embedder, self.objective, self.schedule, self.batches.start, self.ranks)
        optimiser = make_optimiser(self.embedder, self.objective, self.section, self.schedule)
        self.module: nn.Module
        self.optimiser: torch.optim.Optimizer
        backward: Callable[[Tensor], None] = self.fabric.backward
        if self.section.precision == "32-true" and self.fabric.world_size == 1:
            # Fabric's wrappers convert precisions and synchronise ranks; with neither to do, they only cost time.
            self.module, self.optimiser, backward = self.fabric.to_device(step), optimiser, Tensor.backward
        else:
            self.module, self.optimiser = self.fabric.setup(step, optimiser)
        if self.fabric.world_size == 1:
            self.ranks.agree(step)  # else the wrapper sees to it
        device, size, batches = self.fabric.device, self.section.gradient_cache, self.section.gradient_accumulation
        share = backward if batches == 1 else lambda loss: backward(loss / batches)
        self.gradients: Gradients = WholeBatch(self.module, share, device)
        if size is not None:
            self.gradients = GradientCache(step, share, device, size, self.fabric.autocast)
        self.average = WeightAverage(self.embedder, self.section.ema) if self.section.ema else None
        self._backbone = [parameter for parameter in self.embedder.backbone.parameters() if parameter.requires_grad]
        self._backbone_learns = True
        self.best = self._kept()
        self.last_best: list[Kept] = []

    def _steps(self, stop: StopRequest, bar: Progress, began: float) -> None:
        section, state = self.section, self.state
        losses: list[Tensor] = []
        self.module.train()
        batches = section.gradient_accumulation
        for inputs, labels in self.batches.stream(state.step * batches + 1, section.max_steps * batches):
            if self.finished:
                break
            if len(self._parts) < batches - 1:
                self._add(inputs, labels)
                self.objective.stepped()
                continue
            losses.append(self._step(inputs, labels))
            state.step += 1
            if moved := self.schedule.updated(partial(self._embedded_again, inputs, len(labels))):
                self.logbook.add(state.step, **moved)
            validating = state.step % section.evaluate_every == 0 or state.step == section.max_steps
            self.interrupted = self.ranks.any(stop.requested)
            if state.step % section.log_every == 0 or validating or self.interrupted:
                self._take_in(losses)
                if state.step % section.log_every == 0 or state.step == section.max_steps:
                    self._log_losses()
            if validating or self.interrupted:
                self._check_weights()
            if validating:
                self._validate()
            bar.advance(note=self._note() if validating else "")
            if validating or self.interrupted:
                state.seconds = self.ranks.broadcast_object(time.monotonic() - began)
                self._save()
            if self.interrupted:
                break

    def _step(self, inputs: Inputs, labels: Tensor) -> Tensor:
        """One update; the loss comes back detached and unread, so that a GPU is never waited for."""
        set_learning_rates(self.optimiser, self.state.step + 1, self.section, self.state.validated)
        self._add(inputs, labels)
        loss = self._parts[0] if len(self._parts) == 1 else torch.stack(self._parts).mean()
        self._parts.clear()
        if self.section.clip is not None:
            self._clip(self.section.clip)
        self.optimiser.step()
        self.objective.stepped()
        if self.average is not None:
            self.average.update()
        return loss

    def _tell_time(self) -> None:
        """Say how long the steps that are left will take, where the network learns on images."""
        section, done = self.section, self.state.step
        left = section.max_steps - done
        tells = self.progress and left >= _WORTH_TELLING and section.schedule != "adversarial"
        if self.finished or not self.ranks.any(tells and takes_images(self.batches, self.embedder)):
            return
        if done:
            step = self.state.seconds / done  # with validations
            total = step * left
        else:
            step, resting = self._timed_steps()
            total = step * left + left // section.evaluate_every * self._validation_seconds
            total -= min(section.head_warmup_steps, section.max_steps) * (step - resting)
        say(f"Training takes {time_line(total, left, step)}.", self.progress)

    def _timed_steps(self) -> tuple[float, float]:
        with self.fabric.autocast():
            return timed_steps(self.embedder, self.batches, self.section, self.fabric.device)

    def _rest_backbone(self, step: int) -> None:
        """Take no gradients of the backbone while only head and proxies learn; several processes always take all."""
        learns = step > self.section.head_warmup_steps
        if self.fabric.world_size == 1 and learns != self._backbone_learns:
            self._backbone_learns = learns
            for parameter in self._backbone:
                parameter.requires_grad_(learns)

    def _add(self, inputs: Inputs, labels: Tensor) -> None:
        """Add a batch's gradients to those of the other batches of this step; its loss joins theirs."""
        if not self._parts:
            self.optimiser.zero_grad(set_to_none=True)
        if (draws := self.embedder.backbone.path_draws) is not None:
            batch = self.state.step * self.section.gradient_accumulation + len(self._parts) + 1
            draws.begin(self.section.seed, batch, self.ranks.rank * len(labels), len(labels))
        self._rest_backbone(self.state.step + 1)
        with naming_full_memory(len(labels), self.section):
            self._parts.append(self.gradients(inputs, labels))

    @torch.no_grad()
    def _embedded_again(self, inputs: Inputs, count: int) -> Tensor:
        """Raw embeddings (B, d) of this step's inputs by the current weights, as training sees them, without a
        trace.
        """
        device, size = self.fabric.device, self.section.gradient_cache or count
        gpus = [device] if device.type == "cuda" else []
        found = []
        with keeping_buffers(self.embedder), torch.random.fork_rng(devices=gpus), self.fabric.autocast():
            for first in range(0, count, size):
                if (draws := self.embedder.backbone.path_draws) is not None:
                    draws.first = first
                one = to_device(part(inputs, first, first + size), device)
                found.append(self.embedder(one, start=self.batches.start).float())
        return self.ranks.gather_labels(torch.cat(found))

    def _clip(self, limit: float) -> None:
        norm = self.fabric.clip_gradients(self.module, self.optimiser, max_norm=limit, error_if_nonfinite=False)
        # With half precision's scaled losses such a step is expected now and then, and the scaler leaves it out.
        scaled = self.section.precision == "16-mixed"
        if not scaled and norm is not None and not bool(torch.isfinite(norm)):
            raise self._ruined("The gradients stopped being finite", self.state.step + 1)

    def _take_in(self, losses: list[Tensor]) -> None:
        """Read the losses of the last steps and stop at one that is not finite."""
        if not losses:
            return
        values = torch.stack(losses).float().tolist()
        first = self.state.step - len(values) + 1
        losses.clear()
        for step, value in enumerate(values, start=first):
            if not math.isfinite(value):
                raise self._ruined(f"The loss became {value}", step)
        self.state.pending.extend(values)

    def _check_weights(self) -> None:
        """Refuse to validate or keep weights that the last update ruined, before any loss could tell."""
        for parameter in self.embedder.parameters():
            if parameter.requires_grad and not bool(torch.isfinite(parameter).all()):
                raise self._ruined("The weights stopped being finite", self.state.step)

    def _ruined(self, what: str, step: int) -> TrainingError:
        kept = self.run.state_file
        kept_text = f"the last good checkpoint is {kept}" if kept.exists() else "no checkpoint was written yet"
        change = "lower training.lr"
        if weights := ", ".join(f"{name} {weight:g}" for name, weight in self.objective.weights.items()):
            change += f" or the weights in objective.regularisers ({weights})"
        change += " or set training.clip" if self.section.clip is None else ""
        return TrainingError(f"{what} at step {step}: {change}; {kept_text}.")

    def _log_losses(self) -> None:
        pending = self.state.pending
        if pending:
            rate = self.optimiser.param_groups[0]["lr"]
            # Read in every process: a reading begins a new count, and all hold the same state.
            readings = self.objective.readings() | self.schedule.readings()
            self.logbook.add(self.state.step, loss=math.fsum(pending) / len(pending), lr=rate, **readings)
            pending.clear()

    def _validate_start(self, known: Mapping[str, float]) -> None:
        """Step 0 counts: training that does not beat it gives it back."""
        if self.validate is None:
            return
        began = time.perf_counter()
        values = self._validation_values(self.validate)
        self._validation_seconds = time.perf_counter() - began
        self.logbook.add(0, **values, **known)
        self.state.best_value = values[self.schedule.selection]
        self.state.validated.append((0, self.state.best_value))

    def _validate(self) -> None:
        """Validate with the averaged weights where there are some; keep the weights if they are the best so far."""
        state = self.state
        with self.average.applied() if self.average is not None else nullcontext():
            if self.watch is not None and self.ranks.is_first and (said := self.watch(state.step)):
                self.logbook.add(state.step, **said)
            if self.validate is None:
                state.best_step, self.best = state.step, self._kept()
                return
            values = self._validation_values(self.validate)
            self.logbook.add(state.step, **values)
            chosen_by = values[self.schedule.selection]
            state.validated.append((state.step, chosen_by))
            if chosen_by > state.best_value:
                state.best_value, state.best_step, state.stale = chosen_by, state.step, 0
                self.best = self._kept()
                if count := self.section.average_best:
                    self.last_best = [*self.last_best, self.best][-count:]
            else:
                state.stale += 1
        if said := self.schedule.validated(state.step, values, self._validated_weights):
            self.logbook.add(state.step, **said)

    def _validated_weights(self) -> dict[str, Tensor]:
        with self.average.applied() if self.average is not None else nullcontext():
            return self._weights()

    def _validation_values(self, validate: Callable[[], dict[str, float]]) -> dict[str, float]:
        """What the first process finds, for all of them; none is finite together with its embeddings."""
        found: dict[str, float] | None = None
        if self.ranks.is_first:
            self.module.eval()
            with suppress(FloatingPointError):
                found = validate()
            self.module.train()
        values = self.ranks.broadcast_object(found)
        if values is None:
            raise self._ruined("The embeddings stopped being finite", self.state.step)
        return {f"val_{name}": value for name, value in values.items()}

    def _finish(self) -> None:
        """Let the schedule have the last word, once: a run that is finished may be resumed."""
        said = self.schedule.finished(self.state.step)
        if said and not any(said.items() <= row.items() for row in self.logbook.rows):
            self.logbook.add(self.state.step, **said)
        if self.validate is not None and self.state.averaged is None and len(self.last_best) > 1:
            self._try_mean(self.validate)
            self._save()

    def _try_mean(self, validate: Callable[[], dict[str, float]]) -> None:
        """Validate the mean of the last best weights, and keep it if it is better than the best of them."""
        now, mean = self._kept(), Kept(*(mean_weights(states) for states in zip(*self.last_best, strict=True)))
        self._put(mean)
        values = self._validation_values(validate)
        self._put(now)
        self.logbook.add(self.state.step, **{_of_mean(name): value for name, value in values.items()})
        value, self.state.averaged = values[self.schedule.selection], 0
        if value > self.state.best_value:
            self.state.best_value, self.state.averaged = value, len(self.last_best)
            self.best = mean

    def _weights(self) -> dict[str, Tensor]:
        """A copy of every weight and buffer that training may change."""
        frozen = tuple(self.embedder.frozen_prefixes())
        weights = self.embedder.state_dict()
        return {name: value.detach().clone() for name, value in weights.items() if not name.startswith(frozen)}

    def _kept(self) -> Kept:
        """A copy of the weights, and of a loss that can name classes."""
        loss = self.objective.loss
        state = loss.state_dict() if isinstance(loss, ClassVectors) else {}
        return Kept(self._weights(), {name: value.detach().clone() for name, value in state.items()})

    def _put(self, kept: Kept) -> None:
        """Give the model weights, and the loss what belongs to them."""
        self.embedder.load_state_dict(kept.weights, strict=False)
        if kept.loss:
            self.objective.loss.load_state_dict(kept.loss)

    def _restore_best(self) -> None:
        for parameter in self._backbone:
            parameter.requires_grad_(True)  # a run may end while they rest
        self._put(self.best)
        self.ranks.agree(self.embedder)
        self.embedder.eval()

    def _save(self) -> None:
        state = self.state
        generators = generator_tensors(self.ranks)
        if not self.ranks.is_first:
            return
        tensors = {
            "embedder": self._weights(),
            "objective": dict(self.objective.state_dict()),
            "schedule": self.schedule.tensors(),
            "optimiser": optimiser_tensors(self.optimiser),
            "best": self.best.weights,
            "best_loss": self.best.loss,
            "random": generators,
        }
        if self.average is not None:
            tensors["average"] = self.average.shadow
        for place, (weights, loss) in enumerate(self.last_best):
            tensors |= {f"last_best_{place}": weights, f"last_best_loss_{place}": loss}
        best = None if state.best_value == -math.inf else state.best_value
        facts = {
            "identity": self.identity,
            "state": {**vars(state), "best_value": best},
            "schedule": self.schedule.facts(),
        }
        save_state(self.run.state_file, tensors, facts)

    def _restore(self) -> None:
        tensors, facts = load_state(self.run.state_file)
        for what, value in self.identity.items():
            if facts["identity"].get(what) != value:
                raise RunError(
                    f"{self.run.path} was trained with another {what}: resume it with the same, or start a new run."
                )
        self.embedder.load_state_dict(tensors["embedder"], strict=False)
        self.objective.load_state_dict(tensors.get("objective", {}))
        self.schedule.restore(tensors.get("schedule", {}), facts.get("schedule", {}))
        restore_optimiser(self.optimiser, tensors.get("optimiser", {}))
        self.best = Kept(tensors["best"], tensors.get("best_loss", {}))
        self.last_best = [
            Kept(tensors[f"last_best_{place}"], tensors.get(f"last_best_loss_{place}", {}))
            for place in range(self.section.average_best or 0)
            if f"last_best_{place}" in tensors
        ]
        if self.average is not None:
            for name, shadow in self.average.shadow.items():
                shadow.copy_(tensors["average"][name])
        state = facts["state"]
        state["best_value"] = -math.inf if state["best_value"] is None else state["best_value"]
        state["validated"] = [(step, value) for step, value in state.get("validated", [])]
        self.state = LoopState(**state)
        restore_generator(tensors["random"], self.section.seed, self.ranks, self.state.step)

    def _note(self) -> str:
        best = self.state.best_value
        return f"best {self.schedule.selection} {best:.4f}" if math.isfinite(best) else ""
