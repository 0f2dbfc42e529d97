"""`nearkin export`."""

from __future__ import annotations

from pathlib import Path

from nearkin import api
from nearkin.errors import DataError, RunError
from nearkin.models import Embedder
from nearkin.models.onnx import Description, export
from nearkin.models.onnx.file import checked, onnx_path, serialised, sidecar
from nearkin.storage import replacing, write_json


def export_command(
    run: Path,
    out: Path | None,
    int8: bool,
    data: str | None,
    skip_bad: bool,
    data_root: Path | None,
    progress: bool,
) -> None:
    """Write a model as an ONNX file, and in 8 bits tell what that costs."""
    if data is not None and not int8:
        raise DataError("Only 8 bits need data, to calibrate and to measure on: add --int8, or leave --data out.")
    path = onnx_path(out if out is not None else _usual_place(run, int8))
    model = api.load(run)
    if int8:
        _export_int8(model, path, _source(run, model, data), skip_bad or data is None, data_root, progress)
        return
    exported = export(model, path)
    print(f"Largest difference to the model's own vectors: {exported.difference:.1e}")
    _tell(path, exported.description)


def _export_int8(
    model: Embedder, path: Path, source: str, skip_bad: bool, data_root: Path | None, progress: bool
) -> None:
    from nearkin.audits.quantised import calibration_batches, compare_quantised, divide_for_int8
    from nearkin.models.onnx.int8 import quantise

    dataset, notes = api.open_readable(source, skip_bad=skip_bad, data_root=data_root, progress=progress)
    division = divide_for_int8(dataset, model.card)
    content, description = serialised(model)
    checked(model, content)
    small, told = quantise(content, description, calibration_batches(dataset, division, model))
    result = compare_quantised(model, (content, small), dataset, division, progress=progress)
    with replacing(path) as temporary:
        temporary.write_bytes(small)
    write_json(sidecar(path), {**told.to_dict(), "int8": result.to_dict()})
    for note in (*notes, *result.notes):
        print(f"Note: {note}")
    flags = " ".join(result.processor["flags"]) or "no flags known"
    print(f"MAP@R of {result.items:,} items of {result.classes} classes that did not calibrate:")
    print(f"  float32 {result.float32:.4f}, int8 {result.int8:.4f}, difference {result.difference:+.4f}")
    print(f"  95 % interval of the difference, by classes: {result.low:+.4f} to {result.high:+.4f}")
    print(f"Speed: {result.speed:.2f} x float32 in ONNX Runtime ({result.processor['name']}; {flags})")
    print(f"Size: {result.int8_bytes / 1e6:.1f} MB instead of {result.float32_bytes / 1e6:.1f} MB")
    _tell(path, told)


def _source(run: Path, model: Embedder, data: str | None) -> str:
    source = data or model.card.get("data", {}).get("source")
    if not source:
        raise RunError(f"{run} does not say which data it was trained on: name some with --data.")
    return str(source)


def _usual_place(run: Path, int8: bool) -> Path:
    """In the run, or beside the model file."""
    stem = run / "model" if run.is_dir() else run.with_suffix("")
    return stem.with_name(f"{stem.name}.int8.onnx" if int8 else f"{stem.name}.onnx")


def _tell(path: Path, description: Description) -> None:
    if description.left_out is not None:
        print(f"Note: the file holds the embedding alone, without {description.left_out}.")
    print(f"Wrote {path}, and what to do before it runs: {sidecar(path)}")
