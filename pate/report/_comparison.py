"""Finished runs side by side: which accuracy at which ε, which kind of ε that is, and who pays for it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from pate.config import read_yaml
from pate.errors import RunError
from pate.report._files import read_report
from pate.report._pages import (
    TOO_FEW,
    Content,
    Page,
    PageBlock,
    PageTable,
    Plot,
    Section,
    format_change,
    percent,
    small,
)
from pate.report._plots import Point, accuracy_against_epsilon
from pate.report.schema import AnyReport, Report, published_settings
from pate.report.sections._groups import FEWEST, GroupAccuracy, Parts, mean_of_known
from pate.report.sections._quality import paper_rows, sources
from pate.runs._files import RunFiles
from pate.runs.run import Run
from pate.storage import is_url

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WORST_CASE = "worst case"
_SANITISED = "sanitised"
DATA_DEPENDENT = "data-dependent"
_MEANING = {
    WORST_CASE: "holds for every data set",
    _SANITISED: "bounds the cost of this run's answers; released with noise",
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
    added_or_removed: float | None
    unit: str
    balanced_accuracy: float | None
    auc: float | None
    parts: Parts


@dataclass(frozen=True)
class Comparison:
    """Entries ordered by kind of ε, δ and ε (an order to read by, not a ranking), and what to keep in mind.

    `commonest_share` is what always saying the commonest class of the test examples is right on.
    """

    entries: tuple[Entry, ...]
    nonprivate: float | None
    test_examples: int
    notes: tuple[str, ...]
    data: str | None
    commonest_share: float | None
    n_classes: int
    nonprivate_parts: Parts | None

    @property
    def skewed(self) -> bool:
        """Whether one class is so frequent that the share that is right does not tell how good a model is."""
        return self.commonest_share is not None and self.commonest_share > _SKEWED / self.n_classes

    @property
    def is_private(self) -> bool:
        """Whether a figure is among them that must not be published."""
        return any(entry.epsilon_kind == DATA_DEPENDENT for entry in self.entries)


@dataclass(frozen=True)
class _Run:
    name: str
    report: AnyReport
    settings: str
    """All that makes the method, to tell methods from seeds."""
    shown: dict[str, str]
    """What of the settings may be published, by key."""
    epsilons: tuple[tuple[str, float, float], ...]
    """Kind, ε and δ."""


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
    runs = []
    for path in paths:
        with Run.load(path, inside=with_private) as files:
            runs.append(_read(files, path, with_private))
    _check_same_test(runs)
    reports = [run.report for run in runs]
    groups: dict[tuple[str, str, float, float, str], list[_Run]] = {}
    for run in runs:
        for kind, epsilon, delta in run.epsilons:
            worst_or_own = round(epsilon, 9) if kind == WORST_CASE else 0.0  # other kinds differ from seed to seed
            groups.setdefault((run.settings, kind, worst_or_own, delta, run.report.privacy.unit), []).append(run)
    methods = _told_apart(runs)
    entries = []
    for (settings, kind, _, delta, unit), members in groups.items():
        own = [run.report for run in members]
        accuracies = [one.student.accuracy for one in own if one.student.accuracy is not None]
        entries.append(
            Entry(
                method=methods[settings],
                epsilon=mean(e for run in members for k, e, d in run.epsilons if (k, d) == (kind, delta)),
                epsilon_kind=kind,
                delta=delta,
                accuracy=mean(accuracies),
                deviation=stdev(accuracies) if members[1:] else None,
                runs=len(members),
                names=tuple(run.name for run in members),
                added_or_removed=own[0].privacy.epsilon_added_or_removed if kind == WORST_CASE else None,
                unit=unit,
                balanced_accuracy=mean_of_known([one.student.balanced_accuracy for one in own]),
                auc=mean_of_known([one.student.auc for one in own]),
                parts=Parts.mean([Parts.of_report(one) for one in own]),
            )
        )
    order = list(_MEANING)
    entries.sort(key=lambda entry: (entry.unit, order.index(entry.epsilon_kind), entry.delta, entry.epsilon))
    data = {one.data for one in reports}
    benchmarks = [(one, one.benchmark) for one in reports if one.benchmark is not None]
    without = [Parts.of_report(one, private=False) for one, found in benchmarks if found.without_privacy is not None]
    return Comparison(
        entries=tuple(entries),
        nonprivate=mean_of_known([found.nonprivate_accuracy for _, found in benchmarks]),
        test_examples=reports[0].student.test_examples,
        notes=_notes(entries, reports),
        data=data.pop() if len(data) == 1 else None,
        commonest_share=mean_of_known([one.student.commonest_share for one in reports]),
        n_classes=len(reports[0].classes),
        nonprivate_parts=Parts.mean(without) if without else None,
    )


def comparison_object(comparison: Comparison) -> dict[str, Any]:
    """Plain values, as `pate compare` prints them as JSON."""
    beside = comparison.nonprivate_parts
    entries = [asdict(entry) | {"parts": entry.parts.as_object()} for entry in comparison.entries]
    kinds = {(entry.unit, entry.epsilon_kind, entry.delta) for entry in comparison.entries}
    return asdict(comparison) | {
        "entries": entries,
        "nonprivate_parts": None if beside is None else beside.as_object(),
        "comparable": len(kinds) == 1,
    }


def table_rows(comparison: Comparison) -> list[tuple[str, ...]]:
    """Header and rows of the table; where classes are skewed, with what tells more than the share that is right.

    Where test examples were counted by groups, with the worst of them.
    """
    skewed, beside = comparison.skewed, comparison.nonprivate_parts
    several = [entry.parts for entry in comparison.entries]
    rarest = skewed and any(parts.rarest is not None for parts in several)
    columns = dict.fromkeys(spread.column for parts in several for spread in parts.spreads)

    def further(parts: Parts | None, balanced: float | None, auc: float | None) -> tuple[str, ...]:
        """What a row has of classes and groups."""
        parts = parts or Parts()
        cells = ["–" if balanced is None else percent(balanced), "–" if auc is None else f"{auc:.3f}"] if skewed else []
        cells += ["–" if parts.rarest is None else percent(parts.rarest)] if rarest else []
        spreads = {one.column: f"{one.worst} {percent(one.worst_right)} ({100 * one.gap:.1f})" for one in parts.spreads}
        return (*cells, *(spreads.get(column, "–") for column in columns))

    names = [*(("mean over classes", "AUC") if skewed else ()), *(["rarest class"] if rarest else [])]
    header = ("method", "ε", "per", "right", *names, *(f"worst by {column} (gap)" for column in columns))
    rows: list[tuple[str, ...]] = [(*header, "which ε", "δ", "runs")]
    for entry in comparison.entries:
        epsilon = f"{entry.epsilon:.3g}"
        if entry.added_or_removed is not None:
            epsilon += f" ({entry.added_or_removed:.3g})"
        spread = f" ± {100 * entry.deviation:.1f}" if entry.deviation is not None else ""
        shown = f"{percent(entry.accuracy).removesuffix(' %')}{spread} %"
        more = further(entry.parts, entry.balanced_accuracy, entry.auc)
        last = (entry.epsilon_kind, small(entry.delta), str(entry.runs))
        rows.append((entry.method, epsilon, entry.unit, shown, *more, *last))
    if comparison.nonprivate is not None:
        balanced = mean_of_known([one.right for one in beside.classes]) if beside else None
        right = percent(comparison.nonprivate)
        rows.append(("without privacy (benchmark)", "∞", "", right, *further(beside, balanced, None), "none", "", ""))
    if skewed and comparison.commonest_share is not None:
        right = percent(comparison.commonest_share)
        never = further(Parts(rarest=0.0), 1 / comparison.n_classes, 0.5)
        rows.append(("always the commonest class", "0", "", right, *never, "none", "", ""))
    return rows


def draw_comparison(comparison: Comparison) -> Figure:
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
    papers = [row.point for row in paper_rows(comparison.data)]
    return accuracy_against_epsilon(points + papers, comparison.nonprivate, private=comparison.is_private)


def render_comparison(comparison: Comparison, svg: str) -> str:
    """One self-contained page; `svg` is the file of the plot that `draw` made."""
    header, *rows = table_rows(comparison)
    papers = paper_rows(comparison.data)
    unknown = ("–",) * (len(header) - _COLUMNS)
    for row in papers:
        method, epsilon, *more = row.cells
        rows.append((method, epsilon, "record", more[0], *unknown, *more[1:], ""))
    best = max(comparison.entries, key=lambda entry: entry.accuracy)
    plane = Plot(
        "comparison",
        f"Accuracy against ε. Most accurate: {best.method}, {percent(best.accuracy)} at {best.epsilon:.3g}.",
        "Accuracy on test examples against ε; hollow marks are data-dependent ε. A line to the left ends at the ε "
        "for records that are only added or removed.",
        PageTable(header, rows, len(comparison.entries)),
        partial(draw_comparison, comparison),
        open=True,
    )
    page = Page(
        title="pate: comparison",
        eyebrow="pate",
        heading="Comparison",
        warnings=("Private: do not publish.",) if comparison.is_private else (),
        sections=(
            Section("Accuracy and privacy", content=(plane, *sources(papers))),
            _who_pays(comparison),
            Section("To keep in mind", content=[PageBlock("list", comparison.notes)]),
        ),
    )
    return page.render({"comparison": svg})


def _who_pays(comparison: Comparison) -> Section:
    """Tables of the classes, of each column's groups, and of the rarest class in these, by method and ε."""
    title, methods = "Who pays for privacy", dict[str, Parts]()
    for entry in comparison.entries:
        if entry.epsilon_kind == WORST_CASE:  # every run has one
            name = f"{entry.method}, ε = {entry.epsilon:.3g}" + (" per id" if entry.unit == "id" else "")
            methods[f"{name}, δ = {small(entry.delta)}" if name in methods else name] = entry.parts
    if comparison.nonprivate_parts is not None:
        methods["without privacy (benchmark)"] = comparison.nonprivate_parts
    if not any(parts.groups or any(one.lost is not None for one in parts.classes) for parts in methods.values()):
        return Section(title)
    content: list[Content] = [
        "How right each method is on the test examples of each class and group, on average over its runs. Lost (or "
        "gained), of benchmarks: the share right without privacy less the share right with it, in points, on the same "
        f"test examples; ± is a standard error over test examples. Fewer than {FEWEST} test examples are too few to "
        "tell."
    ]

    def add(heading: str, kind: str, column: str | None) -> None:
        given = {
            name: {one.value: one for one in getattr(parts, kind) if one.column == column}
            for name, parts in methods.items()
        }
        sizes = {one.value: one.examples for parts in given.values() for one in parts.values()}
        rows = [(value, f"{n:,}", *(_cell(parts.get(value)) for parts in given.values())) for value, n in sizes.items()]
        if rows and any(one.tells for parts in given.values() for one in parts.values()):
            content.extend(
                [PageBlock("heading", heading), PageTable((column or "class", "test examples", *methods), rows)]
            )

    rarest = next((parts.rarest_class for parts in methods.values() if parts.rarest_class is not None), None)
    add("By class: recognised", "classes", None)
    for column in dict.fromkeys(one.column for parts in methods.values() for one in parts.groups):
        add(f"By {column}: right", "groups", column)
        add(f"By {column}: recognised of class {rarest}, the rarest", "rarest_within", column)
    return Section(title, content=content if content[1:] else ())


