"""Sums of clipped per-example gradients in one of three ways, and the networks that they are right for.

* `ghost`: one backward pass; norms come from a layer's inputs and output gradients, and
  the clipped sum is one product, so gradients are stored for layers alone that meet many places with few weights, or
  have few weights, as normalisations do;
* `torch_func`: vmap over grad, for any module that torch.func can transform;
* `one_by_one`: the obvious loop over the examples, slow and right for any module.

All give the same sum, up to rounding, for the networks of this package, which a test checks. The proof of DP-SGD needs
that an example's gradient is a function of that example and the weights, and that it is clipped as a whole. A network
that somebody else wrote can break both: by what it remembers of a forward pass (running statistics would also be
released, without noise), by mixing the examples of a batch, or by folding an example's pieces into the batch axis,
where ghost clipping would clip each of them. So every network is tried on made-up examples first, and its way is
compared with the loop.

Sensitivity: an example adds at most `clip_norm` to the norm of the sum, and changes nobody else's part of it: what is
drawn on the way, such as dropout's masks, is keyed by example (`pate.baselines.sampling`). One whose gradient is
not finite, or longer than can be squared, adds zero: that depends on the example and the weights alone, and stops
nothing.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import product
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy, group_norm, layer_norm, pad, unfold
from torch.nn.grad import conv2d_weight
from torch.nn.modules.batchnorm import _BatchNorm

from pate.baselines.sampling import KEY_BYTES, ForwardDraws, drawing
from pate.components._registry import import_dotted, nearest
from pate.errors import ConfigError, first_line
from pate.networks._architectures import FOR_DP_SGD, Shape, seeded

Build = Callable[[], nn.Module]

_EXAMPLES = 4
_ROUNDING = 1e-5
_SAME = 1e-3  # of the clipping norm per example: far above rounding, far below an example that counts twice
_SUMMED = 8  # examples in one convolution's sum: a rounding for each of their places may be an example's fault


def counted(rows: Tensor, factors: Tensor) -> Tensor:
    """Rows with zeros for examples whose factor is zero, since 0 times NaN would be NaN."""
    counts = factors > 0
    return rows if bool(counts.all()) else torch.where(counts.reshape(-1, *[1] * (rows.ndim - 1)), rows, 0.0)


def trace_of(layer: Any, inputs: Tensor, output_gradient: Tensor) -> _Outer | _Stored | _Convolved:
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
        assert not isinstance(layer.padding, str)  # not a plain one
        height, width = (side + 2 * more for side, more in zip(inputs.shape[2:], layer.padding, strict=True))
        # Where three tables of doubles, the inner products between places, take less memory than an example's gradient.
        # On a CPU alone: a GPU may round to half as many bits, or in ways that no count of roundings bounds.
        if 6 * (height * width) ** 2 < layer.weight.numel() and inputs.device.type == "cpu":
            return _Convolved(layer, inputs, output_gradient)
        patches = unfold(inputs, layer.kernel_size, layer.dilation, layer.padding, layer.stride)  # (n, inputs, places)
        gradient = output_gradient.flatten(2)  # (n, outputs, places)
        return _Stored(gradient @ patches.transpose(1, 2), gradient.sum(2), has_bias)
    if inputs.ndim == 2:
        return _Outer(output_gradient, inputs, has_bias)
    gradient, seen = output_gradient.flatten(1, -2), inputs.flatten(1, -2)
    return _Stored(gradient.transpose(1, 2) @ seen, gradient.sum(1), has_bias)


def _lengths(squares: Tensor, dtype: torch.dtype) -> Tensor:
    """Norms from squares in doubles, none of which is lost; infinite where the square is too large for a `dtype`."""
    return squares.where(squares < torch.finfo(dtype).max, torch.inf).sqrt()


class _Outer:
    """A linear layer's gradients as outer products: `left` (n, outputs) times `right` (n, inputs)."""

    def __init__(self, left: Tensor, right: Tensor, has_bias: bool) -> None:
        self.left, self.right, self.has_bias = left, right, has_bias

    @property
    def bias(self) -> Tensor:
        return self.left

    def keep_counted(self, factors: Tensor) -> None:
        self.left, self.right = counted(self.left, factors), counted(self.right, factors)

    def squared_norms(self) -> Tensor:
        left, right = (
            _lengths(torch.linalg.vector_norm(side, dim=1, dtype=torch.double).square(), side.dtype)
            for side in (self.left, self.right)
        )
        squared = (left * right).square()
        return (squared + left.square() if self.has_bias else squared).to(self.left.dtype)

    def weighted_sum(self, factors: Tensor) -> Tensor:
        return (self.left * factors.unsqueeze(1)).T @ self.right


