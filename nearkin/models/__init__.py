"""How a sample becomes a vector: backbones, poolings, attention, the embedder, its file and its feature cache."""

from nearkin.models.attention import StageAttention
from nearkin.models.backbones import Backbone, backbones, list_backbones, make_backbone
from nearkin.models.build import build_embedder, pretrained_baseline
from nearkin.models.cache import FeatureCache, cache_point
from nearkin.models.embedder import Embedder
from nearkin.models.encoder import Encoder
from nearkin.models.learned_space import LearnedSpace
from nearkin.models.pixels import PixelReader
from nearkin.models.pooling import Pooling, list_poolings, make_pooling, poolings
from nearkin.models.prototypes import PrototypeBank
from nearkin.models.section import AttentionSection, CacheViews, ModelSection, SimilaritySection
from nearkin.models.shorten import first_dimensions, principal_components
from nearkin.models.similarity import PairSimilarity
from nearkin.models.similarity_model import Classification, SimilarityModel
from nearkin.models.similarity_parts import SimilarityParts
from nearkin.models.tuning import as_channels_last, channels_last, fold_batch_norm, inference_copy, tune_allocator

__all__ = [
    "AttentionSection",
    "Backbone",
    "CacheViews",
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
    "tune_allocator",
]
