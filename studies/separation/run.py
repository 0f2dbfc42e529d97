"""Seen and unseen birds under many objectives: what separates trained classes, and what that costs new ones.

    python studies/separation/run.py           every model and seed; finished ones are kept
    python studies/separation/run.py --below-zero   CosFace with margins below 0 as well
    python studies/separation/run.py --quick   a few classes and steps of one model; keeps nothing

For Kim 2023, section 2.4 (after Liu et al. 2020, Roth et al. 2020 and Kornblith et al. 2021) and for the classifier of
article I. Data and network are those of `plankton`: of each of the first 100 species of CUB-200-2011 20 photographs
are kept out ("seen"), the others train a linear head of 128 dimensions on a frozen EfficientNet-Lite0; 20 photographs
of each of the other 100 species are "unseen". Trained are CosFace with several margins, NormFace with several scales,
losses of several kinds, and a softmax classifier; all for the same number of steps, and the last weights are taken.
Of seen and unseen photographs there is the geometry of the embedding, the accuracy of episodes and MAP@R, and of the
classifier the F1 of each seen class on the half that `plankton/run.py` names. Lines of
studies/separation/ledger.jsonl. Needs the data: NEARKIN_DATA or --data-root.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the repository, to import studies

from nearkin.allocator import tune_allocator

tune_allocator()  # as the nearkin command does, before anything is imported that starts threads

import numpy as np
import torch
from sklearn.metrics import f1_score

from nearkin.audits import subject_of_model
from nearkin.audits.subject import Subject
from nearkin.data.catalogue import cache_directory
from nearkin.data.dataset import Dataset
from nearkin.data.sources import open_data
from nearkin.metrics import fewshot_accuracy, geometry_metrics, retrieval_metrics
from nearkin.metrics.labels import halves
from nearkin.protocol import Candidate
from nearkin.recipe import Recipe
from nearkin.training import Run, train
from studies.places import located
from studies.plankton.run import SETS, divide
from studies.random_start import load_recipe

LEDGER = located("studies/separation/ledger.jsonl")
SEEDS = (0, 1, 2)
STEPS = 600
SETTINGS = [
    "data.split=fraction",
    "data.test_classes=0",
    "data.val_classes=0",
    "data.crop=centre",
    "model.fit=pad",
    f"training.max_steps={STEPS}",
    f"training.evaluate_every={STEPS}",
    "training.patience=null",
]
QUICK = ["training.max_steps=20", "training.evaluate_every=20"]
MARGINS = (0.0, 0.1, 0.2, 0.35, 0.5)
"""Of CosFace."""
BELOW_ZERO = (-0.5, -0.3, -0.1)
"""More of them, which the ledger does not have yet."""
SCALES = (4, 8, 16, 32, 64)
LOSSES = ("arcface", "circle", "contrastive", "multi-similarity", "proxy-anchor", "proxy-nca", "supcon", "triplet")
CLASSIFIER = "classifier"
CELLS: dict[str, tuple[str, list[str]]] = {
    CLASSIFIER: ("softmax", []),
    **{
        f"margin {m:g}": ("cosface", [f"objective.parameters={{margin: {m}, scale: 30}}"])
        for m in (*MARGINS, *BELOW_ZERO)
    },
    **{f"scale {s}": ("normface", [f"objective.parameters={{scale: {s}, proxies: learned}}"]) for s in SCALES},
    **{loss: (loss, []) for loss in LOSSES},
}
"""Name to recipe and its changes."""
SHOTS, QUERIES, EPISODES = (1, 5), 15, 600


def recipe_of(name: str, seed: int, more: tuple[str, ...] = ()) -> Recipe:
    """How a model is trained."""
    base, changes = CELLS[name]
    return load_recipe(base, [*SETTINGS, *changes, f"training.seed={seed}", *more])


def cell(learned: Dataset, asked: dict[str, Dataset], name: str, recipe: Recipe) -> dict[str, Any]:
    """Train one model and judge it on photographs that it has not seen, of classes that it has and has not."""
    features = cache_directory() / "features"
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder) / "run")
        result = train(learned, recipe, run, source="cub200", cache_directory=features, progress=False)
    found: dict[str, Any] = {
        "cell": name,
        "seed": recipe.training.seed,
        "recipe": Candidate("cell", recipe).digest(),
        "seconds": round(result.state.seconds, 1),
    }
    for part, items in asked.items():
        subject = subject_of_model(result.embedder, items, cache_directory=features, progress=False)
        found[part] = _judged(subject)
        if name == CLASSIFIER and part == "seen":
            found["F1"] = _named(subject, result.objective.loss, tuple(learned.classes), recipe.audit.seed)
    return found


def _judged(subject: Subject) -> dict[str, float]:
    """Geometry, episodes and MAP@R of some photographs."""
    values = geometry_metrics(subject.embeddings, subject.labels)
    for shot in SHOTS:
        told = fewshot_accuracy(
            subject.embeddings,
            subject.labels,
            way=5,
            shot=shot,
            query=min(QUERIES, int(np.unique(subject.labels, return_counts=True)[1].min()) - shot),
            episodes=EPISODES,
            space=subject.space,
        )
        values[f"5-way {shot}-shot"] = told.accuracy
    values["MAP@R"] = retrieval_metrics(subject.embeddings, subject.labels, space=subject.space).values["MAP@R"]
    return {name: round(float(value), 5) for name, value in values.items()}


def _named(subject: Subject, loss: Any, names: tuple[str, ...], seed: int) -> dict[str, float]:
    """The classifier's own F1 of each class, on the half of the photographs that votes name in plankton/run.py."""
    _, rows = halves(subject.labels, seed)
    with torch.no_grad():
        scores = loss.eval().class_scores(torch.as_tensor(subject.embeddings[rows]))
    guessed = np.array(names)[scores.argmax(dim=1).numpy()]
    each = f1_score(subject.labels[rows].astype(str), guessed.astype(str), labels=list(names), average=None)
    return {name: round(float(value), 4) for name, value in zip(names, each, strict=True)}


