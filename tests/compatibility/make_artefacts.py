"""Make one of everything that stays on a disk, and write down what it answers.

Run by `test_artefacts.py` in a process that imports the package of 38e006d: `PYTHONPATH=tree python make_artefacts.py
folder`. Nothing but documented names of that commit may be imported here, whatever they are called today.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

TINY = [
    "model.backbone=conv4",
    "model.pretrained=false",
    "model.channels=3",
    "model.size=16",
    "model.freeze=null",
    "model.cache=false",
    "model.dimension=16",
    "data.workers=0",
    "data.split=fraction",
    "data.test_classes=0.3",
    "data.val_classes=0.3",
    "training.max_steps=6",
    "training.lr_schedule=constant",
    "training.evaluate_every=2",
    "training.log_every=1",
    "training.backbone_lr_factor=1.0",
]
BATCH = ["data.classes_per_batch=3", "data.per_class=3"]

RUNS = {
    "proxies": ("proxy-anchor", [*BATCH, "training.ema=0.9", "training.cluster_items=3"]),
    "memory": ("contrastive-xbm", [*BATCH, "training.cross_batch_memory={batches: 2, warmup_steps: 2}"]),
    "constraints": (
        "contrastive-ccp",
        [
            *BATCH,
            "training.chance_constrained={proxies: 2, pool: 3, patience: 1}",
            "training.evaluate_every=1",
            "training.patience=null",
        ],
    ),
    "adversarial": ("triplet-at", [*BATCH, "training.adversarial.steps=2"]),
    "episodes": ("protonet-dr", ["training.episodic={way: 2, shot: 1, query: 2}"]),
    "similarity": ("learned-similarity", [*BATCH, "data.split=items", "model.similarity={hidden: 16}"]),
    "adversary": ("proxy-nca-adapt-adv", BATCH),
}
"""Runs whose checkpoints hold different things."""

CRASH = 4
"""The step that a run that is to be resumed does not get through."""

GALLERIES: dict[str, dict[str, Any]] = {
    "plain": {},
    "half": {"dtype": "float16"},
    "bytes": {"dtype": "int8"},
    "euclidean": {"space": "euclidean"},
    "graph": {"index": "hnsw"},
    "graph-of-bytes": {"index": "hnsw", "dtype": "int8"},
}
"""Galleries of vectors of one's own; those with a graph need faiss."""


def photos(folder: Path) -> None:
    """A folder with 8 classes of 6 images: a pattern of the class and noise."""
    from PIL import Image

    rng = np.random.default_rng(1)
    patterns = rng.integers(0, 256, (8, 24, 24, 3))
    for label, pattern in enumerate(patterns):
        (folder / f"class{label}").mkdir(parents=True)
        for item in range(6):
            pixels = np.clip(pattern + rng.normal(0, 60, pattern.shape), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"class{label}" / f"{item}.png")


def points(seed: int, each: int) -> tuple[np.ndarray, list[str]]:
    """Vectors (5 * each, 8) around 5 centres, and their labels."""
    centres = np.random.default_rng(0).normal(size=(5, 8))
    rng = np.random.default_rng(seed)
    vectors = np.repeat(centres, each, axis=0) + rng.normal(0, 0.7, (5 * each, 8))
    return vectors.astype(np.float32), [f"kind {label}" for label in np.repeat(np.arange(5), each)]


def asked(gallery: Any, queries: Any) -> dict[str, Any]:
    """All that a gallery answers, as JSON has it."""
    stats = asdict(gallery.stats())
    del stats["size"]
    told = {
        "calibration": gallery.calibration.to_dict(),
        "stats": stats,
        "items": [asdict(item) for item in gallery.items(limit=7)],
        "identify": [asdict(match) for match in gallery.identify_many(queries, neighbours=4)],
        "search": [[asdict(one) for one in near] for near in gallery.search_many(queries, 5)],
        "search where": [asdict(one) for one in gallery.search(queries[0], 3, where="shelf = 1")],
        "verify": [asdict(gallery.verify(queries[0], other, false_accept_rate=0.1)) for other in queries[:4]],
        "duplicates": [asdict(group) for group in gallery.find_duplicates(limit=5)],
        "suspects": [asdict(suspect) for suspect in gallery.suspicious_labels(limit=5)],
        "reliability": gallery.reliability(),
    }
    return json.loads(json.dumps(told, default=_plain))


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else str(value)


def picture_queries(folder: Path) -> list[str]:
    """Paths of images, as a gallery of images is asked with."""
    return [str(folder / "photos" / f"class{label}" / "5.png") for label in (0, 3, 6, 7)]


@contextmanager
def crash_in_step(number: int) -> Iterator[None]:
    """Let training fail in the number-th step from here on."""
    from nearkin.training import Loop

    plain, steps = Loop._step, iter(range(1, 10**6))

    def step(self: Any, *args: Any) -> Any:
        if next(steps) == number:
            raise KeyboardInterrupt
        return plain(self, *args)

    Loop._step = step
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        Loop._step = plain


def make_recipes(folder: Path) -> None:
    """Every shipped recipe, resolved, as a run keeps it."""
    from nearkin import list_recipes, load_recipe

    folder.mkdir()
    for name in list_recipes():
        load_recipe(name).save(folder / f"{name}.yaml")


def make_runs(folder: Path) -> None:
    """Each run twice: finished, and left by a crash."""
    import nearkin

    data = folder / "photos"
    for name, (recipe, more) in RUNS.items():
        settings = {"overrides": [*TINY, *more], "progress": False}
        nearkin.fit(data, recipe, out=folder / "finished" / name, **settings)
        with crash_in_step(CRASH):
            nearkin.fit(data, recipe, out=folder / "unfinished" / name, **settings)


