"""Finished runs side by side: which accuracy at which ε, and which kind of ε that is."""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import Any

from pate.config import read_yaml
from pate.errors import RunError
from pate.report.page import STYLE
from pate.report.words import percent

WORST_CASE = "worst case"
SANITISED = "sanitised"
DATA_DEPENDENT = "data-dependent"
_MEANING = {
    WORST_CASE: "holds for every data set",
    SANITISED: "bounds the cost of this run's answers; released with noise",
    DATA_DEPENDENT: "depends on the private votes; private: do not publish",
}
_NEVER_PART_OF_THE_METHOD = ("name", "seed", "ray", "nonprivate")


@dataclass(frozen=True)
class Entry:
    """One method at one ε: the mean over its seeds."""

    method: str
    epsilon: float
    epsilon_kind: str
    delta: float
    accuracy: float
    deviation: float | None
    runs: int
    names: tuple[str, ...]


@dataclass(frozen=True)
class Comparison:
    """Entries ordered by kind of ε, δ and ε (an order to read by, not a ranking), and what to keep in mind."""

    entries: tuple[Entry, ...]
    nonprivate: float | None
    test_examples: int
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Run:
    name: str
    settings: str
    method: str
    epsilons: tuple[tuple[str, float, float], ...]
    accuracy: float
    test: tuple[int, str | None]
    classes: tuple[str, ...]
    nonprivate: float | None


def compare_runs(paths: Sequence[Path], with_private: bool = False) -> Comparison:
    """Read the runs, check that they were tested alike, and put seeds of one method together."""
    runs = [_read(path, with_private) for path in paths]
    _check_same_test(runs)
    groups: dict[tuple[str, str, float, float], list[_Run]] = {}
    for run in runs:
        for kind, epsilon, delta in run.epsilons:
            worst_or_own = round(epsilon, 9) if kind == WORST_CASE else 0.0  # other kinds differ from seed to seed
            groups.setdefault((run.settings, kind, worst_or_own, delta), []).append(run)
    entries = []
    for (_, kind, _, delta), members in groups.items():
        accuracies = [run.accuracy for run in members]
        epsilons = [e for run in members for k, e, d in run.epsilons if (k, d) == (kind, delta)]
        mean = sum(accuracies) / len(accuracies)
        spread = math.sqrt(sum((a - mean) ** 2 for a in accuracies) / (len(accuracies) - 1)) if members[1:] else None
        names = tuple(run.name for run in members)
        entries.append(
            Entry(members[0].method, sum(epsilons) / len(epsilons), kind, delta, mean, spread, len(members), names)
        )
    order = list(_MEANING)
    entries.sort(key=lambda entry: (order.index(entry.epsilon_kind), entry.delta, entry.epsilon))
    known = [run.nonprivate for run in runs if run.nonprivate is not None]
    nonprivate = sum(known) / len(known) if known else None
    return Comparison(tuple(entries), nonprivate, runs[0].test[0], _notes(entries, runs))


def as_object(comparison: Comparison) -> dict[str, Any]:
    """Plain values, for --json."""
    content = asdict(comparison)
    kinds = {(entry.epsilon_kind, entry.delta) for entry in comparison.entries}
    return content | {"comparable": len(kinds) == 1}


def table_rows(comparison: Comparison) -> list[tuple[str, ...]]:
    """Header and rows of the table."""
    rows: list[tuple[str, ...]] = [("method", "ε", "which ε", "δ", "right", "runs")]
    for entry in comparison.entries:
        spread = f" ± {100 * entry.deviation:.1f}" if entry.deviation is not None else ""
        shown = f"{percent(entry.accuracy).removesuffix(' %')}{spread} %"
        delta = f"{entry.delta:g}"
        rows.append((entry.method, f"{entry.epsilon:.3g}", entry.epsilon_kind, delta, shown, str(entry.runs)))
    if comparison.nonprivate is not None:
        rows.append(("without privacy (benchmark)", "∞", "none", "", percent(comparison.nonprivate), ""))
    return rows


def draw(comparison: Comparison) -> bytes:
    """Accuracy against ε as a PNG: a colour a method, a marker a kind of ε, lines between the ε of one method."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    figure, axes = plt.subplots(figsize=(8, 4.8), layout="constrained")
    markers = dict(zip(_MEANING, ("o", "s", "x"), strict=True))
    methods = sorted({entry.method for entry in comparison.entries})
    curves: dict[tuple[str, str, float], list[Entry]] = {}
    for entry in comparison.entries:
        curves.setdefault((entry.method, entry.epsilon_kind, entry.delta), []).append(entry)
    for (method, kind, delta), entries in curves.items():
        axes.errorbar(
            [entry.epsilon for entry in entries],
            [100 * entry.accuracy for entry in entries],
            yerr=[math.nan if entry.deviation is None else 100 * entry.deviation for entry in entries],
            fmt=markers[kind],
            linestyle="-" if kind == WORST_CASE else ":",
            color=f"C{methods.index(method) % 10}",
            capsize=4,
            label=f"{method}\n{kind} ε, δ = {delta:g}",
        )
    if comparison.nonprivate is not None:
        shown = f"without privacy\n{percent(comparison.nonprivate)}"
        axes.axhline(100 * comparison.nonprivate, linestyle="--", color="grey", label=shown)
    epsilons = [entry.epsilon for entry in comparison.entries]
    axes.set(xscale="log", xlabel="ε (smaller is more private)", ylabel="right on the test examples, %")
    axes.set_xlim(min(epsilons) / 1.6, max(epsilons) * 1.6)
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.grid(alpha=0.3)
    private = any(entry.epsilon_kind == DATA_DEPENDENT for entry in comparison.entries)
    axes.set_title("private: do not publish" if private else f"{comparison.test_examples:,} test examples", fontsize=10)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=8, frameon=False, labelspacing=1.0)
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=150, format="png")
    plt.close(figure)
    return buffer.getvalue()


def render(comparison: Comparison, plot: bytes) -> str:
    """One self-contained page."""
    header, *rows = table_rows(comparison)
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "\n".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    notes = "\n".join(f"<li>{escape(note)}</li>" for note in comparison.notes)
    image = base64.b64encode(plot).decode()
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>pate: comparison</title>
<style>{STYLE} img {{ max-width: 100%; }}</style>
</head>
<body>
<h1>Comparison</h1>
<table>
<thead><tr>{head}</tr></thead>
<tbody>
{body}
</tbody>
</table>
<ul>
{notes}
</ul>
<img alt="accuracy against ε; the figures are those of the table" src="data:image/png;base64,{image}">
</body>
</html>
"""


