"""From a data set and a recipe to a trained model in a run directory."""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nearkin._version import __version__
from nearkin.data.audio import measured_bands
from nearkin.data.audio_augment import SpeedCopies
from nearkin.data.augment import BatchAugment, transform_for
from nearkin.data.dataset import Dataset
from nearkin.data.domain_splits import COLUMN
from nearkin.data.hierarchy import Hierarchy, load_hierarchy
from nearkin.data.splits import Split, resolve_split
from nearkin.errors import DataError, RecipeError
from nearkin.models import Embedder, FeatureCache, SimilarityModel, build_embedder, cache_point
from nearkin.models.card import Card, CardData, CardParts
from nearkin.models.embedder import ALL
from nearkin.models.section import KEPT, RANDOM
from nearkin.objectives import Objective, make_objective
from nearkin.objectives.proxy.bank import ClassVectors
from nearkin.objectives.similarity import LEARNED_SIMILARITY
from nearkin.recipe import Recipe, TrainingSection
from nearkin.recipe.sections import AUTO_PRECISION
from nearkin.training.batch_norm import learning_norms
from nearkin.training.batches import (
    Batches,
    BatchSampler,
    CachedBatches,
    DecodedBatches,
    TrainingPool,
    classes_in_batch,
    make_sampler,
)
from nearkin.training.clusters import ClusterWatch, HierarchyWatch, check_clusters
from nearkin.training.forecast import check_memory, choose_precision, naming_full_memory
from nearkin.training.loop import Loop, LoopState
from nearkin.training.ranks import Ranks, check_accelerator
from nearkin.training.run import Run, write_class_vectors
from nearkin.training.start import (
    Gain,
    RunStart,
    measure_gain,
    measure_start,
    per_query,
    resize_head,
    start_model,
    start_proxies,
)
from nearkin.training.strategies.base import ACCURACY, check_schedule, make_schedule
from nearkin.training.validation import Validation, ValidationInputs, check_validation, compared_scores

Encode = Callable[[Embedder], np.ndarray]
"""From a model to its embeddings (n, d) of the validation items."""


@dataclass(frozen=True)
class TrainingResult:
    """What training gives back; a loss that can name classes is as it was with the weights that validated best."""

    embedder: Embedder
    objective: Objective
    state: LoopState
    interrupted: bool
    gain: Gain | None = None


class Learner(NamedTuple):
    """What learns, what it minimises, and the classes of a batch."""

    embedder: Embedder
    objective: Objective
    batch_classes: int


@dataclass(frozen=True, eq=False)
class TrainingSetup:
    """What is fixed in a run; the arguments are those of `train`."""

    dataset: Dataset
    recipe: Recipe
    run: Run
    split: Split
    ranks: Ranks
    source: str
    notes: Sequence[str]
    resume: bool
    progress: bool

    @cached_property
    def items(self) -> Dataset:
        """The training items, of recordings also their copies at other speeds."""
        items, speeds = self.dataset.select(self.split.train), self.recipe.data.audio.speeds
        return SpeedCopies(items, speeds) if speeds else items

    @cached_property
    def class_ids(self) -> np.ndarray:
        """Class of each training item as 0 ... C - 1, (n,)."""
        return self.items.class_ids()

    @cached_property
    def validation_labels(self) -> np.ndarray:
        """Class name of each validation item, (m,)."""
        return self.dataset.labels[self.split.val]

    @cached_property
    def hierarchy(self) -> Hierarchy | None:
        """The class tree, if the recipe names one."""
        name = self.recipe.data.hierarchy
        return None if name is None else load_hierarchy(name)

    @cached_property
    def fingerprint(self) -> str:
        """Of the whole data set."""
        return self.dataset.fingerprint()

    @cached_property
    def resumes(self) -> bool:
        """Whether a checkpoint is continued; asked before training writes one."""
        return self.resume and self.run.state_file.exists()

    def learner(self, embedder: Embedder | None = None) -> Learner:
        """What learns, and what it minimises: a new model, or one whose head has got another size."""
        return make_learner(
            self.recipe,
            self.dataset.kind,
            len(self.items.classes),
            validated=len(self.split.val) > 0,
            processes=self.ranks.world_size,
            items=len(self.items),
            class_names=self.items.classes,
            hierarchy=self.hierarchy,
            embedder=embedder,
        )

    def rates(self, embedder: Embedder) -> dict[str, Any]:
        """The head's rate, and for what it was lowered: few classes or items could undo a fitted start.

        They could where the whole backbone is frozen. Where some of it learns, the start is only the first of many
        things that change, and the recipe's rate was chosen for that.
        """
        section = self.recipe.training
        wanted = [
            (len(self.items.classes), section.full_rate_classes, "classes"),
            (len(self.items), section.full_rate_items, "items"),
        ]
        shares = [(there / full, f"{there} {what}") for there, full, what in wanted if full and there < full]
        frozen = len(embedder.frozen_stages) == len(embedder.backbone.stages)
        if not shares or not frozen or self.recipe.model.head_start == RANDOM:
            return {"lr": section.lr, "lr_lowered_for": ""}
        share, of = min(shares)
        return {"lr": section.lr * share**2, "lr_lowered_for": of}

    def section(self, embedder: Embedder) -> TrainingSection:
        """The recipe's training section with the rate of `rates`."""
        return self.recipe.training.model_copy(update={"lr": self.rates(embedder)["lr"]})


