"""Is "known" honest? Galleries of 30 unseen classes with five items each, asked about what is and is not enrolled.

    python studies/unknown/run.py            finish the grid, print the table
    python studies/unknown/run.py --check    exit code 0 only if the bars hold
    python studies/unknown/run.py --quick    one small draw of one data set; the ledger is not touched

A model of the default recipe (multi-similarity, a head on a frozen EfficientNet-Lite0 that starts whitened) learns from
some of the training classes of each data set. Its unseen classes are halved: scores and levels were chosen on galleries
drawn from the first half (`design`), and the bars are for galleries drawn from the second (`measured`). A draw enrols
30 classes; the queries are other items of these, and items of the classes of the same half that were not drawn. The
gallery sees none of them. `own` asks galleries that hold the model's own training items about new items of the same
classes: how sure, and how right? Each finished cell is a line of `ledger.jsonl`. Needs the data: NEARKIN_DATA or
--data-root.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the repository, to import studies

import numpy as np

from nearkin.audits.subject import embed_items
from nearkin.data.dataset import Dataset
from nearkin.data.sources import open_data
from nearkin.data.splits import Split
from nearkin.gallery import Gallery, Match
from nearkin.metrics import calibration_metrics
from nearkin.models import Embedder, FeatureCache, build_embedder, cache_point
from nearkin.recipe import load_recipe
from nearkin.storage import cache_directory
from nearkin.training import Run
from nearkin.training.fit import train
from studies.places import located, models

SETS = ("cub200", "emoji", "omniglot")
FEWER = {"cub200": (50, 100), "omniglot": (60, 80)}
"""Sets of which only the first training and test classes are taken: embedding all of them takes much longer."""
ENROLLED, EACH = 30, 5
PARTS = ("design", "measured")
DRAWS = {"measured": 10, "design": 4}
STRANGERS = 20
"""Classes of a draw that are not enrolled, at the most."""
ASKED = 10
"""Items of a class that are asked about, at the most."""
OWN_SETS = ("cub200",)
MOST_STRANGERS, LEAST_NAMED = 0.10, 0.50
"""The bars: strangers that come back as known, and rightly named queries of enrolled classes that still do."""
LEDGER = located("studies/unknown/ledger.jsonl")


@dataclass(frozen=True)
class Cell:
    """One gallery."""

    data: str
    part: str
    draw: int

    def key(self) -> dict[str, Any]:
        return vars(self)


def grid() -> list[Cell]:
    drawn = [Cell(data, part, draw) for part in reversed(PARTS) for data in SETS for draw in range(DRAWS[part])]
    return drawn + [Cell(data, "own", draw) for data in OWN_SETS for draw in range(3)]


@cache
def chosen(name: str, root: str | None) -> tuple[Dataset, np.ndarray]:
    """The items of a data set that the study uses, and which of them are of unseen classes."""
    folder = root or os.environ.get("NEARKIN_DATA")
    if not folder:
        raise SystemExit("Set NEARKIN_DATA, or give --data-root: the directory with the data sets.")
    dataset = open_data(Path(folder) / f"{name}.zip", data_root=None)
    if name in FEWER:
        labels, part = dataset.labels, dataset.manifest.column("split")
        sides = [
            np.unique(labels[part == side])[:most] for side, most in zip(("train", "test"), FEWER[name], strict=True)
        ]
        dataset = dataset.select(np.flatnonzero(np.isin(labels, np.concatenate(sides))))
    return dataset, dataset.manifest.column("split") == "test"


@cache
def trained(name: str, root: str | None) -> tuple[Embedder, np.ndarray]:
    """A model of the default recipe, trained if it is not there yet, and the vectors of the unseen items.

    The vectors have a row for every item, with zeros for those of training classes.
    """
    dataset, unseen = chosen(name, root)
    kept, run = cache_directory() / "features", Run(models() / "unknown" / name)
    if not run.model_file.exists():
        result = train(
            dataset, load_recipe(), run, source=name, cache_directory=kept, resume=run.exists, progress=False
        )
        if result.interrupted:
            raise SystemExit(130)
    model = run.model()
    found = embed_items(model, dataset.select(np.flatnonzero(unseen)), kept, progress=False)
    vectors = np.zeros((len(dataset), found.shape[1]), np.float32)
    vectors[unseen] = found
    return model, vectors


def classes_of(name: str, part: str, root: str | None) -> np.ndarray:
    """The unseen classes of a half."""
    dataset, unseen = chosen(name, root)
    names = np.random.default_rng(1).permutation(np.unique(dataset.labels[unseen]))
    return names[PARTS.index(part) :: len(PARTS)]


def drawn(cell: Cell, root: str | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows to enrol, rows to ask of the same classes, and rows of strangers."""
    dataset, _ = chosen(cell.data, root)
    rng = np.random.default_rng([PARTS.index(cell.part), cell.draw])
    names = rng.permutation(classes_of(cell.data, cell.part, root))[: ENROLLED + STRANGERS]
    items = [rng.permutation(np.flatnonzero(dataset.labels == name)) for name in names]
    enrolled, asked, strangers = [], [], []
    for place, rows in enumerate(items):
        if place < ENROLLED:
            enrolled.append(rows[:EACH])
            asked.append(rows[EACH : EACH + ASKED])
        else:
            strangers.append(rows[:ASKED])
    return np.concatenate(enrolled), np.concatenate(asked), np.concatenate(strangers)


