"""From a data set and a recipe to a trained model in a run directory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from torch import Tensor

from nearkin.data.augment import BatchAugment, transform_for
from nearkin.data.dataset import Dataset
from nearkin.data.episodes import EpisodeBatchSampler
from nearkin.data.hierarchy import Hierarchy
from nearkin.data.hierarchy_files import load_hierarchy
from nearkin.data.samplers import BalancedBatchSampler
from nearkin.data.splits import Split, resolve_split
from nearkin.errors import DataError, RecipeError
from nearkin.models import Embedder, FeatureCache, SimilarityModel, build_embedder, cache_point
from nearkin.models.section import RANDOM
from nearkin.objectives import Objective, make_objective
from nearkin.objectives.proxy.protocols import ClassVectors
from nearkin.objectives.similarity import LEARNED_SIMILARITY
from nearkin.recipe import Recipe, TrainingSection
from nearkin.training.batch_norm import learning_norms
from nearkin.training.batches import Batches, BatchSampler, CachedBatches, DecodedBatches
from nearkin.training.card import make_card, started_from
from nearkin.training.class_vectors import write_class_vectors
from nearkin.training.clusters import check_clusters
from nearkin.training.fabric import check_accelerator
from nearkin.training.gain import Gain, measure_gain
from nearkin.training.loop import Loop, LoopState
from nearkin.training.ranks import Ranks
from nearkin.training.run import Run
from nearkin.training.schedules import make_schedule
from nearkin.training.schedules.base import ACCURACY
from nearkin.training.schedules.episodic import representation_of
from nearkin.training.schedules.make import check_schedule
from nearkin.training.schedules.pool import Pool
from nearkin.training.start import RunStart, measure_start, per_query, resize_head, start_model, start_proxies
from nearkin.training.validation import Validation, check_validation
from nearkin.training.validation_inputs import ValidationInputs
from nearkin.training.watching import make_watch


@dataclass(frozen=True)
class TrainingResult:
    """What training gives back; a loss that can name classes is as it was with the weights that validated best."""

    embedder: Embedder
    objective: Objective
    state: LoopState
    interrupted: bool
    gain: Gain | None = None


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
        notes: what the card shall say about the data, such as how many files were left out.
        resume: continue the run that is there.
        progress: whether to show bars.
        split: which items train, validate and are held out; None: what the recipe says.
        ranks: the processes that train together, each of which calls this; None: this one only.
        features: of all items of the data set, where the recipe has them cached; None: those in need are computed.
    """
    ranks = Ranks() if ranks is None else ranks
    progress = progress and ranks.is_first
    seed = recipe.training.seed
    split = resolve_split(dataset.manifest, recipe.data, seed) if split is None else split
    train_set = dataset.select(split.train)
    hierarchy = None if recipe.data.hierarchy is None else load_hierarchy(recipe.data.hierarchy)
    embedder, objective, batch_classes = make_learner(
        recipe,
        dataset.kind,
        len(train_set.classes),
        validated=len(split.val) > 0,
        processes=ranks.world_size,
        items=len(train_set),
        class_names=train_set.classes,
        hierarchy=hierarchy,
    )
    dimension = embedder.dimension
    sampler = make_sampler(recipe, train_set.class_ids(), batch_classes, ranks)
    held = dataset.labels[split.val]
    check_validation(recipe, held, classified=_classifier(recipe, objective) is not None)
    # Every process looks before the first one writes: afterwards the directory exists.
    run.check(recipe, resume)
    goes_on = resume and run.state_file.exists()
    start = RunStart.load(run.start_file) if goes_on else RunStart()
    if start.head is not None:
        resize_head(embedder, start.head["dimension"])
    if recipe.training.cluster_items is not None:
        check_clusters(run.path, train_set.classes, embedder.dimension)
    # Before they meet: a process that is refused leaves no other waiting.
    with run.held() if ranks.is_first else nullcontext():
        ranks.meet(ranks.accelerator(recipe.training.accelerator))
        fingerprint = dataset.fingerprint()
        if not any(parameter.requires_grad for parameter in embedder.parameters()):
            card = make_card(dataset, split, recipe, LoopState(), source, fingerprint, notes, {}, hierarchy)
            embedder.card = started_from(embedder) | card
            if ranks.is_first:
                run.prepare(recipe, resume)
                run.save_model(embedder)
            ranks.await_first()
            return TrainingResult(embedder, objective, LoopState(), interrupted=False)
        batches, encode = _plumb(
            dataset, split, train_set, embedder, recipe, sampler, cache_directory, progress, ranks, features
        )
        pool = Pool(batches, embedder, train_set.class_ids(), seed)
        section = _training_section(recipe, len(train_set.classes), len(train_set))
        if not goes_on:
            begun = start_model(embedder, pool, recipe.model, seed, progress, ranks)
            if encode is not None and ranks.is_first:
                start = measure_start(embedder, held, encode, recipe.model.knows_something)
            head = None if begun is None else begun.to_dict() | {"lr": section.lr}
            start = replace(ranks.broadcast_object(start), head=head)
        if embedder.dimension != dimension:
            names = train_set.classes
            objective = _make_objective(recipe, embedder, len(names), batch_classes, len(train_set), names, hierarchy)
        if recipe.objective.proxy_start == "prototypes" and not goes_on:
            start_proxies(objective, pool)
        validate = None
        if encode is not None:
            validate = Validation(
                partial(encode, embedder),
                held,
                recipe,
                embedder.space,
                representation_of(objective),
                _classifier(recipe, objective),
                tuple(train_set.classes),
            )
        if ranks.is_first:
            run.prepare(recipe, resume)
            if not run.state_file.exists():
                start.save(run.start_file)
        schedule = make_schedule(recipe.training, pool, batch_classes * recipe.data.per_class, run.path, ranks)
        if _classifier(recipe, objective) is not None:
            schedule.selection = ACCURACY
        identity = {"data set": fingerprint}
        if hierarchy is not None:
            identity["class tree"] = hierarchy.to_newick()  # the recipe has been compared with the run's own
        watch = make_watch(recipe, run, pool, objective, train_set.classes, hierarchy)
        loop = Loop(
            embedder,
            objective,
            batches,
            section,
            run,
            validate,
            schedule,
            identity,
            progress,
            ranks,
            watch,
        )
        state = loop.train(resume=resume, known=start.raw_values())
        values = ranks.broadcast_object(loop.values_at(state.best_step))
        card = make_card(dataset, split, recipe, state, source, fingerprint, notes, values, hierarchy, loop.finished)
        embedder.card = started_from(embedder) | card
        gain = None
        if encode is not None and start.first is not None and ranks.is_first:
            gain = measure_gain(start, per_query(encode(embedder), held, embedder.space)[0], state.best_step)
        embedder.card |= {} if start.head is None else {"start": start.head}
        embedder.card |= {} if gain is None else {"gain": gain.to_dict()}
        if ranks.is_first and (state.best_step or state.stale or not loop.interrupted):
            # Stopped before the first validation there is nothing worth keeping but the checkpoint.
            run.save_model(embedder)
            if isinstance(objective.loss, ClassVectors):
                write_class_vectors(run.path, train_set.classes, objective.loss.class_vectors())
        ranks.await_first()  # whoever leaves early may have torchrun end the one that writes
        return TrainingResult(embedder, objective, state, loop.interrupted, gain)


