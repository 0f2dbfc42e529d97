"""Fills the generated parts of the docs: tables that come from the code, so that they cannot go stale.

A page asks for one with a comment line such as `<!-- generated: catalogue -->`.
"""

from __future__ import annotations

import csv
import inspect
import json
import re
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel

_MARK = re.compile(r"<!-- generated: (\w+) -->")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """mkdocs calls this with every page."""
    return _MARK.sub(lambda match: _TABLES[match[1]](), markdown)


def _table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    header = list(header)
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def _catalogue() -> str:
    from nearkin.data.catalogue import catalogue_table

    rows = catalogue_table()
    return _table(rows[0], (row.values() for row in rows))


def _recipes() -> str:
    from nearkin.recipe import list_recipes

    return _table(("recipe", "what it is"), ((f"`{name}`", line) for name, line in list_recipes().items()))


def _keys() -> str:
    """Every key of every section, with its default and description."""
    from nearkin.recipe import Recipe

    parts = []
    for section, field in Recipe.model_fields.items():
        model = field.annotation
        if not (isinstance(model, type) and issubclass(model, BaseModel)):
            continue
        defaults = model()
        rows = [
            (f"`{name}`", f"`{_plain(getattr(defaults, name))}`", key.description or "")
            for name, key in model.model_fields.items()
        ]
        parts.append(f"### {section}\n\n{_table(('key', 'default', 'meaning'), rows)}")
    return "\n\n".join(parts)


def _plain(value: object) -> str:
    return str(value.model_dump(mode="json") if isinstance(value, BaseModel) else value)


def _backbones() -> str:
    from nearkin.models import list_backbones

    return ", ".join(f"`{name}`" for name in list_backbones())


def _poolings() -> str:
    """Every pooling, with what its docstring says of it: the first line, and when to use it."""
    from nearkin.models.pooling import list_poolings, poolings

    rows = []
    for name in list_poolings():
        words = " ".join(inspect.getdoc(poolings.get(name)).split())
        when = re.search(r"Use when: (.*?)(?: Args:|$)", words)
        rows.append((f"`{name}`", words.partition(". ")[0].rstrip("."), when[1].rstrip(".") if when else ""))
    return _table(("pooling", "what it is", "use when"), rows)


def _retrieval() -> str:
    """What the last full run of the retrieval benchmark measured, and on what."""
    result = _benchmark("retrieval")
    machine = result["machine"]
    versions = f"torch {machine['torch']}, faiss {machine['faiss']}, pytorch-metric-learning"
    caption = (
        f"Measured on {machine['cpu']} ({machine['capability']}), {machine['threads']} threads, {versions} "
        f"{machine['pytorch-metric-learning']}; 128 dimensions, P@1, R-precision and MAP@R:"
    )
    return f"{caption}\n\n{_bars(result)}"


def _confidence() -> str:
    """What the last full run of the confidence benchmark measured."""
    result = _benchmark("confidence")
    machine = result["machine"]
    caption = (
        f"NumPy {machine['numpy']}, scikit-learn {machine['scikit-learn']}, torch {machine['torch']}, "
        f"{machine['threads']} threads:"
    )
    return f"{caption}\n\n{_bars(result)}"


def _gallery() -> str:
    """What the last full run of the gallery benchmark measured."""
    result = _benchmark("gallery")
    machine, figures = result["machine"], result["figures"]
    caption = (
        f"1,000,000 x 128 float32, {machine['cores']} cores, NumPy {machine['numpy']}, SQLite {machine['sqlite']}. "
        f"Opening took {figures['open seconds']:.2f} s, an exact search {figures['search ms']:.0f} ms, one by HNSW "
        f"{figures['hnsw ms']:.1f} ms, building that graph {figures['graph seconds'] / 60:.0f} minutes:"
    )
    return f"{caption}\n\n{_bars(result)}"


def _service() -> str:
    """What the last full run of the service benchmark measured."""
    result = _benchmark("service")
    machine, figures = result["machine"], result["figures"]
    caption = (
        f"EfficientNet-Lite0, {machine['threads']} threads, torch {machine['torch']}, 200 requests in flight: "
        f"{figures['service images/s']:.0f} images a second, the encoder alone {figures['direct images/s']:.0f}; half "
        f"of the answers within {figures['p50 seconds']:.1f} s, 99 % within {figures['p99 seconds']:.1f} s:"
    )
    return f"{caption}\n\n{_bars(result)}"


