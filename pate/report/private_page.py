"""`private/report.html`: votes, data-dependent costs and teachers' accuracies, for the operator only."""

from __future__ import annotations

import json
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.report import elements, plots
from pate.report.schema import EpsilonCurves, Report
from pate.report.words import percent
from pate.runs.files import RunFiles

WARNING = "Private: do not publish. These figures depend on the private records and have no guarantee."


def render_private_page(report: Report, run: RunFiles) -> str | None:
    """The page as HTML text; None where no votes are stored (any more)."""
    counts = _votes(run.votes_file)
    if counts is None:
        return None
    heading = "\n".join(
        [
            elements.paragraph(f"pate · {report.name} · private", "eyebrow"),
            "<h1>Inside the trust boundary</h1>",
            f'<p class="warning" role="note">{escape(WARNING)}</p>',
        ]
    )
    main = [
        _cost(report, _read(run.epsilon_file)),
        _gaps(counts),
        _teachers(_read(run.evaluation_file), _read(run.failures_file)),
        _seconds(_read(run.seconds_file)),
    ]
    return elements.document(f"private: {report.name}", heading, main, elements.paragraph(WARNING))


def _cost(report: Report, figures: dict[str, Any]) -> str:
    rows = [("for every data set (the one to publish)", f"{report.privacy.epsilon:.4g}")]
    if report.privacy.sanitised is not None:
        rows.append(("sanitised (may be published)", f"{report.privacy.sanitised.epsilon:.4g}"))
    for name, key in (("exact, RDP (private)", "by_rdp"), ("exact, PLD (private)", "by_pld")):
        if key in figures:
            rows.append((name, "∞" if figures[key] is None else f"{figures[key]:.4g}"))
    if figures.get("why"):
        rows.append(("exact (private)", f"none: {figures['why']}"))
    table = elements.table((f"ε at δ = {report.privacy.delta:g}", "all queries"), rows)
    after = figures.get("by_rdp_after")
    if after is None or report.curves is None:
        return elements.section("What it really cost", table)
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
    figure = plots.epsilon_by_queries(curves, report.queries.limit_asked, report.privacy.epsilon, private=True)
    cells = [
        (str(n), *("∞" if values[i] is None else f"{values[i]:.3f}" for values in curves.epsilon.values()))
        for i, n in enumerate(curves.queries)
    ]
    return elements.section(
        "What it really cost",
        table,
        elements.plot(
            plots.as_svg(figure, "private-epsilon"),
            "private-epsilon",
            "ε against the number of queries, for every data set and for these votes.",
            "The exact cost of these votes beside the publishable one.",
            elements.table(("queries", *curves.epsilon), cells),
        ),
    )


def _gaps(counts: NDArray[np.int64]) -> str:
    ordered = np.sort(counts, axis=1)
    top, gaps = ordered[:, -1], ordered[:, -1] - ordered[:, -2]
    teachers = int(counts[0].sum())
    rows = [
        (
            name,
            f"{np.min(values):.0f}",
            *(f"{q:.0f}" for q in np.quantile(values, (0.25, 0.5, 0.75))),
            f"{np.max(values):.0f}",
        )
        for name, values in (("votes of the first", top), ("gap to the second", gaps))
    ]
    edges = np.linspace(0, teachers, 11)
    shares = [
        (f"{low:.0f} – {high:.0f}", str(int(((gaps >= low) & ((gaps < high) | (high == teachers))).sum())))
        for low, high in pairwise(edges)
    ]
    figure = plots.histogram(gaps, "votes between first and second", "queries")
    return elements.section(
        "How much the teachers agree",
        elements.paragraph(
            "Queries in order of agreement: the least, a quarter, half and three quarters up, the most."
        ),
        elements.table(("in votes", "least", "¼", "½", "¾", "most"), rows),
        elements.plot(
            plots.as_svg(figure, "gaps"),
            "gaps",
            f"Histogram of the gap between first and second over {len(gaps)} queries; median {np.median(gaps):.0f}.",
            f"Gap between the first and the second class, of {teachers} votes.",
            elements.table(("gap", "queries"), shares),
        ),
    )


def _teachers(evaluation: dict[str, Any], failures: dict[str, Any]) -> str:
    rows = []
    if evaluation:
        rows.append(("a teacher, on average", percent(evaluation["mean_teacher_accuracy"])))
        rows.append(("their plurality", percent(evaluation["plurality_accuracy"])))
    if failures:
        rows.append(("teachers that failed to train", str(len(failures["teachers"]))))
    if not rows:
        return ""
    return elements.section("Teachers on the public examples", elements.facts(rows))


def _seconds(seconds: dict[str, Any]) -> str:
    rows = [(stage, f"{value:.1f} s") for stage, value in seconds.items()]
    return elements.section("Time", elements.facts(rows)) if rows else ""


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
