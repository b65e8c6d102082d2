"""The report of a run, from what came out of the trust boundary and from public data."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pate import __version__
from pate.data.dataset import Dataset, Records
from pate.mechanisms import UNANSWERED, Mechanism
from pate.planning.budget import neighbours_cost
from pate.report.explanations import described, privacy_statement
from pate.report.figures import data_name, publishable_curves, software, teacher_kinds
from pate.report.quality import measured, released_labels, warnings_of
from pate.report.schema import (
    Benchmark,
    EpsilonCurves,
    Neighbours,
    Privacy,
    Queries,
    ReleasedLabels,
    Report,
    Sanitised,
    Student,
    Together,
)

if TYPE_CHECKING:
    from pate.config import Config
    from pate.pipeline import Released
    from pate.runs.console import Console
    from pate.runs.related import Related
    from pate.students.held_out import HeldOut


def report_of_run(
    config: Config,
    data: Dataset,
    mechanism: Mechanism,
    released: Released,
    epsilon: float,
    student: Any,
    pages: bool,
    console: Console,
    agreement: HeldOut | None = None,
    related: Related | None = None,
) -> Report:
    """All that a run publishes about itself; the curves are for its pages.

    `agreement` is that of students with labels that were held out, where there are no test labels. `related` are other
    runs on the same private data; what all of them cost together is published, and not which they are.
    """
    n_classes = len(data.classes)
    measures, answers = measured(config.student.name, student, data, groups=config.groups, agreement=agreement)
    return described_report(
        config,
        data,
        mechanism,
        epsilon,
        asked=released.spent.asked if released.labelled is None else _cells(config),
        answered=released.spent.answered if released.labelled is None else _cells(config),
        labelled=None if released.labelled is None else len(np.unique(released.rows)),
        sanitised=None if released.sanitised is None else Sanitised(**released.sanitised),
        student=measures,
        labels=released_labels(released.labels, released.labelled, n_classes),
        benchmark=_benchmark(config, data, released, answers, console) if data.benchmark else None,
        curves=publishable_curves(config, mechanism, n_classes) if pages and config.voters == "teachers" else None,
        together=together_of(related),
    )


def together_of(related: Related | None) -> Together | None:
    """What a report says of other runs on the same private data."""
    return None if related is None else Together(**asdict(related.together))


def described_report(
    config: Config,
    data: Dataset,
    mechanism: Mechanism,
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
    budget, unit = config.budget, "id" if data.per_person else "record"
    by_records = config.voters == "neighbours"
    report = Report(
        name=config.name,
        pate_version=__version__,
        config_digest=config.digest(),
        n_teachers=config.n_teachers,
        classes=data.classes,
        mechanism=dict(config.mechanism),
        description=described(mechanism, config.n_teachers),
        voters=config.voters,
        neighbours=_neighbours(config, labelled) if by_records else None,
        queries=Queries(
            asked=asked,
            answered=answered,
            max_queries=_cells(config) if by_records else budget.max_queries,
            max_answers=_cells(config) if by_records else budget.answer_limit,
            adaptive=config.adaptive,
            rounds=tuple(one.queries for one in config.teacher_rounds),
        ),
        privacy=Privacy(
            epsilon=epsilon,
            delta=budget.delta,
            unit=unit,  # type: ignore[arg-type]
            statement=privacy_statement(epsilon, budget.delta, unit, changed=by_records or data.per_person),
            epsilon_added_or_removed=(
                neighbours_cost(config, len(data.classes)).added_or_removed if by_records else None
            ),
            sanitised=sanitised,
            together=together,
        ),
        student=student,
        labels=labels,
        benchmark=benchmark,
        data=data_name(config.data),
        public_examples=len(data.X_public),
        teachers=teacher_kinds(config),
        curves=curves,
        versions=software(),
    )
    return report.model_copy(update={"warnings": warnings_of(report)})


def _cells(config: Config) -> int:
    """The cells of all rounds."""
    return sum(round.cells for round in config.build_rounds())


def _neighbours(config: Config, labelled: int | None) -> Neighbours:
    assert config.neighbours is not None
    return Neighbours(
        votes_per_record=config.neighbours.votes_per_record,
        cells=tuple(round.cells for round in config.build_rounds()),
        features=tuple(step.name for step in config.neighbours.features),
        labelled=labelled or 0,
    )


def _label_accuracy(data: Dataset, released: Released) -> float | None:
    """The share of released labels that are right; where they have weights, the share of their weight."""
    if data.y_public is None:
        return None
    if released.labelled is not None:
        right = released.labels == data.y_public[released.rows]
        return float(np.average(right, weights=released.labelled.weights)) if len(right) else None
    answered = released.labels != UNANSWERED
    return float((released.labels[answered] == data.y_public[: len(answered)][answered]).mean())


def _benchmark(
    config: Config, data: Dataset, released: Released, answers: NDArray[np.int64] | None, console: Console
) -> Benchmark:
    """Figures that public data playing private may show; `answers` are the student's to test examples."""
    from pate.report.nonprivate import nonprivate_figures
    from pate.teachers import recipe_of

    found: dict[str, Any] = {"nonprivate_accuracy": None}
    if config.nonprivate is not None and answers is not None and isinstance(data.private, Records):
        recipe = recipe_of(config.nonprivate, "nonprivate")
        found = nonprivate_figures(recipe, data, answers, config.groups, config.seed, console)
    return Benchmark(
        note="Public data plays private here; a run on private data would not show these figures.",
        label_accuracy=_label_accuracy(data, released),
        **found,
    )
