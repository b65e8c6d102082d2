"""The teachers of a run in this process: for small data, tests, and people without a cluster."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from numpy.typing import NDArray

from pate.boundary import silenced
from pate.ensemble.checkpoints import InMemory, Store
from pate.ensemble.worker import PartData, PartialCounts, Teaching, Worker
from pate.errors import ConfigError
from pate.networks.threads import one_thread, usable_cpus

if TYPE_CHECKING:
    from pate.config import Config


class Local:
    """One worker, called directly. Its votes are those that a pool's workers would give together.

    What teachers print is dropped, as in a pool; nothing limits a teacher's time.
    """

    def __init__(self, teaching: Teaching, store: Store) -> None:
        self._teaching, self._store = teaching, store
        self._jobs = teaching.jobs(store.stacked(()))
        self._worker = Worker(teaching)
        self._held: set[int] = set()

    def voters(self, X: NDArray) -> list[PartialCounts]:
        """The votes of all teachers trained so far."""
        with _as_a_worker(), silenced():
            return [self._worker.count(X)]

    def probe(self, X_public: NDArray, n_records: int) -> float:
        """Try every recipe on public examples; returns the expected seconds of training."""
        seconds = []
        for number in range(len(self._teaching.kinds)):
            stack = max((len(job.parts) for job in self._jobs if job.recipe == number), default=1)
            with _as_a_worker(), silenced():
                result = self._worker.probe(number, X_public[:2000], n_records, stack)
            if isinstance(result, str):
                raise ConfigError(result)
            seconds.append(result)
        return sum(seconds[kind] for kind in self._teaching.assignment)

    def train(self, part_data: PartData, done: Callable[[int], None], parts: Collection[int] | None = None) -> None:
        """Train every part, or those of `parts`, that is not held yet; what is stored is taken from there."""
        with _as_a_worker():
            self._train(part_data, done, parts)

    def _train(self, part_data: PartData, done: Callable[[int], None], parts: Collection[int] | None) -> None:
        for job in self._jobs:
            wanted = [part for part in job.parts if part not in self._held and (parts is None or part in parts)]
            missing = [part for part in wanted if not self._restored(job.recipe, part)]
            if missing:
                with silenced():
                    finished = self._worker.train(job, {part: part_data(part) for part in missing})
                for trained in finished:
                    self._store.save(trained.part, trained.payload, trained.failure)
            self._held.update(wanted)
            done(len(self._held))

    def forget_dead(self) -> None:
        """Nothing to do: there are no other processes that could die."""

    def close(self) -> None:
        """Drop the teachers from memory; they are in the store."""
        self._worker = Worker(self._teaching)
        self._held = set()

    def _restored(self, recipe: int, part: int) -> bool:
        payload = self._store.load(part)
        if payload is None:
            return False
        try:
            self._worker.restore(recipe, part, payload)
        except Exception:  # a stored teacher that cannot be read is trained again
            return False
        return True


def _as_a_worker() -> AbstractContextManager[None]:
    """With one thread whatever the environment says: a teacher votes the same as if it had been trained in a pool."""
    return one_thread(obey_environment=False)


def expected_seconds(config: Config, X_public: NDArray, n_records: int, n_classes: int) -> float:
    """How long training would take on this machine, from a try of each recipe on public examples."""
    seconds = Local(Teaching.of(config, n_classes), InMemory()).probe(X_public, n_records)
    return seconds / (1 if config.backend == "local" else config.ray.workers.max or usable_cpus())
