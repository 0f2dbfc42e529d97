"""The pictures of geometry: the spectrum, distances of inputs and features, and re-weighted directions."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nearkin.audits.reweighting import POWERS, RETRIEVAL, Reweighting
from nearkin.metrics.distance_structure import DistanceStructure
from nearkin.report import Figure
from nearkin.report.geometry import correlation_title, draw_distance_pairs, draw_reweighting, draw_spectra


def draw_spectrum(spectra: Mapping[str, np.ndarray]) -> Figure:
    """The singular values of the model's embeddings, and of the baseline's."""
    return Figure(
        "Directions of variance",
        "Singular values of the embeddings, as multiples of their average. The flatter the line, the more directions "
        "carry something; d_DoV counts those above the average, rho tells how far the line is from flat.",
        draw_spectra(spectra),
        "Singular values against directions on a log axis, model and baseline, with their average",
    )


def draw_kept_distances(structures: Mapping[str, DistanceStructure]) -> Figure:
    """Distances of embeddings against those of pixels, by norm."""
    panels = {}
    for norm, structure in structures.items():
        above = np.triu_indices(len(structure.inputs), 1)
        title = correlation_title(f"Pixels by {norm}", structure.correlation().value)
        panels[title] = (structure.inputs[above], structure.features[above])
    return Figure(
        "Distances of pixels and of embeddings",
        "Each pair of sampled items: the darker, the more pairs. A line that rises tells that the embedding keeps "
        "distances of pixels, as models that withstand small changes of them do; MC is the mean rank correlation.",
        draw_distance_pairs(panels),
        "Feature distances against input distances of pairs of items, by norm",
    )


def draw_powers(result: Reweighting) -> Figure:
    """What re-weighting does to retrieval and geometry, by power."""
    fitted, measured = result.classes
    return Figure(
        "Principal directions re-weighted",
        f"Mean and directions are found on {fitted:,} classes, and all is measured on the other {measured:,}. At power "
        "0 embeddings are only centred, at 1 all directions vary alike.",
        draw_reweighting(POWERS, result.measures, unchanged=result.unchanged, shares=RETRIEVAL, chosen=result.chosen),
        "MAP@R, P@1, phi, rho and d_DoV against the power of the re-weighting",
    )
