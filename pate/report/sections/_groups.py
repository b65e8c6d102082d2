"""Who pays for privacy: how right a model is on each class and group of test examples, and what each lost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import NormalDist, mean
from typing import Any

from pate.report._pages import TOO_FEW, Content, PageBlock, PageTable, Section, format_change, percent, points
from pate.report.schema import AnyReport, Group, GroupLost, Lost, NonprivateComparison

FEWEST = 30
"""Test examples: a share of fewer has a standard error of up to nine points and more."""

_FEW = 6  # classes or groups, for a line of a terminal
_FEW_ROWS = 12  # of a table that is open from the start
_BY_CHANCE = 0.025  # how often a class or group may be said to have lost most where none lost anything


@dataclass(frozen=True)
class GroupAccuracy:
    """The test examples of a class, or of a group by a `column`: how many, and how right a model is on them.

    Of a group they may be those of one class, `of_class`. What a model without privacy is right on, and what was lost
    against it, is known of benchmarks; each share has its standard error over test examples beside it.
    """

    column: str | None
    value: str
    examples: int
    right: float | None
    error: float | None = None
    nonprivate: float | None = None
    lost: Lost | None = None
    of_class: str | None = None

    @property
    def tells(self) -> bool:
        """Whether there are enough test examples to tell anything."""
        return self.right is not None and self.examples >= FEWEST

    @property
    def name(self) -> str:
        """The name of a class, a group, or a class in a group, as a sentence uses it."""
        if self.column is None:
            return f"the class {self.value!r}"
        group = f"{self.column} = {self.value}"
        return f"the group {group}" if self.of_class is None else f"the class {self.of_class!r} of {group}"

    @property
    def comparison(self) -> str:
        """What it got right instead of what it would have without privacy, in words."""
        assert self.lost is not None
        verb = "right" if self.column is not None and self.of_class is None else "recognised"
        less = points(self.lost.share, self.lost.error)
        return f"{percent(self.right)} {verb} instead of {percent(self.nonprivate)}, {less} points less"


def class_parts(report: AnyReport) -> list[GroupAccuracy]:
    """The classes, by what of their test examples is recognised."""
    beside, nothing = _without_privacy(report), (None,) * len(report.classes)
    others, losses = (nothing, nothing) if beside is None else (beside.recall, beside.lost_by_class)
    found = []
    for label, row in enumerate(report.student.confusion or ()):
        size, right = sum(row), row[label]
        share, error = right / size if size else None, error_of_share(right, size)
        found.append(GroupAccuracy(None, report.classes[label], size, share, error, others[label], losses[label]))
    return found


def group_parts(report: AnyReport) -> list[GroupAccuracy]:
    """The groups, column by column, by what of their test examples is right."""
    return [
        GroupAccuracy(
            own.column,
            own.value,
            own.examples,
            own.accuracy,
            own.error,
            None if other is None else other.accuracy,
            lost,
        )
        for own, other, lost in _groups(report)
    ]


def _parts_within(report: AnyReport) -> list[GroupAccuracy]:
    """The classes within each group, group by group, by what of their test examples is recognised."""
    found = []
    for own, other, lost in _groups(report):
        for label, name in enumerate(report.classes):
            n, share = own.class_examples[label], own.recall[label]
            error = None if share is None else error_of_share(round(share * n), n)
            nonprivate = None if other is None else other.recall[label]
            by = None if lost is None else lost.by_class[label]
            found.append(GroupAccuracy(own.column, own.value, n, share, error, nonprivate, by, of_class=name))
    return found


def _without_privacy(report: AnyReport) -> NonprivateComparison | None:
    return None if report.benchmark is None else report.benchmark.without_privacy


def _groups(report: AnyReport) -> list[tuple[Group, Group | None, GroupLost | None]]:
    """Each group, the same group without privacy, and what it lost."""
    groups, beside = report.student.groups, _without_privacy(report)
    if beside is None or len(beside.groups) != len(groups):
        return [(group, None, None) for group in groups]
    return list(zip(groups, beside.groups, beside.lost_by_group, strict=True))


def by_column(parts: Sequence[GroupAccuracy]) -> dict[str, list[GroupAccuracy]]:
    """Groups by their column."""
    found: dict[str, list[GroupAccuracy]] = {}
    for one in parts:
        found.setdefault(one.column or "class", []).append(one)
    return found


def error_of_share(right: int, n: int) -> float:
    """The standard error of a share of n, with half an example more that is right, and half a wrong one.

    >>> round(error_of_share(80, 100), 3), round(error_of_share(30, 30), 3)
    (0.04, 0.023)
    """
    share = (right + 0.5) / (n + 1)
    return math.sqrt(share * (1 - share) / (n + 1))


def mean_of_known(values: Sequence[float | None]) -> float | None:
    """The mean of those that are known; None where none is."""
    known = [value for value in values if value is not None]
    return mean(known) if known else None


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

    And `rarest_within` that of the same class within each group.
    """

    classes: tuple[GroupAccuracy, ...] = ()
    groups: tuple[GroupAccuracy, ...] = ()
    rarest_within: tuple[GroupAccuracy, ...] = ()
    rarest_class: str | None = None
    rarest: float | None = None
    spreads: tuple[Spread, ...] = ()

    @classmethod
    def of(
        cls, classes: Sequence[GroupAccuracy], groups: Sequence[GroupAccuracy], within: Sequence[GroupAccuracy]
    ) -> Parts:
        """With what follows from the parts; `within` are classes within groups."""
        rarest = min((one for one in classes if one.examples), key=lambda one: one.examples, default=None)
        spreads = []
        for column, parts in by_column(groups).items():
            known = [(one.right, one.value) for one in parts if one.tells and one.right is not None]
            if known:
                (low, worst), (high, best) = min(known), max(known)
                spreads.append(Spread(column, worst, low, best, high, high - low))
        return cls(
            tuple(classes),
            tuple(groups),
            tuple(one for one in within if rarest is not None and one.of_class == rarest.value),
            None if rarest is None else rarest.value,
            None if rarest is None else rarest.right,
            tuple(spreads),
        )

    @classmethod
    def of_report(cls, report: AnyReport, private: bool = True) -> Parts:
        """From a report; or, not `private`, of the model without privacy in it."""
        kinds = class_parts(report), group_parts(report), _parts_within(report)
        if private:
            return cls.of(*kinds)
        return cls.of(
            *([replace(one, right=one.nonprivate, error=None, lost=None) for one in parts] for parts in kinds)
        )

    @classmethod
    def mean(cls, several: Sequence[Parts]) -> Parts:
        """The mean over runs of each class and group that they have; test examples are the same in all."""

        def mean_of(same: list[GroupAccuracy]) -> GroupAccuracy:
            losses = [one.lost for one in same if one.lost is not None]
            share, error = (mean_of_known([getattr(one, name) for one in losses]) for name in ("share", "error"))
            lost = None if share is None or error is None else Lost(share=share, error=error)
            right = mean_of_known([one.right for one in same])
            return replace(same[0], right=right, error=None, nonprivate=None, lost=lost)

        def means(kind: str) -> list[GroupAccuracy]:
            alike: dict[tuple[str | None, str], list[GroupAccuracy]] = {}
            for one in (one for parts in several for one in getattr(parts, kind)):
                alike.setdefault((one.column, one.value), []).append(one)
            return [mean_of(same) for same in alike.values()]

        return cls.of(means("classes"), means("groups"), means("rarest_within"))

    def as_object(self) -> dict[str, Any]:
        """Plain values."""

        def plain(one: GroupAccuracy) -> dict[str, Any]:
            shown = {name: getattr(one, name) for name in ("column", "value", "examples", "right")}
            return shown | {"lost": one.lost.share if one.lost else None, "error": one.lost.error if one.lost else None}

        kinds = ("classes", "groups", "rarest_within")
        return asdict(self) | {kind: [plain(one) for one in getattr(self, kind)] for kind in kinds}


