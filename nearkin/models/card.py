"""The card: what a stranger must know of a model to use and to judge it. It is saved with the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(frozen=True)
class CardData:
    """The data a model was trained on.

    Attributes:
        name: of the data set.
        source: where it was read from: an absolute path, a URL or a catalogue name.
        kind: "image" or "audio".
        items: how many there were, training or not.
        fingerprint: a hash of the manifest and the files.
        notes: what to know about it, such as how many files were left out.
    """

    name: str | None = None
    source: str | None = None
    kind: str | None = None
    items: int | None = None
    fingerprint: str | None = None
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class CardParts:
    """Names, of classes or of domains, by the part of the split they are in.

    Attributes:
        train: trained the model.
        val: chose its weights.
        test: held out for the audit.
    """

    train: list[str] = field(default_factory=list)
    val: list[str] = field(default_factory=list)
    test: list[str] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class Card(Mapping[str, Any]):
    """What is known of a model. None, or an empty value, where nothing is.

    A card is also a mapping of its JSON form, without what is unknown: `card["classes"]["train"]`.

    Attributes:
        name: of a pretrained backbone that nobody trained further.
        note: likewise, a remark.
        started_from: the "file" of the model that the backbone's first weights came from, and the "classes" it knew.
        recipe: the resolved recipe, as plain values.
        data: the training data.
        classes: which classes trained, validated and were held out.
        domains: likewise for domains; None if the data has none.
        selected_on: what chose the weights.
        hierarchy: the class tree of the training, in Newick.
        validation: validation values of the best weights.
        finished: whether training finished; None if the model was not trained.
        steps: training steps; None if the model was not trained.
        best_step: the step that validated best.
        averaged: how many of the best weights the kept ones are the mean of; None: they are the best themselves.
        seconds: how long training took.
        versions: of nearkin, torch and Python.
        start: how the head started, see `HeadStart.to_dict`, and the learning rate.
        gain: what training added to its start, see `Gain.to_dict`.
        shortened: how embeddings were made shorter.
        reweighted: how their principal directions were re-weighted.
        few_shot: how many items there were of each class `SimilarityModel.few_shot` was given.
        compared: what the validation classes say of ways to compare by a learned similarity: MAP@R of each, and which
            was "best"; None where the classes were those that trained.
        others: keys that this version does not know.
    """

    name: str | None = None
    note: str | None = None
    started_from: dict[str, Any] | None = None
    recipe: dict[str, Any] = field(default_factory=dict)
    data: CardData = field(default_factory=CardData)
    classes: CardParts = field(default_factory=CardParts)
    domains: CardParts | None = None
    selected_on: str | None = None
    hierarchy: str | None = None
    validation: dict[str, float] | None = None
    finished: bool | None = None
    steps: int | None = None
    best_step: int | None = None
    averaged: int | None = None
    seconds: float | None = None
    versions: dict[str, str] = field(default_factory=dict)
    start: dict[str, Any] | None = None
    gain: dict[str, Any] | None = None
    shortened: dict[str, Any] | None = None
    reweighted: dict[str, Any] | None = None
    few_shot: dict[str, Any] | None = None
    compared: dict[str, Any] | None = None
    others: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Card:
        """Read what `to_dict` gave, in this version or another."""
        nested = {"data": CardData, "classes": CardParts, "domains": CardParts}
        known, others = _divided(cls, stored)
        for name in nested.keys() & known.keys():
            known[name] = nested[name](**_divided(nested[name], known[name])[0])
        return cls(**known, others=others)

    def to_dict(self) -> dict[str, Any]:
        """All that is known, as plain JSON values."""
        default = Card()
        told = {name: value for name, value in vars(self).items() if value != getattr(default, name)}
        others = told.pop("others", {})
        for name in ("data", "classes", "domains"):
            if name in told:
                told[name] = {key: value for key, value in vars(told[name]).items() if value is not None}
        if self.finished is not None:  # an ordinary run, whose weights nothing chose
            told.setdefault("selected_on", None)
        return told | others

    def __getitem__(self, key: str) -> Any:
        return self.to_dict()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.to_dict())

    def __len__(self) -> int:
        return len(self.to_dict())


def _divided(kind: Any, stored: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Stored values by whether a dataclass has a field of that name."""
    names = {one.name for one in fields(kind)} - {"others"}
    known = {name: value for name, value in stored.items() if name in names}
    return known, {name: value for name, value in stored.items() if name not in names}
