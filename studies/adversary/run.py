"""Do attended stages and a class adversary help on unseen classes? The fair protocol's answer, book by book.

    python studies/adversary/run.py cub       three losses, each with energy confusion, Soft-Adv and Adapt-Adv; for
                                                   triplets also each part alone, and what else attention could be
    python studies/adversary/run.py cifar     the same on CIFAR-100, a network trained from scratch, and triplets
                                                   with Adapt-Adv of several weights
    python studies/adversary/run.py forms     CIFAR-100: multiplicative attention, and an adaptive adversary with
                                                   smoothed labels, each against the form of the recipes
    python studies/adversary/run.py cifar --only triplet "triplet + Soft-Adv"

Each book is a directory beside this file with a ledger, tables and a picture; a stopped one goes on where it was.
Needs the data: NEARKIN_DATA or --data-root.

CUB has a frozen EfficientNet-Lite0. Its last vector and, for attention, the maps of the three stages before it are
cached. Features without attention cannot change there, so where the adversary has no attention it sees the embeddings.
Attention compares in a space of 128 dimensions (two matrices, the paper's equation 10), which costs a sixth of the
recipes' lighter form (equation 11, in the 1,280 dimensions of the last vector).
CIFAR-100 has a Conv4, all of which learns, and the adversary always sees the features.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the repository, to import studies

import numpy as np

from nearkin.data.catalogue import cache_directory
from nearkin.data.sources import open_data
from nearkin.metrics import holm, paired_permutation
from nearkin.protocol import Benchmark, Candidate, run_benchmark
from nearkin.report import draw_sweep
from nearkin.storage import replacing
from studies.places import IMAGES, book_folder
from studies.random_start import load_recipe

SEEDS = 1

LOSSES = {
    "triplet": ["objective.parameters.margin=0.01"],
    "proxy-nca": ["data.per_class=2"],
    "angular": [],
}
"""What makes a plain recipe's loss and its batch of 64 images those of the paper."""
SHARED = ["model.dimension=64", "training.lr=1e-3"]
"""One rate for all losses; proxies learn at their recipe's multiple of it."""


@dataclass(frozen=True)
class Data:
    """Where models are trained.

    Args:
        source: name of the data set.
        settings: of all models.
        attention: how attention compares, where there is attention.
        seen: what the adversary sees where there is no attention.
        folds: how many.
    """

    source: str
    settings: Sequence[str]
    attention: Sequence[str]
    seen: str
    folds: int


CUB = Data(
    "cub200",
    [
        "data.split=column",
        "model.cache_views={flip: true, crops: 2, crop_scale: [0.4, 1.0]}",
        "training.max_steps=500",
        "training.evaluate_every=50",
        "training.patience=6",
    ],
    ["model.attention.matrices=2", "model.attention.hidden=128"],
    "embeddings",
    folds=4,
)
CIFAR = Data(
    "cifar100",
    [
        "data.split=auto",
        "data.crop=random",
        "data.crop_scale=[0.5, 1.0]",
        "data.flip=true",
        "data.jitter=0.2",
        "model.backbone=conv4",
        "model.pretrained=false",
        "model.channels=3",
        "model.size=32",
        "model.freeze=null",
        "model.cache=false",
        "training.backbone_lr_factor=1.0",
        "training.max_steps=400",
        "training.evaluate_every=100",
        "training.patience=null",
    ],
    [],
    "features",
    folds=2,
)

ENERGY = "objective.regularisers=[{name: energy-confusion, weight: 0.1}]"
ADVERSARY = "objective.regularisers=[{{name: class-adversary, weight: {weight}, parameters: {{vectors: {seen}}}}}]"
ALONE = "objective.regularisers=[]"
APPENDED = "model.attention.append=true"
ALIKE = "model.attention.normalise=true"
LAMBDAS = (0.1, 0.5, 1.0)
USUAL = 0.5
ONE_MATRIX = ["model.attention.matrices=1", "model.attention.hidden=null"]


@dataclass(frozen=True)
class Study:
    """A book: its data, and who takes part."""

    data: Data
    candidates: Callable[[Data], list[Candidate]]


