"""Who pays for privacy, in words and tables: how right a model is on each class and group, and what each lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from pate.report.explanations import AnyReport
from pate.report.fairness import FEWEST, error_of_share, recall_of
from pate.report.formats import TOO_FEW, format_change, percent, points
from pate.report.schema import Group, Lost, NonprivateComparison

if TYPE_CHECKING:
    from pate.report.html import HtmlTable

_FEW = 6  # classes or groups, for a line of a terminal
_BY_CHANCE = 0.025  # how often a class or group may be said to have lost most where none lost anything


@dataclass(frozen=True)
class Part:
    """The test examples of a class, or of a group by a `column`: how many, and how right a model is on them.

    Of a group they may be those of one class. What a model without privacy is right on, and what was lost against it,
    is known of benchmarks.
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


def class_parts(report: AnyReport) -> list[Part]:
    """The classes, by what of their test examples is recognised."""
    confusion, beside = report.student.confusion, _without_privacy(report)
    if confusion is None:
        return []
    n = len(report.classes)
    nonprivate, lost = (beside.recall, beside.lost_by_class) if beside is not None else ((None,) * n, (None,) * n)
    sizes = [sum(row) for row in confusion]
    errors = [error_of_share(row[label], sum(row)) for label, row in enumerate(confusion)]
    given = zip(report.classes, sizes, recall_of(confusion), errors, nonprivate, lost, strict=True)
    return [Part(None, *of_class) for of_class in given]


def group_parts(report: AnyReport) -> list[Part]:
    """The groups, column by column, by what of their test examples is right."""
    groups, beside = report.student.groups, _without_privacy(report)
    if beside is None or len(beside.groups) != len(groups):
        return [_part(group) for group in groups]
    given = zip(groups, beside.groups, beside.lost_by_group, strict=True)
    return [replace(_part(own), nonprivate=its.accuracy, lost=lost) for own, its, lost in given]


def _part(group: Group) -> Part:
    return Part(group.column, group.value, group.examples, group.accuracy, group.error)


def parts_within(report: AnyReport) -> list[Part]:
    """The classes within each group, group by group, by what of their test examples is recognised."""
    found, beside = [], _without_privacy(report)
    for number, group in enumerate(report.student.groups):
        its = beside.groups[number].recall if beside is not None and beside.groups else (None,) * len(report.classes)
        lost = beside.lost_by_group[number] if beside is not None and beside.lost_by_group else None
        losses = (None,) * len(report.classes) if lost is None else lost.by_class
        given = zip(group.class_examples, group.recall, its, losses, report.classes, strict=True)
        for n, own, other, by, name in given:
            error = None if own is None else error_of_share(round(own * n), n)
            found.append(Part(group.column, group.value, n, own, error, other, by, name))
    return found


def find_largest_loss(report: AnyReport) -> str | None:
    """The class or group that lost most to privacy, and the class in a group if that lost more; None: nobody knows.

    The largest of many differences is large by chance: the more there are, the larger it has to be to be told.
    """
    beside = _without_privacy(report)
    known = [one for one in class_parts(report) + group_parts(report) if one.lost and one.tells]
    within = [one for one in parts_within(report) if one.lost and one.tells]
    if beside is None or not known:
        return None
    errors = NormalDist().inv_cdf(1 - _BY_CHANCE / len(known + within))
    most, deepest = (_max_beyond(errors, parts) for parts in (known, within))
    if most is None and deepest is None:
        return _within_chance(max(known, key=_lost))
    whole = f"All test examples together {format_change(beside.lost.share, beside.lost.error)}."
    if most is None or deepest is None:
        return f"{_told(most or deepest)} {whole}"
    more = f" Within groups: {_of_so_many(deepest)}." if _lost(deepest) > _lost(most) else ""
    return f"{_told(most)}{more} {whole}"


def _lost(one: Part | None) -> float:
    assert one is not None
    assert one.lost is not None
    return one.lost.share


def _max_beyond(errors: float, parts: Sequence[Part]) -> Part | None:
    """The largest loss of those that are more than so many standard errors."""
    beyond = [one for one in parts if one.lost is not None and one.lost.share > errors * one.lost.error]
    return max(beyond, key=_lost) if beyond else None


def _within_chance(one: Part) -> str:
    assert one.lost is not None
    if one.lost.share <= 0:
        return "No class or group lost anything to privacy."
    told = points(one.lost.share, one.lost.error)
    return f"No class or group lost more to privacy than chance explains. The most: {one.name}, {told} points."