def _suspects() -> str:
    """How well suspicious labels are wrong ones."""
    result = _benchmark("suspects")
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
    return _table(header, rows)


def _ccp() -> str:
    """What the last full run of the benchmark of chance-constrained training measured."""
    result = _benchmark("ccp")
    machine, figures = result["machine"], result["figures"]
    caption = (
        f"torch {machine['torch']}, {machine['threads']} threads. Without a bar: on a cached linear head a step costs "
        f"{figures['step, cached head']:.1f} times the plain one; a loop over classes in NumPy takes "
        f"{figures['k-center, NumPy loop']:.0f} times the time of `kcenter`:"
    )
    return f"{caption}\n\n{_bars(result)}"


def _gsp() -> str:
    """What the last full run of the benchmark of generalized sum pooling measured."""
    result = _benchmark("gsp")
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
    result = _benchmark("adversary")
    machine, figures = result["machine"], result["figures"]
    names = dict.fromkeys(key.rpartition(", ")[0] for key in figures)
    rows = [(name, *(f"{figures[f'{name}, {case}']:.3g}" for case in ("224 px", "cached maps"))) for name in names]
    header = ("a training step, of a plain one", "224 px, batch 32", "cached maps, batch 64")
    caption = (
        f"torch {machine['torch']}, {machine['threads']} threads. Every form (ratios at 224 px vary by some percent "
        "from run to run; on cached maps the adversary alone sees the embeddings):"
    )
    return f"{_bars(result)}\n\n{caption}\n\n{_table(header, rows)}"


def _timed(benchmark: str, key: str, unit: str) -> str:
    """What the last full run of a benchmark measured, whose rows have a time under a key."""
    result = _benchmark(benchmark)
    rows = [(row["case"], row["contender"], f"{row[key]:.3g} {unit}") for row in result["table"]]
    machine = result["machine"]
    caption = f"torch {machine['torch']}, {machine['threads']} threads:"
    return f"{_bars(result)}\n\n{caption}\n\n{_table(('case', '', 'time'), rows)}"


def _voronoi() -> str:
    """What the last full run of the Voronoi benchmark measured, a column for each epsilon."""
    result = _benchmark("vaa")
    names = [name for name in result["table"][0] if name != "epsilon"]
    told = [
        (name, *(row[name] if isinstance(row[name], str) else f"{row[name]:.3g}" for row in result["table"]))
        for name in names
    ]
    return f"{_bars(result)}\n\n{_table(('', *(row['epsilon'] for row in result['table'])), told)}"


def _scale() -> str:
    """The bars of the last full run of the benchmark of scale."""
    result = _benchmark("scale")
    machine = result["machine"]
    return f"{machine['cpu']}, {machine['threads']} threads, torch {machine['torch']}:\n\n{_bars(result)}"


def _scale_part(part: str) -> str:
    """The rows of one part of the benchmark of scale."""
    rows = [row for row in _benchmark("scale")["table"] if row["part"] == part]
    names = list(dict.fromkeys(name for row in rows for name in row if name != "part"))
    told = [[row.get(name, "") for name in names] for row in rows]
    cells = [[f"{value:.3g}" if isinstance(value, float) else str(value) for value in line] for line in told]
    return _table(("" if name == "what" else name for name in names), cells)


def _scale_int8() -> str:
    """What 8 bits gave and cost in the last full run of the benchmark of scale."""
    [row] = [row for row in _benchmark("scale")["table"] if row["part"] == "int8 model"]
    bits = f"{row['MAP@R float32']:.4f} in float32 and {row['MAP@R int8']:.4f} in 8 bits"
    change = f"{row['difference']:+.4f}, 95 % interval {row['low']:+.4f} to {row['high']:+.4f}"
    return (
        f"Pretrained features of EfficientNet-Lite0 on {row['items']:,} images of the {row['classes']} held-out "
        f"classes of CUB-200-2011 had a MAP@R of {bits}: a difference of {change}. The file has "
        f"{row['MB int8']:.1f} MB instead of {row['MB float32']:.1f}, and encodes {row['x eager']:.1f} times as fast "
        f"as PyTorch on a processor with the flags `{row['flags']}` (`python benchmarks/scale.py`)."
    )


