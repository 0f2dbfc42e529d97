"""First use: fit, load, audit, shorten, explain."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from nearkin.audits import AuditResult, Subject, run_suites, subject_of_model, unseen_items
from nearkin.audits import suites as known_suites
from nearkin.audits.subject import TREE_FACT
from nearkin.data.dataset import Dataset, drop_bad
from nearkin.data.hierarchy import Hierarchy, load_hierarchy
from nearkin.data.sources import open_data
from nearkin.data.splits import check_classes, drop_singletons
from nearkin.data.stores import is_url, redacted
from nearkin.errors import DataError, ModelError, RecipeError, RunError
from nearkin.metrics.labels import label_array
from nearkin.models import Embedder
from nearkin.models.card import Card
from nearkin.recipe import DEFAULT_RECIPE, AuditSection, Recipe, load_recipe
from nearkin.search import Scorer, as_scorer, make_reranker
from nearkin.spaces import Sphere
from nearkin.storage import cache_directory
from nearkin.training import Run, TrainingResult, train
from nearkin.training.ranks import Ranks

if TYPE_CHECKING:
    from nearkin.audits.explanation import Explanation, Pictures

Source = str | Path | Dataset
Tree = str | Path | Hierarchy | Mapping[Any, Any]


def fit(
    data: Source,
    recipe: str | Path | Recipe = DEFAULT_RECIPE,
    *,
    out: str | Path | None = None,
    overrides: Sequence[str] = (),
    resume: bool = False,
    skip_bad: bool = False,
    data_root: str | Path | None = None,
    progress: bool = True,
) -> Embedder:
    """Learn an embedding from labelled data.

    Some classes are held out: a few to choose the best weights on, others for `audit` to judge the model by. The
    model's card (`model.card`) says which.

    Args:
        data: a folder per class, a manifest, a zip, a catalogue name, a Hugging Face data set directory or a Dataset.
        recipe: name, file or Recipe.
        out: directory of the run; None keeps only the returned model.
        overrides: changes to the recipe, such as "training.max_steps=200".
        resume: continue the run in `out`.
        skip_bad: leave out files that cannot be read and classes with one item, instead of stopping.
        data_root: where catalogue data is found; default: the NEARKIN_DATA setting.
        progress: whether to show progress bars.
    """
    resolved = load_recipe(recipe, list(overrides), source_name(data))
    if out is not None:
        return fit_run(
            data, resolved, Run(out), resume=resume, skip_bad=skip_bad, data_root=data_root, progress=progress
        ).embedder
    if resume:
        raise RunError("`resume` needs a run directory: pass out=.")
    with tempfile.TemporaryDirectory(prefix="nearkin-") as folder:
        run = Run(Path(folder) / "run")
        return fit_run(data, resolved, run, skip_bad=skip_bad, data_root=data_root, progress=progress).embedder


def fit_run(
    data: Source,
    recipe: Recipe,
    run: Run,
    *,
    resume: bool = False,
    skip_bad: bool = False,
    data_root: str | Path | None = None,
    progress: bool = True,
) -> TrainingResult:
    """`fit` with everything it found: open and check the data, train, keep the run."""
    for name in recipe.audit.suites:
        known_suites.get(name)
    ranks = Ranks.from_environment()
    if not resume and run.exists:
        run.check(recipe, resume)
    dataset, notes = open_checked(data, skip_bad=skip_bad, data_root=data_root, progress=progress and ranks.is_first)
    return train(
        dataset,
        recipe,
        run,
        source=source_name(data),
        cache_directory=cache_directory() / "features",
        notes=notes,
        resume=resume,
        progress=progress,
        ranks=ranks,
    )


def open_checked(
    data: Source, *, skip_bad: bool = False, data_root: str | Path | None = None, progress: bool = True
) -> tuple[Dataset, list[str]]:
    """Open data and make sure every item can be read and every class has a pair; say what was left out."""
    dataset, notes = open_readable(data, skip_bad=skip_bad, data_root=data_root, progress=progress)
    if skip_bad:
        paired = drop_singletons(dataset.labels)
        alone = int((~paired).sum())
        if alone and not paired.any():
            raise DataError("Every class has only one item, so all would be left out: add another item to each class.")
        if alone:
            had = "1 class had one item and was" if alone == 1 else f"{alone} classes had one item each and were"
            notes.append(f"{had} left out.")
            dataset = dataset.select(paired)
    check_classes(dataset.labels)
    return dataset, notes


def open_readable(
    data: Source, *, skip_bad: bool = False, data_root: str | Path | None = None, progress: bool = True
) -> tuple[Dataset, list[str]]:
    """Open data and make sure every item can be read; say what was left out."""
    dataset = open_data(data, data_root=Path(data_root) if data_root else None, progress=progress)
    dataset, bad = drop_bad(dataset, skip_bad, progress, memory=cache_directory() / "checked")
    were = "1 file could not be read and was" if len(bad) == 1 else f"{len(bad)} files could not be read and were"
    return dataset, [f"{were} left out."] if bad else []


def load(path: str | Path) -> Embedder:
    """Load a trained model from a run directory or a model file."""
    path = Path(path)
    if path.suffix == ".onnx":
        raise ModelError(
            f"{path} is an exported model, for inference only: encode with `nearkin embed` or "
            "nearkin.models.onnx.OnnxEncoder, or load the run it came from."
        )
    return Run(path).model() if path.is_dir() else Embedder.load(path)


def audit(
    model: Embedder | str | Path | np.ndarray | torch.Tensor | list[list[float]],
    data: Any,
    *,
    suites: Sequence[str] | None = None,
    space: Scorer | str | None = None,
    rerank: str | None = None,
    tree: Tree | None = None,
    overrides: Sequence[str] = (),
    skip_bad: bool = False,
    baseline: bool = True,
    data_root: str | Path | None = None,
    progress: bool = True,
) -> AuditResult:
    """Measure a model on classes it has not seen, or embeddings of your own.

    Args:
        model: a model, the path of a run or model file, or embeddings (n, d).
        data: data to encode, as in `fit`; with embeddings, their labels (n,).
        suites: which suites to run; None takes the recipe's.
        space: how embeddings of your own are compared: a space, its name, or an object with a `distance`; default: the
            sphere, that is by cosine.
        rerank: measure retrieval after re-ranking by "average-query-expansion" or "k-reciprocal"; None: as the recipe.
        tree: of the classes, for the suite "hierarchy": a `Hierarchy`, nested groups such as {"fish": ["shark",
            "trout"], "birds": ["owl"]}, a file, or the name of one that comes with the package; None: the one that the
            model was trained with.
        overrides: changes to the recipe's audit section, such as "audit.severities=[5]".
        skip_bad: leave out files that cannot be read.
        baseline: also measure pretrained features, or raw pixels, for comparison.
        data_root: where catalogue data is found.
        progress: whether to show progress bars.
    """
    if isinstance(model, np.ndarray | torch.Tensor | list):
        usual = AuditSection()
        section = audit_section(usual, overrides=overrides, suites=suites, rerank=rerank)
        hierarchy = _audit_tree(tree, section, Card())
        subject = _subject_of_vectors(model, data, Sphere() if space is None else as_scorer(space))
        subject.hierarchy, subject.progress = hierarchy, progress
    else:
        embedder = model if isinstance(model, Embedder) else load(model)
        usual = AuditSection.model_validate(embedder.card.recipe.get("audit", {}))
        # Wrong settings are reported before anything is encoded.
        section = audit_section(usual, overrides=overrides, suites=suites, rerank=rerank)
        hierarchy = _audit_tree(tree, section, embedder.card)
        dataset, notes = open_readable(data, skip_bad=skip_bad, data_root=data_root, progress=progress)
        if hierarchy is not None:
            check_tree(hierarchy, dataset, embedder.card)
        subject = subject_of_model(
            embedder,
            dataset,
            cache_directory=cache_directory() / "features",
            baseline=baseline,
            hierarchy=hierarchy,
            run=None if isinstance(model, Embedder) or not Path(model).is_dir() else Path(model),
            progress=progress,
        )
        subject.notes.extend(notes)
    if hierarchy is not None:
        given = "given in Python" if isinstance(tree, Hierarchy | Mapping) else Path(tree or "").name
        subject.facts[TREE_FACT] = given or "the run's own"
    before, after = usual.model_dump(mode="json"), section.model_dump(mode="json")
    shown = ("suites", "rerank")  # by the results themselves
    changes = [f"{name}={value}" for name, value in after.items() if value != before[name] and name not in shown]
    if changes:
        subject.facts["audit settings"] = ", ".join(changes)
    return run_suites(subject, section)


def _audit_tree(tree: Tree | None, section: AuditSection, card: Card) -> Hierarchy | None:
    """The tree for the hierarchy suite; None if that suite does not run."""
    if "hierarchy" in section.suites:
        from nearkin.audits.hierarchy import needed_tree

        return needed_tree(class_tree(tree, card))
    if tree is not None:
        raise RecipeError("You passed a tree, but the hierarchy suite does not run: add --suite hierarchy.")
    return None


def class_tree(tree: Tree | None, card: Card) -> Hierarchy | None:
    """A tree as users give it; without one, that of a model's card, if it was trained with any."""
    if isinstance(tree, Hierarchy):
        return tree
    if isinstance(tree, Mapping):
        return Hierarchy.from_nested(tree)
    if tree is not None:
        return load_hierarchy(tree)
    return None if card.hierarchy is None else Hierarchy.from_newick(card.hierarchy)


