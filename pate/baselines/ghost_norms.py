"""What a backward pass leaves of a layer, from which ghost clipping has each example's norm and the clipped sum.

A layer's gradient for one example is Σ over places p of g_p x_pᵀ: the output's gradient there, times what the layer saw
there. One place (a linear layer on vectors) makes it an outer product, whose norm is a product of norms (Goodfellow
2015). With many places the gradients are kept whole, or, where places are few and weights many, the norm comes from
inner products between places (Bu et al. 2022): ‖Σ g_p x_pᵀ‖² = Σ_pq ⟨g_p, g_q⟩ ⟨x_p, x_q⟩.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import nn
from torch.nn.functional import pad, unfold
from torch.nn.grad import conv2d_weight

_SUMMED = 8  # examples in one convolution's sum: a rounding for each of their places may be an example's fault


class Trace(Protocol):
    """One layer's share in the gradients of n examples."""

    @property
    def bias(self) -> torch.Tensor:
        """Each example's gradient of the bias: (n, outputs)."""

    def squared_norms(self) -> torch.Tensor:
        """Squared norm of each example's gradient of weight and bias: (n,)."""

    def keep_counted(self, factors: torch.Tensor) -> None:
        """Forget the examples whose factor is 0."""

    def weighted_sum(self, factors: torch.Tensor) -> torch.Tensor:
        """The weight's gradients, each times its factor, summed; in any shape of as many numbers."""