def _tokens() -> str:
    """The token study: means over seeds with 95 % t intervals."""
    from scipy import stats

    measures = ("MAP@R", "inside another hull", "weight on shared tokens")
    cells = _lines("gsp_tokens")

    def told(pooling: str, measure: str) -> str:
        values = [100 * cell[measure] for cell in cells if cell["pooling"] == pooling]
        mean, half = sum(values) / len(values), stats.sem(values) * stats.t.ppf(0.975, len(values) - 1)
        return f"{mean:.1f} ({max(0.0, mean - half):.1f} to {min(100.0, mean + half):.1f})"

    names = dict.fromkeys(cell["pooling"] for cell in cells)
    return _table(("pooling", *measures), ((name, *(told(name, measure) for measure in measures)) for name in names))


def _attributes() -> str:
    """The transfer of attributes to unseen classes: mean and range over seeds."""
    cells = _lines("gsp_attributes")
    measures = ("l2", "cosine", "validation_MAP@R")

    def told(place: tuple[int, float], measure: str) -> str:
        values = [100 * cell[measure] for cell in cells if (cell["prototypes"], cell["mixture"]) == place]
        return f"{sum(values) / len(values):.1f} ({min(values):.1f} to {max(values):.1f})"

    places = sorted({(cell["prototypes"], cell["mixture"]) for cell in cells})
    header = ("prototypes", "weight of the zero-shot loss", "by l2", "by cosine", "validation MAP@R")
    return _table(header, ((*map(str, place), *(told(place, measure) for measure in measures)) for place in places))


def _collage() -> str:
    """The table of the collage study, without its notes."""
    path = Path(__file__).parent.parent / "benchmarks" / "books" / "collage" / "table.md"
    return "\n".join(line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("|"))


def _made(benchmark: str, name: str) -> str:
    """A table that a benchmark, such as fewshot.py or taxonomy.py, has written."""
    path = Path(__file__).parent.parent / "benchmarks" / benchmark / f"{name}.md"
    return path.read_text(encoding="utf-8").strip()


def _plankton() -> str:
    """Macro F1 of seen and unseen classes by each classifier: mean and range over seeds, beside untrained features."""
    cells = _newest("plankton")
    first = cells[0]

    def told(classes: str, metric: str) -> str:
        values = [100 * cell[classes]["values"][metric] for cell in cells]
        return f"{sum(values) / len(values):.1f} ({min(values):.1f} to {max(values):.1f})"

    return _table(
        ("classes", "named by", "macro F1", "untrained features", "accuracy"),
        (
            (
                f"{classes}, {first[classes]['classes']}",
                classifier,
                told(classes, f"macro F1, {classifier}"),
                f"{100 * first[classes]['untrained'][f'macro F1, {classifier}']:.1f}",
                told(classes, f"accuracy, {classifier}"),
            )
            for classes in ("seen", "unseen")
            for classifier in first[classes]["F1"]
        ),
    )


def _plankton_confusions() -> str:
    """The commonest confusions of one seed, seen classes beside unseen ones."""
    cell = _newest("plankton")[0]

    def told(pairs: list[list[Any]], place: int) -> tuple[str, str]:
        if place >= len(pairs):
            return "", ""
        true, taken, rate = pairs[place]
        return f"{_species(true)} for {_species(taken)}", f"{100 * rate:.0f} %"

    most = max(len(cell[classes]["confusions"]) for classes in ("seen", "unseen"))
    return _table(
        ("seen classes", "rate", "unseen classes", "rate"),
        (
            (*told(cell["seen"]["confusions"], place), *told(cell["unseen"]["confusions"], place))
            for place in range(most)
        ),
    )


def _species(name: str) -> str:
    """A class of CUB as people call it."""
    return name.partition(".")[2].replace("_", " ") or name


def _newest(name: str) -> list[dict[str, Any]]:
    """The lines of a ledger that the recipe of its last line made."""
    lines = _lines(name)
    return [line for line in lines if line["recipe"] == lines[-1]["recipe"]]


