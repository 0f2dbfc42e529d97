"""The `training` section of a recipe: how the objective is minimised."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from nearkin.metrics.named import check_metric_name
from nearkin.registry import Count, CountOrZero, NonNegative, Positive, Share


def _as_number(given: Any) -> Any:
    """A fraction such as "8/255" as a number; whatever else as it is."""
    if not isinstance(given, str):
        return given
    try:
        return float(Fraction(given))
    except (ValueError, ZeroDivisionError):
        return given


AUTO_PRECISION: Literal["auto"] = "auto"

Beta = Annotated[float, Field(ge=0, lt=1)]
"""How much of a moving average is kept."""

Several = Annotated[int, Field(ge=2)]

Fractional = Annotated[float, BeforeValidator(_as_number)]
"""A number, which a recipe may also give as a fraction."""


class RecipeSection(BaseModel):
    """A section that refuses keys it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class AdversarialSection(RecipeSection):
    """What is made of perturbed inputs, and what perturbs them."""

    mode: Literal["mix", "trades", "negative-margin", "logit-pairing", "triplet"] = Field(
        default="mix",
        description="mix: the loss of clean and of perturbed inputs; trades: perturbed ones should be predicted as the "
        "clean ones are; negative-margin: with the loss normface, perturbed ones should only stay with their proxy; "
        "logit-pairing: as mix, and perturbed ones should get the clean ones' class scores; triplet: as mix, and they "
        "should be nearer to a clean item of their class than to the nearest clean one of another.",
    )
    alpha: float = Field(
        default=0.5,
        ge=0,
        lt=1,
        allow_inf_nan=False,
        description="But for mode=trades: the share of the clean inputs' loss; 0: clean inputs are left out (mix), or "
        "have no loss of their own (logit-pairing, triplet).",
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
    pairing_weight: NonNegative = Field(
        default=0.5, description="With mode=logit-pairing or triplet: weight of the term that pairs inputs."
    )
    pairing_margin: NonNegative = Field(
        default=0.03, description="With mode=triplet: by how much the own class shall be nearer, in 1 - cosine."
    )
    attack: Literal["fgsm", "bim", "pgd"] = Field(
        default="pgd",
        description="fgsm: one step of eps; bim: several steps from the input; pgd: from a random point of the ball.",
    )
    norm: Literal["linf", "l2", "l1", "combined"] = Field(
        default="linf",
        description="How the size of a perturbation is measured; combined: beta L1 + (1 - beta) L-inf, whose ball of "
        "size eps holds the L1 ball of that size and the L-inf ball of eps / l1_ratio.",
    )
    l1_ratio: float = Field(
        default=100.0,
        gt=1,
        allow_inf_nan=False,
        description="With norm=combined: how many times as large as the L-inf ball the L1 ball is, between 1 and the "
        "numbers of an input.",
    )
    eps: Fractional = Field(
        default=8 / 255,
        gt=0,
        allow_inf_nan=False,
        description="Largest size of a perturbation, of pixels in [0, 1]; fractions such as 8/255 are numbers here.",
    )
    steps: Count = Field(default=10, description="Steps of bim and pgd, each a forward and a backward pass.")
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
                raise ValueError(f"{name} is set, which the mode '{self.mode}' does not use: remove it")
        uses = {"pairing_weight": ("logit-pairing", "triplet"), "pairing_margin": ("triplet",)}
        for name, modes in uses.items():
            if self.mode not in modes and getattr(self, name) != _default(name):
                raise ValueError(f"{name} is set, which the mode '{self.mode}' does not use: remove it")
        if self.norm != "combined" and self.l1_ratio != _default("l1_ratio"):
            raise ValueError(f"l1_ratio is set, which the norm '{self.norm}' does not use: set norm to combined")
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


class CrossBatchMemorySection(RecipeSection):
    """A queue of the embeddings of the last batches that each batch is compared with as well."""

    batches: Count = Field(default=25, description="Batches that the memory holds.")
    warmup_steps: CountOrZero = Field(
        default=1000, description="Plain steps before the memory is used: embeddings move too fast at first."
    )


class ChanceConstrainedSection(RecipeSection):
    """A series of proxy problems, each with new proxies drawn from the data (instances)."""

    proxies: Count = Field(default=8, description="Proxies a class; 8 up to some 200 classes, 4 for thousands.")
    pool: Count = Field(
        default=12,
        description="Samples a class from which the next proxies are picked by greedy k-center; as many as proxies: "
        "random proxies.",
    )
    proximal: NonNegative = Field(
        default=2e-4, description="Weight of half the squared distance to the weights of the previous instance."
    )
    batch_weight: NonNegative = Field(default=0.1, description="Weight of the loss of the batch with itself.")
    warmup_steps: CountOrZero = Field(
        default=0,
        description="Plain steps before the first proxies are drawn, at a validation: for networks from scratch.",
    )
    patience: Count = Field(
        default=3, description="Validations without a gain after which an instance counts as converged."
    )
    min_gain: NonNegative = Field(default=1e-5, description="Gain in MAP@R that counts as one.")
    instances: Count | None = Field(
        default=None, description="The last instance, which is never followed by new proxies; null: no last one."
    )
    anchors: Literal["proxies", "samples"] = Field(
        default="proxies",
        description="Trained proxies that start at samples' embeddings, or the samples themselves, embedded again in "
        "every step (a control for few classes).",
    )

    @model_validator(mode="after")
    def _check_pool(self) -> ChanceConstrainedSection:
        if self.pool < self.proxies:
            raise ValueError(f"pool ({self.pool}) must be at least proxies ({self.proxies}), which are picked from it")
        return self


class EpisodicSection(RecipeSection):
    """Batches that are episodes: support and queries of a few classes."""

    way: Several = Field(default=5, description="Classes in an episode.")
    shot: Count = Field(default=1, description="Support items of each class.")
    query: Count = Field(default=16, description="Queries of each class.")
    validation_way: Several | None = Field(
        default=None, description="Classes in a validation's episode; null: as many as in training."
    )
    validation_episodes: Several = Field(
        default=600, description="Episodes of a validation, whose accuracy chooses the weights."
    )
    record_every: Count | None = Field(
        default=100,
        description="Episodes between two records of the training dynamics, which cost one more forward pass; null: "
        "none.",
    )


class TrainingSection(RecipeSection):
    """How the objective is minimised."""

    max_steps: Count = Field(default=1500, description="Optimiser steps at the most.")
    optimizer: Literal["adam", "adamw", "sgd"] = Field(default="adam", description="The optimiser.")
    lr: Positive = Field(
        default=1e-3,
        description="Learning rate of the head; left out: 1e-4 where it starts from the data (model.head_start), else "
        "1e-3.",
    )
    backbone_lr_factor: float = Field(
        default=0.1, ge=0, description="The backbone's learning rate, as a multiple of `lr`."
    )
    full_rate_classes: CountOrZero = Field(
        default=80,
        description="Training classes for which `lr` is meant, where the head starts from the data (model.head_start) "
        "and the whole backbone is frozen: with fewer, every rate is lowered by the square of the share, so that few "
        "classes cannot ruin the start; 0: never.",
    )
    full_rate_items: CountOrZero = Field(default=3000, description="The same by the number of training items.")
    proxy_lr_factor: float = Field(
        default=1.0, ge=0, description="Learning rate of the loss's own parameters, as a multiple of lr."
    )
    weight_decay: float = Field(default=1e-4, ge=0, description="Weight decay of head and backbone; proxies have none.")
    layer_decay: Share | None = Field(
        default=None,
        description="Layer-wise decay: each stage of the backbone learns at this share of the rate of the next one, "
        "the last stage at the backbone's own; null: all stages at the same rate.",
    )
    momentum: float = Field(default=0.9, ge=0, lt=1, description="Momentum of sgd.")
    betas: tuple[Beta, Beta] = Field(
        default=(0.9, 0.999), description="Decay of adam's and adamw's averages of gradients and of their squares."
    )
    lr_schedule: Literal["constant", "cosine", "step", "plateau"] = Field(
        default="constant", description="Learning rate over the steps; plateau: lowered when validation stops gaining."
    )
    step_every: Count = Field(default=500, description="With lr_schedule=step: steps between two decays.")
    step_factor: Share = Field(default=0.5, description="With lr_schedule=step or plateau: what a decay multiplies by.")
    plateau_patience: CountOrZero = Field(
        default=3,
        description="With lr_schedule=plateau: validations without a better value that are waited for; the next such "
        "one lowers the rate. Those during the warm-up do not count.",
    )
    warmup_steps: CountOrZero = Field(default=0, description="Steps of linear warm-up of every learning rate.")
    head_warmup_steps: CountOrZero = Field(default=0, description="First steps that train head and proxies only.")
    clip: float | None = Field(
        default=None, gt=0, description="Largest norm of the gradient; longer ones are scaled down."
    )
    precision: Literal["32-true", "bf16-mixed", "16-mixed", "auto"] = Field(
        default="32-true",
        description="Fabric's precision; auto: bf16-mixed where a measurement before the first step says that it is "
        "clearly faster here, else 32-true.",
    )
    accelerator: Literal["auto", "cpu", "gpu", "mps"] = Field(default="auto", description="Where to train.")
    evaluate_every: Count = Field(default=100, description="Steps between two validations (and checkpoints).")
    patience: Count | None = Field(
        default=10,
        description="Validations without a better value of what `select` names before stopping; null: never.",
    )
    select: str | None = Field(
        default=None,
        description="What chooses the weights: MAP@R, P@1, accuracy where it is measured, or one of "
        "validation_metrics; null: MAP@R, or accuracy with schedule=episodic, or with data.split=items or domains "
        "and a loss that classifies.",
    )
    cluster_items: Several | None = Field(
        default=None,
        description="Items of each training class whose centroid and radius every validation measures; null: none.",
    )
    hierarchy_items: Count = Field(
        default=20,
        description="With data.hierarchy: items of each training class that make the prototypes whose distances every "
        "validation compares with the tree.",
    )
    validation_metrics: list[str] = Field(
        default=[],
        description="What each validation measures besides MAP@R and P@1, for the log and the curves: NMI, AMI, F1, "
        "Recall@k, P@k, MAP@k, R-precision, MRR, kNN-Acc and kNN-Acc (plurality) (with the audit's knn).",
    )
    ema: float | None = Field(
        default=None, gt=0, lt=1, description="Decay of the moving average of weights; null: none."
    )
    average_best: int | None = Field(
        default=None,
        ge=2,
        le=100,
        description="At the end, also validate the mean of the last so many weights that were the best when they were "
        "validated, and keep it if it beats them; a checkpoint holds all of them; null: no mean.",
    )
    gradient_accumulation: Count = Field(
        default=1,
        description="Batches whose gradients are averaged before the optimiser steps. Each has a loss of its own: "
        "items of two batches are never compared, unlike with gradient_cache.",
    )
    gradient_cache: Count | None = Field(
        default=None,
        description="Items that go through the network at once, twice, so that a large batch needs the memory of so "
        "many; null: the whole batch, once.",
    )
    sync_batch_norm: bool = Field(
        default=True,
        description="In several processes: batch norms that learn take their statistics from the whole batch, as in "
        "one; false: from the slice of their process.",
    )
    log_every: Count = Field(default=50, description="Steps between two lines of the training log.")
    seed: CountOrZero = Field(default=0, description="Seed of everything random.")
    schedule: Literal["plain", "cross-batch-memory", "chance-constrained", "episodic", "adversarial"] = Field(
        default="plain",
        description="What a batch is compared with: itself (or the loss's own proxies), also a memory of earlier "
        "batches, sets of proxies redrawn from the data time and again, or, as an episode, its own support items; "
        "adversarial: as plain, also of inputs that an attack has perturbed.",
    )
    cross_batch_memory: CrossBatchMemorySection = Field(
        default_factory=CrossBatchMemorySection, description="With schedule=cross-batch-memory: its settings."
    )
    chance_constrained: ChanceConstrainedSection = Field(
        default_factory=ChanceConstrainedSection, description="With schedule=chance-constrained: its settings."
    )
    episodic: EpisodicSection = Field(
        default_factory=EpisodicSection, description="With schedule=episodic: its settings."
    )
    adversarial: AdversarialSection = Field(
        default_factory=AdversarialSection, description="With schedule=adversarial: its settings."
    )

    @model_validator(mode="before")
    @classmethod
    def _read_old_names(cls, given: Any) -> Any:
        return with_new_names(given) if isinstance(given, dict) else given

    @field_validator("schedule", mode="before")
    @classmethod
    def _spell_with_hyphens(cls, value: Any) -> Any:
        return value.replace("_", "-") if isinstance(value, str) else value

    @field_validator("validation_metrics")
    @classmethod
    def _check_metrics(cls, value: list[str]) -> list[str]:
        for name in value:
            check_metric_name(name, " for training.validation_metrics")
        return value

    @model_validator(mode="after")
    def _check_used(self, info: ValidationInfo) -> TrainingSection:
        for schedule in ("cross-batch-memory", "chance-constrained", "episodic", "adversarial"):
            name = schedule.replace("-", "_")
            section = getattr(self, name)
            if self.schedule != schedule and section != type(section)():
                raise ValueError(
                    f"{name} is set, which the schedule '{self.schedule}' does not use: set training.schedule to "
                    f"{schedule}, or leave it out"
                )
        self._check_rates()
        if not (info.context or {}).get("saved"):
            self._check_idle()
        usual = ("MAP@R", "P@1", "accuracy")
        if self.select is not None and self.select not in (*usual, *self.validation_metrics):
            raise ValueError(
                f"select is {self.select}, which no validation measures: add it to training.validation_metrics, or "
                f"choose {', '.join(usual[:-1])} or {usual[-1]}"
            )
        if self.gradient_cache is not None and self.schedule == "adversarial":
            raise ValueError(
                "gradient_cache is set, and the schedule 'adversarial' attacks whole batches: set "
                "training.gradient_cache to null"
            )
        return self

    def _check_rates(self) -> None:
        """Refuse settings of the rate and of the optimiser that nothing would use."""
        fields = type(self).model_fields
        if self.optimizer == "sgd" and self.betas != fields["betas"].default:
            raise ValueError("betas are set, which sgd does not use: set training.momentum, or another optimizer")
        if self.layer_decay is not None and self.backbone_lr_factor == 0:
            raise ValueError("layer_decay is set, and backbone_lr_factor 0 keeps the backbone as it is: remove one")
        if self.lr_schedule != "plateau":
            if self.plateau_patience != fields["plateau_patience"].default:
                raise ValueError(
                    f"plateau_patience is set, which lr_schedule={self.lr_schedule} does not use: set "
                    "training.lr_schedule to plateau, or leave it out"
                )
        elif self.step_factor == 1:
            raise ValueError("step_factor 1 lowers no rate: set it below 1, or training.lr_schedule to constant")
        elif self.patience is not None and self.patience <= self.plateau_patience + 1:
            raise ValueError(
                f"patience {self.patience} ends training before plateau_patience {self.plateau_patience} can lower "
                f"the rate: raise training.patience above {self.plateau_patience + 1}, or set it to null"
            )

    def _check_idle(self) -> None:
        """Refuse other settings that nothing would use; runs of earlier versions may have them."""
        for name, owner, users in (
            ("step_every", "lr_schedule", ("step",)),
            ("step_factor", "lr_schedule", ("step", "plateau")),
            ("momentum", "optimizer", ("sgd",)),
        ):
            chosen = getattr(self, owner)
            if chosen not in users and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(
                    f"{name} is set, which {owner}={chosen} does not use: set training.{owner} to "
                    f"{' or '.join(users)}, or leave it out"
                )
        if self.average_best is not None and self.max_steps <= self.evaluate_every:
            raise ValueError(
                "average_best is set, and a single validation has nothing to average: lower training.evaluate_every "
                f"below max_steps ({self.max_steps}), or set average_best to null"
            )


def with_new_names(section: dict[str, Any]) -> dict[str, Any]:
    """A `training` section with today's keys: the shape of the learning rate used to be called `schedule`."""
    if section.get("schedule") not in ("constant", "cosine", "step"):
        return section
    rest = {name: value for name, value in section.items() if name != "schedule"}
    return {"lr_schedule": section["schedule"], **rest}
