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
    "ArrowStore": "huggingface",
    "BalancedBatchSampler": "samplers",
    "BatchAugment": "augment",
    "DataSection": "section",
    "Entry": "catalogue",
    "Episode": "samplers",
    "EpisodeBatchSampler": "samplers",
    "EpisodeSampler": "samplers",
    "EvalTransform": "augment",
    "Hierarchy": "hierarchy",
    "InputSpec": "inputs",
    "LogMelTransform": "audio",
    "Normalise": "augment",
    "Split": "splits",
    "TrainTransform": "augment",
    "UnreachableError": "url_store",
    "UrlStore": "url_store",
    "check_disjoint": "splits",
    "class_folds": "splits",
    "data_directory": "catalogue",
    "leave_one_domain_out": "domain_splits",
    "list_entries": "catalogue",
    "list_hierarchies": "hierarchy",
    "load_hierarchy": "hierarchy",
    "open_named": "catalogue",
    "split_classes": "splits",
    "split_domains": "domain_splits",
    "split_from_column": "splits",
    "split_halves": "splits",
    "split_items": "domain_splits",
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
