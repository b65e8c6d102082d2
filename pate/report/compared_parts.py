"""Classes and groups of several runs side by side: the worst, how far the best is above it, and what each lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pate.report.fairness import FEWEST, recall_of
from pate.report.formats import TOO_FEW, format_change, percent
from pate.report.html import HtmlTable


@dataclass(frozen=True)
class ComparedPart:
    """The test examples of a class, or of a group by a `column`; the share that is right is a mean over runs.

    `lost` is that mean against models without privacy, in benchmarks, and `error` its standard error over test
    examples, or more: they are the same in all runs.
    """

    column: str | None
    value: str
    examples: int
    right: float | None
    lost: float | None = None
    error: float | None = None

    @property
    def tells(self) -> bool:
        """Whether there are enough test examples to tell anything."""
        return self.right is not None and self.examples >= FEWEST


@dataclass(frozen=True)
class Spread:
    """The best and the worst group by a column, of those with enough test examples to tell."""

    column: str
    worst: str
    worst_right: float
    best: str
    best_right: float
    gap: float


@dataclass(frozen=True)
class Parts:
    """How right a method is on each class and group; `rarest` is the share of the rarest class that it recognises.

    And so it is of that class within each group.
    """

    classes: tuple[ComparedPart, ...] = ()
    groups: tuple[ComparedPart, ...] = ()
    rarest_within: tuple[ComparedPart, ...] = ()
    rarest_class: str | None = None
    rarest: float | None = None
    spreads: tuple[Spread, ...] = ()

    @classmethod
    def of(
        cls, classes: Sequence[ComparedPart], groups: Sequence[ComparedPart], rarest_within: Sequence[ComparedPart]
    ) -> Parts:
        """With what follows from the parts."""
        there = [one for one in classes if one.examples]
        rarest = min(there, key=lambda one: one.examples) if there else None
        columns = dict.fromkeys(one.column for one in groups if one.column is not None)
        spreads = [_spread(column, [one for one in groups if one.column == column]) for column in columns]
        return cls(
            tuple(classes),
            tuple(groups),
            tuple(rarest_within),
            None if rarest is None else rarest.value,
            None if rarest is None else rarest.right,
            tuple(spread for spread in spreads if spread is not None),
        )


NO_PARTS = Parts()
"""Of a method of which nothing is known but the whole."""


def parts_of(report: Mapping[str, Any]) -> Parts:
    """From a report as it is stored, of whatever version."""
    student, beside = report["student"], _beside(report)
    confusion, groups = student.get("confusion") or (), student.get("groups") or ()
    lost = beside.get("lost_by_class"), beside.get("lost_by_group")
    return _parts(report["classes"], [sum(row) for row in confusion], recall_of(confusion), groups, *lost)


def nonprivate_parts(report: Mapping[str, Any]) -> Parts | None:
    """Classes and groups of the non-private baseline, where a report has one."""
    beside = _beside(report)
    if not beside:
        return None
    sizes = [sum(row) for row in report["student"].get("confusion") or ()]
    return _parts(report["classes"], sizes, beside["recall"], beside["groups"])


def _parts(
    names: Sequence[str],
    sizes: Sequence[int],
    recall: Sequence[float | None],
    groups: Sequence[Mapping[str, Any]],
    by_class: Sequence[Any] | None = None,
    by_group: Sequence[Any] | None = None,
) -> Parts:
    lost = by_class or [None] * len(names)
    classes = [_part(None, *given) for given in zip(names, sizes, recall, lost, strict=False)]
    rarest = min((i for i, n in enumerate(sizes) if n), key=lambda i: sizes[i], default=None)
    found, within = [], []
    for group, its in zip(groups, by_group or [None] * len(groups), strict=True):
        column, value = group["column"], group["value"]
        found.append(_part(column, value, group["examples"], group["accuracy"], its))
        if rarest is not None:
            own = None if its is None else its["by_class"][rarest]
            within.append(_part(column, value, group["class_examples"][rarest], group["recall"][rarest], own))
    return Parts.of(classes, found, within)


def mean_of(several: Sequence[Parts]) -> Parts:
    """Over runs, of each class and group that they have."""
    kinds = ("classes", "groups", "rarest_within")
    return Parts.of(*(_means([one for parts in several for one in getattr(parts, kind)]) for kind in kinds))


@dataclass(frozen=True)
class PartColumns:
    """What the table of a comparison has of classes and groups, where it is known."""

    rarest: bool
    columns: tuple[str, ...]

    @classmethod
    def of(cls, several: Sequence[Parts], skewed: bool) -> PartColumns:
        """The rarest class where classes are skewed, and each column that test examples were counted by."""
        columns = dict.fromkeys(spread.column for parts in several for spread in parts.spreads)
        return cls(skewed and any(parts.rarest is not None for parts in several), tuple(columns))

    @property
    def header(self) -> tuple[str, ...]:
        """Their names."""
        return (*(("rarest class",) if self.rarest else ()), *(f"worst by {name} (gap)" for name in self.columns))

    def cells(self, parts: Parts | None) -> tuple[str, ...]:
        """What they hold of one method."""
        parts = parts or NO_PARTS
        spreads = {one.column: f"{one.worst} {percent(one.worst_right)} ({100 * one.gap:.1f})" for one in parts.spreads}
        rarest = "–" if parts.rarest is None else percent(parts.rarest)
        return (*((rarest,) if self.rarest else ()), *(spreads.get(name, "–") for name in self.columns))


def part_tables(methods: Mapping[str, Parts]) -> list[tuple[str, HtmlTable]]:
    """For the page: tables of the classes, of each column's groups, and of the rarest class in these, by method."""
    if not any(parts.groups or any(one.lost is not None for one in parts.classes) for parts in methods.values()):
        return []
    rarest = next((parts.rarest_class for parts in methods.values() if parts.rarest_class is not None), None)
    by_class = _table({name: parts.classes for name, parts in methods.items()}, "class", None)
    found = [("By class: recognised", by_class)] if by_class.rows else []
    for column in dict.fromkeys(one.column for parts in methods.values() for one in parts.groups):
        assert column is not None
        groups = {name: parts.groups for name, parts in methods.items()}
        within = {name: parts.rarest_within for name, parts in methods.items()}
        found.append((f"By {column}: right", _table(groups, column, column)))
        found.append((f"By {column}: recognised of class {rarest}, the rarest", _table(within, column, column)))
    return [(heading, table) for heading, table in found if table.rows]


