"""Networks for DP-SGD, by short name or dotted path, and what makes a network unfit for it."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from pate.errors import ConfigError
from pate.naming import import_dotted, nearest

Shape = tuple[int, ...]


def build_network(
    name: str, params: dict[str, Any], input_shape: Shape, n_classes: int, random_state: int
) -> torch.nn.Module:
    """The network, initialised from the seed alone and checked to be fit for per-example gradients."""
    if "." not in name and name not in _OWN:
        raise ConfigError(f"model = {name!r}: no such network; {nearest(name, _OWN)}, or a dotted path to a Module")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(random_state)
        try:
            if "." in name:
                cls: Any = import_dotted(name, "model")
                network = cls(**params)
            else:
                network = _OWN[name](input_shape, n_classes, **params)
        except TypeError as error:
            raise ConfigError(f"model_params: {error}") from None
        except RuntimeError as error:  # a layer that the images are too small for
            raise ConfigError(
                f"model = {name!r}: not for inputs of shape {input_shape}: {_first_line(error)}"
            ) from None
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


def _activation(name: str, temperature: float) -> torch.nn.Module:
    """relu, or a tempered sigmoid 2/(1 + e^−2Tx) − 1 = tanh(Tx) (Papernot et al. 2021); T = 1 is tanh."""
    if name == "relu":
        return nn.ReLU()
    if name != "tanh":
        raise ConfigError(f"model_params.activation = {name!r}: must be 'relu' or 'tanh'")
    return TemperedTanh(temperature)


class TemperedTanh(nn.Module):
    """tanh(temperature·x): bounded activations keep gradients small, so that clipping takes less away."""

    def __init__(self, temperature: float) -> None:
        super().__init__()
        self.temperature = temperature

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x if self.temperature == 1.0 else self.temperature * x)


def _linear(input_shape: Shape, n_classes: int) -> torch.nn.Module:
    """One layer, beginning at zero: the loss is convex, so no seed is needed."""
    layer = nn.Linear(math.prod(input_shape), n_classes)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return nn.Sequential(nn.Flatten(), layer)


def _mlp(
    input_shape: Shape, n_classes: int, hidden: int = 1000, activation: str = "relu", temperature: float = 1.0
) -> torch.nn.Module:
    """One hidden layer: with PCA to 60 components before it, the network of Abadi et al. 2016 for MNIST."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(input_shape), hidden),
        _activation(activation, temperature),
        nn.Linear(hidden, n_classes),
    )


def _cnn(
    input_shape: Shape,
    n_classes: int,
    channels: int = 16,
    hidden: int = 32,
    activation: str = "tanh",
    temperature: float = 1.0,
) -> torch.nn.Module:
    """Two convolutions and a hidden layer: 26,010 parameters on MNIST (Papernot et al. 2021)."""
    if len(input_shape) != 3:
        raise ConfigError(f"model = 'cnn': needs images, not inputs of shape {input_shape}")

    def act() -> nn.Module:
        return _activation(activation, temperature)

    body = nn.Sequential(
        nn.Conv2d(input_shape[0], channels, 8, stride=2, padding=3), act(), nn.MaxPool2d(2, 1),
        nn.Conv2d(channels, 2 * channels, 4, stride=2), act(), nn.MaxPool2d(2, 1), nn.Flatten(),
    )  # fmt: skip
    return _with_head(body, input_shape, [(hidden, act), (n_classes, None)])


def _deep_cnn(
    input_shape: Shape, n_classes: int, channels: int = 32, hidden: int = 128, activation: str = "tanh"
) -> torch.nn.Module:
    """Three pairs of 3×3 convolutions: 550,570 parameters on CIFAR-10 (Papernot et al. 2021)."""
    if len(input_shape) != 3:
        raise ConfigError(f"model = 'deep_cnn': needs images, not inputs of shape {input_shape}")

    def act() -> nn.Module:
        return _activation(activation, 1.0)

    layers: list[nn.Module] = []
    planes = input_shape[0]
    for width in (channels, 2 * channels, 4 * channels):
        layers += [nn.Conv2d(planes, width, 3, padding=1), act(), nn.Conv2d(width, width, 3, padding=1), act()]
        layers.append(nn.MaxPool2d(2))
        planes = width
    return _with_head(nn.Sequential(*layers, nn.Flatten()), input_shape, [(hidden, act), (n_classes, None)])


def _with_head(body: Any, input_shape: Shape, sizes: list[tuple[int, Any]]) -> torch.nn.Module:
    with torch.no_grad():
        width = body(torch.zeros(1, *input_shape)).shape[1]
    layers = list(body)
    for size, act in sizes:
        layers.append(nn.Linear(width, size))
        if act is not None:
            layers.append(act())
        width = size
    return nn.Sequential(*layers)


_OWN: dict[str, Any] = {"linear": _linear, "mlp": _mlp, "cnn": _cnn, "deep_cnn": _deep_cnn}
