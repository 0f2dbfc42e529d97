"""A run: one directory with the recipe, the log, the checkpoints, the proxies, the audit and the report."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from nearkin.data.hierarchy import Hierarchy
from nearkin.errors import CheckpointError, RunError
from nearkin.models import Embedder, SimilarityModel
from nearkin.models.embedder import ClassScores, read_tensors, write_tensors
from nearkin.objectives import make_objective
from nearkin.objectives.proxy.bank import ClassVectors
from nearkin.objectives.registry import mixed_seed
from nearkin.recipe import Recipe, load_recipe
from nearkin.storage import WriterLock, storing, write_json, write_text
from nearkin.training.clusters import Clusters, read_clusters
from nearkin.training.ranks import Ranks


class Logbook:
    """Rows of numbers by step, appended to a JSON-lines file.

    Args:
        path: the file; rows after `keep_to` are dropped from an existing one, so a resumed run repeats nothing. None
            keeps the rows in memory only.
        keep_to: the last step that still counts.
        events: folder for TensorBoard events; None writes none.
    """

    def __init__(self, path: Path | None, keep_to: int = 0, events: Path | None = None) -> None:
        self.path = path
        self.rows = [row for row in read_rows(path) if row["step"] <= keep_to] if path is not None else []
        if path is not None:
            write_text(path, "".join(json.dumps(row) + "\n" for row in self.rows))
        self._writer = _event_writer(events, keep_to) if events is not None else None

    def add(self, step: int, **values: float) -> None:
        """Append one row."""
        row = {"step": step, **values}
        self.rows.append(row)
        if self.path is not None:
            with storing(self.path), open(self.path, "a", encoding="utf-8") as handle:
                handle.write(json.dumps(row) + "\n")
        if self._writer is not None:
            for name, value in values.items():
                self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Finish the event file."""
        if self._writer is not None:
            self._writer.close()


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a log; a last line cut short by a crash is left out.

    Raises:
        RunError: if another line is no row, so that nothing is lost silently.
    """
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8", errors="replace").rstrip("\n").split("\n")
    rows = [_row(line) for line in lines]
    if rows[-1] is None:
        rows.pop()
    if None in rows:
        raise RunError(
            f"{path}, line {rows.index(None) + 1}, is not a row of a training log: delete or fix that line, or "
            f"restore the file."
        )
    return [row for row in rows if row is not None]


def _row(line: str) -> dict[str, Any] | None:
    """The row that a line holds, None if it holds none."""
    try:
        row = json.loads(line)
    except json.JSONDecodeError:
        return None
    return row if isinstance(row, dict) and isinstance(row.get("step"), int | float) else None


def _event_writer(folder: Path, keep_to: int) -> Any:
    if find_spec("tensorboard") is None:
        return None
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder), purge_step=keep_to + 1)


_FILE = "classes.safetensors"
_CLASSES_FORMAT = "nearkin.classes"


@dataclass(frozen=True, eq=False)
class RunProxies:
    """Proxies of a run.

    Attributes:
        names: of the C training classes.
        proxies: points of the model's space, float32 (C, d), in the order of the names.
    """

    names: tuple[str, ...]
    proxies: np.ndarray


def write_class_vectors(folder: Path, names: Sequence[str], proxies: Tensor) -> None:
    """Keep the proxies (C, d) of the named classes in a run's directory."""
    metadata = {"format": _CLASSES_FORMAT, "names": json.dumps(list(names))}
    write_tensors(folder / _FILE, {"proxies": proxies.float()}, metadata)


def read_class_vectors(folder: Path) -> RunProxies | None:
    """What `write_class_vectors` kept; None where the run's loss had no proxies.

    Raises:
        RunError: the file is damaged.
    """
    path = folder / _FILE
    if not path.exists():
        return None
    try:
        metadata, tensors = read_tensors(path)
        names = tuple(map(str, json.loads(metadata["names"])))
        proxies = tensors["proxies"].to(torch.float32).numpy()
        whole = metadata.get("format") == _CLASSES_FORMAT and proxies.ndim == 2 and len(proxies) == len(names)
    except (OSError, SafetensorError, KeyError, ValueError, TypeError):
        whole = False
    if not whole:
        raise RunError(f"{path} is damaged: remove it to continue without the run's proxies, or train again.")
    return RunProxies(names, proxies)


