"""What is said of one model for every task, and what run.py compares to see whether it is so."""

from __future__ import annotations

from studies.unified.measures import SETTINGS
from studies.unified.parts import ANCHOR, LEARNED, NO_AUXILIARY, NO_PAIRS, SOFTMAX
from studies.unified.stats import Claim

SIM, DOL, OWN = "accuracy, SIM", "accuracy, DOL", "accuracy, softmax"
CLAIMS = (
    Claim("classifies as well as softmax", "fashion", (LEARNED, SIM), (SOFTMAX, OWN), "as good"),
    Claim("classifies as well as softmax", "cifar", (LEARNED, SIM), (SOFTMAX, OWN), "as good"),
    Claim("is better than softmax on a domain left out", "pacs", (LEARNED, SIM), (SOFTMAX, OWN), "higher"),
    *(
        Claim(
            f"cosine + SIM verifies better than {other}",
            "speakers",
            (LEARNED, "EER, cosine + SIM"),
            (LEARNED, f"EER, {other}"),
            "lower",
        )
        for other in ("cosine", "SIM")
    ),
)
"""What the paper claims; corrected together."""
_EER = "EER, cosine + SIM"
FURTHER = (
    *(
        Claim("the auxiliary loss helps", part, (LEARNED, SIM), (NO_AUXILIARY, SIM), "higher")
        for part in ("fashion", "cifar", "pacs")
    ),
    Claim("the auxiliary loss helps", "speakers", (LEARNED, _EER), (NO_AUXILIARY, _EER), "lower"),
    *(
        Claim("the pair loss helps", part, (LEARNED, SIM), (NO_PAIRS, SIM), "higher")
        for part in ("fashion", "cifar", "pacs")
    ),
    *(
        Claim("SIM is better than the dense layer", part, (LEARNED, SIM), (LEARNED, DOL), "higher")
        for part in ("fashion", "cifar", "pacs")
    ),
    Claim("the dense layer is better than softmax", "pacs", (LEARNED, DOL), (SOFTMAX, OWN), "higher"),
    Claim("verifies better than softmax by cosine", "speakers", (LEARNED, _EER), (SOFTMAX, "EER, cosine"), "lower"),
    Claim("retrieves as well as softmax", "cub", (LEARNED, "Recall@1, SIM"), (SOFTMAX, "Recall@1, cosine"), "as good"),
    Claim(
        "retrieves as well as ProxyAnchor", "cub", (LEARNED, "Recall@1, SIM"), (ANCHOR, "Recall@1, cosine"), "as good"
    ),
    Claim(
        "SIM retrieves better than cosine", "cub", (LEARNED, "Recall@1, SIM"), (LEARNED, "Recall@1, cosine"), "higher"
    ),
    *(
        Claim(
            f"SIM is better than {other}, {way}-way {shot}-shot",
            "omniglot",
            (LEARNED, f"{way}-way {shot}-shot, SIM"),
            (LEARNED, f"{way}-way {shot}-shot, {other}"),
            "higher",
        )
        for other in ("cosine", "distance")
        for way, shot in SETTINGS
    ),
    *(
        Claim(
            f"SIM answers as well as softmax by distance, {way}-way {shot}-shot",
            "omniglot",
            (LEARNED, f"{way}-way {shot}-shot, SIM"),
            (SOFTMAX, f"{way}-way {shot}-shot, distance"),
            "as good",
        )
        for way, shot in SETTINGS
    ),
)
"""Ablations and what else one may ask; a family of its own."""
