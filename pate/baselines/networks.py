"""Networks for DP-SGD, by short name or dotted path, and what makes a network unfit for it."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from pate.components.registry import import_dotted, nearest
from pate.errors import ConfigError
from pate.networks.architectures import FOR_DP_SGD, Shape, seeded


def build_network(
    name: str, params: dict[str, Any], input_shape: Shape, n_classes: int, random_state: int
) -> torch.nn.Module:
    """The network, initialised from the seed alone and checked to be fit for per-example gradients."""
    if "." not in name and name not in FOR_DP_SGD:
        known = nearest(name, FOR_DP_SGD)
        raise ConfigError(f"model = {name!r}: no such network; {known}, or a dotted path to a Module")

    def build() -> torch.nn.Module:
        if "." not in name:
            return FOR_DP_SGD[name](input_shape, n_classes, **params)
        cls: Any = import_dotted(name, "model")
        return cls(**params)

    try:
        network = seeded(build, random_state)
    except TypeError as error:
        raise ConfigError(f"model_params: {error}") from None
    except RuntimeError as error:  # a layer that the images are too small for
        raise ConfigError(f"model = {name!r}: not for inputs of shape {input_shape}: {_first_line(error)}") from None
    if not isinstance(network, torch.nn.Module):
        raise ConfigError(f"model = {name!r}: not a torch.nn.Module")
    refuse_mixing_layers(network)
    _check_output(network, input_shape, n_classes, name)
    return network


def refuse_mixing_layers(network: torch.nn.Module) -> None:
    """Batch norm mixes the examples of a batch: clipping one example's gradient then bounds nobody's influence."""
    for name, layer in network.named_modules():
        if isinstance(layer, _BatchNorm):
            raise ConfigError(
                f"model: layer {name or 'itself'} is a {type(layer).__name__}, whose output for one example "
                "depends on the others in the batch, so clipping gradients one by one would protect nobody; "
                f"use torch.nn.GroupNorm(groups, {layer.num_features}) instead"
            )
    if next(network.parameters(), None) is None:
        raise ConfigError("model: has no parameters to learn")


def _check_output(network: torch.nn.Module, input_shape: Shape, n_classes: int, name: str) -> None:
    try:
        with torch.no_grad():
            shape = tuple(network(torch.zeros(2, *input_shape)).shape)
    except (RuntimeError, ValueError, TypeError) as error:
        raise ConfigError(f"model = {name!r}: not for inputs of shape {input_shape}: {_first_line(error)}") from None
    if shape != (2, n_classes):
        raise ConfigError(f"model = {name!r}: gives shape {shape} for two examples; needed is (2, {n_classes})")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