def train(
    dataset: Dataset,
    recipe: Recipe,
    run: Run,
    *,
    source: str,
    cache_directory: Path,
    notes: Sequence[str] = (),
    resume: bool = False,
    progress: bool = True,
    split: Split | None = None,
    ranks: Ranks | None = None,
    features: FeatureCache | None = None,
) -> TrainingResult:
    """Train on some classes of a data set, validate on others, hold out the rest for the audit.

    Args:
        dataset: all items; the recipe's data section says how its classes are split.
        recipe: the validated recipe.
        run: where everything is written.
        source: what the user called the data, for the card.
        cache_directory: where feature caches are kept.
        notes: remarks on the data for the card, such as how many files were left out.
        resume: continue the run that is there.
        progress: whether to show bars.
        split: which items train, validate and are held out; default: as the recipe says.
        ranks: the processes that train together, each of which calls this; default: this one only.
        features: of all items of the data set, if the recipe caches features; default: compute those needed.
    """
    ranks = Ranks() if ranks is None else ranks
    split = resolve_split(dataset.manifest, recipe.data, recipe.training.seed) if split is None else split
    setup = TrainingSetup(dataset, recipe, run, split, ranks, source, notes, resume, progress and ranks.is_first)
    learner = setup.learner()
    embedder = learner.embedder
    check_fine_tuning(recipe)
    check_speeds(recipe)
    sampler = make_sampler(recipe, setup.class_ids, learner.batch_classes, ranks)
    classified = _classifier(recipe, learner.objective) is not None
    check_validation(recipe, setup.validation_labels, classified=classified)
    # Every process looks before the first one writes: afterwards the directory exists.
    run.check(recipe, resume)
    start = RunStart.load(run.start_file, recipe.model.head_start != RANDOM) if setup.resumes else RunStart()
    dimension = embedder.dimension
    if start.head is not None:
        resize_head(embedder, start.head["dimension"])
    if recipe.training.cluster_items is not None:
        check_clusters(run.path, setup.items.classes, embedder.dimension)
    # Before they meet: a process that is refused leaves no other waiting.
    with run.held() if ranks.is_first else nullcontext():
        ranks.meet(ranks.accelerator(recipe.training.accelerator))
        if not any(parameter.requires_grad for parameter in embedder.parameters()):
            return _keep_untrained(setup, learner)
        if embedder.spec.bands == "standardised" and not embedder.spec.is_measured:
            embedder.take(measured_bands(embedder.spec, setup.items))
        batches, encode = _feed(setup, embedder, sampler, cache_directory, features)
        pool = TrainingPool(batches, embedder, setup.class_ids, recipe.training.seed)
        own = learner.batch_classes * recipe.data.per_class // ranks.world_size
        check_memory(embedder, batches, recipe.training, _device(setup), own, recipe.data.per_class)
        if not setup.resumes:
            start = _begin(setup, embedder, pool, encode)
        if embedder.dimension != dimension:
            learner = setup.learner(embedder)
        if recipe.objective.proxy_start == "prototypes" and not setup.resumes:
            start_proxies(learner.objective, pool)
        if ranks.is_first:
            run.prepare(recipe, resume)
            if not run.state_file.exists():
                start.save(run.start_file)
        loop = _make_loop(setup, learner, pool, encode, start)
        loop.train(resume=resume, known=start.raw_values())
        return _keep(setup, learner, loop, start, encode)


