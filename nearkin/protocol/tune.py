"""A search for the settings of a recipe: trials, each trained and judged on the validation classes; one file of them.

Optuna proposes the values of a trial from those before. What is proposed is written down before it is trained and what
came of it afterwards, a line each in `trials.jsonl`, so a search that was killed goes on with the trial, and the step,
where it was. The test classes are never looked at.
"""

from __future__ import annotations

import csv
import io
import json
import math
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from nearkin.data.dataset import Dataset
from nearkin.data.hierarchy import load_hierarchy
from nearkin.data.splits import Split, resolve_split
from nearkin.errors import (
    CheckpointError,
    DataError,
    ModelError,
    RecipeError,
    RunError,
    TrainingError,
    UnknownNameError,
    require,
    suggestion,
)
from nearkin.objectives.proxy.bank import ClassVectors
from nearkin.objectives.registry import mixed_seed
from nearkin.progress import say
from nearkin.protocol.search_space import NumberRange, SearchSpace, Value, all_values, as_written, assignments
from nearkin.recipe import Recipe, load_recipe
from nearkin.report.trials import draw_trials
from nearkin.storage import WriterLock, replacing, storing, write_json, write_text
from nearkin.training import Run, train
from nearkin.training.batches import make_sampler
from nearkin.training.fit import check_fine_tuning, make_learner
from nearkin.training.validation import check_validation

SamplerName = Literal["tpe", "gp", "random", "grid"]

_EXTRA = "tune"


def sampler_named(name: str) -> SamplerName:
    """The sampler of a name."""
    known: tuple[SamplerName, ...] = get_args(SamplerName)
    for one in known:
        if one == name:
            return one
    raise UnknownNameError(f"There is no sampler '{name}'.{suggestion(name, known)}")


@dataclass(frozen=True)
class TuningTrial:
    """One set of values, and what came of it.

    Args:
        number: its place in the search, from 0.
        values: key of the recipe to value.
        score: the validation metric that chooses, of the best weights, averaged over the seeds; None: not known.
        scores: of each seed.
        seconds: spent on training.
        failure: why there is no score; empty if there is one, or the trial has not ended.
    """

    number: int
    values: dict[str, Value]
    score: float | None = None
    scores: tuple[float, ...] = ()
    seconds: float = 0.0
    failure: str = ""

    @property
    def ended(self) -> bool:
        """Whether there is anything left to do."""
        return self.score is not None or bool(self.failure)


@dataclass(frozen=True)
class TuningResult:
    """What came of a search.

    Args:
        trials: those that ended, in their order.
        metric: what they were judged by.
        interrupted: whether the search was stopped; the same call resumes it.
        recipe: of the best trial; None if no trial has a score.
    """

    trials: tuple[TuningTrial, ...]
    metric: str
    interrupted: bool = False
    recipe: Recipe | None = None

    @property
    def best(self) -> TuningTrial | None:
        """The trial of the highest score, the first of equals."""
        return max((one for one in self.trials if one.score is not None), key=_score, default=None)


def _score(trial: TuningTrial) -> float:
    return -math.inf if trial.score is None else trial.score


