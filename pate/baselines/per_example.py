"""Sums of clipped per-example gradients, worked out in one of four ways behind one switch.

* `opacus`: Opacus's GradSampleModule stores every example's gradient, then they are clipped and summed;
* `ghost`: one backward pass; norms come from a layer's inputs and output gradients (`pate.baselines.ghost_norms`), and
  the clipped sum is one product, so gradients are stored for layers alone that meet many places with few weights;
* `torch_func`: vmap over grad, for any module that torch.func can transform;
* `one_by_one`: the obvious loop over the examples, slow and right for any module.

All give the same sum, up to rounding, for the networks of this package, which a test checks. For somebody else's,
`pate.baselines.clipping_selfcheck` compares them with the loop on made-up examples before one is taken.

Sensitivity: an example adds at most `clip_norm` to the norm of the sum, and changes nobody else's part of it: what is
drawn on the way, such as dropout's masks, is keyed by example (`pate.baselines.forward_draws`). One whose gradient is
not finite, or longer than can be squared, adds zero: that depends on the example and the weights alone, and stops
nothing.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Protocol

import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

from pate.baselines.forward_draws import ForwardDraws, drawing
from pate.baselines.ghost_norms import counted, trace_of
from pate.errors import ConfigError


class ClippedSum(Protocol):
    """One tensor per parameter: the sum of the examples' clipped gradients. `draws` are those of the forward pass."""

    def __call__(
        self, inputs: torch.Tensor, targets: torch.Tensor, draws: ForwardDraws | None = None
    ) -> list[torch.Tensor]:
        """Of these examples."""


WAYS = ("auto", "ghost", "opacus", "torch_func", "one_by_one")


def clipped_sum(way: str, module: torch.nn.Module, clip_norm: float) -> ClippedSum:
    """How `module`'s clipped gradients are summed; `auto` takes the quickest that suits the module."""
    if way not in WAYS:
        raise ConfigError(f"per_example = {way!r}: must be one of {', '.join(WAYS)}")
    if way == "auto":
        way = quickest(module)
    made = {"ghost": _ghost, "opacus": _opacus, "torch_func": _torch_func, "one_by_one": _one_by_one}
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


def _opacus(module: torch.nn.Module, clip_norm: float) -> ClippedSum:
    from opacus import GradSampleModule  # takes seconds to import

    def clipped(inputs: torch.Tensor, targets: torch.Tensor, draws: ForwardDraws | None = None) -> list[torch.Tensor]:
        wrapped = GradSampleModule(module, loss_reduction="sum")
        try:
            with drawing(draws):
                cross_entropy(wrapped(inputs), targets, reduction="sum").backward()
            gradients = [parameter.grad_sample for parameter in module.parameters()]  # type: ignore[attr-defined]
            return _clip_stored(gradients, clip_norm)
        finally:  # also where a layer failed half way: nothing of this pass is left for the next one
            wrapped.zero_grad(set_to_none=True)
            wrapped.to_standard_module()

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
    """`ghost` where it is possible, else `opacus`: `benchmarks/dp_sgd.py` measures them."""
    return "ghost" if _unsuited_to_ghost(module) is None else "opacus"


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
                sums[id(layer.bias)] = factors @ trace.bias
        seen.clear()
        return [sums.get(id(parameter), torch.zeros_like(parameter)) for parameter in module.parameters()]

    return clipped
