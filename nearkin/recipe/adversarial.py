"""The `training.adversarial` section of a recipe: training on inputs that an attack has perturbed."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator


def _as_number(given: Any) -> Any:
    """A fraction such as "8/255" as a number; whatever else as it is."""
    if not isinstance(given, str):
        return given
    try:
        return float(Fraction(given))
    except (ValueError, ZeroDivisionError):
        return given


Fractional = Annotated[float, BeforeValidator(_as_number)]
"""A number, which a recipe may also give as a fraction."""


class AdversarialSection(BaseModel):
    """What is made of perturbed inputs, and what perturbs them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    mode: Literal["mix", "trades", "negative-margin"] = Field(
        default="mix",
        description="mix: the loss of clean and of perturbed inputs; trades: perturbed ones shall be predicted as the "
        "clean ones are; negative-margin: with the loss normface, perturbed ones shall only stay with their proxy.",
    )
    alpha: float = Field(
        default=0.5,
        ge=0,
        lt=1,
        allow_inf_nan=False,
        description="With mode=mix or negative-margin: the share of the clean inputs' loss; 0: clean inputs are left "
        "out (mix only).",
    )
    trades_lambda: Fractional = Field(
        default=1 / 6,
        gt=0,
        allow_inf_nan=False,
        description="With mode=trades: the perturbed inputs' term is divided by this; small: more robust, less "
        "accurate.",
    )
    trades_term: Literal["kl", "cross-entropy"] = Field(
        default="kl",
        description="With mode=trades: kl: the divergence of the two predictions; cross-entropy: this plus the entropy "
        "of the clean one, which can make one class certain for all inputs.",
    )
    attack: Literal["fgsm", "bim", "pgd"] = Field(
        default="pgd",
        description="fgsm: one step of eps; bim: several steps from the input; pgd: from a random point of the ball.",
    )
    norm: Literal["linf", "l2"] = Field(default="linf", description="How the size of a perturbation is measured.")
    eps: Fractional = Field(
        default=8 / 255,
        gt=0,
        allow_inf_nan=False,
        description="Largest size of a perturbation, of pixels in [0, 1]; fractions such as 8/255 are numbers here.",
    )
    steps: int = Field(default=10, ge=1, description="Steps of bim and pgd, each a forward and a backward pass.")
    step_size: Fractional | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="Length of a step of bim and pgd; null: 2.5 eps / steps, or eps if there is one step.",
    )

    @model_validator(mode="after")
    def _check(self) -> AdversarialSection:
        if self.mode == "trades" and self.alpha != _default("alpha"):
            raise ValueError("alpha is set, which the mode 'trades' does not use: set trades_lambda instead")
        for name in ("trades_lambda", "trades_term"):
            if self.mode != "trades" and getattr(self, name) != _default(name):
                raise ValueError(f"{name} is set, which the mode '{self.mode}' does not use: leave it out")
        if self.norm == "linf" and self.eps >= 1:
            raise ValueError(
                f"eps is of pixels from 0 to 1 and must be below 1 in linf, as 8/255 is; {self.eps:g} is not"
            )
        if self.mode == "negative-margin" and self.alpha == 0:
            raise ValueError("the mode 'negative-margin' needs clean inputs, too: set alpha above 0")
        if self.attack == "fgsm" and (self.step_size is not None or self.steps not in (1, _default("steps"))):
            raise ValueError("the attack 'fgsm' makes one step of eps: set steps to 1 and step_size to null")
        return self


def _default(name: str) -> Any:
    return AdversarialSection.model_fields[name].default
