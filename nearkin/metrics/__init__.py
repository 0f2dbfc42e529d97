"""Numbers from embeddings and labels: pure functions of arrays."""

from nearkin.metrics.attributes import AttributeTransfer, attribute_transfer
from nearkin.metrics.calibration import CalibrationResult, calibration_from_probabilities, calibration_metrics
from nearkin.metrics.clustering import clustering_metrics
from nearkin.metrics.geometry import mean_class_radius
from nearkin.metrics.intervals import class_bootstrap
from nearkin.metrics.local_features import BoundCheck, check_bound, pcc_embedding, prototype_histogram
from nearkin.metrics.open_set import OpenSetResult, open_set_metrics
from nearkin.metrics.paired import PairedResult, holm, paired_permutation
from nearkin.metrics.reliability import ReliabilityCurve
from nearkin.metrics.result import RetrievalResult
from nearkin.metrics.retrieval import retrieval_metrics
from nearkin.metrics.verification import VerificationResult, verification_from_scores, verification_metrics

__all__ = [
    "AttributeTransfer",
    "BoundCheck",
    "CalibrationResult",
    "OpenSetResult",
    "PairedResult",
    "ReliabilityCurve",
    "RetrievalResult",
    "VerificationResult",
    "attribute_transfer",
    "calibration_from_probabilities",
    "calibration_metrics",
    "check_bound",
    "class_bootstrap",
    "clustering_metrics",
    "holm",
    "mean_class_radius",
    "open_set_metrics",
    "paired_permutation",
    "pcc_embedding",
    "prototype_histogram",
    "retrieval_metrics",
    "verification_from_scores",
    "verification_metrics",
]