def _keep_untrained(setup: TrainingSetup, learner: Learner) -> TrainingResult:
    """Keep a model that has nothing to learn."""
    learner.embedder.card = _make_card(setup, learner.embedder, LoopState(), {}, finished=True)
    if setup.ranks.is_first:
        setup.run.prepare(setup.recipe, setup.resume)
        setup.run.save_model(learner.embedder)
    setup.ranks.await_first()
    return TrainingResult(learner.embedder, learner.objective, LoopState(), interrupted=False)


def _feed(
    setup: TrainingSetup,
    embedder: Embedder,
    sampler: BatchSampler,
    cache_directory: Path,
    features: FeatureCache | None,
) -> tuple[Batches, Encode | None]:
    """The batches, and how a model embeds validation items, if any: from the feature cache if there is one."""
    recipe, split, seed = setup.recipe, setup.split, setup.recipe.training.seed
    validated = len(split.val) > 0
    if not recipe.model.cache:
        transform = transform_for(embedder.spec, recipe.data, train=True, items=setup.items)
        augment = BatchAugment.for_section(embedder.spec, recipe.data, seed)
        view = transform_for(embedder.spec, recipe.data, train=False)
        decoded = DecodedBatches(
            setup.items, setup.class_ids, transform, augment, view, sampler, seed, recipe.data.workers
        )
        inputs = ValidationInputs(setup.dataset.select(split.val), embedder.spec)
        return decoded, inputs.encode if validated else None
    cache, train_rows, val_rows = features, split.train, split.val
    if cache is None:
        # In the data's own order, so that another choice of validation classes finds the same cache.
        used = np.sort(np.concatenate([split.train, split.val]))
        train_rows, val_rows = np.searchsorted(used, split.train), np.searchsorted(used, split.val)
        cache = setup.ranks.in_turn(
            lambda: FeatureCache.build(
                embedder,
                setup.dataset.select(used),
                at=cache_point(embedder),
                views=recipe.model.cache_views,
                dtype=recipe.model.cache_dtype,
                directory=cache_directory,
                progress=setup.progress,  # the crops' own seed stays 0: runs that differ in their seed share the cache
            )
        )
    batches = CachedBatches(cache, train_rows, setup.class_ids, sampler, seed)
    return batches, partial(cache.encode, indices=val_rows) if validated else None


def _begin(setup: TrainingSetup, embedder: Embedder, pool: TrainingPool, encode: Encode | None) -> RunStart:
    """Give the model its first weights, and measure what it and the raw features are worth."""
    recipe, ranks, start = setup.recipe, setup.ranks, RunStart()
    with naming_full_memory():
        begun = start_model(embedder, pool, recipe.model, recipe.training.seed, setup.progress, ranks)
        if encode is not None and ranks.is_first:
            start = measure_start(embedder, setup.validation_labels, encode, recipe.model.knows_something)
    head = None if begun is None else begun.to_dict()
    if recipe.model.head_start == KEPT:
        head = {"kind": KEPT, "file": recipe.model.start, "dimension": embedder.dimension}
    if head is not None:
        head |= setup.rates(embedder)
    precision = None
    if recipe.training.precision == AUTO_PRECISION:
        chosen = choose_precision(embedder, pool.batches, len(setup.items), _device(setup))
        precision = ranks.broadcast_object(chosen)
    return replace(ranks.broadcast_object(start), head=head, precision=precision)


