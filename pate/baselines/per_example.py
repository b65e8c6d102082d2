"""Sums of clipped per-example gradients, worked out in one of three ways behind one switch.

* `opacus`: Opacus's GradSampleModule stores every example's gradient, then they are clipped and summed;
* `ghost`: one backward pass; a linear layer's norms come from its inputs and output gradients, and the clipped sum
  is one matrix product, so no example's gradient of it is ever stored (Goodfellow 2015; Bu et al. 2023);
* `torch_func`: vmap over grad, for any module that torch.func can transform.

All three give the same sum, up to rounding, which a test checks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy, unfold

from pate.errors import ConfigError, RunError

ClippedSum = Callable[[torch.Tensor, torch.Tensor], list[torch.Tensor]]
"""(inputs, targets) → one tensor per parameter: the sum of the examples' clipped gradients."""

WAYS = ("auto", "ghost", "opacus", "torch_func")
_MANY_CONVOLVED = 100_000  # weights in convolutions: 9,216 in the small CNN, 286,560 in the deep one


def clipped_sum(way: str, module: torch.nn.Module, clip_norm: float) -> ClippedSum:
    """How `module`'s clipped gradients are summed; `auto` takes the quickest that suits the module."""
    if way not in WAYS:
        raise ConfigError(f"per_example = {way!r}: must be one of {', '.join(WAYS)}")
    if way == "auto":
        way = quickest(module)
    return {"ghost": _ghost, "opacus": _opacus, "torch_func": _torch_func}[way](module, clip_norm)


def _opacus(module: torch.nn.Module, clip_norm: float) -> ClippedSum:
    from opacus import GradSampleModule  # takes seconds to import

    wrapped = GradSampleModule(module, loss_reduction="sum")

    def clipped(inputs: torch.Tensor, targets: torch.Tensor) -> list[torch.Tensor]:
        cross_entropy(wrapped(inputs), targets, reduction="sum").backward()
        gradients = [parameter.grad_sample for parameter in module.parameters()]  # type: ignore[attr-defined]
        wrapped.zero_grad(set_to_none=True)
        return _clip_stored(gradients, clip_norm)

    return clipped


def _torch_func(module: torch.nn.Module, clip_norm: float) -> ClippedSum:

    names = [name for name, _ in module.named_parameters()]

    def loss(parameters: dict[str, Any], one_input: torch.Tensor, one_target: torch.Tensor) -> torch.Tensor:
        scores = functional_call(module, parameters, (one_input.unsqueeze(0),))
        return cross_entropy(scores, one_target.unsqueeze(0))

    each = vmap(grad(loss), in_dims=(None, 0, 0), randomness="different")

    def clipped(inputs: torch.Tensor, targets: torch.Tensor) -> list[torch.Tensor]:
        parameters = {name: parameter.detach() for name, parameter in module.named_parameters()}
        gradients = each(parameters, inputs, targets)
        return _clip_stored([gradients[name] for name in names], clip_norm)

    return clipped


def _clip_stored(gradients: list[torch.Tensor], clip_norm: float) -> list[torch.Tensor]:
    """Clip and sum gradients of shape (examples, …)."""
    flat = [gradient.flatten(1) for gradient in gradients]
    factors = _factors(sum((f.square().sum(1) for f in flat), torch.zeros(len(flat[0]))), clip_norm)
    return [(factors @ f).reshape(g.shape[1:]) for f, g in zip(flat, gradients, strict=True)]


def _factors(squared_norms: torch.Tensor, clip_norm: float) -> torch.Tensor:
    """min(1, clip_norm/norm) for each example."""
    if not squared_norms.isfinite().all():
        raise RunError(
            "NaN or infinite gradients: lower learning_rate, check the loss and the inputs; this step was not released"
        )
    return clip_norm / squared_norms.sqrt().clamp(min=clip_norm)


def quickest(module: torch.nn.Module) -> str:
    """`ghost` where it is possible, else `opacus`; but `torch_func` for a plain chain with large convolutions.

    There most of the work would be `ghost`'s copies of every patch: `benchmarks/dp_sgd.py` measures it.
    """
    if _unsuited_to_ghost(module) is not None:
        return "opacus"
    convolved = sum(layer.weight.numel() for layer in module.modules() if isinstance(layer, nn.Conv2d))
    return "torch_func" if convolved > _MANY_CONVOLVED and type(module) is nn.Sequential else "ghost"


