"""What the papers report: `papers.yaml`, read."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict


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


@cache
def _content() -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "papers.yaml").read_text(encoding="utf-8"))
    return content
