"""The table of names and values that a command shows at its end."""

from __future__ import annotations

from pate.report.formats import percent
from pate.report.schema import BaselineReport, Report

Row = tuple[str, str]


def baseline_rows(report: BaselineReport, seconds: dict[str, float]) -> list[Row]:
    """What `pate baseline` shows at the end."""
    rows = [
        ("method", ", ".join(f"{key} {value}" for key, value in report.method.items())),
        ("planned", ", ".join(f"{key} {value:.4g}" for key, value in report.planned.items())),
        ("model", f"{percent(report.student.accuracy)} right on {report.student.test_examples} test examples"),
    ]
    rows = [row for row in rows if row[1]]
    if report.benchmark is not None and report.benchmark.public_accuracy is not None:
        rows.append(("public examples (benchmark)", f"{percent(report.benchmark.public_accuracy)} right"))
    if report.benchmark is not None and report.benchmark.nonprivate_accuracy is not None:
        rows.append(("without privacy (benchmark)", percent(report.benchmark.nonprivate_accuracy)))
    rows.append(("ε to publish", f"{report.privacy.epsilon:.3g} at δ = {report.privacy.delta:g}, for every data set"))
    rows.append(("what it means", report.privacy.statement))
    rows.append(("seconds", ", ".join(f"{stage} {time:.1f}" for stage, time in seconds.items())))
    return rows


def _voters(report: Report) -> list[Row]:
    if report.neighbours is not None:
        cells = ", then ".join(f"{n:,}" for n in report.neighbours.cells)
        labelled = f"{report.neighbours.labelled:,} of {report.public_examples or 0:,} public examples"
        return [("cells", f"{cells}; {report.neighbours.votes} votes per record"), ("labelled", labelled)]
    queries = report.queries
    return [
        ("teachers", f"{report.n_teachers}"),
        ("queries", f"{queries.asked} asked, {queries.answered} answered"),
    ]


def summary_rows(report: Report, seconds: dict[str, float]) -> list[Row]:
    """What the terminal shows at the end of a run."""
    benchmark = report.benchmark
    rows = [
        *_voters(report),
        (
            "student",
            f"{percent(report.student.accuracy)} right on {report.student.test_examples} test examples",
        ),
    ]
    if report.student.accuracy is None:
        rows[-1] = ("student", "trained; no test labels to measure it by")
    if benchmark is not None:
        if benchmark.label_accuracy is not None:
            rows.append(("labels (benchmark)", f"{percent(benchmark.label_accuracy)} of the released ones are right"))
        if benchmark.nonprivate_accuracy is not None:
            rows.append(("without privacy (benchmark)", percent(benchmark.nonprivate_accuracy)))
    rows.append(("ε to publish", f"{report.privacy.epsilon:.3g} at δ = {report.privacy.delta:g}"))
    if report.privacy.epsilon_added_or_removed is not None:
        only = f"{report.privacy.epsilon_added_or_removed:.3g}, if records are only added or removed"
        rows.append(("ε otherwise", only))
    rows.append(("what it means", report.privacy.statement))
    if report.privacy.sanitised is not None:
        sanitised = report.privacy.sanitised
        rows.append(("ε sanitised", f"{sanitised.epsilon:.3g} at δ = {sanitised.delta:g}, for what was released here"))
    rows.append(("seconds", ", ".join(f"{stage} {time:.1f}" for stage, time in seconds.items())))
    return rows
