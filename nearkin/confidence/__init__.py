"""How sure: class probabilities from neighbours, their temperature, thresholds, and "I don't know"."""

from nearkin.confidence.conformal import ConformalSets, PredictionSets
from nearkin.confidence.estimator import (
    DudaniVote,
    Estimator,
    GouVote,
    KNNVote,
    NearestNeighbour,
    NeighbourEstimator,
    estimators,
)
from nearkin.confidence.evaluation import best_k, evaluate, sweep_k
from nearkin.confidence.ned import NED, BandwidthComparison, SharpNED, Widening
from nearkin.confidence.novelty import Novelty
from nearkin.confidence.open_set import OpenPrediction, UnknownRejector, unknown_scores
from nearkin.confidence.probabilities import ClassProbabilities, Prediction
from nearkin.confidence.prototypes import PrototypeEstimator, PrototypeRatio, PrototypeSoftmax
from nearkin.confidence.targets import EqualErrorRate, FalseAcceptRate, FBeta, Precision, Target, as_target
from nearkin.confidence.temperature import TemperatureFit, fit_temperature
from nearkin.confidence.thresholds import Threshold, choose_threshold

__all__ = [
    "NED",
    "BandwidthComparison",
    "ClassProbabilities",
    "ConformalSets",
    "DudaniVote",
    "EqualErrorRate",
    "Estimator",
    "FBeta",
    "FalseAcceptRate",
    "GouVote",
    "KNNVote",
    "NearestNeighbour",
    "NeighbourEstimator",
    "Novelty",
    "OpenPrediction",
    "Precision",
    "Prediction",
    "PredictionSets",
    "PrototypeEstimator",
    "PrototypeRatio",
    "PrototypeSoftmax",
    "SharpNED",
    "Target",
    "TemperatureFit",
    "Threshold",
    "UnknownRejector",
    "Widening",
    "as_target",
    "best_k",
    "choose_threshold",
    "estimators",
    "evaluate",
    "fit_temperature",
    "sweep_k",
    "unknown_scores",
]
