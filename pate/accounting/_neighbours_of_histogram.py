"""A histogram's answers beside those of every histogram one moved vote away."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import ClassVar, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from pate.accounting import _parameters as parameters
from pate.errors import ConfigError

Counts = NDArray[np.integer]
"""Vote histograms, int[queries, classes]; each row sums to the number of teachers."""

Array = NDArray[np.float64]
Indices = NDArray[np.int64]
S = TypeVar("S")
T = TypeVar("T")

_ROWS_AT_ONCE = 128


class Answering(Protocol):
    """All that the exact accountant has to know of a mechanism; `pate.mechanisms.Mechanism` says what each means."""

    name: ClassVar[str]
    priced_as_stream: ClassVar[bool]

    @property
    def votes_per_record(self) -> int: ...

    def log_outcomes(self, counts: Counts) -> NDArray[np.float64]: ...


@dataclass(frozen=True)
class NeighbourOutcomes:
    """Log-probabilities of the answers to distinct histograms and to all their neighbours.

    own: of distinct histogram i, [distinct, outcomes].
    moved: of its neighbours, [moves, outcomes], those of histogram i being first[i] … first[i + 1] − 1, with
        the labels in the same order as in own[i].
    where: the distinct histogram of each query, [queries].
    """

    own: Array
    moved: Array
    first: Indices
    where: Indices

    def blocks(self, moves_at_once: int) -> list[slice]:
        """The distinct histograms in blocks with about `moves_at_once` neighbours each."""
        n_blocks = max(1, round(len(self.moved) / moves_at_once))
        edges = np.searchsorted(self.first, np.linspace(0, len(self.moved), n_blocks + 1))
        edges[0], edges[-1] = 0, len(self.own)
        return [slice(int(a), int(b)) for a, b in pairwise(edges) if a < b]

    def pairs(self, block: slice) -> tuple[Array, Array, Indices]:
        """own (repeated for each neighbour), moved, and where each histogram's neighbours begin.

        A histogram without neighbours is paired with itself, which costs nothing.
        """
        moves = np.diff(self.first[block.start : block.stop + 1])
        lonely = np.flatnonzero(moves == 0)
        begin = self.first[block.start : block.stop] - self.first[block.start]
        moved = self.moved[self.first[block.start] : self.first[block.stop]]
        moved = np.insert(moved, begin[lonely], self.own[block][lonely], axis=0)
        moves = np.maximum(moves, 1)
        return np.repeat(self.own[block], moves, axis=0), moved, np.cumsum(moves) - moves


def neighbour_outcomes(mechanism: Answering, counts: Counts) -> NeighbourOutcomes:
    """The outcomes of every distinct histogram and of each histogram one moved vote away.

    Histograms equal up to a permutation of the labels are one: a mechanism treats all labels alike. So are
    the moves between classes of the same two counts. Where a mechanism offers `log_outcomes_after_moves`, the
    neighbours come from there; `log_outcomes` alone is enough.
    """
    if mechanism.votes_per_record != 1:
        raise ConfigError(
            f"mechanism.name = {mechanism.name!r}: one record moves {mechanism.votes_per_record} votes; "
            "the exact accountant takes mechanisms where it moves 1, so charge the worst case instead"
        )
    if mechanism.priced_as_stream:
        raise ConfigError(
            f"mechanism.name = {mechanism.name!r}: its queries share secret noise, so their costs do not add up; "
            "charge the whole stream instead"
        )
    votes = parameters.histograms(counts, "votes")
    if len(votes) == 0:
        raise parameters.VotesError(
            f"votes: the shape is {votes.shape}; needed is (queries, classes), with at least one query"
        )
    histograms, where = np.unique(np.sort(votes, axis=1), axis=0, return_inverse=True)
    rows, sources, targets = distinct_moves(histograms)
    first = np.searchsorted(rows, np.arange(len(histograms) + 1))

    def outcomes(block: slice) -> tuple[Array, Array]:
        part = histograms[block]
        moves = slice(first[block.start], first[block.stop])
        move = rows[moves] - block.start, sources[moves], targets[moves]
        quick = getattr(mechanism, "log_outcomes_after_moves", None)
        moved = mechanism.log_outcomes(move_votes(part, *move)) if quick is None else quick(part, *move)
        return mechanism.log_outcomes(part), moved

    steps = range(0, len(histograms), _ROWS_AT_ONCE)
    blocks = [slice(i, min(i + _ROWS_AT_ONCE, len(histograms))) for i in steps]
    own, moved = zip(*map_on_all_cores(outcomes, blocks), strict=True)
    return NeighbourOutcomes(np.concatenate(own), np.concatenate(moved), first, where.reshape(-1))


def move_votes(counts: Indices, rows: Indices, sources: Indices, targets: Indices) -> Indices:
    """counts[rows[i]] with one vote moved from class sources[i] to targets[i], for each i.

    >>> move_votes(np.array([[3, 0, 1]]), np.array([0, 0]), np.array([0, 2]), np.array([1, 0])).tolist()
    [[2, 1, 1], [4, 0, 0]]
    """
    moved = counts[rows]
    move = np.arange(len(rows))
    moved[move, sources] -= 1
    moved[move, targets] += 1
    return moved


def distinct_moves(histograms: Indices) -> tuple[Indices, Indices, Indices]:
    """Row, source and target of every moved vote in sorted histograms; moves between the same counts once.

    >>> [indices.tolist() for indices in distinct_moves(np.array([[0, 2, 2]]))]
    [[0, 0], [1, 1], [0, 2]]
    """
    fresh = np.ones(histograms.shape, dtype=bool)
    fresh[:, 1:] = histograms[:, 1:] != histograms[:, :-1]
    last = np.ones(histograms.shape, dtype=bool)
    last[:, :-1] = fresh[:, 1:]
    another = ~np.eye(histograms.shape[1], dtype=bool)
    rows, sources, targets = np.nonzero((fresh & (histograms > 0))[:, :, None] & last[:, None, :] & another)
    return rows, sources, targets


def map_on_all_cores(work: Callable[[S], T], items: Iterable[S]) -> list[T]:
    """work(item) for each item, in order; numpy lets the threads run side by side.

    BLAS is held to one thread meanwhile: its own threads would only wait for ours, at twenty times the cost.
    """
    with blas().limit(limits=1, user_api="blas"), ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return list(pool.map(work, items))


@lru_cache(maxsize=1)
def blas() -> ThreadpoolController:
    """To limit the threads of matrix products: beside other work two threads are far slower than one."""
    return ThreadpoolController()