class _Stored:
    """Gradients kept whole, where a weight meets many places of an example (convolutions, sequences)."""

    def __init__(self, weight: Tensor, bias: Tensor, has_bias: bool) -> None:
        self.weight, self.bias, self.has_bias = weight.flatten(1), bias, has_bias

    def keep_counted(self, factors: Tensor) -> None:
        self.weight, self.bias = counted(self.weight, factors), counted(self.bias, factors)

    def squared_norms(self) -> Tensor:
        norms = self.weight.square().sum(1)
        return norms + self.bias.square().sum(1) if self.has_bias else norms

    def weighted_sum(self, factors: Tensor) -> Tensor:
        return factors @ self.weight


class _Convolved:
    """A convolution's gradients as what it saw and the output's gradient, where places are few and weights many.

    Inner products of patches are sums of inner products of pixels, so no patch is copied. Large pieces can cancel, and
    a norm found too short would let an example add more than the clipping norm. So norms are computed in doubles, and
    the most that rounding can make of an example's pieces, Σ_p ‖g_p‖ ‖x_p‖ together, is added: in these norms, and in
    the sum of floats over the examples, whatever its order. That is by blocks, so that the latter stays small.
    """

    def __init__(self, layer: Any, inputs: Tensor, output_gradient: Tensor) -> None:
        self.layer, self.inputs, self.gradient = layer, inputs, output_gradient
        self.bias = output_gradient.flatten(2).sum(2)

    def keep_counted(self, factors: Tensor) -> None:
        self.inputs, self.gradient = counted(self.inputs, factors), counted(self.gradient, factors)
        self.bias = counted(self.bias, factors)

    def squared_norms(self) -> Tensor:
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

    def _products_of_patches(self) -> Tensor:
        n, _, height, width = self.inputs.shape
        pixels = self.inputs.flatten(2).double()
        of_pixels = (pixels.transpose(1, 2) @ pixels).reshape(n, height, width, height, width)
        down, across = self.layer.padding
        of_pixels = pad(of_pixels, 2 * (across, across, down, down))
        rows, columns = self.gradient.shape[2:]
        total = of_pixels.new_zeros(n, rows, columns, rows, columns)
        met = [  # the pixels along each side that each weight of the kernel meets
            [slice(i * dilation, i * dilation + (places - 1) * stride + 1, stride) for i in range(kernel)]
            for kernel, dilation, places, stride in zip(
                self.layer.kernel_size, self.layer.dilation, (rows, columns), self.layer.stride, strict=True
            )
        ]
        for vertical, horizontal in product(*met):
            total += of_pixels[:, vertical, horizontal, vertical, horizontal]
        return total.reshape(n, rows * columns, rows * columns)

    def weighted_sum(self, factors: Tensor) -> Tensor:
        layer, weighted = self.layer, self.gradient * factors.reshape(-1, 1, 1, 1)
        total = torch.zeros_like(layer.weight)
        for seen, gradient in zip(self.inputs.split(_SUMMED), weighted.split(_SUMMED), strict=True):
            total += conv2d_weight(seen, total.shape, gradient, layer.stride, layer.padding, layer.dilation)
        return total


class ClippedSum(Protocol):
    """One tensor per parameter: the sum of the examples' clipped gradients. `draws` are those of the forward pass."""

    def __call__(self, inputs: Tensor, targets: Tensor, draws: ForwardDraws | None = None) -> list[Tensor]:
        """Of these examples."""


WAYS = ("auto", "ghost", "torch_func", "one_by_one")


def clipped_sum(way: str, module: nn.Module, clip_norm: float) -> ClippedSum:
    """How `module`'s clipped gradients are summed; `auto` takes the quickest that suits the module."""
    if way not in WAYS:
        raise ConfigError(f"per_example = {way!r}: must be one of {', '.join(WAYS)}")
    if way == "auto":
        way = quickest(module)
    made = {"ghost": _ghost, "torch_func": _torch_func, "one_by_one": _one_by_one}
    return made[way](module, clip_norm)


