"""`report.html`: one self-contained page. It is made from `report.json` and public files alone."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from pate.mechanisms import UNANSWERED
from pate.report import elements, plots
from pate.report.figures import Examples
from pate.report.papers import PaperRow, paper_rows, source_of
from pate.report.published_config import LEFT_OUT
from pate.report.schema import BaselineReport, Report
from pate.report.summary import (
    AnyReport,
    guarantee,
    headline,
    mechanism_in_words,
    parameters_in_words,
    short_name,
)
from pate.report.words import percent, small

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MANY_CLASSES = 30  # no confusion matrix beyond


def draw(report: AnyReport, examples: Examples | None) -> dict[str, Figure]:
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
        drawn["epsilon"] = plots.epsilon_by_queries(report.curves, report.queries.limit_asked, report.privacy.epsilon)
    if report.student.accuracy is not None:
        drawn["plane"] = plots.accuracy_against_epsilon(plane_points(report), _nonprivate(report))
    return drawn


def render_page(report: AnyReport, config_yaml: str, svg: dict[str, str], examples: Examples | None = None) -> str:
    """The page as HTML text; `config_yaml` may be published, and `svg` are the files that `draw` made."""
    heading = "\n".join(
        [
            f'<p class="eyebrow">pate · {escape(report.name)}</p>',
            f"<h1>{escape(headline(report))}</h1>",
            *(elements.paragraph(text, "lead") for text in guarantee(report)[:1]),
            elements.tiles(_tiles(report)),
        ]
    )
    main = [
        _meaning(report),
        _pipeline(report),
        _teachers(report),
        _student(report, svg),
        _examples(report, examples),
        _curves(report, svg),
        _papers(report, svg),
        _repeat(report, config_yaml),
    ]
    covered = "Nothing on this page depends on the private records except through what the guarantee covers"
    footer = (
        f"{covered}{', and figures marked as benchmark' if report.benchmark else ''}. Votes, teachers' accuracies and "
        "figures computed from them are not here. The guarantee in full is in privacy.txt, beside this page."
    )
    return elements.document(f"pate: {report.name}", heading, main, elements.paragraph(footer))


def _tiles(report: AnyReport) -> list[tuple[str, str]]:
    items = [(f"ε to publish, at δ = {small(report.privacy.delta)}", f"{report.privacy.epsilon:.3g}")]
    if report.student.accuracy is not None:
        items.insert(0, (f"right on {report.student.test_examples:,} test examples", percent(report.student.accuracy)))
    if isinstance(report, Report):
        items.append((f"labels released, of {report.queries.asked:,} asked", f"{report.queries.answered:,}"))
        items.append(("teachers", f"{report.n_teachers:,}"))
    return items


def _meaning(report: AnyReport) -> str:
    privacy = report.privacy
    content = [elements.paragraph(text) for text in guarantee(report)[1:]]
    content.append(
        elements.paragraph(
            "This ε is the cost of limits that were fixed before the private data was used. It holds for every data "
            "set and does not depend on what the data were."
        )
    )
    if privacy.sanitised is not None:
        content.append(
            elements.paragraph(
                f"A second figure, released with noise: what was answered here cost at most ε = "
                f"{privacy.sanitised.epsilon:.3g} at δ = {small(privacy.sanitised.delta)}."
            )
        )
    if report.benchmark is not None:
        content.append(elements.paragraph(report.benchmark.note, "note"))
    return elements.section("What the guarantee means", *content)


def _pipeline(report: AnyReport) -> str:
    if isinstance(report, BaselineReport):
        steps = [
            ("inside", "Private records", "their number is not published"),
            ("inside", short_name(str(report.method["name"])), "trained with noise"),
            ("outside", "One model", f"ε = {report.privacy.epsilon:.3g}"),
        ]
    else:
        queries = report.queries
        families = f"{len(report.teachers)} families" if len(report.teachers) > 1 else "one family"
        unanswered = queries.asked - queries.answered
        unlabelled = (report.public_examples or queries.asked) - queries.answered
        steps = [
            ("inside", "Private records", "their number is not published; each is in one part"),
            (
                "inside",
                f"{report.n_teachers:,} teachers",
                f"{families}, one part each" if report.teachers else "counted elsewhere, votes stored",
            ),
            ("inside", f"{queries.asked:,} queries", f"votes and noise: {mechanism_in_words(report).title}"),
            (
                "outside",
                f"{queries.answered:,} labels",
                f"released; {unanswered:,} unanswered (⊥)" if unanswered else "released; every query was answered",
            ),
            (
                "outside",
                "One student",
                f"{short_name(report.student.name)}, with {unlabelled:,} public examples unlabelled",
            ),
        ]
    if report.student.accuracy is not None:
        right = percent(report.student.accuracy)
        steps.append(("outside", f"{right} right", f"on {report.student.test_examples:,} test examples"))
    items = "\n".join(
        f'<li class="{kind}"><strong>{escape(what)}</strong><span>{escape(more)}</span></li>'
        for kind, what, more in steps
    )
    key = (
        '<p class="key"><span class="private"><i></i>inside the trust boundary, never published</span>'
        "<span><i></i>may be published</span></p>"
    )
    more = ""
    if isinstance(report, Report):
        more = elements.paragraph(f"A query releases {mechanism_in_words(report).releases}.")
    return elements.section("From records to a model", f'<ol class="flow">\n{items}\n</ol>', key, more)


def _is_run(report: AnyReport) -> bool:
    return isinstance(report, Report)


def _teachers(report: AnyReport) -> str:
    if not isinstance(report, Report) or not report.teachers:
        return ""
    most = max(kind.teachers for kind in report.teachers)
    rows = []
    for kind in report.teachers:
        details = " · ".join(
            part
            for part in (parameters_in_words(kind.params), f"on {', '.join(kind.features)}" if kind.features else "")
            if part
        )
        rows.append(
            f'<tr><th scope="row">{escape(short_name(kind.name))}<br><span class="muted">{escape(details)}</span></th>'
            f'<td class="number">{kind.teachers}</td>'
            f'<td><span class="bar" style="width: {100 * kind.teachers / most:.0f}%"></span></td></tr>'
        )
    table = (
        f'{elements.SCROLL}<table class="bars"><thead><tr><th scope="col">family</th>'
        '<th scope="col" class="number">teachers</th><td></td></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )
    text = "How many teachers a family has follows from the configuration alone. How good they are is private."
    return elements.section("Teachers", elements.paragraph(text), table)


def _student(report: AnyReport, svg: dict[str, str]) -> str:
    confusion = report.student.confusion
    if confusion is None:
        return ""
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
    figures = elements.table(("class", "right", "95 % interval", "test examples"), rows)
    return elements.section(
        "The student, class by class" if _is_run(report) else "The model, class by class",
        elements.paragraph(words),
        elements.plot(
            svg["classes"],
            "classes",
            f"Accuracy of each class with its 95 % interval. {words}",
            "Accuracy on the test examples of each class. The bar is a 95 % interval (Wilson): few examples, wide bar.",
            figures,
        ),
        _confusion_table(confusion, report.classes) if len(confusion) <= _MANY_CLASSES else "",
    )


def _confusion_table(confusion: Sequence[Sequence[int]], classes: Sequence[str]) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in classes)
    lines = []
    for i, row in enumerate(confusion):
        cells = []
        for j, number in enumerate(row):
            kind = "right" if i == j else "wrong" if number else "none"
            share = number / max(1, sum(row))
            cells.append(f'<td class="{kind}" style="--share: {share:.3f}">{number or ("0" if i == j else "·")}</td>')
        lines.append(f'<tr><th scope="row">{escape(classes[i])}</th>{"".join(cells)}</tr>')
    return (
        "<h3>Confusion matrix</h3>"
        f'{elements.SCROLL}<table class="confusion"><caption>Rows: true class. Columns: what it said. '
        "Off the diagonal (orange, bold) are the mistakes.</caption>"
        f"<thead><tr><td></td>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def _examples(report: AnyReport, examples: Examples | None) -> str:
    if examples is None or not len(examples.images):
        return ""
    items = []
    for place, (picture, row, label) in enumerate(zip(examples.images, examples.rows, examples.labels, strict=True)):
        truth = None if examples.truth is None else report.classes[examples.truth[place]]
        said = "⊥" if label == UNANSWERED else report.classes[label]
        kind, remark, words = "", "", f"released label {said}"
        if label == UNANSWERED:
            kind, remark, words = "unanswered", "no answer", "not answered"
        elif truth is not None and truth != said:
            kind, remark, words = "wrong", f"truly {truth}", f"released label {said}, truly {truth}"
        height, width = picture.shape[:2]
        tag = elements.image(plots.png_of(picture), f"public example {row}: {words}", width, height)
        more = f"<small>{escape(remark)}</small>" if remark else ""
        items.append(f'<li class="{kind}">{tag}<b>{escape(said)}</b>{more}</li>')
    text = f"The first {len(items)} public examples that were asked about, with the label that noise and votes gave."
    if examples.truth is not None:
        text += " A solid orange frame marks a wrong label: true labels are known here, as this is a benchmark."
    if (examples.labels == UNANSWERED).any():
        text += " A dashed frame and ⊥ mark a question that was not answered."
    grid = '<ul class="examples">\n' + "\n".join(items) + "\n</ul>"
    accuracy = report.benchmark.label_accuracy if report.benchmark else None
    right = f"Of all released labels {percent(accuracy)} are right (benchmark)." if accuracy is not None else ""
    return elements.section("What was released", elements.paragraph(f"{text} {right}"), grid)


def _curves(report: AnyReport, svg: dict[str, str]) -> str:
    if not isinstance(report, Report) or report.curves is None:
        return ""
    curves = report.curves
    rows = [
        (str(n), *("∞" if values[i] is None else f"{values[i]:.3f}" for values in curves.epsilon.values()))
        for i, n in enumerate(curves.queries)
    ]
    limit, epsilon = report.queries.limit_asked, report.privacy.epsilon
    text = (
        "The more labels are asked for, the more they can tell. These curves hold for every data set: they come from "
        "the noise and the number of queries alone."
    )
    if report.privacy.sanitised is not None:
        text += " The run's own point lies above them by the cost of the sanitised figure."
    alternative = f"ε grows with the number of queries, to {epsilon:.3g} at the limit of {limit} queries."
    return elements.section(
        "Privacy cost by number of queries",
        elements.paragraph(text),
        elements.plot(
            svg["epsilon"],
            "epsilon",
            alternative,
            f"ε at δ = {small(report.privacy.delta)} against the number of label queries."
            + (" Both lines hold; the smaller one counts." if len(curves.epsilon) > 1 else ""),
            elements.table(("queries", *curves.epsilon), rows),
        ),
    )


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
    return [(row.label, f"{row.epsilon:.3g}", percent(row.accuracy), row.kind, small(row.delta)) for row in rows]


def paper_sources(rows: Sequence[PaperRow]) -> str:
    """Where the papers' figures are from."""
    titles = dict(source_of(row) for row in rows)
    links = "; ".join(f'<a href="{escape(url)}">{escape(title)}</a>' for title, url in titles.items())
    return f'<p class="muted">Sources: {links}.</p>' if titles else ""


