"""How a sample becomes a vector: backbones, poolings, attention, the embedder, its file and its feature cache."""

from nearkin.models.attention import StageAttention
from nearkin.models.backbones import Backbone, backbones, list_backbones, make_backbone
from nearkin.models.build import build_embedder, pretrained_baseline
from nearkin.models.cache import FeatureCache, cache_point
from nearkin.models.card import Card
from nearkin.models.embedder import Embedder, PixelReader
from nearkin.models.engines import Encoder
from nearkin.models.pooling import Pooling, list_poolings, make_pooling, poolings
from nearkin.models.section import AttentionSection, CacheViews, ModelSection, SimilaritySection
from nearkin.models.shorten import first_dimensions, principal_components, reweighted
from nearkin.models.similarity import LearnedSpace, PairSimilarity, PrototypeBank, SimilarityParts
from nearkin.models.similarity_model import Classification, SimilarityModel
from nearkin.models.speed import as_channels_last, channels_last, fold_batch_norm, inference_copy, tune_allocator

__all__ = [
    "AttentionSection",
    "Backbone",
    "CacheViews",
    "Card",
    "Classification",
    "Embedder",
    "Encoder",
    "FeatureCache",
    "LearnedSpace",
    "ModelSection",
    "PairSimilarity",
    "PixelReader",
    "Pooling",
    "PrototypeBank",
    "SimilarityModel",
    "SimilarityParts",
    "SimilaritySection",
    "StageAttention",
    "as_channels_last",
    "backbones",
    "build_embedder",
    "cache_point",
    "channels_last",
    "first_dimensions",
    "fold_batch_norm",
    "inference_copy",
    "list_backbones",
    "list_poolings",
    "make_backbone",
    "make_pooling",
    "poolings",
    "pretrained_baseline",
    "principal_components",
    "reweighted",
    "tune_allocator",
]
