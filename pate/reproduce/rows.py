"""Which rows there are, as configs of ordinary runs, each beside the paper's figures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pate.config import Config, default_config_path, parse_config, read_yaml
from pate.errors import ConfigError
from pate.naming import nearest

_ROWS = Path(__file__).with_name("rows.yaml")
_PAPERS = Path(__file__).parents[1] / "report" / "papers.yaml"


@dataclass(frozen=True)
class Row:
    """A row of the table: what is run, what the paper has for it, and how the two differ."""

    name: str
    content: dict[str, Any]
    paper: dict[str, Any] | None
    differs: str

    def config(self, seed: int) -> Config:
        """The config of the row's run with that seed."""
        return parse_config(self.content | {"seed": seed})


@dataclass(frozen=True)
class Study:
    """All that is run for one data set."""

    data: str
    rows: tuple[Row, ...]
    figure_teachers: tuple[int, ...]
    base: dict[str, Any]

    @property
    def nonprivate_of_paper(self) -> float | None:
        """The accuracy without privacy that the paper reports, if it does."""
        known = [row.paper["nonprivate"] for row in self.rows if row.paper and row.paper.get("nonprivate")]
        return known[0] if known else None

    def teachers(self, n_teachers: int, seed: int) -> Config:
        """The ensemble of another size, for the figures."""
        return parse_config(self.base | {"n_teachers": n_teachers, "seed": seed})


def study(data: str, votes: bool, quick: bool, files: tuple[Path, Path] = (_ROWS, _PAPERS)) -> Study:
    """The rows of `data`, with own teachers or from stored votes; `quick` leaves most of them out."""
    everything = read_yaml(files[0])
    if data not in everything:
        raise ConfigError(f"{data}: the papers' rows are not known for it; {nearest(data, everything)}")
    known = everything[data]
    if votes and "votes" not in known:
        text = f"{{votes}}: there are no stored votes for {data}; leave it out to train teachers"
        raise ConfigError(text, votes=True)
    base = _base(known["votes" if votes else "config"], files[0].parent)
    common = known["differs"]["votes" if votes else "own"]
    rows = []
    for entry in known["rows"]:
        if (votes and not entry.get("votes", True)) or (quick and not entry.get("quick", False)):
            continue
        content = base | {"name": f"{data}-{entry['name']}", "mechanism": entry["mechanism"]}
        content["budget"] = {"delta": base["budget"]["delta"], **entry["budget"]}
        content["n_teachers"] = entry.get("n_teachers", base["n_teachers"])
        steps = {"steps": known["quick_steps"]} if quick and "quick_steps" in known else {}
        student = entry.get("student", known.get("student", base["student"]))
        content["student"] = student | {"params": student.get("params", {}) | steps}
        content.pop("nonprivate", None)
        remarks = [common, known["differs"].get(student["name"]), entry.get("differs")]
        remarks += [f"a student of {steps['steps']} steps (quick)"] if steps else []
        paper = _of_paper(data, entry["paper"], files[1]) if "paper" in entry else None
        rows.append(Row(entry["name"], content, paper, "; ".join(r for r in remarks if r)))
    sizes = () if votes else tuple(n for n in known["figure_teachers"] if not quick or n == base["n_teachers"])
    return Study(data, tuple(rows), sizes, base)


def _base(name: str, folder: Path) -> dict[str, Any]:
    """A config beside the rows' file, or one that comes with the package."""
    beside = folder / f"{name}.yaml"
    return read_yaml(beside if beside.exists() else default_config_path(name))


def _of_paper(data: str, wanted: dict[str, Any], file: Path) -> dict[str, Any]:
    for row in read_yaml(file)["rows"]:
        if row["data"] == data and all(row[key] == value for key, value in wanted.items()):
            return row
    raise ConfigError(f"{file.name}: has no row {wanted} of {data}")
