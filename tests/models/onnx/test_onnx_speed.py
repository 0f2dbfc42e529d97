"""What makes files fast changes nothing of what they compute."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from nearkin.models.backbones.base import SameConv2d
from nearkin.models.onnx import OnnxEncoder
from nearkin.models.onnx.graph import crop_kernels, translated

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")


@pytest.mark.parametrize("count", [1, 3, 4, 5, 6, 7, 23, 32])
def test_shares_of_a_batch_come_back_in_order(count, small_file):
    batch = torch.randint(0, 256, (count, 3, 24, 24), dtype=torch.uint8)
    alone, shared = OnnxEncoder(small_file[0]), OnnxEncoder(small_file[0])
    alone._count, shared._count = 1, 3
    np.testing.assert_allclose(shared(batch).numpy(), alone(batch).numpy(), atol=1e-6)


class Beside(nn.ModuleList):
    """Several layers of one input, so that one export serves them all."""

    def forward(self, x):
        return tuple(layer(x) for layer in self)


@pytest.mark.parametrize("size", [(16, 16), (15, 16), (9, 9)])
def test_kernels_lose_the_zeros_in_front_and_maps_are_padded_less_there(size):
    torch.manual_seed(0)
    kernels = [(3, 2), (5, 2), (3, 1), (1, 2)]
    convs = [SameConv2d(3, 4, *each).requires_grad_(False) for each in kernels]
    samples = torch.randn(2, 3, *size)
    proto = translated(Beside(conv.plain(*size) for conv in convs), (samples,))
    crop_kernels(proto.graph)
    onnx.checker.check_model(proto)
    weights = [tensor.dims[2:] for tensor in proto.graph.initializer if len(tensor.dims) == 4]
    assert sorted(map(tuple, weights)) == sorted((kernel, kernel) for kernel, _ in kernels)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    found = session.run(None, {session.get_inputs()[0].name: samples.numpy()})
    for ours, conv in zip(found, convs, strict=True):
        np.testing.assert_allclose(ours, conv(samples).numpy(), atol=1e-5)


def test_zeros_that_stand_elsewhere_stay():
    conv = nn.Conv2d(1, 1, 3, padding=0).requires_grad_(False)  # nothing to pad less
    conv.weight[:, :, 0] = 0
    other = nn.Conv2d(1, 1, 3, padding=1).requires_grad_(False)  # zeros at the end
    other.weight[:, :, 2] = 0
    for layer in (conv, other):
        proto = translated(nn.Sequential(layer), (torch.randn(1, 1, 6, 6),))
        crop_kernels(proto.graph)
        assert [list(tensor.dims) for tensor in proto.graph.initializer if len(tensor.dims) == 4] == [[1, 1, 3, 3]]
