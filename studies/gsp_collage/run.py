"""Which pooling finds the image that matters among three that do not? Collages of CIFAR-100 and seventeen poolings.

    python studies/gsp_collage/run.py pretrain                 the trunk: ResNet-20 on the training sub-classes
    python studies/gsp_collage/run.py cells                    every pooling with the contrastive loss (C2)
    python studies/gsp_collage/run.py cells GSP GSP+ZS         some of them, and GAP, which all are compared with
    python studies/gsp_collage/run.py cells --loss proxy-nca++ the same with the other loss of the seed's figure 5.12
    python studies/gsp_collage/run.py picture                  the table again, the bars of the documentation, and
                                                              weights.png in the book: where GSP looks
    python studies/gsp_collage/run.py --quick                  everything in tiny, into a temporary folder

Gürbüz 2022, sections 5.3.2 and 5.3.5; how collages are made is told in `collages.py`. The book is
`studies/gsp_collage/collage`; what it has is not done again. Needs the data: NEARKIN_DATA or --data-root.

The trunk learns from the training sub-classes alone: the print's, from all of CIFAR-100, has seen the test classes.
Its first two stages stay as they are; the third, a 1x1 convolution to 128 and the pooling are trained, all at one rate.
GeM, CroW, DELF, SOLAR and SMK need maps that are not negative, so they pool the trunk's own map and the linear layer to
128 comes after; NetVLAD and OT have the dimensions of the print, 8x16 = 128 and 64x128 = 8192. "distilled" is GAP,
trained and tested on the images that matter alone: how good a pooling could be that left the others out.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the repository, to import studies

import numpy as np

from nearkin.data.dataset import Dataset
from nearkin.data.manifest import Manifest
from nearkin.data.sources import open_data
from nearkin.data.splits import Split, resolve_split
from nearkin.data.stores import ArrayStore
from nearkin.errors import NearkinError, TrainingError, UnknownNameError, suggestion
from nearkin.models import Embedder, ModelSection, build_embedder
from nearkin.protocol import Book, Candidate, Cell, Contents, Summary
from nearkin.protocol.book import extended
from nearkin.protocol.candidates import UNTRAINED_CELL, DataDivision, check_trainable
from nearkin.protocol.ledger import HeldOut, Ledger
from nearkin.protocol.summary import Summariser
from nearkin.protocol.worker import BookWorker, ModelTrainer, Stopped, Task, WorkerSettings
from nearkin.recipe import Recipe
from nearkin.report.comparison import SEPARATE
from nearkin.report.values import interval_text, value_text
from nearkin.spaces import Sphere
from nearkin.storage import replacing, write_json, write_text
from nearkin.training import Run, train
from studies.gsp_collage.collages import SUPER_CLASSES, Cast, Collages, cast_classes, make_collages
from studies.gsp_collage.pictures import draw_bars, draw_looks, foreground_share
from studies.places import IMAGES, book_folder, models
from studies.random_start import load_recipe


@dataclass(frozen=True)
class Sizes:
    """How much of everything: collages a sub-class by role, steps, and steps between validations."""

    per_class: dict[str, int]
    pretraining: int
    pretraining_every: int
    steps: int
    every: int


FULL = Sizes({"train": 260, "val": 50, "test": 50}, pretraining=2200, pretraining_every=275, steps=300, every=50)
"""Some 20 minutes on two cores with the contrastive loss."""
QUICK = Sizes({"train": 6, "val": 3, "test": 3}, pretraining=4, pretraining_every=2, steps=2, every=1)

TRUNK = (
    "data.classes_per_batch=32",
    "data.per_class=2",
    "data.crop_scale=[0.5, 1.0]",
    "data.jitter=0.2",
    "data.workers=0",
    "model.backbone=resnet20",
    "model.pretrained=false",
    "model.size=32",
    "model.dimension=null",
    "model.freeze=null",
    "model.cache=false",
    "training.lr=2e-3",
    "training.warmup_steps=100",
    "training.lr_schedule=cosine",
    "training.backbone_lr_factor=1.0",
    "training.patience=null",
)
CELL = (
    "data.split=column",
    "data.classes_per_batch=16",
    "data.per_class=4",
    "model.backbone=resnet20",
    "model.pretrained=false",
    "model.freeze=stage2",
    "model.cache=true",
    "model.cache_dtype=float16",
    "model.cache_views={flip: false}",
    "training.lr=1e-3",
    "training.lr_schedule=cosine",
    "training.backbone_lr_factor=1.0",
    "training.patience=null",
)
"""Adam at 1e-3, as in the print; a cosine in place of its halving on plateaus, which has no end known beforehand."""

PROJECTED = ("model.local_dimension=128", "model.dimension=null")
OWN_MAP = ("model.local_dimension=null", "model.dimension=128")
SMALL = ("model.local_dimension=16", "model.dimension=null")
ZERO_SHOT = ("objective.weight=0.5", "objective.regularisers=[{name: zero-shot, weight: 0.5}]")
FAST_VECTORS = ("training.proxy_lr_factor=100",)
"""The class vectors of the zero-shot loss at a hundred times the rate, as the print has it for proxies: with 16 classes
they start long, and their predictions confident and wrong."""
LITTLE_ZERO_SHOT = ("objective.weight=0.9", "objective.regularisers=[{name: zero-shot, weight: 0.1}]")


def pooled(name: str, parameters: str = "{}", place: Iterable[str] = PROJECTED) -> tuple[str, ...]:
    return (*place, f"model.pooling={name}", f"model.pooling_parameters={parameters}")


GSP = pooled("gsp", "{prototypes: 64, budget: 0.2, sharpness: 10}")
BASELINE, OURS, BOUND = "GAP", "GSP+ZS", "distilled"
LOOKED_AT = "GSP"
"""Whose pooling weights are drawn."""
POOLINGS = {
    BASELINE: pooled("gap"),
    "GSP": GSP,
    OURS: (*GSP, *ZERO_SHOT),
    "GSP+ZS, fast vectors": (*GSP, *ZERO_SHOT, *FAST_VECTORS),
    "GSP+ZS, lambda 0.1": (*GSP, *LITTLE_ZERO_SHOT),
    "GSP+ZS, lambda 0.1, fast vectors": (*GSP, *LITTLE_ZERO_SHOT, *FAST_VECTORS),
    "ZS": (*pooled("gsp", "{prototypes: 64, budget: 1, sharpness: 10}"), *ZERO_SHOT),
    BOUND: pooled("gap"),
    "GMP": pooled("gmp"),
    "GAP+GMP": pooled("gap+gmp"),
    "GeM": pooled("gem", place=OWN_MAP),
    "generalized max": pooled("generalized-max"),
    "CroW": pooled("crow", place=OWN_MAP),
    "CBAM": pooled("cbam"),
    "DELF": pooled("delf", place=OWN_MAP),
    "GSoP": pooled("gsop"),
    "SOLAR": pooled("solar", place=OWN_MAP),
    "SMK": pooled("smk", place=OWN_MAP),
    "NetVLAD 8x16": pooled("netvlad", "{clusters: 8}", SMALL),
    "NetVLAD 64x128": pooled("netvlad", "{clusters: 64}"),
    "OT 8x16": pooled("ot", "{references: 8}", SMALL),
    "OT 64x128": pooled("ot", "{references: 64}"),
    "WELDON": pooled("weldon"),
}
LOSSES = {"contrastive": "", "proxy-nca++": ", proxy-nca++"}
"""Recipe to what it adds to the names of its candidates."""


@dataclass(frozen=True)
class Places:
    """Where things are kept."""

    book: Path
    cache: Path
    images: Path


@dataclass(frozen=True, eq=False)
class Material:
    """The images in memory, and what is made of them."""

    cifar: Dataset
    cast: Cast
    collages: Collages

    @classmethod
    def load(cls, data_root: Path | None, sizes: Sizes) -> Material:
        source = open_data("cifar100", data_root=data_root)
        images = np.stack([np.asarray(source.image(index).convert("RGB")) for index in range(len(source))])
        paths = list(source.manifest.paths)
        cifar = Dataset(Manifest.from_rows(paths, source.labels), ArrayStore(images, paths), name="CIFAR-100")
        cast = cast_classes({name: classes.split() for name, classes in SUPER_CLASSES.items()})
        return cls(cifar, cast, make_collages(images, cifar.labels, cast, sizes.per_class))


def trunk_recipe(sizes: Sizes) -> Recipe:
    steps = (f"training.max_steps={sizes.pretraining}", f"training.evaluate_every={sizes.pretraining_every}")
    return load_recipe("normalized-softmax", [*TRUNK, *steps])


def trunk_run(places: Places, sizes: Sizes) -> Run:
    """Where the trunk is; another recipe has another place."""
    return Run(places.cache / "gsp-collage" / f"trunk-{Candidate('trunk', trunk_recipe(sizes)).digest()}")


def pretrain(material: Material, places: Places, sizes: Sizes) -> Embedder | None:
    """The trunk: made, made to the end, or found; None if it was stopped.

    It learns from the training sub-classes and is chosen on the validation sub-classes, shared ones among both.
    """
    run = trunk_run(places, sizes)
    if run.card_file.exists() and json.loads(run.card_file.read_text(encoding="utf-8"))["finished"]:
        return Embedder.load(run.model_file)
    labels = material.cifar.labels
    rows = [np.flatnonzero(np.isin(labels, material.cast.classes(role))) for role in ("train", "val")]
    split = Split(*rows, test=np.empty(0, dtype=np.int64))
    done = train(
        material.cifar,
        trunk_recipe(sizes),
        run,
        source="cifar100",
        cache_directory=places.cache / "features",
        resume=run.recipe_file.exists(),
        split=split,
    )
    return None if done.interrupted else done.embedder


def told(trunk: Embedder) -> str:
    """The trunk in a sentence."""
    card = trunk.card
    values = {name.removeprefix("val_"): value for name, value in card["validation"].items()}
    found = ", ".join(f"{name} {value_text(value, True)}" for name, value in sorted(values.items()))
    return (
        f"Trunk: {trunk.backbone_name} from {len(card['classes']['train'])} training sub-classes, step "
        f"{card['best_step']} of {card['steps']}, {card['seconds']:.0f} s; {found} on "
        f"{len(card['classes']['val'])} validation sub-classes."
    )


def candidate(name: str, loss: str, weights: str, sha256: str, sizes: Sizes) -> Candidate:
    settings = (
        f"model.size={32 if name == BOUND else 64}",
        f"model.weights={json.dumps(weights)}",
        f"model.weights_sha256='{sha256}'",
        f"training.max_steps={sizes.steps}",
        f"training.evaluate_every={sizes.every}",
    )
    return Candidate(name + LOSSES[loss], load_recipe(loss, [*CELL, *POOLINGS[name], *settings]))


def chosen(names: Sequence[str]) -> list[str]:
    """The poolings named, the baseline first; all if none is."""
    by_letters = {name.lower(): name for name in POOLINGS}
    for name in names:
        if name.lower() not in by_letters:
            raise UnknownNameError(f"There is no pooling '{name}' here.{suggestion(name, POOLINGS)}")
    wanted = {BASELINE, *(by_letters[name.lower()] for name in names)} if names else set(POOLINGS)
    return [name for name in POOLINGS if name in wanted]


def against(names: Iterable[str]) -> dict[str, str]:
    """Each against average pooling with the same loss."""
    bases = {name: next(BASELINE + end for end in reversed(LOSSES.values()) if name.endswith(end)) for name in names}
    return {name: base for name, base in bases.items() if name != base}


class Study:
    """The book and all that is needed to go on with it.

    Args:
        material: the data.
        trunk: the pretrained model.
        places: where things are kept.
        sizes: how much of everything.
    """

    def __init__(self, material: Material, trunk: Embedder, places: Places, sizes: Sizes) -> None:
        self.material, self.trunk, self.places, self.sizes = material, trunk, places, sizes
        self.book = Book(places.book)
        whole = material.collages.whole
        # Not folds of the training classes: what surrounds the validation classes must be unseen too.
        split = resolve_split(whole.manifest, load_recipe("contrastive", list(CELL)).data, 0)
        val, test = (sorted(set(whole.labels[rows])) for rows in (split.val, split.test))
        self.division = DataDivision([split], [val], test)
        self.held_out = HeldOut(whole.select(split.test))

    def go_on(self, names: Sequence[str], loss: str, seeds: int) -> bool:
        """Do what is missing of these poolings; whether all of it is done."""
        file = trunk_run(self.places, self.sizes).model_file
        sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
        candidates = [candidate(name, loss, str(file), sha256, self.sizes) for name in names]
        # A book says nothing of the machine it was made on; the checksum tells the trunk.
        portable = [candidate(name, loss, file.name, sha256, self.sizes) for name in names]
        for one in candidates:
            check_trainable(one, self._items(one.name), self.division.splits)
        with self.book.writing():
            stored = self.book.read()
            known = [*(stored.recipes if stored else ()), *(one.name for one in candidates)]
            contents = extended(self.book.path, stored, self._contents(), portable, seeds, against(known))
            ledger = Ledger(self.book.ledger_file, self.book.queries, contents, len(self.held_out.codes))
            self.book.begin(contents, self.held_out.codes)
            self._measure_start(contents, ledger, file)
            return self._do(contents, ledger, candidates, seeds)

    def _items(self, name: str) -> Dataset:
        return self.material.collages.plain if name.startswith(BOUND) else self.material.collages.whole

    def _contents(self) -> Contents:
        whole = self.material.collages.whole
        data = {
            "name": whole.name,
            "source": "cifar100",
            "fingerprint": whole.fingerprint(),
            "items": len(whole),
            "notes": [told(self.trunk), f"'{BOUND}' has the same items without their surroundings, at 32 px."],
        }
        test = self.division.test_classes
        return Contents("fair", data, self.held_out.classes, test, self.division.folds)

    def _measure_start(self, contents: Contents, ledger: Ledger, file: Path) -> None:
        """What the trunk gives before anything is trained on collages."""
        if UNTRAINED_CELL in ledger:
            return
        began = time.monotonic()
        section = ModelSection(backbone="resnet20", size=64, dimension=None, weights=str(file))
        measured = self.held_out.measure(build_embedder(section).encode(self.held_out.items), Sphere())
        contents.untrained = "the average of the pretrained trunk's map"
        self.book.save(contents)
        ledger.add(UNTRAINED_CELL, measured, {"hash": None, "seconds": round(time.monotonic() - began, 2)})

    def _do(self, contents: Contents, ledger: Ledger, candidates: Sequence[Candidate], seeds: int) -> bool:
        around = WorkerSettings("cifar100", self.places.cache / "features", keep_runs=True)
        whole = True
        for seed in range(seeds):
            for one in candidates:
                items, cell = self._items(one.name), Cell(one.name, "separate", seed)
                task = Task(items, self.division, HeldOut(items.select(self.division.test)))
                worker = BookWorker(ModelTrainer(self.book, contents, task, [one], around), ledger)
                if worker.is_done(cell):
                    continue
                print(cell.title, file=sys.stderr, flush=True)
                try:
                    worker.do(cell)
                except TrainingError as error:
                    print(error, file=sys.stderr, flush=True)
                    whole = False
                except (Stopped, KeyboardInterrupt):
                    return False
        return whole

    def read(self) -> tuple[Contents, Summary]:
        """What the book says so far."""
        contents = self.book.read()
        if contents is None:
            raise NearkinError(f"There is nothing in {self.book.path} yet: run 'cells' first.")
        ledger = Ledger(self.book.ledger_file, self.book.queries, contents, len(self.held_out.codes))
        return contents, Summariser(self.held_out.codes, ledger).summarise(contents)

    def models(self, names: Iterable[str]) -> dict[str, Embedder]:
        """The models that are there, of the first seed."""
        runs = {name: Run(self.book.run_folder(Cell(name, "separate", 0))) for name in names}
        return {name: Embedder.load(run.model_file) for name, run in runs.items() if run.model_file.exists()}


def table(contents: Contents, summary: Summary) -> str:
    """All candidates as Markdown, with what a reader must know."""
    lines = [
        "| pooling | MAP@R | difference to GAP | P@1 | validation MAP@R | models | seconds |",
        "|" + " --- |" * 7,
    ]
    for row in summary.rows:
        value, low, high = row.value(SEPARATE, "MAP@R")
        found = row.differences.get(SEPARATE)
        difference = "–" if found is None else ", ".join(found.lines(percent=True))
        lines.append(
            f"| {row.name} | {value_text(value, True)} ({interval_text(low, high, True)}) | {difference} | "
            f"{value_text(row.value(SEPARATE, 'P@1')[0], True)} | {value_text(row.validation, True)} | "
            f"{row.finished} of {row.planned} | {row.seconds:.0f} |"
        )
    if summary.untrained:
        value, low, high = summary.untrained["MAP@R"]
        interval = interval_text(low, high, True)
        lines.append(f"| before training | {value_text(value, True)} ({interval}) | – | – | – | – | – |")
    notes = [
        f"{len(contents.test_classes)} test classes, unseen sub-classes in unseen surroundings; weights are chosen on "
        f"{len(contents.folds[0])} validation classes. In brackets: 95 % intervals over classes, then queries.",
        "MAP@R and P@1 are means over queries.",
        "Differences are means over classes with their intervals over classes; p by sign flips of classes, corrected "
        f"for {summary.tested} comparisons by Holm's method.",
        f"Before training: {contents.untrained}.",
        *contents.data["notes"],
    ]
    return "\n".join([f"# {contents.data['name']}", "", *lines, "", *(f"- {note}" for note in notes), ""])


def headline(summary: Summary) -> str:
    """The answer in a line."""
    rows = {row.name: row for row in summary.rows}
    parts = []
    for name in (OURS, "GSP", BASELINE, BOUND):
        if name in rows and rows[name].finished:
            parts.append(f"{name} {value_text(rows[name].value(SEPARATE, 'MAP@R')[0], True)}")
    found = rows[OURS].differences.get(SEPARATE) if OURS in rows else None
    gain = "" if found is None else f"; {OURS} to {BASELINE}: {', '.join(found.lines(percent=True))}"
    return f"MAP@R: {', '.join(parts)}{gain}"


def show(study: Study) -> None:
    """Write and print the table and the answer."""
    contents, summary = study.read()
    text = table(contents, summary)
    write_text(study.book.path / "table.md", text)
    print(text)
    print(headline(summary))


def draw(study: Study) -> None:
    """The pictures, and how much of each pooling's weight is on the image that matters."""
    contents, summary = study.read()
    whole, split = study.material.collages.whole, study.division.splits[0]
    shares = {
        name: foreground_share(model, whole.select(split.test))
        for name, model in study.models(contents.recipes).items()
        if not name.startswith(BOUND)
    }
    shares = {name: round(share, 4) for name, share in shares.items() if share is not None}
    write_json(study.book.path / "foreground.json", shares)
    bars = draw_bars(summary, BASELINE, (OURS, "GSP", "ZS"), BOUND, LOSSES)
    pictures = {study.places.images / "gsp-collage.png": bars}
    models = study.models((LOOKED_AT, BASELINE))
    if len(models) == 2:
        # Beside the book, out of the history: it shows images of the data set.
        pictures[study.book.path / "weights.png"] = draw_looks(
            models[LOOKED_AT], models[BASELINE], {"train": whole.select(split.train), "test": whole.select(split.test)}
        )
    for path, content in pictures.items():
        with replacing(path) as temporary:
            temporary.write_bytes(content)
    print("Weight on the image that matters, of test collages (average pooling: 25 %):")
    for name, share in shares.items():
        print(f"  {name:32} {value_text(share, True)}")


