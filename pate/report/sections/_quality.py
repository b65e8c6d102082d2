"""Whether a student is any good: in a headline, in warnings, in figures, and beside the papers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import yaml

from pate.report import _plots as plots
from pate.report._pages import Content, PageBlock, PageTable, Plot, Section, percent, small
from pate.report.schema import AnyReport, ReleasedLabels, Report, Student
from pate.report.sections._groups import class_parts, in_a_line

_FEWEST = 20  # labels or examples: of fewer, nothing can be told
_SKEWED = 0.6  # of the test examples are of one class: always saying it looks good
_RECOGNISES = 0.1  # beyond one class in all: what a student recognises, on average over classes, that is some good
_ONE_CLASS = 0.95  # of the labels: a student of these can hardly learn another
_ALL_ONE_CLASS = 0.99  # of the examples, by the student
_HARDLY = 0.01  # of what examples are expected to be: a class that hardly any share says
_FEW_CLASSES = 6  # for a line of a terminal
_MANY_CLASSES = 30  # no confusion matrix beyond


def is_majority_class_model(student: Student) -> bool:
    """Whether always saying one class would be right as often, as far as so many test examples can tell.

    One that recognises clearly more of the classes than that, on average, pays for it in accuracy: that is no failure.
    """
    if student.accuracy is None or student.commonest_share is None or student.test_examples < _FEWEST:
        return False
    if student.balanced_accuracy is not None and student.confusion is not None:
        classes = sum(any(row) for row in student.confusion)
        if student.balanced_accuracy > 1 / max(1, classes) + _RECOGNISES:
            return False
    error = math.sqrt(student.accuracy * (1 - student.accuracy) / student.test_examples)
    return student.accuracy <= student.commonest_share + error


def skewed(student: Student) -> bool:
    """Whether accuracy alone would deceive: one class has most test examples, or a class far fewer than its part.

    Far fewer is less than half of what it would have if classes were equally frequent.
    """
    sizes = [sum(row) for row in student.confusion or () if any(row)]
    if len(sizes) < 2:
        return False
    return max(sizes) > _SKEWED * sum(sizes) or min(sizes) < sum(sizes) / (2 * len(sizes))


def by_class(student: Student) -> str:
    """What belongs beside accuracy where classes are skewed, else nothing."""
    if student.balanced_accuracy is None or student.confusion is None or not skewed(student):
        return ""
    size, right = min((sum(row), row[i]) for i, row in enumerate(student.confusion) if any(row))
    return f" ({percent(student.balanced_accuracy)} on average over classes, {percent(right / size)} of the rarest)"


def headline(report: AnyReport) -> str:
    """The result in one sentence."""
    what = "student" if isinstance(report, Report) else "private model"
    if report.student.accuracy is None:
        return f"A {what} with a privacy guarantee of ε = {report.privacy.epsilon:.3g}"
    right, epsilon = percent(report.student.accuracy), f"ε = {report.privacy.epsilon:.3g}"
    if is_majority_class_model(report.student):
        return f"A {what} that is no better than always saying one class ({right} right), at {epsilon}"
    return f"A {what} that is right on {right} of the test examples{by_class(report.student)}, at {epsilon}"


def warnings_of(report: AnyReport) -> tuple[str, ...]:
    """What people should know before they use the student, in words; most serious first."""
    names, student, found = report.classes, report.student, []
    if student.confusion is not None and is_majority_class_model(student):
        common = names[int(np.array(student.confusion).sum(axis=1).argmax())]
        found.append(
            f"It is right on {percent(student.accuracy)} of the test examples, and always saying {common!r} would be "
            f"right on {percent(student.commonest_share)}."
        )
    said = student.public_predictions or (0,)
    total, most, there_are = sum(said), max(said), getattr(report, "public_examples", None)
    if total >= _FEWEST and most >= _ALL_ONE_CLASS * total:
        asked = f"{total:,} of the {there_are:,} public examples" if there_are else f"{total:,} public examples"
        found.append(
            f"Asked about {asked}, the student says {names[said.index(most)]!r} of {_part(most, total)}: it has "
            "collapsed to one class."
        )
    if isinstance(report, Report) and report.labels is not None:
        found += _one_sided(report.labels, names)
    agreement = student.agreement
    if agreement is not None and agreement.share <= agreement.commonest:
        found.append(
            f"It agrees with {percent(agreement.share)} of the released labels that it was not taught, and always "
            f"saying the commonest class would agree with {percent(agreement.commonest)}."
        )
    return tuple(found)


def _one_sided(labels: ReleasedLabels, names: tuple[str, ...]) -> list[str]:
    """Counted are labels; where examples have shares of several, those: the likeliest of each would hide the others."""
    counts, total = labels.by_class, sum(labels.by_class)
    shares = labels.expected_shares or tuple(n / max(1, total) for n in counts)
    if total < _FEWEST:
        return []
    if max(shares) >= _ONE_CLASS:
        common = names[shares.index(max(shares))]
        said = f"Of the {total:,} released labels, {_part(max(counts), total)} say {common!r}"
        if labels.expected_shares is not None:
            said = f"By the released counts, {percent(max(shares))} of the {total:,} public examples are {common!r}"
        return [f"{said}: there is little else to learn from them."]
    absent = [name for name, n, share in zip(names, counts, shares, strict=True) if n == 0 and share < _HARDLY]
    if not absent:
        return []
    shown = ", ".join(map(repr, absent[:5])) + (" and others" if len(absent) > 5 else "")
    return [f"No released label says {shown}: the student cannot know of it."]


def _part(n: int, total: int) -> str:
    """A number of things for people, of whom the total is known.

    >>> _part(199, 200), _part(200, 200)
    ('199 (99.5 %)', 'all')
    """
    return "all" if n == total else f"{n:,} ({percent(n / total)})"


def _describe_labels(labels: ReleasedLabels, classes: tuple[str, ...]) -> str:
    """How many labels each class has, in a line.

    >>> _describe_labels(ReleasedLabels(by_class=(170, 30), commonest_share=0.85), ("no", "yes"))
    "no 170, yes 30; 85.0 % are 'no'"
    >>> shares = ReleasedLabels(by_class=(200, 0), commonest_share=1, expected_shares=(0.85, 0.15))
    >>> _describe_labels(shares, ("no", "yes"))
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


