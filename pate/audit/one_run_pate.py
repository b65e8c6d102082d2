"""Canaries through the whole of PATE: records, partition, teachers or neighbours, aggregator, student; in one run.

`pate.pipeline.run` itself runs, in a scratch folder with a key and a ledger of its own, on the run's data and the
canaries whose coins said in. The attacker knows the data, the config and the run's key: everything but the coins and
the noise. What was released gives the scores:

* *neighbours*: a canary stands where a public example is, with a class of its own choice; its score is the likelihood
  ratio of the released counts (or labels) of the cells it votes in, the other records' votes being known.
* *teachers*: a canary is a person with a wrong label for every example that is asked about, so its teacher votes as it
  says; its score is the likelihood ratio, to first order, of all released labels, given what its teacher votes
  with it and without it.
* *replay*: the run is made once more without canaries, and what is released is compared. Independent noise hides what
  noise that repeats would show.
* *student*: the probability that the student gives to the canary's own labels.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.audit.canaries import Canaries, Guessed, fair_coins, guess
from pate.audit.learners import Fitted
from pate.audit.scratch import scratch_folder
from pate.boundary.aggregator import Aggregator
from pate.boundary.guard import silenced
from pate.components.registry import dotted_names
from pate.config import Config
from pate.data.dataset import Dataset, Records
from pate.data.partition import parts_of
from pate.mechanisms import UNANSWERED, Mechanism
from pate.networks.threads import one_thread
from pate.planning.budget import ledger_opener, neighbours_cost, publishable_epsilon
from pate.preflight.learned_features import with_learned_features
from pate.runs.console import Quiet
from pate.runs.run import Run
from pate.voters.neighbours.cell_vote import CellVote
from pate.voters.neighbours.cells import Cells
from pate.voters.neighbours.features import RecordFeatures
from pate.voters.neighbours.stage import Rounds, digest
from pate.voters.neighbours.vote_counting import LocalVoteCounter
from pate.voters.teachers.readers import split_of
from pate.voters.teachers.worker import Teaching, TrainingJob, Worker

_RECORDS_PER_PART = 20  # of the honest ones: the promise is for every data set, and few make a canary's teacher its own

Scores = dict[str, NDArray[np.float64]]


@dataclass(frozen=True)
class OneRun:
    """What one run with canaries showed."""

    guessed: Guessed
    epsilon_claimed: float
    delta: float
    confidence: float
    relation: str

    @property
    def refutes(self) -> bool:
        return self.guessed.epsilon_lower > self.epsilon_claimed


def audit_pipeline(
    config: Config,
    data: Dataset,
    *,
    canaries: int,
    confidence: float,
    config_dir: Path = Path(),
    changed: bool = False,
    seed: int = 0,
) -> OneRun:
    """Run the pipeline once with canaries and once without, and bound its ε.

    `changed` is for neighbours: the coin says which of two classes a canary has, instead of whether it is in. `seed`
    chooses where canaries stand, never their coins.
    """
    config = _alone(config)
    n_classes = len(data.classes)
    if config.voters == "neighbours":
        cost = neighbours_cost(config, n_classes)
        claimed, relation = (cost.epsilon, "changed") if changed else (cost.added_or_removed, "added or removed")
        scores, coins = _of_neighbours(config, data, canaries, config_dir, changed, seed)
        relation = f"a record {relation}"
    else:
        claimed, relation = (
            publishable_epsilon(config, config.build_mechanism(), n_classes),
            "a person added or removed",
        )
        scores, coins = _of_teachers(config, data, canaries, config_dir, seed)
    guessed = guess(scores, coins, config.budget.delta, confidence)
    return OneRun(guessed, claimed, config.budget.delta, confidence, relation)


def _alone(config: Config) -> Config:
    """Without what would reach outside the scratch folder, or is not part of what is audited."""
    budget = config.budget.model_copy(update={"ledger": None, "sanitise": None})
    return config.model_copy(update={"backend": "local", "nonprivate": None, "budget": budget})


def _without_student(config: Config) -> Config:
    """For a run of which only labels or counts are looked at: with a student that takes no time.

    Where a student has a say in what is released, it stays.
    """
    if "student" not in config.releasing_nothing:
        return config
    quick = {"name": "supervised", "params": {"estimator": "sklearn.naive_bayes.GaussianNB"}}
    neighbours = config.neighbours and config.neighbours.model_copy(update={"refine": 0})
    return config.model_copy(update={"student": config.student.model_copy(update=quick), "neighbours": neighbours})


@contextmanager
def _scratch_run(config: Config, data: Dataset, config_dir: Path) -> Iterator[Run]:
    from pate.pipeline import run

    with scratch_folder() as folder:
        run(
            config,
            folder / "run",
            data=data,
            config_dir=config_dir,
            force=True,
            anchor="none",
            console=Quiet(),
            pages=False,
        )
        with Run.load(folder / "run") as finished:
            yield finished


def _student_scores(run: Run, canaries: Canaries, n_classes: int) -> NDArray[np.float64]:
    """How probable the student of the run finds the labels of each canary, on average over its records."""
    assert isinstance(run.config, Config)
    trusted = run.predictor(dotted_names(run.config.student.model_dump()))
    probable = Fitted(trusted.model, n_classes).predict_proba(canaries.X)[np.arange(len(canaries.y)), canaries.y]
    return np.bincount(canaries.owner, probable, len(canaries)) / np.bincount(canaries.owner, minlength=len(canaries))


# neighbours


def _of_neighbours(
    config: Config, data: Dataset, most: int, config_dir: Path, changed: bool, seed: int
) -> tuple[Scores, NDArray[np.bool_]]:
    config = with_learned_features(config, data.X_public)
    canaries = _in_cells(config, data, most, changed, seed)
    coins, n_classes = fair_coins(len(canaries)), len(data.classes)
    with _scratch_run(config, canaries.among(data, coins, ids=False), config_dir) as run:
        rounds = _released_rounds(config, run, n_classes)
        student = _student_scores(run, canaries, n_classes)
    with _scratch_run(_without_student(config), data, config_dir) as run:
        replayed = _released_rounds(config, run, n_classes)
    ratios, replays = np.zeros(len(canaries)), np.zeros(len(canaries))
    for one, other in zip(rounds, replayed, strict=True):
        honest = _votes(one.cell_vote, data.records)
        ours, theirs = _votes_of_each(one.cell_vote, canaries)
        ratios += _log_ratios(one.mechanism, one.released, honest, ours, theirs)
        difference = _as_counts(one.released, n_classes) - _as_counts(other.released, n_classes)
        replays += ((ours - theirs) * difference).sum(axis=(1, 2))
    return {"released": ratios, "replay": replays, "student": student}, coins


def _in_cells(config: Config, data: Dataset, most: int, changed: bool, seed: int) -> Canaries:
    """A canary for each cell and class, or pair of classes, of the first round; no more than `most`, chosen by seed."""
    cell_vote = first_cell_vote(config, data)
    seen, cells = cell_vote.features(data.X_public), cell_vote.cells
    nearest, step = cells.nearest_examples(seen), 2 if changed else 1
    places = [(row, label) for row in nearest.tolist() for label in range(0, len(data.classes) - step + 1, step)]
    chosen = np.random.default_rng(seed).permutation(len(places))[:most]
    rows, labels = np.array(places, dtype=np.int64)[chosen].T
    return Canaries(data.X_public[rows], labels, np.arange(len(rows)), labels + 1 if changed else None)


def first_cell_vote(config: Config, data: Dataset) -> CellVote:
    """The first round, with the cells that a run makes: they follow from public examples and the config."""
    assert config.neighbours is not None
    rounds = config.build_rounds()
    with scratch_folder() as folder:
        stage = Rounds(config.neighbours, rounds, config.seed, folder / "cells")
        features = stage._features(None)
        cells = stage._cells(1, rounds[0], features(data.X_public))
    return CellVote(features, cells, config.neighbours.votes_per_record, len(data.classes))


@dataclass(frozen=True)
class _Round:
    cell_vote: CellVote
    mechanism: Mechanism
    released: NDArray[np.int64]


def _released_rounds(config: Config, run: Run, n_classes: int) -> list[_Round]:
    """What the run has in its ledger, read through its own door. Rounds in a student's features are left out."""
    assert config.neighbours is not None
    mechanism, rounds = config.build_mechanism(), config.build_rounds()
    aggregator = Aggregator(mechanism, ledger_opener(config, mechanism, run), run.private, run.key, 0)
    features = RecordFeatures([step.model_dump() for step in config.neighbours.features])
    nobody = LocalVoteCounter(Records(np.zeros((0, 1)), np.zeros(0, dtype=np.int64)), run.key)
    found = []
    for number, round in enumerate(rounds, start=1):
        if round.by_student:
            continue
        cells = Cells.read(run.cells_folder / f"cells-{number}.npz")
        cell_vote = CellVote(features, cells, config.neighbours.votes_per_record, n_classes)
        name = f"round {number} of {len(rounds)}, cells {digest(cells)}"
        released = aggregator.release_round(name, cell_vote, round.mechanism, nobody)
        found.append(_Round(cell_vote, round.mechanism, released))
    aggregator.close()
    return found


