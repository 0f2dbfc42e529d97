"""Numbers from embeddings and labels: pure functions of arrays."""

from nearkin.metrics.clustering import clustering_metrics
from nearkin.metrics.intervals import class_bootstrap
from nearkin.metrics.result import RetrievalResult
from nearkin.metrics.retrieval import retrieval_metrics

__all__ = ["RetrievalResult", "class_bootstrap", "clustering_metrics", "retrieval_metrics"]
