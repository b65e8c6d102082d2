"""The table of names and values that a command shows at its end: what may be published, so nothing of how long
private work took."""

from __future__ import annotations

from pate.report.explanations import by_class, planned_in_words, together_in_words
from pate.report.formats import percent
from pate.report.schema import BaselineReport, ReleasedLabels, Report, Student
from pate.report.who_pays import by_column, class_parts, find_largest_loss, group_parts, in_a_line

Row = tuple[str, str]
_FEW_CLASSES = 6


def baseline_rows(report: BaselineReport) -> list[Row]:
    """What `pate baseline` shows at the end."""
    rows = [
        ("method", ", ".join(f"{key} {value}" for key, value in report.method.items())),
        ("planned", planned_in_words(report.planned)),
        ("model", _right(report.student)),
    ]
    rows = [row for row in rows if row[1]]
    rows += _how_good(report)
    if report.benchmark is not None and report.benchmark.public_accuracy is not None:
        rows.append(("public examples (benchmark)", f"{percent(report.benchmark.public_accuracy)} right"))
    rows += _without_privacy(report)
    rows.append(("ε to publish", f"{report.privacy.epsilon:.3g} at δ = {report.privacy.delta:g}, for every data set"))
    rows += _together(report)
    rows.append(("what it means", report.privacy.statement))
    return rows


def describe_labels(labels: ReleasedLabels, classes: tuple[str, ...]) -> str:
    """How many labels each class has, in a line.

    >>> describe_labels(ReleasedLabels(by_class=(170, 30), commonest_share=0.85), ("no", "yes"))
    "no 170, yes 30; 85.0 % are 'no'"
    >>> shares = ReleasedLabels(by_class=(200, 0), commonest_share=1, expected_shares=(0.85, 0.15))
    >>> describe_labels(shares, ("no", "yes"))
    'of 200 public examples, by the noisy votes near them: no 85.0 %, yes 15.0 %'
    """
    if labels.expected_shares is not None and len(classes) <= _FEW_CLASSES:
        shares = ", ".join(
            f"{name} {percent(share)}" for name, share in zip(classes, labels.expected_shares, strict=True)
        )
        return f"of {sum(labels.by_class):,} public examples, by the noisy votes near them: {shares}"
    if len(classes) > _FEW_CLASSES:
        return f"{min(labels.by_class):,} to {max(labels.by_class):,} for each of {len(classes)} classes"
    counts = ", ".join(f"{name} {n:,}" for name, n in zip(classes, labels.by_class, strict=True))
    common = classes[labels.by_class.index(max(labels.by_class))]
    return f"{counts}; {percent(labels.commonest_share)} are {common!r}"


def _right(student: Student) -> str:
    return f"{percent(student.accuracy)} right on {student.test_examples} test examples{by_class(student)}"


def _without_test_labels(student: Student) -> str:
    found = student.agreement
    if found is None:
        return "trained; no test labels to measure it by"
    agrees = f"agrees with {100 * found.share:.1f} ± {100 * found.error:.1f} % of {found.labels:,} released labels"
    return f"{agrees} that it was not taught; always saying the commonest class with {percent(found.commonest)}"


def _how_good(report: Report | BaselineReport) -> list[Row]:
    """Beyond accuracy: labels by class, recall, AUC, calibration, and warnings in words."""
    rows, student = [], report.student
    if isinstance(report, Report) and report.labels is not None:
        rows.append(("released labels", describe_labels(report.labels, report.classes)))
    if student.balanced_accuracy is not None:
        area = "" if student.auc is None else f", AUC {student.auc:.3f}"
        commonest = f"; always saying the commonest class is right on {percent(student.commonest_share)}"
        rows.append(("mean over classes", f"{percent(student.balanced_accuracy)} recognised{area}{commonest}"))
    if student.confusion is not None and len(report.classes) <= _FEW_CLASSES:
        rows.append(("recognised", in_a_line(class_parts(report))))
    rows += [(f"right by {column}", in_a_line(parts)) for column, parts in by_column(group_parts(report)).items()]
    if student.calibration is not None:
        rows.append(("how sure it is", f"off by {percent(student.calibration.error)} on average"))
    return rows + [("WARNING", text) for text in report.warnings]


def _without_privacy(report: Report | BaselineReport) -> list[Row]:
    """Rows about the non-private baseline of a benchmark: its accuracy, and who lost most against it."""
    if report.benchmark is None or report.benchmark.nonprivate_accuracy is None:
        return []
    right, most = percent(report.benchmark.nonprivate_accuracy), find_largest_loss(report)
    return [("without privacy (benchmark)", right), *([("who pays (benchmark)", most)] if most else [])]


def _together(report: Report | BaselineReport) -> list[Row]:
    """Of all known runs on the same private data."""
    found = report.privacy.together
    return [] if found is None else [("ε of all runs", together_in_words(found))]


def summary_rows(report: Report) -> list[Row]:
    """What the terminal shows at the end of a run."""
    benchmark = report.benchmark
    student = report.student
    told = _without_test_labels(student) if student.accuracy is None else _right(student)
    rows = [*report.voters.figures, ("student", told)]
    rows += _how_good(report)
    if benchmark is not None:
        if benchmark.label_accuracy is not None:
            rows.append(("labels (benchmark)", f"{percent(benchmark.label_accuracy)} of the released ones are right"))
        rows += _without_privacy(report)
    rows.append(("ε to publish", f"{report.privacy.epsilon:.3g} at δ = {report.privacy.delta:g}"))
    rows += _together(report)
    if report.privacy.epsilon_added_or_removed is not None:
        only = f"{report.privacy.epsilon_added_or_removed:.3g}, if records are only added or removed"
        rows.append(("ε otherwise", only))
    rows.append(("what it means", report.privacy.statement))
    if report.anchored is False:
        rows.append(("anchor", "none: a copy of the run that goes on beside it would not be noticed"))
    if report.privacy.sanitised is not None:
        sanitised = report.privacy.sanitised
        rows.append(("ε sanitised", f"{sanitised.epsilon:.3g} at δ = {sanitised.delta:g}, for what was released here"))
    return rows