def check_tree(hierarchy: Hierarchy, dataset: Dataset, card: Card) -> None:
    """Refuse a tree without all classes of the audited items, before any of them is encoded."""
    rows, _ = unseen_items(dataset, card)
    hierarchy.check(sorted(set(dataset.labels[rows].tolist())))


def explain(
    model: Embedder | str | Path,
    images: Pictures,
    what: str | None = None,
    *,
    batch_size: int = 16,
    progress: bool = True,
) -> list[Explanation]:
    """Tell where a model looks in images: one value for each position of the map that it pools, or of several stages'.

    Args:
        model: a model, or the path of a run or model file.
        images: paths of images or of folders of them, PIL images, uint8 arrays, or a `Dataset`; one or a list.
        what: "attention": the share of each position of each attended stage, summing to 1, for models with attention;
            "weights": the share of each position, as the pooling weighs it, summing to 1; "contribution": how much
            each position adds to the embedding, signed, for any pooling; "grad-cam": where the channels are that the
            embedding depends on; "prototypes": how much of which prototype is pooled where. None: the attention where
            there is any that differs between positions, else the weights where the pooling has such, else the
            contribution.
        batch_size: images that go through the network together.
        progress: whether to show a bar.

    Returns:
        One explanation for each image, in order, or for attention one for each stage of each image;
        `explanation.save("looks.png")` draws it over the image.
    """
    from nearkin.audits.explanation import explain_images

    embedder = model if isinstance(model, Embedder) else load(model)
    return explain_images(embedder, images, what, batch_size=batch_size, progress=progress)


