"""What a learned similarity looks like: digits embedded in the plane, regions of prototypes and levels of S.

python studies/similarity_pictures/run.py       train for about a minute and draw docs/images/learned-similarity.png
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the repository, to import studies

import numpy as np
import torch

import nearkin
from nearkin.data.sources import open_data
from nearkin.models import SimilarityModel
from nearkin.report.probability import LearnedPlane, draw_learned_plane
from nearkin.storage import replacing
from studies.places import IMAGES

DATA, RECIPE, CHOSEN = "digits", "learned-similarity", "5"
SETTINGS = (
    "data.split=items",
    "data.test_items=0",
    "data.crop=centre",
    "data.flip=false",
    "data.classes_per_batch=10",
    "data.per_class=8",
    "data.workers=0",
    "model.backbone=lenet",
    "model.pretrained=false",
    "model.channels=1",
    "model.size=28",
    "model.freeze=null",
    "model.cache=false",
    "model.dimension=2",
    "model.space=euclidean",
    "training.max_steps=800",
    "training.evaluate_every=100",
)
PIXELS, MARGIN = 300, 0.08
PICTURE = IMAGES / "learned-similarity.png"


def plane_of(model: SimilarityModel, points: np.ndarray, labels: np.ndarray) -> LearnedPlane:
    """Scores on a grid around the embeddings."""
    low, high = points.min(axis=0), points.max(axis=0)
    low, high = low - MARGIN * (high - low), high + MARGIN * (high - low)
    x, y = (low[axis] + (np.arange(PIXELS) + 0.5) / PIXELS * (high - low)[axis] for axis in (0, 1))
    places = np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2).astype(np.float32)
    with torch.no_grad():
        scores = model.class_scores(torch.from_numpy(places)).numpy().reshape(PIXELS, PIXELS, -1)
    codes = np.searchsorted(np.array(model.classes), labels)
    extent = (float(low[0]), float(high[0]), float(low[1]), float(high[1]))
    prototypes = model.prototypes.points.numpy()
    return LearnedPlane(points, codes, prototypes, scores, extent, model.classes, model.classes.index(CHOSEN))


def main() -> int:
    model = nearkin.fit(DATA, RECIPE, overrides=SETTINGS)
    assert isinstance(model, SimilarityModel)
    if not model.card["finished"]:
        raise SystemExit("Training was stopped, and nothing is drawn: run it again.")
    dataset = open_data(DATA, progress=False)
    points = model.encode(dataset, progress=False)
    right = float((model.classify(points).labels == dataset.labels).mean())
    with replacing(PICTURE) as temporary:
        temporary.write_bytes(draw_learned_plane(plane_of(model, points, dataset.labels)))
    told = f"{len(points)} digits in the plane, most of them trained on; {right:.1%} go to their own prototype"
    print(f"{told}. {PICTURE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
