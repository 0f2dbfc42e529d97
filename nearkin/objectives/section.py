"""The `objective` section of a recipe: which loss, which miner, which regularisers, and their parameters."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from nearkin.errors import RecipeError

# Importing a module of losses files them in the registry, where a recipe's names are looked up.
from nearkin.objectives import (  # noqa: F401
    adversary,
    episodic,
    hierarchy,
    miner,
    pairs,
    penalties,
    proxies,
    proxy,
    similarity,
    triplet,
    zero_shot,
)
from nearkin.objectives import registry as known
from nearkin.registry import check_parameters, parameters_of
from nearkin.spaces import Space


class RegulariserSection(BaseModel):
    """One regulariser: a term added to the loss."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(description="Name of the regulariser.")
    weight: float = Field(default=1.0, ge=0, allow_inf_nan=False, description="What the term is multiplied by.")
    parameters: dict[str, Any] = Field(default_factory=dict, description="Parameters of the regulariser.")

    @model_validator(mode="after")
    def _check(self) -> RegulariserSection:
        entry = known.regularisers.get(self.name)
        key = f"objective.regularisers['{self.name}'].parameters"
        _check_given(entry.factory, self.parameters, f"regulariser '{self.name}'", key)
        return self


class ObjectiveSection(BaseModel):
    """What training minimises."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    loss: str = Field(default="proxy-anchor", description="Name of the loss.")
    parameters: dict[str, Any] = Field(
        default_factory=dict, description="Parameters of the loss; those left out keep their defaults."
    )
    weight: float = Field(
        default=1.0, ge=0, allow_inf_nan=False, description="What the loss is multiplied by, beside the regularisers."
    )
    miner: str | None = Field(
        default=None, description="Which pairs or triplets of a batch count; null: the loss's own choice."
    )
    miner_parameters: dict[str, Any] = Field(default_factory=dict, description="Parameters of the miner.")
    switch: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="rho-regularisation: the share of mined negatives that items of the anchor's own class replace.",
    )
    proxy_start: Literal["prototypes", "random"] | None = Field(
        default=None,
        description="First values of proxies that move, learned or ema. prototypes: the mean points of their classes "
        "in the network before training, pretrained or from scratch; null: prototypes where the head starts from the "
        "data (model.head_start), else random.",
    )
    prefixes: list[Annotated[int, Field(ge=2)]] = Field(
        default_factory=list,
        description="Sizes, below the model's dimension, whose first dimensions the loss teaches to serve alone.",
    )
    prefix_weights: list[Annotated[float, Field(gt=0, allow_inf_nan=False)]] | None = Field(
        default=None,
        description="What the loss of each of these counts beside that of whole embeddings; null: as much, 1.",
    )
    regularisers: list[RegulariserSection] = Field(default_factory=list, description="Terms added to the loss.")

    @field_validator("regularisers", mode="before")
    @classmethod
    def _show_the_form(cls, given: Any) -> Any:
        """Refuse what is no list of terms with an example: a bare name is the likeliest slip."""
        known = RegulariserSection.model_fields.keys()
        for term in given if isinstance(given, list | tuple) else [None]:
            nameless = isinstance(term, dict) and "name" not in term and term.keys() <= known
            if nameless or not isinstance(term, dict | RegulariserSection):
                raise RecipeError(
                    f"objective.regularisers is a list of terms such as [{{name: class-adversary, weight: 0.5}}], each "
                    f"with a name, not {given!r}."
                )
        return given

    @model_validator(mode="after")
    def _check(self) -> ObjectiveSection:
        loss = known.losses.get(self.loss)
        _check_given(loss.factory, self.parameters, f"loss '{self.loss}'", "objective.parameters")
        self._check_miner(loss)
        self._check_switch(loss)
        self._check_prefixes(loss)
        if self.weight == 0 and not self.regularisers:
            raise RecipeError("objective.weight is 0, and there are no regularisers: raise it, or add a regulariser.")
        names = [regulariser.name for regulariser in self.regularisers]
        for name in names:
            if names.count(name) > 1:
                raise RecipeError(f"The regulariser '{name}' is named twice: keep one, with the weight you want.")
        return self

    def _check_switch(self, loss: known.LossEntry) -> None:
        if self.switch and (loss.miner is None or not loss.switchable):
            others = [name for name in known.losses if (one := known.losses.get(name)).miner and one.switchable]
            raise RecipeError(
                f"The loss '{self.loss}' has no mined negatives that items of the anchor's class could replace: remove "
                f"objective.switch ({self.switch:g}), or choose one of: {', '.join(others)}."
            )

    def _check_prefixes(self, loss: known.LossEntry) -> None:
        if self.prefixes and loss.family == "similarity":
            raise RecipeError(
                f"The loss '{self.loss}' teaches a network that compares whole embeddings: remove objective.prefixes, "
                "or choose another loss."
            )
        if len(set(self.prefixes)) < len(self.prefixes):
            raise RecipeError(f"objective.prefixes names a size twice: {self.prefixes}.")
        if self.prefix_weights is not None and len(self.prefix_weights) != len(self.prefixes):
            raise RecipeError(
                f"objective.prefixes has {len(self.prefixes)} sizes and objective.prefix_weights "
                f"{len(self.prefix_weights)} weights: give one weight for each size."
            )

    def weights_of_prefixes(self) -> list[float]:
        """What the loss of each prefix counts."""
        return [1.0] * len(self.prefixes) if self.prefix_weights is None else self.prefix_weights

    def _check_miner(self, loss: known.LossEntry) -> None:
        if loss.miner is None:
            if self.miner is not None:
                raise RecipeError(
                    f"The loss '{self.loss}' takes no miner: remove objective.miner ('{self.miner}'), or choose a "
                    f"loss that compares the samples of a batch, such as 'triplet'."
                )
            if self.miner_parameters:
                raise RecipeError(f"The loss '{self.loss}' takes no miner: remove objective.miner_parameters.")
            return
        name = self.miner or loss.miner
        factory = known.miners.get(name).factory
        _check_given(factory, self.miner_parameters, f"miner '{name}'", "objective.miner_parameters")


def pair_margins(section: ObjectiveSection, space: Space) -> tuple[float, float] | None:
    """m+ and m- of a loss that draws a fixed line between distances of pairs; None of any other.

    Args:
        section: what training minimises.
        space: whose distances these are.
    """
    declared = parameters_of(known.losses.get(section.loss).factory)
    chosen = {name: parameter.default for name, parameter in declared.items()} | section.parameters
    if section.loss == "contrastive":
        return chosen["pos_margin"], chosen["neg_margin"]
    if section.loss == "contrastive-cosine":  # m- is a cosine, on the sphere only
        angle = math.acos(min(1.0, max(-1.0, chosen["margin"])))
        return 0.0, angle if getattr(space, "metric", "chord") == "angle" else 2 * math.sin(angle / 2)
    if section.loss == "margin":  # where beta begins: it is learned
        return chosen["beta"] - chosen["margin"], chosen["beta"] + chosen["margin"]
    return None


def _check_given(factory: Callable[..., Any], given: dict[str, Any], owner: str, key: str) -> None:
    """Check the parameters that a recipe gives and convert them, in place, to the types that the factory declares."""
    names = parameters_of(factory)
    given.update(check_parameters(factory, given, names=names, owner=owner, key=key, error=RecipeError))