def candidate(data: Data, loss: str, method: str, name: str, *changes: str) -> Candidate:
    """A method of a loss: "" for the plain one, or what follows its name in the name of a recipe."""
    attention = data.attention if method else []
    settings = [*data.settings, *SHARED, *LOSSES[loss], *attention, *changes]
    return Candidate(name, load_recipe(f"{loss}{method}", settings))


def of_loss(data: Data, loss: str) -> list[Candidate]:
    """The lines of the paper's tables 3 to 5 for one loss."""
    return [
        candidate(data, loss, "", loss),
        candidate(data, loss, "-adapt-adv", f"{loss} + Adapt-Adv"),
        candidate(data, loss, "-soft-adv", f"{loss} + Soft-Adv"),
        candidate(data, loss, "", f"{loss} + Energy", ENERGY),
    ]


def parts(data: Data) -> list[Candidate]:
    """What each part gives alone, as in the paper's table 6."""
    adversary = ADVERSARY.format(weight=USUAL, seen=data.seen)
    return [
        candidate(data, "triplet", "-gdfl", "triplet + GDFL"),
        candidate(data, "triplet", "", "triplet + Adv", adversary),
    ]


def stages(data: Data) -> list[Candidate]:
    """Whether it is the attention or the stages, and what the last vector beside them gives."""
    return [
        candidate(data, "triplet", "-gdfl", "triplet + stage averages", "model.attention.score=average", *ONE_MATRIX),
        candidate(data, "triplet", "-gdfl", "triplet + GDFL and u", APPENDED, ALIKE),
        candidate(data, "triplet", "-adapt-adv", "triplet + Adapt-Adv and u", APPENDED, ALIKE),
    ]


def cub(data: Data) -> list[Candidate]:
    first, *others = LOSSES
    rest = [one for loss in others for one in of_loss(data, loss)]
    attended = [candidate(data, loss, "-adapt-adv", f"{loss} + GDFL", ALONE) for loss in others]
    return [*of_loss(data, first), *parts(data), *rest, *attended, *stages(data)]


def cifar(data: Data) -> list[Candidate]:
    first, *others = LOSSES
    rest = [one for loss in others for one in of_loss(data, loss)]
    swept = [
        candidate(data, "triplet", "-adapt-adv", weighted(weight), ADVERSARY.format(weight=weight, seen=data.seen))
        for weight in LAMBDAS
        if weight != USUAL
    ]
    return [*of_loss(data, first), *parts(data), *rest, *swept]


MULTIPLICATIVE, SMOOTHED = "triplet + multiplicative GDFL", "triplet + Adapt-Adv, smoothed labels"
FORMS = {MULTIPLICATIVE: "triplet + GDFL", SMOOTHED: "triplet + Adapt-Adv"}
"""What the recipes of the paper leave out, and what it is compared with."""


def forms(data: Data) -> list[Candidate]:
    """The other form of attention, and both halves of the paper's third contribution at once."""
    return [
        candidate(data, "triplet", "-gdfl", "triplet + GDFL"),
        candidate(data, "triplet", "-gdfl-multiplicative", MULTIPLICATIVE),
        candidate(data, "triplet", "-adapt-adv", "triplet + Adapt-Adv"),
        candidate(data, "triplet", "-adapt-adv-smooth", SMOOTHED),
    ]


def weighted(weight: float) -> str:
    """The line of triplets with Adapt-Adv of a weight: 0 is attention alone."""
    names = {0.0: "triplet + GDFL", USUAL: "triplet + Adapt-Adv"}
    return names.get(weight, f"triplet + Adapt-Adv, lambda {weight:g}")


def plain(name: str) -> str | None:
    """What a variant is compared with: the same loss by itself, or the usual form."""
    return FORMS[name] if name in FORMS else name.partition(" + ")[0] if " + " in name else None


STUDIES = {"cub": Study(CUB, cub), "cifar": Study(CIFAR, cifar), "forms": Study(CIFAR, forms)}


