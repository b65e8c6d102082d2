"""The report of a run, from what came out of the trust boundary and from public data."""

from __future__ import annotations

import math
import platform
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import numpy as np

from pate import __version__
from pate.data.public import PublicData, groupings
from pate.mechanisms import UNANSWERED
from pate.report._measures import compare_without_privacy, group_figures, measure, released_labels
from pate.report.schema import (
    Agreement,
    Benchmark,
    Calibration,
    Description,
    EpsilonCurves,
    Privacy,
    Queries,
    RelatedRuns,
    ReleasedLabels,
    Report,
    Sanitised,
    Student,
)
from pate.report.sections._privacy import privacy_statement
from pate.report.sections._quality import warnings_of

if TYPE_CHECKING:
    from pate.data._settings import DataSettings
    from pate.runs.context import Related, RunContext
    from pate.voters.base import Release, Voters

_PACKAGES = ("numpy", "scipy", "scikit-learn", "torch", "ray", "dp-accounting")


def report_of_run(context: RunContext, release: Release, student: Any, nonprivate: Any = None) -> Report:
    """All that a run publishes about itself; the curves are for its pages."""
    config, data = context.config, context.public
    measures, answers = measure(
        config.student.name, student, data, groups=config.report.groups, agreement=context.agreement
    )
    voters = context.voters
    return _report(
        voters,
        data,
        context.epsilon,
        asked=release.asked,
        answered=release.answered,
        labelled=None if release.labelled is None else len(np.unique(release.rows)),
        sanitised=None if release.sanitised is None else Sanitised(**release.sanitised),
        student=measures,
        labels=released_labels(release.labels, release.labelled, data.n_classes),
        benchmark=(
            benchmark_figures(data, answers, config.report.groups, nonprivate, _label_accuracy(data, release))
            if data.benchmark
            else None
        ),
        curves=_curves(voters, data.n_classes) if context.options.pages else None,
        together=together_of(context.related),
        anchored=context.is_anchored,
    )


def together_of(related: Related | None) -> RelatedRuns | None:
    """What a report says of other runs on the same private data."""
    return None if related is None else RelatedRuns(**asdict(related.together))


def _report(
    voters: Voters[Any],
    data: PublicData,
    epsilon: float,
    *,
    asked: int,
    answered: int,
    labelled: int | None = None,
    sanitised: Sanitised | None = None,
    together: RelatedRuns | None = None,
    **figures: Any,
) -> Report:
    """A report with these figures, by its fields, and with what config, data and mechanism say of themselves."""
    config = voters.config
    delta = config.budget.delta
    cost, (max_queries, max_answers) = voters.cost(data.n_classes), voters.query_limits
    queries = Queries(
        asked=asked,
        answered=answered,
        max_queries=max_queries,
        max_answers=max_answers,
        adaptive=voters.is_adaptive,
        rounds=voters.queries_by_round,
    )
    is_changed = voters.covers_changed_record or data.per_person
    report = Report(
        name=config.name,
        pate_version=__version__,
        config_digest=config.digest(),
        classes=data.classes,
        mechanism=dict(config.mechanism),
        description=describe_mechanism(voters),
        voters=voters.facts(data, queries, answered if labelled is None else labelled),
        queries=queries,
        privacy=Privacy(
            epsilon=epsilon,
            delta=delta,
            unit=data.unit,  # type: ignore[arg-type]
            statement=privacy_statement(epsilon, delta, data.unit, changed=is_changed),
            epsilon_added_or_removed=cost.added_or_removed,
            sanitised=sanitised,
            together=together,
        ),
        data=data_name(config.data),
        public_examples=len(data.X_public),
        versions=software(),
        **figures,
    )
    return report.model_copy(update={"warnings": warnings_of(report)})


