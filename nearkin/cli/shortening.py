"""`nearkin shorten`."""

from __future__ import annotations

from pathlib import Path

from nearkin import api
from nearkin.errors import DataError

_SUFFIX = ".safetensors"


def shorten_command(
    run: Path,
    dimension: int,
    out: Path,
    method: str,
    data: str | None,
    skip_bad: bool,
    data_root: Path | None,
    progress: bool,
) -> None:
    """Shorten a model and write it as a file of its own."""
    if out.suffix != _SUFFIX:
        raise DataError(f"{out} has an unknown ending: write the model to a {_SUFFIX} file.")
    if out.resolve() in (run.resolve(), (run / f"model{_SUFFIX}").resolve()):
        raise DataError(f"{out} is the model that is to be shortened: choose another file with --out.")
    if method == "prefix" and data is not None:
        raise DataError("The first dimensions are taken without looking at data: leave out --data, or choose pca.")
    model = api.load(run)
    shorter = api.shorten(
        model, dimension, method, data=data, skip_bad=skip_bad, data_root=data_root, progress=progress
    )
    shorter.save(out)
    facts = shorter.card["shortened"]
    kept = ""
    if "kept" in facts:
        kept = (
            f", principal components that keep {100 * facts['kept']:.1f} % of the variance, fitted on "
            f"{facts['items']:,} {facts['fitted_on']}"
        )
    prefixes = model.card.get("recipe", {}).get("objective", {}).get("prefixes", [])
    if method == "prefix" and dimension not in prefixes:
        print(f"Note: the model was not trained for its first {dimension} dimensions: --method pca may keep more.")
    print(f"Wrote a model of {dimension} of {model.dimension} dimensions{kept}: {out}")
