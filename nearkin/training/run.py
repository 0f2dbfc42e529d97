"""A run: one directory with the recipe, the log, the checkpoints, the audit and the report."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from nearkin.errors import RunError
from nearkin.lock import WriterLock
from nearkin.models import Embedder
from nearkin.recipe import Recipe, load_recipe
from nearkin.storage import storing, write_json
from nearkin.training.class_vectors import RunProxies, read_class_vectors
from nearkin.training.clusters import Clusters, read_clusters
from nearkin.training.logbook import read_rows
from nearkin.training.schedules.snapshots import read_snapshots


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
            raise RunError(f"{self.path} holds no run to resume: leave out --resume to start one.")
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
        return load_recipe(self.recipe_file)

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
        write_json(self.card_file, embedder.card)

    def history(self) -> list[dict[str, Any]]:
        """The rows of the training log."""
        return read_rows(self.log_file)

    def instances(self) -> list[dict[str, Tensor]]:
        """What chance-constrained training saw at the end of each instance; see `read_snapshots`."""
        return read_snapshots(self.instances_folder)

    def clusters(self) -> Clusters | None:
        """How the training classes lay at each validation, where the recipe asked for it (`training.cluster_items`)."""
        return read_clusters(self.path)

    def class_vectors(self) -> RunProxies | None:
        """The proxies of the training classes, where the loss had some."""
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
            # Not in audits of old.
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
