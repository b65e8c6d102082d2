"""Before anything is charged: the student, the comparison and the report, tried on public data with made-up labels.

A failure after the labels are paid for wastes privacy. So whatever the config and the names in the data can break is
built, trained for a moment, stored, loaded and drawn first. Nothing private is used.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pate.components.registry import make_importable
from pate.config import Config
from pate.data.dataset import Dataset, Votes
from pate.errors import ConfigError, DataError, first_line, own_line
from pate.mechanisms import UNANSWERED, Mechanism
from pate.networks.threads import one_thread
from pate.students.stage import model_card, new_student, stored_student
from pate.voters.teachers.rounds import teacher_rounds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pate.teachers import Recipe

_STEPS = 2  # of training a network: enough for every line of its loop
_LABELS_PER_CLASS, _MIN_LABELS = 6, 60
_TIMES_MORE = 8  # examples, to see how a student's time grows with them
_UNLABELLED = 128
_MANY = 2000  # examples for a teacher that fails on a few
_PREDICTED = 5
_SHOWN = 6  # examples of the page: one line of them


def check_components(config: Config, config_dir: Path) -> None:
    """Import and construct everything the config names, before a directory is made for it."""
    from pate.features import build_features
    from pate.teachers import recipe_of, recipes

    make_importable(config_dir)
    kinds = [recipe for round_ in teacher_rounds(config) for recipe in recipes(round_.config.teachers)]
    for recipe in kinds + ([recipe_of(config.nonprivate, "nonprivate")] if config.nonprivate else []):
        recipe.estimator(config.seed)
        recipe.build_features()
    if config.neighbours is not None:
        build_features([step.model_dump() for step in config.neighbours.features], "neighbours.features")
    new_student(config)


def try_everything(config: Config, data: Dataset, mechanism: Mechanism, epsilon: float, pages: bool = True) -> float:
    """Raise ConfigError where the student, the model without privacy or the report would fail later.

    Returns about how many seconds the student will take.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as that two steps of training did not converge
        if config.voters == "teachers" and not isinstance(data.private, Votes):
            try_teachers(config, data)
        with one_thread():  # as it will be trained
            try_student(config, data, mechanism.may_decline)
            seconds = student_seconds(config, data, mechanism.may_decline)
        if config.nonprivate is not None and data.benchmark and data.X_test is not None:
            try_nonprivate(config, data)
        if pages:
            try_report(config, data, mechanism, epsilon)
    return seconds


