"""`report.html`: one self-contained page, made from `report.json` and public files alone.

The page's words and HTML are in `templates/run.html.j2`; here are the figures that it shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pate.mechanisms import UNANSWERED
from pate.report import plots, who_pays
from pate.report.explanations import (
    AnyReport,
    describe_parameters,
    guarantee,
    headline,
    short_name,
    skewed,
)
from pate.report.figures import ExampleImages
from pate.report.formats import percent, small
from pate.report.html import HtmlTable, Plot, inline_svg, png_data_url, render
from pate.report.papers import PaperRow, paper_rows, source_of
from pate.report.published_config import LEFT_OUT
from pate.report.schema import BaselineReport, EpsilonCurves, Report

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MANY_CLASSES = 30  # no confusion matrix beyond

Values = dict[str, Any]
"""What a part of the template is given, by name."""


def draw(report: AnyReport, examples: ExampleImages | None) -> dict[str, Figure]:
    """All plots of a run, by file name."""
    drawn = {}
    confusion = report.student.confusion
    if confusion is not None:
        drawn["classes"] = plots.accuracy_by_class(confusion, report.classes)
        if len(confusion) <= _MANY_CLASSES:
            drawn["confusion"] = plots.confusion_matrix(confusion, report.classes)
    if examples is not None:
        drawn["examples"] = plots.example_grid(examples.images, examples.labels.tolist(), report.classes)
    if isinstance(report, Report) and report.curves is not None:
        drawn["epsilon"] = plots.epsilon_by_queries(report.curves, report.queries.max_queries, report.privacy.epsilon)
    if report.student.accuracy is not None:
        drawn["plane"] = plots.accuracy_against_epsilon(plane_points(report), _nonprivate(report))
    return drawn


def render_page(report: AnyReport, config_yaml: str, svg: dict[str, str], examples: ExampleImages | None = None) -> str:
    """The page as HTML text; `config_yaml` may be published, and `svg` are the files that `draw` made."""
    versions = [("pate", report.pate_version), *report.versions.items(), ("configuration digest", report.config_digest)]
    return render(
        "run.html.j2",
        report=report,
        headline=headline(report),
        guarantee=guarantee(report),
        sanitised=report.privacy.sanitised,
        figures=_figures(report),
        steps=_steps(report),
        released_per_query=report.description.releases if isinstance(report, Report) else None,
        families=_families(report),
        warnings=report.warnings,
        quality=_quality(report),
        labels=_labels(report),
        calibration=_calibration(report),
        classes=_classes(report, svg),
        who_pays=who_pays.section(report),
        released=_released(report, examples),
        truth_known=examples is not None and examples.truth is not None,
        any_unanswered=examples is not None and (examples.labels == UNANSWERED).any(),
        label_accuracy=report.benchmark.label_accuracy if report.benchmark else None,
        cost_by_queries=_cost_by_queries(report, svg),
        plane=_plane(report, svg),
        paper_sources=paper_sources(paper_rows(report.data)),
        command="pate run" if isinstance(report, Report) else "pate baseline",
        config_yaml=config_yaml,
        left_out=LEFT_OUT,
        columns_named=report.data in ("csv", "parquet"),
        versions=versions,
    )


def _figures(report: AnyReport) -> list[tuple[str, str]]:
    """The large figures at the top, each with what it is."""
    items = [(f"ε to publish, at δ = {small(report.privacy.delta)}", f"{report.privacy.epsilon:.3g}")]
    if report.student.accuracy is not None:
        items.insert(0, (f"right on {report.student.test_examples:,} test examples", percent(report.student.accuracy)))
        if skewed(report.student):
            items.insert(1, ("right on average over classes", percent(report.student.balanced_accuracy)))
    if isinstance(report, Report):
        items += report.voters.counts
    return items


def _quality(report: AnyReport) -> list[tuple[str, str]]:
    """How good it is, beyond accuracy: names and values."""
    student, rows = report.student, []
    if student.accuracy is not None and student.commonest_share is not None:
        rows = [
            ("right on test examples", percent(student.accuracy)),
            ("always saying the commonest class", percent(student.commonest_share)),
            ("recognised, mean over classes (balanced accuracy)", percent(student.balanced_accuracy)),
        ]
        if student.auc is not None:
            rows.append(("area under the ROC curve (AUC)", f"{student.auc:.3f}"))
        if student.calibration is not None:
            rows.append(("how sure it is, against how often right: off by", percent(student.calibration.error)))
    if student.agreement is not None:
        found = student.agreement
        rows += [
            (
                f"agrees with held-out released labels ({found.labels:,})",
                f"{100 * found.share:.1f} ± {100 * found.error:.1f} %",
            ),
            ("the same, mean over classes", percent(found.mean_over_classes)),
            ("always saying the commonest class agrees with", percent(found.commonest)),
        ]
    return rows


def _labels(report: AnyReport) -> HtmlTable | None:
    """Released labels of each class, beside what the student says of public examples."""
    if not isinstance(report, Report) or report.labels is None:
        return None
    said = report.student.public_predictions
    total, all_said = max(1, sum(report.labels.by_class)), max(1, sum(said or ()))
    expected, rows = report.labels.expected_shares, []
    for number, (name, n) in enumerate(zip(report.classes, report.labels.by_class, strict=True)):
        own = "–" if said is None else percent(said[number] / all_said)
        share = n / total if expected is None else expected[number]
        rows.append((name, f"{n:,}", percent(share), own))
    counted = ("released labels", "share of them")
    if expected is not None:
        counted = ("likeliest class of so many public examples", "its share, by the noisy votes near them")
    return HtmlTable(("class", *counted, "the student says, of public examples"), rows)


def _calibration(report: AnyReport) -> HtmlTable | None:
    found = report.student.calibration
    if found is None:
        return None
    rows = [(percent(sure), percent(right), f"{n:,}") for sure, right, n in found.bins]
    return HtmlTable(("how sure on average", "right", "test examples"), rows)


def _steps(report: AnyReport) -> list[Values]:
    """The way from records to a model, and what of it is inside the trust boundary."""
    if isinstance(report, BaselineReport):
        steps = [
            _step(True, "Private records", "their number is not published"),
            _step(True, short_name(str(report.method["name"])), "trained with noise"),
            _step(False, "One model", f"ε = {report.privacy.epsilon:.3g}"),
        ]
    else:
        steps = _steps_of_a_run(report)
    if report.student.accuracy is not None:
        right = percent(report.student.accuracy)
        steps.append(_step(False, f"{right} right", f"on {report.student.test_examples:,} test examples"))
    return steps


def _steps_of_a_run(report: Report) -> list[Values]:
    voters = report.voters
    *inside, labels = [(what, more) for what, more in voters.steps]
    unlabelled = (report.public_examples or voters.labelled) - voters.labelled
    learned = f"{short_name(report.student.name)}, with {unlabelled:,} public examples unlabelled"
    return [*(_step(True, *one) for one in inside), _step(False, *labels), _step(False, "One student", learned)]


def _step(inside: bool, what: str, more: str) -> Values:
    return {"inside": inside, "what": what, "more": more}


def _families(report: AnyReport) -> list[Values]:
    if not isinstance(report, Report) or not report.voters.teachers:
        return []
    most = max(kind.teachers for kind in report.voters.teachers)
    families = []
    for kind in report.voters.teachers:
        features = f"on {', '.join(kind.features)}" if kind.features else ""
        details = " · ".join(part for part in (describe_parameters(kind.params), features) if part)
        width = f"{100 * kind.teachers / most:.0f}"
        families.append({"name": short_name(kind.name), "details": details, "teachers": kind.teachers, "width": width})
    return families


def _classes(report: AnyReport, svg: dict[str, str]) -> Values | None:
    """How right the model is on each class; None where that was not measured."""
    confusion = report.student.confusion
    if confusion is None:
        return None
    accuracies = plots.class_accuracies(confusion)
    rows = [
        (name, "–" if accuracy is None else f"{100 * accuracy:.1f} %", f"{100 * low:.1f} – {100 * high:.1f} %", str(n))
        for name, (accuracy, low, high, n) in zip(report.classes, accuracies, strict=True)
    ]
    known = [
        (accuracy, name)
        for name, (accuracy, *_) in zip(report.classes, accuracies, strict=True)
        if accuracy is not None
    ]
    worst, best = min(known), max(known)
    words = f"Best on class {best[1]} ({percent(best[0])}), worst on class {worst[1]} ({percent(worst[0])})."
    return {
        "heading": f"The {'student' if isinstance(report, Report) else 'model'}, class by class",
        "best_and_worst": words,
        "plot": Plot(
            inline_svg(svg["classes"], "classes", f"Accuracy of each class with its 95 % interval. {words}"),
            "Accuracy on the test examples of each class. The bar is a 95 % interval (Wilson): few examples, wide bar.",
            HtmlTable(("class", "right", "95 % interval", "test examples"), rows),
        ),
        "confusion": _confusion(confusion, report.classes) if len(confusion) <= _MANY_CLASSES else None,
    }


def _confusion(confusion: Sequence[Sequence[int]], classes: Sequence[str]) -> list[tuple[str, list[Values]]]:
    """The confusion matrix row by row: the true class, and a cell for each class that the model may say."""
    lines = []
    for i, row in enumerate(confusion):
        cells = []
        for j, number in enumerate(row):
            kind = "right" if i == j else "wrong" if number else "none"
            text = "·" if kind == "none" else str(number)
            cells.append({"kind": kind, "share": f"{number / max(1, sum(row)):.3f}", "text": text})
        lines.append((classes[i], cells))
    return lines


def _released(report: AnyReport, examples: ExampleImages | None) -> list[Values]:
    """Public examples with what was released about them."""
    if examples is None:
        return []
    shown = []
    for place, (picture, row, label) in enumerate(zip(examples.images, examples.rows, examples.labels, strict=True)):
        truth = None if examples.truth is None else report.classes[examples.truth[place]]
        said = "⊥" if label == UNANSWERED else report.classes[label]
        kind, note, words = "", "", f"released label {said}"
        if label == UNANSWERED:
            kind, note, words = "unanswered", "no answer", "not answered"
        elif truth is not None and truth != said:
            kind, note, words = "wrong", f"truly {truth}", f"released label {said}, truly {truth}"
        height, width = picture.shape[:2]
        picture_values = {"row": row, "address": png_data_url(plots.png_of(picture)), "width": width, "height": height}
        shown.append({"kind": kind, "note": note, "words": words, "said": said} | picture_values)
    return shown


def _cost_by_queries(report: AnyReport, svg: dict[str, str]) -> Plot | None:
    if not isinstance(report, Report) or report.curves is None:
        return None
    limit, epsilon = report.queries.max_queries, report.privacy.epsilon
    alternative = f"ε grows with the number of queries, to {epsilon:.3g} at the limit of {limit} queries."
    caption = f"ε at δ = {small(report.privacy.delta)} against the number of label queries."
    if len(report.curves.epsilon) > 1:
        caption += " Both lines hold; the smaller one counts."
    return Plot(inline_svg(svg["epsilon"], "epsilon", alternative), caption, curves_table(report.curves))


def curves_table(curves: EpsilonCurves) -> HtmlTable:
    """ε after so many queries, one column per way of counting."""
    rows = [
        (str(n), *("∞" if values[i] is None else f"{values[i]:.3f}" for values in curves.epsilon.values()))
        for i, n in enumerate(curves.queries)
    ]
    return HtmlTable(("queries", *curves.epsilon), rows)


def plane_points(report: AnyReport) -> list[plots.Point]:
    """This run, and the papers' on the same data, in the accuracy–ε plane."""
    assert report.student.accuracy is not None
    privacy, accuracy = report.privacy, report.student.accuracy
    points = [plots.Point("this run", privacy.epsilon, accuracy, "worst-case")]
    if privacy.sanitised is not None:
        points.append(plots.Point("this run", privacy.sanitised.epsilon, accuracy, "sanitised"))
    return points + [paper_point(row) for row in paper_rows(report.data)]


