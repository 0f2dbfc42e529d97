"""Where samples come from: manifests, stores, data sets, splits, samplers, transforms and a catalogue."""

from __future__ import annotations

import importlib
from typing import Any

from nearkin.data.dataset import BadFile, Dataset, drop_bad, find_bad
from nearkin.data.decode import decode_audio, decode_image
from nearkin.data.manifest import Manifest, read_manifest, write_manifest
from nearkin.data.sources import open_data
from nearkin.data.stores import ArrayStore, FolderStore, Store, UnreadableError, ZipStore

# Found on first use, so that reading a manifest does not import torch, pyarrow or kornia.
_LAZY = {
    name: module
    for module, names in {
        "audio": ("LogMelTransform",),
        "augment": ("BatchAugment", "EvalTransform", "Normalise", "TrainTransform"),
        "catalogue": ("Entry", "data_directory", "list_entries", "open_named"),
        "domain_splits": ("leave_one_domain_out", "split_domains", "split_items"),
        "hierarchy": ("Hierarchy", "list_hierarchies", "load_hierarchy"),
        "huggingface": ("ArrowStore",),
        "inputs": ("InputSpec",),
        "samplers": ("BalancedBatchSampler", "Episode", "EpisodeBatchSampler", "EpisodeSampler"),
        "section": ("DataSection",),
        "splits": ("Split", "check_disjoint", "class_folds", "split_classes", "split_from_column", "split_halves"),
        "url_store": ("UnreachableError", "UrlStore"),
    }.items()
    for name in names
}

__all__ = [
    "ArrayStore",
    "BadFile",
    "Dataset",
    "FolderStore",
    "Manifest",
    "Store",
    "UnreadableError",
    "ZipStore",
    "decode_audio",
    "decode_image",
    "drop_bad",
    "find_bad",
    "open_data",
    "read_manifest",
    "write_manifest",
    *_LAZY,
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