def estimate_student_seconds(config: Config, data: Dataset, may_decline: bool) -> float | None:
    """About how long a student takes, for a plan; None where it cannot be tried, or may not be imported."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with one_thread():
                try_student(config, data, may_decline)  # what has to be loaded takes no time then
                return student_seconds(config, data, may_decline)
        except ConfigError:
            return None


def try_teachers(config: Config, data: Dataset) -> None:
    """Each kind of teacher on public examples: its features, and whether one of scikit-learn's can be fitted.

    On a few examples or, if it fails on those, on more; workers try all kinds again, where they are trained.
    """
    from pate.teachers import recipes

    for recipe in recipes(config.teachers):
        try:
            with _as_failure(f"{recipe.key}.features", "worked out"):
                shown = recipe.build_features().transform(data.X_public[:_PREDICTED])
                if len(shown) != len(data.X_public[:_PREDICTED]):
                    raise ValueError("not one row per example")
            if type(recipe.estimator(config.seed)).__module__.startswith("sklearn."):
                _fit_teacher(recipe, data, config.seed)
        except _Failed as error:
            raise ConfigError(str(error)) from None


def _fit_teacher(recipe: Recipe, data: Dataset, seed: int) -> None:
    from pate.teachers.part import PartClassifier

    n_classes = len(data.classes)
    few = max(_MIN_LABELS, _LABELS_PER_CLASS * n_classes)
    for size in dict.fromkeys(min(n, len(data.X_public)) for n in (few, _MANY)):
        try:
            with _as_failure(f"{recipe.key}.name = {recipe.name!r}", "trained"):
                X = recipe.build_features().transform(data.X_public[:size])
                teacher = PartClassifier(recipe.estimator(seed)).fit(X, dummy_labels(size, n_classes, False))
                teacher.predict(X[:_PREDICTED])
        except _Failed as error:
            failure = error
        else:
            return
    raise failure


def try_student(config: Config, data: Dataset, may_decline: bool) -> None:
    """Fit, store, load and ask a student: on a few examples or, if it fails on those, on as many as there will be."""
    asked = min(config.budget.max_queries if config.voters == "teachers" else len(data.X_public), len(data.X_public))
    few = min(asked, max(_MIN_LABELS, _LABELS_PER_CLASS * len(data.classes)))
    for size, pool in dict.fromkeys([(few, few + _UNLABELLED), (asked, len(data.X_public))]):
        labels = dummy_labels(size, len(data.classes), may_decline)
        try:
            _try_student_on(config, data, data.X_public[:pool], labels)
        except _Failed as error:
            failure = error
        else:
            return
    raise ConfigError(str(failure))


def student_seconds(config: Config, data: Dataset, may_decline: bool) -> float:
    """About how long a student takes on this machine: by a few steps of its training, else by a few examples.

    Where labels will be held out, with the students that are taught the rest; one that was tried before, so that
    everything is loaded.
    """
    from pate.students.held_out import FOLDS, count_run_tries

    asked = min(config.budget.max_queries if config.voters == "teachers" else len(data.X_public), len(data.X_public))
    few = min(asked, max(_MIN_LABELS, _LABELS_PER_CLASS * len(data.classes)))
    steps = getattr(new_student(config), "steps", None)
    more = 0.0 if data.y_test is not None else count_run_tries(config) * (1 - 1 / FOLDS)
    times = 1 + more + (config.neighbours.refine if config.neighbours is not None else 0)
    try:
        if not isinstance(steps, int):
            more_of_them = min(asked, _TIMES_MORE * few)
            prepared, fitted = _prepared_and_fitted_in(config, data, more_of_them, may_decline)
            for_each = 0.0
            if more_of_them > few:  # what takes as long with few examples does not take longer with many
                _, fitted_few = _prepared_and_fitted_in(config, data, few, may_decline)
                for_each = max(0.0, fitted - fitted_few) / (more_of_them - few)
            whole = fitted + for_each * (asked - more_of_them)
            return prepared * len(data.X_public) / more_of_them + times * whole
        short, longer = (_fitted_in(config, data, few, may_decline, n) for n in (_STEPS, 4 * _STEPS))
        per_step = (longer - short) / (3 * _STEPS) if longer > short else longer / (4 * _STEPS)
        return times * per_step * steps
    except Exception:  # it needs more labels than a few: an estimate is not worth an error
        return 0.0


def _prepared_and_fitted_in(config: Config, data: Dataset, n: int, may_decline: bool) -> tuple[float, float]:
    """Seconds for a student's transforms of `n` public examples, once they are loaded, and for fitting what is left."""
    student = new_student(config)
    if not getattr(student, "preprocessing", None):
        return 0.0, _fitted_in(config, data, n, may_decline)
    seen = student.transforms().transform
    seen(data.X_public[:1])
    started = time.perf_counter()
    X = seen(data.X_public[:n])
    prepared = time.perf_counter() - started
    weights = {"sample_weight": np.ones(n)} if config.voters == "neighbours" else {}
    started = time.perf_counter()
    student.bare().fit(X, dummy_labels(n, len(data.classes), may_decline), **weights)
    return prepared, time.perf_counter() - started


def _fitted_in(config: Config, data: Dataset, n: int, may_decline: bool, steps: int | None = None) -> float:
    """Seconds to fit a student to the first `n` public examples with made-up labels."""
    student = new_student(config)
    if steps is not None:
        student.set_params(steps=steps)
    labels, X = dummy_labels(n, len(data.classes), may_decline), data.X_public[: n + _UNLABELLED]
    weights = {"sample_weight": np.ones(n)} if config.voters == "neighbours" else {}
    started = time.perf_counter()
    student.fit(X[:n], labels, X[n:], **weights)
    return time.perf_counter() - started


