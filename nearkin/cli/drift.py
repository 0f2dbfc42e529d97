"""`nearkin drift`: test whether new data has drifted from a reference."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nearkin.cli.options import EXIT_NO, DataRoot, Json, Quiet, SkipBad
from nearkin.cli.output import check_folder, printable, show_json, show_notes, show_table
from nearkin.errors import DataError

if TYPE_CHECKING:
    from nearkin.audits.drift_result import DriftResult


_LISTED = 5
"""Number of novel items to print."""

_DATA = (
    "a folder with one folder per class, a CSV or Parquet manifest, a zip, a Hugging Face data set directory, or a "
    "catalogue name (see `nearkin data list`)."
)


def drift(
    reference: Annotated[
        str, typer.Argument(metavar="A", help=f"The reference data: {_DATA} Also a folder of loose files.")
    ],
    new: Annotated[str, typer.Argument(metavar="B", help="The new data, in the same formats.")],
    model: Annotated[str, typer.Option(help="A run, a model file, or a pretrained backbone's name.")],
    out: Annotated[Path, typer.Option(help="Directory for the numbers, the pictures and the report.")] = Path("drift"),
    kernel: Annotated[
        str, typer.Option(help="learned, gaussian, or auto: learned if the model has a learned similarity.")
    ] = "auto",
    permutations: Annotated[int, typer.Option(min=1, help="Number of permutations of the test.")] = 1000,
    alpha: Annotated[float, typer.Option(help="Significance level: report drift if p is at most this.")] = 0.05,
    limit: Annotated[int, typer.Option(min=0, help="Sample at most this many items of A and of B; 0: all.")] = 2000,
    by_class: Annotated[
        bool, typer.Option("--by-class", help="Also test each class that both data sets have.")
    ] = False,
    only_a: Annotated[
        list[str] | None, typer.Option(help="Use only the rows of A with this value, e.g. domain=photo; repeatable.")
    ] = None,
    only_b: Annotated[list[str] | None, typer.Option(help="The same for B.")] = None,
    fail_on_drift: Annotated[
        bool, typer.Option("--fail-on-drift", help="Exit with code 3 if the data has drifted.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the sample and the permutations.")] = 0,
    as_json: Json = False,
    skip_bad: SkipBad = False,
    data_root: DataRoot = None,
    quiet: Quiet = False,
) -> None:
    """Test whether data B has drifted from data A, as seen by a model; list the most novel items of B."""
    from nearkin.audits.drift import drift as audit_drift

    check_folder(out)
    chosen = _columns(only_a or [], "--only-a"), _columns(only_b or [], "--only-b")
    found = audit_drift(
        model,
        reference,
        new,
        kernel=kernel,
        permutations=permutations,
        alpha=alpha,
        limit=limit or None,
        by_class=by_class,
        only=chosen,
        seed=seed,
        skip_bad=skip_bad,
        data_root=data_root,
        progress=not (quiet or as_json),
    )
    page = found.write(out)
    if as_json:
        show_json({**found.to_dict(), "report": str(page)})
    else:
        _show(found, page)
    if fail_on_drift and found.drifted:
        raise typer.Exit(EXIT_NO)


def _show(found: DriftResult, page: Path) -> None:
    from nearkin.report.values import p_text

    sides = (("Reference", found.reference), ("New", found.new))
    for name, side in sides:
        print(f"{name + ':':<11}{printable(side.dataset.name)}, {len(side):,} items")
    print(found.verdict())
    print(found.novelty_verdict())
    rows = found.most_novel(_LISTED)
    paths = found.new.dataset.manifest.paths
    show_table(
        ["most novel", "label", "novelty", "p"],
        [(paths[i], found.new.labels[i], f"{found.novelty[i]:.3f}", p_text(found.novelty_p[i])) for i in rows],
        numbers=["novelty", "p"],
    )
    if found.classes:
        show_table(
            ["class", "reference", "new", "MMD²", "p", "p, Holm"],
            [
                (one.name, one.reference, one.new, f"{one.statistic:.4f}", p_text(one.p_value), p_text(one.corrected_p))
                for one in found.classes
            ],
            numbers=["reference", "new", "MMD²", "p", "p, Holm"],
        )
    show_notes(found.notes)
    print(f"Report: {page}")


def _columns(assignments: Sequence[str], option: str) -> dict[str, str]:
    """Columns and values from texts such as `domain=photo`."""
    found = {}
    for assignment in assignments:
        name, sign, value = assignment.partition("=")
        if not (name and sign):
            raise DataError(f"Write {option} column=value, not '{assignment}'.")
        found[name] = value
    return found
