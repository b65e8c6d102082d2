"""Workers that train teachers and count their votes, and the pool that hands out the work.

`Worker` is a plain class, tested without Ray; `Pool` wraps it as an actor. A worker receives its own parts only
and returns counts with the parts they cover, never a single teacher's prediction. What goes wrong inside a
worker is reported by kind, never by message, which could quote a record.
"""

from __future__ import annotations

import os
import time
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.config import Config, RaySettings, TeacherFamily
from pate.errors import ConfigError, RunError
from pate.teachers import build_estimator, family_of_part, seed_of_part
from pate.teachers.part import PartClassifier

_ATTEMPTS = 2
_IN_FLIGHT = 2  # calls a worker has at hand, so that it never waits for the driver
_MOST_REPLACEMENTS = 10


@dataclass(frozen=True)
class PartialCounts:
    """Votes of some parts: counts[queries, classes] of exactly `parts`."""

    parts: tuple[int, ...]
    counts: NDArray[np.int64]


def sum_counts(partials: Sequence[PartialCounts], n_teachers: int) -> NDArray[np.int64]:
    """The whole histogram; refused unless every part was counted exactly once."""
    parts = sorted(part for partial in partials for part in partial.parts)
    if parts != list(range(n_teachers)):
        raise RunError(f"votes of {len(parts)} parts came in where {n_teachers} were due once each: nothing was drawn")
    total: NDArray[np.int64] = np.sum([partial.counts for partial in partials], axis=0)
    return total


class Worker:
    """Owns the teachers of some parts."""

    def __init__(self, families: Sequence[TeacherFamily], n_classes: int, seed: int) -> None:
        from threadpoolctl import threadpool_limits

        self._families = families
        self._n_classes = n_classes
        self._seed = seed
        self._teachers: dict[int, PartClassifier] = {}
        self._limits = threadpool_limits(1)
        _one_torch_thread()

    def probe(self, family: int, X_public: NDArray, n_records: int) -> float | str:
        """Seconds for one fit on public examples with made-up labels, or what is wrong with the family."""
        rng = np.random.default_rng(0)
        X = X_public[rng.integers(len(X_public), size=max(n_records, 2 * self._n_classes))]
        y = np.arange(len(X)) % self._n_classes
        try:
            teacher = PartClassifier(self._estimator(family, 0))
            _quietly(lambda: teacher.fit(X, y).predict(X[:2]))  # imports and first-call costs
            _one_torch_thread()
            started = time.perf_counter()
            _quietly(lambda: teacher.fit(X, y).predict(X[:2]))
            return time.perf_counter() - started
        except ConfigError as error:
            return str(error)
        except Exception as error:
            return f"teachers.{family}.name = {self._families[family].name!r}: cannot be fitted: {error}"

    def train(self, part: int, family: int, X: NDArray, y: NDArray[np.int64]) -> str | None:
        """Train the teacher of one part. A failure is retried with another seed, then a constant stands in.

        Returns the kind of failure, if any: the operator's business, never published.
        """
        failure = None
        _one_torch_thread()
        for attempt in range(_ATTEMPTS):
            teacher = PartClassifier(self._estimator(family, seed_of_part(self._seed, part, attempt)))
            try:
                _quietly(lambda teacher=teacher: teacher.fit(X, y).predict(X[:1]))  # type: ignore[misc]
                break
            except Exception as error:
                failure = type(error).__name__
        else:
            majority = np.bincount(y, minlength=self._n_classes).argmax()
            teacher = PartClassifier(None).fit(X[:1], np.array([majority]))
        self._teachers[part] = teacher
        return failure

    def count(self, X: NDArray) -> PartialCounts:
        """The votes of all own teachers on `X`."""
        counts = np.zeros((len(X), self._n_classes), dtype=np.int64)
        rows = np.arange(len(X))
        for teacher in self._teachers.values():
            counts[rows, _votes(teacher, X)] += 1
        return PartialCounts(tuple(sorted(self._teachers)), counts)

    def _estimator(self, family: int, seed: int) -> Any:
        chosen = self._families[family]
        return build_estimator(chosen.name, dict(chosen.params), seed, f"teachers.{family}.name")


