"""Kinds of workers: which resources each family of teachers gets. Nothing here needs Ray."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pate.config.components import Resources
from pate.errors import RunError
from pate.voters.teachers.worker import STACK

if TYPE_CHECKING:
    from pate.config import RaySettings
    from pate.voters.teachers.worker import Teaching

_GPU_BYTES = 16_000_000_000  # the smallest GPU in common use: a share must fit on any
_MAX_ON_A_GPU = 8  # they share its time too
_FINEST = 10_000  # Ray counts resources in steps of 1/10000


@dataclass(frozen=True)
class WorkerKind:
    """What a worker of this kind has. Jobs go to workers of their kind only."""

    cpus: float = 1.0
    gpus: float = 0.0
    memory: int | None = None
    accelerator_type: str | None = None
    labels: tuple[tuple[str, str], ...] = ()
    custom: tuple[tuple[str, float], ...] = ()

    @property
    def threads(self) -> int:
        """How many threads a worker computes with: one for each whole CPU."""
        return max(1, int(self.cpus))

    @property
    def options(self) -> dict[str, Any]:
        """These resources as Ray's options of an actor."""
        options: dict[str, Any] = {"num_cpus": self.cpus, "num_gpus": self.gpus}
        if self.memory is not None:
            options["memory"] = self.memory
        if self.accelerator_type is not None:
            options["accelerator_type"] = self.accelerator_type
        if self.labels:
            options["label_selector"] = dict(self.labels)
        if self.custom:
            options["resources"] = dict(self.custom)
        return options

    @property
    def needs(self) -> dict[str, float]:
        """The amounts, by Ray's names of resources."""
        amounts = {"CPU": self.cpus, "GPU": self.gpus, "memory": float(self.memory or 0), **dict(self.custom)}
        if self.accelerator_type is not None:
            amounts[f"accelerator_type:{self.accelerator_type}"] = 1 / _FINEST
        return {name: amount for name, amount in amounts.items() if amount}

    def __str__(self) -> str:
        words = [
            f"{self.cpus:g} CPU{'s' * (self.cpus != 1)}" if self.cpus else "",
            f"{self.gpus:g} GPU{'s' * (self.gpus > 1)}" if self.gpus else "",
            f"{self.memory / 1e9:.3g} GB" if self.memory else "",
            self.accelerator_type or "",
            *(f"{name}={value}" for name, value in self.labels),
            *(f"{amount:g} {name}" for name, amount in self.custom),
        ]
        return " and ".join(word for word in words if word) or "no resources"


def kinds_of_workers(teaching: Teaching, settings: RaySettings, has_gpus: Callable[[], bool]) -> list[WorkerKind]:
    """The kind of worker that each kind of teacher gets.

    `has_gpus` tells whether the cluster has GPUs, or will have; it is asked where a family can use one and nothing
    says how many. A GPU worker takes no CPU unless its family says so: workers without GPUs, which are many, would
    else take the CPUs of a GPU's node before it, and leave the GPU idle.
    """
    found: list[WorkerKind] = []
    for number, recipe in enumerate(teaching.kinds):
        own, able = recipe.resources or Resources(), bool(getattr(recipe.estimator(0), "uses_gpu", False))
        gpus = own.gpus if own.gpus is not None else settings.gpus_per_worker if able else 0.0
        if gpus == "auto":
            gpus = _share(teaching, number) if able and has_gpus() else 0.0
        cpus = own.cpus if own.cpus is not None else 0.0 if gpus else settings.cpus_per_worker
        found.append(
            WorkerKind(
                float(cpus),
                float(gpus),
                own.memory,
                own.accelerator_type,
                tuple(sorted(own.labels.items())),
                tuple(sorted(own.custom.items())),
            )
        )
    return found


def _share(teaching: Teaching, number: int) -> float:
    """1/k of a GPU, with room for a stack of these; a whole one where the class does not say what it needs."""
    recipe = teaching.kinds[number]
    estimator: Any = recipe.estimator(0)
    if not hasattr(estimator, "gpu_bytes") or teaching.shape is None:
        return 1.0
    blank = np.zeros((1, *teaching.shape), dtype=np.float32)
    first = blank if teaching.first is None else teaching.first.transform(blank)
    shape = np.asarray(recipe.build_features().transform(first)).shape[1:]  # of an example as the teacher sees it
    needed = estimator.gpu_bytes(shape, teaching.n_classes, STACK if getattr(estimator, "stackable", False) else 1)
    return math.floor(_FINEST / max(1, min(_MAX_ON_A_GPU, _GPU_BYTES // max(1, needed)))) / _FINEST


_FIRST_SAID, _SAID_EVERY = 5.0, 30.0  # seconds

Say = Callable[[str], None]


class Patience:
    """How long a run has been without the workers it needs: says so now and then, and ends it when it is too long."""

    def __init__(self, wait: float, say: Say) -> None:
        self._wait, self._say = wait, say
        self._since: float | None = None
        self._told = 0.0

    def has_all(self) -> None:
        """It has what it needs: the time begins anew."""
        self._since = None

    def lacks(self, what: Callable[[], str]) -> None:
        """It has not; `what` tells what it waits for."""
        now = time.monotonic()
        if self._since is None:
            self._since, self._told = now, now - _SAID_EVERY + _FIRST_SAID
        left = self._since + self._wait - now
        if left <= 0:
            text = f"{self._wait:g} s (ray.worker_timeout_seconds) were not enough for {what()}; "
            text += "go on with {resume} when there is room"
            raise RunError(text, resume=True)
        if now - self._told >= _SAID_EVERY:
            self._told = now
            self._say(f"waiting for {what()}; {left:.0f} s more (ray.worker_timeout_seconds)")
