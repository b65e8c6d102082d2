"""What a network that is trained by DP-SGD sees of each example, by itself, and which of its layers are trained."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pate.baselines.pca import project
from pate.boundary import worded_by_us
from pate.errors import ConfigError
from pate.features import Features, build_features
from pate.networks.tensors import example_tensor

_CONSTANT = 1e-6
BLOCK = 1024
"""Examples that go through a network at once."""

Watched = Mapping[str, tuple[torch.Tensor, torch.Tensor]]
"""Inputs and targets by name."""


def transforms_of(prepare: str | Sequence[str | dict[str, Any]]) -> Features:
    """Public features, fitted to nothing."""
    given = [prepare] if isinstance(prepare, str) else prepare
    steps = [{"name": step} if isinstance(step, str) else step for step in given]
    if any("name" not in step for step in steps):
        raise ConfigError("prepare: each of its features is a name, or has `name` and `params`")
    return build_features(steps, "prepare")


def inputs_of(X: NDArray, features: str, groups: int, fixed: Mapping[str, NDArray]) -> torch.Tensor:
    """Prepared examples as tensors: projected, scattered or as they are; `fixed` is what was found beforehand."""
    if features == "pca":
        return torch.from_numpy(project(X, fixed["pca"]))
    if features == "scattering":
        from pate.features.scattering import Scattering, group_normalise

        try:
            scattered = Scattering().transform(X)
            if "channels" not in fixed:
                return torch.from_numpy(group_normalise(scattered, groups))
            mean, scale = fixed["channels"]
            return torch.from_numpy((scattered - mean[:, None, None]) / scale[:, None, None])
        except (ValueError, RuntimeError) as error:
            if not worded_by_us(error):
                raise
            raise ConfigError(f"features = 'scattering': {error}") from None
    return example_tensor(X, memory_format=torch.contiguous_format)


def public_channels(X_public: NDArray) -> NDArray[np.float32]:
    """Mean and standard deviation of each channel of the scattered public examples; 1 where a channel is constant."""
    from pate.features.scattering import Scattering

    scattered = Scattering().transform(X_public)
    mean, scale = scattered.mean(axis=(0, 2, 3)), scattered.std(axis=(0, 2, 3))
    return np.stack([mean, np.where(scale > _CONSTANT, scale, 1)]).astype(np.float32)


def trained_part(network: torch.nn.Module, frozen: int) -> torch.nn.Module:
    """The network, or what comes after its frozen layers."""
    if not frozen:
        return network
    if not isinstance(network, torch.nn.Sequential) or next(network[frozen:].parameters(), None) is None:
        raise ConfigError(
            f"frozen = {frozen}: is for a chain of layers (torch.nn.Sequential), and some with weights must be left"
        )
    return network[frozen:]


def through_frozen(network: torch.nn.Module, frozen: int, inputs: torch.Tensor) -> torch.Tensor:
    """What the layers that are trained see; the frozen ones take no gradient any more, and each example goes through
    them once. One that they fail for becomes no numbers: its gradient counts as zero, and it stops nothing."""
    trained_part(network, frozen)
    if not frozen:
        return inputs
    assert isinstance(network, torch.nn.Sequential)
    body = network[:frozen].eval().requires_grad_(False)
    device = next(network.parameters()).device
    with torch.no_grad():
        like = body(torch.zeros(1, *inputs.shape[1:], device=device))
        return torch.cat([_block_through(body, block.to(device), like).cpu() for block in inputs.split(BLOCK)])


def _block_through(body: torch.nn.Module, block: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    try:
        return body(block)
    except Exception:
        found = like.new_full((len(block), *like.shape[1:]), math.nan)
        for place in range(len(block)):
            with suppress(Exception):
                found[place] = body(block[place : place + 1])[0]
        return found


def refuse_memory_of_frozen(network: torch.nn.Module, frozen: int, inputs: torch.Tensor) -> None:
    """ConfigError where frozen layers keep anything of what went through them: it would be released without noise."""
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    through_frozen(network, frozen, inputs)
    for name, tensor in network.state_dict().items():
        if name not in before or not torch.equal(tensor, before[name]):
            raise ConfigError(f"model: {name} changes in a forward pass, though its layer is frozen; use another layer")


def held(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """On the device if it has room for all of it; else it stays where it is, and lots are moved there."""
    try:
        return tensor.to(device)
    except torch.OutOfMemoryError:
        return tensor


def shares_right(network: torch.nn.Module, watched: Watched, device: torch.device) -> dict[str, float]:
    """Of each name's examples; the network goes on training afterwards."""
    network.eval()
    with torch.no_grad():
        right = {
            name: torch.cat([network(block.to(device)).argmax(1).cpu() for block in inputs.split(BLOCK)]) == targets
            for name, (inputs, targets) in watched.items()
        }
    network.train()
    return {name: float(found.double().mean()) for name, found in right.items()}