def draw_lambdas(done: Benchmark) -> bytes:
    """The paper's figure 14, of single models: intervals over classes, and of NMI the range over models."""
    rows = {row.name: row for row in done.summary.rows}
    places = [0.0, *LAMBDAS]
    shown = [*(rows[weighted(weight)] for weight in places), rows["triplet"]]
    kind = "separate"
    values = {
        "NMI": [(row.value(kind, "NMI")[0], *row.ranges[kind]) for row in shown],
        "Recall@1": [row.value(kind, "P@1") for row in shown],
    }
    return draw_sweep(
        {metric: {"Adapt-Adv": (places, [value for value, _, _ in found[:-1]])} for metric, found in values.items()},
        intervals={
            metric: {"Adapt-Adv": ([low for _, low, _ in found[:-1]], [high for _, _, high in found[:-1]])}
            for metric, found in values.items()
        },
        base={metric: found[-1] for metric, found in values.items()},
        of="unseen CIFAR-100 classes",
    )


def recall_differences(done: Benchmark, book: Path) -> list[dict[str, str | float]]:
    """Differences of Recall@1 of single models, over classes, as the table has those of MAP@R.

    First those to the loss alone, then what the adversary adds to attention; each kind is corrected by Holm for itself.
    """
    lines = [json.loads(line) for line in (book / "ledger.jsonl").read_text(encoding="utf-8").splitlines()]

    def per_class(name: str) -> dict[int, float]:
        cells = [line["per_class"]["P@1"] for line in lines if (line["recipe"], line["kind"]) == (name, "separate")]
        return dict(enumerate(np.mean(cells, axis=0).tolist()))

    attended = {f"{loss} + {kind}-Adv": f"{loss} + GDFL" for loss in LOSSES for kind in ("Adapt", "Soft")}
    found: list[dict[str, str | float]] = []
    for pairs in (done.contents.comparisons, attended):
        known = {name: base for name, base in pairs.items() if {name, base} <= done.contents.recipes.keys()}
        tests = [paired_permutation(per_class(name), per_class(base)) for name, base in known.items()]
        corrected = holm([test.p_value for test in tests])
        found += [
            {
                "recipe": name,
                "to": base,
                "difference": test.difference,
                "low": test.low,
                "high": test.high,
                "p": float(p),
            }
            for (name, base), test, p in zip(known.items(), tests, corrected, strict=True)
        ]
    return found


def tell(differences: list[dict[str, Any]]) -> None:
    for line in differences:
        points = f"{100 * line['difference']:+.1f} ({100 * line['low']:+.1f} to {100 * line['high']:+.1f})"
        print(f"Recall@1, {line['recipe']:40} against {line['to']:16} {points}, p = {line['p']:.2g}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("book", choices=list(STUDIES))
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="NAME", help="only these lines; the table, no pictures"
    )
    parser.add_argument("--data-root", type=Path, help="where the data is; default: NEARKIN_DATA")
    arguments = parser.parse_args()
    study, book = STUDIES[arguments.book], book_folder(f"adversary-{arguments.book}")
    candidates = study.candidates(study.data)
    names = [one.name for one in candidates]
    if unknown := set(arguments.only) - set(names):
        parser.error(f"the book has no line {min(unknown)!r}: it has {', '.join(names)}")
    candidates = [one for one in candidates if not arguments.only or one.name in arguments.only]
    done = run_benchmark(
        open_data(study.data.source, data_root=arguments.data_root),
        candidates,
        book,
        cache_directory=cache_directory() / "features",
        folds=study.data.folds,
        fold_order="random",
        seeds=SEEDS,
        against=None if arguments.only else {name: base for name in names if (base := plain(name)) in names},
        source=study.data.source,
    )
    print(done.tables.markdown())
    if done.interrupted or done.failures:
        return 130 if done.interrupted else 1
    if arguments.only:
        return 0
    (IMAGES / f"{book.name}.png").write_bytes((book / "comparison.png").read_bytes())
    if arguments.book == "cifar":
        (IMAGES / "adversary-lambda.png").write_bytes(draw_lambdas(done))
    differences = recall_differences(done, book)
    with replacing(book / "recall.csv") as temporary, open(temporary, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(differences[0]))
        writer.writeheader()
        writer.writerows(differences)
    tell(differences)
    return 0


if __name__ == "__main__":
    sys.exit(main())
