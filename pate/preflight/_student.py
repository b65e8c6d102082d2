"""The student, tried on public examples with dummy labels: fitted for a moment, stored, loaded and asked."""

from __future__ import annotations

import tempfile
import time
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pate.components._registry import (
    SHOWN,
    STEPS,
    AttemptFailed,
    attempt,
    dummy_labels,
    few_labels,
    shorten_training,
)
from pate.config import Config
from pate.data.public import PublicData
from pate.errors import ConfigError
from pate.networks._process import one_thread
from pate.runs.model_store import model_from_files, model_to_files
from pate.students._stage import model_card, new_student
from pate.voters import voters_of

if TYPE_CHECKING:
    from pate.runs.context import RunContext

_TIMES_MORE = 8  # examples, to see how a student's time grows with them
_UNLABELLED = 128


def check(context: RunContext) -> None:
    """Raise ConfigError where the student would fail later; note about how many seconds it will take."""
    config, public = context.config, context.public
    may_decline = voters_of(config).mechanism.may_decline
    with one_thread():  # as it will be trained
        try_student(config, public, may_decline)
        context.student_seconds = student_seconds(config, public, may_decline)


def try_student(config: Config, data: PublicData, may_decline: bool) -> None:
    """Fit, store, load and ask a student: on a few examples or, if it fails on those, on as many as there will be."""
    asked = config.count_labels(len(data.X_public))
    few = min(asked, few_labels(data.n_classes))
    for size, pool in dict.fromkeys([(few, few + _UNLABELLED), (asked, len(data.X_public))]):
        labels = dummy_labels(size, data.n_classes, may_decline)
        try:
            _try_student_on(config, data, data.X_public[:pool], labels)
        except AttemptFailed as error:
            failure = error
        else:
            return
    raise ConfigError(str(failure))


def student_seconds(config: Config, data: PublicData, may_decline: bool) -> float:
    """About how long a student takes on this machine: by a few steps of its training, else by a few examples.

    Where labels will be held out, with the students that are taught the rest; one that was tried before, so that
    everything is loaded.
    """
    from pate.students._stage import FOLDS, count_run_tries

    asked = config.count_labels(len(data.X_public))
    few = min(asked, few_labels(data.n_classes))
    steps = _count_steps(new_student(config))
    more = 0.0 if data.y_test is not None else count_run_tries(config) * (1 - 1 / FOLDS)
    times = 1 + more + config.refinements
    try:
        if steps is None:
            more_of_them = min(asked, _TIMES_MORE * few)
            prepared, fitted = _time_fit(config, data, more_of_them, may_decline)
            for_each = 0.0
            if more_of_them > few:  # what takes as long with few examples does not take longer with many
                _, fitted_few = _time_fit(config, data, few, may_decline)
                for_each = max(0.0, fitted - fitted_few) / (more_of_them - few)
            whole = fitted + for_each * (asked - more_of_them)
            return prepared * len(data.X_public) / more_of_them + times * whole
        prepared, short = _time_fit(config, data, few, may_decline, STEPS)
        longer = _time_fit(config, data, few, may_decline, 4 * STEPS)[1]
        per_step = (longer - short) / (3 * STEPS) if longer > short else longer / (4 * STEPS)
        return prepared * len(data.X_public) / few + times * per_step * steps
    except Exception:  # it needs more labels than a few: an estimate is not worth an error
        return 0.0


def _count_steps(student: Any) -> int | None:
    """How many steps a student, or the classifier that it is around, is trained for; None where it counts none."""
    from pate.students.supervised import Supervised

    steps = getattr(student.build() if isinstance(student, Supervised) else student, "steps", None)
    return steps if isinstance(steps, int) else None


def _time_fit(
    config: Config, data: PublicData, n: int, may_decline: bool, steps: int | None = None
) -> tuple[float, float]:
    """Seconds for a student's transforms of `n` public examples, once they are loaded, and to fit it to them."""
    student, prepared = new_student(config), 0.0
    if steps is not None:
        around = not hasattr(student, "steps")  # a classifier that counts them
        student.set_params(**{"params": {**(student.params or {}), "steps": steps}} if around else {"steps": steps})
    labels, X = dummy_labels(n, data.n_classes, may_decline), data.X_public[: n + _UNLABELLED]
    weights = {"sample_weight": np.ones(n)} if config.has_weighted_labels else {}
    if getattr(student, "preprocessing", None):
        transform = student.transforms().transform
        transform(X[:1])
        started = time.perf_counter()
        X = transform(X[:n])
        prepared, student = time.perf_counter() - started, student.bare()
    started = time.perf_counter()
    student.fit(X[:n], labels, X[n:], **weights)
    return prepared, time.perf_counter() - started


def _try_student_on(config: Config, data: PublicData, X: NDArray, labels: NDArray[np.int64]) -> None:
    name = f"student.name = {config.student.name!r}"
    student = shorten_training(new_student(config))
    shown = X[:SHOWN]
    with tempfile.TemporaryDirectory(prefix="pate-") as folder, attempt(name, "trained"):
        further: dict[str, Any] = {}
        if config.has_weighted_labels:
            further = {"sample_weight": np.linspace(0.1, 1, len(labels))}
        if "checkpoint" in signature(student.fit).parameters:
            further |= {"progress": lambda _: None, "checkpoint": Path(folder) / "checkpoint"}
        student.fit(X[: len(labels)], labels, X[len(labels) :], **further)
    with attempt(name, "asked"):
        predicted = _checked_predictions(student, shown, data.n_classes)
    voters_of(config).try_student(student, X, labels)
    if config.student.prototype is not None:  # nothing but a name can be stored
        return
    with attempt(name, "stored and loaded"):
        again = model_from_files(model_to_files(student, model_card(config, data, 1.0)), "the student", None)
        if not np.array_equal(predicted, again.predict(shown)):
            raise ValueError("its predictions are not those of before")


def _checked_predictions(student: Any, X: NDArray, n_classes: int) -> NDArray[np.int64]:
    predicted = np.asarray(student.predict(X))
    if predicted.shape != (len(X),) or not np.isin(predicted, np.arange(n_classes)).all():
        raise ValueError(f"predict gives {predicted.dtype}{list(predicted.shape)}, not one class number per example")
    if hasattr(student, "predict_proba"):
        shares = np.asarray(student.predict_proba(X))
        if shares.ndim != 2 or len(shares) != len(X) or not np.isfinite(shares).all():
            raise ValueError(f"predict_proba gives {list(shares.shape)}, not a finite share per example and class")
    return predicted
