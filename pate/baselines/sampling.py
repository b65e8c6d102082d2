"""Where DP-SGD's lots and noise come from: the operating system's entropy, or a generator on a GPU that it keys.

A GPU that waits for noise from elsewhere is idle most of the time, so there both are drawn on the device: torch's
generator for CUDA is Philox4x32-10, which turns a key and a counter into bits. Every step has a fresh key of 63 bits
from the operating system, so nothing is drawn from a seed that anybody knows or that was used before. Philox passes the
usual statistical tests but was not made to withstand an adversary who sees its output; `draws: os` takes everything
from the operating system on any device.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch

from pate.errors import ConfigError
from pate.noise.continuous import Entropy, bernoulli, gaussians

WHERE = ("auto", "os", "device")
_KEY_BYTES = 8


class LotSampler(Protocol):
    """One step's randomness."""

    def lot(self, n: int, rate: float) -> torch.Tensor:
        """Rows of a lot: each of `n` with probability `rate`, independently of the others."""

    def gaussians(self, n: int) -> torch.Tensor:
        """n standard normal draws, each half the sum of four (see `pate.noise.continuous`), in float64."""


def draws_for(where: str, device: torch.device, entropy: Entropy) -> LotSampler:
    """`os`, `device`, or `auto`: on the device where that is a GPU."""
    if where not in WHERE:
        raise ConfigError(f"draws = {where!r}: must be one of {', '.join(WHERE)}")
    if where == "device" or (where == "auto" and device.type == "cuda"):
        return OnDevice(device, entropy)
    return FromSystem(device, entropy)


class FromSystem:
    """Every bit from `entropy`, moved to the device."""

    def __init__(self, device: torch.device, entropy: Entropy) -> None:
        self._device, self._entropy = device, entropy

    def lot(self, n: int, rate: float) -> torch.Tensor:
        return torch.from_numpy(np.flatnonzero(bernoulli(n, rate, self._entropy)))

    def gaussians(self, n: int) -> torch.Tensor:
        return torch.from_numpy(gaussians(n, self._entropy)).to(self._device)


class OnDevice:
    """Drawn on the device, each call by a key of its own from `entropy`."""

    def __init__(self, device: torch.device, entropy: Entropy) -> None:
        self._device, self._entropy = device, entropy
        self._generator = torch.Generator(device=device)

    def lot(self, n: int, rate: float) -> torch.Tensor:
        uniform = torch.rand(n, generator=self._keyed(), device=self._device, dtype=torch.float64)
        return (uniform < rate).nonzero().squeeze(1)

    def gaussians(self, n: int) -> torch.Tensor:
        four = torch.randn(4, n, generator=self._keyed(), device=self._device, dtype=torch.float64)
        return 0.5 * four.sum(0)

    def _keyed(self) -> torch.Generator:
        return self._generator.manual_seed(int.from_bytes(self._entropy(_KEY_BYTES), "little") >> 1)
