"""Run the rows of a paper about baselines: each is an ordinary `pate baseline` run; finished ones are kept."""

from __future__ import annotations

import io
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pate.baselines.run import run_baseline
from pate.components.registry import chosen
from pate.config import BaselineConfig, default_config_path, parse_config, read_yaml
from pate.data.private import PrivateData
from pate.data.public import PublicData
from pate.data.sources import load
from pate.errors import DataError, RunError
from pate.report.formats import percent
from pate.reproduce.table import columns
from pate.runs.console import Console
from pate.runs.files import RESULTS, TABLE, RunFiles
from pate.storage.files import locked, make_folder, write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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


FIGURE = "figure.png"


def reproduce_baselines(
    study: BaselineStudy, out: Path, seeds: int, *, data_dir: Path | None, address: str | None, console: Console
) -> dict[str, Any]:
    """Run what is missing in `out`, and collect all results there; after a stop, call it again to go on."""
    make_folder(out)
    try:
        with locked(out / "lock", wait=False):
            outcomes = _run_all(study, out, seeds, data_dir, address, console)
    except BlockingIOError:
        raise RunError(f"{out}: another pate is at work there; wait for it or choose another place") from None
    result = {"study": study.name, "source": study.source, "seeds": seeds, "rows": outcomes}
    text = json.dumps(result, indent=2, ensure_ascii=False) + "\n"
    write_atomically(out / RESULTS, lambda path: path.write_text(text), mode=0o644)
    lines = "\n".join(table_lines(result)) + "\n"
    write_atomically(out / TABLE, lambda path: path.write_text(lines), mode=0o644)
    picture = draw(study, outcomes)
    write_atomically(out / FIGURE, lambda path: path.write_bytes(picture), mode=0o644)
    return result


def _run_all(
    study: BaselineStudy, out: Path, seeds: int, data_dir: Path | None, address: str | None, console: Console
) -> list[dict[str, Any]]:
    loaded: dict[str, tuple[PublicData, PrivateData]] = {}
    found: dict[str, list[dict[str, Any]]] = {row.name: [] for row in study.rows}
    for seed in range(seeds):
        for number, row in enumerate(study.rows, start=1):
            console.info(f"— {study.name}: {row.name} ({number} of {len(study.rows)}), seed {seed + 1} of {seeds}")
            config = row.config(seed)
            folder = out / "rows" / f"{row.name}-seed-{seed}-{config.digest()[:8]}"
            if not RunFiles(folder).report_file.exists():
                key = config.data.model_dump_json()
                if key not in loaded:
                    loaded.clear()  # one at a time: some take gigabytes
                    loaded[key] = load(config.data, data_dir, Path(), keep_missing=True)
                data, private = loaded[key]
                if not data.benchmark or data.y_test is None:
                    raise DataError(f"{study.name}: {config.data.source} is no benchmark with labels")
                if study.public_was_seen:
                    data = replace(data, y_public=None)
                run_baseline(
                    config,
                    folder,
                    address=address,
                    resume="auto",
                    console=console,
                    public=data,
                    private=private,
                    curve=row.curve,
                )
            report = json.loads(RunFiles(folder).report_file.read_text())
            found[row.name].append(report | {"folder": str(folder.relative_to(out))})
    return [_together(row, found[row.name]) for row in study.rows]


def _together(row: BaselineRow, reports: list[dict[str, Any]]) -> dict[str, Any]:
    right = [_share_right(report) for report in reports]
    curves = [report["benchmark"].get("curve") for report in reports]
    return {
        "row": row.name,
        "panel": row.panel,
        "line": row.line,
        "at": row.at,
        "paper": row.paper,
        "differs": row.differs,
        "epsilon": reports[0]["privacy"]["epsilon"],
        "delta": reports[0]["privacy"]["delta"],
        "planned": reports[0]["planned"],
        "accuracy": statistics.fmean(right),
        "deviation": statistics.stdev(right) if len(right) > 1 else None,
        "each": right,
        "tested_on": _tested_on(reports[0]),
        "curve": curves[0],
        "runs": [report["folder"] for report in reports],
    }


def _share_right(report: dict[str, Any]) -> float:
    """Accuracy on all examples that were not trained on; a benchmark's public ones have labels too."""
    student, public = report["student"], report["benchmark"]["public_accuracy"]
    if public is None:
        return float(student["accuracy"])
    n_public = _n_public(report)
    return (n_public * public + student["test_examples"] * student["accuracy"]) / (n_public + student["test_examples"])


def _tested_on(report: dict[str, Any]) -> int:
    public = report["benchmark"]["public_accuracy"]
    return int(report["student"]["test_examples"]) + (0 if public is None else _n_public(report))


def _n_public(report: dict[str, Any]) -> int:
    return int(report["benchmark"]["public_examples"])