def describe_mechanism(voters: Voters[Any]) -> Description:
    """What the mechanism says of itself, for the report to keep."""
    mechanism = voters.mechanism
    subsampled = mechanism.split(voters.n_parts).rate is not None
    return Description(title=mechanism.title, releases=mechanism.describe(), subsampled=subsampled)


def _curves(voters: Voters[Any], n_classes: int) -> EpsilonCurves | None:
    """ε against the number of queries, for every data set."""
    curves = voters.epsilon_curves(n_classes)
    if curves is None:
        return None
    finite = {
        name: tuple(value if math.isfinite(value) else None for value in curve.values())
        for name, curve in curves.items()
    }
    return EpsilonCurves(queries=tuple(next(iter(curves.values()))), epsilon=finite)


def data_name(settings: DataSettings) -> str:
    """The data set by its short name; that of the images where stored votes play the teachers."""
    return str(getattr(settings, "images", settings.source))


def software() -> dict[str, str]:
    """Versions to repeat a run with."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _label_accuracy(data: PublicData, released: Release) -> float | None:
    """The share of released labels that are right; where they have weights, the share of their weight."""
    if data.y_public is None:
        return None
    if released.labelled is not None:
        right = released.labels == data.y_public[released.rows]
        return float(np.average(right, weights=released.labelled.weights)) if len(right) else None
    answered = released.labels != UNANSWERED
    return float((released.labels[answered] == data.y_public[: len(answered)][answered]).mean())


def benchmark_figures(
    data: PublicData,
    answers: Any,
    groups: Any,
    nonprivate: Any,
    label_accuracy: float | None = None,
    **more: Any,
) -> Benchmark:
    """Figures that public data playing private may show; `answers` are the model's to test examples."""
    found: dict[str, Any] = {"nonprivate_accuracy": None}
    if nonprivate is not None and answers is not None and data.y_test is not None:
        other, n_classes = nonprivate(), len(data.classes)
        found = {
            "nonprivate_accuracy": float((other == data.y_test).mean()),
            "without_privacy": compare_without_privacy(groupings(data, groups), answers, other, data.y_test, n_classes),
        }
    note = "Public data plays private here; a run on private data would not show these figures."
    return Benchmark(note=note, label_accuracy=label_accuracy, **found, **more)


def dummy_report(voters: Voters[Any], data: PublicData, epsilon: float) -> Report:
    """A report with the names that the real one will have, and figures that mean nothing: to be stored and drawn."""
    config = voters.config
    n, groups = len(data.classes), groupings(data, config.report.groups)
    n_queries, n_answers = voters.query_limits
    curves = EpsilonCurves(queries=(1, n_queries), epsilon={"for every data set": (epsilon / 2, epsilon)})
    confusion = tuple(tuple(3 if i == j else int(j == (i + 1) % n) for j in range(n)) for i in range(n))
    y = np.arange(n) if data.y_test is None or not len(data.y_test) else data.y_test
    benchmark = Benchmark(
        note="made up",
        label_accuracy=0.5,
        nonprivate_accuracy=0.5,
        without_privacy=compare_without_privacy(groups, y, y, y, n),
    )
    return _report(
        voters,
        data,
        epsilon,
        asked=n_queries,
        answered=n_answers,
        student=Student(
            name=config.student.name,
            test_examples=4 * n,
            accuracy=0.75,
            confusion=confusion,
            balanced_accuracy=0.75,
            recall=(0.75,) * n,
            groups=group_figures(groups, y, y, n),
            commonest_share=1 / n,
            auc=0.5,
            calibration=Calibration(error=0.1, bins=((0.5, 0.6, 4 * n),)),
            public_predictions=(1,) * n,
            agreement=Agreement(share=0.5, error=0.1, mean_over_classes=0.5, commonest=0.5, labels=n),
        ),
        labels=ReleasedLabels(by_class=(1,) * n, commonest_share=1 / n, expected_shares=(1 / n,) * n),
        benchmark=benchmark if data.benchmark else None,
        curves=curves,
    )