def seed_generator(seed: int, ranks: Ranks, step: int = 0) -> None:
    """Seed this process's generator; the first one's as that of a run of one process."""
    torch.manual_seed(seed if ranks.is_first else mixed_seed(seed, ranks.rank, step))


def generator_tensors(ranks: Ranks) -> dict[str, Tensor]:
    """The random states of all processes, of the CPU and of the GPU in use; every process must ask."""
    own = {"torch": torch.get_rng_state()}
    if torch.cuda.is_initialized():
        own["cuda"] = torch.cuda.get_rng_state()
    return {
        _name(kind, rank): state
        for kind, mine in own.items()
        for rank, state in enumerate(ranks.gather_labels(mine[None]))
    }


def restore_generator(tensors: Mapping[str, Tensor], seed: int, ranks: Ranks, step: int) -> None:
    """Put this process's state back; one that did not take part before the checkpoint is seeded by its step."""
    state = tensors.get(_name("torch", ranks.rank))
    if state is None:
        seed_generator(seed, ranks, step)
        return
    torch.set_rng_state(state.clone())  # PyTorch crashes on a view into another tensor
    of_gpu = tensors.get(_name("cuda", ranks.rank))
    if of_gpu is not None and torch.cuda.is_initialized():
        torch.cuda.set_rng_state(of_gpu.clone())


def generator_state(device: torch.device) -> list[Tensor]:
    """The random state of the CPU, and of the GPU if that is the device."""
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]


def set_generator_state(state: list[Tensor], device: torch.device) -> None:
    """Put back what `generator_state` gave."""
    torch.set_rng_state(state[0])
    for of_gpu in state[1:]:
        torch.cuda.set_rng_state(of_gpu, device)


def _name(kind: str, rank: int) -> str:
    return f"{kind}/{rank}" if rank else kind


_FORMAT = "nearkin.training"
_VERSION = "1"


def save_state(path: Path, tensors: dict[str, dict[str, Tensor]], facts: dict[str, Any]) -> None:
    """Write groups of named tensors and JSON-able facts; an existing file stays whole until the new one is."""
    flat = {f"{group}/{name}": tensor for group, members in tensors.items() for name, tensor in members.items()}
    write_tensors(path, flat, {"format": _FORMAT, "version": _VERSION, "facts": json.dumps(facts)})


def load_state(path: Path) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """Read what `save_state` wrote."""
    try:
        metadata, flat = read_tensors(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"The checkpoint {path} cannot be read ({error}): start a new run.") from error
    if metadata.get("format") != _FORMAT:
        raise CheckpointError(f"{path} is not a training checkpoint of nearkin: pass the run it belongs to.")
    if metadata.get("version") != _VERSION:
        raise CheckpointError(
            f"{path} has checkpoint version {metadata.get('version')}, but this nearkin reads "
            f"version {_VERSION}: resume it with the nearkin that wrote it, or start a new run."
        )
    groups: dict[str, dict[str, Tensor]] = {}
    for name, tensor in flat.items():
        group, _, member = name.partition("/")
        groups.setdefault(group, {})[member] = tensor
    facts = json.loads(metadata["facts"])
    if not {"identity", "state"} <= facts.keys():
        raise CheckpointError(f"The checkpoint {path} is damaged: start a new run.")
    return groups, facts