def shorten(
    model: Embedder | str | Path,
    dimension: int,
    method: str = "pca",
    *,
    data: Source | None = None,
    skip_bad: bool = False,
    data_root: str | Path | None = None,
    progress: bool = True,
) -> Embedder:
    """A copy of a model that gives shorter embeddings, at no cost when it encodes.

    Args:
        model: a model, or the path of a run or model file.
        dimension: how many dimensions are left.
        method: "pca": principal components of the items that the model was trained on; "prefix": the first dimensions,
            for a model trained with `objective.prefixes`.
        data: for "pca", data with items of the training classes, as in `fit`; None: what the card names.
        skip_bad: leave out files that cannot be read.
        data_root: where catalogue data is found.
        progress: whether to show progress bars.
    """
    embedder = model if isinstance(model, Embedder) else load(model)
    if method == "prefix":
        return embedder.shortened(dimension)
    if method != "pca":
        raise ModelError(f"The method must be 'pca' or 'prefix', not '{method}'.")
    from nearkin.audits.sizes import components_of_training

    dataset = _training_data(embedder, data, skip_bad, data_root, progress)
    return components_of_training(
        embedder, dataset, dimension, cache_directory=cache_directory() / "features", progress=progress
    )


def reweight(
    model: Embedder | str | Path,
    power: float | str = "auto",
    *,
    weights: Sequence[float] | np.ndarray | None = None,
    data: Source | None = None,
    skip_bad: bool = False,
    data_root: str | Path | None = None,
    progress: bool = True,
) -> Embedder:
    """A copy of a model whose principal directions are re-weighted, at no cost when it encodes.

    Args:
        model: a model, or the path of a run or model file.
        power: 0 centres the embeddings, 1 makes all directions vary alike; "auto": the best of five on the validation
            classes, or on training classes left out; an error if none helps.
        weights: of the directions (d,), the one that varies most first, instead of a power.
        data: data with items of the training classes, as in `fit`; None: what the card names.
        skip_bad: leave out files that cannot be read.
        data_root: where catalogue data is found.
        progress: whether to show progress bars.
    """
    from nearkin.audits.geometry import reweighting_of_training

    embedder = model if isinstance(model, Embedder) else load(model)
    dataset = _training_data(embedder, data, skip_bad, data_root, progress)
    return reweighting_of_training(
        embedder, dataset, power, weights, cache_directory=cache_directory() / "features", progress=progress
    )


