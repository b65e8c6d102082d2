"""A network whose own normalisation layer keeps running means of what it sees: they are published, and not private."""

from __future__ import annotations

import torch
from torch import nn


class OwnNorm(nn.Module):
    """Batch normalisation by hand, which no check by type can see: the mean of every lot goes into a buffer."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(size))

    def forward(self, X: torch.Tensor) -> torch.Tensor:
        if self.training:
            with torch.no_grad():
                self.running_mean.mul_(0.9).add_(0.1 * X.mean(0))
        return X - self.running_mean


class LeakyNet(nn.Sequential):
    def __init__(self, size: int, n_classes: int) -> None:
        super().__init__(OwnNorm(size), nn.Linear(size, n_classes))