def never_stopping(total: ClippedSum, module: nn.Module, clip_norm: float) -> ClippedSum:
    """The clipped sum, where an example that a module cannot take adds zero, as one with a NaN gradient does.

    For modules that were tried on made-up examples: what fails after that is an example's doing, and whether a run goes
    on must not tell that it was there.
    """
    alone = _one_by_one(module, clip_norm, Exception)

    def clipped(inputs: Tensor, targets: Tensor, draws: ForwardDraws | None = None) -> list[Tensor]:
        with suppress(Exception):
            return total(inputs, targets, draws)
        module.zero_grad(set_to_none=True)
        return alone(inputs, targets, draws)

    return clipped


def _gradient_of_one(module: nn.Module, one_input: Tensor, one_target: Tensor) -> list[Tensor]:
    """The gradient of one example's loss, by parameter; inputs and targets of length 1."""
    loss = cross_entropy(module(one_input), one_target, reduction="sum")
    return list(torch.autograd.grad(loss, list(module.parameters()), allow_unused=True, materialize_grads=True))


def _one_by_one(module: nn.Module, clip_norm: float, *passed_over: type[Exception]) -> ClippedSum:
    def clipped(inputs: Tensor, targets: Tensor, draws: ForwardDraws | None = None) -> list[Tensor]:
        sums = [torch.zeros_like(parameter) for parameter in module.parameters()]
        for i in range(len(inputs)):
            with suppress(*passed_over):
                with drawing(draws and draws.only(i)):
                    gradient = _gradient_of_one(module, inputs[i : i + 1], targets[i : i + 1])
                for summed, part in zip(sums, _clip_stored([g.unsqueeze(0) for g in gradient], clip_norm), strict=True):
                    summed += part
        return sums

    return clipped


def _torch_func(module: nn.Module, clip_norm: float) -> ClippedSum:
    names = [name for name, _ in module.named_parameters()]

    def loss(parameters: dict[str, Any], one_input: Tensor, one_target: Tensor) -> Tensor:
        scores = functional_call(module, parameters, (one_input.unsqueeze(0),))
        return cross_entropy(scores, one_target.unsqueeze(0))

    each = vmap(grad(loss), in_dims=(None, 0, 0), randomness="different")

    def clipped(inputs: Tensor, targets: Tensor, draws: ForwardDraws | None = None) -> list[Tensor]:
        parameters = {name: parameter.detach() for name, parameter in module.named_parameters()}
        with drawing(draws):
            gradients = each(parameters, inputs, targets)
        return _clip_stored([gradients[name] for name in names], clip_norm)

    return clipped


def _clip_stored(gradients: list[Tensor], clip_norm: float) -> list[Tensor]:
    """Clip and sum gradients of shape (examples, …)."""
    flat = [gradient.flatten(1) for gradient in gradients]
    factors = _factors(sum((f.square().sum(1) for f in flat), flat[0].new_zeros(len(flat[0]))), clip_norm)
    flat = [counted(f, factors) for f in flat]
    return [(factors @ f).reshape(g.shape[1:]) for f, g in zip(flat, gradients, strict=True)]


def _factors(squared_norms: Tensor, clip_norm: float) -> Tensor:
    """min(1, clip_norm/norm) for each example; 0 for one whose gradient is NaN, infinite or too long to square."""
    factors = clip_norm / squared_norms.sqrt().clamp(min=clip_norm)
    return torch.where(squared_norms.isfinite(), factors, torch.zeros_like(factors))


def quickest(module: nn.Module) -> str:
    """`ghost` where it is possible, else `torch_func`: `benchmarks/dp_sgd.py` measures them."""
    return "ghost" if _unsuited_to_ghost(module) is None else "torch_func"


def _unsuited_to_ghost(module: nn.Module) -> str | None:
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


