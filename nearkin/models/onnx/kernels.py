"""Kernels without the zeros that PyTorch needs in them: ONNX can pad the sides of a map differently.

A SAME convolution at stride 2 pads one side more than the other. PyTorch pads both alike, so its kernel begins with a
row and a column of zeros, which a runtime multiplies like any other numbers.
"""

from __future__ import annotations

from typing import Any

from nearkin.errors import require


def crop_kernels(graph: Any) -> None:
    """Take leading rows and columns of zeros off the kernels of convolutions and pad so much less there, in place."""
    onnx = require("onnx", "onnx")
    weights = {tensor.name: tensor for tensor in graph.initializer}
    users = [name for node in graph.node for name in node.input]
    for node in graph.node:
        if node.op_type != "Conv" or node.input[1] not in weights or users.count(node.input[1]) > 1:
            continue
        attributes = {attribute.name: attribute for attribute in node.attribute}
        if "pads" not in attributes or any(step != 1 for step in attributes["dilations"].ints):
            continue
        pads = list(attributes["pads"].ints)
        kernel = onnx.numpy_helper.to_array(weights[node.input[1]])
        cropped = kernel
        for axis in range(2, kernel.ndim):
            while pads[axis - 2] > 0 and cropped.shape[axis] > 1 and not cropped.take(0, axis).any():
                cropped = cropped[(slice(None),) * axis + (slice(1, None),)]
                pads[axis - 2] -= 1
        if cropped.shape == kernel.shape:
            continue
        weights[node.input[1]].CopyFrom(onnx.numpy_helper.from_array(cropped.copy(), node.input[1]))
        attributes["pads"].ints[:] = pads
        if "kernel_shape" in attributes:
            attributes["kernel_shape"].ints[:] = cropped.shape[2:]
