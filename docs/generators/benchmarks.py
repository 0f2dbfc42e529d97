"""What the last full runs of the benchmarks of speed measured, beside their bars."""

from __future__ import annotations

from functools import partial
from typing import Any

from generators.kept import measured
from generators.markdown import table


def _retrieval() -> str:
    """What the last full run of the retrieval benchmark measured, and on what."""
    result = measured("retrieval")
    machine = result["machine"]
    versions = f"torch {machine['torch']}, faiss {machine['faiss']}, pytorch-metric-learning"
    caption = (
        f"Measured on {machine['cpu']} ({machine['capability']}), {machine['threads']} threads, {versions} "
        f"{machine['pytorch-metric-learning']}; 128 dimensions, P@1, R-precision and MAP@R:"
    )
    return f"{caption}\n\n{_bars(result)}"


def _confidence() -> str:
    """What the last full run of the confidence benchmark measured."""
    result = measured("confidence")
    machine = result["machine"]
    caption = (
        f"NumPy {machine['numpy']}, scikit-learn {machine['scikit-learn']}, torch {machine['torch']}, "
        f"{machine['threads']} threads:"
    )
    return f"{caption}\n\n{_bars(result)}"


def _gallery() -> str:
    """What the last full run of the gallery benchmark measured."""
    result = measured("gallery")
    machine, figures = result["machine"], result["figures"]
    caption = (
        f"1,000,000 x 128 float32, {machine['cores']} cores, NumPy {machine['numpy']}, SQLite {machine['sqlite']}. "
        f"Opening took {figures['open seconds']:.2f} s, an exact search {figures['search ms']:.0f} ms, one by HNSW "
        f"{figures['hnsw ms']:.1f} ms, building that graph {figures['graph seconds'] / 60:.0f} minutes:"
    )
    return f"{caption}\n\n{_bars(result)}"


def _service() -> str:
    """What the last full run of the service benchmark measured."""
    result = measured("service")
    machine, figures = result["machine"], result["figures"]
    caption = (
        f"EfficientNet-Lite0, {machine['threads']} threads, torch {machine['torch']}, 200 requests in flight: "
        f"{figures['service images/s']:.0f} images a second, the encoder alone {figures['direct images/s']:.0f}; half "
        f"of the answers within {figures['p50 seconds']:.1f} s, 99 % within {figures['p99 seconds']:.1f} s:"
    )
    return f"{caption}\n\n{_bars(result)}"


def _suspects() -> str:
    """How well suspicious labels are wrong ones."""
    result = measured("suspects")
    rows = [
        (
            result["bars"][name][0].rpartition(", ")[2],
            f"{found['precision of the first n']:.2f}",
            f"{found['precision']:.2f}",
            f"{found['recall']:.2f}",
        )
        for name, found in result["figures"].items()
    ]
    header = (
        "embeddings",
        "precision of the first n, for n wrong labels",
        "precision of all suspects",
        "recall of all",
    )
    return table(header, rows)


def _ccp() -> str:
    """What the last full run of the benchmark of chance-constrained training measured."""
    result = measured("ccp")
    machine, figures = result["machine"], result["figures"]
    caption = (
        f"torch {machine['torch']}, {machine['threads']} threads. Without a bar: on a cached linear head a step costs "
        f"{figures['step, cached head']:.1f} times the plain one; a loop over classes in NumPy takes "
        f"{figures['k-center, NumPy loop']:.0f} times the time of `kcenter`:"
    )
    return f"{caption}\n\n{_bars(result)}"


def _gsp() -> str:
    """What the last full run of the benchmark of generalized sum pooling measured."""
    result = measured("gsp")
    machine, figures = result["machine"], result["figures"]
    extra = ", ".join(f"{figures[f'step with zero-shot loss, {case}']:.2f} ({case})" for case in _GSP_STEPS)
    caption = (
        f"torch {machine['torch']}, {machine['threads']} threads. Without a bar: with the zero-shot loss as well, a "
        f"step costs this much of average pooling's: {extra}."
    )
    return f"{_bars(result)}\n\n{caption}"


_GSP_STEPS = ("cached maps 7x7x1280", "224 px")


