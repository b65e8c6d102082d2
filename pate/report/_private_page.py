"""`private/report.html`: votes, data-dependent costs and teachers' accuracies, for the operator only."""

from __future__ import annotations

import json
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.report import _plots as plots
from pate.report._formats import percent
from pate.report._html import Content, Page, PageBlock, PageTable, Plot, Section
from pate.report.schema import EpsilonCurves, Report
from pate.report.sections._privacy import curves_table
from pate.runs._files import RunFiles

_RARE = 0.5  # of the share of its votes: a class that is first less often is outvoted
WARNING = "Private: do not publish. These figures depend on the private records and have no guarantee."


def private_page(report: Report, run: RunFiles) -> Page | None:
    """The page; None where no votes are stored (any more)."""
    if not run.votes_file.exists():
        return None
    with np.load(run.votes_file, allow_pickle=False) as archive:
        counts: NDArray[np.int64] = archive["counts"]
    if not len(counts):
        return None
    seconds = [(stage, f"{value:.1f} s") for stage, value in _read(run.seconds_file).items()]
    return Page(
        title=f"private: {report.name}",
        eyebrow=f"pate · {report.name} · private",
        heading="Inside the trust boundary",
        warnings=(WARNING,),
        sections=(
            _cost(report, _read(run.epsilon_file)),
            _agreement(counts),
            _classes(report, counts),
            _teachers(_read(run.evaluation_file), _read(run.failures_file)),
            Section("Time", content=[PageBlock("facts", seconds)] if seconds else ()),
        ),
        footer=WARNING,
    )


def _cost(report: Report, found: dict[str, Any]) -> Section:
    """Every ε of the run, with its kind; where it was computed, the exact one after so many queries."""
    rows = [("for every data set (the one to publish)", f"{report.privacy.epsilon:.4g}")]
    if report.privacy.sanitised is not None:
        rows.append(("sanitised (may be published)", f"{report.privacy.sanitised.epsilon:.4g}"))
    for name, key in (("exact, RDP (private)", "by_rdp"), ("exact, PLD (private)", "by_pld")):
        if key in found:
            rows.append((name, "∞" if found[key] is None else f"{found[key]:.4g}"))
    if found.get("why"):
        rows.append(("exact (private)", f"none: {found['why']}"))
    title, table = "What it really cost", PageTable((f"ε at δ = {report.privacy.delta:g}", "all queries"), rows)
    after = found.get("by_rdp_after")
    if after is None or report.curves is None:
        return Section(title, content=[table])
    known = {
        name: tuple(
            np.interp(after["queries"], report.curves.queries, [np.nan if v is None else v for v in values]).tolist()
        )
        for name, values in report.curves.epsilon.items()
    }
    exact = {"exact, RDP: depends on the votes (private)": tuple(after["epsilon"])}
    curves = EpsilonCurves(queries=tuple(after["queries"]), epsilon=known | exact)
    plot = Plot(
        "private-epsilon",
        "ε against the number of queries, for every data set and for these votes.",
        "The exact cost of these votes beside the publishable one.",
        curves_table(curves),
    )
    limit, epsilon = report.queries.max_queries, report.privacy.epsilon
    draw = partial(plots.epsilon_by_queries, curves, limit, epsilon, private=True)
    return Section(title, content=[table, plot], drawings={"private-epsilon": draw})


def _agreement(counts: NDArray[np.int64]) -> Section:
    """Votes of the first class and its lead, over the queries."""
    ordered = np.sort(counts, axis=1)
    top, gaps, teachers = ordered[:, -1], ordered[:, -1] - ordered[:, -2], int(counts[0].sum())
    rows = [
        (name, *(f"{q:.0f}" for q in np.quantile(values, (0, 0.25, 0.5, 0.75, 1))))
        for name, values in (("votes of the first", top), ("gap to the second", gaps))
    ]
    edges = np.linspace(0, teachers, 11)
    numbers, _ = np.histogram(gaps, edges)
    shares = [(f"{low:.0f} – {high:.0f}", str(n)) for (low, high), n in zip(pairwise(edges), numbers, strict=True)]
    median = f"median {np.median(gaps):.0f}"
    plot = Plot(
        "gaps",
        f"Histogram of the gap between first and second over {len(gaps)} queries; {median}.",
        f"Gap between the first and the second class, of {teachers} votes.",
        PageTable(("gap", "queries"), shares),
    )
    return Section(
        "How much the teachers agree",
        content=[
            "Queries in order of agreement: the least, a quarter, half and three quarters up, the most.",
            PageTable(("in votes", "least", "¼", "½", "¾", "most"), rows),
            plot,
        ],
        drawings={"gaps": partial(plots.histogram, gaps, "votes between first and second", "queries")},
    )


def _classes(report: Report, counts: NDArray[np.int64]) -> Section:
    """What teachers think of each class: how often it is first or second, and how many votes it ever has.

    With a note where some class hardly ever wins though it has votes.
    """
    order = np.argsort(-counts, axis=1, kind="stable")
    first, second = (np.bincount(order[:, place], minlength=len(report.classes)) for place in (0, 1))
    shares = counts.sum(axis=0) / max(1, counts.sum())
    released = None if report.labels is None else report.labels.by_class
    rows = [
        (
            name,
            percent(shares[i]),
            f"{first[i]:,}",
            f"{second[i]:,}",
            f"{np.median(counts[:, i]):.0f}",
            f"{counts[:, i].max()}",
            "–" if released is None else f"{released[i]:,}",
        )
        for i, name in enumerate(report.classes)
    ]
    header = ("class", "of all votes", "first in", "second in", "votes, median", "votes, most", "labels released")
    content: list[Content] = [
        "Over all queries that were voted on. The last column may be published, the others may not.",
        PageTable(header, rows),
    ]
    outvoted = [name for i, name in enumerate(report.classes) if first[i] < _RARE * shares[i] * len(counts)]
    if outvoted:
        text = (
            f"{', '.join(map(repr, outvoted[:5]))}: first far less often than votes for it would suggest. Teachers see "
            "it and are outvoted, as each of them goes by how frequent classes are in its part. Teachers that weigh "
            "classes evenly (`class_weight: balanced`, or the teacher `balanced`) let it win where it is likely; see "
            "docs/students.md."
        )
        content.append(PageBlock("note", text))
    return Section("What teachers think of each class", content=content)


def _teachers(evaluation: dict[str, Any], failures: dict[str, Any]) -> Section:
    rows = []
    if evaluation:
        rows.append(("each teacher, on average", percent(evaluation["mean_teacher_accuracy"])))
        rows.append(("their plurality", percent(evaluation["plurality_accuracy"])))
    if failures:
        rows.append(("teachers that failed to train", str(len(failures["teachers"]))))
    return Section("Teachers on the public examples", content=[PageBlock("facts", rows)] if rows else ())


def _read(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content
