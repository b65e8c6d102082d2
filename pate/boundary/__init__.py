"""The trust boundary: the only door between private votes and the world, and what errors may say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pate.errors import RunError

CountVotes = Callable[[NDArray], Sequence["PartialCounts"]]


@dataclass(frozen=True)
class PartialCounts:
    """Votes of some parts: counts[queries, classes] of exactly `parts`."""

    parts: tuple[int, ...]
    counts: NDArray[np.int64]


def sum_counts(partials: Sequence[PartialCounts], n_teachers: int) -> NDArray[np.int64]:
    """The whole histogram; refused unless every part was counted exactly once."""
    parts = sorted(part for partial in partials for part in partial.parts)
    if parts != list(range(n_teachers)):
        raise RunError(
            f"votes of {len(parts)} parts came in, not of each of {n_teachers} parts once: nothing was drawn"
        )
    total: NDArray[np.int64] = np.sum([partial.counts for partial in partials], axis=0)
    return total


@dataclass(frozen=True)
class PartialVotes:
    """Votes of the records of some sources: counts[cells, classes] of exactly `sources`."""

    sources: tuple[str, ...]
    counts: NDArray[np.int64]


def sum_votes(partials: Sequence[PartialVotes], sources: Sequence[str]) -> NDArray[np.int64]:
    """All votes; refused unless every source was counted exactly once."""
    came = sorted(source for partial in partials for source in partial.sources)
    if came != sorted(sources):
        raise RunError(
            f"votes of {len(came)} sources came in where {len(sources)} were due once each: nothing was drawn"
        )
    total: NDArray[np.int64] = np.sum([partial.counts for partial in partials], axis=0)
    return total
