"""Which rows there are, as configs of ordinary runs, each beside the paper's figures: of PATE, and of baselines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pate.components._registry import chosen, nearest
from pate.config import BaselineConfig, Config, default_config_path, parse_config, read_yaml
from pate.errors import ConfigError

_SECTIONS = ("neighbours", "mechanism", "budget", "student")
_ROWS = Path(__file__).with_name("rows.yaml")
_BASELINE_ROWS = Path(__file__).with_name("baseline_rows.yaml")
_PAPERS = Path(__file__).parents[1] / "report" / "papers.yaml"


@dataclass(frozen=True)
class Row:
    """A row of the table: what is run, what the paper has for it, and how the two differ."""

    name: str
    content: dict[str, Any]
    paper: dict[str, Any] | None
    differs: str

    has_own_config: bool = False
    """Whether the row is an ordinary run by a config of its own, and not one on votes that are counted once."""

    def config(self, seed: int) -> Config:
        """The row's config with that seed."""
        return parse_config(self.content | {"seed": seed})

    def config_on_votes(self, seed: int) -> Config:
        """The config of the row's run on votes that are counted already."""
        from pate.voters.stored import StoredConfig

        known = StoredConfig.model_fields
        content = {key: value for key, value in self.content.items() if key in known}
        return parse_config({"stored": {"file": "counted here"}} | content | {"voters": "stored", "seed": seed})


@dataclass(frozen=True)
class Study:
    """All that is run for one data set; `base` is the config of its teachers, empty where no row has any."""

    data: str
    rows: tuple[Row, ...]
    figure_teachers: tuple[int, ...]
    base: dict[str, Any]
    nonprivate: dict[str, Any] | None = None

    @property
    def nonprivate_of_paper(self) -> float | None:
        """The accuracy without privacy that the paper reports, if it does."""
        known = [row.paper["nonprivate"] for row in self.rows if row.paper and row.paper.get("nonprivate")]
        return known[0] if known else None

    def teachers(self, n_teachers: int, seed: int) -> Config:
        """The ensemble of another size, for the figures."""
        return parse_config(self.base | {"n_teachers": n_teachers, "seed": seed})

    def only(self, names: Sequence[str]) -> Study:
        """A copy of the study with the named rows, without ensembles and a non-private baseline not needed."""
        rows = chosen(names, {row.name: row for row in self.rows}, self.data, "rows")
        return replace(self, rows=rows, figure_teachers=(), nonprivate=None)


def figures_alone(found: Study) -> Study:
    """Figures 2 and 3 without any row: teachers are trained and vote, and nothing is released or learned from them."""
    if not found.figure_teachers:
        raise ConfigError("{figures}: there are no teachers to draw them of", figures=True)
    return replace(found, rows=(), nonprivate=None)


