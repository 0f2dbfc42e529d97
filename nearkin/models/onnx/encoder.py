"""A model that ONNX Runtime runs, with the contract of `Encoder`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearkin.data.inputs import InputSpec
from nearkin.errors import CheckpointError, ModelError, NearkinError, first_line, require
from nearkin.models.engines import BatchEncoder
from nearkin.models.onnx.description import Description, described
from nearkin.models.recordings import embed_recordings
from nearkin.search.workers import lone_threads
from nearkin.spaces import make_space

ERRORS_ONLY = 3
"""Of what the runtime would print, by its own count."""

_SHARE = 4
"""Samples that one thread takes at a time: few enough for their maps to stay near the processor."""


class OnnxEncoder(BatchEncoder):
    """Turns items into vectors with ONNX Runtime, on the CPU; safe to call from several threads.

    Args:
        file: the path of a file that `nearkin export` wrote, or its content.

    Attributes:
        description: what the file says of itself.

    Raises:
        CheckpointError: the file is missing, damaged, or not one of ours.
        MissingExtraError: onnxruntime is not installed.
    """

    divides = False  # it shares a batch among threads itself

    def __init__(self, file: str | Path | bytes) -> None:
        name = "The model" if isinstance(file, bytes) else str(file)
        self._file = file
        self._count = torch.get_num_threads()
        self._session = _session(name, file, self._count)
        self.description: Description = described(name, self._session.get_modelmeta().custom_metadata_map)
        self.spec: InputSpec = self.description.spec
        self.dimension: int = self.description.dimension
        self.device = torch.device("cpu")
        self._input = self._session.get_inputs()[0].name

    @property
    def fingerprint(self) -> str | None:
        """Of the model whose vectors these are; None where they are those of no model that has one, as with int8."""
        return self.description.fingerprint if self.description.precision == "float32" else None

    def __call__(self, batch: Tensor) -> Tensor:
        """Points of the space (B, d) of samples (B, C, H, W) as loaded: uint8 or float in [0, 1], or log-mel values."""
        if not len(batch):
            return torch.empty(0, self.dimension)
        try:
            if self.spec.kind == "audio":
                return embed_recordings(batch, self._of_one_length, make_space(**self.description.space).mean)
            return self._of_one_length(batch)
        except NearkinError:
            raise
        except Exception as error:  # the runtime has exceptions of its own
            raise ModelError(
                f"The model takes samples of {self.spec.channels} x {self.spec.size} and was given a batch of "
                f"{tuple(batch.shape)}: bring them to that size ({_reason(error)})."
            ) from error

    def _of_one_length(self, batch: Tensor) -> Tensor:
        return torch.from_numpy(self._points(as_samples(batch)))

    def _points(self, samples: np.ndarray) -> np.ndarray:
        """Points (B, d) of samples (B, C, H, W): all threads at one of them, or a share to each thread.

        Within one batch threads wait for each other after every layer; shares wait for each other once.
        """
        if self._count == 1 or len(samples) < 2 * self._count:
            return self._run(self._session, samples)
        size = min(_SHARE, len(samples) // self._count)
        shares = [samples[first : first + size] for first in range(0, len(samples), size)]
        return np.concatenate(list(self._threads.map(partial(self._run, self._lone_session), shares)))

    def _run(self, session: Any, samples: np.ndarray) -> np.ndarray:
        (points,) = session.run(None, {self._input: samples})
        return points

    @cached_property
    def _lone_session(self) -> Any:
        """For threads that each compute alone."""
        return _session("The model", self._file, 1)

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return lone_threads(self._count, "nearkin-onnx")


def as_samples(batch: Tensor) -> np.ndarray:
    """A batch as the graph takes it: float32, rows of pixels one after the other, in [0, 1]."""
    if batch.dtype != torch.uint8:
        return batch.detach().to("cpu", torch.float32).contiguous().numpy()
    samples = torch.empty(batch.shape, dtype=torch.float32)
    return samples.copy_(batch).div_(255.0).numpy()


def _session(name: str, file: str | Path | bytes, threads: int) -> Any:
    runtime = require("onnxruntime", "onnx")
    if not isinstance(file, bytes) and not Path(file).is_file():
        raise CheckpointError(f"There is no ONNX file {file}: check the path.")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = ERRORS_ONLY
    # Threads spin from layer to layer, which is faster than being woken; but not from batch to batch, where they would
    # take the cores from those that decode.
    options.add_session_config_entry("session.intra_op.allow_spinning", "1")
    options.add_session_config_entry("session.force_spinning_stop", "1")
    try:
        content = file if isinstance(file, bytes) else str(file)
        return runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the runtime has exceptions of its own
        raise CheckpointError(f"{name} is not an ONNX file, or it is damaged ({_reason(error)}).") from error


def _reason(error: Exception) -> str:
    return first_line(error).removeprefix("[ONNXRuntimeError] : ")[:200]
