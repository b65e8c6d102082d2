"""Run the rows of a paper about baselines: each is an ordinary `pate baseline` run; finished ones are kept."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

from pate.baselines.run import run_baseline
from pate.data.private import PrivateData
from pate.data.public import PublicData
from pate.data.sources import load
from pate.errors import DataError, RunError
from pate.report.formats import percent
from pate.reproduce.baseline_figures import draw
from pate.reproduce.baseline_rows import BaselineRow, BaselineStudy
from pate.reproduce.table import columns
from pate.runs.console import Console
from pate.runs.files import RESULTS, TABLE, RunFiles
from pate.storage.files import locked, make_folder, write_atomically

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
