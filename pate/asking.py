"""Asking about public examples: in batches that fit the budget, or in rounds that ask what a student is unsure of."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.aggregator import AnyAggregator
from pate.cluster.metrics import Metrics
from pate.config import Config
from pate.console import Console
from pate.data.order import by_clusters
from pate.errors import ConfigError
from pate.mechanisms import UNANSWERED
from pate.runs.run import Run
from pate.students.stage import new_student

BATCH = 50
_DOUBTFUL = 3  # a round of n examples chooses among the 3·n most doubtful ones, for examples unlike each other

Ask = Callable[[NDArray], NDArray[np.int64]]


def ask(aggregator: AnyAggregator, queries: NDArray, metrics: Metrics, console: Console) -> NDArray[np.int64]:
    """Ask in batches that are sure to fit; a batch shrinks where the limit on answers comes near.

    Examples that were never asked, because the limit on answers was reached, count as unanswered.
    """
    labels = np.full(len(queries), UNANSWERED, dtype=np.int64)
    done = 0
    with console.track("labelling", len(queries)) as update:
        while done < len(queries):
            stored = aggregator.stored_prefix(queries[done:])
            size = stored or min(BATCH, aggregator.room(), len(queries) - done)
            if size == 0:
                break
            labels[done : done + size] = aggregator.label(queries[done : done + size]).labels
            done += size
            update(done)
            spent = aggregator.spent()
            metrics.show(queries_asked=spent.asked, queries_answered=spent.answered)
    return labels


def ask_in_rounds(
    X: NDArray, config: Config, ask_about: Ask, directory: Run, console: Console
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of `X` that were asked about, and their labels.

    The first round asks about the centres of clusters, each further one about what a student of the answers so far
    doubts most. Queries then depend on released labels: the cost of the limits holds all the same, by adaptive
    composition, a data-dependent ε does not. The rows of a round are stored before it is asked, so that a resumed run
    asks about the same ones.
    """
    path = directory.rounds_file
    chosen: list[list[int]] = json.loads(path.read_text()) if path.exists() else []
    edges = np.linspace(0, config.budget.asked, config.budget.rounds + 1).astype(int)
    rows, labels = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    for number, size in enumerate(np.diff(edges)):
        if number == len(chosen):
            doubt = _doubt(X, rows, labels, config, console)
            chosen.append(_unlike(X, rows, doubt, int(size), config.seed).tolist())
            directory.note(path.name, chosen)
            directory.sync()
        new = np.array(chosen[number], dtype=np.int64)
        rows, labels = np.concatenate([rows, new]), np.concatenate([labels, ask_about(X[new])])
    return rows, labels


def _doubt(
    X: NDArray, rows: NDArray[np.int64], labels: NDArray[np.int64], config: Config, console: Console
) -> NDArray[np.float64]:
    """How unsure of each example a student of the labels so far is: 1 less the lead of its first guess."""
    if (labels == UNANSWERED).all():
        return np.ones(len(X))
    student = new_student(config)
    check_doubts(student)
    with console.working(f"training a student on {len(rows)} answers, to see what it doubts"):
        student.fit(X[rows], labels, np.delete(X, rows, axis=0))
        probabilities = np.sort(student.predict_proba(X), axis=1)
    lead = probabilities[:, -1] - (probabilities[:, -2] if probabilities.shape[1] > 1 else 0.0)
    return np.asarray(1.0 - lead, dtype=np.float64)


def check_doubts(student: Any) -> None:
    """Raise ConfigError where a student cannot say how unsure it is."""
    if not hasattr(student, "predict_proba"):
        raise ConfigError(
            "budget.query_order = 'doubt': the student has no predict_proba; use another, or query_order: clusters"
        )


def _unlike(
    X: NDArray, asked: NDArray[np.int64], doubt: NDArray[np.float64], size: int, seed: int
) -> NDArray[np.int64]:
    """Rows of examples not yet asked: of the most doubtful, `size` that are unlike each other."""
    rest = np.setdiff1d(np.arange(len(X)), asked)
    most = rest if (doubt == doubt[0]).all() else rest[np.argsort(-doubt[rest], kind="stable")][: _DOUBTFUL * size]
    return most[by_clusters(X[most], size, seed)[:size]]