class Pool:
    """Worker actors sized to the cluster; replaces those that die and trains their parts again."""

    def __init__(
        self,
        families: Sequence[TeacherFamily],
        assignment: Sequence[int],
        n_classes: int,
        seed: int,
        settings: RaySettings,
    ) -> None:
        import ray

        self._assignment = assignment
        self._actor = ray.remote(Worker).options(
            num_cpus=settings.cpus_per_worker, num_gpus=settings.gpus_per_worker, max_restarts=0
        )
        self._arguments = (list(families), n_classes, seed)
        self._seconds = [0.0] * len(families)
        self._replaced = 0
        self._owned: dict[Any, set[int]] = {}
        self.failures: dict[int, str] = {}
        for _ in range(_pool_size(settings, len(assignment))):
            self._owned[self._actor.remote(*self._arguments)] = set()

    @property
    def workers(self) -> list[Any]:
        """The actors that hold teachers."""
        return [worker for worker, parts in self._owned.items() if parts]

    def probe(self, X_public: NDArray, n_records: int) -> float:
        """Try every family on public examples; returns the expected seconds of training."""
        import ray

        first = next(iter(self._owned))
        data = ray.put(X_public[:2000])
        results = ray.get([first.probe.remote(i, data, n_records) for i in range(len(self._seconds))])
        for result in results:
            if isinstance(result, str):
                raise ConfigError(result)
        self._seconds = results
        return sum(self._seconds[family] for family in self._assignment) / len(self._owned)

    def train(self, part_data: Callable[[int], tuple[NDArray, NDArray]], done: Callable[[int], None]) -> None:
        """Train every part that no live worker holds; slow families first, so that no core idles at the end."""
        import ray
        from ray.exceptions import RayActorError

        missing = set(range(len(self._assignment))) - set().union(*self._owned.values())
        waiting = deque(sorted(missing, key=lambda part: (-self._seconds[self._assignment[part]], part)))
        running: dict[Any, tuple[Any, int]] = {}
        while waiting or running:
            self._hand_out(waiting, running, part_data)
            ready, _ = ray.wait(list(running), num_returns=1)
            for reference in ready:
                if reference not in running:  # its worker was found dead a moment ago
                    continue
                worker, part = running.pop(reference)
                try:
                    failure = ray.get(reference)
                except RayActorError:
                    lost = self._replace(worker) | {part} | _drop(running, worker)
                    waiting.extend(sorted(lost))
                    continue
                if failure is not None:
                    self.failures[part] = failure
                self._owned[worker].add(part)
                done(len(set().union(*self._owned.values())))

    def forget_dead(self) -> None:
        """Drop workers that no longer answer, so that `train` makes up for what they held."""
        import ray
        from ray.exceptions import RayActorError

        for worker in list(self._owned):
            try:
                ray.get(worker.__ray_ready__.remote())
            except RayActorError:
                self._replace(worker)

    def _hand_out(self, waiting: deque[int], running: dict[Any, tuple[Any, int]], part_data: Callable) -> None:
        for worker in self._owned:
            at_hand = sum(1 for busy, _ in running.values() if busy == worker)
            while waiting and at_hand < _IN_FLIGHT:
                part = waiting.popleft()
                reference = worker.train.remote(part, self._assignment[part], *part_data(part))
                running[reference] = (worker, part)
                at_hand += 1

    def _replace(self, worker: Any) -> set[int]:
        self._replaced += 1
        if self._replaced > _MOST_REPLACEMENTS:
            raise RunError(
                f"{self._replaced} teacher workers died: give them more memory, or fewer at a time with ray.workers, "
                "then go on with --resume"
            )
        lost = self._owned.pop(worker)
        self._owned[self._actor.remote(*self._arguments)] = set()
        return lost


def expected_seconds(config: Config, X_public: NDArray, n_records: int, n_classes: int) -> float:
    """How long training would take on this machine, from one fit of each family on public examples."""
    families = family_of_part(config.teachers, config.n_teachers)
    worker = Worker(config.teachers, n_classes, config.seed)
    seconds = []
    for family in range(len(config.teachers)):
        result = worker.probe(family, X_public[:2000], n_records)
        if isinstance(result, str):
            raise ConfigError(result)
        seconds.append(result)
    return sum(seconds[family] for family in families) / (config.ray.workers or os.cpu_count() or 1)


def _drop(running: dict[Any, tuple[Any, int]], worker: Any) -> set[int]:
    """Take the calls of a dead worker off the list; returns their parts."""
    gone = [reference for reference, (owner, _) in running.items() if owner == worker]
    return {running.pop(reference)[1] for reference in gone}


def _pool_size(settings: RaySettings, n_teachers: int) -> int:
    import ray

    resources = ray.cluster_resources()
    fits = int(resources.get("CPU", 0) // settings.cpus_per_worker)
    if settings.gpus_per_worker:
        fits = min(fits, int(resources.get("GPU", 0) // settings.gpus_per_worker))
    size = min(settings.workers or fits, fits, n_teachers)
    if size < 1:
        raise RunError(
            f"the cluster has {resources.get('CPU', 0):g} CPUs and {resources.get('GPU', 0):g} GPUs: not enough for "
            f"one worker (ray.cpus_per_worker = {settings.cpus_per_worker:g}, "
            f"ray.gpus_per_worker = {settings.gpus_per_worker:g})"
        )
    return size


def _votes(teacher: PartClassifier, X: NDArray) -> NDArray[np.int64]:
    """A teacher that cannot answer votes for class 0: one record must not be able to stop a run."""
    try:
        votes: NDArray[np.int64] = _quietly(lambda: teacher.predict(X))
    except Exception:
        votes = np.zeros(len(X), dtype=np.int64)
    return votes


def _quietly(action: Callable[[], Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return action()


def _one_torch_thread() -> None:
    """Cores are shared out among workers; a family that needs torch may have imported it by now."""
    import sys

    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
