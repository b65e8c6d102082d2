"""The loop every network student trains in: progress, checkpoints, an early stop, averaged weights, augmentation."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.nn.functional import affine_grid, grid_sample, interpolate
from torch.optim.swa_utils import AveragedModel

from pate.components._registry import nearest
from pate.errors import ConfigError
from pate.storage._files import make_folder, tensors_from_bytes, tensors_to_bytes, write_atomically

_WINDOW = 50  # steps between two looks at the loss
STATE = "checkpoint.safetensors"  # in the folder of a checkpoint
_SECONDS_BETWEEN_CHECKPOINTS = 30.0
_MIN_IMPROVEMENT = 0.01
_MIX_RATE = 0.02


@dataclass(frozen=True)
class Progress:
    """Where training is; losses are means over the last few steps."""

    step: int
    steps: int
    loss: float
    unlabelled_loss: float
    seconds: float
    seconds_left: float


ProgressCallback = Callable[[Progress], None]


@dataclass
class Training:
    """All that changes while a network trains, so that training can be stored and continued."""

    modules: dict[str, nn.Module]
    optimisers: Mapping[str, torch.optim.Optimizer]
    generator: torch.Generator
    best: float = math.inf
    stalled: int = 0  # windows since the best unlabelled loss

    def run(
        self,
        step: Callable[[int], tuple[Tensor, Tensor]],
        steps: int,
        *,
        watch_from: int,
        patience: int | None,
        progress: ProgressCallback | None,
        checkpoint: Path | None,
        identity: str,
    ) -> int:
        """Call `step(number)`, which returns a labelled and an unlabelled loss, `steps` times or until it stalls.

        It stalls when the unlabelled loss has not fallen by 1 % within `patience` windows, counted from step
        `watch_from`. With a folder `checkpoint`, state is stored there now and then, and continued from if
        `identity` is the same. Returns the steps done.
        """
        first = self._take_up(checkpoint, identity) if checkpoint is not None else 0
        started = saved = time.monotonic()
        window: list[Tensor] = []
        for number in range(first, steps):
            window.append(torch.stack([loss.detach() for loss in step(number)]))
            done = number + 1
            if done % _WINDOW and done < steps:
                continue
            loss, unlabelled = torch.stack(window).mean(0).tolist()
            window = []
            if done > watch_from:
                improved = unlabelled < self.best * (1 - _MIN_IMPROVEMENT)
                self.best, self.stalled = (unlabelled, 0) if improved else (self.best, self.stalled + 1)
            now = time.monotonic()
            if checkpoint is not None and (now - saved >= _SECONDS_BETWEEN_CHECKPOINTS or done == steps):
                self._put_aside(checkpoint, identity, done)
                saved = now
            if progress is not None:
                left = (now - started) / (done - first) * (steps - done)
                progress(Progress(done, steps, loss, unlabelled, now - started, left))
            if patience is not None and self.stalled >= patience:
                return done
        return steps

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        for name, module in self.modules.items():
            yield from ((f"{name}.{key}", value) for key, value in module.state_dict().items())
        for name, optimiser in self.optimisers.items():
            for index, state in optimiser.state_dict()["state"].items():
                yield from ((f"{name}/{index}/{key}", value) for key, value in state.items())

    def _put_aside(self, folder: Path, identity: str, done: int) -> None:
        tensors = {name: tensor.detach().clone() for name, tensor in self._tensors()}  # of which some share memory
        about = {"identity": identity, "done": done, "best": self.best, "stalled": self.stalled}
        make_folder(folder, 0o700)
        tensors["generator"] = self.generator.get_state()
        write_atomically(folder / STATE, tensors_to_bytes(tensors, about))

    def _take_up(self, folder: Path, identity: str) -> int:
        """Steps already done; 0 if there is no checkpoint of this very training."""
        try:
            tensors, about = tensors_from_bytes((folder / STATE).read_bytes())
        except (OSError, ValueError, SafetensorError):
            return 0
        if about is None or about["identity"] != identity:
            return 0
        for name, module in self.modules.items():
            prefix = f"{name}."
            module.load_state_dict({k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)})
        for name, optimiser in self.optimisers.items():
            states: dict[int, dict[str, Tensor]] = {}
            for key, value in tensors.items():
                if key.startswith(f"{name}/"):
                    _, index, field = key.split("/")
                    states.setdefault(int(index), {})[field] = value
            optimiser.load_state_dict(optimiser.state_dict() | {"state": states})
            for weight, state in optimiser.state.items():  # laid out in memory as the weight is: fused steps rely on it
                state.update(
                    {k: torch.empty_like(weight).copy_(v) for k, v in state.items() if v.shape == weight.shape}
                )
        self.generator.set_state(tensors["generator"])
        self.best, self.stalled = about["best"], about["stalled"]
        return int(about["done"])


def moving_average(module: nn.Module, decay: float) -> AveragedModel:
    """The exponential moving average of the weights, whose `module` predicts; `update_parameters` is one step of it.

    Early steps count for more, so that it starts near the weights; other state (of batch norm) is the module's own.
    """

    @torch.no_grad()
    def step(average: Any, current: Any, number: Any) -> None:
        averaged = int(number)
        torch._foreach_lerp_(average, current, 1 - min(decay, averaged / (9 + averaged)))

    average = AveragedModel(module, multi_avg_fn=step)
    average.n_averaged.fill_(1)  # the initial weights are in it: else the first step would replace them
    return average.eval().requires_grad_(False)


def cosine_rate(optimiser: torch.optim.Optimizer, rate: float, number: int, steps: int) -> None:
    """The learning rate falls along half a cosine, to a hundredth."""
    factor = 0.01 + 0.99 * (1 + math.cos(math.pi * number / steps)) / 2
    for group in optimiser.param_groups:
        group["lr"] = rate * factor


def draw_batch(n: int, size: int, generator: torch.Generator) -> Tensor:
    """Row numbers of a random batch, with repeats only where there are fewer than `size` rows."""
    if n >= size:
        return torch.randperm(n, generator=generator)[:size]
    return torch.randint(n, (size,), generator=generator)


@dataclass(frozen=True)
class BatchSampler:
    """How batches of labelled examples are drawn: all alike, or by weight."""

    n: int
    weights: Tensor | None = None

    def batch(self, size: int, generator: torch.Generator) -> Tensor:
        if self.weights is None:
            return draw_batch(self.n, size, generator)
        return torch.multinomial(self.weights, size, replacement=True, generator=generator)


class ClassPrior(nn.Module):
    """How often each class should come up among unlabelled examples, and how often the network has lately said so.

    `mix` is 'even' (all classes alike), 'labels' (as among the labels, by their `weights` if they have any, each class
    counted once more), or 'free'.
    """

    wanted: Tensor
    seen: Tensor

    def __init__(self, mix: str, labels: Tensor, n_classes: int, weights: Tensor | None = None) -> None:
        super().__init__()
        weights = None if weights is None else weights.to(labels.device)
        known = {
            "even": torch.ones(n_classes),
            "labels": labels.bincount(weights, minlength=n_classes).cpu().float() + 1.0,
            "free": None,
        }
        if mix not in known:
            raise ConfigError(f"student.params.class_prior = {mix!r}: must be 'even', 'labels' or 'free'")
        wanted = known[mix]
        self.fixed = wanted is not None
        self.register_buffer("wanted", torch.ones(n_classes) if wanted is None else wanted / wanted.sum())
        self.register_buffer("seen", torch.full((n_classes,), 1 / n_classes))

    def align(self, guess: Tensor) -> Tensor:
        """Guesses scaled so that their mean over time comes near the wanted mix (Berthelot et al., 2020)."""
        if not self.fixed:
            return guess
        self.seen.lerp_(guess.mean(0), _MIX_RATE)
        scaled = guess * (self.wanted / self.seen)
        return scaled / scaled.sum(1, keepdim=True)


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


def augmentation(strength: Strength, images: bool, generator: torch.Generator) -> Augmentation:
    """What to put a batch of standardised examples through."""
    if not images:
        return lambda rows: _perturb(rows, strength, generator)
    if strength.contrast or strength.brightness or strength.flip or strength.negative:
        return lambda batch: _tone(_warp(batch, strength, generator), strength, generator)
    return lambda batch: _warp(batch, strength, generator)


def _warp(images: Tensor, strength: Strength, generator: torch.Generator) -> Tensor:
    """Rotation, shear, zoom, shift and a smooth local displacement, drawn anew for each image of a batch."""
    angle, shear, width, height, right, down = _between(6, len(images), generator)
    angle, shear = angle * math.radians(strength.rotate), shear * math.radians(strength.shear)
    width, height = 1 + strength.zoom * width, 1 + strength.zoom * height
    right, down = 2 * strength.shift * right, 2 * strength.shift * down
    rows = [width * angle.cos(), height * (shear - angle.sin()), right, width * angle.sin(), height * angle.cos()]
    matrices = torch.stack([*rows, down], dim=1).reshape(-1, 2, 3)
    grid = affine_grid(matrices, list(images.shape), align_corners=False)
    if strength.elastic:
        coarse = torch.randn(len(images), 2, 4, 4, generator=generator) * strength.elastic
        smooth = interpolate(coarse, images.shape[-2:], mode="bilinear", align_corners=True)
        grid = grid + smooth.permute(0, 2, 3, 1)
    return grid_sample(images, grid.to(images.device), padding_mode="border", align_corners=False)


def _tone(images: Tensor, strength: Strength, generator: torch.Generator) -> Tensor:
    """Contrast, brightness, a mirror image and a negative, drawn anew for each image of a batch."""
    contrast, brightness, side = _between(3, len(images), generator).to(images.device)[:, :, None, None, None]
    toned = images * (1 + strength.contrast * contrast) + strength.brightness * brightness
    toned = torch.where(side < 0, toned.flip(-1), toned) if strength.flip else toned
    if strength.negative:
        toned = toned * _between(1, len(images), generator).sign().to(images.device)[0, :, None, None, None]
    return toned


def _perturb(rows: Tensor, strength: Strength, generator: torch.Generator) -> Tensor:
    """For tables: Gaussian noise, and features replaced by their mean (0 once standardised)."""
    noise = torch.randn(rows.shape, generator=generator) * strength.noise
    kept = torch.rand(rows.shape, generator=generator) >= strength.dropout
    return (rows + noise.to(rows.device)) * kept.to(rows.device)


def _between(n: int, examples: int, generator: torch.Generator) -> Tensor:
    """`n` numbers for each example, uniform between −1 and 1."""
    return 2 * torch.rand(n, examples, generator=generator) - 1