def _training_data(
    embedder: Embedder, data: Source | None, skip_bad: bool, data_root: str | Path | None, progress: bool
) -> Dataset:
    """The data given, or that which the model's card names."""
    trained_on = embedder.card.data
    source = data if data is not None else trained_on.source
    if source is None:
        raise DataError("The model's card does not name the training data: pass it as data=.")
    # What training left out is left out here too.
    skip_bad = skip_bad or (data is None and bool(trained_on.notes))
    return open_readable(source, skip_bad=skip_bad, data_root=data_root, progress=progress)[0]


def audit_section(
    section: AuditSection,
    *,
    overrides: Sequence[str] = (),
    suites: Sequence[str] | None = None,
    rerank: str | None = None,
) -> AuditSection:
    """The settings of an audit: a recipe's, with the changes that `audit` takes, each checked.

    Args:
        section: what the changes are made to.
        overrides: assignments to keys of the section, such as "audit.severities=[5]".
        suites: the suites instead of the section's.
        rerank: the re-ranking instead of the section's.
    """
    keys = [assignment.partition("=")[0].strip() for assignment in overrides]
    for key, assignment in zip(keys, overrides, strict=True):
        if not key.startswith("audit."):
            raise RecipeError(
                f"The override '{assignment}' does not set the audit: here only the recipe's audit section can be "
                "changed, as in audit.severities=[5]."
            )
    if isinstance(suites, str):
        raise RecipeError(f"Pass suites as a list, such as ['{suites}'].")
    chosen = {"suites": None if suites is None else list(dict.fromkeys(suites)), "rerank": rerank}
    update = {name: value for name, value in chosen.items() if value is not None}
    for name in update:
        if f"audit.{name}" in keys:
            raise RecipeError(f"The {name} of the audit is set twice: remove the override of audit.{name}.")
    changed = load_recipe(Recipe(name="of this audit", audit=section), list(overrides)).audit.model_copy(update=update)
    if not changed.suites:
        raise RecipeError("An audit needs at least one suite: name some, as in audit.suites=[retrieval].")
    for name in changed.suites:
        known_suites.get(name)
    if rerank is not None:
        make_reranker(rerank)
    return changed


def _subject_of_vectors(given: Any, labels: Any, space: Any) -> Subject:
    try:
        vectors = np.asarray(given, dtype=np.float32)
    except (ValueError, TypeError) as error:
        raise DataError("Embeddings must be numbers, one row of the same length for each item.") from error
    if vectors.ndim != 2:
        raise DataError(f"Embeddings must have the shape (n, d), not {vectors.shape}.")
    labels = label_array(labels, len(vectors))
    if isinstance(space, Sphere):
        vectors = space.project(torch.from_numpy(vectors)).numpy()
    items, dimensions = vectors.shape
    facts = {"classes": str(len(np.unique(labels))), "items": str(items), "dimensions": str(dimensions)}
    return Subject(vectors, labels, space, facts=facts)


def source_name(data: Source) -> str:
    """What the card calls the data: an absolute path, a URL, a catalogue name, or the data set's own name."""
    if isinstance(data, Dataset):
        return data.name
    if is_url(str(data)):
        return redacted(str(data))
    return str(Path(data).absolute()) if Path(data).exists() else str(data)
