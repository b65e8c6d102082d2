"""Sums of clipped per-example gradients, computed in one of three ways behind one switch.

* `ghost`: one backward pass; norms come from a layer's inputs and output gradients (`pate.baselines._per_example`), and
  the clipped sum is one product, so gradients are stored for layers alone that meet many places with few weights, or
  have few weights, as normalisations do;
* `torch_func`: vmap over grad, for any module that torch.func can transform;
* `one_by_one`: the obvious loop over the examples, slow and right for any module.

All give the same sum, up to rounding, for the networks of this package, which a test checks. For somebody else's,
`pate.baselines._networks` compares them with the loop on made-up examples before one is taken.

Sensitivity: an example adds at most `clip_norm` to the norm of the sum, and changes nobody else's part of it: what is
drawn on the way, such as dropout's masks, is keyed by example (`pate.baselines.sampling`). One whose gradient is
not finite, or longer than can be squared, adds zero: that depends on the example and the weights alone, and stops
nothing.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Protocol

import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy, group_norm, layer_norm, pad, unfold
from torch.nn.grad import conv2d_weight

from pate.baselines.sampling import ForwardDraws, drawing
from pate.errors import ConfigError

_SUMMED = 8  # examples in one convolution's sum: a rounding for each of their places may be an example's fault


def counted(rows: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    """Rows with zeros for examples whose factor is zero, since 0 times NaN would be NaN."""
    counts = factors > 0
    return rows if bool(counts.all()) else torch.where(counts.reshape(-1, *[1] * (rows.ndim - 1)), rows, 0.0)


def trace_of(layer: Any, inputs: torch.Tensor, output_gradient: torch.Tensor) -> _Outer | _Stored | _Convolved:
    """The trace of a linear layer, a plain convolution, or a normalisation of an example by itself."""
    has_bias = layer.bias is not None
    if isinstance(layer, nn.GroupNorm):
        gradient, seen = output_gradient.flatten(2), group_norm(inputs, layer.num_groups, eps=layer.eps).flatten(2)
        return _Stored((gradient * seen).sum(2), gradient.sum(2), has_bias)
    if isinstance(layer, nn.LayerNorm):
        places = tuple(range(1, inputs.ndim - len(layer.normalized_shape)))
        weighted = output_gradient * layer_norm(inputs, layer.normalized_shape, eps=layer.eps)
        weight, bias = (each.sum(places) if places else each for each in (weighted, output_gradient))
        return _Stored(weight, bias.flatten(1), has_bias)
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
    a norm found too short would let an example add more than the clipping norm. So norms are computed in doubles, and
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


class ClippedSum(Protocol):
    """One tensor per parameter: the sum of the examples' clipped gradients. `draws` are those of the forward pass."""

    def __call__(
        self, inputs: torch.Tensor, targets: torch.Tensor, draws: ForwardDraws | None = None
    ) -> list[torch.Tensor]:
        """Of these examples."""


WAYS = ("auto", "ghost", "torch_func", "one_by_one")


def clipped_sum(way: str, module: torch.nn.Module, clip_norm: float) -> ClippedSum:
    """How `module`'s clipped gradients are summed; `auto` takes the quickest that suits the module."""
    if way not in WAYS:
        raise ConfigError(f"per_example = {way!r}: must be one of {', '.join(WAYS)}")
    if way == "auto":
        way = quickest(module)
    made = {"ghost": _ghost, "torch_func": _torch_func, "one_by_one": _one_by_one}
    return made[way](module, clip_norm)


def never_stopping(total: ClippedSum, module: torch.nn.Module, clip_norm: float) -> ClippedSum:
    """The clipped sum, where an example that a module cannot take adds zero, as one with a NaN gradient does.

    For modules that were tried on made-up examples: what fails after that is an example's doing, and whether a run goes
    on must not tell that it was there.
    """
    alone = _one_by_one(module, clip_norm)

    def clipped(inputs: torch.Tensor, targets: torch.Tensor, draws: ForwardDraws | None = None) -> list[torch.Tensor]:
        try:
            return total(inputs, targets, draws)
        except Exception:
            module.zero_grad(set_to_none=True)
        sums = [torch.zeros_like(parameter) for parameter in module.parameters()]
        for i in range(len(inputs)):
            with suppress(Exception):
                one = alone(inputs[i : i + 1], targets[i : i + 1], draws and draws.only(i))
                for summed, part in zip(sums, one, strict=True):
                    summed += part
        return sums

    return clipped


def gradient_of_one(module: torch.nn.Module, one_input: torch.Tensor, one_target: torch.Tensor) -> list[torch.Tensor]:
    """The gradient of one example's loss, by parameter; inputs and targets of length 1."""
    loss = cross_entropy(module(one_input), one_target, reduction="sum")
    parameters = list(module.parameters())
    return list(torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True))


def _one_by_one(module: torch.nn.Module, clip_norm: float) -> ClippedSum:
    def clipped(inputs: torch.Tensor, targets: torch.Tensor, draws: ForwardDraws | None = None) -> list[torch.Tensor]:
        sums = [torch.zeros_like(parameter) for parameter in module.parameters()]
        for i in range(len(inputs)):
            with drawing(draws and draws.only(i)):
                gradient = gradient_of_one(module, inputs[i : i + 1], targets[i : i + 1])
            for summed, part in zip(sums, _clip_stored([g.unsqueeze(0) for g in gradient], clip_norm), strict=True):
                summed += part
        return sums

    return clipped


