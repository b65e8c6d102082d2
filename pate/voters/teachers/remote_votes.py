"""Votes of teachers that live in worker actors."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.boundary.counts import PartialCounts
from pate.boundary.guard import Failed, WorkerLost, error_kind
from pate.errors import RunError
from pate.voters.teachers.worker import QUERIES_AT_ONCE

_BLOCKS_AT_ONCE = 8  # of queries, whose features are in the object store meanwhile


class AskWorkers:
    """Counts votes by asking worker actors; can be sent to another process.

    The features of queries, which are public, are worked out once for all workers, by all of them in turn. `recipes`
    are kinds of teachers, one for each chain of features.
    """

    def __init__(self, workers: Sequence[Any], recipes: Sequence[int] = ()) -> None:
        self._workers, self._recipes = workers, recipes

    def __call__(self, X: NDArray) -> list[PartialCounts]:
        from ray.exceptions import ObjectLostError, RayActorError, RayTaskError

        lost = "a teacher worker died while it was asked for votes; resume the run"
        blocks = [X[i : i + QUERIES_AT_ONCE] for i in range(0, max(len(X), 1), QUERIES_AT_ONCE)]
        found: list[list[PartialCounts]] = []
        try:
            for start in range(0, len(blocks), _BLOCKS_AT_ONCE):
                found += self._ask(blocks[start : start + _BLOCKS_AT_ONCE])
        except (RayActorError, ObjectLostError):
            raise WorkerLost(lost) from None
        except RayTaskError as error:
            cause = error.cause
            if isinstance(cause, (RayActorError, ObjectLostError)):  # of another worker, whose features it waited for
                raise WorkerLost(lost) from None
            raise (
                cause if isinstance(cause, Failed) else Failed(f"a teacher worker failed ({error_kind(cause)})")
            ) from None
        return [joined(of_worker) for of_worker in zip(*found, strict=True)]

    def _ask(self, blocks: Sequence[NDArray]) -> list[list[PartialCounts]]:
        """Of each block, what each worker says."""
        import ray

        shared, turns = [ray.put(block) for block in blocks], cycle(self._workers)
        features = [[next(turns).features.remote(recipe, X) for recipe in self._recipes] for X in shared]
        calls = [
            [worker.count.remote(X, self._recipes, *seen) for worker in self._workers]
            for X, seen in zip(shared, features, strict=True)
        ]
        partials: list[list[PartialCounts]] = [ray.get(of_block) for of_block in calls]
        return partials


def joined(blocks: Sequence[PartialCounts]) -> PartialCounts:
    """A worker's votes on all queries; refused unless the same parts voted on each of them."""
    if len({partial.parts for partial in blocks}) > 1:
        raise RunError("a worker's teachers changed while their votes were counted: nothing was drawn")
    return PartialCounts(blocks[0].parts, np.concatenate([partial.counts for partial in blocks]))
