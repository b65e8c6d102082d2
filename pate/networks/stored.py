"""Stored weights, checked against the network they should belong to before that network takes any memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn


def check_weights(build: Callable[[], nn.Module], weights: Mapping[str, Tensor]) -> None:
    """Raise ValueError unless `weights` are just what the module that `build` makes would hold.

    Sizes come from a file that anybody may have written. So the module is built without memory behind it: a layer
    of 10⁹ units is refused because the file does not hold it, not because memory ran out.
    """
    with torch.device("meta"):
        expected = _shapes(build().state_dict())
    found = _shapes(weights)
    if found != expected:
        name = sorted(dict(found.items() ^ expected.items()))[0]
        raise ValueError(f"tensor {name!r} is {found.get(name)}; by the parameters it would be {expected.get(name)}")


def check_values(weights: Mapping[str, Tensor]) -> None:
    """Raise ValueError for a tensor without elements (its sizes would cost a file nothing), or with NaN or infinity."""
    for name, tensor in weights.items():
        if tensor.numel() == 0:
            raise ValueError(f"tensor {name!r} is empty")
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise ValueError(f"tensor {name!r} holds NaN or infinity")


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    return {name: f"{tuple(tensor.shape)} of {tensor.dtype}" for name, tensor in tensors.items()}
