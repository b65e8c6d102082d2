"""Teachers: trained on their own parts, asked together. One way to do both, with or without Ray."""

from __future__ import annotations

from collections.abc import Callable, Collection
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from pate.boundary.counts import CountVotes, sum_counts
from pate.boundary.guard import WorkerLost
from pate.errors import RunError
from pate.voters.teachers.checkpoints import InMemory, Store
from pate.voters.teachers.worker import PartData, PartRecords, Teaching

if TYPE_CHECKING:
    from pate.config import RaySettings

_ATTEMPTS_TO_VOTE = 3


class Backend(Protocol):
    """Where teachers live: `local.Local`, in this process, or `pool.Pool`, on a cluster. The votes are the same."""

    @property
    def voters(self) -> CountVotes: ...

    def probe(self, X_public: NDArray, n_records: int) -> float: ...

    def train(self, part_data: PartData, done: Callable[[int], None], parts: Collection[int] | None = None) -> None: ...

    def forget_dead(self) -> None: ...

    def close(self) -> None: ...


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
        records: PartRecords,
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
            from pate.voters.teachers.local import Local

            self._backend: Backend = Local(self.teaching, self.store, self._n_jobs)
        else:
            from pate.voters.teachers.pool import Pool

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
