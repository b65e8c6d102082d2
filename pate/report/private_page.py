"""`private/report.html`: votes, data-dependent costs and teachers' accuracies, for the operator only."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.report import plots
from pate.report.formats import percent
from pate.report.html import HtmlTable, Plot, inline_svg, render
from pate.report.page import curves_table
from pate.report.schema import EpsilonCurves, Report
from pate.runs.files import RunFiles

_RARE = 0.5  # of the share of its votes: a class that is first less often is outvoted
WARNING = "Private: do not publish. These figures depend on the private records and have no guarantee."


def render_private_page(report: Report, run: RunFiles) -> str | None:
    """The page as HTML text; None where no votes are stored (any more)."""
    counts = _votes(run.votes_file)
    if counts is None:
        return None
    costs = _read(run.epsilon_file)
    ordered = np.sort(counts, axis=1)
    top, gaps = ordered[:, -1], ordered[:, -1] - ordered[:, -2]
    return render(
        "private.html.j2",
        name=report.name,
        warning=WARNING,
        cost=_cost(report, costs),
        cost_by_queries=_cost_by_queries(report, costs.get("by_rdp_after")),
        agreement=_agreement(top, gaps),
        gaps=_gaps(gaps, int(counts[0].sum())),
        classes=_classes(report, counts),
        rare=_rare(report, counts),
        teachers=_teachers(_read(run.evaluation_file), _read(run.failures_file)),
        seconds=[(stage, f"{value:.1f} s") for stage, value in _read(run.seconds_file).items()],
    )


def _cost(report: Report, figures: dict[str, Any]) -> HtmlTable:
    """Every ε of the run, with its kind."""
    rows = [("for every data set (the one to publish)", f"{report.privacy.epsilon:.4g}")]
    if report.privacy.sanitised is not None:
        rows.append(("sanitised (may be published)", f"{report.privacy.sanitised.epsilon:.4g}"))
    for name, key in (("exact, RDP (private)", "by_rdp"), ("exact, PLD (private)", "by_pld")):
        if key in figures:
            rows.append((name, "∞" if figures[key] is None else f"{figures[key]:.4g}"))
    if figures.get("why"):
        rows.append(("exact (private)", f"none: {figures['why']}"))
    return HtmlTable((f"ε at δ = {report.privacy.delta:g}", "all queries"), rows)


def _cost_by_queries(report: Report, after: dict[str, Any] | None) -> Plot | None:
    """The exact ε after so many queries, beside the publishable ones; None where it was not worked out."""
    if after is None or report.curves is None:
        return None
    queries = np.array(after["queries"])
    known = {
        name: tuple(
            float(v) for v in np.interp(queries, report.curves.queries, [np.nan if v is None else v for v in values])
        )
        for name, values in report.curves.epsilon.items()
    }
    curves = EpsilonCurves(
        queries=tuple(after["queries"]),
        epsilon={**known, "exact, RDP: depends on the votes (private)": tuple(after["epsilon"])},
    )
    figure = plots.epsilon_by_queries(curves, report.queries.max_queries, report.privacy.epsilon, private=True)
    alternative = "ε against the number of queries, for every data set and for these votes."
    return Plot(
        inline_svg(plots.as_svg(figure, "private-epsilon"), "private-epsilon", alternative),
        "The exact cost of these votes beside the publishable one.",
        curves_table(curves),
    )


def _agreement(top: NDArray[np.int64], gaps: NDArray[np.int64]) -> HtmlTable:
    """Votes of the first class and its lead, over the queries."""
    rows = [
        (
            name,
            f"{np.min(values):.0f}",
            *(f"{q:.0f}" for q in np.quantile(values, (0.25, 0.5, 0.75))),
            f"{np.max(values):.0f}",
        )
        for name, values in (("votes of the first", top), ("gap to the second", gaps))
    ]
    return HtmlTable(("in votes", "least", "¼", "½", "¾", "most"), rows)


def _classes(report: Report, counts: NDArray[np.int64]) -> HtmlTable:
    """What teachers think of each class: how often it is first or second, and how many votes it ever has."""
    order = np.argsort(-counts, axis=1, kind="stable")
    released = None if report.labels is None else report.labels.by_class
    rows = []
    for number, name in enumerate(report.classes):
        own = counts[:, number]
        rows.append(
            (
                name,
                percent(own.sum() / max(1, counts.sum())),
                f"{int((order[:, 0] == number).sum()):,}",
                f"{int((order[:, 1] == number).sum()):,}",
                f"{np.median(own):.0f}",
                f"{own.max()}",
                "–" if released is None else f"{released[number]:,}",
            )
        )
    header = ("class", "of all votes", "first in", "second in", "votes, median", "votes, most", "labels released")
    return HtmlTable(header, rows)


def _rare(report: Report, counts: NDArray[np.int64]) -> str | None:
    """A note in words where some class hardly ever wins though it has votes."""
    first = np.bincount(counts.argmax(axis=1), minlength=len(report.classes))
    shares = counts.sum(axis=0) / max(1, counts.sum())
    lost = [
        name for name, n, share in zip(report.classes, first, shares, strict=True) if n < _RARE * share * len(counts)
    ]
    if not lost:
        return None
    shown = ", ".join(map(repr, lost[:5]))
    return (
        f"{shown}: first far less often than votes for it would suggest. Teachers see it and are outvoted, as each of "
        "them goes by how frequent classes are in its part. Teachers that weigh classes evenly (`class_weight: "
        "balanced`, or the teacher `balanced`) let it win where it is likely; see docs/students.md."
    )


def _gaps(gaps: NDArray[np.int64], teachers: int) -> Plot:
    """How many queries have which gap between the first and the second class."""
    edges = np.linspace(0, teachers, 11)
    shares = [
        (f"{low:.0f} – {high:.0f}", str(int(((gaps >= low) & ((gaps < high) | (high == teachers))).sum())))
        for low, high in pairwise(edges)
    ]
    figure = plots.histogram(gaps, "votes between first and second", "queries")
    alternative = (
        f"Histogram of the gap between first and second over {len(gaps)} queries; median {np.median(gaps):.0f}."
    )
    return Plot(
        inline_svg(plots.as_svg(figure, "gaps"), "gaps", alternative),
        f"Gap between the first and the second class, of {teachers} votes.",
        HtmlTable(("gap", "queries"), shares),
    )


def _teachers(evaluation: dict[str, Any], failures: dict[str, Any]) -> list[tuple[str, str]]:
    rows = []
    if evaluation:
        rows.append(("each teacher, on average", percent(evaluation["mean_teacher_accuracy"])))
        rows.append(("their plurality", percent(evaluation["plurality_accuracy"])))
    if failures:
        rows.append(("teachers that failed to train", str(len(failures["teachers"]))))
    return rows


def _votes(path: Path) -> NDArray[np.int64] | None:
    if not path.exists():
        return None
    with np.load(path, allow_pickle=False) as archive:
        counts: NDArray[np.int64] = archive["counts"]
    return counts if len(counts) else None


def _read(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content
