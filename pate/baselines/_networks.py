"""Networks for DP-SGD: built by short name or dotted path, and tried on made-up examples before they see a private one.

The proof of DP-SGD needs that an example's gradient is a function of that example and the weights, and that it is
clipped as a whole. A network that somebody else wrote can break both: by what it remembers of a forward pass (running
statistics would also be released, without noise), by mixing the examples of a batch, or by folding an example's pieces
into the batch axis, where ghost clipping would clip each of them. Nothing here depends on private data.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from pate.baselines._per_example import clipped_sum, gradient_of_one, quickest
from pate.baselines.sampling import KEY_BYTES, ForwardDraws
from pate.components._registry import import_dotted, nearest
from pate.errors import ConfigError, first_line
from pate.networks._architectures import FOR_DP_SGD, Shape, seeded

Build = Callable[[], nn.Module]

_EXAMPLES = 4
_ROUNDING = 1e-5
_SAME = 1e-3  # of the clipping norm per example: far above rounding, far below an example that counts twice


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
    refuse_memory(build(), inputs, targets)
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


def made_up(input_shape: Sequence[int], n_classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A few examples that belong to nobody."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(_EXAMPLES, *input_shape, generator=generator), torch.arange(_EXAMPLES) % n_classes


def refuse_memory(network: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> None:
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
    for name in [*before, *(name for name in after if name not in before)]:
        if name not in before or name not in after or not _equal(before[name], after[name]):
            raise ConfigError(
                f"model: {name} changes in a forward pass, so it would tell of private examples without any noise; "
                "use layers without running statistics (track_running_stats=False, GroupNorm)"
            )
    if not _norm([a - b for a, b in zip(first, again, strict=True)]) <= _ROUNDING * _norm(first):
        raise ConfigError("model: what it gives for an example depends on examples that it saw before")


def difference(way: str, build: Build, inputs: torch.Tensor, targets: torch.Tensor) -> str | None:
    """In what the sum of clipped gradients by `way` differs from the plain loop's, or None.

    With weights moved off where they begin, as a layer of zeros would hide the layers before it; with every example
    clipped and with none; of several examples and of one; with the same draws, such as dropout's masks.
    """
    draws = _made_up_draws(len(inputs))
    alone = _moved(build())
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


def _moved(network: nn.Module) -> nn.Module:
    """The network, in training mode, after its weights were moved a little."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in network.parameters():
            fan_in = max(1, parameter[0].numel()) if parameter.ndim > 1 else 100
            parameter.add_(torch.randn(parameter.shape, generator=generator) / math.sqrt(fan_in))
    return network.train()


def _gradient(network: nn.Module, inputs: torch.Tensor, targets: torch.Tensor, i: int = 0) -> list[torch.Tensor]:
    """One example's, with the same random draws every time."""
    with _made_up_draws(len(inputs)).only(i).active():
        return gradient_of_one(network, inputs[i : i + 1], targets[i : i + 1])


def _made_up_draws(n: int) -> ForwardDraws:
    return ForwardDraws(bytes(KEY_BYTES), [bytes([i]) for i in range(n)])


def _norm(gradient: Sequence[torch.Tensor]) -> float:
    return math.sqrt(sum(float(part.double().square().sum()) for part in gradient))


def _state(network: nn.Module) -> dict[str, torch.Tensor]:
    named = [*network.named_parameters(), *network.named_buffers()]
    return {name: tensor.detach().clone() for name, tensor in named}


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and bool(((one == other) | ((one != one) & (other != other))).all())