def _cell(one: GroupAccuracy | None) -> str:
    if one is None:
        return "–"
    if not one.tells:
        return TOO_FEW
    lost = "" if one.lost is None else f", {format_change(one.lost.share, one.lost.error)}"
    return f"{percent(one.right)}{lost}"


def _read(run: Run, path: Path | str, with_private: bool) -> _Run:
    report = read_report(run.path)
    if not run.config_file.exists():
        raise RunError(f"{path}: has no {run.config_file.name}; name the directory of a finished run")
    config, privacy = read_yaml(run.config_file), report.privacy
    if report.student.accuracy is None:
        raise RunError(f"{path}: was not measured, its test examples have no labels; there is nothing to compare")
    epsilons = [(WORST_CASE, privacy.epsilon, privacy.delta)]
    if privacy.sanitised is not None:
        epsilons.append((_SANITISED, privacy.sanitised.epsilon, privacy.sanitised.delta))
    settings = {key: value for key, value in config.items() if key not in _NEVER_PART_OF_THE_METHOD}
    return _Run(
        name=str(path),
        report=report,
        settings=json.dumps(settings, sort_keys=True, default=str),
        shown={key: _shown(value) for key, value in published_settings(settings).items()},
        epsilons=(*epsilons, *(_data_dependent(run) if with_private else ())),
    )


