"""From arrays to tensors, and the device to compute on: in one place for teachers, students and baselines."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from pate.errors import ConfigError


def resolve_device(device: str, key: str = "device") -> torch.device:
    """'auto' is CUDA where there is one: in a worker, the GPU that Ray gave it. `key` is where the config names it."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.device(device)
    except RuntimeError:
        raise ConfigError(f"{key} = {device!r}: use auto, cpu or cuda") from None


def device_anew(device: str) -> str:
    """The device of something that was trained elsewhere, and may not be here: unless it is the CPU, 'auto'."""
    return "cpu" if device == "cpu" else "auto"


def example_tensor(
    X: ArrayLike,
    device: torch.device | str = "cpu",
    *,
    standard: tuple[NDArray[np.float32], NDArray[np.float32]] | None = None,
    images: bool = True,
    memory_format: torch.memory_format = torch.channels_last,
) -> Tensor:
    """Examples as float32 on `device`, with `standard` (mean, scale) less the mean and divided by the scale.

    `images` says that three or four dimensions are images (count × height × width, or × channels): they become planes,
    count × channels × height × width. In memory their channels come last, which is fastest on a CPU.
    """
    tensor = torch.from_numpy(np.require(X, np.float32, ["C", "W"]))  # arrays from Ray are read-only: copied
    if standard is not None:
        mean, scale = map(torch.from_numpy, standard)
        tensor = (tensor - mean) / scale
    if images and tensor.ndim in (3, 4):
        tensor = tensor.unsqueeze(1) if tensor.ndim == 3 else tensor.permute(0, 3, 1, 2)
        tensor = tensor.contiguous(memory_format=memory_format)
    return tensor.to(device)