def _lines(name: str) -> list[dict[str, Any]]:
    path = Path(__file__).parent.parent / "benchmarks" / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _recalls(name: str) -> str:
    """The metrics of Al-Kaabi et al. of a book's single models, and paired differences of Recall@1, in percent."""
    folder = Path(__file__).parent.parent / "benchmarks" / "books" / name
    rows, differences = (_csv(folder / file) for file in ("table.csv", "recall.csv"))
    ends = ("difference", "low", "high", "p")
    told = {line["recipe"]: [float(line[end]) for end in ends] for line in differences if " + " not in line["to"]}
    others = ("Recall@2", "Recall@4", "Recall@8", "kNN-Acc")

    def percent(row: dict[str, str], *keys: str) -> str:
        first, *ends = (f"{100 * float(row[f'separate_{key}']):.1f}" for key in keys if row[f"separate_{key}"])
        return f"{first} ({' to '.join(ends)})" if ends else first

    return _table(
        ("", "NMI", "Recall@1", "difference", *others),
        (
            (
                row["recipe"],
                percent(row, "NMI", "NMI_min", "NMI_max"),
                percent(row, "Recall@1", "Recall@1_low", "Recall@1_high"),
                _difference(*told[row["recipe"]]) if row["recipe"] in told else "",
                *(percent(row, metric) for metric in others),
            )
            for row in rows
        ),
    )


