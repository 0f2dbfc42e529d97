"""Who speaks? Pairs of recordings of 20 speakers that were never heard, by recipe, features and score.

    python studies/voices/run.py              train what is not finished, three seeds each; then the page
    python studies/voices/run.py --only "learned similarity" --seeds 0
    python studies/voices/run.py --page       the page alone

The recipe is the shipped one, as `nearkin train audiomnist --recipe speaker-verification` runs it; the other cells
change what their name says. Speakers 1 to 40 of AudioMNIST train, six of them only to choose the weights, and 41 to 60
test. Each finished model is a line of `ledger.jsonl`. Needs the data: NEARKIN_DATA or --data-root.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the repository, to import studies

from nearkin.allocator import tune_allocator
from studies.places import located

tune_allocator()  # as the nearkin command does, before anything is imported that starts threads

import numpy as np

from nearkin.audits.trials import list_pairs, means, measure_trials, rows_of, side_scores
from nearkin.data.audio import LogMelTransform
from nearkin.data.audio_augment import coloured_noise, with_noise
from nearkin.data.dataset import Dataset
from nearkin.data.inputs import InputSpec
from nearkin.data.sources import open_data
from nearkin.models import Embedder
from nearkin.protocol import Candidate
from nearkin.recipe import Recipe, load_recipe
from nearkin.spaces import Space, Sphere
from nearkin.training import Run, train

LEDGER = located("studies/voices/ledger.jsonl")
SEEDS = (0, 1, 2)
LEARNED, SOFTMAX, ANCHOR, OLD, NO_SPEEDS, NO_NOISE, VARIED, SHORT, LDA = (
    "learned similarity",
    "softmax",
    "ProxyAnchor",
    "old features",
    "no speed copies",
    "no noise",
    "rooms, gain and masks besides",
    "learned similarity, 300 steps of 48",
    "LDA",
)
PLAIN = ["data.audio.noise=0"]
MORE = [
    "data.audio.reverberation=0.3",
    "data.audio.gain=3",
    "data.audio.band_mask=6",
    "data.audio.time_mask=10",
]
CELLS: dict[str, tuple[str, list[str]]] = {
    LEARNED: ("speaker-verification", []),
    SOFTMAX: ("speaker-verification", ["objective.loss=softmax", "model.similarity=null"]),
    OLD: ("speaker-verification", [*PLAIN, "data.audio.speeds=[]", "data.audio.bands=centred"]),
    ANCHOR: ("audio", []),
    NO_SPEEDS: ("speaker-verification", ["data.audio.speeds=[]"]),
    NO_NOISE: ("speaker-verification", PLAIN),
    VARIED: ("speaker-verification", MORE),
    SHORT: (
        "speaker-verification",
        ["training.max_steps=300", "training.evaluate_every=150", "data.classes_per_batch=24", "data.workers=0"],
    ),
}
"""Name of a cell to its recipe and what it changes, those that decide first."""
GROUP = 3
"""Recordings on each side of a trial of groups."""
TOP = 200
"""Strangers that as-norm takes."""
CONDITIONS = ("8 kHz", "clipped", "noise, 10 dB")
"""What happens to the asking side of all pairs; the enrolled side stays as it is."""


def recipe_of(name: str, seed: int) -> Recipe:
    """How a cell is trained."""
    base, changes = CELLS[name]
    return load_recipe(base, [*changes, f"training.seed={seed}"])


def digest_of(name: str, seed: int) -> str:
    """What tells a cell's line from that of another recipe."""
    return "" if name == LDA else Candidate("cell", recipe_of(name, seed)).digest()


def run_cell(dataset: Dataset, name: str, seed: int) -> dict[str, Any]:
    """Train one model and ask it about the speakers that it never heard."""
    recipe = recipe_of(name, seed)
    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        result = train(
            dataset, recipe, Run(Path(folder) / "run"), source="study", cache_directory=Path(folder), progress=False
        )
    if result.interrupted:
        raise SystemExit(130)
    model = result.embedder.eval()
    test, known = dataset.where(split="test"), dataset.select(np.isin(dataset.labels, model.card.classes.train))
    facts = {"seconds": round(result.state.seconds, 1), "steps": result.state.step, "best_step": result.state.best_step}
    facts["processor_seconds"] = round(time.process_time() - began, 1)
    vectors, strangers = (model.encode(part, progress=False) for part in (test, known))
    found = asked(model, vectors, strangers, test, seed)
    if name == LEARNED:
        found |= shifted(model, vectors, test, seed)
    return {**facts, "EER": found}


