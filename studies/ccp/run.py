"""Does chance-constrained programming make pair losses better? The fair protocol's answer, book by book.

    python studies/ccp/run.py rates       learning rates, compared on CUB's validation folds
    python studies/ccp/run.py cub         every loss of the seed's table 3.1 on CUB-200-2011, cached features
    python studies/ccp/run.py omniglot    the main ones on Omniglot, a network from scratch
    python studies/ccp/run.py ablation    proxies, pool, proximal weight, batch size, and the controls
    python studies/ccp/run.py best        from the book `cub`: each method at the rate its validation folds choose

Each book is a directory beside this file with a ledger, tables and a picture; a stopped one goes on where it was.
Needs the data: NEARKIN_DATA or --data-root. The first half of `cub` is

    nearkin benchmark cub200 --recipes contrastive,contrastive-xbm,contrastive-ccp,... --folds 4 --seeds 1 --out BOOK

with the settings `CUB` and `BATCH` below.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the repository, to import studies

import numpy as np
from PIL import Image

from nearkin.data.catalogue import cache_directory
from nearkin.data.dataset import Dataset
from nearkin.data.sources import open_data
from nearkin.data.stores import ArrayStore
from nearkin.metrics import holm, paired_permutation
from nearkin.protocol import Candidate, run_benchmark
from studies.places import IMAGES, book_folder
from studies.random_start import load_recipe

FOLDS = 4

BUDGET = ["training.max_steps=3000", "training.evaluate_every=25", "training.patience=60"]
"""The seed's: validation every 25 steps, a stop after 60 without a gain."""
CUB = [
    *BUDGET,
    "data.split=column",
    "model.cache_views={flip: true, crops: 2, crop_scale: [0.4, 1.0]}",
]
BATCH = ["data.classes_per_batch=8", "data.per_class=4"]
OMNIGLOT = [
    "data.split=auto",
    "data.crop=random",
    "data.crop_scale=[0.8, 1.0]",
    "data.crop_ratio=[0.9, 1.1]",
    "data.flip=false",
    "data.workers=0",
    "model.backbone=lenet",
    "model.pretrained=false",
    "model.channels=1",
    "model.size=28",
    "model.dimension=64",
    "model.freeze=null",
    "model.cache=false",
    "training.backbone_lr_factor=1.0",
    "training.max_steps=1500",
    "training.evaluate_every=50",
    "training.patience=15",
]
RATES = ("1e-4", "3e-4", "1e-3")
SLOW, FAST = "1e-4", "1e-3"
"""What plain losses and chance-constrained ones want, by their validation MAP@R in the book `rates`; the recipes have
the fast one."""

PAIRS = ("contrastive-cosine", "contrastive", "multi-similarity", "triplet")
PROXIES = ("proxy-anchor", "proxy-nca++", "soft-triple")


@dataclass(frozen=True)
class Study:
    """A book: its data, how many seeds, who takes part, and the baseline (None: each its plain loss)."""

    data: str
    seeds: int
    candidates: Callable[[], list[Candidate]]
    against: str | None = None


def candidate(recipe: str, settings: Iterable[str], name: str | None = None) -> Candidate:
    return Candidate(name or recipe, load_recipe(recipe, list(settings)))


def rates() -> list[Candidate]:
    names = ("contrastive", "contrastive-ccp", "multi-similarity", "multi-similarity-ccp")
    chosen = []
    for rate in RATES:
        lr = f"training.lr={rate}"
        chosen += [candidate(name, [*CUB, *BATCH, lr], f"{name}, lr {rate}") for name in names]
        chosen.append(candidate("proxy-anchor", [*CUB, lr], f"proxy-anchor, lr {rate}"))
    return chosen


def cub() -> list[Candidate]:
    chosen = []
    for rate, suffix in ((FAST, ""), (SLOW, f", lr {SLOW}")):
        for loss in PAIRS:
            methods = ("", "-xbm", "-ccp") if loss.startswith("contrastive") else ("", "-ccp")
            settings = [*CUB, *BATCH, f"training.lr={rate}"]
            chosen += [candidate(f"{loss}{method}", settings, f"{loss}{method}{suffix}") for method in methods]
    return chosen + [candidate(loss, [*CUB, f"training.lr={FAST}"]) for loss in PROXIES]


def omniglot() -> list[Candidate]:
    few = "training.chance_constrained={proxies: 4, pool: 7}"  # some 700 classes, as the seed has it for thousands
    short = "training.cross_batch_memory={warmup_steps: 300}"
    plain_first = "training.chance_constrained.warmup_steps=500"
    methods = ("contrastive-ccp", "multi-similarity-ccp")
    settings = [*OMNIGLOT, *BATCH]
    return [
        candidate("contrastive", settings),
        candidate("contrastive-ccp", [*settings, few]),
        candidate("multi-similarity", settings),
        candidate("multi-similarity-ccp", [*settings, few]),
        candidate("contrastive-xbm", [*settings, short]),
        *(candidate(name, [*settings, few, plain_first], f"{name}, plain first") for name in methods),
    ]