def dummy_labels(size: int, n_classes: int, may_decline: bool) -> NDArray[np.int64]:
    """Every class in turn, and ⊥ at the end where the mechanism may say so."""
    labels = np.arange(size) % n_classes
    if may_decline and size > 2 * n_classes:
        labels[-1] = UNANSWERED
    return labels


class _Failed(Exception):
    """What was tried does not work; the text says how."""


def _try_student_on(config: Config, data: Dataset, X: NDArray, labels: NDArray[np.int64]) -> None:
    name = f"student.name = {config.student.name!r}"
    student = _briefly(new_student(config))
    shown = X[:_PREDICTED]
    with tempfile.TemporaryDirectory(prefix="pate-") as folder, _as_failure(name, "trained"):
        further: dict[str, Any] = {}
        if config.voters == "neighbours":
            further = {"sample_weight": np.linspace(0.1, 1, len(labels))}
        if "checkpoint" in signature(student.fit).parameters:
            further |= {"progress": lambda _: None, "checkpoint": Path(folder) / "checkpoint"}
        student.fit(X[: len(labels)], labels, X[len(labels) :], **further)
    with _as_failure(name, "asked"):
        predicted = _checked_predictions(student, shown, len(data.classes))
    if config.voters == "neighbours":
        _check_features(config, student, X)
    if any(one.features == "student" for one in config.teacher_rounds):
        _check_seeing(config, student, X, labels)
    if config.budget.adaptive:
        from pate.voters.teachers.query_loop import require_confidence

        require_confidence(student, config.budget.query_selection)
    if config.student.prototype is not None:  # nothing but a name can be stored
        return
    with tempfile.TemporaryDirectory(prefix="pate-") as folder, _as_failure(name, "stored and loaded"):
        again = stored_student(student, Path(folder) / "student", config, model_card(config, data, 1.0))
        if not np.array_equal(predicted, again.predict(shown)):
            raise ValueError("its predictions are not those of before")


def _check_features(config: Config, student: Any, X: NDArray) -> None:
    """Raise ConfigError where cells cannot be made: public features, and a student's own for a later round."""
    from pate.students.stage import require_learned_features
    from pate.voters.neighbours.features import RecordFeatures

    assert config.neighbours is not None
    steps = [step.model_dump() for step in config.neighbours.features]
    with _as_failure("neighbours.features", "worked out"):
        seen = RecordFeatures(steps)(X[:_PREDICTED])
        if seen.shape[0] != len(X[:_PREDICTED]):
            raise ValueError("not one row per example")
    if any(round.by_student for round in config.build_rounds()):
        require_learned_features(student, config)


def _check_seeing(config: Config, student: Any, X: NDArray, labels: NDArray[np.int64]) -> None:
    """Raise ConfigError where teachers of a later round could not be fitted to what the student sees."""
    from pate.students._neural import NeuralStudent
    from pate.teachers import recipes
    from pate.teachers.part import PartClassifier
    from pate.voters.teachers.rounds import teacher_rounds

    if not isinstance(student, NeuralStudent):
        raise ConfigError(
            f"teacher_rounds.features = 'student': {config.student.name!r} learns no features that workers could "
            "be given; use mixmatch or gan as student"
        )
    taught = labels != UNANSWERED
    seen, given = student.features(X[: len(labels)][taught]), labels[taught]
    for round_ in teacher_rounds(config):
        for recipe in recipes(round_.config.teachers) if round_.by_student else ():
            what = f"teacher_rounds.{round_.number - 1}.teachers = {recipe.name!r}"
            with _as_failure(what, "fitted to a student's features"), _named(what):
                found = recipe.build_features().transform(seen)
                PartClassifier(_briefly(recipe.estimator(config.seed))).fit(found, given).predict(found[:_PREDICTED])