def _torch_func(module: torch.nn.Module, clip_norm: float) -> ClippedSum:

    names = [name for name, _ in module.named_parameters()]

    def loss(parameters: dict[str, Any], one_input: torch.Tensor, one_target: torch.Tensor) -> torch.Tensor:
        scores = functional_call(module, parameters, (one_input.unsqueeze(0),))
        return cross_entropy(scores, one_target.unsqueeze(0))

    each = vmap(grad(loss), in_dims=(None, 0, 0), randomness="different")

    def clipped(inputs: torch.Tensor, targets: torch.Tensor, draws: ForwardDraws | None = None) -> list[torch.Tensor]:
        parameters = {name: parameter.detach() for name, parameter in module.named_parameters()}
        with drawing(draws):
            gradients = each(parameters, inputs, targets)
        return _clip_stored([gradients[name] for name in names], clip_norm)

    return clipped


def _clip_stored(gradients: list[torch.Tensor], clip_norm: float) -> list[torch.Tensor]:
    """Clip and sum gradients of shape (examples, …)."""
    flat = [gradient.flatten(1) for gradient in gradients]
    factors = _factors(sum((f.square().sum(1) for f in flat), flat[0].new_zeros(len(flat[0]))), clip_norm)
    flat = [counted(f, factors) for f in flat]
    return [(factors @ f).reshape(g.shape[1:]) for f, g in zip(flat, gradients, strict=True)]


def _factors(squared_norms: torch.Tensor, clip_norm: float) -> torch.Tensor:
    """min(1, clip_norm/norm) for each example; 0 for one whose gradient is NaN, infinite or too long to square."""
    factors = clip_norm / squared_norms.sqrt().clamp(min=clip_norm)
    return torch.where(squared_norms.isfinite(), factors, torch.zeros_like(factors))


def quickest(module: torch.nn.Module) -> str:
    """`ghost` where it is possible, else `torch_func`: `benchmarks/dp_sgd.py` measures them."""
    return "ghost" if _unsuited_to_ghost(module) is None else "torch_func"


def _unsuited_to_ghost(module: torch.nn.Module) -> str | None:
    """The first layer with parameters that ghost clipping cannot take, or None."""
    for name, layer in module.named_modules():
        if next(layer.parameters(recurse=False), None) is None:
            continue
        plain_convolution = isinstance(layer, nn.Conv2d) and layer.groups == 1 and layer.padding_mode == "zeros"
        if not (
            type(layer) in (nn.Linear, nn.GroupNorm, nn.LayerNorm)
            or (plain_convolution and not isinstance(layer.padding, str))
        ):
            return f"{name} ({type(layer).__name__})"
    return None


def _ghost(module: torch.nn.Module, clip_norm: float) -> ClippedSum:

    unsuited = _unsuited_to_ghost(module)
    if unsuited is not None:
        raise ConfigError(f"per_example = 'ghost': not for the layer {unsuited}; use 'torch_func'")
    layers: list[Any] = [layer for layer in module.modules() if next(layer.parameters(recurse=False), None) is not None]
    seen: dict[torch.nn.Module, tuple[torch.Tensor, torch.Tensor]] = {}

    def remember(layer: torch.nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        if layer in seen:
            raise ConfigError(
                f"per_example = 'ghost': {type(layer).__name__} is used twice in one pass; use 'torch_func'"
            )
        seen[layer] = (inputs[0].detach(), output)

    def clipped(inputs: torch.Tensor, targets: torch.Tensor, draws: ForwardDraws | None = None) -> list[torch.Tensor]:
        seen.clear()
        handles = [layer.register_forward_hook(remember) for layer in layers]
        with drawing(draws):
            try:
                loss = cross_entropy(module(inputs), targets, reduction="sum")
            finally:
                for handle in handles:
                    handle.remove()
            used = [layer for layer in layers if layer in seen]
            output_gradients = torch.autograd.grad(loss, [seen[layer][1] for layer in used])
        traces = [trace_of(layer, seen[layer][0], g) for layer, g in zip(used, output_gradients, strict=True)]
        norms = [trace.squared_norms() for trace in traces]
        if any(len(found) != len(inputs) for found in norms):
            raise ConfigError("per_example = 'ghost': a layer has not one row per example; use 'torch_func'")
        factors = _factors(sum(norms, inputs.new_zeros(len(inputs))), clip_norm)
        sums: dict[int, torch.Tensor] = {}
        for layer, trace in zip(used, traces, strict=True):
            trace.keep_counted(factors)
            sums[id(layer.weight)] = trace.weighted_sum(factors).reshape(layer.weight.shape)
            if layer.bias is not None:
                sums[id(layer.bias)] = (factors @ trace.bias).reshape(layer.bias.shape)
        seen.clear()
        return [sums.get(id(parameter), torch.zeros_like(parameter)) for parameter in module.parameters()]

    return clipped
