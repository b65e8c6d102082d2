"""How much of a GPU's memory training takes, estimated without a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

_CONTEXT = 800_000_000  # what CUDA and its libraries take in every process
_RECORDS = 1_000_000_000  # for the records of a stack, whose number is not asked for: it is private
_COPIES_OF_WEIGHTS = 5  # weights, gradients, Adam's two moments, and one at work
_COPIES_OF_OUTPUTS = 3  # kept for the way back, their gradients, and room for the convolutions
_BYTES = 4


def bytes_to_train(build: Callable[[], nn.Module], shape: Sequence[int], batch: int, stack: int) -> int:
    """Bytes for `stack` networks trained at once by Adam, `batch` examples of `shape` each. More than it will be."""
    with torch.device("meta"):
        network = build()
        weights = sum(weight.numel() for weight in network.parameters())
        outputs = [0]

        def count(_module: nn.Module, _given: Any, made: Any) -> None:
            outputs[0] += made.numel() if isinstance(made, torch.Tensor) else 0

        for module in network.modules():
            module.register_forward_hook(count)
        network.eval()(torch.empty(batch, *_planes(shape)))
    each = _COPIES_OF_WEIGHTS * weights + _COPIES_OF_OUTPUTS * outputs[0]
    return _CONTEXT + _RECORDS + stack * _BYTES * each


def _planes(shape: Sequence[int]) -> tuple[int, ...]:
    """The shape of an example as a tensor, channels first."""
    if len(shape) == 2:
        return (1, *shape)
    return (shape[2], *shape[:2]) if len(shape) == 3 else tuple(shape)