def _adversary() -> str:
    """What the last full run of the benchmark of attended stages and the class adversary measured."""
    result = measured("adversary")
    machine, figures = result["machine"], result["figures"]
    names = dict.fromkeys(key.rpartition(", ")[0] for key in figures)
    rows = [(name, *(f"{figures[f'{name}, {case}']:.3g}" for case in ("224 px", "cached maps"))) for name in names]
    header = ("a training step, of a plain one", "224 px, batch 32", "cached maps, batch 64")
    caption = (
        f"torch {machine['torch']}, {machine['threads']} threads. Every form (ratios at 224 px vary by some percent "
        "from run to run; on cached maps the adversary alone sees the embeddings):"
    )
    return f"{_bars(result)}\n\n{caption}\n\n{table(header, rows)}"


def _timed(benchmark: str, key: str, unit: str) -> str:
    """What the last full run of a benchmark measured, whose rows have a time under a key."""
    result = measured(benchmark)
    rows = [(row["case"], row["contender"], f"{row[key]:.3g} {unit}") for row in result["table"]]
    machine = result["machine"]
    caption = f"torch {machine['torch']}, {machine['threads']} threads:"
    return f"{_bars(result)}\n\n{caption}\n\n{table(('case', '', 'time'), rows)}"


def _voronoi() -> str:
    """What the last full run of the Voronoi benchmark measured, a column for each epsilon."""
    result = measured("vaa")
    names = [name for name in result["table"][0] if name != "epsilon"]
    told = [
        (name, *(row[name] if isinstance(row[name], str) else f"{row[name]:.3g}" for row in result["table"]))
        for name in names
    ]
    return f"{_bars(result)}\n\n{table(('', *(row['epsilon'] for row in result['table'])), told)}"


def _scale() -> str:
    """The bars of the last full run of the benchmark of scale."""
    result = measured("scale")
    machine = result["machine"]
    return f"{machine['cpu']}, {machine['threads']} threads, torch {machine['torch']}:\n\n{_bars(result)}"


def _scale_part(part: str) -> str:
    """The rows of one part of the benchmark of scale."""
    rows = [row for row in measured("scale")["table"] if row["part"] == part]
    names = list(dict.fromkeys(name for row in rows for name in row if name != "part"))
    told = [[row.get(name, "") for name in names] for row in rows]
    cells = [[f"{value:.3g}" if isinstance(value, float) else str(value) for value in line] for line in told]
    return table(("" if name == "what" else name for name in names), cells)


def _scale_int8() -> str:
    """What 8 bits gave and cost in the last full run of the benchmark of scale."""
    [row] = [row for row in measured("scale")["table"] if row["part"] == "int8 model"]
    bits = f"{row['MAP@R float32']:.4f} in float32 and {row['MAP@R int8']:.4f} in 8 bits"
    change = f"{row['difference']:+.4f}, 95 % interval {row['low']:+.4f} to {row['high']:+.4f}"
    return (
        f"Pretrained features of EfficientNet-Lite0 on {row['items']:,} images of the {row['classes']} held-out "
        f"classes of CUB-200-2011 had a MAP@R of {bits}: a difference of {change}. The file has "
        f"{row['MB int8']:.1f} MB instead of {row['MB float32']:.1f}, and encodes {row['x eager']:.1f} times as fast "
        f"as PyTorch on a processor with the flags `{row['flags']}` (`python benchmarks/scale.py`)."
    )


def _bars(result: dict[str, Any]) -> str:
    """The figures of a benchmark beside their bars."""
    rows = [
        (meaning, _figure(result["figures"][name], bar), f"{sign} {bar:g}")
        for name, (meaning, sign, bar) in result["bars"].items()
    ]
    return table(("what", "measured", "bar"), rows)


def _figure(value: float, bar: float) -> str:
    """A figure with as many digits as its bar is worth."""
    if bar >= 10:
        return f"{value:.0f}"
    return f"{value:.2g}" if abs(value) < 0.1 else f"{value:.2f}"


TABLES = {
    "retrieval": _retrieval,
    "confidence": _confidence,
    "gallery": _gallery,
    "service": _service,
    "suspects": _suspects,
    "ccp": _ccp,
    "gsp": _gsp,
    "adversary": _adversary,
    "episodes": partial(_timed, "episodes", "milliseconds", "ms"),
    "hierarchy": partial(_timed, "hierarchy", "seconds", "s"),
    "similarity": partial(_timed, "similarity", "seconds", "s"),
    "vaa": _voronoi,
    "scale": _scale,
    "scale_caching": partial(_scale_part, "gradient caching"),
    "scale_engines": partial(_scale_part, "ONNX Runtime"),
    "scale_processes": partial(_scale_part, "two processes"),
    "scale_int8": _scale_int8,
    "scale_gallery": lambda: measured("scale_gallery")["page"],
}