def run_cell(cell: Cell, root: str | None) -> dict[str, Any]:
    if cell.part == "own":
        return {**cell.key(), **own_items(cell, root)}
    model, vectors = trained(cell.data, root)
    labels = chosen(cell.data, root)[0].labels
    enrolled, asked, strangers = drawn(cell, root)
    with tempfile.TemporaryDirectory() as folder:
        gallery = Gallery.create(
            Path(folder) / "drawn.gallery", dimension=model.dimension, name=cell.data, space=model.space
        )
        with gallery:
            gallery.add(vectors[enrolled], labels[enrolled].tolist())
            fitted = gallery.recalibrate()
            ours = gallery.identify_vectors(vectors[asked], neighbours=1)
            theirs = gallery.identify_vectors(vectors[strangers], neighbours=1)
    right = np.array([match.label for match in ours]) == labels[asked]
    horizon = fitted.horizon
    assert horizon.threshold is not None
    assert horizon.forecast is not None
    return {
        **cell.key(),
        "score": horizon.score,
        "named": round(float(right.mean()), 5),
        "strangers": shares(theirs),
        "enrolled": shares(ours),
        "rightly named": shares([match for match, good in zip(ours, right, strict=True) if good]),
        "forecast": {name: round(value, 5) for name, value in vars(horizon.forecast).items()},
        "by distance alone": {
            name: round(float(np.mean([near(match) <= horizon.threshold for match in matches])), 5)
            for name, matches in (("strangers", theirs), ("enrolled", ours))
        },
        "compared": {one["score"]: round(one["named_known"], 5) for one in horizon.compared},
    }


def near(match: Match) -> float:
    return match.neighbours[0].distance


def shares(matches: list[Match]) -> dict[str, float]:
    """How many came back as known, unknown and neither."""
    names = {"known": True, "unknown": False, "cannot tell": None}
    return {
        name: round(float(np.mean([match.known is value for match in matches])), 5) for name, value in names.items()
    }


