"""Shifted and mirrored views of images for DP-SGD to train on, as random crops are elsewhere.

Every step looks at all records of its lot through one view. Which one depends on the number of the step and the seed
alone, and a view changes each example by itself, so a record still adds one clipped gradient to a step: neighbours,
sensitivity and guarantee are those of DP-SGD without views, at the same noise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch.nn.functional import pad

from pate.accounting import parameters
from pate.components.registry import nearest
from pate.errors import ConfigError


@dataclass(frozen=True)
class View:
    """An image moved by whole pixels, its border repeated, and perhaps mirrored."""

    down: int = 0
    right: int = 0
    mirrored: bool = False

    def of(self, images: torch.Tensor) -> torch.Tensor:
        """The images (count × channels × height × width), seen so."""
        if self.down or self.right:
            height, width = images.shape[-2:]
            most = max(abs(self.down), abs(self.right))
            top, left = most - self.down, most - self.right
            images = pad(images, (most,) * 4, mode="replicate")[..., top : top + height, left : left + width]
        return images.flip(-1) if self.mirrored else images


@dataclass(frozen=True)
class Views:
    """`count` views that take turns: the image as it is, then random ones, moved by up to `shift` pixels and, with
    `flip`, half of them mirrored."""

    count: int = 1
    shift: int = 0
    flip: bool = False

    @classmethod
    def of(cls, settings: Mapping[str, Any] | None) -> Views:
        """Views by the settings of a config; without settings, each example as it is."""
        if settings is None:
            return cls()
        known = [field.name for field in fields(cls)]
        if not isinstance(settings, Mapping):
            raise ConfigError(f"views = {settings!r}: must have the keys {', '.join(known)}")
        for name in settings:
            if name not in known:
                raise ConfigError(f"views.{name}: unknown key; {nearest(str(name), known)}")
        found = cls(**settings)
        parameters.queries(found.count, "views.count", least=1)
        parameters.queries(found.shift, "views.shift", least=0)
        if not isinstance(found.flip, bool):
            raise ConfigError(f"views.flip = {found.flip!r}: must be true or false")
        return found

    def check(self, example_shape: tuple[int, ...]) -> None:
        """ConfigError where examples of this shape are no images that could be moved so far."""
        if self.count > 1 and (len(example_shape) != 3 or self.shift >= min(example_shape[1:])):
            raise ConfigError(f"views: are for images of more than {self.shift} pixels, not for inputs {example_shape}")

    def drawn(self, seed: int) -> list[View]:
        """The views, in the order of their turns; the same for the same seed."""
        rng = np.random.default_rng(seed)
        moved = rng.integers(-self.shift, self.shift, size=(self.count - 1, 2), endpoint=True).tolist()
        mirrored = rng.integers(2, size=self.count - 1) * self.flip
        return [View(), *(View(down, right, bool(side)) for (down, right), side in zip(moved, mirrored, strict=True))]


Seen = Callable[[int, torch.Tensor], torch.Tensor]
"""(step, rows) → what the trained layers see of those rows at that step."""


def by_turns(
    inputs: torch.Tensor, views: list[View], frozen: Callable[[torch.Tensor], torch.Tensor] | None = None
) -> Seen:
    """A view a step. With `frozen` layers before those that are trained, all records go through them once for each
    view, and are kept; else a view is taken when it is its turn."""
    if frozen is None:
        return lambda step, rows: views[step % len(views)].of(inputs[rows.to(inputs.device)])
    kept = [frozen(view.of(inputs)) for view in views]

    def seen(step: int, rows: torch.Tensor) -> torch.Tensor:
        turn = kept[step % len(kept)]
        return turn[rows.to(turn.device)]

    return seen
