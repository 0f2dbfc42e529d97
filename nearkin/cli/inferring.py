"""What `nearkin hierarchy` does."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast, get_args

from nearkin import api
from nearkin.audits import subject_of_model
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
from nearkin.errors import DataError, RunError, suggestion
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
    newick, picture = _files(path, out, source, method)
    check_folder(newick.parent)
    run = Run(path)
    model = run.model()
    known = api.class_tree(tree, model.card)
    if source == "proxies":
        distances, notes = _of_proxies(run, model), list[str]()
    else:
        options: dict[str, Any] = {"skip_bad": skip_bad, "data_root": data_root, "progress": progress}
        distances, notes = _of_items(run, model, cast(TreeSource, source), data, known, **options)
    inferred = InferredTree.of(distances, cast(LinkageMethod, method), known)
    drawn = inferred.picture()
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


def _files(run: Path, out: str | None, source: str, method: str) -> tuple[Path, Path]:
    """Where tree and picture go: into a directory, that of the run unless one is named, or beside a file's name."""
    path = run if out is None else Path(out)
    if out is None or out.endswith(("/", os.sep)) or path.is_dir():
        path = path / (f"tree-{source}" if method == "average" else f"tree-{source}-{method}")
    elif path.suffix.lower() in _ENDINGS:
        path = path.with_suffix("")
    newick, picture = (path.with_name(path.name + ending) for ending in _ENDINGS)
    return newick, picture


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
) -> tuple[ClassDistances, list[str]]:
    """Distances between the classes of the items that an audit would take, and what to say of these."""
    trained_on = model.card.get("data", {})
    # What training left out is left out here too.
    skip_bad = skip_bad or (data is None and bool(trained_on.get("notes")))
    where = data or trained_on.get("source")
    if not where:
        raise RunError(f"{run.path} does not say which data it was trained on: name some with --data.")
    dataset, notes = api.open_readable(where, skip_bad=skip_bad, data_root=data_root, progress=progress)
    if known is not None:
        api.check_tree(known, dataset, model.card)
    subject = subject_of_model(
        model, dataset, cache_directory=cache_directory() / "features", baseline=False, progress=progress
    )
    return distances_of_items(subject, source), [*subject.notes, *notes]


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
        print(f"{spare:,} classes of the tree are not in the data, which does no harm.")
    if missing:
        print(f"The tree lacks {len(missing):,}:")
        for name in missing[:_SHOWN]:
            close = get_close_matches(name, tree.classes, n=1, cutoff=0.6)
            print(f"  {printable(name)}{f' (written {printable(close[0])} in the tree?)' if close else ''}")
        if len(missing) > _SHOWN:
            print(f"  and {len(missing) - _SHOWN:,} more")
    return not missing
