"""Asking about public examples: in batches that fit the budget, or in rounds that ask what a student makes of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.boundary.aggregator import Aggregator
from pate.cluster.metrics import show
from pate.config.settings import QueryConfig
from pate.errors import ConfigError
from pate.mechanisms import UNANSWERED
from pate.runs.console import Console
from pate.runs.run import Run
from pate.students.stage import new_student

BATCH = 50
_DOUBTFUL = 3  # a round of n examples chooses among the 3·n most doubtful ones, for examples unlike each other

Ask = Callable[[NDArray], NDArray[np.int64]]


def ask(aggregator: Aggregator, queries: NDArray, console: Console) -> NDArray[np.int64]:
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
            show(queries_asked=spent.asked, queries_answered=spent.answered)
    return labels


def ask_actively(
    X: NDArray, config: QueryConfig, ask_about: Ask, directory: Run, console: Console
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of `X` that were asked about, and their labels.

    The first round asks about the centres of clusters, each further one about what a student of the answers so far
    doubts most, or, for balance, about as many examples of each class as it can tell, the surest first. Queries then
    depend on released labels: the cost of the limits holds all the same, by adaptive composition, a data-dependent ε
    does not. The rows of a round are stored before it is asked, so that a resumed run asks about the same ones.
    """
    path = directory.rounds_file
    chosen: list[list[int]] = json.loads(path.read_text()) if path.exists() else []
    edges = np.linspace(0, config.budget.max_queries, config.budget.active_rounds + 1).astype(int)
    rows, labels = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    for number, size in enumerate(np.diff(edges)):
        if number == len(chosen):
            shares = _shares(X, rows, labels, config, console)
            choose = _doubtful if config.budget.query_selection == "uncertainty" else _of_each_class
            chosen.append(choose(X, rows, shares, int(size), config.seed).tolist())
            directory.note(path.name, chosen)
            directory.sync()
        new = np.array(chosen[number], dtype=np.int64)
        rows, labels = np.concatenate([rows, new]), np.concatenate([labels, ask_about(X[new])])
    return rows, labels


def _shares(
    X: NDArray, rows: NDArray[np.int64], labels: NDArray[np.int64], config: QueryConfig, console: Console
) -> NDArray[np.float64] | None:
    """How likely a student of the labels so far finds each class for each example; None where there are none yet."""
    if (labels == UNANSWERED).all():
        return None
    student = new_student(config)
    require_confidence(student, config.budget.query_selection)
    with console.working(f"training a student on {len(rows)} answers, to see what to ask next"):
        student.fit(X[rows], labels, np.delete(X, rows, axis=0))
        return np.asarray(student.predict_proba(X), dtype=np.float64)


def _doubtful(
    X: NDArray, asked: NDArray[np.int64], shares: NDArray[np.float64] | None, size: int, seed: int
) -> NDArray[np.int64]:
    """Rows not yet asked about: of the most doubtful, whose first guess leads least, `size` unlike each other."""
    if shares is None:
        return _unlike(X, np.setdiff1d(np.arange(len(X)), asked), size, seed)
    ordered = np.sort(shares, axis=1)
    lead = ordered[:, -1] - (ordered[:, -2] if shares.shape[1] > 1 else 0.0)
    return _unlike(X, _first(-lead, asked, _DOUBTFUL * size), size, seed)


def _of_each_class(
    X: NDArray, asked: NDArray[np.int64], shares: NDArray[np.float64] | None, size: int, seed: int
) -> NDArray[np.int64]:
    """Rows not yet asked about: as many for each class, of those that have the largest share of it, unlike others."""
    if shares is None or shares.shape[1] < 2:
        return _unlike(X, np.setdiff1d(np.arange(len(X)), asked), size, seed)
    chosen = np.zeros(0, dtype=np.int64)
    ends = np.linspace(0, size, shares.shape[1] + 1).astype(int)
    for label, wanted in enumerate(np.diff(ends)):
        known = np.concatenate([asked, chosen])
        likely = _first(shares[:, label], known, _DOUBTFUL * int(wanted))
        chosen = np.concatenate([chosen, _unlike(X, likely, int(wanted), seed)])
    return chosen


def _first(scores: NDArray[np.float64], asked: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """Rows not yet asked about, those with the largest scores; all of them where scores do not differ."""
    rest = np.setdiff1d(np.arange(len(scores)), asked)
    if (scores == scores[0]).all():
        return rest
    return rest[np.argsort(-scores[rest], kind="stable")][:most]


def require_confidence(student: Any, order: str = "uncertainty") -> None:
    """Raise ConfigError where a student cannot say how sure it is."""
    if not hasattr(student, "predict_proba"):
        raise ConfigError(
            f"budget.query_selection = {order!r}: the student has no predict_proba; use another, or "
            "query_selection: clusters"
        )


def _unlike(X: NDArray, rows: NDArray[np.int64], size: int, seed: int) -> NDArray[np.int64]:
    """Choose `size` of these rows that are unlike each other."""
    return rows[by_clusters(X[rows], size, seed)[:size]]


_COMPONENTS = 50


def by_clusters(X: NDArray, asked: int, seed: int) -> NDArray[np.int64]:
    """Row numbers: first the example nearest to the centre of each of `asked` k-means clusters, then all others.

    Columns of a table count by their spread, so that no unit of measurement outweighs the others. No label and nothing
    private enters, so the list of queries is fixed before the first vote.
    """
    from sklearn.cluster import MiniBatchKMeans
    from sklearn.decomposition import PCA

    flat = X.reshape(len(X), -1)
    if X.ndim == 2:
        spread = flat.std(axis=0)
        flat = flat / np.where(spread > 0, spread, 1)
    if flat.shape[1] > _COMPONENTS < len(flat):
        flat = PCA(_COMPONENTS, random_state=seed).fit_transform(flat)
    distances = MiniBatchKMeans(min(asked, len(X)), n_init=3, random_state=seed).fit_transform(flat)
    nearest = np.unique(distances.argmin(0))
    return np.concatenate([nearest, np.setdiff1d(np.arange(len(X)), nearest)])