class TrialBook:
    """The directory of a search.

    Args:
        path: `search.json` says what is searched, `trials.jsonl` what was found; `runs/` has what is being trained.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.search_file = path / "search.json"
        self.trials_file = path / "trials.jsonl"
        self.table_file = path / "trials.csv"
        self.picture_file = path / "trials.png"
        self.recipe_file = path / "best.yaml"

    def run(self, number: int, seed: int) -> Run:
        """Where a trial is trained with a seed."""
        return Run(self.path / "runs" / f"trial{number:04d}-seed{seed}")

    def begin(self, search: dict[str, Any]) -> None:
        """Write down what is searched, or refuse to go on with something else."""
        if not self.search_file.exists():
            if any(entry.name != "writer.lock" for entry in self.path.iterdir()):
                raise RunError(f"{self.path} has files that are no search: choose another directory with --out.")
            write_json(self.search_file, search)
            return
        try:
            stored = json.loads(self.search_file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise RunError(f"{self.search_file} is damaged: begin a new search in another directory.") from error
        for name in search:
            if stored.get(name) != search[name]:
                raise RunError(
                    f"{self.path} is a search with another {name}: repeat the command it was started with "
                    "(see search.json; only the number of trials may grow), or choose another directory with --out."
                )

    def trials(self) -> list[TuningTrial]:
        """All trials by number; of each the last line counts. A line that a crash cut short is dropped."""
        found: dict[int, TuningTrial] = {}
        lines = self.trials_file.read_text(encoding="utf-8").splitlines() if self.trials_file.exists() else []
        for number, line in enumerate(lines, start=1):
            try:
                row = json.loads(line)
                one = TuningTrial(**{**row, "scores": tuple(row.get("scores", ()))})
            except (ValueError, TypeError) as error:
                if number == len(lines):
                    break
                raise RunError(f"{self.trials_file}, line {number}, is no trial: delete or fix that line.") from error
            found[one.number] = one
        return [found[number] for number in sorted(found)]

    def note(self, trial: TuningTrial) -> None:
        """Add what is now known of a trial, once it is safely on disk."""
        rows = {one.number: one for one in self.trials()} | {trial.number: trial}
        text = "".join(json.dumps(asdict(rows[number])) + "\n" for number in sorted(rows))
        write_text(self.trials_file, text)

    def drop_runs(self, number: int) -> None:
        """Remove what a trial left, once its score is noted."""
        for folder in (self.path / "runs").glob(f"trial{number:04d}-seed*"):
            shutil.rmtree(folder, ignore_errors=True)

    def show(self, space: SearchSpace, result: TuningResult) -> None:
        """Write table, picture and best recipe."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["trial", *(one.key for one in space), result.metric, "seconds", "failure"])
        for trial in result.trials:
            values = [trial.values.get(one.key) for one in space]
            writer.writerow([trial.number, *values, trial.score, round(trial.seconds, 1), trial.failure])
        write_text(self.table_file, text.getvalue())
        if result.recipe is not None:
            result.recipe.save(self.recipe_file)
            told = [one for one in result.trials if one.score is not None]
            logs = {one.key for one in space if isinstance(one, NumberRange) and one.log}
            settings = {one.key: [trial.values[one.key] for trial in told] for one in space}
            picture = draw_trials([_score(one) for one in told], settings, logs, metric=result.metric)
            with replacing(self.picture_file) as temporary:
                temporary.write_bytes(picture)


@dataclass(eq=False)
class Proposer:
    """Proposes the values of the next trial, as a function of the seed, its number and the trials before it.

    Args:
        space: what may be chosen.
        sampler: "tpe": tree-structured Parzen estimator; "gp": a Gaussian process; "random"; "grid": every combination
            of lists of values, in order.
        seed: of what is drawn.
    """

    space: SearchSpace
    sampler: SamplerName = "tpe"
    seed: int = 0
    grid: list[dict[str, Value]] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        if self.sampler == "grid":
            self.grid = list(all_values(self.space))
        else:
            require("optuna", _EXTRA)

    def __call__(self, before: Sequence[TuningTrial]) -> dict[str, Value] | None:
        """The values of the trial after those before it; None where a grid has no more."""
        if self.sampler == "grid":
            return self.grid[len(before)] if len(before) < len(self.grid) else None
        optuna: Any = require("optuna", _EXTRA)
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        distributions = {one.key: self._distribution(one) for one in self.space}
        seed = mixed_seed(self.seed, len(before)) % 2**32
        study = optuna.create_study(direction="maximize", sampler=self._sampler(optuna, seed))
        for trial in before:
            state = optuna.trial.TrialState.FAIL if trial.score is None else optuna.trial.TrialState.COMPLETE
            study.add_trial(
                optuna.trial.create_trial(
                    params=self._indices(trial.values), distributions=distributions, value=trial.score, state=state
                )
            )
        asked = study.ask(fixed_distributions=distributions).params
        return {
            one.key: asked[one.key] if isinstance(one, NumberRange) else one.values[asked[one.key]]
            for one in self.space
        }

    def _distribution(self, one: Any) -> Any:
        optuna: Any = require("optuna", _EXTRA)
        if not isinstance(one, NumberRange):  # places in the list: true and 1 are then different values
            return optuna.distributions.CategoricalDistribution(list(range(len(one.values))))
        kind = optuna.distributions.IntDistribution if one.whole else optuna.distributions.FloatDistribution
        return kind(one.low, one.high, log=one.log)

    def _indices(self, values: Mapping[str, Value]) -> dict[str, Any]:
        return {
            one.key: values[one.key]
            if isinstance(one, NumberRange)
            else [repr(value) for value in one.values].index(repr(values[one.key]))
            for one in self.space
        }

    def _sampler(self, optuna: Any, seed: int) -> Any:
        if self.sampler == "gp":
            return optuna.samplers.GPSampler(seed=seed)
        if self.sampler == "random":
            return optuna.samplers.RandomSampler(seed=seed)
        return optuna.samplers.TPESampler(seed=seed)


