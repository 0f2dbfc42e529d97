"""The calibration of a gallery: its value, how it is fitted, and the one that a gallery keeps up to date."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from threading import RLock
from typing import Any, TypeVar

import numpy as np

from nearkin.checks import check_between, check_whole, is_real
from nearkin.errors import DataError, StorageError
from nearkin.gallery.calibration.identification import (
    MOST_NEIGHBOURS,
    Identification,
    class_sizes,
    fit_identification,
    leave_class_out,
    leave_out,
    present,
    shares_of,
    too_few_for_probabilities,
)
from nearkin.gallery.calibration.pairs import PairRule, Ruling, compare_pairs, fit_pair_rule
from nearkin.gallery.calibration.training_items import TrainingItems
from nearkin.gallery.calibration.unknown import (
    STRANGERS,
    CombinedScore,
    UnknownThreshold,
    fit_known_line,
    fit_unknown_threshold,
    too_few_for_threshold,
)
from nearkin.gallery.model import GalleryModel
from nearkin.gallery.store import Found, GalleryStore, Sample
from nearkin.gallery.values import Forecast, LikelyClass, Match, Settings
from nearkin.spaces import Space

T = TypeVar("T")

_SHOWN = 5
_NOTHING = "The gallery has no labelled items: add some."


_FORMAT = 1
_GROWTH = 0.1
"""The share of the items whose change makes a calibration old."""

_EARLY_GROWTH = 0.01
"""The same of one that still lacks something: a gallery that begins to grow is looked at again soon."""


@dataclass(frozen=True)
class Calibration:
    """What a gallery has learned from itself.

    Attributes:
        items: how many items it had.
        changes: how many changes there had been, as `GalleryStore.changes` counts them.
        generation: how many writes there had been.
        accept: the share of queries of enrolled classes that are not to count as unknown.
        k: how many neighbours `classify` goes by.
        identification: how neighbours become probabilities.
        horizon: known or unknown.
        pairs: the same or not.
        notes: what a reader must know.
        warning: what a reader must know of every answer; empty if nothing.
    """

    items: int
    changes: int
    generation: int
    accept: float = 0.95
    k: int = 1
    identification: Identification = field(default_factory=Identification)
    horizon: UnknownThreshold = field(default_factory=UnknownThreshold)
    pairs: PairRule = field(default_factory=PairRule)
    notes: tuple[str, ...] = ()
    warning: str = ""

    @cached_property
    def key(self) -> str:
        """A name of this very content."""
        plain = json.dumps(self._content(), sort_keys=True).encode()
        return hashlib.sha256(plain).hexdigest()[:16]

    @property
    def complete(self) -> bool:
        """Whether there was enough to learn all of it."""
        return not (self.identification.reason or self.horizon.reason or self.horizon.doubt or self.pairs.reason)

    def stale(self, store: GalleryStore) -> bool:
        """Whether so much has changed that it should be learned anew: a tenth of the items, one at the least.

        One that lacks something for want of items is old after a hundredth, which in a small gallery is any change.
        """
        share = _GROWTH if self.complete else _EARLY_GROWTH
        return abs(store.changes - self.changes) >= max(1, math.ceil(round(share * self.items, 6)))

    def classify(self, found: Found, classes: Sequence[str], sizes: np.ndarray) -> list[Match]:
        """What queries are, from their nearest labelled neighbours.

        Args:
            found: what `store.search(queries, k, labelled=True)` gives; more neighbours than k are left alone, and so
                are those without a label.
            classes: as `GalleryStore.classes` gives them.
            sizes: how many items each of them has (C,), as `class_sizes` counts them.
        """
        identification, horizon = self.identification, self.horizon
        distances, codes = found.distances[:, : self.k], found.codes[:, : self.k]
        there = present(distances, codes) & (codes < len(classes))
        codes = np.where(there, codes, -1)
        some = np.flatnonzero(there.any(axis=1))
        verdicts = [Match(None, None, None, reason=_NOTHING)] * len(codes)
        if not len(some):
            return verdicts
        distances, codes, there = distances[some], codes[some], there[some]
        first, counts = (np.arange(len(some)), there.argmax(axis=1)), shares_of(sizes, codes)
        known = horizon.judge(identification, distances, codes, counts, classes)
        note = self.warning or horizon.remark
        if identification.temperature is None:
            top, values = codes[first][:, None], np.zeros((len(some), 0))
        else:
            top, values = identification.probabilities(distances, codes, counts).top(_SHOWN)
        for row, labels, shares, flag in zip(some.tolist(), top.tolist(), values.tolist(), known, strict=True):
            # Without probabilities there is a label and no share of it.
            pairs = zip(labels, shares, strict=False)
            listed = tuple(LikelyClass(classes[code], share) for code, share in pairs if code >= 0)
            probability = listed[0].probability if listed else None
            verdicts[row] = Match(
                classes[labels[0]],
                probability,
                flag,
                candidates=listed,
                reason=self._reason(flag),
                forecast=horizon.forecast,
                note=note,
            )
        return verdicts

    def _reason(self, known: bool | None) -> str:
        """Why an answer has no probability, or says neither known nor unknown."""
        undecided = self.horizon.why_undecided() if known is None else ""
        return " ".join(dict.fromkeys(text for text in (self.identification.reason, undecided) if text))

    def judge(self, distance: float, rate: float, prior: float = 0.5) -> Ruling:
        """Whether two items at a distance are of one class, so that the share `rate` of others is accepted at most."""
        least = -math.inf if self.identification.similarity else 0.0
        if not is_real(distance) or not least <= float(distance) < math.inf:
            raise DataError(f"A distance must be a number{'' if least else ' from 0 on'}, not {distance!r}.")
        check_between(rate, "false_accept_rate")
        check_between(prior, "prior")
        return self.pairs.judge(float(distance), float(rate), float(prior))

    def reliability(self) -> dict[str, Any]:
        """How sure and how right the gallery is of its own items, each left out in turn; or the reason it cannot say.

        Returns:
            "bins" (a list of "low", "high", "confidence", "accuracy", "count"), "ece", "accuracy", "items" and, in
            words, "fitted_by"; or "reason" alone.
        """
        found = self.identification
        if found.temperature is None:
            return {"reason": found.reason}
        bins = [dict(part) for part in found.bins]
        numbers = {"ece": found.ece, "accuracy": found.accuracy, "items": found.items}
        return {"bins": bins, **numbers, "fitted_by": found.fitted_by}

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"format": _FORMAT, "key": self.key, **self._content()}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Calibration:
        """The inverse of `to_dict`.

        Raises:
            DataError: if it is of a newer format, or no calibration.
        """
        if not isinstance(plain, Mapping) or not isinstance(plain.get("format"), int):
            raise DataError("This is not a calibration of a gallery: make one with recalibrate.")
        if plain["format"] > _FORMAT:
            raise DataError(
                f"This calibration has format {plain['format']}, and this version of nearkin reads up to {_FORMAT}: "
                "update nearkin, or recalibrate."
            )
        try:
            return cls(
                **{name: plain[name] for name in ("items", "changes", "generation", "accept", "k")},
                identification=restored(Identification, plain["identification"]),
                horizon=_restored_horizon(plain["horizon"]),
                pairs=restored(PairRule, plain["pairs"]),
                notes=tuple(plain["notes"]),
                warning=str(plain.get("warning", "")),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(f"This calibration is damaged ({error}): make one with recalibrate.") from error

    def _content(self) -> dict[str, Any]:
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        # Older calibrations have none of these, and keep their key.
        for name in ("similarity", "widening", "usual"):
            if plain["identification"][name] == getattr(Identification, name):
                del plain["identification"][name]
        if not self.warning:
            del plain["warning"]
        if self.horizon.strangers is None:
            plain["horizon"] = {name: plain["horizon"][name] for name in ("threshold", "items", "rejected", "reason")}
        return plain


def restored(kind: type[T], plain: Mapping[str, Any]) -> T:
    """A part of a calibration from plain values; keys of a newer version are ignored."""
    known = {field.name: field.default for field in fields(kind) if field.name in plain}  # type: ignore[arg-type]
    return kind(**{name: tuple(plain[name]) if default == () else plain[name] for name, default in known.items()})


def _restored_horizon(plain: Mapping[str, Any]) -> UnknownThreshold:
    found = restored(UnknownThreshold, plain)
    forecast, combined = plain.get("forecast"), plain.get("combined")
    return replace(
        found,
        forecast=None if forecast is None else restored(Forecast, forecast),
        combined=None if combined is None else restored(CombinedScore, combined),
    )


_FEW_CLASSES = 10


def fit_calibration(
    store: GalleryStore,
    space: Space,
    *,
    accept: float = 0.95,
    strangers: float = STRANGERS,
    trained: TrainingItems | None = None,
    points: int = 10_000,
    seed: int = 0,
    progress: bool = False,
) -> Calibration:
    """Learn how sure answers are, which queries are unknown, and which pairs are the same.

    What the gallery is too small for stays None, with the reason. Probabilities are given that a query is of an
    enrolled class; a class with a single item cannot be tested, since nothing is left of it when that is left out.
    Copies and items of one occasion (frames of a video) that are enrolled as several make all of it too confident.

    Args:
        store: the gallery.
        space: how its vectors are compared.
        accept: the share of queries of enrolled classes that are not to count as unknown.
        strangers: the largest share of queries of classes that are not enrolled that may count as known, up to 1.
        trained: which items trained the model; where there are others, these alone are left out.
        points: look at so many labelled items at the most, drawn at random; each is compared with the whole gallery.
        seed: of the draws.
        progress: whether to show a bar.
    """
    check_between(accept, "accept")
    check_strangers(strangers)
    check_whole(points, "points", 1)
    check_whole(seed, "seed", 0)
    # Read first: what is written meanwhile counts as a change since.
    changes, generation, items = store.changes, store.generation, len(store)
    sample = store.sample(int(points), int(seed), labelled=True)
    sizes = class_sizes(store, sample.codes)
    sample, note, warning = _unseen(store, sample, sizes, trained)
    k = max(1, min(MOST_NEIGHBOURS, int(sizes.sum()) - 1))
    similarity = bool(getattr(space, "similarity", False))
    mates = int((sizes[sample.codes] > 1).sum())
    classes = int((np.bincount(sample.codes, minlength=len(sizes))[sizes > 1] > 0).sum())
    little, few = too_few_for_probabilities(classes, mates), too_few_for_threshold(mates, accept)
    identification = Identification(items=mates, reason=little, similarity=similarity)
    horizon = UnknownThreshold(items=mates, reason=few)
    if not (little and few):  # nothing is searched for where items are too few for anything
        left_out = leave_out(store, sample, sizes, k, progress)
        identification = identification if little else fit_identification(left_out, similarity)
        if not few:
            horizon = fit_unknown_threshold(left_out, float(accept))
            without_class = leave_class_out(store, sample, left_out)
            horizon = fit_known_line(
                horizon, identification, left_out, without_class, store.classes(), float(strangers)
            )
    horizon = replace(horizon, strangers=float(strangers))
    if warning:
        horizon = replace(horizon, score="", line=None, doubt=_ALL_TRAINED, forecast=None, combined=None, compared=())
    pairs = fit_pair_rule(compare_pairs(store, space, sample, sizes, int(seed)))
    notes = (*([note] if note else []), *_notes(sizes, identification, horizon))
    return Calibration(items, changes, generation, float(accept), k, identification, horizon, pairs, notes, warning)


def check_strangers(strangers: Any) -> None:
    """Refuse a share of strangers that is none."""
    if not is_real(strangers) or not 0 < strangers <= 1:
        raise DataError(f"`strangers` must lie above 0 and be at most 1, not {strangers!r}.")


_ALL_TRAINED = (
    "Known or unknown cannot be told from the items that trained the model: enrol items it has not seen, of other "
    "classes or enrolled later."
)


def _unseen(
    store: GalleryStore, sample: Sample, sizes: np.ndarray, trained: TrainingItems | None
) -> tuple[Sample, str, str]:
    """The items of a sample to calibrate on, a note on the choice, and a warning where there was none."""
    seen = np.zeros(len(sample.codes), bool) if trained is None else trained.rows(store, sample)
    if not seen.any():
        return sample, "", ""
    left = sample.codes[~seen]
    classes, mates = len(np.unique(left)), int((sizes[left] > 1).sum())
    if too_few_for_probabilities(len(np.unique(left[sizes[left] > 1])), mates):
        warning = (
            f"The probabilities are too high: {int(seen.sum()):,} of {len(seen):,} items trained the model, and the "
            "others are too few to calibrate on. Enrol items that the model has not seen."
        )
        return sample, warning, warning
    note = (
        f"Calibrated on {len(left):,} items of {classes:,} classes, which the model was not trained on; the other "
        f"{int(seen.sum()):,} of {len(seen):,} items trained it, and would make answers look too sure."
    )
    return Sample(*(part[~seen] for part in (sample.keys, sample.vectors, sample.codes))), note, ""


def _notes(sizes: np.ndarray, identification: Identification, horizon: UnknownThreshold) -> tuple[str, ...]:
    notes = list(identification.notes)
    single, classes = int((sizes == 1).sum()), int((sizes > 0).sum())
    if single:
        verb = "class has" if single == 1 else "classes have"
        notes.append(f"{single:,} {verb} a single item: confidence in these could not be tested.")
    if horizon.rejected is not None and classes < _FEW_CLASSES:
        notes.append(f"With only {classes} classes, leaving one out says little about classes that are not enrolled.")
    return (*notes, *([horizon.doubt] if horizon.doubt else []))


_NOTE = "calibration"
_ACCEPT = 0.95
_QUICK = 5000
"""Items that are calibrated in about a second."""

_LATER = "Calibrating for the first time; try again in a minute."
_UNCALIBRATED = Calibration(
    items=0,
    changes=0,
    generation=0,
    identification=Identification(reason=_LATER),
    horizon=UnknownThreshold(reason=_LATER),
    pairs=PairRule(reason=_LATER),
)


class Calibrator:
    """Keeps the calibration of a gallery in its store, and fits it anew when it is due.

    Args:
        store: where the items are.
        model: that made the vectors: its card knows which classes trained it.

    Attributes:
        auto: whether a calibration that is due is fitted before an answer.
    """

    def __init__(self, store: GalleryStore, model: GalleryModel) -> None:
        self.store = store
        self.model = model
        self.auto = True
        self._fitted: Calibration | None = None
        # What could not be written, because another process was writing; and the settings it was fitted for.
        self._unkept: tuple[Settings, Calibration] | None = None
        self._fitting = RLock()

    def current(self) -> Calibration | None:
        """The last calibration, by anyone."""
        kept = self.store.note(_NOTE)
        if self._fitted is None or not isinstance(kept, dict) or kept.get("key") != self._fitted.key:
            self._fitted = _read(kept)
            if self._fitted is not None:
                self._unkept = None  # somebody has calibrated since
        if self._unkept is not None and self._unkept[0] == self.store.settings:
            return self._unkept[1]
        return self._fitted

    def due(self) -> bool:
        """Whether it is time to calibrate again."""
        fitted = self.current()
        return fitted is None or fitted.stale(self.store)

    def calibrated(self, progress: bool = False) -> Calibration:
        """The calibration to answer by, fitted now if that is due.

        Without `auto`, a large gallery that was never calibrated answers without probabilities.
        """
        fitted = self.current()
        if fitted is not None and not (self.auto and fitted.stale(self.store)):
            return fitted
        if not self.auto and len(self.store) > _QUICK:
            return _UNCALIBRATED
        with self._fitting:
            fitted = self.current()
            if fitted is not None and not fitted.stale(self.store):
                return fitted
            settings = self.store.settings
            fitted = self._fit(None, None, progress)
            with suppress(StorageError):  # another process is writing: an answer need not wait for it
                self._keep(settings, fitted)
            return fitted

    def refit(self, accept: float | None, strangers: float | None = None, progress: bool = False) -> Calibration:
        """Calibrate again and keep it; this process goes by it even if it cannot be kept.

        Raises:
            StorageError: if it cannot be kept, since another process is writing, or the place is read-only.
        """
        with self._fitting:
            settings = self.store.settings
            fitted = self._fit(accept, strangers, progress)
            self._keep(settings, fitted)
            return fitted

    def _fit(self, accept: float | None, strangers: float | None, progress: bool) -> Calibration:
        before = self.current()
        if accept is None:
            accept = _ACCEPT if before is None else before.accept
        if strangers is None:
            strangers = STRANGERS if before is None or before.horizon.strangers is None else before.horizon.strangers
        trained = TrainingItems.of(self.store, self.model.card_in_use)
        return fit_calibration(
            self.store, self.store.space, accept=accept, strangers=strangers, trained=trained, progress=progress
        )

    def _keep(self, settings: Settings, fitted: Calibration) -> None:
        if self.store.settings != settings:
            raise StorageError("The gallery was rebuilt while it was being calibrated: try again.")
        try:
            self.store.set_note(_NOTE, fitted.to_dict())
        except StorageError:
            self._unkept = (settings, fitted)  # answers go by it all the same
            raise
        self._fitted, self._unkept = fitted, None


def _read(note: Any) -> Calibration | None:
    """The calibration in a note; None if there is none, or it is damaged or of a newer version: it is fitted again."""
    if note is None:
        return None
    try:
        found = Calibration.from_dict(note)
        return found if found.key == note.get("key") else None
    except (DataError, TypeError, ValueError):
        return None