def optimiser_tensors(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's per-parameter state as named tensors."""
    state = optimiser.state_dict()["state"]
    return {f"{index}/{key}": torch.as_tensor(value) for index, entry in state.items() for key, value in entry.items()}


def restore_optimiser(optimiser: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Put `optimiser_tensors` back; groups and their settings come from the recipe."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        index, _, key = name.partition("/")
        state.setdefault(int(index), {})[key] = tensor
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})
    # Files hold plain layouts. A fused update walks a weight and its averages in memory order, so with weights that
    # keep their channels innermost the averages must do so too.
    for parameter, entry in optimiser.state.items():
        for key, value in entry.items():
            if value.shape == parameter.shape:
                entry[key] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def read_snapshots(folder: Path) -> list[dict[str, Tensor]]:
    """The readable snapshots of a run, in order.

    Each has the tensors that `Snapshots.take` wrote, and as `instance` (a scalar) the number in its file's name.
    """
    numbered = {int(path.stem): path for path in folder.glob("*.safetensors") if path.stem.isdecimal()}
    found = {number: _read(numbered[number]) for number in sorted(numbered)}
    return [{**tensors, "instance": torch.tensor(number)} for number, tensors in found.items() if tensors is not None]


def _read(path: Path) -> dict[str, Tensor] | None:
    """The tensors of a snapshot; None if the file is damaged or another."""
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError):
        return None
    return tensors if _fit_together(tensors) else None


def _fit_together(tensors: Mapping[str, Tensor]) -> bool:
    """Whether they are all there, of the shapes that `Snapshots.take` gives them, and finite."""
    if not {"points", "labels", "classes", "converged", "next"} <= tensors.keys():
        return False
    points, labels, classes = (tensors[name] for name in ("points", "labels", "classes"))
    if points.dim() != 2 or labels.shape != points.shape[:1] or classes.dim() != 1:
        return False
    proxies = [tensors["converged"], tensors["next"]]
    return (
        all(part.dim() == 3 and part.shape[::2] == (len(classes), points.shape[1]) for part in proxies)
        and bool(torch.isin(labels, classes).all())
        and all(bool(part.isfinite().all()) for part in (points, *proxies))
    )