def _device(setup: TrainingSetup) -> torch.device:
    """Where this process will train."""
    kind = setup.ranks.accelerator(setup.recipe.training.accelerator)
    if kind in ("auto", "gpu") and torch.cuda.is_available():
        return torch.device("cuda", setup.ranks.local_rank)
    return torch.device("mps" if kind != "cpu" and torch.backends.mps.is_available() else "cpu")


def _make_loop(
    setup: TrainingSetup, learner: Learner, pool: TrainingPool, encode: Encode | None, start: RunStart
) -> Loop:
    """The loop, with what validates and what watches the classes."""
    recipe, run, ranks, hierarchy = setup.recipe, setup.run, setup.ranks, setup.hierarchy
    embedder, objective, batch_classes = learner
    section = setup.section(embedder)
    if start.precision is not None:  # found when the run began, and kept by whoever resumes it
        section = section.model_copy(update={"precision": start.precision})
    classify = _classifier(recipe, objective)
    validate = None
    if encode is not None:
        validate = Validation(
            partial(encode, embedder),
            setup.validation_labels,
            recipe,
            embedder.space,
            representation=objective.representation,
            classify=classify,
            class_names=tuple(setup.items.classes),
        )
    schedule = make_schedule(recipe.training, pool, batch_classes * recipe.data.per_class, run.path, ranks)
    if recipe.training.select is not None:
        schedule.selection = f"val_{recipe.training.select}"
    elif classify is not None:
        schedule.selection = ACCURACY
    identity = {"data set": setup.fingerprint}
    if hierarchy is not None:
        identity["class tree"] = hierarchy.to_newick()  # the recipe has been compared with the run's own
    return Loop(
        embedder,
        objective,
        pool.batches,
        section,
        run,
        validate,
        schedule=schedule,
        identity=identity,
        progress=setup.progress,
        ranks=ranks,
        watch=_make_watch(setup, pool, objective),
    )


def _make_watch(
    setup: TrainingSetup, pool: TrainingPool, objective: Objective
) -> Callable[[int], dict[str, float]] | None:
    """What looks at the training classes at every validation, where the recipe asks for it."""
    section, space, names = setup.recipe.training, pool.embedder.space, setup.items.classes
    watches: list[ClusterWatch | HierarchyWatch] = []
    if section.cluster_items is not None:
        watches.append(ClusterWatch(setup.run.path, pool, space, names, section.cluster_items))
    if setup.hierarchy is not None:
        watches.append(HierarchyWatch(pool, objective, space, setup.hierarchy, names, section.hierarchy_items))
    if not watches:
        return None
    return lambda step: {name: value for watch in watches for name, value in watch.look(step).items()}


def _keep(setup: TrainingSetup, learner: Learner, loop: Loop, start: RunStart, encode: Encode | None) -> TrainingResult:
    """Write the best weights with their card, and measure what training added to the start."""
    (embedder, objective, _), ranks, state = learner, setup.ranks, loop.state
    values = ranks.broadcast_object(loop.best_values())
    gain = None
    if encode is not None and start.first is not None and ranks.is_first:
        best, _ = per_query(encode(embedder), setup.validation_labels, embedder.space)
        gain = measure_gain(start, best, state.best_step)
    compared = None
    if encode is not None and isinstance(embedder, SimilarityModel) and ranks.is_first and _unseen(setup):
        compared = compared_scores(encode(embedder), setup.validation_labels, embedder.space)
    card = _make_card(setup, embedder, state, values, loop.finished)
    told = None if gain is None else gain.to_dict()
    embedder.card = replace(card, start=start.head, gain=told, compared=compared)
    if ranks.is_first and (state.best_step or state.stale or not loop.interrupted):
        # Stopped before the first validation there is nothing worth keeping but the checkpoint.
        setup.run.save_model(embedder)
        if isinstance(objective.loss, ClassVectors):
            write_class_vectors(setup.run.path, setup.items.classes, objective.loss.class_vectors())
    ranks.await_first()  # whoever leaves early may have torchrun end the one that writes
    return TrainingResult(embedder, objective, state, loop.interrupted, gain)


