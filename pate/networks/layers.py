"""Small networks for images and for tables, sized for a CPU."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

_SMALLEST_IMAGE = 8  # pixels a side: below that there is nothing to convolve
_SLOPE = 0.1


def looks_like_images(shape: list[int]) -> bool:
    """Whether examples of this shape go through convolutions: height × width (× channels), each side ≥ 8."""
    return len(shape) in (2, 3) and min(shape[:2]) >= _SMALLEST_IMAGE


class Classifier(nn.Module):
    """Features, then one linear layer of logits. `normed` says how the layers are normalised: 'batch' or 'weight'."""

    def __init__(self, shape: list[int], n_classes: int, channels: int, hidden: int, normed: str) -> None:
        super().__init__()
        if looks_like_images(shape):
            self.features = _convolutions(shape, channels, hidden, normed)
        else:
            self.features = _dense(math.prod(shape), hidden, normed)
        last = nn.Linear(hidden, n_classes)
        self.logits = weight_norm(last) if normed == "weight" else last

    def forward(self, x: Tensor) -> Tensor:
        return self.logits(self.features(x))


class Generator(nn.Module):
    """Noise to examples: transposed convolutions up to the image's size, or a dense net for a table.

    Values of images are kept between `low` and `high`, the range of the real ones.
    """

    def __init__(self, shape: list[int], noise: int, channels: int, hidden: int, low: float, high: float) -> None:
        super().__init__()
        self.noise = noise
        self.size: list[int] | None = None
        if not looks_like_images(shape):
            layers = [nn.Linear(noise, hidden), nn.BatchNorm1d(hidden), nn.ReLU()]
            layers += [nn.Linear(hidden, hidden), nn.BatchNorm1d(hidden), nn.ReLU()]
            self.body = nn.Sequential(*layers, nn.Linear(hidden, math.prod(shape)), nn.Unflatten(1, tuple(shape)))
            return
        self.size, self.low, self.high = shape[:2], low, high
        rows, columns = (-(-side // 4) for side in shape[:2])
        self.body = nn.Sequential(
            nn.Linear(noise, 4 * channels * rows * columns), nn.Unflatten(1, (4 * channels, rows, columns)),
            nn.BatchNorm2d(4 * channels), nn.ReLU(),
            nn.ConvTranspose2d(4 * channels, 2 * channels, 4, 2, 1), nn.BatchNorm2d(2 * channels), nn.ReLU(),
            nn.ConvTranspose2d(2 * channels, _planes(shape), 4, 2, 1), nn.Sigmoid(),
        )  # fmt: skip

    def forward(self, z: Tensor) -> Tensor:
        made = self.body(z)
        if self.size is None:
            return made
        return self.low + (self.high - self.low) * made[:, :, : self.size[0], : self.size[1]]


def _planes(shape: list[int]) -> int:
    return shape[2] if len(shape) == 3 else 1


def _convolutions(shape: list[int], channels: int, hidden: int, normed: str) -> nn.Sequential:
    """Three convolutions, the first two with stride 2 (pooling costs a CPU more), then a dense layer."""
    kinds = [(_planes(shape), channels, 5, 2), (channels, 2 * channels, 3, 2), (2 * channels, 4 * channels, 3, 1)]
    layers: list[nn.Module] = []
    for before, after, size, stride in kinds:
        layers += _normed(nn.Conv2d(before, after, size, stride, size // 2), nn.BatchNorm2d(after), normed)
        layers += [nn.LeakyReLU(_SLOPE)]
    flat = 4 * channels * math.prod(-(-side // 4) for side in shape[:2])
    layers += [nn.Flatten(), *_normed(nn.Linear(flat, hidden), nn.BatchNorm1d(hidden), normed), nn.LeakyReLU(_SLOPE)]
    return nn.Sequential(*layers)


def _dense(width: int, hidden: int, normed: str) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Flatten()]
    for before in (width, hidden):
        layers += _normed(nn.Linear(before, hidden), nn.BatchNorm1d(hidden), normed)
        layers += [nn.LeakyReLU(_SLOPE)]
    return nn.Sequential(*layers)


def _normed(layer: nn.Module, batch_norm: nn.Module, normed: str) -> list[nn.Module]:
    return [layer, batch_norm] if normed == "batch" else [weight_norm(layer)]


def example_tensor(X: object, mean: Tensor, scale: Tensor) -> Tensor:
    """Standardised float32; images get their channels first in shape and last in memory, which a CPU likes best."""
    tensor = (torch.as_tensor(X, dtype=torch.float32) - mean) / scale
    if not looks_like_images(list(tensor.shape[1:])):
        return tensor
    tensor = tensor.unsqueeze(1) if tensor.ndim == 3 else tensor.permute(0, 3, 1, 2)
    return tensor.contiguous(memory_format=torch.channels_last)
