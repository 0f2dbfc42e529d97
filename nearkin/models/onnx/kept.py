"""Translations of models that the engine "onnx" makes at their first use, kept by the fingerprint of the model."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from nearkin.data.catalogue import cache_directory
from nearkin.errors import CheckpointError, StorageError, require
from nearkin.models.onnx.description import VERSION, fingerprint_of
from nearkin.models.onnx.encoder import OnnxEncoder
from nearkin.models.onnx.file import checked, serialised
from nearkin.storage import replacing

if TYPE_CHECKING:
    from nearkin.models.embedder import Embedder


def kept_encoder(embedder: Embedder) -> OnnxEncoder:
    """A model run by ONNX Runtime, translated unless that was done before and is in the user's cache.

    A model that has no fingerprint, because it cannot be saved, is translated every time.
    """
    require("onnxruntime", "onnx")
    place = _place(embedder)
    if place is not None and place.exists():
        try:
            return OnnxEncoder(place)
        except CheckpointError:
            place.unlink(missing_ok=True)  # what a cache lost can be made again
    content, _ = serialised(embedder)
    checked(embedder, content)
    if place is not None:
        # A full disk costs the next start time, not this one its answer.
        with suppress(StorageError), replacing(place) as temporary:
            temporary.write_bytes(content)
    return OnnxEncoder(content)


def _place(embedder: Embedder) -> Path | None:
    fingerprint = fingerprint_of(embedder)
    return None if fingerprint is None else cache_directory() / "onnx" / f"{fingerprint}.v{VERSION}.onnx"
