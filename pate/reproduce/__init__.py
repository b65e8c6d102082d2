"""The papers' experiments run again: rows as configs of ordinary runs, each beside the paper's figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pate.components._registry import chosen, nearest
from pate.config import BaselineConfig, Config, default_config_path, parse_config, read_yaml
from pate.errors import ConfigError

_SECTIONS = ("neighbours", "mechanism", "budget", "student")
_ROWS = tuple(Path(__file__).with_name(name) for name in ("rows.yaml", "baseline_rows.yaml"))
_PAPERS = Path(__file__).parents[1] / "report" / "papers.yaml"


@dataclass(frozen=True)
class Row:
    """A row of the table: what is run, what the paper has for it, and how the two differ.

    Of the paper there is its row, or of a baseline its accuracy. `panel`, `line` and `at` say where a figure shows a
    baseline, and `curve` that it is tested while it trains.
    """

    name: str
    content: dict[str, Any]
    paper: Any
    differs: str
    has_own_config: bool = False
    """Whether the row is an ordinary run by a config of its own, and not one on votes that are counted once."""
    panel: str = ""
    at: float | None = None
    line: str = ""
    curve: bool = False

    def config(self, seed: int) -> Any:
        """The row's config with that seed: of a run, or of a baseline."""
        return parse_config(self.content | {"seed": seed}, BaselineConfig if "baseline" in self.content else Config)

    def config_on_votes(self, seed: int) -> Config:
        """The config of the row's run on votes that are counted already."""
        from pate.voters.stored import StoredConfig

        known = StoredConfig.model_fields
        content = {key: value for key, value in self.content.items() if key in known}
        return parse_config({"stored": {"file": "counted here"}} | content | {"voters": "stored", "seed": seed})


@dataclass(frozen=True)
class Study:
    """All that is run for one data set, or of one paper about baselines.

    Of a data set, `base` is the config of its teachers, empty where no row has any. Of a paper about baselines,
    `panels` are titles and axes of its figure, by name; `public_was_seen` says that public examples taught the network
    something beforehand, so that they are no test.
    """

    data: str
    rows: tuple[Row, ...]
    figure_teachers: tuple[int, ...] = ()
    base: dict[str, Any] = field(default_factory=dict)
    nonprivate: dict[str, Any] | None = None
    source: str = ""
    panels: dict[str, dict[str, Any]] = field(default_factory=dict)
    public_was_seen: bool = False

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

    def figures_alone(self) -> Study:
        """Figures 2 and 3 without any row: teachers train and vote, and nothing is released or learned from them."""
        if not self.figure_teachers:
            raise ConfigError(f"{{figures}}: {self.data} has no teachers to draw them of; leave it out", figures=True)
        return replace(self, rows=(), nonprivate=None)


def studies(files: Sequence[Path] = _ROWS) -> dict[str, dict[str, Any]]:
    """What the files say of each study, by its name."""
    return {name: known for file in files for name, known in read_yaml(file).items()}


def study(
    name: str,
    votes: bool = False,
    quick: bool = False,
    names: Sequence[str] | None = None,
    files: Sequence[Path] = _ROWS,
    papers: Path = _PAPERS,
) -> Study:
    """The rows of a data set, with own teachers or from stored votes, or of a paper: all, or those that `names` lists.

    `quick` trains for a shorter time and, where none is named, leaves most rows out.
    """
    everything = studies(files)
    if name not in everything:
        raise ConfigError(f"{name}: the papers' rows are not known for it; {nearest(name, list(everything))}")
    known = everything[name]
    if votes and "votes" not in known:
        text = f"{{votes}}: there are no stored votes for {name}; leave it out to train the models"
        raise ConfigError(text, votes=True)
    rows = [
        entry
        for entry in known["rows"]
        if (entry.get("votes", "config" not in entry) if votes else entry.get("own", True))
        and not (quick and names is None and not entry.get("quick", False))
    ]
    if "panels" in known:
        of_baselines = (_baseline_row(name, known, entry) for entry in rows)
        panels = {key: known[key] for key in ("source", "panels", "public_was_seen") if key in known}
        found = Study(name, tuple(of_baselines), **panels)
    else:
        found = _with_teachers(name, known, rows, votes, quick, files[0].parent, papers)
    return found if names is None else found.only(names)


def _with_teachers(
    data: str,
    known: Mapping[str, Any],
    entries: Sequence[Mapping[str, Any]],
    votes: bool,
    quick: bool,
    folder: Path,
    papers: Path,
) -> Study:
    base_name = known.get("votes" if votes else "config")
    base = {} if base_name is None else _base(base_name, folder)
    rows = []
    nonprivate = base.get("nonprivate")
    for entry in entries:
        own_config = "config" in entry  # a config of its own: no teachers, so no votes that could be stored
        if own_config:  # a run on the records; sections that the row has too are added key by key
            own = _base(entry["config"], folder)
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
        paper = _of_paper(data, entry["paper"], papers) if "paper" in entry else None
        rows.append(Row(entry["name"], content, paper, "; ".join(r for r in notes if r), own_config))
    wanted = () if votes else known.get("figure_teachers", ())
    sizes = tuple(n for n in wanted if not quick or n == base["n_teachers"])
    return Study(data, tuple(rows), sizes, base, nonprivate)


def _base(name: str, folder: Path) -> dict[str, Any]:
    """A config beside the rows' file, or one that comes with the package."""
    beside = folder / f"{name}.yaml"
    return read_yaml(beside if beside.exists() else default_config_path(name))


def _of_paper(data: str, wanted: dict[str, Any], file: Path) -> dict[str, Any]:
    for row in read_yaml(file)["rows"]:
        if row["data"] == data and all(row[key] == value for key, value in wanted.items()):
            return row
    raise ConfigError(f"{file.name}: has no row {wanted} of {data}")


def _baseline_row(study_name: str, known: Mapping[str, Any], entry: Mapping[str, Any]) -> Row:
    own = read_yaml(default_config_path(entry.get("config") or known["config"]))
    own.pop("nonprivate", None)
    baseline = own["baseline"]
    params = baseline.get("params", {}) | known.get("params", {}) | entry.get("params", {})
    content = own | {
        "name": f"{study_name}-{entry['name']}",
        "data": entry.get("data", own["data"]),
        "baseline": {"name": entry.get("baseline", baseline["name"]), "params": params},
        "budget": own["budget"] | entry.get("budget", {}),
    }
    differs = "; ".join(text for text in (known.get("differs"), entry.get("differs")) if text)
    shown = {key: entry[key] for key in ("panel", "at", "line", "curve") if key in entry}
    return Row(entry["name"], content, entry.get("paper"), differs, True, **shown)
