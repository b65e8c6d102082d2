"""Everything a config names, built and tried on public data before anything is charged: a check per idea, in one list.

A failure after the labels are paid for wastes privacy. So whatever the config and the names in the data can break is
built, trained for a moment, stored, loaded and drawn first. Nothing private is used.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pate.components._attempts import (
    SHOWN,
    AttemptFailed,
    as_config_error,
    attempt,
    dummy_labels,
    few_labels,
    shorten_training,
)
from pate.components._registry import make_importable
from pate.config import Config
from pate.data.public import groupings
from pate.errors import ConfigError

if TYPE_CHECKING:
    from pate.runs.context import RunContext

Check = Callable[["RunContext"], None]

_DRAWN = 6  # examples of the page: one line of them


def checks() -> Sequence[Check]:
    """All checks, in order. Each raises ConfigError or DataError with one line that says what to change."""
    from pate.preflight import _features as features
    from pate.preflight import _missing_values as missing_values
    from pate.preflight import _rehearsal as rehearsal
    from pate.preflight import _student as student

    return (
        check_public_data,
        features.check,
        missing_values.check,
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
    from pate.teachers import recipe_of
    from pate.teachers._part import PartClassifier

    recipe = recipe_of(config.nonprivate, "nonprivate")
    X = public.X_public[: few_labels(public.n_classes)]
    with as_config_error(), attempt(f"nonprivate.name = {config.nonprivate.name!r}", "trained"):
        features = recipe.build_features().transform(X)
        model = PartClassifier(shorten_training(recipe.estimator(config.seed)))
        model.fit(features, dummy_labels(len(X), public.n_classes)).predict(features[:SHOWN])


def check_report(context: RunContext) -> None:
    """Raise ConfigError where a page or plot could not be drawn with the real names, of classes above all."""
    if not context.options.pages:
        return
    from pate.report._builder import dummy_report
    from pate.report._files import store_report, write_pages
    from pate.report.sections._pipeline import save_examples
    from pate.runs._files import RunFiles

    public = context.public
    labels = dummy_labels(min(_DRAWN, len(public.X_public)), public.n_classes, True)
    try:
        with tempfile.TemporaryDirectory(prefix="pate-") as folder, attempt("report", "drawn"):
            run = RunFiles(Path(folder))
            run.config_file.write_text(context.config.to_yaml(), encoding="utf-8")
            store_report(run.path, dummy_report(context.voters, public, context.epsilon))
            save_examples(run.examples_file, public, labels)
            write_pages(run.path, images=False)
    except AttemptFailed as error:
        raise ConfigError(f"{error}; are the names of the classes plain text?") from None
