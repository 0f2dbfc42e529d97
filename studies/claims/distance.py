"""Kim's thesis with its four articles: every claim, in the order of the document."""

from __future__ import annotations

from studies.claims import (
    distance_curves,
    distance_dynamics,
    distance_geometry,
    distance_plankton,
    distance_ratio,
    distance_scores,
    distance_separation,
    distance_spaces,
    distance_taxonomy,
    distance_tree,
    distance_voronoi,
)
from studies.claims.claim import Document

DOCUMENT = Document(
    "distance",
    "On the Significance of Distance in Machine Learning",
    "Hyeongji Kim, 2023; articles with Ketil Malde, Pekka Parviainen and Terje Berge",
    (
        *distance_separation.CLAIMS,
        *distance_geometry.CLAIMS,
        *distance_plankton.CLAIMS,
        *distance_scores.CLAIMS,
        *distance_ratio.CLAIMS,
        *distance_dynamics.CLAIMS,
        *distance_voronoi.CLAIMS,
        *distance_taxonomy.CLAIMS,
        *distance_tree.CLAIMS,
        *distance_curves.CLAIMS,
        *distance_spaces.CLAIMS,
    ),
)
