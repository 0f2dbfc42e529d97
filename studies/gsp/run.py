"""Do generalized sum pooling and the zero-shot prediction loss help on CUB? The fair protocol's answer.

    python studies/gsp/run.py cub          four losses, each with GAP, ZS, GSP and both; C2 also with CCP
    python studies/gsp/run.py settings     contrastive with other budgets, sharpnesses, numbers of prototypes, and
                                                proxy-anchor with the sharpness of pair losses

Each book is a directory beside this file with a ledger, tables and a picture; a stopped one goes on where it was.
Needs the data: NEARKIN_DATA or --data-root. The trunk is a frozen EfficientNet-Lite0 whose 7x7x1280 maps are cached.
GAP with a head behind it is the 1x1 convolution before it: both are linear and the weights sum to 1.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the repository, to import studies

from nearkin.data.catalogue import cache_directory
from nearkin.data.sources import open_data
from nearkin.protocol import Candidate, run_benchmark
from studies.places import IMAGES, book_folder
from studies.random_start import load_recipe

FOLDS, SEEDS = 4, 1
CUB = [
    "data.split=column",
    "model.cache_views={flip: true, crops: 2, crop_scale: [0.4, 1.0]}",
    "training.max_steps=1000",
    "training.evaluate_every=50",
    "training.patience=8",
]
PAIRS = ["data.classes_per_batch=8", "data.per_class=4", "training.lr=3e-4"]
PROXIES = ["training.lr=1e-3"]
"""Rates that suit the losses with GAP, by the book `rates` of ccp/run.py; the other variants take them over."""
LOSSES = {"contrastive": PAIRS, "multi-similarity": PAIRS, "proxy-nca++": PROXIES, "proxy-anchor": PROXIES}
ALONE = ["objective.weight=1", "objective.regularisers=[]"]
"""Without the zero-shot prediction loss."""
AVERAGE = ["model.pooling_parameters.budget=1"]
USUAL = "budget 0.3, sharpness 5, 64 prototypes, lambda 0.1"
"""The settings of the recipe `contrastive-gsp`."""


@dataclass(frozen=True)
class Study:
    """A book: who takes part, and what each is compared with."""

    candidates: Callable[[], list[Candidate]]
    against: Callable[[str], str | None]


def candidate(recipe: str, settings: Iterable[str], name: str) -> Candidate:
    return Candidate(name, load_recipe(recipe, [*CUB, *settings]))


def cub() -> list[Candidate]:
    chosen = []
    for loss, settings in LOSSES.items():
        chosen += [
            candidate(loss, settings, loss),
            candidate(f"{loss}-gsp", [*settings, *AVERAGE], f"{loss} + ZS"),
            candidate(f"{loss}-gsp", [*settings, *ALONE], f"{loss} + GSP"),
            candidate(f"{loss}-gsp", settings, f"{loss} + GSP + ZS"),
        ]
    chosen.append(candidate("contrastive-ccp", PAIRS, "contrastive-ccp"))
    chosen.append(candidate("contrastive-ccp-gsp", PAIRS, "contrastive-ccp + GSP + ZS"))
    return chosen


def settings() -> list[Candidate]:
    part = "model.pooling_parameters"
    changes = {
        "budget 0.1": [f"{part}.budget=0.1"],
        "budget 0.6": [f"{part}.budget=0.6"],
        "sharpness 0.5": [f"{part}.sharpness=0.5"],
        "sharpness 20": [f"{part}.sharpness=20"],
        "16 prototypes": [f"{part}.prototypes=16"],
        "256 prototypes": [f"{part}.prototypes=256"],
        "lambda 0.5": ["objective.weight=0.5", "objective.regularisers=[{name: zero-shot, weight: 0.5}]"],
    }
    chosen = [candidate("contrastive-gsp", PAIRS, USUAL)]
    chosen += [candidate("contrastive-gsp", [*PAIRS, *change], name) for name, change in changes.items()]
    chosen.append(candidate("proxy-anchor-gsp", PROXIES, "proxy-anchor, sharpness 0.5"))
    chosen.append(candidate("proxy-anchor-gsp", [*PROXIES, f"{part}.sharpness=5"], "proxy-anchor, sharpness 5"))
    return chosen


def plain(name: str) -> str | None:
    """What a variant is compared with: the same loss with GAP."""
    return name.partition(" + ")[0] if " + " in name else None


def usual(name: str) -> str | None:
    """What a setting is compared with: the recipe's own."""
    if name == "proxy-anchor, sharpness 5":
        return "proxy-anchor, sharpness 0.5"
    return None if name in (USUAL, "proxy-anchor, sharpness 0.5") else USUAL


STUDIES = {"cub": Study(cub, plain), "settings": Study(settings, usual)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("book", choices=list(STUDIES))
    parser.add_argument("--data-root", type=Path, help="where the data is; default: NEARKIN_DATA")
    arguments = parser.parse_args()
    study, book = STUDIES[arguments.book], book_folder(f"gsp-{arguments.book}")
    candidates = study.candidates()
    pairs = {candidate.name: base for candidate in candidates if (base := study.against(candidate.name)) is not None}
    done = run_benchmark(
        open_data("cub200", data_root=arguments.data_root),
        candidates,
        book,
        cache_directory=cache_directory() / "features",
        folds=FOLDS,
        fold_order="random",
        seeds=SEEDS,
        against=pairs or None,
        source="cub200",
    )
    print(done.tables.markdown())
    if done.interrupted or done.failures:
        return 130 if done.interrupted else 1
    shutil.copyfile(book / "comparison.png", IMAGES / f"{book.name}.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
