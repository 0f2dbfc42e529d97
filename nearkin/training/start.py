"""How a run begins, with first weights from the training items, and what training gained over that start."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
import torch
from torch import Tensor, nn

from nearkin.checks import is_whole
from nearkin.data.section import DataSection
from nearkin.errors import RunError
from nearkin.metrics import class_bootstrap, retrieval_metrics
from nearkin.models import Embedder
from nearkin.models.card import Card
from nearkin.models.pooling import make_pooling
from nearkin.models.section import AUTO, KEPT, RANDOM, ModelSection
from nearkin.models.start import MEASURES, Dimension, HeadStart, Kind, fit_start
from nearkin.objectives import Objective
from nearkin.progress import Progress
from nearkin.recipe import Recipe
from nearkin.spaces import PoincareBall, Space, Sphere, make_space
from nearkin.storage import write_json
from nearkin.training.batches import TrainingPool
from nearkin.training.ranks import Ranks

_CHUNK = 4096
_DECODED_CHUNK = 256
_PROTOTYPE_ITEMS, _ALL_PROTOTYPE_ITEMS = 64, 65_536
"""Items whose mean a proxy starts at, and of all classes together: their embeddings are in memory at once."""
_LARGE = 512
LOWERED = 0.5
"""Share of the recipe's learning rate below which it is worth a word."""
NEARLY_STILL = 0.02
"""Share of it below which training leaves the start nearly as it is."""
_INITIAL_ITEMS, _INITIAL_FEATURES = 64, 1024
"""Training items whose maps a pooling takes its first prototypes from; more of them if their maps are small."""

PerQuery = dict[str, list[float]]
"""A measure to its value for each validation query that has a partner."""


@dataclass(frozen=True)
class RunStart:
    """What is known of a run before its first step; kept in the run's directory for whoever resumes it.

    Attributes:
        head: what `HeadStart.to_dict` says; None where the head began at random.
        raw: validation values, query by query, of the backbone's plain features; None where it knew nothing.
        first: the same of the embeddings at step 0; None without validation items that can be retrieved.
        labels: class of each of these queries.
        precision: what `training.precision: auto` was found to be; None where the recipe says it.
    """

    head: dict[str, Any] | None = None
    raw: PerQuery | None = None
    first: PerQuery | None = None
    labels: list[str] | None = None
    precision: str | None = None

    def raw_values(self) -> dict[str, float]:
        """Means of the raw features' values, as the log names them."""
        return {f"raw_{name}": float(np.mean(values)) for name, values in (self.raw or {}).items()}

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        write_json(path, vars(self))

    @classmethod
    def load(cls, path: Path, fitted: bool = False) -> RunStart:
        """Read what `save` wrote; older runs have no such file and began at random, so none had a fitted head."""
        try:
            start = cls(**json.loads(path.read_text(encoding="utf-8"))) if fitted or path.exists() else cls()
            start._check()
            if fitted and start.head is None:
                raise ValueError("it has no head")
        except (OSError, ValueError, TypeError) as error:
            raise RunError(f"{path} is missing or damaged: restore it, or start a new run ({error}).") from error
        return start

    def _check(self) -> None:
        """Refuse what was cut short or edited."""
        if self.head is not None:
            _check_keys("head", self.head, ("kind", "dimension"))
            if self.head["kind"] in get_args(Kind):
                _check_keys("head", self.head, ("features", "ridge", "damping", "trials", "notes"))
            for trial in self.head.get("trials", ()):
                _check_keys("trials", trial, ("dimension", *MEASURES.values()))
            if not is_whole(self.head["dimension"]):
                raise ValueError(f"its dimension is {self.head['dimension']!r}")
        for part in ("raw", "first"):
            values = getattr(self, part)
            if values is None:
                continue
            _check_keys(part, values, MEASURES)
            if any(len(values[name]) != len(self.labels or ()) for name in MEASURES):
                raise ValueError(f"{part} and labels are not of the same queries")


def _check_keys(part: str, given: Any, keys: Iterable[str]) -> None:
    if not isinstance(given, dict) or not set(keys) <= given.keys():
        raise ValueError(f"{part} must have {', '.join(keys)}")


def per_query(embeddings: np.ndarray, labels: np.ndarray, space: Space) -> tuple[PerQuery, list[str]]:
    """P@1 and MAP@R of each query that has a partner, and the class of each."""
    found = retrieval_metrics(embeddings, labels, space=space)
    values = {name: [round(float(value), 6) for value in found.per_query[name]] for name in MEASURES}
    return values, [str(label) for label in found.labels]