def run_tuning(
    dataset: Dataset,
    recipe: str | Path | Recipe,
    space: SearchSpace,
    out: str | Path,
    *,
    cache_directory: Path,
    trials: int = 20,
    seeds: int = 1,
    sampler: SamplerName = "tpe",
    seed: int = 0,
    overrides: Sequence[str] = (),
    source: str = "",
    notes: Sequence[str] = (),
    keep_runs: bool = False,
    progress: bool = True,
) -> TuningResult:
    """Search for the values of some keys of a recipe that validate best; the same call goes on with a stopped search.

    Args:
        dataset: all the data; the recipe says which classes train, validate and are held out.
        recipe: name, file or Recipe.
        space: what may be changed; see `parse_space`.
        out: directory of the search.
        cache_directory: where features of frozen backbones are kept.
        trials: how many in all, those of earlier calls included.
        seeds: models of each trial, whose mean counts; their seeds follow the recipe's.
        sampler: "tpe", "gp", "random" or "grid".
        seed: of what is proposed.
        overrides: changes to the recipe that hold for every trial.
        source: what the user called the data.
        notes: remarks on the data, for the cards.
        keep_runs: whether the run directories stay when their trial has a score.
        progress: whether to show bars, and a line a trial.
    """
    if trials < 1 or seeds < 1:
        raise RecipeError(f"A search needs at least one trial and one seed, not {trials} and {seeds}.")
    base = load_recipe(recipe, list(overrides), source)
    split = resolve_split(dataset.manifest, base.data, base.training.seed)
    around = (source, tuple(notes), seeds, cache_directory, progress)
    made = _Search(dataset, split, recipe, space, tuple(overrides), *around)
    metric = made.check(base)
    proposer = Proposer(space, sampler, seed)
    book = TrialBook(Path(out))
    with storing(book.path):
        book.path.mkdir(parents=True, exist_ok=True)
    with WriterLock(book.path).held():
        book.begin(
            {
                "data": dataset.fingerprint(),
                "recipe": base.model_dump(mode="json"),
                "space": as_written(space),
                "sampler": sampler,
                "seed": seed,
                "seeds": seeds,
            }
        )
        interrupted = _go_on(made, book, proposer, trials, keep_runs)
        ended = tuple(one for one in book.trials() if one.ended)
        result = TuningResult(ended, metric, interrupted)
        if result.best is not None:
            result = replace(result, recipe=made.recipe_of(result.best.values))
        book.show(space, result)
    if not interrupted and result.best is None:
        raise TrainingError(f"No trial could be trained; the first failed like this: {ended[0].failure}")
    return result


def _go_on(search: _Search, book: TrialBook, proposer: Proposer, trials: int, keep_runs: bool) -> bool:
    """Do the trials that are missing; whether the search was stopped."""
    known = book.trials()
    for number in range(trials):
        trial = known[number] if number < len(known) else None
        if trial is None:
            values = proposer(known)
            if values is None:
                return False
            trial = TuningTrial(number, values)
            book.note(trial)
            known.append(trial)
        if not trial.ended:
            done = search.run(trial, book)
            if done is None:
                return True
            book.note(done)
            known[number] = done
            told = f"failed: {done.failure}" if done.score is None else f"{done.score:.4f}"
            say(f"Trial {number + 1} of {trials}: {', '.join(assignments(done.values))}: {told}", search.progress)
        if not keep_runs:
            book.drop_runs(number)
    return False