def ablation() -> list[Candidate]:
    base, part = [*CUB, *BATCH, f"training.lr={FAST}"], "training.chance_constrained"
    variations = {
        "one problem": f"{part}={{instances: 1}}",
        "samples as anchors": f"{part}={{anchors: samples}}",
        "1 proxy": f"{part}={{proxies: 1}}",
        "2 proxies": f"{part}={{proxies: 2}}",
        "16 proxies, pool 24": f"{part}={{proxies: 16, pool: 24}}",
        "pool 8 (random)": f"{part}={{pool: 8}}",
        "pool 24": f"{part}={{pool: 24}}",
        "lambda 0": f"{part}={{proximal: 0}}",
        "lambda 2e-2": f"{part}={{proximal: 2e-2}}",
    }
    chosen = [candidate("contrastive-ccp", base, "ccp"), candidate("contrastive", base, "plain")]
    chosen += [candidate("contrastive-ccp", [*base, change], f"ccp, {name}") for name, change in variations.items()]
    for classes in (4, 32):
        size = f"data.classes_per_batch={classes}"
        chosen.append(candidate("contrastive", [*base, size], f"plain, batch {4 * classes}"))
        chosen.append(candidate("contrastive-ccp", [*base, size], f"ccp, batch {4 * classes}"))
    return chosen


def in_memory(dataset: Dataset) -> Dataset:
    """The same images at 32 px, decoded once: reading files would take most of the time of so small a network."""
    paths = dataset.manifest.paths
    images = np.stack(
        [np.asarray(dataset.image(i).convert("L").resize((32, 32), Image.Resampling.BOX)) for i in range(len(dataset))]
    )
    return Dataset(dataset.manifest, ArrayStore(images, list(paths)), name=dataset.name)


def versus_base(names: Iterable[str]) -> dict[str, str]:
    """Each "…-ccp" and "…-xbm", also with a setting after it, against the plain loss with the same setting."""
    found = {name: name.replace("-ccp", "").replace("-xbm", "") for name in names if "-ccp" in name or "-xbm" in name}
    return {name: base.replace(", plain first", "") for name, base in found.items()}


def best() -> list[dict[str, Any]]:
    """Each pair loss against itself with a schedule, both at that of two rates with the better validation MAP@R.

    The rates were chosen on the folds, the differences are on the test classes: over classes, corrected by Holm.
    """
    lines = [
        json.loads(line) for line in (book_folder("cub") / "ledger.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    cells: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for line in lines:
        cells.setdefault((line["recipe"], line["kind"]), []).append(line)

    def chosen(name: str) -> str:
        rates = [name, f"{name}, lr {SLOW}"]
        return max(rates, key=lambda rate: np.mean([line["validation_MAP@R"] for line in cells[rate, "separate"]]))

    def per_class(name: str, kind: str) -> dict[int, float]:
        return dict(enumerate(np.mean([line["per_class"]["MAP@R"] for line in cells[name, kind]], axis=0).tolist()))

    methods = [name for name, kind in cells if kind == "separate" and name.endswith(("-xbm", "-ccp"))]
    pairs = [(chosen(name), chosen(name.rpartition("-")[0])) for name in methods]
    rows = [{"method": ours, "plain": theirs} for ours, theirs in pairs]
    for kind in ("separate", "concatenated"):
        tests = [paired_permutation(per_class(ours, kind), per_class(theirs, kind)) for ours, theirs in pairs]
        for row, test, p in zip(rows, tests, holm([test.p_value for test in tests]), strict=True):
            found = {"difference": test.difference, "low": test.low, "high": test.high, "p": p}
            row[kind] = {name: round(value, 5) for name, value in found.items()}
    return rows


STUDIES = {
    "rates": Study("cub200", 1, rates),
    "cub": Study("cub200", 1, cub),
    "omniglot": Study("omniglot", 1, omniglot),
    "ablation": Study("cub200", 1, ablation, against="ccp"),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("book", choices=[*STUDIES, "best"])
    parser.add_argument("--data-root", type=Path, help="where the data is; default: NEARKIN_DATA")
    arguments = parser.parse_args()
    if arguments.book == "best":
        rows = best()
        (book_folder("cub") / "best.json").write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
        for row in rows:
            told = [
                f"{100 * found['difference']:+.1f} ({100 * found['low']:+.1f} to {100 * found['high']:+.1f}), "
                f"p = {found['p']:.2g}"
                for found in (row["separate"], row["concatenated"])
            ]
            print(f"{row['method']:32} against {row['plain']:28} {told[0]}; concatenated {told[1]}")
        return 0
    study = STUDIES[arguments.book]
    dataset = open_data(study.data, data_root=arguments.data_root)
    if study.data == "omniglot":
        dataset = in_memory(dataset)
    candidates = study.candidates()
    done = run_benchmark(
        dataset,
        candidates,
        book_folder(arguments.book),
        cache_directory=cache_directory() / "features",
        folds=FOLDS,
        fold_order="random",
        seeds=study.seeds,
        against=study.against or versus_base(candidate.name for candidate in candidates),
        source=study.data,
    )
    print(done.tables.markdown())
    if done.interrupted or done.failures:
        return 130 if done.interrupted else 1
    shutil.copyfile(book_folder(arguments.book) / "comparison.png", IMAGES / f"ccp-{arguments.book}.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
