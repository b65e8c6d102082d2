"""The rows of papers about baselines: configs of ordinary `pate baseline` runs, each beside the paper's figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pate.components.registry import chosen
from pate.config import BaselineConfig, default_config_path, parse_config, read_yaml

_ROWS = Path(__file__).with_name("baseline_rows.yaml")


@dataclass(frozen=True)
class BaselineRow:
    """What is run, what the paper has for it, and how the two differ; `panel` and `at` say where a figure shows it."""

    name: str
    content: dict[str, Any]
    paper: float | None
    differs: str
    panel: str
    at: float | None = None
    line: str = ""
    curve: bool = False

    def config(self, seed: int) -> BaselineConfig:
        """The config of the row's run with that seed."""
        return parse_config(self.content | {"seed": seed}, BaselineConfig)


@dataclass(frozen=True)
class BaselineStudy:
    """All rows of one paper; `panels` are titles and axes of its figure, by name.

    `public_was_seen` says that public examples taught the network something beforehand, so that they are no test.
    """

    name: str
    source: str
    rows: tuple[BaselineRow, ...]
    panels: dict[str, dict[str, Any]]
    public_was_seen: bool = False

    def only(self, names: Sequence[str]) -> BaselineStudy:
        """A copy of the study with the named rows alone."""
        return replace(self, rows=chosen(names, {row.name: row for row in self.rows}, self.name, "rows"))


def baseline_studies(file: Path = _ROWS) -> list[str]:
    """The names of all that there are."""
    return list(read_yaml(file))


def baseline_study(name: str, quick: bool, names: Sequence[str] | None = None, file: Path = _ROWS) -> BaselineStudy:
    """The rows of one paper: those that `names` lists, else all; `quick` leaves most out where none is named."""
    known, few = read_yaml(file)[name], quick and names is None
    rows = [_row(name, known, entry) for entry in known["rows"] if not few or entry.get("quick", False)]
    found = BaselineStudy(name, known["source"], tuple(rows), known["panels"], known.get("public_was_seen", False))
    return found if names is None else found.only(names)


def _row(study: str, known: dict[str, Any], entry: dict[str, Any]) -> BaselineRow:
    own = read_yaml(default_config_path(entry.get("config") or known["config"]))
    own.pop("nonprivate", None)
    baseline = own["baseline"]
    params = baseline.get("params", {}) | known.get("params", {}) | entry.get("params", {})
    content = own | {
        "name": f"{study}-{entry['name']}",
        "data": entry.get("data", own["data"]),
        "baseline": {"name": entry.get("baseline", baseline["name"]), "params": params},
        "budget": own["budget"] | entry.get("budget", {}),
    }
    return BaselineRow(
        name=entry["name"],
        content=content,
        paper=entry.get("paper"),
        differs="; ".join(text for text in (known.get("differs"), entry.get("differs")) if text),
        panel=entry["panel"],
        at=entry.get("at"),
        line=entry.get("line", ""),
        curve=entry.get("curve", False),
    )
