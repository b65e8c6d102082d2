"""What an audit may do to neighbours: count the votes of changed records again, and put canaries into cells.

A canary stands where a public example is, with a class of its own choice; its score is the likelihood ratio of the
released counts (or labels) of the cells it votes in, the other records' votes being known. *replay*: the run is made
once more without canaries, and what is released is compared. Independent noise hides what noise that repeats would
show. *student*: the probability that the student gives to the canary's own label.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pate.audit.results import (
    Canaries,
    OneRunAudit,
    Scores,
    fair_coins,
    scratch_folder,
    scratch_run,
    student_scores,
    with_quick_student,
)
from pate.boundary import sum_counts
from pate.boundary._aggregator import Aggregator
from pate.data.private import Records
from pate.data.public import PublicData
from pate.mechanisms import Mechanism
from pate.mechanisms._cell_costs import Round, guarantee
from pate.runs._run_ledger import ledger_opener
from pate.runs.run import Run
from pate.voters.neighbours._cells import Cells, CellVote, RecordFeatures
from pate.voters.neighbours._rounds import LocalVoteCounter, Rounds, digest

if TYPE_CHECKING:
    from pate.voters.neighbours import Neighbours

_MAX_RECORDS = 5_000


class CellVotes:
    """Votes in the cells of the first round."""

    max_records, what = _MAX_RECORDS, "counts of a round"

    def __init__(self, voters: Neighbours, public: PublicData, key: bytes) -> None:
        self._cell_vote, self._votes = _first_cell_vote(voters, public), voters.config.neighbours.votes_per_record
        self._mechanism, self._delta, self._key = voters.rounds[0].mechanism, voters.config.budget.delta, key

    def __call__(self, records: Records) -> NDArray[np.int64]:
        counter = LocalVoteCounter(records, self._key)
        return sum_counts(counter.count(self._cell_vote), counter.sources)

    def moved(self, difference: NDArray[np.int64], change: str) -> tuple[float, float]:
        return float(np.abs(difference).sum()), float(self._votes * (2 if change == "changed" else 1))

    def costs(self, moved: float, change: str) -> tuple[float, float]:
        def cost(counts: int) -> float:
            return guarantee([Round(1, self._mechanism)], counts, changed=False).epsilon(self._delta) if counts else 0.0

        return cost(int(moved)), cost(self._votes * (2 if change == "changed" else 1))


def one_run_audits(voters: Neighbours) -> tuple[OneRunAudit, OneRunAudit]:
    """Canaries that are among the records or not, and canaries whose coins say which of two classes they have."""
    return (
        OneRunAudit(
            "records in or out",
            "a record added or removed",
            lambda n_classes: voters.rounds_cost(n_classes).added_or_removed,
            partial(_find_scores, voters, False),
        ),
        OneRunAudit(
            "records with one label or another",
            "a record changed",
            lambda n_classes: voters.rounds_cost(n_classes).epsilon,
            partial(_find_scores, voters, True),
        ),
    )


def _find_scores(
    voters: Neighbours, changed: bool, public: PublicData, records: Records, most: int, config_dir: Path, seed: int
) -> tuple[Scores, NDArray[np.bool_]]:
    config, n_classes = voters.config, public.n_classes
    canaries = _in_cells(voters, public, most, changed, seed)
    coins = fair_coins(len(canaries))
    with scratch_run(config, public, canaries.among(records, coins, ids=False), config_dir) as run:
        rounds = _released_rounds(voters, run, n_classes)
        student = student_scores(run, canaries, n_classes)
    with scratch_run(with_quick_student(config), public, records, config_dir) as run:
        replayed = _released_rounds(voters, run, n_classes)
    ratios, replays = np.zeros(len(canaries)), np.zeros(len(canaries))
    for one, other in zip(rounds, replayed, strict=True):
        honest = LocalVoteCounter(records, b"key").count(one.cell_vote)[0].counts
        ours, theirs = _votes_of_each(one.cell_vote, canaries)
        ratios += _log_ratios(one.mechanism, one.released, honest, ours, theirs)
        difference = _as_counts(one.released, n_classes) - _as_counts(other.released, n_classes)
        replays += ((ours - theirs) * difference).sum(axis=(1, 2))
    return {"released": ratios, "replay": replays, "student": student}, coins


def _in_cells(voters: Neighbours, public: PublicData, most: int, changed: bool, seed: int) -> Canaries:
    """A canary for each cell and class, or pair of classes, of the first round; no more than `most`, chosen by seed."""
    cell_vote = _first_cell_vote(voters, public)
    seen, cells = cell_vote.features(public.X_public), cell_vote.cells
    nearest, step = cells.nearest_examples(seen), 2 if changed else 1
    places = [(row, label) for row in nearest.tolist() for label in range(0, public.n_classes - step + 1, step)]
    chosen = np.random.default_rng(seed).permutation(len(places))[:most]
    rows, labels = np.array(places, dtype=np.int64)[chosen].T
    return Canaries(public.X_public[rows], labels, np.arange(len(rows)), labels + 1 if changed else None)


def _first_cell_vote(voters: Neighbours, public: PublicData) -> CellVote:
    """The first round, with the cells that a run makes: they follow from public examples and the config."""
    settings = voters.config.neighbours
    with scratch_folder() as folder:
        stage = Rounds(settings, voters.rounds, voters.config.seed, folder / "cells")
        features = stage.features(None)
        cells = stage.make_cells(1, voters.rounds[0], features(public.X_public))
    return CellVote(features, cells, settings.votes_per_record, public.n_classes)


class _Round(NamedTuple):
    cell_vote: CellVote
    mechanism: Mechanism
    released: NDArray[np.int64]


def _released_rounds(voters: Neighbours, run: Run, n_classes: int) -> list[_Round]:
    """What the run has in its ledger, read through its own door. Rounds in a student's features are left out."""
    settings, rounds = voters.config.neighbours, voters.rounds
    aggregator = Aggregator(voters.mechanism, ledger_opener(voters, run), run.private, run.key, 0)
    features = RecordFeatures([step.model_dump() for step in settings.features])
    nobody = LocalVoteCounter(Records(np.zeros((0, 1)), np.zeros(0, dtype=np.int64)), run.key)
    found = []
    for number, round in enumerate(rounds, start=1):
        if round.by_student:
            continue
        cells = Cells.read(run.cells_folder / f"cells-{number}.npz")
        cell_vote = CellVote(features, cells, settings.votes_per_record, n_classes)
        name = f"round {number} of {len(rounds)}, cells {digest(cells)}"
        released = aggregator.release_round(name, cell_vote, round.mechanism, nobody)
        found.append(_Round(cell_vote, round.mechanism, released))
    aggregator.close()
    return found


