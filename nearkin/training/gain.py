"""What training was worth: raw features, the start and the best weights on the validation items, and a verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nearkin.data.section import DataSection
from nearkin.metrics import class_bootstrap
from nearkin.models.card import Card
from nearkin.models.section import AUTO, KEPT, RANDOM
from nearkin.models.start import MEASURES
from nearkin.recipe import Recipe
from nearkin.training.start import LOWERED, NEARLY_STILL, PerQuery, RunStart, rate_share, start_lines

_FEW_CLASSES = 20
_POINCARE = "poincare-ball"


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
        {
            f"{a} - {b}": {m: _difference(there[a][m], there[b][m], start.labels) for m in MEASURES}
            for a, b in pairs
            if a in there and b in there
        },
        best_step,
        len(set(start.labels)),
    )


def _difference(a: Sequence[float], b: Sequence[float], labels: Sequence[str]) -> GainDifference:
    points = 100 * (np.asarray(a) - np.asarray(b))
    low, high = class_bootstrap(points, labels)
    return GainDifference(round(float(points.mean()), 2), round(low, 2), round(high, 2))


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
    training = recipe.training
    share = rate_share(start, training.lr)
    against = gain.differences.get("best - raw", {}).values()
    if any(one.high < 0 for one in against):
        return f"Raw features are better here: {_beyond_raw(recipe, start)}."
    if any(one.points < 0 for one in against) and gain.classes < _FEW_CLASSES:
        return f"{gain.validation} cannot tell whether raw features are better here: {_validate_more(recipe.data)}."
    if gain.at_ceiling:
        return f"No gain can show where all are told apart perfectly: {_validate_more(recipe.data)}."
    if share < NEARLY_STILL:
        return (
            "Bring more classes, or more items of each: these leave the start nearly as it is. To train on all the "
            "same, set training.full_rate_classes=0 and training.full_rate_items=0."
        )
    if gain.best_step == last_step == training.max_steps:
        return f"The last weights were the best: raise training.max_steps (now {training.max_steps})."
    if share < LOWERED:
        return (
            "Bring more classes, or more items of each: training learns slowly below training.full_rate_classes and "
            "full_rate_items (0 turns either off)."
        )
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
    if model.space == _POINCARE:
        return "set model.space to sphere, where the head can start from the data"
    if model.head_start == KEPT:
        return "name the model in model.weights instead of model.start, so that a new head starts from the data"
    changes = [] if model.head_start != RANDOM else ["model.head_start to whitened"]
    if model.dimension is None:
        if model.local_dimension is None:
            return use
        return f"set {' and '.join([*changes, f'model.local_dimension to {2 * model.local_dimension}'])}, or {use}"
    if model.dimension == AUTO or (start is not None and start["dimension"] >= start["features"]):
        return f"{use}, or bring more classes"
    # A learned similarity and prefixes need a number.
    size: int | str = AUTO if model.similarity is None and not recipe.objective.prefixes else 2 * model.dimension
    return f"set {' and '.join([*changes, f'model.dimension to {size}'])}"
