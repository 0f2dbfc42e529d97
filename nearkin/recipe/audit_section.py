"""The `audit` section of a recipe: what is measured when training is done."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from nearkin.recipe.sections import Fractional, RecipeSection, Several
from nearkin.registry import Count, CountOrZero, NonNegative, Positive
from nearkin.search.rerank import rerankers

_ATTACKS = ["fgsm", "bim", "pgd"]


class AuditSection(RecipeSection):
    """What is measured on the held-out classes when training is done."""

    suites: list[str] = Field(default=["retrieval", "clustering"], description="Suites to run.")
    recall_at: list[Count] = Field(default=[1, 2, 4, 8], description="The k of Recall@k.")
    map_at: list[Count] = Field(default=[10], description="The k of MAP@k.")
    knn: Count = Field(default=5, description="Neighbours of kNN-Acc.")
    classification_k: list[Count] = Field(
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
    pair_margins: tuple[NonNegative, Positive] | None = Field(
        default=None,
        description="Margins [m+, m-] by which the chance-constraints suite, and the log of chance-constrained "
        "training, say which pairs are violated; null: the loss's own, and where it has none on distances, 0 and twice "
        "the distance of equal errors (in the suite).",
    )
    pooling_classes: Several = Field(default=10, description="Classes that the pooling suite looks at.")
    pooling_items: Count = Field(default=64, description="Items of each of them.")
    pooling_prototypes: Count = Field(
        default=48, description="Prototypes that the pooling suite covers their local features with."
    )
    residual_clusters: Count = Field(default=10, description="Clusters of the residuals suite.")
    residual_column: str | None = Field(
        default=None,
        description="Column of the data that says what varies inside classes, such as a pose, for the residuals suite; "
        "null: domain, if there is one.",
    )
    fewshot_ways: list[Several] = Field(
        default=[5, 20], min_length=1, description="Classes in an episode of the fewshot suite, each tried."
    )
    fewshot_shots: list[Count] = Field(
        default=[1, 5], min_length=1, description="Known items of each of these classes, each tried."
    )
    fewshot_queries: Count = Field(default=15, description="Queries of each of these classes.")
    fewshot_episodes: Several = Field(default=600, description="Episodes of each way and shot.")
    tree_distance: Literal["path", "lcs"] = Field(
        default="path",
        description="Distance of two classes in the tree of the hierarchy suite: edges between them, or the height of "
        "their lowest common node as a share of the tree's.",
    )
    correlation_classes: list[str] | None = Field(
        default=None,
        description="Classes among which the hierarchy suite also takes the mean correlations, such as those of one "
        "branch of the tree; null: only among all.",
    )
    diagonal: bool = Field(
        default=False, description="Whether mean correlations count the distance of a class to itself, as published."
    )
    hierarchy_similarity_at: list[Several] = Field(
        default=[50, 250],
        min_length=1,
        description="The k of HS@k in the hierarchy suite; the largest is that of AHS@k.",
    )
    untrained_items: CountOrZero = Field(
        default=100,
        description="Items of each class at the most for the mean correlations of pixels and of a random network in "
        "the hierarchy suite; 0: none.",
    )
    geometry_items: int = Field(
        default=500, ge=3, description="Items whose distances the geometry suite compares with those of their pixels."
    )
    sizes: list[Count] = Field(
        default=[], description="Dimensions kept in the size suite; empty: all, and halves of it down to 4."
    )
    attacked_queries: Several = Field(default=50, description="Queries that the robustness suite attacks.")
    attacks: list[str] = Field(
        default=_ATTACKS,
        min_length=1,
        description="Attacks of the robustness suite: fgsm, bim, pgd, deepfool, cw (l2), square (linf).",
    )
    attack_norm: Literal["linf", "l2", "l1", "combined"] = Field(
        default="linf",
        description="Norm of the perturbations; combined: beta L1 + (1 - beta) L-inf, whose ball of size eps holds the "
        "L1 ball of that size and the L-inf ball of eps / attack_l1_ratio.",
    )
    attack_l1_ratio: float = Field(
        default=100.0,
        gt=1,
        allow_inf_nan=False,
        description="With attack_norm=combined: how many times as large as the L-inf ball the L1 ball is, between 1 "
        "and the numbers of an input.",
    )
    targeted: bool = Field(
        default=False,
        description="Also attack NED towards a class that is drawn for each query, in the robustness suite.",
    )
    attack_unit: Literal["pixels", "normalised"] = Field(
        default="pixels",
        description="Unit of the epsilons: pixels from 0 to 1, or inputs as the model normalises them.",
    )
    attack_epsilons: list[Annotated[Fractional, Field(gt=0, allow_inf_nan=False)]] = Field(
        default=[0.002, 0.004, 0.016], min_length=1, description="Sizes of the perturbations, each tried."
    )
    attack_steps: Count = Field(default=20, description="Steps of PGD, and of the attacks on retrieval.")
    voronoi_items: CountOrZero = Field(
        default=500,
        description="Items whose Voronoi cells bound the Voronoi-epsilon adversary, attacked ones included; fewer "
        "than 2: not measured.",
    )
    voronoi_whole_cells: bool = Field(
        default=True,
        description="Also attack within whole Voronoi cells, without a ball: the global Voronoi robustness, which VAA "
        "comes to.",
    )
    smoothed_queries: CountOrZero = Field(
        default=10, description="Queries that randomised smoothing certifies; 0: none."
    )
    smoothing_sigma: Positive = Field(
        default=0.1, description="Standard deviation of its noise, in pixels from 0 to 1."
    )
    smoothing_samples: int = Field(default=200, ge=10, description="Noisy copies of each of these queries.")
    resamples: Count = Field(default=1000, description="Bootstrap resamples of the intervals.")
    seed: CountOrZero = Field(default=0, description="Seed of bootstrap, k-means, sampled pairs and episodes.")

    @field_validator(
        "severities", "fewshot_ways", "fewshot_shots", "hierarchy_similarity_at", "sizes", "attack_epsilons"
    )
    @classmethod
    def _each_once(cls, value: list[float]) -> list[float]:
        return sorted(set(value))

    @model_validator(mode="after")
    def _check_attacks(self) -> AuditSection:
        if (
            self.attack_norm != "combined"
            and self.attack_l1_ratio != type(self).model_fields["attack_l1_ratio"].default
        ):
            raise ValueError(
                f"attack_l1_ratio is set, which the norm '{self.attack_norm}' does not use: set attack_norm to combined"
            )
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

    @field_validator("pair_margins")
    @classmethod
    def _check_margins(cls, value: tuple[float, float] | None) -> tuple[float, float] | None:
        if value is not None and value[0] >= value[1]:
            raise ValueError(f"pair_margins are [m+, m-] with m+ below m-, and {list(value)} are not")
        return value

    @field_validator("rerank")
    @classmethod
    def _check_rerank(cls, value: str | None) -> str | None:
        if value is not None and value not in rerankers:
            raise ValueError(f"there is no such re-ranking; choose one of: {', '.join(rerankers.names())}")
        return value