def read_ledger() -> dict[tuple[str, int], dict[str, Any]]:
    """Every finished model that the recipes of now would make."""
    lines = [json.loads(line) for line in LEDGER.read_text().splitlines()] if LEDGER.exists() else []
    wanted = {(name, seed): Candidate("cell", recipe_of(name, seed)).digest() for name in CELLS for seed in SEEDS}
    return {
        (line["cell"], line["seed"]): line
        for line in lines
        if line["recipe"] == wanted.get((line["cell"], line["seed"]))
    }


def tell(lines: dict[tuple[str, int], dict[str, Any]]) -> None:
    """Print means over seeds."""
    shown = ("phi", "R2", "rho", "5-way 1-shot", "MAP@R")
    print(f"\n{'':>18}" + "".join(f"{f'{part} {name}':>20}" for part in SETS for name in shown))
    for cell_name in CELLS:
        own = [line for (name, _), line in lines.items() if name == cell_name]
        if own:
            means = [np.mean([line[part][name] for line in own]) for part in SETS for name in shown]
            print(f"{cell_name:>18}" + "".join(f"{value:20.3f}" for value in means))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one model, a few classes and steps; keeps nothing")
    parser.add_argument("--below-zero", action="store_true", help="also CosFace with margins below 0")
    parser.add_argument("--data-root", type=Path, help="where the data is; default: NEARKIN_DATA")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.quick:
        learned, asked = divide(open_data("cub200", data_root=arguments.data_root), classes=6)
        line = cell(learned, asked, CLASSIFIER, recipe_of(CLASSIFIER, 0, tuple(QUICK)))
        tell({(CLASSIFIER, 0): line})
        return 0
    done = read_ledger()
    wanted = [name for name in CELLS if arguments.below_zero or "margin -" not in name]
    missing = [(name, seed) for seed in SEEDS for name in wanted if (name, seed) not in done]
    if missing:
        learned, asked = divide(open_data("cub200", data_root=arguments.data_root))
        for name, seed in missing:
            done[name, seed] = cell(learned, asked, name, recipe_of(name, seed))
            with open(LEDGER, "a", encoding="utf-8") as file:
                file.write(json.dumps(done[name, seed]) + "\n")
            print(f"{name}, seed {seed}: {done[name, seed]['seconds']} s", flush=True)
    tell(done)
    return 0


if __name__ == "__main__":
    sys.exit(main())