def _read(path: Path, with_private: bool) -> _Run:
    try:
        report = json.loads((path / "report.json").read_text())
        config = read_yaml(path / "config.yaml")
    except FileNotFoundError as error:
        name = Path(error.filename).name
        raise RunError(
            f"{path}: has no {name}; name the directory of a finished `pate run` or `pate baseline`"
        ) from None
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: its report cannot be read ({error})") from None
    try:
        privacy, student = report["privacy"], report["student"]
        if student["accuracy"] is None:
            raise RunError(f"{path}: was not measured, its test examples have no labels; there is nothing to compare")
        epsilons = [(WORST_CASE, privacy["epsilon"], privacy["delta"])]
        if privacy.get("sanitised"):
            epsilons.append((SANITISED, privacy["sanitised"]["epsilon"], privacy["sanitised"]["delta"]))
        settings = {key: value for key, value in config.items() if key not in _NEVER_PART_OF_THE_METHOD}
        return _Run(
            name=str(path),
            settings=json.dumps(settings, sort_keys=True, default=str),
            method=method_name(report),
            epsilons=(*epsilons, *(_data_dependent(path) if with_private else ())),
            accuracy=student["accuracy"],
            test=(student["test_examples"], student.get("test_digest")),
            classes=tuple(report["classes"]),
            nonprivate=(report.get("benchmark") or {}).get("nonprivate_accuracy"),
        )
    except (KeyError, TypeError) as error:
        raise RunError(f"{path}: report.json lacks {error}; it was made by another version") from None


def method_name(report: dict[str, Any]) -> str:
    """A method in a few words, from its report."""
    if report.get("kind") != "baseline":
        return f"PATE, {report['mechanism']['name']}, {report['n_teachers']} teachers"
    method = report["method"]
    chosen = [_shown(method[key]) for key in ("prepare", "features", "model", "method", "loss") if method.get(key)]
    return ", ".join([method["name"], *chosen])


def _shown(value: Any) -> str:
    """A setting in a word: a component by its name, a list joined."""
    if isinstance(value, list):
        return " + ".join(_shown(part) for part in value)
    return str(value["name"]) if isinstance(value, dict) else str(value)


def _data_dependent(path: Path) -> tuple[tuple[str, float, float], ...]:
    try:
        figures = json.loads((path / "private" / "epsilon.json").read_text())
    except (OSError, ValueError):
        return ()
    epsilon = figures.get("epsilon_data_dependent")
    return () if epsilon is None else ((DATA_DEPENDENT, epsilon, figures["delta"]),)


def _check_same_test(runs: Sequence[_Run]) -> None:
    first = runs[0]
    for run in runs[1:]:
        unlike = run.test[0] != first.test[0] or (None not in (run.test[1], first.test[1]) and run.test != first.test)
        if unlike or run.classes != first.classes:
            raise RunError(f"{run.name}: was tested on other examples than {first.name}; compare runs on the same data")


def _notes(entries: Sequence[Entry], runs: Sequence[_Run]) -> tuple[str, ...]:
    kinds = [kind for kind in _MEANING if any(entry.epsilon_kind == kind for entry in entries)]
    notes = [f"{kind} ε: {_MEANING[kind]}." for kind in kinds]
    if len(kinds) > 1:
        notes.append(
            "These ε are of unlike kinds: rows of one kind can be ranked by ε, rows of different kinds cannot."
        )
    if len({entry.delta for entry in entries}) > 1:
        notes.append("δ differs between rows: ε at different δ cannot be ranked without converting one to the other.")
    if any(run.test[1] is None for run in runs):
        notes.append("Some runs do not say which test examples they used: only their number was compared.")
    if any(entry.runs > 1 for entry in entries):
        notes.append("± is the standard deviation over runs of one method with different seeds.")
    if any(entry.runs == 1 for entry in entries):
        size = math.sqrt(0.25 / runs[0].test[0]) * 100
        notes.append(f"A share of {runs[0].test[0]} test examples has itself a standard error of up to {size:.1f} %.")
    return tuple(notes)
