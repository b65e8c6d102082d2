"""Classes and groups of several runs side by side: the worst, how far the best is above it, and what each lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pate.report.fairness import FEWEST, recall_of
from pate.report.formats import TOO_FEW, lost_or_gained, percent
from pate.report.rendering import Table


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
    """How right a method is on each class and group; `rarest` is the share of the rarest class that it recognises."""

    classes: tuple[ComparedPart, ...] = ()
    groups: tuple[ComparedPart, ...] = ()
    rarest_class: str | None = None
    rarest: float | None = None
    spreads: tuple[Spread, ...] = ()

    @classmethod
    def of(cls, classes: Sequence[ComparedPart], groups: Sequence[ComparedPart]) -> Parts:
        """With what follows from the parts."""
        there = [one for one in classes if one.examples]
        rarest = min(there, key=lambda one: one.examples) if there else None
        columns = dict.fromkeys(one.column for one in groups if one.column is not None)
        spreads = [_spread(column, [one for one in groups if one.column == column]) for column in columns]
        return cls(
            tuple(classes),
            tuple(groups),
            None if rarest is None else rarest.value,
            None if rarest is None else rarest.right,
            tuple(spread for spread in spreads if spread is not None),
        )


NO_PARTS = Parts()
"""Of a method of which nothing is known but the whole."""


def parts_of(report: Mapping[str, Any]) -> Parts:
    """From a report as it is stored, of whatever version."""
    student, beside = report["student"], _beside(report)
    names, lost = report["classes"], beside.get("lost_by_class") or [None] * len(report["classes"])
    confusion = student.get("confusion") or ()
    classes = [
        _part(None, name, sum(row), recall, its)
        for name, row, recall, its in zip(names, confusion, recall_of(confusion), lost, strict=False)
    ]
    groups = student.get("groups") or ()
    lost = beside.get("lost_by_group") or [None] * len(groups)
    found = [
        _part(one["column"], one["value"], one["examples"], one["accuracy"], its)
        for one, its in zip(groups, lost, strict=False)
    ]
    return Parts.of(classes, found)


def nonprivate_parts(report: Mapping[str, Any]) -> Parts | None:
    """The same of the model without privacy, where a report has one."""
    beside = _beside(report)
    if not beside:
        return None
    sizes = [sum(row) for row in report["student"].get("confusion") or ()]
    classes = [
        _part(None, name, n, recall, None)
        for name, n, recall in zip(report["classes"], sizes, beside["recall"], strict=False)
    ]
    groups = [_part(one["column"], one["value"], one["examples"], one["accuracy"], None) for one in beside["groups"]]
    return Parts.of(classes, groups)


def mean_of(several: Sequence[Parts]) -> Parts:
    """Over runs, of each class and group that they have."""
    classes = _means([one for parts in several for one in parts.classes])
    return Parts.of(classes, _means([one for parts in several for one in parts.groups]))


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


def part_tables(methods: Mapping[str, Parts]) -> list[tuple[str, Table]]:
    """For the page: a table of the classes and one of each column's groups, with a column for every method."""
    given = [one for parts in methods.values() for one in (*parts.classes, *parts.groups)]
    if not any(parts.groups or any(one.lost is not None for one in parts.classes) for parts in methods.values()):
        return []
    found = []
    for column in dict.fromkeys(one.column for one in given):
        rows = []
        for value, n in {one.value: one.examples for one in given if one.column == column}.items():
            cells = [_cell(_find(parts, column, value)) for parts in methods.values()]
            rows.append((value, f"{n:,}", *cells))
        heading = "By class: recognised" if column is None else f"By {column}: right"
        found.append((heading, Table((column or "class", "test examples", *methods), rows)))
    return found


def _find(parts: Parts, column: str | None, value: str) -> ComparedPart | None:
    return next((one for one in (*parts.classes, *parts.groups) if (one.column, one.value) == (column, value)), None)


def _cell(one: ComparedPart | None) -> str:
    if one is None:
        return "–"
    if not one.tells:
        return TOO_FEW
    lost = "" if one.lost is None or one.error is None else f", {lost_or_gained(one.lost, one.error)}"
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