def find_largest_loss(report: AnyReport) -> str | None:
    """The class or group that lost most to privacy, and the class in a group if that lost more; None: nobody knows.

    The largest of many differences is large by chance: the more there are, the larger it has to be to be told.
    """
    known = [one for one in class_parts(report) + group_parts(report) if one.lost is not None and one.tells]
    within = [one for one in _parts_within(report) if one.lost is not None and one.tells]
    beside = _without_privacy(report)
    if beside is None or not known:
        return None
    errors = NormalDist().inv_cdf(1 - _BY_CHANCE / len(known + within))

    def loss(one: GroupAccuracy) -> float:
        return one.lost.share if one.lost else 0.0

    def max_beyond_chance(parts: Sequence[GroupAccuracy]) -> GroupAccuracy | None:
        beyond = (one for one in parts if one.lost and one.lost.share > errors * one.lost.error)
        return max(beyond, key=loss, default=None)

    most, deepest = max_beyond_chance(known), max_beyond_chance(within)
    told = most or deepest
    if told is None:
        largest = max(known, key=loss)
        if largest.lost is None or largest.lost.share <= 0:
            return "No class or group lost anything to privacy."
        less = points(largest.lost.share, largest.lost.error)
        return f"No class or group lost more to privacy than chance explains. The most: {largest.name}, {less} points."
    name = f"{told.name} ({told.examples:,} test examples) lost most to privacy"
    more = ""
    if most is not None and deepest is not None and loss(deepest) > loss(most):
        more = f" Within groups: {deepest.name} ({deepest.examples:,}), {deepest.comparison}."
    whole = beside.lost
    return (
        f"{name[0].upper()}{name[1:]}: {told.comparison}.{more} All test examples together "
        f"{format_change(whole.share, whole.error)}."
    )


