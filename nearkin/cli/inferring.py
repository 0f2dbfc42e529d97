"""What `nearkin hierarchy` does."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast, get_args

from nearkin import api
from nearkin.audits import subject_of_model, unseen_items
from nearkin.audits.inferring import (
    ClassDistances,
    InferredTree,
    TreeSource,
    distances_of_items,
    distances_of_proxies,
)
from nearkin.cli.explaining import check_folder
from nearkin.cli.output import printable, show_facts
from nearkin.data.catalogue import cache_directory
from nearkin.data.hierarchy import Hierarchy
from nearkin.data.hierarchy_files import load_hierarchy
from nearkin.data.sources import open_data
from nearkin.errors import DataError, RunError, StorageError, suggestion
from nearkin.metrics.tree_inference import LinkageMethod
from nearkin.models import Embedder
from nearkin.storage import replacing
from nearkin.training import Run

_ENDINGS = (".nwk", ".png")
_SHOWN = 20
"""Names that are listed at the most."""


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
    """Infer a tree, write it as Newick and as a picture, and print how true it is."""
    _check_choice("--from", source, get_args(TreeSource))
    _check_choice("--method", method, get_args(LinkageMethod))
    if source == "proxies" and data is not None:
        raise DataError("Proxies are the run's own and need no data: leave out --data, or choose another --from.")
    folder, stem = _place(path, out)
    _check_writable(folder)
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
    """The directory of tree and picture, that of the run unless one is named, and what they are called, if that is."""
    path = run if out is None else Path(out)
    if out is None or out.endswith(("/", os.sep)) or path.is_dir():
        return path, ""
    if path.suffix.lower() not in ("", *_ENDINGS):
        raise DataError(
            f"The tree and its picture end in {' and '.join(_ENDINGS)}, so --out cannot be '{out}': leave out "
            f"{path.suffix}, or name a directory with / at its end."
        )
    return path.parent, path.stem


def _check_writable(folder: Path) -> None:
    """Refuse a directory that cannot be written to before any work, and without leaving a trace."""
    check_folder(folder)
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    try:
        # Rights alone do not tell: some file systems take no files from anyone.
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise StorageError(f"Nothing can be written to {there}: choose another place with --out.") from error


def _of_proxies(run: Run, model: Embedder) -> ClassDistances:
    found = run.class_vectors()
    if found is None:
        raise RunError(
            f"{run.path} has no proxies, as its loss has none or an older version trained it: infer from prototypes "
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
    """Distances between classes of the items an audit takes, what to say of them, and the name of foreign data."""
    trained_on = model.card.get("data", {})
    # What training left out is left out here too.
    skip_bad = skip_bad or (data is None and bool(trained_on.get("notes")))
    where = data or trained_on.get("source")
    if not where:
        raise RunError(f"{run.path} does not say which data it was trained on: name some with --data.")
    dataset, notes = api.open_readable(where, skip_bad=skip_bad, data_root=data_root, progress=progress)
    rows, on_choice = unseen_items(dataset, model.card)
    classes = set(dataset.labels[rows].tolist())
    if len(classes) < 2:
        raise DataError(
            f"The data {where} has items of {len(classes)} class to infer a tree of, and two are the least: give data "
            "of more classes with --data."
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
    """Print what is in a tree; return whether it has all the classes of the data."""
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
    """Print which classes of the data a tree lacks; return whether it has them all."""
    missing, spare = sorted(classes - set(tree.classes)), len(set(tree.classes) - classes)
    print(f"The data has {len(classes):,} classes, of which the tree has {len(classes) - len(missing):,}.")
    if spare:
        more, are = ("class", "is") if spare == 1 else ("classes", "are")
        print(f"{spare:,} {more} of the tree {are} not in the data, which does no harm.")
    if missing:
        print(f"The tree lacks {len(missing):,}:")
        for name in missing[:_SHOWN]:
            close = get_close_matches(name, tree.classes, n=1, cutoff=0.6)
            print(f"  {printable(name)}{f' (written {printable(close[0])} in the tree?)' if close else ''}")
        if len(missing) > _SHOWN:
            print(f"  and {len(missing) - _SHOWN:,} more")
    return not missing
