"""Finished runs side by side: which accuracy at which ε, and which kind of ε that is."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pate.config import read_yaml
from pate.errors import RunError
from pate.report.compared_parts import NO_PARTS, PartColumns, Parts, mean_of, nonprivate_parts, part_tables, parts_of
from pate.report.fairness import FEWEST, mean_over_classes
from pate.report.formats import percent, small
from pate.report.html import HtmlTable, Plot, inline_svg, render
from pate.report.page import paper_point, paper_sources, paper_table_rows
from pate.report.papers import paper_rows
from pate.report.plots import Point, accuracy_against_epsilon
from pate.report.published_config import LEFT_OUT, published_config
from pate.runs.files import RunFiles
from pate.runs.run import Run
from pate.storage import is_url

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WORST_CASE = "worst case"
SANITISED = "sanitised"
DATA_DEPENDENT = "data-dependent"
_MEANING = {
    WORST_CASE: "holds for every data set",
    SANITISED: "bounds the cost of this run's answers; released with noise",
    DATA_DEPENDENT: "depends on the private votes; private: do not publish",
}
_COLUMNS = 7  # of the table, where there is no more to tell than the share that is right
_SKEWED = 1.2  # times the share that a class has if all have the same
_MAX_TOLD = 4  # settings beside the name of a method
_TOLD_ANYWAY = ("budget.epsilon", "budget.delta")  # every row has them
_NEVER_PART_OF_THE_METHOD = ("name", "seed", "ray", "backend", "nonprivate", "report")


@dataclass(frozen=True)
class Entry:
    """One method at one ε: the mean over its seeds.

    `added_or_removed` is ε for a record that is added or removed, where `epsilon` is also for one that is changed.
    `unit` is whom ε protects: one record, or all records of one id.
    """

    method: str
    epsilon: float
    epsilon_kind: str
    delta: float
    accuracy: float
    deviation: float | None
    runs: int
    names: tuple[str, ...]
    added_or_removed: float | None = None
    unit: str = "record"
    balanced_accuracy: float | None = None
    auc: float | None = None
    parts: Parts = NO_PARTS


@dataclass(frozen=True)
class Comparison:
    """Entries ordered by kind of ε, δ and ε (an order to read by, not a ranking), and what to keep in mind."""

    entries: tuple[Entry, ...]
    nonprivate: float | None
    test_examples: int
    notes: tuple[str, ...]
    data: str | None = None
    commonest_share: float | None = None
    """What always saying the commonest class of the test examples is right on."""
    n_classes: int = 2
    nonprivate_parts: Parts | None = None

    @property
    def skewed(self) -> bool:
        """Whether one class is so frequent that the share that is right does not tell how good a model is."""
        return self.commonest_share is not None and self.commonest_share > _SKEWED / self.n_classes


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
    data: str | None
    added_or_removed: float | None = None
    unit: str = "record"
    balanced_accuracy: float | None = None
    auc: float | None = None
    commonest_share: float | None = None
    shown: tuple[tuple[str, str], ...] = ()
    """What of the settings may be published, by key."""
    parts: Parts = NO_PARTS
    nonprivate_parts: Parts | None = None


def compare_runs(paths: Sequence[Path | str], with_private: bool = False) -> Comparison:
    """Read the runs, check that they were tested alike, and put seeds of one method together."""
    named = [str(path) if is_url(path) else str(Path(path).resolve()) for path in paths]
    for place, path in enumerate(paths):
        if named[place] in named[:place]:
            raise RunError(f"{path}: is named twice; name each run once")
    if absent := [str(path) for path in paths if not is_url(path) and not Path(path).is_dir()]:
        raise RunError(
            f"{', '.join(absent)}: {'is not a run directory' if len(absent) == 1 else 'are no run directories'}"
        )
    runs = [_read(path, with_private) for path in paths]
    _check_same_test(runs)
    groups: dict[tuple[str, str, float, float, str], list[_Run]] = {}
    for run in runs:
        for kind, epsilon, delta in run.epsilons:
            worst_or_own = round(epsilon, 9) if kind == WORST_CASE else 0.0  # other kinds differ from seed to seed
            groups.setdefault((run.settings, kind, worst_or_own, delta, run.unit), []).append(run)
    methods = _told_apart(runs)
    entries = []
    for (settings, kind, _, delta, unit), members in groups.items():
        accuracies = [run.accuracy for run in members]
        epsilons = [e for run in members for k, e, d in run.epsilons if (k, d) == (kind, delta)]
        mean = sum(accuracies) / len(accuracies)
        spread = math.sqrt(sum((a - mean) ** 2 for a in accuracies) / (len(accuracies) - 1)) if members[1:] else None
        names = tuple(run.name for run in members)
        half = members[0].added_or_removed if kind == WORST_CASE else None
        epsilon = sum(epsilons) / len(epsilons)
        balanced, auc = (_mean_of(members, name) for name in ("balanced_accuracy", "auc"))
        found = methods[settings], epsilon, kind, delta, mean, spread, len(members), names, half, unit, balanced, auc
        entries.append(Entry(*found, mean_of([run.parts for run in members])))
    order = list(_MEANING)
    entries.sort(key=lambda entry: (entry.unit, order.index(entry.epsilon_kind), entry.delta, entry.epsilon))
    known = [run.nonprivate for run in runs if run.nonprivate is not None]
    nonprivate = sum(known) / len(known) if known else None
    sources = {run.data for run in runs}
    data = sources.pop() if len(sources) == 1 else None
    without = [run.nonprivate_parts for run in runs if run.nonprivate_parts is not None]
    return Comparison(
        entries=tuple(entries),
        nonprivate=nonprivate,
        test_examples=runs[0].test[0],
        notes=_notes(entries, runs),
        data=data,
        commonest_share=_mean_of(runs, "commonest_share"),
        n_classes=len(runs[0].classes),
        nonprivate_parts=mean_of(without) if without else None,
    )


def _mean_of(runs: Sequence[_Run], name: str) -> float | None:
    """Mean of a figure over the runs that have it."""
    known = [value for run in runs if (value := getattr(run, name)) is not None]
    return sum(known) / len(known) if known else None


def as_object(comparison: Comparison) -> dict[str, Any]:
    """Plain values, as `pate compare` prints them as JSON."""
    content = asdict(comparison)
    kinds = {(entry.unit, entry.epsilon_kind, entry.delta) for entry in comparison.entries}
    return content | {"comparable": len(kinds) == 1}


def table_rows(comparison: Comparison) -> list[tuple[str, ...]]:
    """Header and rows of the table; where classes are skewed, with what tells more than the share that is right.

    Where test examples were counted by groups, with the worst of them.
    """
    skewed, beside = comparison.skewed, comparison.nonprivate_parts
    parts = PartColumns.of([entry.parts for entry in comparison.entries], skewed)
    further = (*(("mean over classes", "AUC") if skewed else ()), *parts.header)
    rows: list[tuple[str, ...]] = [("method", "ε", "per", "right", *further, "which ε", "δ", "runs")]
    for entry in comparison.entries:
        epsilon = f"{entry.epsilon:.3g}"
        if entry.added_or_removed is not None:
            epsilon += f" ({entry.added_or_removed:.3g})"
        spread = f" ± {100 * entry.deviation:.1f}" if entry.deviation is not None else ""
        shown = f"{percent(entry.accuracy).removesuffix(' %')}{spread} %"
        delta = small(entry.delta)
        balanced = "–" if entry.balanced_accuracy is None else percent(entry.balanced_accuracy)
        more = (balanced, "–" if entry.auc is None else f"{entry.auc:.3f}") if skewed else ()
        more = (*more, *parts.cells(entry.parts))
        rows.append((entry.method, epsilon, entry.unit, shown, *more, entry.epsilon_kind, delta, str(entry.runs)))
    if comparison.nonprivate is not None:
        mean = mean_over_classes([one.right for one in beside.classes]) if beside else None
        more = ("–" if mean is None else percent(mean), "–") if skewed else ()
        more = (*more, *parts.cells(beside))
        rows.append(("without privacy (benchmark)", "∞", "", percent(comparison.nonprivate), *more, "none", "", ""))
    if skewed and comparison.commonest_share is not None:
        even = percent(1 / comparison.n_classes)
        right = percent(comparison.commonest_share)
        never = ("0.0 %" if name == "rarest class" else "–" for name in parts.header)
        rows.append(("always the commonest class", "0", "", right, even, "0.500", *never, "none", "", ""))
    return rows


def draw(comparison: Comparison) -> Figure:
    """Accuracy against ε; marks of data-dependent ε are hollow."""
    points = [
        Point(
            f"{entry.method}, δ = {small(entry.delta)}" + (", per id" if entry.unit == "id" else ""),
            entry.epsilon,
            entry.accuracy,
            entry.epsilon_kind,
            entry.deviation,
            hollow=entry.epsilon_kind == DATA_DEPENDENT,
            down_to=entry.added_or_removed,
        )
        for entry in comparison.entries
    ]
    papers = [paper_point(row) for row in paper_rows(comparison.data)]
    return accuracy_against_epsilon(points + papers, comparison.nonprivate, private=_is_private(comparison))


def render_comparison(comparison: Comparison, svg: str) -> str:
    """One self-contained page; `svg` is the file of the plot that `draw` made."""
    header, *rows = table_rows(comparison)
    papers = paper_rows(comparison.data)
    unknown = ("–",) * (len(header) - _COLUMNS)
    shown = rows + [(*row[:2], "record", row[2], *unknown, *row[3:], "") for row in paper_table_rows(papers)]
    best = max(comparison.entries, key=lambda entry: entry.accuracy)
    alternative = f"Accuracy against ε. Most accurate: {best.method}, {percent(best.accuracy)} at {best.epsilon:.3g}."
    return render(
        "comparison.html.j2",
        is_private=_is_private(comparison),
        plane=Plot(
            inline_svg(svg, "comparison", alternative),
            "Accuracy on test examples against ε; hollow marks are data-dependent ε. A line to the left ends at the ε "
            "for records that are only added or removed.",
            HtmlTable(header, shown, len(comparison.entries)),
        ),
        paper_sources=paper_sources(papers),
        part_tables=part_tables(_by_method(comparison)),
        fewest=FEWEST,
        notes=comparison.notes,
    )


def _by_method(comparison: Comparison) -> dict[str, Parts]:
    """Classes and groups of each method at each of its ε, and without privacy."""
    found: dict[str, Parts] = {}
    for entry in comparison.entries:
        if entry.epsilon_kind == WORST_CASE:  # every run has one
            name = f"{entry.method}, ε = {entry.epsilon:.3g}" + (" per id" if entry.unit == "id" else "")
            found[f"{name}, δ = {small(entry.delta)}" if name in found else name] = entry.parts
    beside = comparison.nonprivate_parts
    return found if beside is None else {**found, "without privacy (benchmark)": beside}


def _is_private(comparison: Comparison) -> bool:
    return any(entry.epsilon_kind == DATA_DEPENDENT for entry in comparison.entries)


def _read(place: Path | str, with_private: bool) -> _Run:
    with Run.load(place, inside=with_private) as run:
        return _read_files(run, place, with_private)


def _read_files(run: RunFiles, path: Path | str, with_private: bool) -> _Run:
    try:
        report = json.loads(run.report_file.read_text())
        config = read_yaml(run.config_file)
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
            epsilons=(*epsilons, *(_data_dependent(run) if with_private else ())),
            accuracy=student["accuracy"],
            test=(student["test_examples"], student.get("test_digest")),
            classes=tuple(report["classes"]),
            nonprivate=(report.get("benchmark") or {}).get("nonprivate_accuracy"),
            data=report.get("data"),
            added_or_removed=privacy.get("epsilon_added_or_removed"),
            unit=str(privacy.get("unit", "record")),
            balanced_accuracy=student.get("balanced_accuracy"),
            auc=student.get("auc"),
            commonest_share=student.get("commonest_share"),
            shown=tuple(_flat(published_config(settings))),
            parts=parts_of(report),
            nonprivate_parts=nonprivate_parts(report),
        )
    except (KeyError, TypeError) as error:
        raise RunError(f"{path}: {run.report_file.name} lacks {error}; it was made by another version") from None


def method_name(report: dict[str, Any]) -> str:
    """A method in a few words, from its report."""
    if report.get("kind") != "baseline":
        return str(report["voters"]["method"])
    method = report["method"]
    name: str = method["name"]
    told: tuple[str, ...] = ("preprocessing", "features", "model", "method", "loss")
    if name == "dp_sgd" and method.get("model") == "linear":  # one layer on what is public: no network of its own
        name, told = "DP linear probe", ("preprocessing", "features")
    return ", ".join([name, *(_shown(method[key]) for key in told if method.get(key))])


def _told_apart(runs: Sequence[_Run]) -> dict[str, str]:
    """A name for the method of each group of settings: where several are called alike, with what differs."""
    named: dict[str, dict[str, _Run]] = {}
    for run in runs:
        named.setdefault(run.method, {}).setdefault(run.settings, run)
    found = {}
    for method, alike in named.items():
        values = {settings: dict(run.shown) for settings, run in alike.items()}
        keys = sorted({key for shown in values.values() for key in shown})
        differ = [key for key in keys if len({shown.get(key) for shown in values.values()}) > 1]
        named_keys = [key for key in differ if key not in _TOLD_ANYWAY][:_MAX_TOLD]
        for settings, shown in values.items():
            told = [f"{key.rpartition('.params.')[2]} {shown.get(key, 'not set')}" for key in named_keys]
            if not differ and len(alike) > 1:  # in what is not published
                told = [Path(alike[settings].name).name]
            found[settings] = ", ".join([method, *told])
    return found


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Settings by dotted key; a list is one value."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(inner, f"{path}.{key}" if path else str(key))
    elif value != LEFT_OUT:
        yield path, _shown(value)


def _shown(value: Any) -> str:
    """A setting in a word: a component by its name, a list joined, other keys and values with what is set."""
    if isinstance(value, list):
        return " + ".join(_shown(part) for part in value)
    if not isinstance(value, dict):
        return str(value)
    return str(value["name"]) if "name" in value else " ".join(f"{k} {v}" for k, v in value.items() if v is not None)


def _data_dependent(run: RunFiles) -> tuple[tuple[str, float, float], ...]:
    try:
        figures = json.loads(run.epsilon_file.read_text())
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
    if any(entry.added_or_removed is not None for entry in entries):
        notes.append(
            "ε with a figure in brackets is for a record added, removed or changed; the one in brackets for a record "
            "added or removed, as the ε of teachers (without ids), DP-SGD and linear probes: set those beside it."
        )
    if len({entry.unit for entry in entries}) > 1:
        notes.append(
            "Some ε protect one record, others all records of one id (say, one person): rows of one unit can be ranked "
            "by ε, rows of different units cannot."
        )
    if len({entry.delta for entry in entries}) > 1:
        notes.append("δ differs between rows: ε at different δ cannot be ranked without converting one to the other.")
    if any(entry.parts.spreads for entry in entries):
        notes.append(
            f"worst by …: the group with the smallest share right, of those with {FEWEST} test examples or more; in "
            "brackets, by how many points the best group is above it."
        )
    if any(run.test[1] is None for run in runs):
        notes.append("Some runs do not say which test examples they used: only their number was compared.")
    if any(entry.runs > 1 for entry in entries):
        notes.append("± is the standard deviation over runs of one method with different seeds.")
    if any(entry.runs == 1 for entry in entries):
        size = math.sqrt(0.25 / runs[0].test[0]) * 100
        notes.append(f"A share of {runs[0].test[0]} test examples has itself a standard error of up to {size:.1f} %.")
    return tuple(notes)