def _csv(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _book(name: str) -> str:
    """The table of a book of `benchmarks/books`, in percent and points."""
    rows = _csv(Path(__file__).parent.parent / "benchmarks" / "books" / name / "table.csv")

    def value(row: dict[str, str], key: str) -> str:
        if not row[key]:
            return "–"
        mean, low, high = (f"{100 * float(row[part]):.1f}" for part in (key, f"{key}_low", f"{key}_high"))
        return f"{mean} ({low} to {high})"

    def difference(row: dict[str, str], kind: str) -> str:
        key = f"{kind}_difference"
        if not row[key]:
            return ""
        return _difference(*(float(row[f"{key}{end}"]) for end in ("", "_low", "_high", "_p")))

    header = ("", "MAP@R", "difference", "concatenated", "difference", "P@1", "validation")
    return _table(
        header,
        (
            (
                row["recipe"],
                value(row, "separate_MAP@R"),
                difference(row, "separate"),
                value(row, "concatenated_MAP@R"),
                difference(row, "concatenated"),
                value(row, "separate_P@1"),
                f"{100 * float(row['validation_MAP@R']):.1f}" if row["validation_MAP@R"] else "–",
            )
            for row in rows
        ),
    )


def _best() -> str:
    """Each method of the book `cub` at the learning rate that its validation folds choose."""
    rows = json.loads((Path(__file__).parent.parent / "benchmarks" / "books" / "cub" / "best.json").read_text())
    return _table(
        ("", "against", "difference", "concatenated"),
        (
            (
                row["method"],
                row["plain"],
                *(_difference(*row[kind].values()) for kind in ("separate", "concatenated")),
            )
            for row in rows
        ),
    )


def _difference(mean: float, low: float, high: float, p: float) -> str:
    """A difference of shares in points, with its interval and p."""
    told = "< 0.001" if p < 0.001 else f"= {p:.2g}"
    return f"{100 * mean:+.1f} ({100 * low:+.1f} to {100 * high:+.1f}), p {told}"


def _toy() -> str:
    """The proof of concept in two dimensions: mean and range over seeds."""
    cells = _lines("ccp_toy")
    measures = ("proxies' spread", "covering radius", "distance between classes", "MAP@R")

    def told(variant: str, measure: str) -> str:
        values = [cell[measure] for cell in cells if cell["variant"] == variant and cell[measure] is not None]
        if not values:
            return "–"
        scale, digits = (100, 1) if measure == "MAP@R" else (1, 3)
        mean, low, high = (scale * number for number in (sum(values) / len(values), min(values), max(values)))
        return f"{mean:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"

    variants = dict.fromkeys(cell["variant"] for cell in cells)
    return _table(("", *measures), ((variant, *(told(variant, m) for m in measures)) for variant in variants))


def _ratio_table() -> str:
    """Table 1 of Kim et al. 2022: what scaling does to both formulations."""
    rows = [
        (f"{row['own']:g}", f"{row['other']:g}", *(f"{row[key]:.5g}" for key in _RATIO_COLUMNS))
        for row in _benchmark("dr_pictures")["table"]
    ]
    header = ("distance to the own class", "to the other", "p, SD-softmax", "loss", "p, DR with rho 2", "loss")
    return _table(header, rows)


_RATIO_COLUMNS = ("softmax_p", "softmax_loss", "dr_p", "dr_loss")


def _peaks() -> str:
    """Where each model finds the red class most and least probable."""

    def told(found: dict[str, Any]) -> str:
        points = " and ".join(f"({', '.join(f'{value:.3g}' for value in point)})" for point in found["points"])
        return f"at infinity; in the frame {points}" if found["beyond"] else points

    rows = [
        (
            name,
            f"{row['own']:.3f}",
            told(row["largest"]),
            f"{row['largest']['p']:.3g}",
            f"{row['other']:.2g}",
            told(row["smallest"]),
            f"{row['smallest']['p']:.2g}",
        )
        for name, row in _benchmark("dr_pictures")["models"].items()
        if not name.endswith("doubled")
    ]
    header = ("", "p at red", "most probable at", "p there", "p at green", "least probable at", "p there")
    return _table(header, rows)


def _peers_features() -> str:
    """Who has what: yes, no, in part, or how many; judgements link to the page they rest on."""
    result = _benchmark("peers")
    names = list(result["features"][0]["cells"])

    def told(cell: dict[str, str] | None) -> str:
        if cell is None:
            return "–"
        return f"[{cell['says']}°]({cell['link']})" if cell["how"] == "judged" else cell["says"]

    rows, theme = [], None
    for row in result["features"]:
        if row["theme"] != theme:
            theme = row["theme"]
            rows.append((f"**{theme}**", *[""] * len(names)))
        rows.append((row["what"], *(told(row["cells"][name]) for name in names)))
    versions = ", ".join(f"{name} {version}" for name, version in result["peers"].items())
    return f"Asked on {result['date']}; versions: {versions}.\n\n{_table(('', *names), rows)}"


def _peers_evidence() -> str:
    """What each answer rests on."""
    result = _benchmark("peers")
    names = list(result["features"][0]["cells"])

    def told(cell: dict[str, str] | None) -> str:
        if cell is None:
            return "–"
        return cell["evidence"] + (" (read in its source)" if cell["how"] == "read" else "")

    rows = [(row["what"], *(told(row["cells"][name]) for name in names)) for row in result["features"]]
    return _table(("", *names), rows)


def _peers_speed() -> str:
    """The time of others as multiples of ours, in the last full run."""
    result = _benchmark("peers")
    if "speed" not in result:
        return "Not measured yet: `python benchmarks/peers.py`."
    notes = {line["what"]: line["note"] for line in result["speed"] if line["note"]}
    rows = [
        (
            line["what"],
            line["contender"],
            f"{line['ratio']:.3g} ({line['low']:.3g} to {line['high']:.3g})",
            notes.get(line["what"], ""),
        )
        for line in result["speed"]
        if line["contender"] != "nearkin"
    ]
    machine = result["machine"]
    caption = f"{machine['cpu']}, {machine['threads']} threads, torch {machine['torch']}:"
    extra = "; ".join(f"{line['contender']} {line['extra MB']:.0f} MB" for line in result["memory"])
    memory = f"Peak memory beside the inputs, of the metrics of 20,000 items in 20 classes: {extra}."
    left = _table(("not measured", "why"), result["left out"])
    table = _table(("what", "beside", "its time / ours (range)", ""), rows)
    return f"{caption}\n\n{table}\n\n{memory}\n\n{left}"


def _cost_of_loss(loss: str) -> str:
    """What the last full run of the benchmark of losses measured of one of them."""
    if not (Path(__file__).parent.parent / "benchmarks" / "losses.json").exists():
        return "Not measured yet: `python benchmarks/losses.py` does."
    result = _benchmark("losses")
    machine = result["machine"]
    rows = [
        (row["setting"], f"{row['milliseconds']:.3g} ms", f"{row['ratio']:.3g}")
        for row in result["table"]
        if row["loss"] == loss
    ]
    caption = (
        f"`python benchmarks/losses.py`, torch {machine['torch']}, one thread: the loss of a batch and its gradient, "
        "without a network, in embeddings of 128 dimensions. The ratio is to "
        "[`normalized-softmax`](normalized-softmax.md), which took turns with it."
    )
    return f"{_table(('', 'time', 'ratio'), rows)}\n\n{caption}"


def _result_of_loss(loss: str) -> str:
    """One loss on the unseen birds of CUB, beside the default loss, a plain softmax and raw features."""
    from nearkin.metrics import class_bootstrap

    cells = _lines("cub_frozen")
    classes = sorted(cells[0]["gain per class"])

    def gains(of: str) -> np.ndarray:
        """Gain in MAP@R over raw features of each class, averaged over seeds."""
        return np.mean([[cell["gain per class"][one] for one in classes] for cell in cells if cell["loss"] == of], 0)

    def interval(values: np.ndarray) -> str:
        low, high = class_bootstrap(values, np.array(classes))
        return f"{100 * values.mean():+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"

    def row(of: str) -> tuple[str, ...]:
        mine = [cell for cell in cells if cell["loss"] == of]
        means = [f"{100 * sum(cell[key] for cell in mine) / len(mine):.1f}" for key in ("MAP@R", "P@1")]
        beside = "" if of == _BASELINE else interval(gains(of) - gains(_BASELINE))
        return (f"`{of}`", means[0], interval(gains(of)), beside, means[1])

    shown = dict.fromkeys((loss, "proxy-anchor", _BASELINE))
    raw = (
        "raw features, 1280 values",
        f"{100 * cells[0]['raw MAP@R']:.1f}",
        "",
        "",
        f"{100 * cells[0]['raw P@1']:.1f}",
    )
    header = ("", "MAP@R", "gain over raw features", f"over `{_BASELINE}`", "P@1")
    caption = (
        "`python benchmarks/cub_frozen.py`: the 100 unseen classes of CUB-200-2011, a head of 128 dimensions on cached "
        "features of a frozen EfficientNet-Lite0, the recipe's settings, not tuned; means over three seeds, in "
        "percent, with 95 % intervals over classes."
    )
    return f"{caption}\n\n{_table(header, [*map(row, shown), raw])}"


_BASELINE = "normalized-softmax"


def _rows_of_made(benchmark: str, name: str, words: tuple[str, ...]) -> str:
    """Of a table that a benchmark has written, the rows that begin or go on with one of the words."""
    head, line, *rows = _made(benchmark, name).splitlines()
    kept = [row for row in rows if any(f"| {word} |" in row for word in words)]
    return "\n".join([head, line, *kept])


def _differences_of_book(name: str, words: str) -> str:
    """Of a book's single models, the differences in MAP@R of all whose name has the words."""
    rows = _csv(Path(__file__).parent.parent / "benchmarks" / "books" / name / "table.csv")
    ends = ("", "_low", "_high", "_p")
    return _table(
        ("", "MAP@R", "difference to the plain loss"),
        (
            (
                row["recipe"],
                f"{100 * float(row['separate_MAP@R']):.1f}",
                _difference(*(float(row[f"separate_difference{end}"]) for end in ends)),
            )
            for row in rows
            if words in row["recipe"] and row["separate_difference"]
        ),
    )


def _recall_differences(words: tuple[str, ...]) -> str:
    """Paired differences of Recall@1 in the book `adversary-cub`, of recipes that end with one of the words."""
    rows = _csv(Path(__file__).parent.parent / "benchmarks" / "books" / "adversary-cub" / "recall.csv")
    return _table(
        ("", "against", "Recall@1, points"),
        (
            (row["recipe"], row["to"], _difference(*(float(row[end]) for end in ("difference", "low", "high", "p"))))
            for row in rows
            if row["recipe"].endswith(words)
        ),
    )


def _quoted(page: str, heading: str) -> str:
    """The first table below a heading of a page of results."""
    text = (Path(__file__).parent / "results" / f"{page}.md").read_text(encoding="utf-8")
    part = text.partition(f"## {heading}\n")[2]
    return re.search(r"(?:^\|.*\n)+", part, flags=re.MULTILINE)[0].strip()


def _slug(loss: str) -> str:
    """A loss's name as a mark can have it."""
    return re.sub(r"\W", "_", loss)


def _benchmark(name: str) -> dict[str, Any]:
    return json.loads((Path(__file__).parent.parent / "benchmarks" / f"{name}.json").read_text())


def _bars(result: dict[str, Any]) -> str:
    """The figures of a benchmark beside their bars."""
    rows = [
        (meaning, _figure(result["figures"][name], bar), f"{sign} {bar:g}")
        for name, (meaning, sign, bar) in result["bars"].items()
    ]
    return _table(("what", "measured", "bar"), rows)


def _figure(value: float, bar: float) -> str:
    """A figure with as many digits as its bar is worth."""
    if bar >= 10:
        return f"{value:.0f}"
    return f"{value:.2g}" if abs(value) < 0.1 else f"{value:.2f}"


_TABLES = {
    "catalogue": _catalogue,
    "peers_features": _peers_features,
    "peers_evidence": _peers_evidence,
    "peers_speed": _peers_speed,
    "recipes": _recipes,
    "keys": _keys,
    "backbones": _backbones,
    "retrieval": _retrieval,
    "confidence": _confidence,
    "gallery": _gallery,
    "service": _service,
    "suspects": _suspects,
    "scale_gallery": lambda: _benchmark("scale_gallery")["page"],
    "poolings": _poolings,
    "scale": _scale,
    "scale_caching": partial(_scale_part, "gradient caching"),
    "scale_int8": _scale_int8,
    "scale_engines": partial(_scale_part, "ONNX Runtime"),
    "scale_processes": partial(_scale_part, "two processes"),
    "ccp": _ccp,
    "adversary": _adversary,
    "gsp": _gsp,
    "gsp_tokens": _tokens,
    "gsp_attributes": _attributes,
    "gsp_collage": _collage,
    **{
        f"fewshot_{name.replace('-', '_')}": partial(_made, "fewshot", name)
        for name in ("accuracy", "scaled", "speed", "dynamics", "long", "scaled-dynamics")
    },
    **{f"taxonomy_{name}": partial(_made, "taxonomy", name) for name in ("runs", "spaces")},
    **{
        f"unified_{name}": partial(_made, "unified", name)
        for name in (
            *("claims", "further", "runs", "rates", "parameters"),
            *("fashion", "cifar", "pacs", "pacs_differences", "speakers", "cub", "omniglot"),
        )
    },
    **{
        f"taxonomy_{task}{part}": partial(_made, "taxonomy", task + part)
        for task in ("cifar", "omniglot")
        for part in (
            "",
            "_correlations",
            "_tests",
            "_tests_last",
            "_tests_tree",
            "_tests_informed",
            "_ranks",
            "_scale",
        )
    },
    "episodes": partial(_timed, "episodes", "milliseconds", "ms"),
    "hierarchy": partial(_timed, "hierarchy", "seconds", "s"),
    "similarity": partial(_timed, "similarity", "seconds", "s"),
    "vaa": _voronoi,
    **{
        f"robustness_{name}": partial(_made, "robustness", name)
        for name in (
            *("toy", "fashion", "masking", "claims", "trades"),
            *("cifar", "changes", "correlations", "cub", "runs"),
        )
    },
    **{
        f"cost_of_{_slug(page.stem)}": partial(_cost_of_loss, page.stem)
        for page in (Path(__file__).parent / "methods").glob("*.md")
    },
    **{f"result_of_{_slug(cell['loss'])}": partial(_result_of_loss, cell["loss"]) for cell in _lines("cub_frozen")},
    "fewshot_protonet": partial(_rows_of_made, "fewshot", "accuracy", ("ProtoNet",)),
    "fewshot_nearest": partial(_rows_of_made, "fewshot", "accuracy", ("1-NN",)),
    "taxonomy_corr": partial(
        _rows_of_made, "taxonomy", "cifar", ("CORR, MDS", "NormFace, MDS", "NormFace, standard", "softmax")
    ),
    "taxonomy_proxies": partial(
        _rows_of_made,
        "taxonomy",
        "cifar",
        (
            "NormFace, standard",
            "NormFace, EMA",
            "NormFace, MDS",
            "NormFace, dynamic",
            "ProxyDR, standard",
            "ProxyDR, EMA",
            "ProxyDR, MDS",
            "ProxyDR, dynamic",
        ),
    ),
    "tree_losses": lambda: (Path(__file__).parent.parent / "benchmarks" / "tree_losses.md").read_text("utf-8").strip(),
    "book_memory": partial(_differences_of_book, "cub", "-xbm"),
    "recalls_attention": partial(_recall_differences, ("GDFL", "stage averages")),
    "recalls_opponents": partial(_recall_differences, ("Soft-Adv", "Adapt-Adv", "+ Adv", "Energy")),
    "sizes_differences": partial(_quoted, "sizes", "Differences, in points of MAP@R"),
    "confidence_clean": partial(_quoted, "confidence", "Clean queries"),
    "plankton": _plankton,
    "plankton_confusions": _plankton_confusions,
    "ccp_toy": _toy,
    "dr_table": _ratio_table,
    "dr_peaks": _peaks,
    "ccp_best": _best,
    **{f"book_{name}": partial(_book, name) for name in ("rates", "cub", "omniglot", "ablation")},
    **{f"book_{name.replace('-', '_')}": partial(_book, name) for name in ("gsp-cub",)},
    **{f"recalls_{name.replace('-', '_')}": partial(_recalls, name) for name in ("adversary-cub", "adversary-cifar")},
}
