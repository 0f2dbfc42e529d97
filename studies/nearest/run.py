"""Pixels as a distance: how well they tell classes apart, and who answers as the nearest neighbour does.

    python studies/nearest/run.py           every part and seed; finished ones are kept
    python studies/nearest/run.py --quick   one small network, a few steps; keeps nothing

For Kim 2023: preface, figure 1.1, table 5.3, article III. `inputs` measures the pixels of the 20 classes of CIFAR-100
that the study `robustness` trains on: class separation, the accuracy of 1-NN and of the nearest class mean on the test
images, which of these are right, and for how many images one of another class is nearer than the image's own copy,
shifted by one pixel. `ST` and `AT` are small networks on 1,000 images of Fashion-MNIST, trained as they are or on
images perturbed in L2: their accuracy, how many of 1,000 test images they name as 1-NN does, and the accuracy that
adversaries in balls and in cells leave them on 100 of their own training images. Lines of studies/nearest/ledger.jsonl.
Needs the data: NEARKIN_DATA or --data-root; Fashion-MNIST comes from the catalogue.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the repository, to import studies

from nearkin.allocator import tune_allocator

tune_allocator()  # as the nearkin command does, before anything is imported that starts threads

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from nearkin.attacks import Ball, climb, usual_step
from nearkin.attacks.norms import L2, as_norm
from nearkin.attacks.region import PIXELS
from nearkin.attacks.voronoi import adversarial_accuracy
from nearkin.data.dataset import Dataset
from nearkin.data.sources import open_data
from nearkin.metrics import class_separation
from studies.places import located
from studies.robustness.parts import chosen
from studies.unified.measures import pack

LEDGER = located("studies/nearest/ledger.jsonl")
SEEDS = (0, 1, 2, 3, 4)
ITEMS, ATTACKED = 1000, 100
EPS, INNER = 1.0, 7
"""Of the perturbed training, in L2; half the smallest distance of two images is larger."""
STEPS, BATCH, RATE = 600, 100, 1e-3
SHARES = (0.1, 0.2, 0.5, 1.0)
"""Epsilons of the attacks, as shares of the median distance to the nearest other image."""
NORMS = ("l2", "linf")


def pixels_of(dataset: Dataset, rows: np.ndarray, mode: str) -> Tensor:
    """Images (n, H, W, C) from 0 to 1."""
    images = [np.atleast_3d(np.asarray(dataset.image(int(row)).convert(mode), np.float32)) / 255 for row in rows]
    return torch.from_numpy(np.stack(images))


def inputs(data_root: Path | None) -> dict[str, Any]:
    """What pixels alone tell of the classes of CIFAR-100."""
    dataset = chosen("cifar", open_data("cifar100", data_root=data_root, progress=False))
    train = dataset.manifest.mask(split="train")
    known, asked = (pixels_of(dataset, np.flatnonzero(mask), "RGB") for mask in (train, ~train))
    labels, truth = dataset.labels[train].astype(str), dataset.labels[~train].astype(str)
    line: dict[str, Any] = {"part": "inputs", "seed": 0, "items": {"train": len(known), "test": len(asked)}}
    shifted = torch.zeros_like(known)
    shifted[:, :, 1:] = known[:, :, :-1]
    for name in NORMS:
        norm = as_norm(name)
        found = class_separation(known.flatten(1).numpy(), labels, norm=name)
        nearest = norm.distances(asked.flatten(1), known.flatten(1)).argmin(dim=1).numpy()
        names = np.unique(labels)
        means = torch.stack([known.flatten(1)[torch.from_numpy(labels == one)].mean(dim=0) for one in names])
        closest = norm.distances(asked.flatten(1), means).argmin(dim=1).numpy()
        gaps = norm.distances(known.flatten(1), known.flatten(1)).numpy()
        gaps[labels[:, None] == labels[None]] = np.inf
        own = norm.length((known - shifted).flatten(1)).numpy()
        line[name] = {
            **{key: round(float(value), 5) for key, value in found.items()},
            "1-NN": pack(labels[nearest] == truth),
            "NPC": pack(names[closest] == truth),
            "another class nearer than the shifted image": pack(gaps.min(axis=1) < own),
        }
    return line


def network(points: Tensor, codes: Tensor, robust: bool, seed: int, steps: int = STEPS) -> nn.Module:
    """A small classifier of points (n, D), trained on them as they are or as an attack has moved them."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(points.shape[1], 128), nn.ReLU(), nn.Linear(128, int(codes.max()) + 1))
    optimiser = torch.optim.Adam(model.parameters(), RATE)
    for _ in range(steps):
        rows = torch.randint(len(points), (BATCH,), generator=generator)
        x, y = points[rows], codes[rows]
        if robust:
            ball = Ball(x, EPS, L2(), PIXELS)
            x = climb(
                lambda at, y=y: cross_entropy(model(at), y, reduction="none"),
                x, ball, steps=INNER, step=usual_step(EPS, INNER),
            )  # fmt: skip
        loss = cross_entropy(model(x), y)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return model.eval().requires_grad_(False)


