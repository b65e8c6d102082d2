"""Teachers: trained on their own parts, asked together. One way to do both, with or without Ray."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pate.boundary import CountVotes, PartialCounts, sum_counts
from pate.boundary._guard import WorkerLost, silenced
from pate.data import partition
from pate.data.private import PrivateData, Shards, records_of
from pate.data.private import Records as AllRecords
from pate.errors import ConfigError, PateError, RunError
from pate.networks._process import one_thread
from pate.runs._files import LEFT_OUT
from pate.voters._readers import readers_of
from pate.voters.teachers._checkpoints import InMemory, Store
from pate.voters.teachers._worker import PartData, Records, RemotePart, Teaching, Trained, TrainingJob, Worker

if TYPE_CHECKING:
    from pate.config import RaySettings
    from pate.runs.run import Run
    from pate.voters.teachers import TeachersConfig
    from pate.voters.teachers._pool import Pool

_ATTEMPTS_TO_VOTE = 3


class Ensemble:
    """All teachers of a run. In this process or, given `ray` settings, on the cluster that was joined.

    A teacher sees the records of its part and public information only; see `pate.data.partition`. What is trained
    is kept in `store` at once, so an ensemble made anew with the same store trains only what is missing.

    >>> with Ensemble(teaching, records) as ensemble:        # doctest: +SKIP
    ...     ensemble.train()
    ...     counts = ensemble.count(X_public)
    """

    def __init__(
        self,
        teaching: Teaching,
        records: PrivateRecords,
        store: Store | None = None,
        ray: RaySettings | None = None,
        say: Callable[[str], None] = lambda _: None,
        n_jobs: int | None = None,
    ) -> None:
        """`say` is told in words what the run waits for, and whatever else people should know. Without Ray, `n_jobs`
        processes of this machine train teachers."""
        self.teaching, self._records, self._say = teaching, records, say
        self.store = InMemory() if store is None else store
        self._ray, self._n_jobs = ray, n_jobs

    def __enter__(self) -> Ensemble:
        if self._ray is None:
            self._backend: Local | Pool = Local(self.teaching, self.store, self._n_jobs)
        else:
            from pate.voters.teachers._pool import Pool

            try:
                self._backend = Pool(self.teaching, self.store, self._ray, self._say)
            except BaseException:
                self._records.close()
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._backend.close()
        self._records.close()

    def probe(self, X_public: NDArray) -> float:
        """Try each kind of teacher on public examples; returns the expected seconds of training."""
        return self._backend.probe(X_public, self._records.n_records // len(self.teaching.assignment))

    def train(self, done: Callable[[int], None] | None = None, parts: Collection[int] | None = None) -> None:
        """Train all teachers, or those of `parts`; `done` is called with the number of teachers ready so far."""
        self._done = done or (lambda _: None)
        self._backend.train(self._records.of_part, self._done, parts)

    def vote(self, ask: Callable[[CountVotes], None]) -> None:
        """Call `ask` with a function that counts the teachers' votes, so that votes go to nobody but `ask`.

        If workers are lost meanwhile, their teachers are restored or trained again, and `ask` is called again.
        """
        for _ in range(_ATTEMPTS_TO_VOTE):
            try:
                return ask(self._backend.voters)
            except WorkerLost:
                self._backend.forget_dead()
                self._backend.train(self._records.of_part, self._done)
        raise RunError("teacher workers kept dying while votes were counted; resume the run")

    def count(self, X: NDArray) -> NDArray[np.int64]:
        """Vote histograms int[examples, classes] of all teachers, in this process: private, as votes are."""
        found: list[NDArray[np.int64]] = []
        self.vote(lambda voters: found.append(sum_counts(voters(X), len(self.teaching.assignment))))
        return found[-1]


def parts_of(config: TeachersConfig, records: AllRecords, key: bytes) -> list[NDArray[np.int64]]:
    """Row numbers of each teacher's records."""
    return partition.parts_of(records.X, records.y, records.ids, key, config.split)


@dataclass(frozen=True)
class PrivateRecords:
    """How many private records there are, those of each part, and how to close what holds them."""

    n_records: int
    of_part: Callable[[int], Any]
    close: Callable[[], None] = lambda: None
    left_out: int = 0


