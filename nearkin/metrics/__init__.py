"""Numbers from embeddings and labels: pure functions of arrays."""

from nearkin.metrics.calibration import CalibrationResult, calibration_from_probabilities, calibration_metrics
from nearkin.metrics.clustering import clustering_metrics
from nearkin.metrics.geometry import mean_class_radius
from nearkin.metrics.intervals import class_bootstrap
from nearkin.metrics.open_set import OpenSetResult, open_set_metrics
from nearkin.metrics.paired import PairedResult, holm, paired_permutation
from nearkin.metrics.reliability import ReliabilityCurve
from nearkin.metrics.result import RetrievalResult
from nearkin.metrics.retrieval import retrieval_metrics
from nearkin.metrics.verification import VerificationResult, verification_from_scores, verification_metrics

__all__ = [
    "CalibrationResult",
    "OpenSetResult",
    "PairedResult",
    "ReliabilityCurve",
    "RetrievalResult",
    "VerificationResult",
    "calibration_from_probabilities",
    "calibration_metrics",
    "class_bootstrap",
    "clustering_metrics",
    "holm",
    "mean_class_radius",
    "open_set_metrics",
    "paired_permutation",
    "retrieval_metrics",
    "verification_from_scores",
    "verification_metrics",
]
