"""The loop every network student trains in: progress, checkpoints, an early stop, and averaged weights."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from pate.errors import ConfigError
from pate.networks._stored import tensors_from_bytes, write_tensors
from pate.storage._files import make_folder

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
        write_tensors(folder / STATE, tensors | {"generator": self.generator.get_state()}, about)

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

    `mix` is 'even' (all classes alike), 'labels' (as among the labels, each class counted once more), or 'free'.
    """

    wanted: Tensor
    seen: Tensor

    def __init__(self, mix: str, labels: Tensor, n_classes: int) -> None:
        super().__init__()
        known = {
            "even": torch.ones(n_classes),
            "labels": labels.bincount(minlength=n_classes).cpu() + 1.0,
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
