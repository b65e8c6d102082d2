"""Votes of teachers that live in worker actors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from pate.boundary import Failed, WorkerLost, kind_of
from pate.ensemble.worker import PartialCounts


class AskWorkers:
    """Counts votes by asking worker actors; can be sent to another process."""

    def __init__(self, workers: Sequence[Any]) -> None:
        self._workers = workers

    def __call__(self, X: NDArray) -> list[PartialCounts]:
        import ray
        from ray.exceptions import RayActorError, RayTaskError

        data = ray.put(X)
        try:
            partials: list[PartialCounts] = ray.get([worker.count.remote(data) for worker in self._workers])
        except RayActorError:
            raise WorkerLost("a teacher worker died while it was asked for votes; resume the run") from None
        except RayTaskError as error:
            cause = error.cause
            raise (
                cause if isinstance(cause, Failed) else Failed(f"a teacher worker failed ({kind_of(cause)})")
            ) from None
        return partials