def compared(dataset: Dataset, robust: bool, seed: int, steps: int = STEPS) -> dict[str, Any]:
    """One network beside 1-NN: on test images, and under attack on its own."""
    began = time.perf_counter()
    rng = np.random.default_rng(seed)
    train = dataset.manifest.mask(split="train")
    parts = [rng.choice(np.flatnonzero(mask), ITEMS, replace=False) for mask in (train, ~train)]
    (known, asked) = (pixels_of(dataset, rows, "L").flatten(1) for rows in parts)
    names, codes = np.unique(dataset.labels[parts[0]].astype(str), return_inverse=True)
    truth = np.searchsorted(names, dataset.labels[parts[1]].astype(str))
    model = network(known, torch.from_numpy(codes), robust, seed, steps)
    neighbour = codes[L2().distances(asked, known).argmin(dim=1).numpy()]
    guessed = model(asked).argmax(dim=1).numpy()
    gaps = L2().distances(known, known).fill_diagonal_(torch.inf).amin(dim=1)
    found = adversarial_accuracy(
        lambda x: model(x.float()).log_softmax(dim=1),
        known,
        codes,
        [share * float(gaps.median()) for share in SHARES],
        classes=range(len(names)),
        attacked=np.arange(ATTACKED),
        steps=20,
        whole_cells=True,
    )
    wrong = neighbour != truth
    return {
        "part": "AT" if robust else "ST",
        "seed": seed,
        "accuracy": round(float((guessed == truth).mean()), 5),
        "1-NN accuracy": round(float((~wrong).mean()), 5),
        "agreement": round(float((guessed == neighbour).mean()), 5),
        "agreement where 1-NN errs": round(float((guessed == neighbour)[wrong].mean()), 5),
        "attacked": {key: value for key, value in found.to_dict().items() if key != "notes"},
        "seconds": round(time.perf_counter() - began, 1),
    }


def read_ledger() -> dict[tuple[str, int], dict[str, Any]]:
    """Part and seed to the line."""
    lines = [json.loads(line) for line in LEDGER.read_text().splitlines()] if LEDGER.exists() else []
    return {(line["part"], line["seed"]): line for line in lines}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one small network, a few steps; keeps nothing")
    parser.add_argument("--data-root", type=Path, help="where the data is; default: NEARKIN_DATA")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    fashion = open_data("fashion-mnist", data_root=arguments.data_root, progress=False)
    if arguments.quick:
        print(compared(fashion, True, 0, steps=5))
        return 0
    done = read_ledger()
    wanted = [("inputs", 0), *((part, seed) for seed in SEEDS for part in ("ST", "AT"))]
    for part, seed in wanted:
        if (part, seed) not in done:
            line = inputs(arguments.data_root) if part == "inputs" else compared(fashion, part == "AT", seed)
            with open(LEDGER, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            print({key: value for key, value in line.items() if key not in NORMS}, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
