"""Cells rehearsed on labelled public rows, without noise, before anything is charged."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pate.data.public import PublicData
from pate.students.posterior import label_members
from pate.voters.base import RehearsedVotes
from pate.voters.neighbours.cells import Cells, CellVote, Space
from pate.voters.neighbours.features import RecordFeatures

if TYPE_CHECKING:
    from pate.voters.neighbours.voters import Neighbours

_MAX_PUBLIC = 3000  # examples that cells are made of
_ROWS_OF_A_CELL = 10
_TRIED = 5  # examples, to see how long features take
_SECONDS = 5.0  # that features may take
_PRIOR = 2.0  # votes that every cell is taken to have in the shares of all cells together


def rehearse_cells(
    voters: Neighbours, public: PublicData, X: NDArray, y: NDArray[np.int64], held_out: NDArray
) -> RehearsedVotes | None:
    """Votes in cells, of which there are fewer than in the run, since there are fewer rows."""
    settings, seed = voters.config.neighbours, voters.config.seed
    features = RecordFeatures([step.model_dump() for step in settings.features])
    examples = public.X_public[:: -(-len(public.X_public) // _MAX_PUBLIC)]
    started = time.perf_counter()
    features(examples[:_TRIED])
    each = (time.perf_counter() - started) / len(examples[:_TRIED])
    if settings.features and each * (len(examples) + len(X) + len(held_out)) > _SECONDS:
        return None
    seen = features(examples)
    number = min(voters.rounds[0].cells, len(examples), max(2, len(X) // _ROWS_OF_A_CELL))
    cells = Cells.of(Space.of(seen, settings.components, settings.standardise), seen, number, seed)
    counts = CellVote(features, cells, 1, public.n_classes, examples[:1]).count(X, y).astype(np.float64)
    prior = counts.sum(axis=0) / max(1.0, counts.sum())
    shares = (counts + _PRIOR * prior) / (counts.sum(axis=1, keepdims=True) + _PRIOR)
    labelled = label_members(shares, cells.nearest(seen)[:, 0], 0.0, settings.soft)
    of_held_out = shares[cells.nearest(features(held_out))[:, 0]]
    return RehearsedVotes(f"{len(X):,} rows in {number} cells", examples, labelled.labels, labelled, of_held_out)