def raw_features(embedder: Embedder) -> Embedder:
    """The same backbone without a head: what its features are worth as they are.

    They are pooled as the model pools them, or averaged where its pooling learns, or pools what a layer has made.
    """
    pooling = embedder.pooling
    if pooling.has_parameters or not isinstance(embedder.local, nn.Identity):
        pooling = make_pooling("gap", embedder.backbone.channels)
    raw = Embedder(embedder.backbone, pooling, nn.Identity(), Sphere())
    raw.frozen_upto, raw.frozen_batch_norm = embedder.frozen_upto, embedder.frozen_batch_norm
    return raw


def start_model(
    embedder: Embedder, pool: TrainingPool, section: ModelSection, seed: int, progress: bool, ranks: Ranks
) -> HeadStart | None:
    """Give head (or 1x1 convolution) and pooling their first values, from the training items.

    A head is replaced if another size is chosen. The first of several processes computes for all.

    Returns:
        What the layer starts as; None where it keeps its random weights.
    """
    starts, local = section.head_start not in (RANDOM, KEPT), embedder.local
    into_local = starts and isinstance(local, nn.Conv2d) and not isinstance(embedder.head, nn.Linear)

    def shared(of: Embedder, dimension: Dimension) -> HeadStart:
        found = None
        if ranks.is_first:
            chunks = _features(of, pool, progress)
            kind: Kind = "pca" if section.head_start == "pca" else "whitened"
            found = fit_start(chunks, pool.class_ids, kind=kind, dimension=dimension, space=embedder.space, seed=seed)
            if _features_learn(embedder, local if into_local else embedder.head):
                found = replace(found, notes=(*found.notes, "The features learn too; the start is of untrained ones."))
        return cast(HeadStart, ranks.broadcast_object(found))

    start = None
    if into_local:
        assert isinstance(local, nn.Conv2d)
        # Pooled by weights that sum to 1, a map and its mean take the same linear layer.
        start = shared(raw_features(embedder), local.out_channels)
        start = replace(start, layer="1x1 convolution before the pooling")
        _fill(local, start.weight[:, :, None, None], start.bias)
    if section.start is None:
        _start_pooling(embedder, pool, seed)
    if starts and section.dimension is not None and not into_local:
        start = shared(embedder, section.dimension)
        resize_head(embedder, start.dimension)
        _fill(embedder.head, start.weight, start.bias)
    return start


def _features_learn(embedder: Embedder, layer: nn.Module) -> bool:
    """Whether training changes what the layer takes."""
    own = {id(parameter) for parameter in layer.parameters()}
    if layer is embedder.local:  # of what comes after it, the layer takes nothing
        own |= {id(parameter) for parameter in embedder.pooling.parameters()}
    return any(parameter.requires_grad and id(parameter) not in own for parameter in embedder.parameters())


def resize_head(embedder: Embedder, dimension: int) -> None:
    """Replace the head if it has another size."""
    if isinstance(embedder.head, nn.Linear) and dimension != embedder.dimension:
        embedder.head = nn.Linear(embedder.feature_size, dimension).to(embedder.normalise.mean.device)


@torch.no_grad()
def _fill(layer: nn.Module, weight: Tensor, bias: Tensor) -> None:
    assert isinstance(layer, nn.Linear | nn.Conv2d)
    assert layer.bias is not None
    layer.weight.copy_(weight)
    layer.bias.copy_(bias)


def _features(of: Embedder, pool: TrainingPool, progress: bool) -> Iterator[tuple[Tensor, np.ndarray]]:
    """What a head of this model would take, (n, F), of all training items chunk by chunk, and their positions."""
    size = _DECODED_CHUNK if pool.batches.start is None else _CHUNK
    count = len(pool.class_ids)
    with Progress("starting the head", count, progress) as bar:
        for first in range(0, count, size):
            positions = np.arange(first, min(first + size, count))
            yield pool.apply(of.pooled, positions), positions
            bar.advance(len(positions))