def _unseen(setup: TrainingSetup) -> bool:
    """Whether the validation classes are others than those that train, with two items of one at least."""
    labels = setup.validation_labels
    return not setup.recipe.data.classes_are_seen and len(np.unique(labels)) < len(labels)


def _make_card(
    setup: TrainingSetup, embedder: Embedder, state: LoopState, validation: dict[str, float], finished: bool
) -> Card:
    """What is known of the model when training ends."""
    dataset, recipe, hierarchy = setup.dataset, setup.recipe, setup.hierarchy
    classes = _by_part(dataset.labels, setup.split)
    # A protocol may let the test classes choose the weights, and then everybody must know.
    selected_on = "test classes" if classes.val == classes.test else "validation classes"
    if recipe.data.classes_are_seen:
        selected_on = "other items of the same classes"
    return Card(
        started_from=embedder.card.started_from,
        recipe=recipe.model_dump(mode="json"),
        data=CardData(
            dataset.name, setup.source, dataset.kind, len(dataset), setup.fingerprint, notes=list(setup.notes)
        ),
        classes=classes,
        domains=_by_part(dataset.manifest.column(COLUMN), setup.split) if dataset.manifest.has(COLUMN) else None,
        selected_on=selected_on if classes.val else None,
        hierarchy=None if hierarchy is None else hierarchy.to_newick(),
        validation=validation,
        finished=finished,
        steps=state.step,
        best_step=state.best_step,
        averaged=state.averaged or None,
        seconds=round(state.seconds, 1),
        versions={"nearkin": __version__, "torch": torch.__version__, "python": platform.python_version()},
    )


def _by_part(names: np.ndarray, split: Split) -> CardParts:
    """Which of the names (n,) are in each part of a split."""
    return CardParts(*(sorted({str(name) for name in names[rows]}) for rows in (split.train, split.val, split.test)))


def _classifier(recipe: Recipe, objective: Objective) -> Callable[[Tensor], Tensor] | None:
    """What names validation items, where their classes are those that train and the loss has scores for them."""
    loss = objective.loss
    return loss.class_scores if recipe.data.classes_are_seen and isinstance(loss, ClassVectors) else None


def check_fine_tuning(recipe: Recipe) -> None:
    """Refuse to fine-tune a trunk that knows nothing."""
    model = recipe.model
    if model.frozen_batch_norm and not model.knows_something and model.freeze != ALL:
        raise RecipeError(
            "The recipe fine-tunes a trunk that has no weights yet (model.frozen_batch_norm keeps statistics that "
            "nothing has learned): set model.pretrained to true or model.weights to a run, or train from scratch with "
            "model.frozen_batch_norm=false."
        )


def check_speeds(recipe: Recipe) -> None:
    """Refuse copies at other speeds where classes are more than names, or items are rows of a cache."""
    if not recipe.data.audio.speeds:
        return
    for there, key in ((recipe.model.cache, "model.cache"), (recipe.data.hierarchy is not None, "data.hierarchy")):
        if there:
            raise RecipeError(f"data.audio.speeds makes new classes, which do not go with {key}: remove one of them.")