def table_lines(result: dict[str, Any]) -> list[str]:
    """The table in plain text."""
    cells: list[tuple[str, ...]] = [("row", "ε", "δ", "σ", "steps", "paper", "right", "of")]
    for row in result["rows"]:
        spread = "" if row["deviation"] is None else f" ± {100 * row['deviation']:.1f}"
        planned = row["planned"]
        cells.append(
            (
                row["row"],
                f"{row['epsilon']:.3g}",
                f"{row['delta']:g}",
                f"{planned['sigma']:.3g}" if "sigma" in planned else "",
                f"{planned['steps']:,}" if "steps" in planned else "",
                "" if row["paper"] is None else percent(row["paper"]),
                f"{percent(row['accuracy']).removesuffix(' %')}{spread} %",
                f"{row['tested_on']:,}",
            )
        )
    seeds = result["seeds"]
    many = "one seed" if seeds == 1 else f"mean ± standard deviation of {seeds} seeds"
    return [
        f"{result['study']}: {result['source']} ({many})",
        "",
        *columns(cells),
        "",
        "ε holds for every data set, for a record added or removed. Each row stands by itself: runs on the same data "
        "add up.",
        *(f"{row['row']}: {row['differs']}." for row in result["rows"] if row["differs"]),
    ]


_WIDE, _HIGH, _IN_A_LINE = 4.2, 3.4, 4


def draw(study: BaselineStudy, outcomes: Sequence[dict[str, Any]]) -> bytes:
    """All panels that have rows, as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    shown = [name for name in study.panels if any(row["panel"] == name for row in outcomes)]
    across = min(len(shown), _IN_A_LINE)
    down = -(-len(shown) // across)
    size = (_WIDE * across, _HIGH * down)
    figure, axes = plt.subplots(down, across, figsize=size, layout="constrained", squeeze=False)
    for place, name in zip(axes.flat, shown, strict=False):
        panel, rows = study.panels[name], [row for row in outcomes if row["panel"] == name]
        if "names" in panel:
            _named(place, rows, panel["names"])
        else:
            (_curves if panel.get("kind") == "curves" else _lines)(place, rows)
        ticks = {"xscale": panel["scale"]} if "scale" in panel else {}
        place.set(title=panel["title"], xlabel=panel["x"], ylabel="right, %", **ticks)
        if ticks:
            at = sorted({row["at"] for row in rows})
            place.set_xticks(at, [f"{value:g}" for value in at])
            place.minorticks_off()
        if place.get_legend_handles_labels()[0]:
            place.legend(fontsize="small")
    for place in axes.flat[len(shown) :]:
        place.axis("off")
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=130, format="png")
    plt.close(figure)
    return buffer.getvalue()


def _curves(axes: Axes, rows: Sequence[dict[str, Any]]) -> None:
    """Training and test over the epochs; the paper's figure is a dotted line."""
    for number, row in enumerate(row for row in rows if row["curve"]):
        planned = row["planned"]
        epochs = [step * planned["sampling_rate"] for step, _ in row["curve"]]
        for name, style in (("training", "--"), ("test", "-")):
            shares = [100 * found[name] for _, found in row["curve"]]
            label = row["line"] if name == "test" else None
            axes.plot(epochs, shares, style, color=f"C{number}", label=label)
        if row["paper"] is not None:
            axes.axhline(100 * row["paper"], linestyle=":", color=f"C{number}")


def _lines(axes: Axes, rows: Sequence[dict[str, Any]]) -> None:
    """Accuracy against what was changed, a line for each name; crosses are the paper's."""
    lines = dict.fromkeys(row["line"] for row in rows)
    for number, line in enumerate(lines):
        own = sorted((row for row in rows if row["line"] == line and row["at"] is not None), key=lambda row: row["at"])
        at, right = [row["at"] for row in own], [100 * row["accuracy"] for row in own]
        errors = [100 * (row["deviation"] or 0) for row in own]
        axes.errorbar(at, right, yerr=errors, fmt="o-", color=f"C{number}", label=line or None)
        papers = [(row["at"], 100 * row["paper"]) for row in own if row["paper"] is not None]
        if papers:
            axes.plot(*zip(*papers, strict=True), "x", color=f"C{number}")


def _named(axes: Axes, rows: Sequence[dict[str, Any]], names: Sequence[str]) -> None:
    """Accuracy on what has a name (`at` counts them from 1), lines side by side; crosses are the paper's."""
    lines = list(dict.fromkeys(row["line"] for row in rows))
    for number, line in enumerate(lines):
        own = [row for row in rows if row["line"] == line]
        at = [row["at"] + 0.2 * (number - (len(lines) - 1) / 2) for row in own]
        right, errors = ([100 * (row[name] or 0) for row in own] for name in ("accuracy", "deviation"))
        axes.errorbar(at, right, yerr=errors, fmt="o", capsize=3, color=f"C{number}", label=line)
        papers = [100 * row["paper"] if row["paper"] is not None else math.nan for row in own]
        axes.plot(at, papers, "x", color="black", zorder=3, label="the paper" if line == lines[-1] else None)
    axes.set_xticks(range(1, len(names) + 1), names)
    axes.set_xlim(0.5, len(names) + 0.5)
