"""The `audit` section of a recipe: what is measured on the held-out classes when training is done."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from nearkin.recipe.training import Fractional
from nearkin.search.rerank import rerankers

_ATTACKS = ["fgsm", "bim", "pgd"]


class AuditSection(BaseModel):
    """What is measured on the held-out classes when training is done."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    suites: list[str] = Field(default=["retrieval", "clustering"], description="Suites to run.")
    recall_at: list[Annotated[int, Field(ge=1)]] = Field(default=[1, 2, 4, 8], description="The k of Recall@k.")
    map_at: list[Annotated[int, Field(ge=1)]] = Field(default=[10], description="The k of MAP@k.")
    knn: int = Field(default=5, ge=1, description="Neighbours of kNN-Acc.")
    classification_k: list[Annotated[int, Field(ge=1)]] = Field(
        default=[10], min_length=1, description="The k of the votes of k neighbours in the classification suite."
    )
    rerank: str | None = Field(
        default=None,
        description="How the retrieval suite re-ranks what it finds: average-query-expansion, k-reciprocal; null: not.",
    )
    corrupted_queries: int = Field(default=1000, ge=10, description="Queries that the corruption suite corrupts.")
    severities: list[Annotated[int, Field(ge=1, le=5)]] = Field(
        default=[1, 2, 3, 4, 5], min_length=1, description="Severities of the corruption suite."
    )
    corruption_reference: bool = Field(
        default=False,
        description="Also corrupt for the pretrained features, which the mean corruption error is then relative to; "
        "twice the work.",
    )
    pooling_classes: int = Field(default=10, ge=2, description="Classes that the pooling suite looks at.")
    pooling_items: int = Field(default=64, ge=1, description="Items of each of them.")
    pooling_prototypes: int = Field(
        default=48, ge=1, description="Prototypes that the pooling suite covers their local features with."
    )
    fewshot_ways: list[Annotated[int, Field(ge=2)]] = Field(
        default=[5, 20], min_length=1, description="Classes in an episode of the fewshot suite, each tried."
    )
    fewshot_shots: list[Annotated[int, Field(ge=1)]] = Field(
        default=[1, 5], min_length=1, description="Known items of each of these classes, each tried."
    )
    fewshot_queries: int = Field(default=15, ge=1, description="Queries of each of these classes.")
    fewshot_episodes: int = Field(default=600, ge=2, description="Episodes of each way and shot.")
    tree_distance: Literal["path", "lcs"] = Field(
        default="path",
        description="Distance of two classes in the tree of the hierarchy suite: edges between them, or the height of "
        "their lowest common node as a share of the tree's.",
    )
    diagonal: bool = Field(
        default=False, description="Whether mean correlations count the distance of a class to itself, as published."
    )
    hierarchy_similarity_at: list[Annotated[int, Field(ge=2)]] = Field(
        default=[50, 250],
        min_length=1,
        description="The k of HS@k in the hierarchy suite; the largest is that of AHS@k.",
    )
    untrained_items: int = Field(
        default=100,
        ge=0,
        description="Items of each class at the most for the mean correlations of pixels and of a random network in "
        "the hierarchy suite; 0: none.",
    )
    geometry_items: int = Field(
        default=500, ge=3, description="Items whose distances the geometry suite compares with those of their pixels."
    )
    sizes: list[Annotated[int, Field(ge=1)]] = Field(
        default=[], description="Dimensions kept in the size suite; empty: all, and halves of it down to 4."
    )
    attacked_queries: int = Field(default=50, ge=2, description="Queries that the robustness suite attacks.")
    attacks: list[str] = Field(
        default=_ATTACKS,
        min_length=1,
        description="Attacks of the robustness suite: fgsm, bim, pgd, deepfool, cw (l2), square (linf).",
    )
    attack_norm: Literal["linf", "l2"] = Field(default="linf", description="Norm of the perturbations.")
    attack_unit: Literal["pixels", "normalised"] = Field(
        default="pixels",
        description="Unit of the epsilons: pixels from 0 to 1, or inputs as the model normalises them.",
    )
    attack_epsilons: list[Annotated[Fractional, Field(gt=0, allow_inf_nan=False)]] = Field(
        default=[0.002, 0.004, 0.016], min_length=1, description="Sizes of the perturbations, each tried."
    )
    attack_steps: int = Field(default=20, ge=1, description="Steps of PGD, and of the attacks on retrieval.")
    voronoi_items: int = Field(
        default=500,
        ge=0,
        description="Items whose Voronoi cells bound the Voronoi-epsilon adversary, attacked ones included; fewer "
        "than 2: not measured.",
    )
    smoothed_queries: int = Field(default=10, ge=0, description="Queries that randomised smoothing certifies; 0: none.")
    smoothing_sigma: float = Field(
        default=0.1, gt=0, allow_inf_nan=False, description="Standard deviation of its noise, in pixels from 0 to 1."
    )
    smoothing_samples: int = Field(default=200, ge=10, description="Noisy copies of each of these queries.")
    resamples: int = Field(default=1000, ge=1, description="Bootstrap resamples of the intervals.")
    seed: int = Field(default=0, ge=0, description="Seed of bootstrap, k-means, sampled pairs and episodes.")

    @field_validator(
        "severities", "fewshot_ways", "fewshot_shots", "hierarchy_similarity_at", "sizes", "attack_epsilons"
    )
    @classmethod
    def _each_once(cls, value: list[float]) -> list[float]:
        return sorted(set(value))

    @model_validator(mode="after")
    def _check_attacks(self) -> AuditSection:
        if (self.attacks, self.attack_norm) != (_ATTACKS, "linf"):
            from nearkin.attacks.library import check_attack  # a plain recipe needs nothing of attacks

            for name in self.attacks:
                check_attack(name, self.attack_norm)
        if self.attack_norm == "linf" and self.attack_unit == "pixels" and max(self.attack_epsilons) >= 1:
            raise ValueError(
                f"attack_epsilons are of pixels from 0 to 1 and must be below 1 in linf, as 8/255 is; "
                f"{max(self.attack_epsilons):g} is not"
            )
        if len({f"{eps:.3g}" for eps in self.attack_epsilons}) < len(self.attack_epsilons):
            raise ValueError(f"attack_epsilons must differ within three digits, and {self.attack_epsilons} do not")
        return self

    @field_validator("rerank")
    @classmethod
    def _check_rerank(cls, value: str | None) -> str | None:
        if value is not None and value not in rerankers:
            raise ValueError(f"there is no such re-ranking; choose one of: {', '.join(rerankers.names())}")
        return value