def _unsuited_to_ghost(module: torch.nn.Module) -> str | None:
    """The first layer with parameters that ghost clipping cannot take, or None."""
    for name, layer in module.named_modules():
        if next(layer.parameters(recurse=False), None) is None:
            continue
        plain_convolution = isinstance(layer, nn.Conv2d) and layer.groups == 1 and layer.padding_mode == "zeros"
        if not (type(layer) is nn.Linear or (plain_convolution and not isinstance(layer.padding, str))):
            return f"{name} ({type(layer).__name__})"
    return None


def _ghost(module: torch.nn.Module, clip_norm: float) -> ClippedSum:

    unsuited = _unsuited_to_ghost(module)
    if unsuited is not None:
        raise ConfigError(f"per_example = 'ghost': not for the layer {unsuited}; use 'opacus' or 'torch_func'")
    layers: list[Any] = [layer for layer in module.modules() if next(layer.parameters(recurse=False), None) is not None]
    seen: dict[torch.nn.Module, tuple[torch.Tensor, torch.Tensor]] = {}

    def remember(layer: torch.nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        if layer in seen:
            raise ConfigError(f"per_example = 'ghost': {type(layer).__name__} is used twice in one pass; use 'opacus'")
        seen[layer] = (inputs[0].detach(), output)

    def clipped(inputs: torch.Tensor, targets: torch.Tensor) -> list[torch.Tensor]:
        seen.clear()
        handles = [layer.register_forward_hook(remember) for layer in layers]
        try:
            loss = cross_entropy(module(inputs), targets, reduction="sum")
        finally:
            for handle in handles:
                handle.remove()
        used = [layer for layer in layers if layer in seen]
        output_gradients = torch.autograd.grad(loss, [seen[layer][1] for layer in used])
        traces = [_trace(layer, seen[layer][0], g) for layer, g in zip(used, output_gradients, strict=True)]
        factors = _factors(sum((t.squared_norms() for t in traces), torch.zeros(len(inputs))), clip_norm)
        sums: dict[int, torch.Tensor] = {}
        for layer, trace in zip(used, traces, strict=True):
            sums[id(layer.weight)] = trace.weighted_sum(factors).reshape(layer.weight.shape)
            if layer.bias is not None:
                sums[id(layer.bias)] = factors @ trace.bias
        seen.clear()
        return [sums.get(id(parameter), torch.zeros_like(parameter)) for parameter in module.parameters()]

    return clipped


class _Outer:
    """A linear layer's gradients as outer products: `left` (n, outputs) times `right` (n, inputs)."""

    def __init__(self, left: torch.Tensor, right: torch.Tensor, has_bias: bool) -> None:
        self.left, self.right, self.bias, self.has_bias = left, right, left, has_bias

    def squared_norms(self) -> torch.Tensor:
        of_inputs = self.right.square().sum(1)
        return self.left.square().sum(1) * (of_inputs + 1.0 if self.has_bias else of_inputs)

    def weighted_sum(self, factors: torch.Tensor) -> torch.Tensor:
        return (self.left * factors.unsqueeze(1)).T @ self.right


class _Stored:
    """Gradients kept whole, where a weight meets many positions of an example (convolutions, sequences)."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor, has_bias: bool) -> None:
        self.weight, self.bias, self.has_bias = weight.flatten(1), bias, has_bias

    def squared_norms(self) -> torch.Tensor:
        norms = self.weight.square().sum(1)
        return norms + self.bias.square().sum(1) if self.has_bias else norms

    def weighted_sum(self, factors: torch.Tensor) -> torch.Tensor:
        return factors @ self.weight


def _trace(layer: Any, inputs: torch.Tensor, output_gradient: torch.Tensor) -> _Outer | _Stored:
    has_bias = layer.bias is not None
    if isinstance(layer, nn.Conv2d):
        assert not isinstance(layer.padding, str)  # `_unsuited_to_ghost` saw to it
        patches = unfold(inputs, layer.kernel_size, layer.dilation, layer.padding, layer.stride)  # (n, inputs, places)
        gradient = output_gradient.flatten(2)  # (n, outputs, places)
        return _Stored(gradient @ patches.transpose(1, 2), gradient.sum(2), has_bias)
    if inputs.ndim == 2:
        return _Outer(output_gradient, inputs, has_bias)
    gradient, places = output_gradient.flatten(1, -2), inputs.flatten(1, -2)
    return _Stored(gradient.transpose(1, 2) @ places, gradient.sum(1), has_bias)
