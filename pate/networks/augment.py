"""Augmentation of whole batches, each example with its own random draw. Draws come from one generator."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample, interpolate
from torchvision.transforms import v2

from pate.components.registry import nearest
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


class WarpEach(v2.Transform):
    """Rotation, shear, zoom, shift and a smooth local displacement, drawn anew for each image of a batch."""

    def __init__(self, strength: Strength, generator: torch.Generator) -> None:
        super().__init__()
        self._strength, self._generator = strength, generator

    def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
        images, strength = flat_inputs[0], self._strength
        angle, shear, width, height, right, down = _between(6, len(images), self._generator)
        angle, shear = angle * math.radians(strength.rotate), shear * math.radians(strength.shear)
        width, height = 1 + strength.zoom * width, 1 + strength.zoom * height
        right, down = 2 * strength.shift * right, 2 * strength.shift * down
        rows = [width * angle.cos(), height * (shear - angle.sin()), right, width * angle.sin(), height * angle.cos()]
        matrices = torch.stack([*rows, down], dim=1).reshape(-1, 2, 3)
        return {"grid": self._grid(matrices, images).to(images.device)}

    def _grid(self, matrices: Tensor, images: Tensor) -> Tensor:
        grid = affine_grid(matrices, list(images.shape), align_corners=False)
        if self._strength.elastic:
            coarse = torch.randn(len(images), 2, 4, 4, generator=self._generator) * self._strength.elastic
            smooth = interpolate(coarse, images.shape[-2:], mode="bilinear", align_corners=True)
            grid = grid + smooth.permute(0, 2, 3, 1)
        return grid

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        return grid_sample(inpt, params["grid"], padding_mode="border", align_corners=False)


class ToneEach(v2.Transform):
    """Contrast, brightness, a mirror image and a negative, drawn anew for each image of a batch."""

    def __init__(self, strength: Strength, generator: torch.Generator) -> None:
        super().__init__()
        self._strength, self._generator = strength, generator

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        contrast, brightness, side = _between(3, len(inpt), self._generator).to(inpt.device)[:, :, None, None, None]
        toned = inpt * (1 + self._strength.contrast * contrast) + self._strength.brightness * brightness
        toned = torch.where(side < 0, toned.flip(-1), toned) if self._strength.flip else toned
        if self._strength.negative:
            toned = toned * _between(1, len(inpt), self._generator).sign().to(inpt.device)[0, :, None, None, None]
        return toned


class PerturbEach(v2.Transform):
    """For tables: Gaussian noise, and features replaced by their mean (0 once standardised)."""

    def __init__(self, strength: Strength, generator: torch.Generator) -> None:
        super().__init__()
        self._strength, self._generator = strength, generator

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        noise = torch.randn(inpt.shape, generator=self._generator) * self._strength.noise
        kept = torch.rand(inpt.shape, generator=self._generator) >= self._strength.dropout
        return (inpt + noise.to(inpt.device)) * kept.to(inpt.device)


def augmentation(strength: Strength, images: bool, generator: torch.Generator) -> v2.Transform:
    """What to put a batch of standardised examples through."""
    if not images:
        return PerturbEach(strength, generator)
    steps: list[v2.Transform] = [WarpEach(strength, generator)]
    if strength.contrast or strength.brightness or strength.flip or strength.negative:
        steps.append(ToneEach(strength, generator))
    return v2.Compose(steps)


def _between(n: int, examples: int, generator: torch.Generator) -> Tensor:
    """`n` numbers for each example, uniform between −1 and 1."""
    return 2 * torch.rand(n, examples, generator=generator) - 1
