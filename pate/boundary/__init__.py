"""The trust boundary: the only door between private votes and the world, and what errors may say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pate.errors import RunError

CountVotes = Callable[[NDArray], Sequence["PartialCounts"]]


@dataclass(frozen=True)
class PartialCounts:
    """Votes of some parts, by number, or of the records of some sources, by name: counts[queries, classes] of exactly
    `parts`."""

    parts: tuple[int, ...] | tuple[str, ...]
    counts: NDArray[np.int64]


def sum_counts(partials: Sequence[PartialCounts], parts: int | Sequence[str]) -> NDArray[np.int64]:
    """The whole histogram of so many parts, or of these sources; refused unless each was counted exactly once."""
    due = range(parts) if isinstance(parts, int) else parts
    came = [part for partial in partials for part in partial.parts]
    if Counter(came) != Counter(due):
        raise RunError(f"votes of {len(came)} parts came in where {len(due)} were due once each: nothing was drawn")
    total: NDArray[np.int64] = np.sum([partial.counts for partial in partials], axis=0)
    return total