def _told(one: Part | None) -> str:
    assert one is not None
    name = f"{one.name} ({one.examples:,} test examples) lost most to privacy"
    return f"{name[0].upper()}{name[1:]}: {_instead(one)}."


def _of_so_many(one: Part) -> str:
    return f"{one.name} ({one.examples:,}), {_instead(one)}"


def _instead(one: Part) -> str:
    assert one.lost is not None
    verb = "right" if one.column is not None and one.of_class is None else "recognised"
    less = points(one.lost.share, one.lost.error)
    return f"{percent(one.right)} {verb} instead of {percent(one.nonprivate)}, {less} points less"


def in_a_line(parts: Sequence[Part]) -> str:
    """Shares of classes, or of the groups of one column, for a terminal; of many groups, the best and the worst."""
    told = [one for one in parts if one.tells]
    few = [one for one in parts if not one.tells and one.examples]
    if len(parts) > _FEW and told:
        worst, *_, best = sorted(told, key=lambda one: one.right or 0.0) if len(told) > 1 else (told[0], told[0])
        more = f"; {len(few)} more with too few test examples to tell" if few else ""
        return f"{len(told)} groups, from {_shown(worst)} to {_shown(best)}{more}"
    return ", ".join([_shown(one) for one in told] + [f"{one.value} {TOO_FEW} ({one.examples})" for one in few])


def _shown(one: Part) -> str:
    if one.lost is not None:
        return f"{one.value} {percent(one.right)} ({format_change(one.lost.share, one.lost.error)})"
    return f"{one.value} {_with_error(one)}"


def by_column(parts: Sequence[Part]) -> dict[str, list[Part]]:
    """Groups by their column."""
    found: dict[str, list[Part]] = {}
    for one in parts:
        found.setdefault(one.column or "class", []).append(one)
    return found


def section(report: AnyReport) -> dict[str, Any] | None:
    """What the page shows of it; None where there is nothing beyond what it shows of the classes anyway.

    With each table of groups comes one of the classes within them.
    """
    from pate.report.html import HtmlTable

    beside, groups = _without_privacy(report), report.student.groups
    if beside is None and not groups:
        return None
    tables: list[tuple[str, HtmlTable, HtmlTable | None]] = []
    if beside is not None:
        tables.append(("By class", _table(["class"], "recognised", class_parts(report)), None))
    within = by_column(parts_within(report))
    for column, parts in by_column(group_parts(report)).items():
        means = [(group.balanced_accuracy, min(group.class_examples)) for group in groups if group.column == column]
        table = _table([column], "right", parts)
        rows = [(*row, _cell(*mean)) for row, mean in zip(table.rows, means, strict=True)]
        by_class = _table([column, "class"], "recognised", within[column])
        tables.append((f"By {column}", HtmlTable((*table.header, "mean over classes"), rows), by_class))
    heading = "Group by group" if beside is None else "Who pays for privacy"
    return {"heading": heading, "most": find_largest_loss(report), "tables": tables, "fewest": FEWEST}


def _table(names: Sequence[str], right: str, parts: Sequence[Part]) -> HtmlTable:
    """A row for each part; what is known of benchmarks alone has columns only there."""
    from pate.report.html import HtmlTable

    beside = ("without privacy", "lost") if any(one.lost is not None for one in parts) else ()
    rows = []
    for one in parts:
        of_class = () if one.of_class is None else (one.of_class,)
        rows.append((one.value, *of_class, f"{one.examples:,}", *_cells(one)[: 1 + len(beside)]))
    return HtmlTable((*names, "test examples", right, *beside), rows)


def _cells(one: Part) -> tuple[str, str, str]:
    """Right, right without privacy, and lost; in words where there are too few examples to tell."""
    if not one.tells:
        return TOO_FEW, TOO_FEW, TOO_FEW
    lost = "–" if one.lost is None else points(one.lost.share, one.lost.error)
    return _with_error(one), "–" if one.nonprivate is None else percent(one.nonprivate), lost


def _with_error(one: Part) -> str:
    assert one.right is not None
    return percent(one.right) if one.error is None else f"{points(one.right, one.error)} %"


def _cell(share: float | None, examples: int) -> str:
    return TOO_FEW if share is None or examples < FEWEST else percent(share)


def _without_privacy(report: AnyReport) -> NonprivateComparison | None:
    return report.benchmark.without_privacy if report.benchmark is not None else None