def counted(rows: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    """Rows with zeros for examples whose factor is zero, since 0 times NaN would be NaN."""
    counts = factors > 0
    return rows if bool(counts.all()) else torch.where(counts.reshape(-1, *[1] * (rows.ndim - 1)), rows, 0.0)


def trace_of(layer: Any, inputs: torch.Tensor, output_gradient: torch.Tensor) -> Trace:
    """The trace of a linear layer or a plain convolution."""
    has_bias = layer.bias is not None
    if isinstance(layer, nn.Conv2d):
        if _few_places(layer, inputs):
            return _Convolved(layer, inputs, output_gradient)
        assert not isinstance(layer.padding, str)  # not a plain one
        patches = unfold(inputs, layer.kernel_size, layer.dilation, layer.padding, layer.stride)  # (n, inputs, places)
        gradient = output_gradient.flatten(2)  # (n, outputs, places)
        return _Stored(gradient @ patches.transpose(1, 2), gradient.sum(2), has_bias)
    if inputs.ndim == 2:
        return _Outer(output_gradient, inputs, has_bias)
    gradient, seen = output_gradient.flatten(1, -2), inputs.flatten(1, -2)
    return _Stored(gradient.transpose(1, 2) @ seen, gradient.sum(1), has_bias)


def _few_places(layer: Any, inputs: torch.Tensor) -> bool:
    """Do inner products between places take less memory than an example's gradient? There are three tables of doubles.

    On a CPU alone: a GPU's convolutions may round to half as many bits, or in ways that no count of roundings bounds.
    """
    height, width = (side + 2 * more for side, more in zip(inputs.shape[2:], layer.padding, strict=True))
    few: bool = 6 * (height * width) ** 2 < layer.weight.numel()
    return few and inputs.device.type == "cpu"


def _lengths(squares: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Norms from squares in doubles, none of which is lost; infinite where the square is too large for a `dtype`."""
    return squares.where(squares < torch.finfo(dtype).max, torch.inf).sqrt()


class _Outer:
    """A linear layer's gradients as outer products: `left` (n, outputs) times `right` (n, inputs)."""

    def __init__(self, left: torch.Tensor, right: torch.Tensor, has_bias: bool) -> None:
        self.left, self.right, self.has_bias = left, right, has_bias

    @property
    def bias(self) -> torch.Tensor:
        return self.left

    def keep_counted(self, factors: torch.Tensor) -> None:
        self.left, self.right = counted(self.left, factors), counted(self.right, factors)

    def squared_norms(self) -> torch.Tensor:
        left, right = (
            _lengths(torch.linalg.vector_norm(side, dim=1, dtype=torch.double).square(), side.dtype)
            for side in (self.left, self.right)
        )
        squared = (left * right).square()
        return (squared + left.square() if self.has_bias else squared).to(self.left.dtype)

    def weighted_sum(self, factors: torch.Tensor) -> torch.Tensor:
        return (self.left * factors.unsqueeze(1)).T @ self.right


class _Stored:
    """Gradients kept whole, where a weight meets many places of an example (convolutions, sequences)."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor, has_bias: bool) -> None:
        self.weight, self.bias, self.has_bias = weight.flatten(1), bias, has_bias

    def keep_counted(self, factors: torch.Tensor) -> None:
        self.weight, self.bias = counted(self.weight, factors), counted(self.bias, factors)

    def squared_norms(self) -> torch.Tensor:
        norms = self.weight.square().sum(1)
        return norms + self.bias.square().sum(1) if self.has_bias else norms

    def weighted_sum(self, factors: torch.Tensor) -> torch.Tensor:
        return factors @ self.weight


class _Convolved:
    """A convolution's gradients as what it saw and the output's gradient, where places are few and weights many.

    Inner products of patches are sums of inner products of pixels, so no patch is copied. Large pieces can cancel, and
    a norm found too short would let an example add more than the clipping norm. So norms are worked out in doubles, and
    the most that rounding can make of an example's pieces, Σ_p ‖g_p‖ ‖x_p‖ together, is added: in these norms, and in
    the sum of floats over the examples, whatever its order. That is by blocks, so that the latter stays small.
    """

    def __init__(self, layer: Any, inputs: torch.Tensor, output_gradient: torch.Tensor) -> None:
        self.layer, self.inputs, self.gradient = layer, inputs, output_gradient
        self.bias = output_gradient.flatten(2).sum(2)

    def keep_counted(self, factors: torch.Tensor) -> None:
        self.inputs, self.gradient = counted(self.inputs, factors), counted(self.gradient, factors)
        self.bias = counted(self.bias, factors)

    def squared_norms(self) -> torch.Tensor:
        gradient = self.gradient.flatten(2).double()
        of_gradients = gradient.transpose(1, 2) @ gradient  # (n, places, places)
        of_patches = self._products_of_patches()
        found = (of_gradients * of_patches).sum((1, 2))
        pieces = [
            _lengths(products.diagonal(dim1=1, dim2=2), self.inputs.dtype) for products in (of_gradients, of_patches)
        ]
        together = (pieces[0] * pieces[1]).sum(1)
        terms = self.layer.weight[0].numel() + gradient.shape[1] + of_patches.shape[1] ** 2
        norms = (found.clamp(min=0) + terms * torch.finfo(torch.double).eps * together.square()).sqrt()
        summed = _SUMMED * gradient.shape[2] + 2  # not how many there are: that would be about others
        norms = norms + summed * torch.finfo(self.inputs.dtype).eps / 2 * together
        squared = norms.square() if self.layer.bias is None else norms.square() + self.bias.double().square().sum(1)
        return squared.to(self.bias.dtype)

    def _products_of_patches(self) -> torch.Tensor:
        n, _, height, width = self.inputs.shape
        pixels = self.inputs.flatten(2).double()
        of_pixels = (pixels.transpose(1, 2) @ pixels).reshape(n, height, width, height, width)
        down, across = self.layer.padding
        of_pixels = pad(of_pixels, 2 * (across, across, down, down))
        rows, columns = self.gradient.shape[2:]
        total = of_pixels.new_zeros(n, rows, columns, rows, columns)
        for i in range(self.layer.kernel_size[0]):
            for j in range(self.layer.kernel_size[1]):
                vertical = _met(i * self.layer.dilation[0], rows, self.layer.stride[0])
                horizontal = _met(j * self.layer.dilation[1], columns, self.layer.stride[1])
                total += of_pixels[:, vertical, horizontal, vertical, horizontal]
        return total.reshape(n, rows * columns, rows * columns)

    def weighted_sum(self, factors: torch.Tensor) -> torch.Tensor:
        layer, weighted = self.layer, self.gradient * factors.reshape(-1, 1, 1, 1)
        total = torch.zeros_like(layer.weight)
        for seen, gradient in zip(self.inputs.split(_SUMMED), weighted.split(_SUMMED), strict=True):
            total += conv2d_weight(seen, total.shape, gradient, layer.stride, layer.padding, layer.dilation)
        return total


def _met(begin: int, places: int, stride: int) -> slice:
    """The pixels along one side that a weight of the kernel meets."""
    return slice(begin, begin + (places - 1) * stride + 1, stride)