def beside(run: Any) -> dict[str, Any]:
    """What a run keeps beside its model."""
    vectors, clusters = run.class_vectors(), run.clusters()
    return {
        "log": run.history(),
        "proxies": None if vectors is None else [list(vectors.names), vectors.proxies.tolist()],
        "clusters": None if clusters is None else {key: _summed(value) for key, value in vars(clusters).items()},
        "instances": [{key: _summed(value) for key, value in one.items()} for one in run.instances()],
    }


def _summed(values: Any) -> Any:
    """The shape and sum of numbers; of anything else what it says."""
    array = np.asarray(values)
    return [list(array.shape), float(array.sum())] if array.dtype.kind in "fiu" else str(array.tolist())


def make_models(folder: Path) -> dict[str, Any]:
    """Model files, their embeddings in all forms, and an audit."""
    import nearkin
    from nearkin.models.bulk import embed_shards
    from nearkin.training import Run

    data, queries = folder / "photos", picture_queries(folder)
    (folder / "models").mkdir()
    told: dict[str, Any] = {}
    for name in RUNS:
        model = nearkin.load(folder / "finished" / name)
        model.save(folder / "models" / f"{name}.safetensors")
        told[name] = {"embeddings": model.encode(queries, progress=False).tolist(), "print": model.fingerprint()}
        told[name]["beside"] = beside(Run(folder / "finished" / name))
    model = nearkin.load(folder / "finished" / "proxies")
    short = nearkin.shorten(model, 4, data=data, progress=False)
    short.save(folder / "models" / "short.safetensors")
    told["short"] = {"embeddings": short.encode(queries, progress=False).tolist(), "print": short.fingerprint()}
    opened = nearkin.open_data(data, progress=False)
    embed_shards(model, opened, folder / "parts", shards=2, workers=0, progress=False)
    embed_shards(model, opened, folder / "half of the parts", shards=2, only=[0], workers=0, progress=False)
    result = nearkin.audit(folder / "finished" / "proxies", data, progress=False)
    result.save(folder / "finished" / "proxies" / "audit.json")
    told["audit"] = {name: result[name] for name in result}
    return told


def make_galleries(folder: Path) -> dict[str, Any]:
    """Galleries of every kind, calibrated, and what they answer."""
    from nearkin.gallery import Gallery

    (folder / "galleries").mkdir()
    told: dict[str, Any] = {}
    vectors, labels = points(1, 24)
    facts = [{"shelf": row % 3, "brand": f"b{row % 2}"} for row in range(len(vectors))]
    ids = [f"item-{row:03d}" for row in range(len(vectors))]
    for name, options in GALLERIES.items():
        if options.get("index") == "hnsw" and find_spec("faiss") is None:
            continue
        with Gallery.create(folder / "galleries" / name, dimension=8, name="drawn", **options) as gallery:
            gallery.add(vectors, labels, facts, ids=ids)
            gallery.remove(["item-001", "item-050"])
            gallery.relabel("item-002", "kind 3")
            gallery.relabel("item-003", None)
            gallery.recalibrate(accept=0.9)
            told[name] = asked(gallery, points(2, 2)[0])
            gallery.export(folder / "galleries" / f"{name}.parquet")
    for name, run in (("pictures", "proxies"), ("learned", "similarity")):
        with Gallery.create(folder / "galleries" / name, folder / "finished" / run) as gallery:
            gallery.add(str(folder / "photos"), metadata={"shelf": 1}, progress=False)
            gallery.recalibrate()
            told[name] = asked(gallery, picture_queries(folder))
            told[name]["thumbnail"] = len(gallery.thumbnail(gallery.items(limit=1)[0].id) or b"")
    with Gallery.create(folder / "galleries" / "never asked", dimension=8, name="drawn") as gallery:
        gallery.add(vectors, labels, facts, ids=ids)
    shutil.copytree(folder / "galleries" / "never asked", folder / "galleries" / "asked later")
    with Gallery.open(folder / "galleries" / "asked later") as gallery:
        gallery.recalibrate()
        told["never asked"] = asked(gallery, points(2, 2)[0])
    return told


def compare(folder: Path, name: str, recipe: Path) -> Any:
    """Compare one recipe's models by the benchmark of this name, beginning or going on."""
    from nearkin import load_recipe, open_data
    from nearkin.protocol import Candidate, run_benchmark

    return run_benchmark(
        open_data(folder / "photos", progress=False),
        [Candidate("triplet", load_recipe(recipe))],
        folder / name,
        cache_directory=folder / "cache",
        folds=2,
        seeds=1,
        progress=False,
    )


def make_benchmarks(folder: Path) -> None:
    """A benchmark that is done, and one that stopped in its second model."""
    from nearkin import load_recipe

    recipe = folder / "triplet.yaml"
    load_recipe("triplet", [*TINY, *BATCH, "training.max_steps=4"]).save(recipe)
    compare(folder, "book", recipe)
    with crash_in_step(6):
        compare(folder, "half a book", recipe)


def make(folder: Path) -> None:
    """All of it."""
    import nearkin

    tree = Path(os.environ["PYTHONPATH"])
    if not Path(nearkin.__file__).is_relative_to(tree):
        sys.exit(f"The package of {nearkin.__file__} is not the one of {tree}.")
    photos(folder / "photos")
    make_recipes(folder / "recipes")
    make_runs(folder)
    told = {"models": make_models(folder), "galleries": make_galleries(folder)}
    make_benchmarks(folder)
    (folder / "answers.json").write_text(json.dumps(told), encoding="utf-8")


if __name__ == "__main__":
    make(Path(sys.argv[1]))
