"""Numbers from embeddings and labels: pure functions of arrays."""

from nearkin.metrics.calibration import (
    CalibrationResult,
    ReliabilityCurve,
    calibration_from_probabilities,
    calibration_metrics,
)
from nearkin.metrics.class_tree import (
    RobinsonFoulds,
    confusion_distances,
    cophenetic_correlation,
    infer_tree,
    recovered_clades,
    robinson_foulds,
)
from nearkin.metrics.classification import (
    ClassificationResult,
    classification_metrics,
    mean_corruption_error,
    relative_corruption_error,
)
from nearkin.metrics.clusters import clustering_metrics
from nearkin.metrics.dynamics import DYNAMICS, DynamicsComparison, compare_dynamics, episode_dynamics
from nearkin.metrics.fewshot import FewShotDifference, FewShotResult, fewshot_accuracy
from nearkin.metrics.geometry import (
    GEOMETRY,
    ClassMoments,
    DistanceStructure,
    class_moments,
    class_separation,
    distance_correlation,
    geometry_metrics,
    mean_class_radius,
    separation_intervals,
    significant_directions,
    singular_spectrum,
    spectral_decay,
)
from nearkin.metrics.geometry_correlations import CorrelationTable, MeasureCorrelation, geometry_correlations
from nearkin.metrics.hierarchy import (
    HierarchicalResult,
    MeanCorrelation,
    class_distance_matrix,
    class_prototypes,
    hierarchical_metrics,
    hierarchical_similarity,
    mean_correlation,
)
from nearkin.metrics.intervals import class_bootstrap
from nearkin.metrics.kernels import (
    GaussianKernel,
    LearnedKernel,
    TwoSampleResult,
    kernel_matrix,
    mmd_squared,
    mmd_test,
)
from nearkin.metrics.local_features import (
    AttributeTransfer,
    BoundCheck,
    attribute_transfer,
    check_bound,
    pcc_embedding,
    prototype_histogram,
)
from nearkin.metrics.open_set import OpenSetResult, open_set_metrics
from nearkin.metrics.paired import PairedResult, holm, paired_permutation
from nearkin.metrics.retrieval import RetrievalResult, SizeCurve, halved_sizes, retrieval_metrics, size_curve
from nearkin.metrics.verification import VerificationResult, verification_from_scores, verification_metrics

__all__ = [
    "DYNAMICS",
    "GEOMETRY",
    "AttributeTransfer",
    "BoundCheck",
    "CalibrationResult",
    "ClassMoments",
    "ClassificationResult",
    "CorrelationTable",
    "DistanceStructure",
    "DynamicsComparison",
    "FewShotDifference",
    "FewShotResult",
    "GaussianKernel",
    "HierarchicalResult",
    "LearnedKernel",
    "MeanCorrelation",
    "MeasureCorrelation",
    "OpenSetResult",
    "PairedResult",
    "ReliabilityCurve",
    "RetrievalResult",
    "RobinsonFoulds",
    "SizeCurve",
    "TwoSampleResult",
    "VerificationResult",
    "attribute_transfer",
    "calibration_from_probabilities",
    "calibration_metrics",
    "check_bound",
    "class_bootstrap",
    "class_distance_matrix",
    "class_moments",
    "class_prototypes",
    "class_separation",
    "classification_metrics",
    "clustering_metrics",
    "compare_dynamics",
    "confusion_distances",
    "cophenetic_correlation",
    "distance_correlation",
    "episode_dynamics",
    "fewshot_accuracy",
    "geometry_correlations",
    "geometry_metrics",
    "halved_sizes",
    "hierarchical_metrics",
    "hierarchical_similarity",
    "holm",
    "infer_tree",
    "kernel_matrix",
    "mean_class_radius",
    "mean_correlation",
    "mean_corruption_error",
    "mmd_squared",
    "mmd_test",
    "open_set_metrics",
    "paired_permutation",
    "pcc_embedding",
    "prototype_histogram",
    "recovered_clades",
    "relative_corruption_error",
    "retrieval_metrics",
    "robinson_foulds",
    "separation_intervals",
    "significant_directions",
    "singular_spectrum",
    "size_curve",
    "spectral_decay",
    "verification_from_scores",
    "verification_metrics",
]