def _start_pooling(embedder: Embedder, pool: TrainingPool, seed: int) -> None:
    """Give a pooling its first prototypes, where it has any: local features of training items."""
    if not embedder.pooling.starts_from_data:
        return
    maps = pool.local_features(_INITIAL_ITEMS)
    positions = maps.shape[2] * maps.shape[3]
    if positions * _INITIAL_ITEMS < _INITIAL_FEATURES:
        maps = pool.local_features(_INITIAL_FEATURES // positions)
    embedder.pooling.init_from(maps, seed)


@torch.no_grad()
def start_proxies(objective: Objective, pool: TrainingPool) -> None:
    """Put proxies that move where the untrained network has their classes."""
    if objective.has_learned_proxies:
        items = max(1, min(_PROTOTYPE_ITEMS, _ALL_PROTOTYPE_ITEMS // pool.classes))
        objective.start_proxies(pool.embed(pool.draw(0, items)))


def measure_start(
    embedder: Embedder, labels: np.ndarray, encode: Callable[[Embedder], np.ndarray], pretrained: bool
) -> RunStart:
    """What raw features and the first embeddings of the validation items are worth."""
    if len(np.unique(labels)) == len(labels):
        return RunStart()
    first, of = per_query(encode(embedder), labels, embedder.space)
    raw = per_query(encode(raw_features(embedder)), labels, Sphere())[0] if pretrained else None
    return RunStart(None, raw, first, of)


def start_lines(head: Mapping[str, Any]) -> list[str]:
    """How the head started, in lines of text, from `HeadStart.to_dict`."""
    if head["kind"] == KEPT:
        return [f"The model goes on from {head['file']}, with its {head['dimension']} dimensions."]
    size, width, trials = head["dimension"], head["features"], head["trials"]
    how = "whitened" if head["kind"] == "whitened" else "with principal components"
    ridge = "" if head["ridge"] is None else f", ridge {head['ridge']:g}"
    damping = f", damping {head['damping']:g}" if head["damping"] else ""
    sizes = f"{size} of {width} dimensions" if size <= width else f"{size} dimensions for {width} features"
    lines = [f"The {head.get('layer', 'head')} starts {how}: {sizes}{ridge}{damping}{_costs(size, trials)}."]
    if len(trials) > 1:
        lines.append(f"  On training classes left out ({' / '.join(MEASURES)}):")
        shares = (" / ".join(f"{100 * trial[key]:.1f}" for key in MEASURES.values()) for trial in trials)
        lines.append("  " + "   ".join(f"{t['dimension']}: {share}" for t, share in zip(trials, shares, strict=True)))
    if size == width and size > _LARGE:
        lines.append(
            f"  A gallery of a million items takes {4 * size / 1000:.1f} GB: int8 precision and `nearkin "
            "shorten` make it smaller."
        )
    return [*lines, *(f"  Note: {note}" for note in head["notes"])]


def random_start_line(section: ModelSection) -> str | None:
    """That the first layer behind a backbone that knows something begins at random, and why; None if it does not."""
    layered = section.dimension is not None or section.local_dimension is not None
    if section.head_start != RANDOM or not section.knows_something or not layered:
        return None
    layer = "head" if section.dimension is not None else "1x1 convolution before the pooling"
    if isinstance(make_space(section.space, **section.space_parameters), PoincareBall):
        return f"The {layer} starts at random: distances in the Poincaré ball are not those of a linear map."
    return f"The {layer} starts at random (model.head_start)."


def rate_share(head: Mapping[str, Any] | None, lr: float) -> float:
    """What few classes or items left of the recipe's learning rate; older starts do not say."""
    return (head or {}).get("lr", lr) / lr


def rate_note(head: Mapping[str, Any], lr: float) -> str | None:
    """What to say of a learning rate that was lowered by half or more; `lr` is the recipe's."""
    share = rate_share(head, lr)
    if share >= LOWERED:
        return None
    few = head.get("lr_lowered_for") or "few classes"
    note = f"the learning rate was lowered from {lr:.2g} to {head['lr']:.2g} for {few}"
    if share >= NEARLY_STILL:
        return f"{note} (training.full_rate_classes and full_rate_items; 0 turns either off)."
    return (
        f"{note}. So few leave the start nearly as it is: to train on all the same, set training.full_rate_classes=0 "
        "and training.full_rate_items=0."
    )


def _costs(size: int, trials: Sequence[Mapping[str, Any]]) -> str:
    """What the next smaller size would have cost."""
    chosen = next((t for t in trials if t["dimension"] == size), None)
    smaller = [t for t in trials if t["dimension"] < size]
    if chosen is None or not smaller:
        return ""
    lost = {name: 100 * (chosen[key] - smaller[-1][key]) for name, key in MEASURES.items()}
    name = max(lost, key=lambda one: lost[one])
    return f" ({smaller[-1]['dimension']} would cost {lost[name]:.1f} points of {name})"


_FEW_CLASSES = 20


@dataclass(frozen=True)
class GainDifference:
    """How much better one is than another, in points.

    Attributes:
        points: mean over the queries.
        low: lower end of the 95 % interval over classes, then queries, paired.
        high: upper end.
    """

    points: float
    low: float
    high: float

    def __str__(self) -> str:
        points, low, high = (round(value, 1) + 0.0 for value in (self.points, self.low, self.high))  # no -0.0
        return f"{points:+.1f} ({low:.1f} to {high:.1f})"


@dataclass(frozen=True)
class Gain:
    """Validation values of raw features, the start and the best weights, in percent, and what lies between them.

    The weights were chosen on these items, which flatters the best ones; an audit measures on held-out classes.

    Attributes:
        values: "raw" (where the backbone was pretrained), "start" and "best" to P@1 and MAP@R.
        differences: "start - raw", "best - start" and "best - raw" to those of P@1 and MAP@R.
        best_step: the step that validated best; 0 is the start.
        classes: how many validation classes there are.
    """

    values: dict[str, dict[str, float]]
    differences: dict[str, dict[str, GainDifference]]
    best_step: int
    classes: int

    @property
    def at_ceiling(self) -> bool:
        """Whether the start finds everything already."""
        return all(value == 100.0 for value in self.values["start"].values())

    @property
    def validation(self) -> str:
        """The validation classes, counted."""
        return f"{self.classes} validation class{'' if self.classes == 1 else 'es'}"

    def verdict(self) -> str:
        """One sentence: what training added to its start."""
        if self.at_ceiling:
            return f"The start tells the {self.validation} apart perfectly, so they cannot show what training added."
        if self.best_step == 0:
            return "Training did not improve on the start here, so the model is the start."
        added = self.differences["best - start"]
        told = " and ".join(f"{added[name]} {name}" for name in MEASURES)
        shown = any(one.low > 0 or one.high < 0 for one in added.values())
        doubt = "" if shown else f", which {self.validation} cannot tell from chance"
        verb = "added" if all(one.points >= 0 for one in added.values()) else "changed the start by"
        return f"Training {verb} {told}{doubt}."

    def lines(self) -> list[str]:
        """The values, one line each, and the verdict."""
        names = {"raw": "raw features", "start": "start (step 0)", "best": f"best (step {self.best_step})"}
        width = max(len(names[part]) for part in self.values)
        rows = []
        for part, values in self.values.items():
            against = self.differences.get(f"{part} - raw")
            told = f"   against raw: {against['P@1']}, {against['MAP@R']}" if against else ""
            numbers = "  ".join(f"{name} {value:.1f}" for name, value in values.items())
            rows.append(f"{names[part]:<{width}}  {numbers}{told}")
        return [*rows, self.verdict()]

    def to_dict(self) -> dict[str, Any]:
        """For the card: values and differences as plain numbers."""
        return {
            "values": self.values,
            "differences": {
                pair: {name: [one.points, one.low, one.high] for name, one in of.items()}
                for pair, of in self.differences.items()
            },
            "best_step": self.best_step,
            "classes": self.classes,
            "verdict": self.verdict(),
        }


def measure_gain(start: RunStart, best: PerQuery, best_step: int) -> Gain | None:
    """What training was worth; None without validation items that can be retrieved."""
    if start.first is None or start.labels is None:
        return None
    parts = {"raw": start.raw, "start": start.first, "best": best}
    there = {name: values for name, values in parts.items() if values is not None}
    pairs = [("start", "raw"), ("best", "raw"), ("best", "start")]
    return Gain(
        {name: {m: round(100 * float(np.mean(values[m])), 2) for m in MEASURES} for name, values in there.items()},
        {f"{a} - {b}": _differences(there[a], there[b], start.labels) for a, b in pairs if a in there and b in there},
        best_step,
        len(set(start.labels)),
    )


def _differences(a: PerQuery, b: PerQuery, labels: Sequence[str]) -> dict[str, GainDifference]:
    points = {name: 100 * (np.asarray(a[name]) - np.asarray(b[name])) for name in MEASURES}
    found = class_bootstrap(points, labels)
    rounded = {name: (round(float(points[name].mean()), 2), *(round(end, 2) for end in found[name])) for name in points}
    return {name: GainDifference(*values) for name, values in rounded.items()}


def gain_facts(card: Card) -> dict[str, str]:
    """Facts for a report: the model's start and what training added; nothing for older models."""
    facts = {}
    if card.start is not None:
        facts["head"] = start_lines(card.start)[0]
    if (gain := card.gain) is not None:
        for part, name in (("raw", "raw features"), ("start", "start"), ("best", "best weights")):
            if part in gain["values"]:
                numbers = ", ".join(f"{measure} {value:.1f}" for measure, value in gain["values"][part].items())
                against = gain["differences"].get(f"{part} - raw", {})
                told = ", ".join(str(GainDifference(*against[measure])) for measure in against)
                facts[f"{name}, validation"] = numbers + (f"; against raw features {told}" if told else "")
        facts["what training added"] = gain["verdict"]
    return facts


def suggestion(gain: Gain, recipe: Recipe, start: Mapping[str, Any] | None, *, last_step: int, classes: int) -> str:
    """The next thing to try.

    Args:
        gain: what training was worth.
        recipe: of the run.
        start: how the head started, as the card has it; None where it began at random.
        last_step: where training ended.
        classes: how many classes trained.
    """
    training, more = recipe.training, "Bring more classes, or more items of each."
    share = rate_share(start, training.lr)
    against = gain.differences.get("best - raw", {}).values()
    if any(one.high < 0 for one in against):
        return f"Raw features are better here: {_beyond_raw(recipe, start)}."
    if any(one.points < 0 for one in against) and gain.classes < _FEW_CLASSES:
        return f"{gain.validation} cannot tell whether raw features are better here: {_validate_more(recipe.data)}."
    if gain.at_ceiling:
        return f"No gain can show where all are told apart perfectly: {_validate_more(recipe.data)}."
    if share < NEARLY_STILL:  # the rate's note says more
        return more
    if gain.best_step == last_step == training.max_steps:
        return f"The last weights were the best: raise training.max_steps (now {training.max_steps})."
    if share < LOWERED:
        return more
    if gain.best_step == 0 and classes < _FEW_CLASSES:
        return f"{classes} classes teach a head little: bring more classes; items of the same classes add less."
    if gain.best_step == 0:
        return f"Try a lower rate (training.lr={training.lr / 3:.0e}), or another loss (nearkin recipes)."
    return "Compare other losses on your data: nearkin benchmark."


def _validate_more(data: DataSection) -> str:
    """How to get more to validate on."""
    if data.classes_are_seen:
        return f"bring more items, or validate on more of them (data.val_items={_larger(data.val_items)})"
    if isinstance(data.val_classes, list):
        return "bring more classes, or name more of them in data.val_classes"
    return f"bring more classes, or validate on more of them (data.val_classes={_larger(data.val_classes)})"


def _larger(share: float) -> str:
    """About twice the share, below 1."""
    return f"{max(0.1, min(2 * share, (1 + share) / 2)):.2g}"


def _beyond_raw(recipe: Recipe, start: Mapping[str, Any] | None) -> str:
    """What may make an embedding no worse than the raw features, of all that this recipe leaves open."""
    model = recipe.model
    use = "use them (--recipe pretrained)"
    if model.space == PoincareBall.name:
        return "set model.space to sphere, where the head can start from the data"
    if model.head_start == KEPT:
        return "name the model in model.weights instead of model.start, so that a new head starts from the data"
    key = "local_dimension" if model.dimension is None else "dimension"
    size = getattr(model, key)
    if size is None:
        return use
    if size == AUTO or (start is not None and start["dimension"] >= start["features"]):
        return f"{use}, or bring more classes"
    # A learned similarity and prefixes need a number, as the convolution does.
    if model.dimension is not None and model.similarity is None and not recipe.objective.prefixes:
        size = AUTO
    elif start is not None and start.get("rank", size) < size:
        return f"bring more items or classes, or {use}"
    else:
        size *= 2
    changes = [] if model.head_start != RANDOM else ["model.head_start to whitened"]
    told = f"set {' and '.join([*changes, f'model.{key} to {size}'])}"
    return told if model.dimension is not None else f"{told}, or {use}"
