"""The report of a run, from what came out of the trust boundary and from public data."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from pate import __version__
from pate.data.public import PublicData, groupings
from pate.mechanisms import UNANSWERED
from pate.report.explanations import described, privacy_statement
from pate.report.fairness import without_privacy
from pate.report.figures import data_name, publishable_curves, software
from pate.report.quality import measured, released_labels, warnings_of
from pate.report.schema import (
    Benchmark,
    EpsilonCurves,
    Privacy,
    Queries,
    ReleasedLabels,
    Report,
    Sanitised,
    Student,
    Together,
)

if TYPE_CHECKING:
    from pate.runs.context import RunContext
    from pate.runs.related import Related
    from pate.voters.base import Release, Voters


def report_of_run(context: RunContext, release: Release, student: Any, nonprivate: Any = None) -> Report:
    """All that a run publishes about itself; the curves are for its pages."""
    config, data = context.config, context.public
    measures, answers = measured(
        config.student.name, student, data, groups=config.report.groups, agreement=context.agreement
    )
    voters = context.voters
    found = described_report(
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
        curves=publishable_curves(voters.epsilon_curves(data.n_classes)) if context.options.pages else None,
        together=together_of(context.related),
    )
    return found.model_copy(update={"anchored": context.is_anchored})


def together_of(related: Related | None) -> Together | None:
    """What a report says of other runs on the same private data."""
    return None if related is None else Together(**asdict(related.together))


def described_report(
    voters: Voters[Any],
    data: PublicData,
    epsilon: float,
    *,
    asked: int,
    answered: int,
    student: Student,
    benchmark: Benchmark | None,
    curves: EpsilonCurves | None,
    sanitised: Sanitised | None = None,
    labelled: int | None = None,
    labels: ReleasedLabels | None = None,
    together: Together | None = None,
) -> Report:
    """A report with these figures, and with what config, data and mechanism say of themselves."""
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
        description=described(voters.mechanism, voters.n_parts),
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
        student=student,
        labels=labels,
        benchmark=benchmark,
        data=data_name(config.data),
        public_examples=len(data.X_public),
        curves=curves,
        versions=software(),
    )
    return report.model_copy(update={"warnings": warnings_of(report)})


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
            "without_privacy": without_privacy(groupings(data, groups), answers, other, data.y_test, n_classes),
        }
    note = "Public data plays private here; a run on private data would not show these figures."
    return Benchmark(note=note, label_accuracy=label_accuracy, **found, **more)
