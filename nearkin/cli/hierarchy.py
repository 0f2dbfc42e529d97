"""`nearkin hierarchy`: infer a class tree from a run, or check one of your own."""

from __future__ import annotations

import os
from collections import Counter
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast, get_args

import typer

from nearkin.cli.audit import data_of
from nearkin.cli.options import EXIT_NO, DataRoot, Quiet, SkipBad
from nearkin.cli.output import check_folder, printable, show_facts, show_notes
from nearkin.errors import DataError, RunError, suggestion

if TYPE_CHECKING:
    from nearkin.audits import Subject
    from nearkin.data.hierarchy import Hierarchy
    from nearkin.models import Embedder

_ENDINGS = (".nwk", ".png")
_SHOWN = 20
"""Maximum number of names to print."""

hierarchy_app = typer.Typer(help="Class trees: infer one from a run, or check one.", no_args_is_help=True)


@hierarchy_app.command("infer")
def infer(
    run: Annotated[Path, typer.Argument(help="A run directory written by `nearkin train`.")],
    source: Annotated[
        str,
        typer.Option(
            "--from",
            help="prototypes: class means; proxies: the loss's proxies of the training classes, if it has any; "
            "confusions: which classes are mistaken for each other.",
        ),
    ] = "prototypes",
    method: Annotated[str, typer.Option(help="average (linkage) or neighbour-joining.")] = "average",
    tree: Annotated[
        str | None, typer.Option(help="A known tree to compare with: a file or `cifar100`; default: the run's tree.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="Use this data instead of the run's.")] = None,
    out: Annotated[
        str | None, typer.Option(help="A directory, or a name for the .nwk and .png files; default: the run directory.")
    ] = None,
    skip_bad: SkipBad = False,
    data_root: DataRoot = None,
    quiet: Quiet = False,
) -> None:
    """Infer a class tree from a run; write it as Newick and as a picture, next to the known tree if there is one."""
    from nearkin import api
    from nearkin.audits.class_tree import InferredTree, TreeSource, distances_of_items, distances_of_proxies
    from nearkin.metrics.class_tree import LinkageMethod
    from nearkin.storage import replacing
    from nearkin.training import Run

    for option, given, known in (
        ("--from", source, get_args(TreeSource)),
        ("--method", method, get_args(LinkageMethod)),
    ):
        if given not in known:
            raise DataError(f"{option} cannot be '{given}'.{suggestion(given, known)}")
    if source == "proxies" and data is not None:
        raise DataError("--from proxies takes no data: drop --data, or choose another --from.")
    folder, stem = _place(run, out)
    check_folder(folder)
    trained = Run(run)
    model = trained.model()
    known_tree = api.class_tree(tree, model.card)
    notes: list[str] = []
    marks: list[str] = []
    if source == "proxies":
        vectors = trained.class_vectors()
        if vectors is None:
            raise RunError(
                f"{run} has no proxies: its loss has none, or an older version trained it. Use --from prototypes "
                "or confusions."
            )
        distances = distances_of_proxies(vectors.names, vectors.proxies, model.space)
    else:
        subject, notes = _audited_items(run, model, source, data, known_tree, skip_bad, data_root, not quiet)
        distances = distances_of_items(subject, cast(TreeSource, source))
        if data is not None and not subject.own_data:
            marks = [subject.facts["data"] or "data"]
    inferred = InferredTree.of(distances, cast(LinkageMethod, method), known_tree)
    drawn = inferred.picture()
    named = stem or "-".join(["tree", *marks, source, *([] if method == "average" else [method])])
    newick, picture = (folder / f"{named}{ending}" for ending in _ENDINGS)
    # Both or neither: a tree beside the picture of another would mislead.
    with replacing(newick) as text, replacing(picture) as image:
        text.write_text(inferred.tree.to_newick() + "\n", encoding="utf-8")
        image.write_bytes(drawn)
    show_facts(inferred.facts())
    show_notes(notes)
    print(f"Tree: {newick}")
    print(f"Picture: {picture}")


@hierarchy_app.command("build")
def build(
    table: Annotated[
        Path,
        typer.Argument(
            help="A .csv, .tsv or .txt table of species with their ranks, such as the eBird/Clements checklist; with "
            "--is-a, a list of 'parent child' lines, such as WordNet's."
        ),
    ],
    data: Annotated[str, typer.Option(help="The data whose classes the tree is for.")],
    out: Annotated[Path, typer.Option(help="The .nwk or .json file to write.", dir_okay=False)],
    is_a: Annotated[bool, typer.Option("--is-a", help="The file is a list of what is a what.")] = False,
    names: Annotated[str | None, typer.Option(help="The column of the names that the classes have.")] = None,
    levels: Annotated[str, typer.Option(help="Columns of the ranks, outermost first.")] = "order,family,genus",
    words: Annotated[
        Path | None, typer.Option(help="With --is-a: a file of identifiers and their names, a tab between.")
    ] = None,
    data_root: DataRoot = None,
    quiet: Quiet = False,
) -> None:
    """Build the tree of a data set's classes from a taxonomy, matching names loosely; then check it with `check`."""
    import json

    from nearkin.data.sources import open_data
    from nearkin.data.taxonomies import read_is_a, read_taxonomy
    from nearkin.storage import write_text

    if out.suffix.lower() not in (".nwk", ".json"):
        raise DataError(f"Unknown file type {out}: --out must end in .nwk or .json.")
    if words is not None and not is_a:
        raise DataError("--words requires --is-a: add it, or drop --words.")
    classes = open_data(data, data_root=data_root, progress=not quiet).classes
    ranks = [level.strip() for level in levels.split(",") if level.strip()]
    tree = read_is_a(table, classes, words=words) if is_a else read_taxonomy(table, classes, names=names, levels=ranks)
    text = tree.to_newick() if out.suffix.lower() == ".nwk" else json.dumps(tree.to_nested(), indent=1)
    write_text(out, text + "\n")
    print(
        f"Wrote a tree of {len(tree.classes):,} classes in {len(tree.parents) - len(tree.classes) - 1:,} groups: {out}"
    )


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


def _audited_items(
    run: Path,
    model: Embedder,
    source: str,
    data: str | None,
    known: Hierarchy | None,
    skip_bad: bool,
    data_root: Path | None,
    progress: bool,
) -> tuple[Subject, list[str]]:
    """The audit's items, with notes on them."""
    from nearkin import api
    from nearkin.audits import subject_of_model, unseen_items
    from nearkin.storage import cache_directory

    where, skip_bad = data_of(run, model.card, data, skip_bad)
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
    return subject, [*told, *notes]


@hierarchy_app.command(
    "check", epilog="Exit codes: 0 the tree has all classes, 3 some are missing, 2 it cannot be read."
)
def check(
    file: Annotated[str, typer.Argument(help="A .yaml, .json, .csv or Newick file, or `cifar100`.")],
    data: Annotated[
        str | None, typer.Option(help="Data whose classes the tree should have, in any format that `train` accepts.")
    ] = None,
    data_root: DataRoot = None,
    quiet: Quiet = False,
) -> None:
    """Show what is in a class tree, and which classes of DATA are missing from it."""
    from nearkin.data.hierarchy import load_hierarchy
    from nearkin.data.sources import open_data

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
    # Just below the root, with how many classes each has, in the tree's order.
    tops = Counter(tree.ancestors(name)[-2] for name in tree.classes if len(tree.ancestors(name)) > 2)
    for node, count in list(tops.items())[:_SHOWN]:
        print(f"  {printable(tree.names[node]) or '(no name)'}: {count:,} class{'' if count == 1 else 'es'}")
    if data is None:
        return
    classes = set(open_data(data, data_root=data_root, progress=not quiet).classes)
    missing, spare = sorted(classes - set(tree.classes)), len(set(tree.classes) - classes)
    print(f"The data has {len(classes):,} classes, of which the tree has {len(classes) - len(missing):,}.")
    if spare:
        more, are = ("class", "is") if spare == 1 else ("classes", "are")
        print(f"{spare:,} {more} of the tree {are} not in the data, which is fine.")
    if not missing:
        return
    print(f"Missing from the tree ({len(missing):,}):")
    for name in missing[:_SHOWN]:
        close = get_close_matches(name, tree.classes, n=1, cutoff=0.6)
        print(f"  {printable(name)}{f' (did you mean {printable(close[0])}?)' if close else ''}")
    if len(missing) > _SHOWN:
        print(f"  and {len(missing) - _SHOWN:,} more")
    raise typer.Exit(EXIT_NO)