def quality(report: AnyReport) -> Section:
    """How good the model is as a whole, and what the released labels are; of benchmarks, also beside the truth."""
    student, benchmark = report.student, report.benchmark
    what = "student" if isinstance(report, Report) else "model"
    found, content, labels = student.agreement, [], None
    if student.accuracy is not None:
        right = f"{percent(student.accuracy)} right on {student.test_examples} test examples{by_class(student)}"
        facts = [(what, right)]
    elif found is not None:
        agrees = f"agrees with {100 * found.share:.1f} ± {100 * found.error:.1f} % of {found.labels:,} released labels"
        facts = [
            (
                what,
                f"{agrees} that it was not taught; always saying the commonest class with {percent(found.commonest)}",
            ),
            ("agreement by class", f"{percent(found.mean_over_classes)} on average over classes"),
        ]
        content.append(
            "There are no test labels. Instead students were taught without a third of the released labels and asked "
            "about that third; ± is one standard error. Labels that are wrong, by noise or by votes, lower the "
            "agreement of any student."
        )
    else:
        facts = [(what, "trained; no test labels to measure it by")]
    if isinstance(report, Report) and report.labels is not None:
        facts.append(("released labels", _describe_labels(report.labels, report.classes)))
        labels = _labels_table(report.labels, student, report.classes)
    if student.balanced_accuracy is not None:
        area = "" if student.auc is None else f", AUC {student.auc:.3f}"
        commonest = f"; always saying the commonest class is right on {percent(student.commonest_share)}"
        facts.append(("mean over classes", f"{percent(student.balanced_accuracy)} recognised{area}{commonest}"))
    if student.calibration is not None:
        facts.append(("how sure it is", f"off by {percent(student.calibration.error)} on average"))
    if benchmark is not None and benchmark.label_accuracy is not None:
        facts.append(("labels (benchmark)", f"{percent(benchmark.label_accuracy)} of the released ones are right"))
    if benchmark is not None and benchmark.public_accuracy is not None:
        facts.append(("public examples (benchmark)", f"{percent(benchmark.public_accuracy)} right"))
    if benchmark is not None and benchmark.nonprivate_accuracy is not None:
        facts.append(("without privacy (benchmark)", percent(benchmark.nonprivate_accuracy)))
    blocks: list[Content] = [PageBlock("facts", facts), *content, *([labels] if labels else [])]
    if student.calibration is not None:
        rows = [(percent(sure), percent(was), f"{n:,}") for sure, was, n in student.calibration.bins]
        table = PageTable(("how sure on average", "right", "test examples"), rows)
        blocks.append(PageBlock("folded", table, "How sure it is, and how often right"))
    return Section("Is it any good?", [*facts, *(("WARNING", text) for text in report.warnings)], blocks)


def _labels_table(labels: ReleasedLabels, student: Student, classes: tuple[str, ...]) -> PageTable:
    """Released labels of each class, beside what the student says of public examples."""
    said, total = student.public_predictions, max(1, sum(labels.by_class))
    counted = ("released labels", "share of them")
    if labels.expected_shares is not None:
        counted = ("likeliest class of so many public examples", "its share, by the noisy votes near them")
    shares = labels.expected_shares or [n / total for n in labels.by_class]
    own = ["–" if said is None else percent(n / max(1, sum(said))) for n in said or labels.by_class]
    columns = [f"{n:,}" for n in labels.by_class], map(percent, shares), own
    return PageTable(
        ("class", *counted, "the student says, of public examples"), list(zip(classes, *columns, strict=True))
    )