def study(
    data: str,
    votes: bool,
    quick: bool,
    names: Sequence[str] | None = None,
    files: tuple[Path, Path] = (_ROWS, _PAPERS),
) -> Study:
    """The rows of `data`, with own teachers or from stored votes: all of them, or those that `names` lists.

    `quick` trains for a shorter time and, where none is named, leaves most rows out.
    """
    everything = read_yaml(files[0])
    if data not in everything:
        raise ConfigError(
            f"{data}: the papers' rows are not known for it; {nearest(data, [*everything, *baseline_studies()])}"
        )
    known = everything[data]
    if votes and "votes" not in known:
        text = f"{{votes}}: there are no stored votes for {data}; leave it out to train teachers"
        raise ConfigError(text, votes=True)
    base_name = known.get("votes" if votes else "config")
    base = {} if base_name is None else _base(base_name, files[0].parent)
    rows = []
    nonprivate = base.get("nonprivate")
    for entry in known["rows"]:
        own_config = "config" in entry  # a config of its own: no teachers, so no votes that could be stored
        asked_for = entry.get("votes", not own_config) if votes else entry.get("own", True)
        if not asked_for or (quick and names is None and not entry.get("quick", False)):
            continue
        if own_config:  # a run on the records; sections that the row has too are added key by key
            own = _base(entry["config"], files[0].parent)
            content = own | {key: own.get(key, {}) | entry[key] for key in _SECTIONS if key in entry}
        else:  # a run on the votes of the study's teachers
            usual = base["student"] if votes else known.get("student", base["student"])
            content = base | {
                "mechanism": entry["mechanism"],
                "budget": {"delta": base["budget"]["delta"], **entry["budget"]},
                "n_teachers": entry.get("n_teachers", base["n_teachers"]),
                "student": entry.get("student", usual),
            }
        content["name"] = f"{data}-{entry['name']}"
        nonprivate = nonprivate or content.pop("nonprivate", None)
        for key in ("nonprivate", "report"):  # no part of a row
            content.pop(key, None)
        student, notes = content["student"], [entry.get("differs")]
        if not own_config:
            differs = known["differs"]
            notes = [differs["votes" if votes else "own"], differs.get(student["name"]), *notes]
        params = student.get("params", {})
        steps = entry.get("quick_steps", None if own_config and "steps" not in params else known.get("quick_steps"))
        if quick and steps is not None:
            content["student"] = student | {"params": params | {"steps": steps}}
            notes.append(f"a student of {steps} steps (quick)")
        paper = _of_paper(data, entry["paper"], files[1]) if "paper" in entry else None
        rows.append(Row(entry["name"], content, paper, "; ".join(r for r in notes if r), own_config))
    wanted = () if votes else known.get("figure_teachers", ())
    sizes = tuple(n for n in wanted if not quick or n == base["n_teachers"])
    found = Study(data, tuple(rows), sizes, base, nonprivate)
    return found if names is None else found.only(names)


def _base(name: str, folder: Path) -> dict[str, Any]:
    """A config beside the rows' file, or one that comes with the package."""
    beside = folder / f"{name}.yaml"
    return read_yaml(beside if beside.exists() else default_config_path(name))


def _of_paper(data: str, wanted: dict[str, Any], file: Path) -> dict[str, Any]:
    for row in read_yaml(file)["rows"]:
        if row["data"] == data and all(row[key] == value for key, value in wanted.items()):
            return row
    raise ConfigError(f"{file.name}: has no row {wanted} of {data}")


# Papers about baselines


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


def baseline_studies(file: Path = _BASELINE_ROWS) -> list[str]:
    """The names of all that there are."""
    return list(read_yaml(file))


def baseline_study(
    name: str, quick: bool, names: Sequence[str] | None = None, file: Path = _BASELINE_ROWS
) -> BaselineStudy:
    """The rows of one paper: those that `names` lists, else all; `quick` leaves most out where none is named."""
    known, rows = read_yaml(file)[name], []
    for entry in known["rows"]:
        if quick and names is None and not entry.get("quick", False):
            continue
        own = read_yaml(default_config_path(entry.get("config") or known["config"]))
        own.pop("nonprivate", None)
        baseline = own["baseline"]
        params = baseline.get("params", {}) | known.get("params", {}) | entry.get("params", {})
        content = own | {
            "name": f"{name}-{entry['name']}",
            "data": entry.get("data", own["data"]),
            "baseline": {"name": entry.get("baseline", baseline["name"]), "params": params},
            "budget": own["budget"] | entry.get("budget", {}),
        }
        differs = "; ".join(text for text in (known.get("differs"), entry.get("differs")) if text)
        shown = {key: entry[key] for key in ("at", "line", "curve") if key in entry}
        rows.append(BaselineRow(entry["name"], content, entry.get("paper"), differs, entry["panel"], **shown))
    found = BaselineStudy(name, known["source"], tuple(rows), known["panels"], known.get("public_was_seen", False))
    return found if names is None else found.only(names)
