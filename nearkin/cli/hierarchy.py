"""`nearkin hierarchy`: infer a class tree from a run, or check one of your own."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast, get_args

from nearkin import api
from nearkin.audits import subject_of_model, unseen_items
from nearkin.audits.class_tree import ClassDistances, InferredTree, TreeSource, distances_of_items, distances_of_proxies
from nearkin.cli.output import check_folder, printable, show_facts
from nearkin.data.hierarchy import Hierarchy, load_hierarchy
from nearkin.data.sources import open_data
from nearkin.errors import DataError, RunError, suggestion
from nearkin.metrics.class_tree import LinkageMethod
from nearkin.models import Embedder
from nearkin.storage import cache_directory, replacing
from nearkin.training import Run

_ENDINGS = (".nwk", ".png")
_SHOWN = 20
"""Maximum number of names to print."""


def infer_tree_command(
    path: Path,
    source: str,
    method: str,
    *,
    tree: str | None,
    data: str | None,
    out: str | None,
    skip_bad: bool,
    data_root: Path | None,
    progress: bool,
) -> None:
    """Infer a tree, write it as Newick and as a picture, and print how well it fits."""
    _check_choice("--from", source, get_args(TreeSource))
    _check_choice("--method", method, get_args(LinkageMethod))
    if source == "proxies" and data is not None:
        raise DataError("--from proxies takes no data: drop --data, or choose another --from.")
    folder, stem = _place(path, out)
    check_folder(folder)
    run = Run(path)
    model = run.model()
    known = api.class_tree(tree, model.card)
    if source == "proxies":
        distances, notes, marks = _of_proxies(run, model), list[str](), list[str]()
    else:
        options: dict[str, Any] = {"skip_bad": skip_bad, "data_root": data_root, "progress": progress}
        distances, notes, marks = _of_items(run, model, cast(TreeSource, source), data, known, **options)
    inferred = InferredTree.of(distances, cast(LinkageMethod, method), known)
    drawn = inferred.picture()
    named = stem or "-".join(["tree", *marks, source, *([] if method == "average" else [method])])
    newick, picture = (folder / f"{named}{ending}" for ending in _ENDINGS)
    # Both or neither: a tree beside the picture of another would mislead.
    with replacing(newick) as text, replacing(picture) as image:
        text.write_text(inferred.tree.to_newick() + "\n", encoding="utf-8")
        image.write_bytes(drawn)
    show_facts(inferred.facts())
    for note in notes:
        print(f"Note: {note}")
    print(f"Tree: {newick}")
    print(f"Picture: {picture}")


def _check_choice(option: str, given: str, known: Sequence[str]) -> None:
    if given not in known:
        raise DataError(f"{option} cannot be '{given}'.{suggestion(given, known)}")


def _place(run: Path, out: str | None) -> tuple[Path, str]:
    """The output directory, default: the run's, and the name of the files, if given."""
    path = run if out is None else Path(out)
    if out is None or out.endswith(("/", os.sep)) or path.is_dir():
        return path, ""
    if path.suffix.lower() not in ("", *_ENDINGS):
        raise DataError(
            f"--out cannot be '{out}', as the files end in {' and '.join(_ENDINGS)}: drop "
            f"{path.suffix}, or give a directory that ends in /."
        )
    return path.parent, path.stem


def _of_proxies(run: Run, model: Embedder) -> ClassDistances:
    found = run.class_vectors()
    if found is None:
        raise RunError(
            f"{run.path} has no proxies: its loss has none, or an older version trained it. Use --from prototypes "
            "or confusions."
        )
    return distances_of_proxies(found.names, found.proxies, model.space)


def _of_items(
    run: Run,
    model: Embedder,
    source: TreeSource,
    data: str | None,
    known: Hierarchy | None,
    *,
    skip_bad: bool,
    data_root: Path | None,
    progress: bool,
) -> tuple[ClassDistances, list[str], list[str]]:
    """Distances between the classes of the audit's items, notes on them, and the name of data other than the run's."""
    trained_on = model.card.data
    # Skip what training skipped.
    skip_bad = skip_bad or (data is None and bool(trained_on.notes))
    where = data or trained_on.source
    if not where:
        raise RunError(f"{run.path} does not record its training data: give data with --data.")
    dataset, notes = api.open_readable(where, skip_bad=skip_bad, data_root=data_root, progress=progress)
    rows, on_choice = unseen_items(dataset, model.card)
    classes = set(dataset.labels[rows].tolist())
    if len(classes) < 2:
        raise DataError(
            f"A tree requires at least 2 classes, and {where} has only {len(classes)} class: give data with more "
            "classes with --data."
        )
    if known is not None:
        known.check(sorted(classes))
    subject = subject_of_model(
        model, dataset, cache_directory=cache_directory() / "features", baseline=False, progress=progress
    )
    told = subject.notes
    if source == "prototypes" and classes <= subject.seen.keys():
        # That classes were trained on matters to figures of single items, of which means have none.
        told = [note for note in told if note not in on_choice]
    foreign = data is not None and not subject.own_data
    marks = [subject.facts["data"] or "data"] if foreign else []
    return distances_of_items(subject, source), [*told, *notes], marks


def show_tree(file: str, data: str | None, data_root: Path | None, progress: bool) -> bool:
    """Print what is in a tree; returns whether it has all classes of the data."""
    tree = load_hierarchy(file)
    depths, inner = tree.depths(), len(tree.parents) - len(tree.classes)
    leaves = depths[[tree.ancestors(name)[0] for name in tree.classes]]
    even = f"{leaves.max()}" if leaves.min() == leaves.max() else f"{leaves.min()} to {leaves.max()}"
    show_facts(
        {
            "classes": f"{len(tree.classes):,}",
            "depth": f"{even} edges from the root to a class",
            "groups": f"{max(inner - 1, 0):,}",
            "branch lengths": "none" if tree.lengths is None else "yes",
        }
    )
    for name, count in _top_groups(tree)[:_SHOWN]:
        print(f"  {printable(name) or '(no name)'}: {count:,} class{'' if count == 1 else 'es'}")
    if data is None:
        return True
    classes = set(open_data(data, data_root=data_root, progress=progress).classes)
    return _show_lacking(tree, classes)


def _top_groups(tree: Hierarchy) -> list[tuple[str, int]]:
    """The groups just below the root, with how many classes each has, in the tree's order."""
    tops = [tree.ancestors(name)[-2] for name in tree.classes if len(tree.ancestors(name)) > 2]
    return [(tree.names[node], count) for node, count in Counter(tops).items()]


def _show_lacking(tree: Hierarchy, classes: set[str]) -> bool:
    """Print which classes of the data are missing from a tree; returns whether none is."""
    missing, spare = sorted(classes - set(tree.classes)), len(set(tree.classes) - classes)
    print(f"The data has {len(classes):,} classes, of which the tree has {len(classes) - len(missing):,}.")
    if spare:
        more, are = ("class", "is") if spare == 1 else ("classes", "are")
        print(f"{spare:,} {more} of the tree {are} not in the data, which is fine.")
    if missing:
        print(f"Missing from the tree ({len(missing):,}):")
        for name in missing[:_SHOWN]:
            close = get_close_matches(name, tree.classes, n=1, cutoff=0.6)
            print(f"  {printable(name)}{f' (did you mean {printable(close[0])}?)' if close else ''}")
        if len(missing) > _SHOWN:
            print(f"  and {len(missing) - _SHOWN:,} more")
    return not missing