def run_lda(dataset: Dataset) -> dict[str, Any]:
    """Linear discriminants of the mean and deviation of each mel band: a baseline without a network."""
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

    began = time.process_time()
    transform = LogMelTransform(InputSpec.audio(bands="standardised"), whole=True)
    parts = []
    for split in ("train", "test"):
        items = dataset.where(split=split)
        bands = [transform(_wave(items, row))[0].numpy() for row in range(len(items))]
        parts.append(np.stack([np.concatenate([one.mean(axis=1), one.std(axis=1)]) for one in bands]))
    solved = LinearDiscriminantAnalysis().fit(parts[0], dataset.where(split="train").labels.astype(str))
    strangers, vectors = (solved.transform(part).astype(np.float32) for part in parts)
    seconds = round(time.process_time() - began, 1)
    return {
        "seconds": seconds,
        "steps": 0,
        "best_step": 0,
        "processor_seconds": seconds,
        "EER": asked(Sphere(), vectors, strangers, dataset.where(split="test"), 0),
    }


def _wave(items: Dataset, row: int) -> np.ndarray:
    return np.asarray(items.load(row))


def asked(
    model: Embedder | Space, vectors: np.ndarray, strangers: np.ndarray, test: Dataset, seed: int
) -> dict[str, list[float]]:
    """Task and score to the EER and its interval over speakers."""
    found: dict[str, list[float]] = {}
    space = model.space if isinstance(model, Embedder) else model
    for task, size, content in (("pairs", 1, "digit"), ("three against three", GROUP, None)):
        trials = list_pairs(test, enrol=size, seed=seed)
        rows = rows_of(trials, test)
        sides = means(vectors, rows, space)
        for norm, cohort, top in (("", None, None), (", as-norm", strangers, TOP)):
            measured = measure_trials(side_scores(model, sides, trials, cohort, top), trials, rows, test, content)
            for (part, score), result in measured.results.items():
                key = f"{task if size > 1 else part}|{score}{norm}"
                found[key] = [round(x, 5) for x in (result.values["EER"], *measured.intervals[part, score])]
    return found


def shifted(model: Embedder, vectors: np.ndarray, test: Dataset, seed: int) -> dict[str, list[float]]:
    """Condition and score to the EER of all pairs, their asking side changed, and its interval."""
    from scipy.signal import resample_poly

    rng = np.random.default_rng(seed)
    change = {
        "8 kHz": lambda wave: resample_poly(resample_poly(wave, 1, 2), 2, 1),
        "clipped": lambda wave: np.clip(wave, -0.3 * np.abs(wave).max(), 0.3 * np.abs(wave).max()),
        "noise, 10 dB": lambda wave: with_noise(wave, coloured_noise(wave.size, 0.0, rng), 10.0),
    }
    trials = list_pairs(test, seed=seed)
    rows = rows_of(trials, test)
    place = np.array([side[0] for side in rows])
    found = {}
    for name in CONDITIONS:
        waves = [change[name](_wave(test, row)).astype(np.float32) for row in range(len(test))]
        both = np.concatenate([vectors[place], model.encode(waves, progress=False)[place]])
        moved = type(trials)(trials.sides * 2, trials.enrolled, trials.queries + len(rows), trials.same)
        measured = measure_trials(side_scores(model, both, moved), moved, [*rows, *rows], test)
        for (_, score), result in measured.results.items():
            found[f"{name}|{score}"] = [round(x, 5) for x in (result.values["EER"], *measured.intervals["all", score])]
    return found


def read_ledger() -> list[dict[str, Any]]:
    """Every finished cell of the recipes of now."""
    lines = [json.loads(line) for line in LEDGER.read_text().splitlines()] if LEDGER.exists() else []
    known = {*CELLS, LDA}
    return [line for line in lines if line["cell"] in known and line["recipe"] == digest_of(line["cell"], line["seed"])]


def finish(dataset: Dataset, names: list[str], seeds: list[int]) -> None:
    """Train every cell that is not in the ledger."""
    done = {(line["cell"], line["seed"]) for line in read_ledger()}
    wanted = [(LDA, 0)] + [(name, seed) for seed in seeds for name in CELLS]
    for name, seed in wanted:
        if (name, seed) in done or (names and name not in names):
            continue
        measured = run_lda(dataset) if name == LDA else run_cell(dataset, name, seed)
        line = {"cell": name, "seed": seed, "recipe": digest_of(name, seed), **measured}
        with open(LEDGER, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        told = {key: value[0] for key, value in line["EER"].items() if "norm" not in key}
        print(f"{name}, seed {seed}: {told} ({line['processor_seconds']} s)", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", choices=[*CELLS, LDA], help="cells")
    parser.add_argument("--seeds", nargs="+", default=list(SEEDS), type=int, help="only these seeds")
    parser.add_argument("--page", action="store_true", help="the page alone")
    parser.add_argument("--data-root", type=Path, help="where the data is; default: NEARKIN_DATA")
    arguments = parser.parse_args()
    if not arguments.page:
        finish(open_data("audiomnist", data_root=arguments.data_root), arguments.only, arguments.seeds)
    from studies.voices.page import write_page

    write_page(read_ledger())
    return 0


if __name__ == "__main__":
    sys.exit(main())
