"""Building blocks that the backbones share."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class SameConv2d(nn.Conv2d):
    """A convolution with TensorFlow's SAME padding: the output has ceil(input / stride) positions.

    At stride 2 that padding is one larger on the right and at the bottom than on the left and at the top. Instead of
    copying the whole map into a padded one, the (tiny) kernel gets a row and a column of zeros in front, which makes
    the padding symmetric: the convolution then pads by itself.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Convolve (B, C, H, W) to (B, C', ceil(H / stride), ceil(W / stride))."""
        weight, padding = self._padded(input.shape[2], input.shape[3])
        return F.conv2d(input, weight, self.bias, self.stride, padding, self.dilation, self.groups)

    def plain(self, height: int, width: int) -> nn.Conv2d:
        """The same for maps of one size only: a plain convolution whose kernel holds the zeros."""
        weight, padding = self._padded(height, width)
        twin = nn.Conv2d(
            self.in_channels,
            self.out_channels,
            weight.shape[2:],  # type: ignore[arg-type]
            self.stride,  # type: ignore[arg-type]
            padding,
            self.dilation,  # type: ignore[arg-type]
            self.groups,
            bias=self.bias is not None,
        ).requires_grad_(False)
        twin.weight.copy_(weight)
        if twin.bias is not None and self.bias is not None:
            twin.bias.copy_(self.bias)
        return twin

    def _padded(self, height: int, width: int) -> tuple[Tensor, tuple[int, int]]:
        """The kernel for maps (H, W), and the zeros to add on either side of them."""
        rows, columns = (
            _same_padding(length, self.kernel_size[i], self.stride[i]) for i, length in enumerate((height, width))
        )
        weight = self.weight
        if rows % 2 or columns % 2:
            weight = F.pad(weight, (columns % 2, 0, rows % 2, 0))
        return weight, ((rows + 1) // 2, (columns + 1) // 2)


def _same_padding(length: int, kernel: int, stride: int) -> int:
    """Zeros to add in total along one axis."""
    return max((-(-length // stride) - 1) * stride + kernel - length, 0)


def conv_norm(
    conv: nn.Conv2d, activation: nn.Module | None = None, *, eps: float = 1e-5, momentum: float = 0.1
) -> nn.Sequential:
    """Convolution, batch norm and, if given, an activation; `tuning.fold_batch_norm` makes it one convolution.

    The activation may work in place: batch norm does not need its output to go backward.
    """
    layers: list[nn.Module] = [conv, nn.BatchNorm2d(conv.out_channels, eps=eps, momentum=momentum)]
    return nn.Sequential(*layers, *([activation] if activation is not None else []))
