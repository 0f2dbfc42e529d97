"""The claims of Gürbüz 2022: chance-constrained programming, what average pooling does, generalized sum pooling."""

from __future__ import annotations

from studies.claims import (
    generalize_ablation,
    generalize_benchmarks,
    generalize_ccp,
    generalize_concept,
    generalize_gap,
    generalize_gsp,
    generalize_settings,
)
from studies.claims.claim import Claim, Document
from studies.claims.generalize_numbers import TABLE_31, theirs

PROTOCOL = Claim(
    "protocol-reproduces",
    "The losses without CCP, trained in the author's framework, agree with the published figures of the fair protocol "
    "(Musgrave et al. 2020).",
    "section 3.3.2.1",
    theirs(TABLE_31, ("C2", "MS", "Triplet", "ProxyNCA++"), "CUB"),
    why_not="it compares a fully trained BN-Inception with published numbers; its pretrained weights are not here.",
)

DOCUMENT = Document(
    slug="generalize",
    title="Novel Optimization Models to Generalize Deep Metric Learning",
    authors="Y. Z. Gürbüz, 2022 (PhD thesis)",
    claims=[
        *generalize_concept.CLAIMS,
        PROTOCOL,
        *generalize_ccp.CLAIMS,
        *generalize_ablation.CLAIMS,
        *generalize_gap.CLAIMS,
        *generalize_gsp.CLAIMS,
        *generalize_benchmarks.CLAIMS,
        *generalize_settings.CLAIMS,
    ],
)