def _ghost(module: nn.Module, clip_norm: float) -> ClippedSum:
    unsuited = _unsuited_to_ghost(module)
    if unsuited is not None:
        raise ConfigError(f"per_example = 'ghost': not for the layer {unsuited}; use 'torch_func'")
    layers: list[Any] = [layer for layer in module.modules() if next(layer.parameters(recurse=False), None) is not None]
    seen: dict[nn.Module, tuple[Tensor, Tensor]] = {}

    def remember(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if layer in seen:
            raise ConfigError(
                f"per_example = 'ghost': {type(layer).__name__} is used twice in one pass; use 'torch_func'"
            )
        seen[layer] = (inputs[0].detach(), output)

    def clipped(inputs: Tensor, targets: Tensor, draws: ForwardDraws | None = None) -> list[Tensor]:
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
        sums: dict[int, Tensor] = {}
        for layer, trace in zip(used, traces, strict=True):
            trace.keep_counted(factors)
            sums[id(layer.weight)] = trace.weighted_sum(factors).reshape(layer.weight.shape)
            if layer.bias is not None:
                sums[id(layer.bias)] = (factors @ trace.bias).reshape(layer.bias.shape)
        seen.clear()
        return [sums.get(id(parameter), torch.zeros_like(parameter)) for parameter in module.parameters()]

    return clipped


def build_network(
    name: str, params: dict[str, Any], input_shape: Shape, n_classes: int, random_state: int
) -> nn.Module:
    """The network, initialised from the seed alone and checked to be fit for per-example gradients."""
    if "." not in name and name not in FOR_DP_SGD:
        known = nearest(name, FOR_DP_SGD)
        raise ConfigError(f"model = {name!r}: no such network; {known}, or a dotted path to a Module")

    def build() -> nn.Module:
        if "." not in name:
            return FOR_DP_SGD[name](input_shape, n_classes, **params)
        cls: Any = import_dotted(name, "model")
        return cls(**params)

    try:
        network = seeded(build, random_state)
    except TypeError as error:
        raise ConfigError(f"model_params: {error}") from None
    except RuntimeError as error:  # a layer that the images are too small for
        raise ConfigError(f"model = {name!r}: not for inputs of shape {input_shape}: {first_line(error)}") from None
    if not isinstance(network, nn.Module):
        raise ConfigError(f"model = {name!r}: not a nn.Module")
    for layer_name, layer in network.named_modules():
        if isinstance(layer, _BatchNorm):  # clipping one example's gradient would bound nobody's influence
            raise ConfigError(
                f"model: layer {layer_name or 'itself'} is a {type(layer).__name__}, whose output for one example "
                "depends on the others in the batch, so clipping gradients one by one would protect nobody; "
                f"use torch.nn.GroupNorm(groups, {layer.num_features}) instead"
            )
    if next(network.parameters(), None) is None:
        raise ConfigError("model: has no parameters to learn")
    try:
        with torch.no_grad():
            shape = tuple(network(torch.zeros(2, *input_shape)).shape)
    except (RuntimeError, ValueError, TypeError) as error:
        raise ConfigError(f"model = {name!r}: not for inputs of shape {input_shape}: {first_line(error)}") from None
    if shape != (2, n_classes):
        raise ConfigError(f"model = {name!r}: gives shape {shape} for two examples; needed is (2, {n_classes})")
    return network


def way_for(way: str, build: Build, input_shape: Sequence[int], n_classes: int) -> str:
    """The way of summing clipped gradients that `build`'s network gets: `way`, or the quickest right one if "auto".

    ConfigError if the network is unfit for all of them, or for the one that was named.
    """
    inputs, targets = made_up(input_shape, n_classes)
    _refuse_memory(build(), inputs, targets)
    if way != "auto":
        wrong = difference(way, build, inputs, targets)
        if wrong is not None:
            raise ConfigError(f"per_example = {way!r}: not for this network, {wrong}; use 'auto'")
        return way
    first = quickest(build())
    wrong = difference(first, build, inputs, targets)
    if wrong is None:
        return first
    slower = "torch_func" if difference("torch_func", build, inputs, targets) is None else "one_by_one"
    warnings.warn(
        f"model: {first} does not sum the clipped gradients of this network rightly ({wrong}); takes {slower}, "
        "which is slower",
        stacklevel=2,
    )
    return slower


def made_up(input_shape: Sequence[int], n_classes: int) -> tuple[Tensor, Tensor]:
    """A few examples that belong to nobody."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(_EXAMPLES, *input_shape, generator=generator), torch.arange(_EXAMPLES) % n_classes


def _refuse_memory(network: nn.Module, inputs: Tensor, targets: Tensor) -> None:
    """ConfigError if a forward pass changes a buffer or a weight, or an example's gradient depends on earlier ones."""
    network.train()
    for name, parameter in network.named_parameters():
        if not parameter.requires_grad:
            raise ConfigError(f"model: {name} does not require gradients; what is fixed goes under preprocessing")
    before = _state(network)
    try:
        first = _gradient(network, inputs, targets)
        for scale in (0.0, 1.0, 100.0):
            network(inputs * scale)
        again = _gradient(network, inputs, targets)
    except Exception as error:
        raise ConfigError(f"model: cannot take one example by itself ({first_line(error)})") from None
    after = _state(network)
    for name in before | after:
        one, other = (state.get(name, torch.zeros(0, 0)) for state in (before, after))
        if one.shape != other.shape or not bool(((one == other) | ((one != one) & (other != other))).all()):
            raise ConfigError(
                f"model: {name} changes in a forward pass, so it would tell of private examples without any noise; "
                "use layers without running statistics (track_running_stats=False, GroupNorm)"
            )
    if not _norm([a - b for a, b in zip(first, again, strict=True)]) <= _ROUNDING * _norm(first):
        raise ConfigError("model: what it gives for an example depends on examples that it saw before")


def difference(way: str, build: Build, inputs: Tensor, targets: Tensor) -> str | None:
    """In what the sum of clipped gradients by `way` differs from the plain loop's, or None.

    With weights moved off where they begin, as a layer of zeros would hide the layers before it; with every example
    clipped and with none; of several examples and of one; with the same draws, such as dropout's masks.
    """
    draws = _made_up_draws(len(inputs))
    alone, generator = build().train(), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in alone.parameters():
            fan_in = max(1, parameter[0].numel()) if parameter.ndim > 1 else 100
            parameter.add_(torch.randn(parameter.shape, generator=generator) / math.sqrt(fan_in))
    weights = alone.state_dict()
    norms = [_norm(_gradient(alone, inputs, targets, i)) for i in range(len(inputs))]
    if not all(0 < norm < math.inf for norm in norms):
        return "gradients of made-up examples are zero or not finite"
    for clip_norm in (0.5 * min(norms), 2 * max(norms)):
        loop = clipped_sum("one_by_one", alone, clip_norm)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # other packages' hints
                network = build().train()
                network.load_state_dict(weights)
                total = clipped_sum(way, network, clip_norm)
                for n in (len(inputs), 1):
                    given = inputs[:n], targets[:n], draws.some(slice(n))
                    ours, theirs = total(*given), loop(*given)
                    if not _norm([a - b for a, b in zip(ours, theirs, strict=True)]) <= _SAME * clip_norm:
                        return "its sum is not that of a loop over the examples"
        except Exception as error:
            return first_line(error)
    return None


class Buffers:
    """A network's buffers as they were: whatever a private example does to them is undone."""

    def __init__(self, network: nn.Module) -> None:
        self._network = network
        self._kept = {name: buffer.clone() for name, buffer in network.named_buffers()}

    def put_back(self) -> None:
        with torch.no_grad():
            for name, buffer in self._network.named_buffers():
                buffer.copy_(self._kept[name])


def _gradient(network: nn.Module, inputs: Tensor, targets: Tensor, i: int = 0) -> list[Tensor]:
    """One example's, with the same random draws every time."""
    with _made_up_draws(len(inputs)).only(i).active():
        return _gradient_of_one(network, inputs[i : i + 1], targets[i : i + 1])


def _made_up_draws(n: int) -> ForwardDraws:
    return ForwardDraws(bytes(KEY_BYTES), [bytes([i]) for i in range(n)])


def _norm(gradient: Sequence[Tensor]) -> float:
    return math.sqrt(sum(float(part.double().square().sum()) for part in gradient))


def _state(network: nn.Module) -> dict[str, Tensor]:
    named = [*network.named_parameters(), *network.named_buffers()]
    return {name: tensor.detach().clone() for name, tensor in named}
