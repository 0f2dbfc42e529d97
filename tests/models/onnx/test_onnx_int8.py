"""Eight bits: near the model's vectors, smaller, and not taken for them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch

from nearkin.errors import ModelError
from nearkin.models.onnx import OnnxEncoder
from nearkin.models.onnx.file import quantise


@pytest.fixture(scope="module")
def samples():
    return torch.rand(24, 3, 24, 24, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def quantised(small_file, samples):
    return quantise(*small_file, samples.split(8))


def test_vectors_are_near_and_of_another_model(small_file, quantised, samples):
    content, description = quantised
    encoder, before = OnnxEncoder(content), OnnxEncoder(small_file[0])
    assert description == encoder.description
    assert description.precision == "int8"
    assert encoder.fingerprint is None
    assert before.fingerprint == description.fingerprint
    vectors, expected = encoder(samples).numpy(), before(samples).numpy()
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)  # the projection is not quantised
    assert 1e-4 < np.abs(vectors - expected).max() < 0.1
    assert len(content) < 0.6 * len(small_file[0])


def test_only_the_backbone_is_quantised(quantised):
    nodes = onnx.load_from_string(quantised[0]).graph.node
    dequantised = {name for node in nodes if node.op_type == "DequantizeLinear" for name in node.output}
    for node in nodes:
        whole = node.op_type == "Conv" and all(name in dequantised for name in node.input)
        assert whole == node.name.startswith(("backbone.", "local/")) or node.op_type != "Conv"
        if node.name.startswith(("pooling/", "head/")):
            assert not node.op_type.startswith("Quantize")
    assert sum(node.op_type == "Conv" for node in nodes) == 5


def test_bad_input(small_file, quantised, samples):
    with pytest.raises(ModelError, match="samples"):
        quantise(*small_file, [])
    with pytest.raises(ModelError, match="int8"):
        quantise(*quantised, [samples])