def _votes(cell_vote: CellVote, records: Records) -> NDArray[np.int64]:
    return LocalVoteCounter(records, b"key").count(cell_vote)[0].counts


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
    result = np.zeros(len(ours))
    for i in range(len(ours)):
        cells = np.flatnonzero((ours[i] + theirs[i]).any(axis=1))
        inside, outside = honest[cells] + ours[i, cells], honest[cells] + theirs[i, cells]
        if mechanism.releases_counts:
            noise: Any = mechanism.noise  # type: ignore[attr-defined]
            result[i] = (noise.log_pmf(released[cells] - inside) - noise.log_pmf(released[cells] - outside)).sum()
        else:
            rows, labels = np.arange(len(cells)), released[cells, 0]
            result[i] = (
                mechanism.log_outcomes(inside)[rows, labels] - mechanism.log_outcomes(outside)[rows, labels]
            ).sum()
    return result


def _as_counts(released: NDArray[np.int64], n_classes: int) -> NDArray[np.int64]:
    return released if released.shape[1] == n_classes else np.eye(n_classes, dtype=np.int64)[released[:, 0]]


# teachers


def _of_teachers(
    config: Config, data: Dataset, most: int, config_dir: Path, seed: int
) -> tuple[Scores, NDArray[np.bool_]]:
    config = with_learned_features(config, data.X_public)
    data = fewer_records(data, _RECORDS_PER_PART * config.n_teachers, seed)
    asked = min(config.budget.max_queries, len(data.X_public))
    rng = np.random.default_rng(seed)
    n_classes, n = len(data.classes), max(2, min(most, config.n_teachers))
    owner = np.repeat(np.arange(n), asked)
    queries = np.tile(np.arange(asked), n)
    canaries = Canaries(data.X_public[queries], rng.integers(0, n_classes, len(owner)), owner)
    coins = fair_coins(n)
    with _scratch_run(config, canaries.among(data, coins, ids=True), config_dir) as run:
        published = run.labels
        assert published is not None
        rows, labels, key = published.rows, published.labels, run.key
        student = _student_scores(run, canaries, n_classes)
    nobody = canaries.among(data, np.zeros(n, dtype=bool), ids=True)
    with _scratch_run(_without_student(config), nobody, config_dir) as run:
        again = run.labels
        assert again is not None
        before = dict(zip(again.rows.tolist(), again.labels.tolist(), strict=True))
    everybody = canaries.among(data, np.ones(n, dtype=bool), ids=True)
    alone, moves = _moves(config, everybody, len(data.records), key, data.X_public[rows], canaries, config_dir)
    gain = _gains(config.build_mechanism(), alone + moves.sum(axis=0) / 2, labels)
    others = np.array([before.get(row, UNANSWERED) for row in rows.tolist()])
    difference = _one_hot(labels, n_classes) - _one_hot(others, n_classes)
    scores = {"released": (moves * gain).sum(axis=(1, 2)), "replay": (moves * difference).sum(axis=(1, 2))}
    return scores | {"student": student}, coins


def fewer_records(data: Dataset, most: int, seed: int) -> Dataset:
    """At most so many of the private records, chosen by the seed alone."""
    keep = np.zeros(len(data.records), dtype=bool)
    keep[np.random.default_rng(seed).permutation(len(keep))[:most]] = True
    return replace(data, private=data.records.only(keep))


def _moves(
    config: Config,
    data: Dataset,
    honest: int,
    key: bytes,
    queries: NDArray,
    canaries: Canaries,
    config_dir: Path,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Votes [queries, classes] of all teachers without canaries, and by how much each canary alone moves them."""
    records, n_classes = data.records, len(data.classes)
    teaching = Teaching.of(config, n_classes, config_dir)
    parts = parts_of(records.X, records.y, records.ids, key, split_of(config))

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
    """By how much a vote for each class raises the released label's log-probability, [queries, classes]."""
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