def _votes_of_each(cell_vote: CellVote, canaries: Canaries) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Votes [canaries, cells, classes] of each canary alone, if its coin says in and if it says out."""
    shape = (len(canaries), len(cell_vote.cells), cell_vote.n_classes)
    ours, theirs = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    nearest = cell_vote.cells.nearest(cell_vote.features(canaries.X), cell_vote.votes)
    for depth in range(cell_vote.votes):
        rows = np.flatnonzero(nearest[:, depth] >= 0)
        ours[rows, nearest[rows, depth], canaries.y[rows]] += 1
        if canaries.y_out is not None:
            theirs[rows, nearest[rows, depth], canaries.y_out[rows]] += 1
    return ours, theirs


def _log_ratios(
    mechanism: Mechanism,
    released: NDArray[np.int64],
    honest: NDArray[np.int64],
    ours: NDArray[np.int64],
    theirs: NDArray[np.int64],
) -> NDArray[np.float64]:
    """ln P[released | canary in] − ln P[released | out], each canary as if it were the only one."""

    def log_likelihood(counts: NDArray[np.int64], seen: NDArray[np.int64]) -> float:
        if mechanism.releases_counts:
            noise: Any = mechanism.noise  # type: ignore[attr-defined]
            return float(noise.log_pmf(seen - counts).sum())
        return float(mechanism.log_outcomes(counts)[np.arange(len(seen)), seen[:, 0]].sum())

    result = np.zeros(len(ours))
    for i, (us, them) in enumerate(zip(ours, theirs, strict=True)):
        cells = np.flatnonzero((us + them).any(axis=1))
        inside, outside = honest[cells] + us[cells], honest[cells] + them[cells]
        result[i] = log_likelihood(inside, released[cells]) - log_likelihood(outside, released[cells])
    return result


def _as_counts(released: NDArray[np.int64], n_classes: int) -> NDArray[np.int64]:
    return released if released.shape[1] == n_classes else np.eye(n_classes, dtype=np.int64)[released[:, 0]]