def baseline_name(method: Mapping[str, Any]) -> str:
    """A baseline in a few words, from its method.

    >>> baseline_name({"name": "dp_sgd", "preprocessing": ["upright", {"name": "hog"}], "model": "mlp"})
    'dp_sgd, upright + hog, mlp'
    """
    name: str = method["name"]
    told: tuple[str, ...] = ("preprocessing", "features", "model", "method", "loss")
    if name == "dp_sgd" and method.get("model") == "linear":  # one layer on what is public: no network of its own
        name, told = "DP linear probe", ("preprocessing", "features")
    return ", ".join([name, *(_shown(method[key]) for key in told if method.get(key))])


def _told_apart(runs: Sequence[_Run]) -> dict[str, str]:
    """A name for the method of each group of settings: where several are called alike, with what differs."""
    named: dict[str, dict[str, _Run]] = {}
    for run in runs:
        report = run.report
        method = report.voters.method if isinstance(report, Report) else baseline_name(report.method)
        named.setdefault(method, {}).setdefault(run.settings, run)
    found = {}
    for method, alike in named.items():
        keys = sorted({key for run in alike.values() for key in run.shown})
        differ = [key for key in keys if len({run.shown.get(key) for run in alike.values()}) > 1]
        named_keys = [key for key in differ if key not in _TOLD_ANYWAY][:_MAX_TOLD]
        for settings, run in alike.items():
            told = [f"{key.rpartition('.params.')[2]} {run.shown.get(key, 'not set')}" for key in named_keys]
            if not differ and len(alike) > 1:  # in what is not published
                told = [Path(run.name).name]
            found[settings] = ", ".join([method, *told])
    return found


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
    first, *others = runs
    own = first.report.student
    for run in others:
        student = run.report.student
        digests = {own.test_digest, student.test_digest}
        unlike = own.test_examples != student.test_examples or (None not in digests and len(digests) > 1)
        if unlike or run.report.classes != first.report.classes:
            raise RunError(f"{run.name}: was tested on other examples than {first.name}; compare runs on the same data")


def _notes(entries: Sequence[Entry], reports: Sequence[AnyReport]) -> tuple[str, ...]:
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
    if any(report.student.test_digest is None for report in reports):
        notes.append("Some runs do not say which test examples they used: only their number was compared.")
    if any(entry.runs > 1 for entry in entries):
        notes.append("± is the standard deviation over runs of one method with different seeds.")
    if any(entry.runs == 1 for entry in entries):
        n = reports[0].student.test_examples
        size = math.sqrt(0.25 / n) * 100
        notes.append(f"A share of {n} test examples has itself a standard error of up to {size:.1f} %.")
    return tuple(notes)