def _training_section(recipe: Recipe, classes: int, items: int) -> TrainingSection:
    """The recipe's training section, its rate lowered where a start is to be kept from few classes or items."""
    section = recipe.training
    if recipe.model.head_start == RANDOM:
        return section
    wanted = [(classes, section.full_rate_classes), (items, section.full_rate_items)]
    share = min([1.0, *(there / full for there, full in wanted if full)])
    return section.model_copy(update={"lr": section.lr * share**2})


def _classifier(recipe: Recipe, objective: Objective) -> Callable[[Tensor], Tensor] | None:
    """What names validation items, where their classes are those that train and the loss has scores for them."""
    loss = objective.loss
    return loss.class_scores if recipe.data.classes_are_seen and isinstance(loss, ClassVectors) else None


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
) -> tuple[Embedder, Objective, int]:
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
    """
    check_accelerator(recipe.training.accelerator)
    seed = recipe.training.seed
    check_similarity(recipe)
    names = list(map(str, range(classes))) if class_names is None else class_names
    dense = recipe.objective.parameters.get("auxiliary_weight", 1.0) > 0
    embedder = build_embedder(recipe.model, seed, recipe.data.audio_seconds, names, dense)
    if embedder.spec.kind != kind:
        raise DataError(
            f"The backbone '{recipe.model.backbone}' takes {embedder.spec.kind} and the data is {kind}: choose a "
            f"recipe whose backbone takes {kind}."
        )
    section = recipe.training
    # An episode of fewer classes would be another task: the sampler refuses it.
    batch_classes = recipe.data.classes_per_batch
    if section.schedule != "episodic":
        batch_classes = _batch_classes(batch_classes, classes, processes)
    elif processes > 1 and not section.sync_batch_norm and learning_norms(embedder):
        raise RecipeError(
            f"{processes} processes share an episode by its classes, and batch norm that learns would see the classes "
            "of one process alone, which hides what tells classes apart: set training.sync_batch_norm to true, or "
            "start one process."
        )
    objective = _make_objective(recipe, embedder, classes, batch_classes, items, class_names, hierarchy)
    objective.check_batch(batch_classes, recipe.data.per_class)
    _check_regularisers(recipe, embedder, objective)
    check_schedule(recipe.training, objective, validated, kind, recipe.model.cache)
    return embedder, objective, batch_classes


def _make_objective(
    recipe: Recipe,
    embedder: Embedder,
    classes: int,
    batch_classes: int,
    items: int | None,
    class_names: Sequence[str] | None,
    hierarchy: Hierarchy | None,
) -> Objective:
    """What a model of this size minimises; arguments as of `make_learner`."""
    section, batch_size = recipe.training, batch_classes * recipe.data.per_class
    return make_objective(
        recipe.objective,
        dimension=embedder.dimension,
        classes=classes,
        space=embedder.space,
        seed=section.seed,
        features=embedder.feature_size,
        epoch_steps=math.ceil((classes if items is None else items) / batch_size),
        episode=(section.episodic.shot, section.episodic.query) if section.schedule == "episodic" else None,
        class_names=class_names,
        hierarchy=hierarchy,
        similarity=embedder.parts if isinstance(embedder, SimilarityModel) else None,
    )


def check_similarity(recipe: Recipe) -> None:
    """Refuse a learned similarity without the loss that teaches it, and that loss without a similarity to teach."""
    loss, has_similarity = recipe.objective.loss, recipe.model.similarity is not None
    if has_similarity and loss != LEARNED_SIMILARITY:
        raise RecipeError(
            f"The loss '{loss}' teaches no similarity: set objective.loss to '{LEARNED_SIMILARITY}', or "
            "model.similarity to null."
        )
    if loss == LEARNED_SIMILARITY and not has_similarity:
        raise RecipeError(
            f"The loss '{loss}' teaches a similarity, and the model has none: set model.similarity to {{}}."
        )
    if has_similarity and recipe.training.ema:
        raise RecipeError(
            "Averaged weights would not fit the prototypes of a learned similarity, which follow the weights of the "
            "moment: set training.ema to null."
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
            f"The regulariser '{name}' has nothing to change, for nothing of the model learns: set model.dimension, "
            f"{attend}, or {less}."
        )
    for name in objective.takers("features"):
        if learned <= {id(parameter) for parameter in embedder.head.parameters()}:
            raise RecipeError(
                f"The regulariser '{name}' changes what makes the features before the head, and nothing of that "
                f"learns: set its parameter vectors to embeddings, {attend}, or {less}."
            )


def _batch_classes(asked: int, classes: int, processes: int) -> int:
    """Classes in a batch: as many as asked for, or all there are where those are fewer."""
    capped = min(asked, classes)
    fitting = capped - capped % processes
    if capped == asked or fitting == capped:
        return capped
    # Not rounded in silence: a run must be the same whatever the number of processes.
    change = f"set data.classes_per_batch to {fitting}" if fitting else f"start {classes} or fewer"
    raise DataError(
        f"There are only {classes} training classes, which {processes} processes cannot share equally: {change}."
    )


def make_sampler(recipe: Recipe, class_ids: np.ndarray, batch_classes: int, ranks: Ranks | None = None) -> BatchSampler:
    """Which items a step takes: an episode, or as many of each class as of any other; refuse what the data lacks."""
    ranks = Ranks() if ranks is None else ranks
    seed, place = recipe.training.seed, (ranks.rank, ranks.world_size)
    if recipe.training.schedule == "episodic":
        episodic = recipe.training.episodic
        return EpisodeBatchSampler(class_ids, episodic.way, episodic.shot, episodic.query, seed, *place)
    return BalancedBatchSampler(class_ids, batch_classes, recipe.data.per_class, seed, *place)


def _plumb(
    dataset: Dataset,
    split: Split,
    train_set: Dataset,
    embedder: Embedder,
    recipe: Recipe,
    sampler: BatchSampler,
    cache_directory: Path,
    progress: bool,
    ranks: Ranks,
    features: FeatureCache | None,
) -> tuple[Batches, Callable[[Embedder], np.ndarray] | None]:
    """The batches, and how a model embeds validation items, if any: from the feature cache if there is one."""
    seed = recipe.training.seed
    ids = train_set.class_ids()
    val_set = dataset.select(split.val)
    batches: Batches
    encode: Callable[[Embedder], np.ndarray]
    if recipe.model.cache:
        cache, train_rows, val_rows = features, split.train, split.val
        if cache is None:
            # In the data's own order, so that another choice of validation classes finds the same cache.
            used = np.sort(np.concatenate([split.train, split.val]))
            train_rows, val_rows = np.searchsorted(used, split.train), np.searchsorted(used, split.val)
            cache = ranks.in_turn(
                lambda: FeatureCache.build(
                    embedder,
                    dataset.select(used),
                    at=cache_point(embedder),
                    views=recipe.model.cache_views,
                    dtype=recipe.model.cache_dtype,
                    directory=cache_directory,
                    progress=progress,  # the crops' own seed stays 0: runs that differ in their seed share the cache
                )
            )
        cached = cache
        batches = CachedBatches(cached, train_rows, ids, sampler, seed)

        def encode(model: Embedder) -> np.ndarray:
            return cached.encode(model, val_rows)
    else:
        transform = transform_for(embedder.spec, recipe.data, train=True)
        augment = BatchAugment.for_section(embedder.spec, recipe.data, seed)
        view = transform_for(embedder.spec, recipe.data, train=False)
        batches = DecodedBatches(train_set, ids, transform, augment, view, sampler, seed, recipe.data.workers)

        inputs = ValidationInputs(val_set, embedder.spec)

        def encode(model: Embedder) -> np.ndarray:
            return inputs.encode(model)

    return batches, encode if len(val_set) else None
