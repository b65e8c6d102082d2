"""What an audit may do to teachers: count the votes of changed records again, and put canaries among the records.

A canary is a person with a wrong label for every example that is asked about, so its teacher votes as it says; its
score is the likelihood ratio, to first order, of all released labels, given what its teacher votes with it and without
it. *replay*: the run is made once more without canaries, and what is released is compared. *student*: the probability
that the student gives to the canary's own labels.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pate.audit.mechanism import worst_pair
from pate.audit.results import (
    Canaries,
    OneRunAudit,
    Scores,
    fair_coins,
    fewer_records,
    scratch_folder,
    scratch_run,
    student_scores,
    with_quick_student,
)
from pate.boundary._aggregator import Aggregator, query_ids
from pate.boundary._guard import silenced
from pate.data.partition import parts_of
from pate.data.private import Records
from pate.data.public import PublicData
from pate.ledger import Ledger
from pate.mechanisms import UNANSWERED, Mechanism
from pate.networks._process import one_thread
from pate.voters.teachers._worker import Teaching, TrainingJob, Worker
from pate.voters.teachers.ensemble import Ensemble, split_records

if TYPE_CHECKING:
    from pate.voters.teachers import Teachers, TeachersConfig

_RECORDS_PER_PART = 20  # the promise is for every data set, and few make a canary's teacher its own
_MAX_QUERIES = 500


class TeacherVotes:
    """Votes on the examples that are asked about, as an aggregator has collected them."""

    what = "votes of a query"

    def __init__(self, voters: Teachers, public: PublicData, config_dir: Path, key: bytes) -> None:
        self._config, self._mechanism, self._key = voters.config, voters.mechanism, key
        self.max_records = _RECORDS_PER_PART * voters.config.n_teachers
        self._queries = public.X_public[: min(voters.config.budget.max_queries, _MAX_QUERIES)]
        self._teaching, self._per_person = Teaching.of(voters.config, public.n_classes, config_dir), public.per_person

    def __call__(self, records: Records) -> NDArray[np.int64]:
        with scratch_folder() as folder:
            aggregator = Aggregator(self._mechanism, _no_ledger, folder, self._key, self._config.n_teachers)
            with Ensemble(self._teaching, split_records(self._config, records, self._key)) as ensemble:
                ensemble.train()
                ensemble.vote(lambda voters: aggregator.collect(self._queries, voters))
            return np.array([aggregator._votes[query] for query in query_ids(self._queries, self._key)])

    def moved(self, difference: NDArray[np.int64], change: str) -> tuple[float, float]:
        """A record without an id that changes is another one: one goes and one comes."""
        steps = 2 if change == "changed" and not self._per_person else 1
        return float(np.abs(difference).sum(axis=1).max() / 2), float(steps * self._mechanism.votes_per_record)

    def costs(self, moved: float, change: str) -> tuple[float, float]:
        delta = self._config.budget.delta
        claimed = self._mechanism.worst_case(1, 1).epsilon(delta)
        if not moved or self._mechanism.priced_as_stream:
            return 0.0, claimed
        votes = int(np.ceil(moved / (2 if change == "changed" and not self._per_person else 1)))
        return worst_pair(self._mechanism, self._config.n_teachers, delta, moved=votes).epsilon, claimed


def _no_ledger() -> Ledger:
    raise AssertionError("nothing is released here")


def persons_in_or_out(voters: Teachers) -> OneRunAudit:
    """Canaries that are persons with a record for every query, in or out."""
    return OneRunAudit(
        "persons in or out",
        "a person added or removed",
        voters.publishable_epsilon,
        lambda *given: _find_scores(voters, *given),
    )


def _find_scores(
    voters: Teachers, public: PublicData, records: Records, most: int, config_dir: Path, seed: int
) -> tuple[Scores, NDArray[np.bool_]]:
    config, n_classes = voters.config, public.n_classes
    records = fewer_records(records, _RECORDS_PER_PART * config.n_teachers, seed)
    asked = min(config.budget.max_queries, len(public.X_public))
    n = max(2, min(most, config.n_teachers))
    owner, queries = np.repeat(np.arange(n), asked), np.tile(np.arange(asked), n)
    labels = np.random.default_rng(seed).integers(0, n_classes, len(owner))
    canaries, coins = Canaries(public.X_public[queries], labels, owner), fair_coins(n)
    with scratch_run(config, public, canaries.among(records, coins, ids=True), config_dir) as run:
        published = run.labels
        assert published is not None
        rows, released, key = published.rows, published.labels, run.key
        student = student_scores(run, canaries, n_classes)
    nobody = canaries.among(records, np.zeros(n, dtype=bool), ids=True)
    with scratch_run(with_quick_student(config), public, nobody, config_dir) as run:
        again = run.labels
        assert again is not None
        before = dict(zip(again.rows.tolist(), again.labels.tolist(), strict=True))
    everybody = canaries.among(records, np.ones(n, dtype=bool), ids=True)
    X = public.X_public[rows]
    alone, moves = _moves(config, n_classes, everybody, len(records), key, X, canaries, config_dir)
    gain = _gains(voters.mechanism, alone + moves.sum(axis=0) / 2, released)
    others = np.array([before.get(row, UNANSWERED) for row in rows.tolist()])
    difference = _one_hot(released, n_classes) - _one_hot(others, n_classes)
    scores = {"released": (moves * gain).sum(axis=(1, 2)), "replay": (moves * difference).sum(axis=(1, 2))}
    return scores | {"student": student}, coins


def _moves(
    config: TeachersConfig,
    n_classes: int,
    records: Records,
    honest: int,
    key: bytes,
    queries: NDArray,
    canaries: Canaries,
    config_dir: Path,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Votes [queries, classes] of all teachers without canaries, and by how much each canary alone moves them."""
    teaching = Teaching.of(config, n_classes, config_dir)
    parts = parts_of(records.X, records.y, records.ids, key, config.split)

    def votes(part: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        worker = Worker(teaching)
        with one_thread(), silenced():
            worker.train(TrainingJob(teaching.assignment[part], (part,)), {part: (records.X[rows], records.y[rows])})
            return worker.count(queries).counts

    whose = np.concatenate([np.full(honest, -1), canaries.owner])
    alone = [votes(part, rows[whose[rows] < 0]) for part, rows in enumerate(parts)]
    moves = np.zeros((len(canaries), len(queries), n_classes), dtype=np.int64)
    for part, rows in enumerate(parts):
        for canary in np.unique(whose[rows][whose[rows] >= 0]).tolist():
            moves[canary] += votes(part, rows[(whose[rows] < 0) | (whose[rows] == canary)]) - alone[part]
    return np.sum(alone, axis=0), moves


def _gains(mechanism: Mechanism, counts: NDArray[np.float64], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """How much a vote for each class raises the released label's log-probability, [queries, classes]."""
    n_classes = counts.shape[1]
    if not mechanism.has_exact_cost:
        return _one_hot(labels, n_classes) - 1 / n_classes
    rows, whole = np.arange(len(counts)), np.maximum(np.rint(counts).astype(np.int64), 1)
    steps = np.eye(n_classes, dtype=np.int64)
    more = [mechanism.log_outcomes(whole + step)[rows, labels] for step in steps]
    fewer = [mechanism.log_outcomes(whole - step)[rows, labels] for step in steps]
    return np.stack([(a - b) / 2 for a, b in zip(more, fewer, strict=True)], axis=1)


def _one_hot(labels: NDArray[np.int64], n_classes: int) -> NDArray[np.float64]:
    """⊥ is no class."""
    return np.eye(n_classes + 1)[labels % (n_classes + 1)][:, :n_classes]
