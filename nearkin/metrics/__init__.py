"""Numbers from embeddings and labels: pure functions of arrays."""

from nearkin.metrics.clustering import clustering_metrics
from nearkin.metrics.intervals import class_bootstrap
from nearkin.metrics.paired import PairedResult, holm, paired_permutation
from nearkin.metrics.result import RetrievalResult
from nearkin.metrics.retrieval import retrieval_metrics
from nearkin.metrics.verification import VerificationResult, verification_from_scores, verification_metrics

__all__ = [
    "PairedResult",
    "RetrievalResult",
    "VerificationResult",
    "class_bootstrap",
    "clustering_metrics",
    "holm",
    "paired_permutation",
    "retrieval_metrics",
    "verification_from_scores",
    "verification_metrics",
]