def paper_point(row: PaperRow) -> plots.Point:
    """A paper's row in the plane."""
    return plots.Point(row.label, row.epsilon, row.accuracy, row.kind, hollow=True, own=False)


def paper_table_rows(rows: Sequence[PaperRow]) -> list[tuple[str, ...]]:
    """Method, ε, accuracy, kind of ε, δ."""
    return [
        (
            row.label,
            f"{row.epsilon:.3g}",
            percent(row.accuracy),
            row.kind,
            "" if row.delta is None else small(row.delta),
        )
        for row in rows
    ]


def paper_sources(rows: Sequence[PaperRow]) -> list[tuple[str, str]]:
    """Where the papers' figures are from: titles and addresses."""
    return list(dict(source_of(row) for row in rows).items())


def _plane(report: AnyReport, svg: dict[str, str]) -> Plot | None:
    """Accuracy against ε, this run's and the papers'; None where accuracy was not measured."""
    if "plane" not in svg:
        return None
    papers, privacy = paper_rows(report.data), report.privacy
    right = percent(report.student.accuracy)
    rows: list[tuple[str, ...]] = [("this run", f"{privacy.epsilon:.3g}", right, "worst-case", small(privacy.delta))]
    if privacy.sanitised is not None:
        own = privacy.sanitised
        rows.append(("this run", f"{own.epsilon:.3g}", right, "sanitised", small(own.delta)))
    n_own = len(rows)
    rows += paper_table_rows(papers)
    nonprivate = _nonprivate(report)
    if nonprivate is not None:
        rows.append(("without privacy (benchmark)", "∞", percent(nonprivate), "none", "–"))
    alternative = f"Accuracy against ε. This run: {right} at {privacy.epsilon:.3g}" + "".join(
        f"; {row.label}: {percent(row.accuracy)} at {row.epsilon:g}" for row in papers
    )
    return Plot(
        inline_svg(svg["plane"], "plane", alternative),
        "Accuracy on test examples against ε, which grows by equal factors to the right.",
        HtmlTable(("method", "ε", "right", "which ε", "δ"), rows, n_own),
    )


def _nonprivate(report: AnyReport) -> float | None:
    return report.benchmark.nonprivate_accuracy if report.benchmark else None