def make_learner(
    recipe: Recipe,
    kind: str,
    classes: int,
    *,
    validated: bool,
    processes: int = 1,
    items: int | None = None,
    class_names: Sequence[str] | None = None,
    hierarchy: Hierarchy | None = None,
    embedder: Embedder | None = None,
) -> Learner:
    """What learns, what it minimises, and the classes of a batch; refuse a recipe that could not be trained.

    Args:
        recipe: the validated recipe.
        kind: what the data is, "image" or "audio".
        classes: how many classes train.
        validated: whether there are validation classes.
        processes: how many train together.
        items: how many items train; None: one of each class, enough to see whether the recipe can be trained.
        class_names: of these classes; needed with a tree.
        hierarchy: a tree over the classes, where there is one.
        embedder: what learns; None: a new model, as the recipe describes it.
    """
    check_accelerator(recipe.training.accelerator)
    section = recipe.training
    check_similarity(recipe)
    names = list(map(str, range(classes))) if class_names is None else class_names
    if embedder is None:
        dense = recipe.objective.parameters.get("auxiliary_weight", 1.0) > 0
        data = recipe.data
        embedder = build_embedder(recipe.model, section.seed, data.audio_seconds, names, dense, data.audio)
    if embedder.spec.kind != kind:
        raise DataError(
            f"The backbone '{recipe.model.backbone}' takes {embedder.spec.kind} and the data is {kind}: choose a "
            f"recipe whose backbone takes {kind}."
        )
    # An episode of fewer classes would be another task: the sampler refuses it.
    batch_classes = recipe.data.classes_per_batch
    if section.schedule != "episodic":
        batch_classes = classes_in_batch(batch_classes, classes, processes)
    elif processes > 1 and not section.sync_batch_norm and learning_norms(embedder):
        raise RecipeError(
            f"{processes} processes each see only some classes of an episode, so trainable batch norm would normalise "
            "away what tells the classes apart: set training.sync_batch_norm to true, or start one process."
        )
    objective = make_objective(
        recipe.objective,
        dimension=embedder.dimension,
        classes=classes,
        space=embedder.space,
        seed=section.seed,
        features=embedder.feature_size,
        epoch_steps=math.ceil((items or classes) / (batch_classes * recipe.data.per_class)),
        episode=(section.episodic.shot, section.episodic.query) if section.schedule == "episodic" else None,
        class_names=names,
        hierarchy=hierarchy,
        similarity=embedder.parts if isinstance(embedder, SimilarityModel) else None,
    )
    objective.check_batch(batch_classes, recipe.data.per_class)
    _check_regularisers(recipe, embedder, objective)
    check_schedule(section, objective, validated, embedder.spec, recipe.model.cache)
    return Learner(embedder, objective, batch_classes)


def check_similarity(recipe: Recipe) -> None:
    """Refuse a learned similarity without the loss that teaches it, and that loss without a similarity to teach."""
    loss, has_similarity = recipe.objective.loss, recipe.model.similarity is not None
    if has_similarity and loss != LEARNED_SIMILARITY:
        raise RecipeError(
            f"The loss '{loss}' does not train a similarity: set objective.loss to '{LEARNED_SIMILARITY}', or "
            "model.similarity to null."
        )
    if loss == LEARNED_SIMILARITY and not has_similarity:
        raise RecipeError(
            f"The loss '{loss}' trains a similarity, but the model has none: set model.similarity to {{}}."
        )
    if not has_similarity and recipe.model.space_parameters.get("radius", 1) != 1:
        raise RecipeError(
            f"model.space_parameters.radius is for a learned similarity, and the loss '{loss}' goes by directions: set "
            "it to 1."
        )
    for name in ("ema", "average_best"):
        if has_similarity and getattr(recipe.training, name):
            raise RecipeError(
                "Averaged weights would not fit the prototypes of a learned similarity, which follow the current "
                f"weights: set training.{name} to null."
            )


def _check_regularisers(recipe: Recipe, embedder: Embedder, objective: Objective) -> None:
    """Refuse regularisers that the model has nothing for, or that could not change it."""
    for name in objective.takers("attributes"):
        if not embedder.pooling.gives_attributes:
            raise RecipeError(
                f"The regulariser '{name}' needs attributes, which the pooling '{recipe.model.pooling}' does not give: "
                "set model.pooling to 'gsp', whose budget of 1 is average pooling."
            )
    learned = {id(parameter) for parameter in embedder.parameters() if parameter.requires_grad}
    less = "freeze less (model.freeze; null needs model.cache: false as well)"
    attend = "add model.attention" if embedder.attention is None else "give model.attention another score"
    if objective.weights and not learned:
        name = next(iter(objective.weights))
        raise RecipeError(
            f"The regulariser '{name}' has nothing to train, because the whole model is frozen: set model.dimension, "
            f"{attend}, or {less}."
        )
    for name in objective.takers("features"):
        if learned <= {id(parameter) for parameter in embedder.head.parameters()}:
            raise RecipeError(
                f"The regulariser '{name}' acts on what makes the features before the head, and all of that is "
                f"frozen: set its parameter vectors to embeddings, {attend}, or {less}."
            )