def classes(report: AnyReport) -> Section:
    """How right the model is on each class, where that was measured."""
    title = f"The {'student' if isinstance(report, Report) else 'model'}, class by class"
    confusion = report.student.confusion
    if confusion is None:
        return Section(title)
    accuracies = list(zip(report.classes, plots.class_accuracies(confusion), strict=True))
    rows = [
        (name, "–" if share is None else f"{100 * share:.1f} %", f"{100 * low:.1f} – {100 * high:.1f} %", str(n))
        for name, (share, low, high, n) in accuracies
    ]
    known = [(share, name) for name, (share, *_) in accuracies if share is not None]
    worst, best = min(known), max(known)
    words = f"Best on class {best[1]} ({percent(best[0])}), worst on class {worst[1]} ({percent(worst[0])})."
    content: list[Content] = [
        words,
        Plot(
            "classes",
            f"Accuracy of each class with its 95 % interval. {words}",
            "Accuracy on the test examples of each class. The bar is a 95 % interval (Wilson): few examples, wide bar.",
            PageTable(("class", "right", "95 % interval", "test examples"), rows),
            partial(plots.accuracy_by_class, confusion, report.classes),
        ),
    ]
    if len(confusion) <= _MANY_CLASSES:
        matrix = list(zip(report.classes, confusion, strict=True))
        content += [PageBlock("heading", "Confusion matrix"), PageBlock("confusion", matrix)]
    parts = class_parts(report)
    told = len(parts) <= _FEW_CLASSES and any(one.tells for one in parts)
    return Section(title, [("recognised", in_a_line(parts))] if told else [], content)


@dataclass(frozen=True)
class PaperRow:
    """One row of a paper's table."""

    data: str
    method: str
    parameters: dict[str, float]
    queries: int | None
    answered: int | None
    epsilon: float
    kind: Literal["data-dependent", "as published"]
    delta: float | None
    accuracy: float
    nonprivate: float | None
    source: str

    @property
    def label(self) -> str:
        """Method, year and number of labels."""
        year = "".join(filter(str.isdigit, self.source))
        labels = f", {self.answered} labels" if self.answered is not None else ""
        return f"{self.method} {year}{labels}"

    @property
    def point(self) -> plots.Point:
        """Where it is in the accuracy–ε plane."""
        return plots.Point(self.label, self.epsilon, self.accuracy, self.kind, hollow=True, own=False)

    @property
    def cells(self) -> tuple[str, str, str, str, str]:
        """Method, ε, accuracy, kind of ε, δ."""
        delta = "" if self.delta is None else small(self.delta)
        return self.label, f"{self.epsilon:.3g}", percent(self.accuracy), self.kind, delta


def paper_rows(data: str | None) -> list[PaperRow]:
    """The rows about a data set, by its name in a config.

    >>> [row.epsilon for row in paper_rows("mnist")][:2]
    [2.04, 8.03]
    """
    return [PaperRow(**row) for row in _content()["rows"] if row["data"] == data]


def sources(rows: Sequence[PaperRow]) -> list[Content]:
    """Titles and addresses of the papers whose figures these are, for a page; nothing where there are none."""
    papers = [_content()["sources"][key] for key in dict.fromkeys(row.source for row in rows)]
    return [PageBlock("sources", [(paper["title"], paper["url"]) for paper in papers])] if rows else []


@cache
def _content() -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((Path(__file__).parents[1] / "papers.yaml").read_text(encoding="utf-8"))
    return content


def plane(report: AnyReport) -> Section:
    """Accuracy against ε, this run's and the papers' on the same data, where there are both."""
    title, papers = "Beside the papers", paper_rows(report.data)
    privacy, accuracy = report.privacy, report.student.accuracy
    if accuracy is None or not papers:
        return Section(title)
    own = [("worst-case", privacy.epsilon, privacy.delta)]
    if privacy.sanitised is not None:
        own.append(("sanitised", privacy.sanitised.epsilon, privacy.sanitised.delta))
    rows = [("this run", f"{epsilon:.3g}", percent(accuracy), kind, small(delta)) for kind, epsilon, delta in own]
    rows += [row.cells for row in papers]
    nonprivate = report.benchmark.nonprivate_accuracy if report.benchmark else None
    if nonprivate is not None:
        rows.append(("without privacy (benchmark)", "∞", percent(nonprivate), "none", "–"))
    alternative = f"Accuracy against ε. This run: {percent(accuracy)} at {privacy.epsilon:.3g}" + "".join(
        f"; {row.label}: {percent(row.accuracy)} at {row.epsilon:g}" for row in papers
    )
    caption = "Accuracy on test examples against ε, which grows by equal factors to the right."
    table = PageTable(("method", "ε", "right", "which ε", "δ"), rows, len(own))
    note = (
        "Mind the kinds of ε. The papers' (hollow marks) are as published, those called data-dependent computed from "
        "the private votes. Ours (filled) holds for every data set, and is larger for the same labels."
    )
    marks = [plots.Point("this run", epsilon, accuracy, kind) for kind, epsilon, _ in own]
    marks += [row.point for row in papers]
    content = (
        "How right the student is against what it cost: up is more accurate, left is more private.",
        PageBlock("note", note),
        Plot("plane", alternative, caption, table, partial(plots.accuracy_against_epsilon, marks, nonprivate)),
        *sources(papers),
    )
    return Section(title, content=content)
