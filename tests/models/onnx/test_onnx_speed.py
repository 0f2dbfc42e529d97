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


@pytest.mark.parametrize(("kernel", "stride"), [(3, 2), (5, 2), (3, 1), (1, 2)])
@pytest.mark.parametrize("size", [(16, 16), (15, 16), (9, 9)])
def test_kernels_lose_the_zeros_in_front_and_maps_are_padded_less_there(kernel, stride, size):
    torch.manual_seed(0)
    conv = SameConv2d(3, 4, kernel, stride).requires_grad_(False)
    samples = torch.randn(2, 3, *size)
    proto = translated(nn.Sequential(conv.plain(*size)), (samples,))
    crop_kernels(proto.graph)
    onnx.checker.check_model(proto)
    [weight] = [tensor for tensor in proto.graph.initializer if len(tensor.dims) == 4]
    assert tuple(weight.dims[2:]) == (kernel, kernel)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    [found] = session.run(None, {session.get_inputs()[0].name: samples.numpy()})
    np.testing.assert_allclose(found, conv(samples).numpy(), atol=1e-5)


def test_zeros_that_stand_elsewhere_stay():
    conv = nn.Conv2d(1, 1, 3, padding=0).requires_grad_(False)  # nothing to pad less
    conv.weight[:, :, 0] = 0
    other = nn.Conv2d(1, 1, 3, padding=1).requires_grad_(False)  # zeros at the end
    other.weight[:, :, 2] = 0
    for layer in (conv, other):
        proto = translated(nn.Sequential(layer), (torch.randn(1, 1, 6, 6),))
        crop_kernels(proto.graph)
        assert [list(tensor.dims) for tensor in proto.graph.initializer if len(tensor.dims) == 4] == [[1, 1, 3, 3]]