def split_records(config: TeachersConfig, records: AllRecords, key: bytes) -> PrivateRecords:
    """Records by part, of those that this process has read."""
    rows, X, y = parts_of(config, records, key), records.X, records.y
    return PrivateRecords(len(X), lambda part: (X[rows[part]], y[rows[part]]), left_out=records.left_out)


def private_records(config: TeachersConfig, private: PrivateData, directory: Run) -> PrivateRecords:
    """Records by part: from here where the driver has read them, else from readers on the cluster.

    How many were left out because they have no valid id is noted under `private/`, for the operator.
    """
    if not isinstance(private, Shards):
        found = split_records(config, records_of(private), directory.key)
    else:
        readers = readers_of(private, directory, config.split, config.ray)

        def of_part(part: int) -> RemotePart:
            return RemotePart(readers.actors, part)

        found = PrivateRecords(readers.records, of_part, readers.close, readers.left_out)
    if found.left_out:
        directory.note(LEFT_OUT, {"records_without_valid_id": found.left_out})
    return found


class Local:
    """One worker, called directly. Its votes are those that a pool's workers would give together.

    What teachers print is dropped, as in a pool; nothing limits a teacher's time. With `n_jobs`, joblib's processes
    train them; this one holds them and counts their votes all the same.
    """

    def __init__(self, teaching: Teaching, store: Store, n_jobs: int | None = None) -> None:
        self._teaching, self._store = teaching, store
        from joblib import effective_n_jobs

        self._processes = 1 if n_jobs is None else int(effective_n_jobs(n_jobs))
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
        return sum(seconds[kind] for kind in self._teaching.assignment) / self._processes

    def train(self, part_data: PartData, done: Callable[[int], None], parts: Collection[int] | None = None) -> None:
        """Train every part, or those of `parts`, that is not held yet; what is stored is taken from there."""
        missing: list[tuple[TrainingJob, list[int]]] = []
        with _as_a_worker():
            for job in self._jobs:
                wanted = [part for part in job.parts if part not in self._held and (parts is None or part in parts)]
                untrained = [part for part in wanted if not self._restored(job.recipe, part)]
                if untrained:
                    missing.append((job, untrained))
                self._held.update(set(wanted) - set(untrained))
            done(len(self._held))
            for trained in self._trained(missing, part_data):
                for teacher in trained:
                    self._store.save(teacher.part, teacher.payload, teacher.failure)
                    self._held.add(teacher.part)
                done(len(self._held))

    def _trained(
        self, missing: Sequence[tuple[TrainingJob, list[int]]], part_data: PartData
    ) -> Iterator[list[Trained]]:
        """The teachers of each job, which this process's worker then holds."""
        work = ((job, {part: part_data(part) for part in parts}) for job, parts in missing)
        if self._processes == 1 or len(missing) < 2:
            for job, data in work:
                with silenced():
                    finished = self._worker.train(job, data)
                yield finished
            return
        from joblib import Parallel, delayed

        # no arrays in shared files: records stay in memory
        parallel = Parallel(self._processes, return_as="generator", max_nbytes=None)
        results = parallel(delayed(_train_elsewhere)(self._teaching, job, data) for job, data in work)
        for job, _ in missing:
            try:
                finished = next(results)
            except PateError:
                raise
            except Exception as error:  # of joblib, whose processes may be killed
                raise RunError(
                    f"a process that trained teachers ended ({type(error).__name__}): use fewer with n_jobs"
                ) from None
            for trained in finished:
                self._worker.restore(job.recipe, trained.part, trained.payload)
            yield finished

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


def _train_elsewhere(teaching: Teaching, job: TrainingJob, data: Mapping[int, Records | RemotePart]) -> list[Trained]:
    """What one of joblib's processes does; it is left as it was, since other work of the user may come to it."""
    with _as_a_worker(), silenced():
        return Worker(teaching).train(job, data)


def _as_a_worker() -> AbstractContextManager[None]:
    """With one thread whatever the environment says: a teacher votes the same as if it had been trained in a pool."""
    return one_thread(obey_environment=False)