def run(arguments: argparse.Namespace, places: Places, sizes: Sizes) -> int:
    names = chosen(arguments.names)
    material = Material.load(arguments.data_root, sizes)
    trunk = pretrain(material, places, sizes)
    if trunk is None:
        return 130
    print(told(trunk))
    if arguments.what == "pretrain":
        return 0
    study = Study(material, trunk, places, sizes)
    whole = arguments.what == "picture" or study.go_on(names, arguments.loss, arguments.seeds)
    if arguments.what in ("picture", "all"):
        draw(study)
    show(study)
    return 0 if whole else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", nargs="?", choices=["pretrain", "cells", "picture", "all"], default="all")
    parser.add_argument("names", nargs="*", help=f"poolings, of: {', '.join(POOLINGS)}; none: all")
    parser.add_argument("--loss", choices=list(LOSSES), default="contrastive")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="everything in tiny, into a temporary folder")
    parser.add_argument("--data-root", type=Path, help="where the data is; default: NEARKIN_DATA")
    arguments = parser.parse_args()
    try:
        if not arguments.quick:
            places = Places(book_folder("collage"), models(), IMAGES)
            return run(arguments, places, FULL)
        with tempfile.TemporaryDirectory() as folder:
            base = Path(folder)
            return run(arguments, Places(base / "book", base / "cache", base / "images"), QUICK)
    except NearkinError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