@dataclass(frozen=True)
class _Search:
    """What all trials share: the split, too, whatever their seeds; the other arguments are those of `run_tuning`."""

    dataset: Dataset
    split: Split
    recipe: str | Path | Recipe
    space: SearchSpace
    overrides: tuple[str, ...]
    source: str
    notes: tuple[str, ...]
    seeds: int
    cache_directory: Path
    progress: bool

    def recipe_of(self, values: Mapping[str, Value]) -> Recipe:
        """The recipe of a trial."""
        return load_recipe(self.recipe, [*self.overrides, *assignments(values)], self.source)

    def check(self, base: Recipe) -> str:
        """Refuse, before anything is trained, what cannot be searched; what the trials are judged by."""
        if not len(self.split.val):
            raise RecipeError(
                "A search chooses by the validation classes, and there are none: set data.val_classes above 0."
            )
        metric = self.trainable(base)
        given = [key.partition("=")[0].strip() for key in self.overrides]
        for one in self.space:
            if one.key in ("training.seed", "name") or one.key.split(".")[0] == "audit":
                raise RecipeError(f"{one.key} changes no model that could be chosen: take it out of the space.")
            if one.key in given:
                raise RecipeError(f"{one.key} is both set and searched: drop --set {one.key}, or its space.")
            for value in one.ends:
                try:
                    recipe = self.recipe_of({one.key: value})
                    measured = self.trainable(recipe)
                except (DataError, ModelError, RecipeError, UnknownNameError) as error:
                    raise RecipeError(
                        f"The space of {one.key} holds {json.dumps(value)}, which does not work: {error}"
                    ) from error
                split = resolve_split(self.dataset.manifest, recipe.data, base.training.seed)
                if measured != metric or not _same(split, self.split):
                    raise RecipeError(
                        f"{one.key} changes what trials are judged by or on, so they could not be compared: take it "
                        "out of the space."
                    )
        return metric

    def trainable(self, recipe: Recipe) -> str:
        """What the trials of a recipe are judged by; refuse one that could not be trained."""
        check_fine_tuning(recipe)
        items = self.dataset.select(self.split.train)
        tree = None if recipe.data.hierarchy is None else load_hierarchy(recipe.data.hierarchy)
        names = items.classes
        learner = make_learner(recipe, items.kind, len(names), validated=True, class_names=names, hierarchy=tree)
        make_sampler(recipe, items.class_ids(), learner.batch_classes)
        classified = recipe.data.classes_are_seen and isinstance(learner.objective.loss, ClassVectors)
        check_validation(recipe, self.dataset.labels[self.split.val], classified=classified)
        usual = "accuracy" if classified or recipe.training.schedule == "episodic" else "MAP@R"
        return recipe.training.select or usual

    def run(self, trial: TuningTrial, book: TrialBook) -> TuningTrial | None:
        """Train a trial and score it; None if it was stopped."""
        began, scores = time.monotonic(), []
        try:
            recipe = self.recipe_of(trial.values)
            for number in range(self.seeds):
                seed = recipe.training.seed + number
                score = self._score(recipe, book.run(trial.number, seed), seed)
                if score is None:
                    return None
                scores.append(score)
        except (DataError, ModelError, RecipeError, TrainingError, UnknownNameError) as error:
            return replace(trial, failure=str(error), seconds=time.monotonic() - began)
        mean = sum(scores) / len(scores)
        return replace(trial, score=mean, scores=tuple(scores), seconds=time.monotonic() - began)

    def _score(self, recipe: Recipe, run: Run, seed: int) -> float | None:
        """What the best weights of a run validate at; None if it was stopped."""
        seeded = recipe.model_copy(update={"training": recipe.training.model_copy(update={"seed": seed})})
        if run.recipe_file.exists():
            with suppress(CheckpointError, RunError):  # a damaged run costs its steps, not the search
                return self._fit(seeded, run, resume=True)
        shutil.rmtree(run.path, ignore_errors=True)
        return self._fit(seeded, run, resume=False)

    def _fit(self, recipe: Recipe, run: Run, resume: bool) -> float | None:
        result = train(
            self.dataset,
            recipe,
            run,
            source=self.source,
            cache_directory=self.cache_directory,
            notes=self.notes,
            resume=resume,
            progress=self.progress,
            split=self.split,
        )
        return None if result.interrupted else float(result.state.best_value)


def _same(one: Split, other: Split) -> bool:
    return all(np.array_equal(getattr(one, part), getattr(other, part)) for part in ("train", "val", "test"))