def _table(methods: Mapping[str, Sequence[ComparedPart]], heading: str, column: str | None) -> HtmlTable:
    given = {name: {one.value: one for one in parts if one.column == column} for name, parts in methods.items()}
    sizes = {one.value: one.examples for parts in given.values() for one in parts.values()}
    rows = [(value, f"{n:,}", *(_cell(parts.get(value)) for parts in given.values())) for value, n in sizes.items()]
    return HtmlTable((heading, "test examples", *methods), rows)


def _cell(one: ComparedPart | None) -> str:
    if one is None:
        return "–"
    if not one.tells:
        return TOO_FEW
    lost = "" if one.lost is None or one.error is None else f", {format_change(one.lost, one.error)}"
    return f"{percent(one.right)}{lost}"


def _beside(report: Mapping[str, Any]) -> Mapping[str, Any]:
    return (report.get("benchmark") or {}).get("without_privacy") or {}


def _part(
    column: str | None, value: str, examples: int, right: float | None, lost: Mapping[str, float] | None
) -> ComparedPart:
    found = (None, None) if lost is None else (lost["share"], lost["error"])
    return ComparedPart(column, value, examples, right, *found)


def _means(parts: Sequence[ComparedPart]) -> list[ComparedPart]:
    alike: dict[tuple[str | None, str], list[ComparedPart]] = {}
    for one in parts:
        alike.setdefault((one.column, one.value), []).append(one)
    return [
        ComparedPart(column, value, same[0].examples, *(_mean(same, name) for name in ("right", "lost", "error")))
        for (column, value), same in alike.items()
    ]


def _mean(parts: Sequence[ComparedPart], name: str) -> float | None:
    known = [value for one in parts if (value := getattr(one, name)) is not None]
    return sum(known) / len(known) if known else None


def _spread(column: str, groups: Sequence[ComparedPart]) -> Spread | None:
    known = [(one.right, one.value) for one in groups if one.tells and one.right is not None]
    if not known:
        return None
    (low, worst), (high, best) = min(known), max(known)
    return Spread(column, worst, low, best, high, high - low)