def in_a_line(parts: Sequence[GroupAccuracy]) -> str:
    """Shares of classes, or of the groups of one column, for a terminal; of many groups, the best and the worst."""

    def shown(one: GroupAccuracy) -> str:
        if one.lost is not None:
            return f"{one.value} {percent(one.right)} ({format_change(one.lost.share, one.lost.error)})"
        return f"{one.value} {_with_error(one)}"

    told = [one for one in parts if one.tells]
    few = [one for one in parts if not one.tells and one.examples]
    if len(parts) > _FEW and told:
        worst, *_, best = sorted(told, key=lambda one: one.right or 0.0) if len(told) > 1 else (told[0], told[0])
        more = f"; {len(few)} more with too few test examples to tell" if few else ""
        return f"{len(told)} groups, from {shown(worst)} to {shown(best)}{more}"
    return ", ".join([shown(one) for one in told] + [f"{one.value} {TOO_FEW} ({one.examples})" for one in few])


def groups(report: AnyReport) -> Section:
    """What each class and group gets right, and what it lost; only where there are enough test examples to tell."""
    within, found = by_column(_parts_within(report)), by_column(group_parts(report))
    facts = [(f"right by {name}", in_a_line(parts)) for name, parts in found.items() if any(one.tells for one in parts)]
    most = find_largest_loss(report)
    content: list[Content] = []
    if most is not None:
        facts.append(("who pays (benchmark)", most))
        content += [
            PageBlock("bold", most),
            "Lost: the share right without privacy less the share right with it (below zero: gained), in points, on "
            "the same test examples of this benchmark. ± is one standard error over test examples; another training, "
            "with other noise, differs beyond that.",
        ]
    classes = class_parts(report)
    tables: list[Content] = []
    if most is not None and any(one.tells for one in classes):
        tables += [PageBlock("heading", "By class"), _table(["class"], "recognised", classes)]
    for column, parts in found.items():
        if not any(one.tells for one in parts):
            tables.append(f"By {column}: every group has fewer than {FEWEST} test examples, too few to tell anything.")
            continue
        means = [
            TOO_FEW if min(group.class_examples) < FEWEST else percent(group.balanced_accuracy)
            for group in report.student.groups
            if group.column == column
        ]
        table = _table([column], "right", parts)
        rows = [(*row, mean) for row, mean in zip(table.rows, means, strict=True)]
        tables += [PageBlock("heading", f"By {column}"), PageTable((*table.header, "mean over classes"), rows)]
        if any(one.tells for one in within[column]):
            inner = _table([column, "class"], "recognised", within[column])
            title = f"By {column}, class by class"
            tables.append(PageBlock("folded", inner, title, open=len(inner.rows) <= _FEW_ROWS))
    if any(TOO_FEW in row for one in tables if isinstance(one, PageTable) for row in one.rows):
        content.append(
            f"Where there are fewer than {FEWEST} test examples it says “{TOO_FEW}”: nothing can be told of them. "
            "Their figures are in report.json."
        )
    return Section("Group by group" if most is None else "Who pays for privacy", facts, [*content, *tables])


def _table(names: Sequence[str], right: str, parts: Sequence[GroupAccuracy]) -> PageTable:
    """A row for each part; what is known of benchmarks alone has columns only there."""
    beside = ("without privacy", "lost") if any(one.lost is not None for one in parts) else ()
    rows = []
    for one in parts:
        cells = [TOO_FEW] * 3
        if one.tells:
            lost = "–" if one.lost is None else points(one.lost.share, one.lost.error)
            cells = [_with_error(one), "–" if one.nonprivate is None else percent(one.nonprivate), lost]
        of_class = () if one.of_class is None else (one.of_class,)
        rows.append((one.value, *of_class, f"{one.examples:,}", *cells[: 1 + len(beside)]))
    return PageTable((*names, "test examples", right, *beside), rows)


def _with_error(one: GroupAccuracy) -> str:
    assert one.right is not None
    return percent(one.right) if one.error is None else f"{points(one.right, one.error)} %"
