"""Everything a config names, built and tried on public data before anything is charged: a check per idea, in one list.

A failure after the labels are paid for wastes privacy. So whatever the config and the names in the data can break is
built, trained for a moment, stored, loaded and drawn first. Nothing private is used.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pate.components._registry import (
    SHOWN,
    AttemptFailed,
    as_config_error,
    attempt,
    dummy_labels,
    few_labels,
    make_importable,
    shorten_training,
)
from pate.config import Config
from pate.data.public import groupings
from pate.errors import ConfigError, PateError

if TYPE_CHECKING:
    from pate.runs.context import RunContext

Check = Callable[["RunContext"], None]

_WITH_MISSING = 60  # examples that models are fitted to
_DRAWN = 6  # examples of the page: one line of them


def checks() -> Sequence[Check]:
    """All checks, in order. Each raises ConfigError or DataError with one line that says what to change."""
    from pate.preflight import _features as features
    from pate.preflight import _rehearsal as rehearsal
    from pate.preflight import _student as student

    return (
        check_public_data,
        features.check,
        check_missing_values,
        check_voters,
        student.check,
        check_nonprivate,
        check_report,
        rehearsal.check,
    )


def run_checks(context: RunContext, skip: type[Exception] | tuple[()] = ()) -> None:
    """Run all checks, as `pate run` and `pate plan` do; a plan may `skip` checks that raise a kind of error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as that two steps of training did not converge
        for check in checks():
            try:
                check(context)
            except skip:
                continue


def check_components(config: Config, config_dir: Path) -> None:
    """Import and construct everything the config names, before any data is read."""
    from pate.students._stage import new_student
    from pate.teachers import recipe_of
    from pate.voters import voters_of

    make_importable(config_dir if config_dir != Path() else config.folder)
    voters_of(config).build_components()
    if config.nonprivate is not None:
        recipe = recipe_of(config.nonprivate, "nonprivate")
        recipe.estimator(config.seed)
        recipe.build_features()
    new_student(config)


def check_public_data(context: RunContext) -> None:
    """Raise ConfigError where the public data does not suit the config and the options: too few examples, no groups."""
    public = context.public
    if context.options.evaluate_teachers and not (public.benchmark and public.y_public is not None):
        text = "{evaluate_teachers}: is for teachers on a benchmark; how often they are right is private"
        raise ConfigError(text, evaluate_teachers=True)
    groupings(public, context.config.report.groups)
    context.voters.check_public(public)


def check_missing_values(context: RunContext) -> None:
    """Raise ConfigError where a teacher, the student or the non-private baseline cannot be fitted to NaN.

    Scikit-learn's own word counts where an estimator has one. Others are fitted to public examples with missing values
    in every column and dummy labels; networks of this package take none, though they would not complain.
    """
    config, public = context.config, context.public
    if not public.has_missing_values:
        return
    from pate.students._stage import new_student
    from pate.students.supervised import Supervised
    from pate.teachers import recipe_of

    X = np.resize(
        np.asarray(public.X_public, np.float32), (max(_WITH_MISSING, 6 * public.n_classes), *public.X_public.shape[1:])
    )
    rows, columns = np.indices(X.shape)
    X[(rows + columns) % 3 == 0] = np.nan
    y = np.arange(len(X)) // 2 % public.n_classes
    for one in context.voters.estimators():
        if one.has_features:
            raise _takes_none(f"{one.key}.features")
        _check_takes_missing(one.estimator, f"{one.key}.name", X, y)
    if config.nonprivate is not None:
        recipe = recipe_of(config.nonprivate, "nonprivate")
        if recipe.features:
            raise _takes_none("nonprivate.features")
        _check_takes_missing(recipe.estimator(config.seed), f"nonprivate.name = {recipe.name!r}", X, y)
    student = new_student(config)
    if not isinstance(student, Supervised) or student.preprocessing:
        raise _takes_none(f"student.name = {config.student.name!r}")
    _check_takes_missing(student.build(), f"student.params.estimator = {student.estimator!r}", X, y)


def _check_takes_missing(estimator: Any, where: str, X: NDArray, y: NDArray[np.int64]) -> None:
    """Raise ConfigError unless an estimator says that it takes NaN or, of somebody's own that says nothing, does."""
    from sklearn.utils import get_tags

    allowed = known = False
    with suppress(Exception):  # a class of anybody's making
        allowed = bool(get_tags(estimator).input_tags.allow_nan)
        known = type(estimator).__module__.startswith(("sklearn.", "pate."))
    if not allowed and not known:
        try:
            estimator.fit(X, y)
            estimator.predict(X)
            allowed = True
        except PateError:
            raise
        except Exception:
            pass
    if not allowed:
        raise _takes_none(where)


def _takes_none(where: str) -> ConfigError:
    return ConfigError(
        f"{where}: takes no missing values, which data.missing_values.treatment: keep leaves in; use "
        "sklearn.ensemble.HistGradientBoostingClassifier or the like, or write public_median or indicator"
    )


def check_voters(context: RunContext) -> None:
    """Raise ConfigError where teachers, or public features, do not work on public examples."""
    context.voters.try_on_public(context.public)


def check_nonprivate(context: RunContext) -> None:
    """Raise ConfigError where the non-private baseline, which is for benchmarks alone, would fail later."""
    config, public = context.config, context.public
    if config.nonprivate is None:
        return
    if not public.benchmark:
        text = "nonprivate: left out, since its accuracy would tell of private records; it is for benchmarks"
        context.notes.public.append(text)
        return
    if public.X_test is None:
        return
    from pate.teachers import PartClassifier, recipe_of

    recipe = recipe_of(config.nonprivate, "nonprivate")
    X = public.X_public[: few_labels(public.n_classes)]
    with as_config_error(), attempt(f"nonprivate.name = {config.nonprivate.name!r}", "trained"):
        features = recipe.build_features().transform(X)
        model = PartClassifier(shorten_training(recipe.estimator(config.seed)))
        model.fit(features, dummy_labels(len(X), public.n_classes)).predict(features[:SHOWN])


def check_report(context: RunContext) -> None:
    """Raise ConfigError where a page or plot could not be drawn with the real names, of classes above all.

    It is the report of a model that guesses, on the real public and test examples.
    """
    if not context.options.pages:
        return
    from sklearn.dummy import DummyClassifier

    from pate.ledger import Charge, Pin
    from pate.report._builder import report_of_run
    from pate.report._files import store_report, write_pages
    from pate.report.sections._pipeline import save_examples
    from pate.runs._files import RunFiles
    from pate.voters.base import Release

    public = context.public
    labels = dummy_labels(min(_DRAWN, len(public.X_public)), public.n_classes, True)
    asked, answered = context.voters.query_limits
    release = Release(np.arange(len(labels)), labels, Charge(asked, answered), asked, answered, Pin(0, b""))
    classes = np.arange(public.n_classes)
    guessing = DummyClassifier(strategy="uniform", random_state=0).fit(classes, classes)
    try:
        with tempfile.TemporaryDirectory(prefix="pate-") as folder, attempt("report", "drawn"):
            run = RunFiles(Path(folder))
            run.config_file.write_text(context.config.to_yaml(), encoding="utf-8")
            store_report(run.path, report_of_run(context, release, guessing, lambda: public.y_test))
            save_examples(run.examples_file, public, labels)
            write_pages(run.path, images=False)
    except AttemptFailed as error:
        raise ConfigError(f"{error}; are the names of the classes plain text?") from None
