"""Test examples by the values of a public column: whom a model serves well, and whom it does not.

Test examples count as public; nothing else is looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pate.components.registry import shown
from pate.data.dates import ABSOLUTE, names_of
from pate.errors import ConfigError

if TYPE_CHECKING:
    from pate.data.public import PublicData

OTHER = "other"
_MAX_NAMED = 30


@dataclass(frozen=True)
class Grouping:
    """The test examples by one column: `members` holds, for each of them, the position of its group in `values`."""

    column: str
    values: tuple[str, ...]
    members: NDArray[np.int64]


def groupings(data: PublicData, columns: Sequence[str]) -> tuple[Grouping, ...]:
    """The test examples by each of `columns`; ConfigError where that cannot be told.

    Every listed value is a group, also one that no test example has. Those with no listed value, if there are any, are
    one more: other.
    """
    if not columns:
        return ()
    if data.X_test is None or data.y_test is None or not len(data.X_test):
        raise ConfigError(
            "report.groups: there are no test examples with labels to count by group; name a file of them under "
            "data.test, or leave report.groups out"
        )
    known = category_columns(data)
    for column in columns:
        if column not in known:
            raise ConfigError(
                f"report.groups: {shown(column)} is not a column of categories; {_those_there_are(known)}"
            )
    return tuple(_grouping(data.X_test, column, known[column]) for column in columns)


def category_columns(data: PublicData) -> dict[str, dict[str, int]]:
    """The columns of categories: for each of their values, which feature says so by 1.

    By the configured columns where files have them, else by the names of the features: "column=value".
    """
    found: dict[str, dict[str, int]] = {}
    if data.columns is not None:
        categories, dates, place = data.columns["categories"], data.columns["date_features"], 0
        for column in data.columns["features"]:
            values = categories.get(column)
            if values is not None:
                found[column] = {value: place + i for i, value in enumerate(values)}
            place += len(names_of(column, dates.get(column, (ABSOLUTE,)))) if values is None else len(values)
        return found
    for place, feature in enumerate(data.features or ()):
        column, sign, value = feature.partition("=")
        if sign:
            found.setdefault(column, {})[value] = place
    return {column: places for column, places in found.items() if _are_categories(data.X_test, places)}


def _are_categories(X: NDArray | None, places: dict[str, int]) -> bool:
    """Whether at most one of the features is 1, and all others are 0: a name alone does not tell."""
    if X is None:
        return True
    block = X[:, list(places.values())]
    return bool(np.isin(block, (0, 1)).all() and (block.sum(axis=1) <= 1).all())


def _grouping(X: NDArray, column: str, places: dict[str, int]) -> Grouping:
    block, values = X[:, list(places.values())] == 1, tuple(places)
    listed = block.any(axis=1)
    members = np.where(listed, block.argmax(axis=1), len(values)).astype(np.int64)
    if not listed.all():
        taken = OTHER in (value.casefold() for value in values)
        values += (f"{OTHER} (not listed)" if taken else OTHER,)
    return Grouping(column, values, members)


def _those_there_are(known: dict[str, dict[str, int]]) -> str:
    if not known:
        return "this data has none, so leave report.groups out"
    more = f" and {len(known) - _MAX_NAMED} more" if len(known) > _MAX_NAMED else ""
    return f"there are {', '.join(list(known)[:_MAX_NAMED])}{more}"