def _papers(report: AnyReport, svg: dict[str, str]) -> str:
    if "plane" not in svg:
        return ""
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
    text = "How right the student is against what it cost: up is more accurate, left is more private."
    unlike = (
        "Mind the kinds of ε. The papers' (hollow marks) are as published, those called data-dependent computed from "
        "the private votes. Ours (filled) holds for every data set, and is larger for the same labels."
    )
    heading = "Beside the papers" if papers else "Accuracy and privacy"
    return elements.section(
        heading,
        elements.paragraph(text),
        elements.paragraph(unlike, "note") if papers else "",
        elements.plot(
            svg["plane"],
            "plane",
            f"Accuracy against ε. This run: {right} at {privacy.epsilon:.3g}"
            + "".join(f"; {row.label}: {percent(row.accuracy)} at {row.epsilon:g}" for row in papers),
            "Accuracy on test examples against ε, which grows by equal factors to the right.",
            elements.table(("method", "ε", "right", "which ε", "δ"), rows, own=range(n_own)),
        ),
        paper_sources(papers),
    )


def _nonprivate(report: AnyReport) -> float | None:
    return report.benchmark.nonprivate_accuracy if report.benchmark else None


def _repeat(report: AnyReport, config_yaml: str) -> str:
    command = "pate run" if _is_run(report) else "pate baseline"
    versions = [("pate", report.pate_version), *report.versions.items(), ("configuration digest", report.config_digest)]
    return elements.section(
        "To repeat it",
        elements.paragraph(
            "Save the configuration as config.yaml and run the command. The noise is fresh each time: labels and "
            "accuracy will differ a little, ε will not."
        ),
        elements.paragraph(f"Names of files, columns and places are not published: {LEFT_OUT} stands for them.")
        if LEFT_OUT in config_yaml
        else "",
        f"<pre>{command} config.yaml</pre>",
        elements.folded("Configuration", f"<pre>{escape(config_yaml)}</pre>"),
        "<h3>Versions</h3>",
        elements.facts(versions),
    )