class Run:
    """The files of a run; making one touches nothing on disk.

    Args:
        path: the run's directory.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.recipe_file = self.path / "recipe.yaml"
        self.log_file = self.path / "metrics.jsonl"
        self.start_file = self.path / "start.json"
        self.state_file = self.path / "last.safetensors"
        self.model_file = self.path / "model.safetensors"
        self.card_file = self.path / "card.json"
        self.audit_file = self.path / "audit.json"
        self.report_file = self.path / "report.html"
        self.events_folder = self.path / "events"
        self.instances_folder = self.path / "instances"

    @property
    def exists(self) -> bool:
        """Whether something is there already; the lock of one that is about to begin does not count."""
        # One question only: between two, another process of the same training may make the directory.
        try:
            return any(entry.name != "writer.lock" for entry in self.path.iterdir())
        except FileNotFoundError:
            return False
        except NotADirectoryError:
            return self.path.exists()  # a file, or a path through one

    def check(self, recipe: Recipe, resume: bool) -> None:
        """Refuse a directory that exists, or to continue one that cannot be continued with this recipe."""
        if self.exists and not resume:
            raise RunError(f"{self.path} already exists: continue it with --resume, or choose another name with --out.")
        if resume and not self.recipe_file.exists():
            raise RunError(f"{self.path} has no run to resume: leave out --resume to start one.")
        if resume and self.recipe() != recipe:
            raise RunError(
                f"{self.path} was started with another recipe: resume it with that one "
                f"({self.recipe_file}), or choose another name with --out."
            )

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the right to write to the run, whose directory is made if need be.

        Raises:
            StorageError: if another training holds it, or nothing can be written there.
        """
        with storing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        with WriterLock(self.path).held():
            yield

    def prepare(self, recipe: Recipe, resume: bool) -> None:
        """Make the directory, or check that the one that exists can be continued with this recipe."""
        self.check(recipe, resume)
        if not resume:
            recipe.save(self.recipe_file)

    def recipe(self) -> Recipe:
        """The resolved recipe the run was started with."""
        if not self.recipe_file.exists():
            raise RunError(f"{self.path} is not a run: it has no {self.recipe_file.name}.")
        return load_recipe(self.recipe_file, saved=True)

    def model(self) -> Embedder:
        """The trained model: the weights that validated best."""
        if not self.path.exists():
            raise RunError(f"There is no run {self.path}: check the path.")
        if not self.model_file.exists():
            hint = "finish it with  nearkin train ... --resume" if self.state_file.exists() else "train it first"
            raise RunError(f"{self.path} has no finished model ({self.model_file.name}): {hint}.")
        return Embedder.load(self.model_file)

    def save_model(self, embedder: Embedder) -> None:
        """Write the model, and its card once more in a form people can read."""
        embedder.save(self.model_file)
        write_json(self.card_file, embedder.card.to_dict())

    def history(self) -> list[dict[str, Any]]:
        """The rows of the training log."""
        return read_rows(self.log_file)

    def instances(self) -> list[dict[str, Tensor]]:
        """What chance-constrained training saw at the end of each instance; see `read_snapshots`."""
        return read_snapshots(self.instances_folder)

    def clusters(self) -> Clusters | None:
        """Clusters of the training classes at each validation, if the recipe asked for them
        (`training.cluster_items`).
        """
        return read_clusters(self.path)

    def class_vectors(self) -> RunProxies | None:
        """The proxies of the training classes, if the loss had any."""
        return read_class_vectors(self.path)

    def audit(self) -> dict[str, Any]:
        """The stored audit."""
        if not self.path.exists():
            raise RunError(f"There is no run {self.path}: check the path.")
        if not self.audit_file.exists():
            raise RunError(self._no_audit())
        try:
            stored: dict[str, Any] = json.loads(self.audit_file.read_text(encoding="utf-8"))
            needed = {key: stored[key] for key in ("values", "intervals", "facts")}
            # Not in older audits.
            return {
                **needed,
                "per_class": stored.get("per_class", {}),
                "lower_is_better": stored.get("lower_is_better", []),
                "numbers": stored.get("numbers", []),
                "details": stored.get("details", {}),
            }
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(f"{self.audit_file} is damaged: run  nearkin audit {self.path}  again.") from error

    def _no_audit(self) -> str:
        """Why there is no audit to compare, and what to do."""
        beside = sorted(file.name for file in self.path.glob("audit-*.json"))
        if not beside:
            return f"{self.path} has not been audited: run  nearkin audit {self.path}  first."
        are = "is" if len(beside) == 1 else "are"
        return (
            f"{self.path} has no {self.audit_file.name}, which compare reads: {', '.join(beside)} {are} without "
            f"retrieval, re-ranked or of other data, so run  nearkin audit {self.path}  or name retrieval too after "
            "--suite."
        )


def run_classifier(path: Path, embedder: Embedder) -> ClassScores | None:
    """What the loss of a run's best weights takes points of the model's space for.

    Returns:
        None where the loss knows no classes, where the model is its own classifier, or where the run kept no state.
    """
    run = Run(path)
    proxies = run.class_vectors()
    if proxies is None or isinstance(embedder, SimilarityModel) or not run.state_file.exists():
        return None
    tensors, _ = load_state(run.state_file)
    kept = tensors.get("best_loss", {})
    card = embedder.card
    objective = make_objective(
        run.recipe().objective,
        dimension=embedder.dimension,
        classes=len(proxies.names),
        space=embedder.space,
        features=embedder.feature_size,
        epoch_steps=1,
        class_names=proxies.names,
        hierarchy=None if card.hierarchy is None else Hierarchy.from_newick(card.hierarchy),
    )
    loss = objective.loss
    if not kept or not isinstance(loss, ClassVectors):
        return None
    loss.load_state_dict(kept)
    loss.eval().requires_grad_(False)
    return ClassScores(proxies.names, loss.class_scores)
