"""What the papers report, in `papers.yaml`, and a run beside it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict

from pate.report import _plots as plots
from pate.report._formats import percent, small
from pate.report._html import Content, PageBlock, PageTable, Plot, Section
from pate.report.schema import AnyReport


class PaperRow(BaseModel):
    """One row of a paper's table."""

    model_config = ConfigDict(extra="forbid", frozen=True)

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
    return [row for row in map(PaperRow.model_validate, _content()["rows"]) if row.data == data]


def source_of(row: PaperRow) -> tuple[str, str]:
    """Title and address of the paper."""
    source = _content()["sources"][row.source]
    return source["title"], source["url"]


def sources(rows: Sequence[PaperRow]) -> list[Content]:
    """Where the papers' figures are from, for a page; nothing where there are none."""
    return [PageBlock("sources", list(dict(map(source_of, rows)).items()))] if rows else []


@cache
def _content() -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "papers.yaml").read_text(encoding="utf-8"))
    return content


def plane(report: AnyReport) -> Section:
    """Accuracy against ε, this run's and the papers' on the same data; nothing where accuracy was not measured."""
    papers, privacy, accuracy = paper_rows(report.data), report.privacy, report.student.accuracy
    title = "Beside the papers" if papers else "Accuracy and privacy"
    if accuracy is None:
        return Section(title)
    content: list[Content] = [
        "How right the student is against what it cost: up is more accurate, left is more private."
    ]
    if papers:
        text = (
            "Mind the kinds of ε. The papers' (hollow marks) are as published, those called data-dependent computed "
            "from the private votes. Ours (filled) holds for every data set, and is larger for the same labels."
        )
        content.append(PageBlock("note", text))
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
    content.append(
        Plot("plane", alternative, caption, PageTable(("method", "ε", "right", "which ε", "δ"), rows, len(own)))
    )
    marks = [plots.Point("this run", epsilon, accuracy, kind) for kind, epsilon, _ in own]
    marks += [row.point for row in papers]
    drawings = {"plane": partial(plots.accuracy_against_epsilon, marks, nonprivate)}
    return Section(title, content=[*content, *sources(papers)], drawings=drawings)
