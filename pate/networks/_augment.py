"""Augmentation of whole batches, each example with its own random draw. Draws come from one generator."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample, interpolate

from pate.components._registry import nearest
from pate.errors import ConfigError


@dataclass(frozen=True)
class Strength:
    """How far augmentation goes. The first group is for images, `noise` and `dropout` for tables.

    Angles are in degrees, `zoom` and `shift` shares of the image's size, `elastic` the typical local displacement as a
    share of half the size, `contrast` and `brightness` in standard deviations of the public data. `negative` swaps dark
    and light half of the time, around the public data's mean.
    """

    rotate: float = 12.0
    shear: float = 8.0
    zoom: float = 0.1
    shift: float = 0.07
    elastic: float = 0.04
    contrast: float = 0.0
    brightness: float = 0.0
    flip: bool = False
    negative: bool = False
    noise: float = 0.15
    dropout: float = 0.1

    @classmethod
    def of(cls, settings: Mapping[str, Any] | None) -> Strength:
        """The defaults, with what `settings` changes."""
        known = [field.name for field in fields(cls)]
        for name in settings or {}:
            if name not in known:
                raise ConfigError(f"student.params.augmentation.{name}: unknown key; {nearest(name, known)}")
        return cls(**(settings or {}))


Augmentation = Callable[[Tensor], Tensor]
"""Changes a batch of standardised examples, each of them by a draw of its own."""


class _WarpEach:
    """Rotation, shear, zoom, shift and a smooth local displacement, drawn anew for each image of a batch."""

    def __init__(self, strength: Strength, generator: torch.Generator) -> None:
        self._strength, self._generator = strength, generator

    def __call__(self, images: Tensor) -> Tensor:
        strength = self._strength
        angle, shear, width, height, right, down = _between(6, len(images), self._generator)
        angle, shear = angle * math.radians(strength.rotate), shear * math.radians(strength.shear)
        width, height = 1 + strength.zoom * width, 1 + strength.zoom * height
        right, down = 2 * strength.shift * right, 2 * strength.shift * down
        rows = [width * angle.cos(), height * (shear - angle.sin()), right, width * angle.sin(), height * angle.cos()]
        matrices = torch.stack([*rows, down], dim=1).reshape(-1, 2, 3)
        grid = affine_grid(matrices, list(images.shape), align_corners=False)
        if strength.elastic:
            coarse = torch.randn(len(images), 2, 4, 4, generator=self._generator) * strength.elastic
            smooth = interpolate(coarse, images.shape[-2:], mode="bilinear", align_corners=True)
            grid = grid + smooth.permute(0, 2, 3, 1)
        return grid_sample(images, grid.to(images.device), padding_mode="border", align_corners=False)


class _ToneEach:
    """Contrast, brightness, a mirror image and a negative, drawn anew for each image of a batch."""

    def __init__(self, strength: Strength, generator: torch.Generator) -> None:
        self._strength, self._generator = strength, generator

    def __call__(self, images: Tensor) -> Tensor:
        contrast, brightness, side = _between(3, len(images), self._generator).to(images.device)[:, :, None, None, None]
        toned = images * (1 + self._strength.contrast * contrast) + self._strength.brightness * brightness
        toned = torch.where(side < 0, toned.flip(-1), toned) if self._strength.flip else toned
        if self._strength.negative:
            toned = toned * _between(1, len(images), self._generator).sign().to(images.device)[0, :, None, None, None]
        return toned


class _PerturbEach:
    """For tables: Gaussian noise, and features replaced by their mean (0 once standardised)."""

    def __init__(self, strength: Strength, generator: torch.Generator) -> None:
        self._strength, self._generator = strength, generator

    def __call__(self, rows: Tensor) -> Tensor:
        noise = torch.randn(rows.shape, generator=self._generator) * self._strength.noise
        kept = torch.rand(rows.shape, generator=self._generator) >= self._strength.dropout
        return (rows + noise.to(rows.device)) * kept.to(rows.device)


def augmentation(strength: Strength, images: bool, generator: torch.Generator) -> Augmentation:
    """What to put a batch of standardised examples through."""
    if not images:
        return _PerturbEach(strength, generator)
    warp, tone = _WarpEach(strength, generator), _ToneEach(strength, generator)
    if strength.contrast or strength.brightness or strength.flip or strength.negative:
        return lambda batch: tone(warp(batch))
    return warp


def _between(n: int, examples: int, generator: torch.Generator) -> Tensor:
    """`n` numbers for each example, uniform between −1 and 1."""
    return 2 * torch.rand(n, examples, generator=generator) - 1
