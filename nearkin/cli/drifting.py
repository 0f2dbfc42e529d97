"""What `nearkin drift` does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nearkin.audits.drift import drift
from nearkin.audits.drift_result import DriftResult
from nearkin.cli.explaining import check_folder
from nearkin.cli.output import printable, show_json, show_table
from nearkin.errors import DataError
from nearkin.report.drift import p_text

_LISTED = 5
"""Novel items that are named at the prompt."""


def drift_command(
    reference: str,
    new: str,
    model: str,
    out: Path,
    *,
    kernel: str,
    permutations: int,
    alpha: float,
    limit: int,
    by_class: bool,
    only: tuple[Sequence[str], Sequence[str]],
    seed: int,
    skip_bad: bool,
    data_root: Path | None,
    as_json: bool,
    progress: bool,
) -> bool:
    """Compare new data with a reference, write what was found, and say whether it has drifted."""
    check_folder(out)
    chosen = _columns(only[0], "--only-a"), _columns(only[1], "--only-b")
    found = drift(
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
        progress=progress and not as_json,
    )
    page = found.write(out)
    if as_json:
        show_json({**found.to_dict(), "report": str(page)})
    else:
        _show(found, page)
    return found.drifted


def _show(found: DriftResult, page: Path) -> None:
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
    for note in found.notes:
        print(f"Note: {note}")
    print(f"Report: {page}")


def _columns(assignments: Sequence[str], option: str) -> dict[str, str]:
    """Columns to values from texts such as `domain=photo`."""
    found = {}
    for assignment in assignments:
        name, sign, value = assignment.partition("=")
        if not (name and sign):
            raise DataError(f"'{assignment}' chooses nothing: write {option} column=value.")
        found[name] = value
    return found