def _checked_predictions(student: Any, X: NDArray, n_classes: int) -> NDArray[np.int64]:
    predicted = np.asarray(student.predict(X))
    if predicted.shape != (len(X),) or not np.isin(predicted, np.arange(n_classes)).all():
        raise ValueError(f"predict gives {predicted.dtype}{list(predicted.shape)}, not one class number per example")
    if hasattr(student, "predict_proba"):
        shares = np.asarray(student.predict_proba(X))
        if shares.ndim != 2 or len(shares) != len(X) or not np.isfinite(shares).all():
            raise ValueError(f"predict_proba gives {list(shares.shape)}, not a finite share per example and class")
    return predicted


def _briefly(estimator: Any) -> Any:
    """The estimator set to a few steps of training, where it counts its steps."""
    from pate.students.supervised import Supervised

    if not hasattr(estimator, "get_params"):
        return estimator
    counted = [
        name
        for name, value in estimator.get_params().items()
        if name.split("__")[-1] == "steps" and isinstance(value, int) and value > _STEPS
    ]
    estimator.set_params(**dict.fromkeys(counted, _STEPS))
    if isinstance(estimator, Supervised) and isinstance(getattr(estimator.build(), "steps", None), int):
        estimator.set_params(params={**(estimator.params or {}), "steps": _STEPS})
    return estimator


def try_nonprivate(config: Config, data: Dataset) -> None:
    """The model without privacy, on public examples."""
    from pate.teachers import recipe_of
    from pate.teachers.part import PartClassifier

    assert config.nonprivate is not None
    recipe = recipe_of(config.nonprivate, "nonprivate")
    n_classes = len(data.classes)
    X = data.X_public[: max(_MIN_LABELS, _LABELS_PER_CLASS * n_classes)]
    try:
        with _as_failure(f"nonprivate.name = {config.nonprivate.name!r}", "trained"):
            features = recipe.build_features().transform(X)
            model = PartClassifier(_briefly(recipe.estimator(config.seed)))
            model.fit(features, dummy_labels(len(X), n_classes, False)).predict(features[:_PREDICTED])
    except _Failed as error:
        raise ConfigError(str(error)) from None


def try_report(config: Config, data: Dataset, mechanism: Mechanism, epsilon: float) -> None:
    """Every page and plot, drawn from made-up figures and the real names, of classes above all."""
    from pate.report.dummy import dummy_report
    from pate.report.figures import save_examples
    from pate.report.files import store_report, write_pages
    from pate.runs.files import RunFiles

    labels = dummy_labels(min(_SHOWN, len(data.X_public)), len(data.classes), True)
    try:
        with tempfile.TemporaryDirectory(prefix="pate-") as folder, _as_failure("report", "drawn"):
            path = Path(folder)
            RunFiles(path).config_file.write_text(config.to_yaml(), encoding="utf-8")
            store_report(path, dummy_report(config, data, mechanism, epsilon))
            save_examples(RunFiles(path).examples_file, data, labels)
            write_pages(path, images=False)
    except _Failed as error:
        raise ConfigError(f"{error}; are the names of the classes plain text?") from None


@contextmanager
def _named(what: str) -> Iterator[None]:
    """Say which part of the config an error about data is about."""
    try:
        yield
    except DataError as error:
        raise ConfigError(f"{what}: cannot come after a student's features: {error}") from None


@contextmanager
def _as_failure(what: str, how: str) -> Iterator[None]:
    """Turn any error into one line; a ConfigError or DataError, which says what to do, passes as it is."""
    try:
        yield
    except (ConfigError, DataError):
        raise
    except Exception as error:  # somebody else's class may fail in any way
        place = own_line(error)
        raise _Failed(
            f"{what}: cannot be {how}, as tried on public examples with made-up labels before anything was charged: "
            f"{f'{place}: ' if place else ''}{type(error).__name__}: {first_line(error)}"
        ) from None