@cache
def own_model(name: str, root: str | None) -> tuple[Embedder, Dataset, np.ndarray, np.ndarray]:
    """A model of half of the items of the training classes; these classes' data, which items trained, which may ask."""
    dataset, unseen = chosen(name, root)
    data = dataset.select(np.flatnonzero(~unseen))
    rng, kept = np.random.default_rng(3), cache_directory() / "features"
    names = rng.permutation(np.unique(data.labels))
    half = np.concatenate([rng.permutation(np.flatnonzero(data.labels == label))[::2] for label in names])
    validated = np.isin(data.labels, names[: len(names) // 4])
    used = np.isin(np.arange(len(data)), half)
    run = Run(models() / "unknown" / f"{name}-own")
    if not run.model_file.exists():
        recipe, rows = load_recipe(), np.flatnonzero(validated & used)
        untrained = build_embedder(recipe.model)
        views, dtype = recipe.model.cache_views, recipe.model.cache_dtype
        features = FeatureCache.build(
            untrained, data, at=cache_point(untrained), directory=kept, views=views, dtype=dtype
        )
        split = Split(np.flatnonzero(used & ~validated), rows, rows[:0])
        result = train(
            data,
            recipe,
            run,
            source=name,
            cache_directory=kept,
            split=split,
            features=features,
            resume=run.exists,
            progress=False,
        )
        if result.interrupted:
            raise SystemExit(130)
    return run.model(), data, np.flatnonzero(used), np.flatnonzero(~used & ~validated)


def own_items(cell: Cell, root: str | None) -> dict[str, Any]:
    """A gallery of the model's own training and validation items, asked about items that it was not trained on.

    Once as it is, noticing its training items, and once as if nobody had told it (`unnoticed`).
    """
    model, data, used, fresh = own_model(cell.data, root)
    rng = np.random.default_rng([9, cell.draw])
    trained_classes = rng.permutation(model.card.classes.train)[:ENROLLED]
    names = [*trained_classes, *model.card.classes.val]
    items = data.select(np.concatenate([rng.permutation(used[data.labels[used] == label])[:EACH] for label in names]))
    asked = rng.permutation(fresh[np.isin(data.labels[fresh], trained_classes)])[: ASKED * ENROLLED]
    queries = model.encode([data.load(row) for row in asked], progress=False)
    told: dict[str, Any] = {"items asked": len(asked)}
    with (
        tempfile.TemporaryDirectory() as place,
        Gallery.create(Path(place) / "own.gallery", model, items, progress=False) as gallery,
    ):
        told["noticed"] = how_sure(gallery, queries, data.labels[asked])
        gallery.store.set_note("training items", {"classes": [], "added": []})
        told["unnoticed"] = how_sure(gallery, queries, data.labels[asked])
    return told


def how_sure(gallery: Gallery, queries: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """What a gallery says of queries with labels, and how often it is right."""
    fitted = gallery.recalibrate()
    found = gallery.identify_vectors(queries, neighbours=1)
    right = [match.label == label for match, label in zip(found, labels, strict=True)]
    sure = [match.probability or 0.0 for match in found]
    return {
        "said": round(float(np.mean(sure)), 5),
        "was": round(float(np.mean(right)), 5),
        "ECE": round(float(calibration_metrics(sure, right).values["ECE"]), 5),
        "calibrated on": fitted.identification.items,
    }


def read_ledger() -> list[dict[str, Any]]:
    return [json.loads(line) for line in LEDGER.read_text().splitlines()] if LEDGER.exists() else []


def finish(cells: list[Cell], root: str | None) -> None:
    """Run what the ledger lacks."""
    done = [{key: line[key] for key in Cell("", "", 0).key()} for line in read_ledger()]
    for cell in cells:
        if cell.key() not in done:
            line = run_cell(cell, root)
            with open(LEDGER, "a", encoding="utf-8") as ledger:
                ledger.write(json.dumps(line) + "\n")
            print(json.dumps(line), flush=True)


def rows_of(lines: list[dict[str, Any]], part: str) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    for data in SETS:
        found = [line for line in lines if (line["data"], line["part"]) == (data, part)]
        if found:
            yield data, found


def table(lines: list[dict[str, Any]], part: str) -> list[str]:
    """Means over draws, with the lowest and the highest."""
    out = [
        f"| {part} | draws | named rightly | strangers: known | forecast | unknown | by distance alone "
        "| rightly named: known | forecast | unknown | scores |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for data, found in rows_of(lines, part):
        columns = [
            [line["named"] for line in found],
            [line["strangers"]["known"] for line in found],
            [line["forecast"]["strangers_known"] for line in found],
            [line["strangers"]["unknown"] for line in found],
            [line["by distance alone"]["strangers"] for line in found],
            [line["rightly named"]["known"] for line in found],
            [line["forecast"]["named_known"] for line in found],
            [line["rightly named"]["unknown"] for line in found],
        ]
        names = sorted({line["score"] or "none" for line in found})
        used = ", ".join(f"{name} {sum((line['score'] or 'none') == name for line in found)}" for name in names)
        out.append(f"| {data} | {len(found)} | {' | '.join(map(in_percent, columns))} | {used} |")
    return out


def in_percent(values: list[float]) -> str:
    return f"{100 * np.mean(values):.1f} ({100 * min(values):.1f} to {100 * max(values):.1f})"


def own_table(lines: list[dict[str, Any]]) -> list[str]:
    out = ["| own training items | calibrated on | said | was | ECE |", "|---|---|---|---|---|"]
    for data in OWN_SETS:
        found = [line for line in lines if (line["data"], line["part"]) == (data, "own")]
        for name in ("noticed", "unnoticed") if found else ():
            values = [in_percent([line[name][key] for line in found]) for key in ("said", "was", "ECE")]
            items = sorted({line[name]["calibrated on"] for line in found})
            out.append(f"| {data}, {name} | {', '.join(map(str, items))} items | {' | '.join(values)} |")
    return out


def broken_bars(lines: list[dict[str, Any]]) -> list[str]:
    """What does not hold, in words."""
    done = [{key: line[key] for key in Cell("", "", 0).key()} for line in lines]
    missing = [cell for cell in grid() if cell.key() not in done]
    broken = [f"{len(missing)} cells are not measured"] if missing else []
    for data, found in rows_of(lines, "measured"):
        strangers = np.mean([line["strangers"]["known"] for line in found])
        named = np.mean([line["rightly named"]["known"] for line in found])
        if strangers > MOST_STRANGERS:
            broken.append(f"{data}: {100 * strangers:.1f} % of strangers come back as known")
        if named < LEAST_NAMED:
            broken.append(f"{data}: only {100 * named:.1f} % of the rightly named come back as known")
    return broken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="fail unless the bars hold")
    parser.add_argument("--quick", action="store_true", help="one draw of one data set")
    parser.add_argument("--only", help="data sets to go on with, such as cub200,emoji; default: all")
    parser.add_argument("--data-root", help="where the data sets are; default: NEARKIN_DATA")
    arguments = parser.parse_args()
    if arguments.quick:
        print(json.dumps(run_cell(Cell("emoji", "design", 0), arguments.data_root)))
        return 0
    wanted = arguments.only.split(",") if arguments.only else SETS
    finish([cell for cell in grid() if cell.data in wanted], arguments.data_root)
    lines = read_ledger()
    print("\n".join([*table(lines, "measured"), "", *table(lines, "design"), "", *own_table(lines)]))
    broken = broken_bars(lines)
    for sentence in broken:
        print(sentence)
    return int(arguments.check and bool(broken))


if __name__ == "__main__":
    sys.exit(main())
