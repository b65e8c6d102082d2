"""What becomes of columns of dates: numbers that mean the same in another year.

Guarantee: a feature is worked out from the record's own dates. Sine and cosine come from tables, so they are the same
bits wherever a record stands.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from pate.data.columns import SECONDS_PER_YEAR

ABSOLUTE = "years"
"""The date itself, as years since 2000: another year lies beyond everything that was seen."""

PARTS = {"month": 12, "weekday": 7, "hour": 24}
"""Positions in a cycle, each written as its sine and cosine, so that December is next to January."""

_UNITS = {"years": 1.0, "days": 365.25, "hours": 24 * 365.25}
_SINCE = re.compile(r"(years|days|hours) since (.++)", re.DOTALL)
_EPOCH = np.datetime64("2000-01-01", "s")
_LONG = 10.0  # years: dates spread over more are dates of birth or the like
_DAYS_MANY, _HOURS_MANY = 730.0, 48.0

Years = NDArray[np.float64]
DateFeatures = Mapping[str, Sequence[str]]


def since(feature: str) -> tuple[str, str] | None:
    """Unit and other column of a difference between two columns of dates; None of anything else.

    >>> since("days since onset"), since("month")
    (('days', 'onset'), None)
    """
    match = _SINCE.fullmatch(feature)
    return None if match is None else (match[1], match[2])


def problem_of(date_features: DateFeatures, dates: Collection[str]) -> str | None:
    """What is wrong with the features of dates that somebody names, in one line; None if nothing is."""
    used: set[str] = set()
    for column, features in date_features.items():
        if column not in dates:
            return f"{column}: is not a column of dates; give its form under dates"
        for feature in features:
            difference = since(feature)
            if difference is None and feature not in (ABSOLUTE, *PARTS):
                known = ", ".join((*PARTS, "days since COLUMN", "years since COLUMN", "hours since COLUMN", ABSOLUTE))
                return f"{column}: {feature!r} is nothing that dates become; write some of {known}"
            if difference is not None and (difference[1] == column or difference[1] not in dates):
                return f"{column}: {feature!r} names no other column of dates; dates are {', '.join(dates)}"
            used |= set() if difference is None else {difference[1]}
        if len(set(features)) < len(features):
            return f"{column}: a feature is listed twice"
    idle = next((name for name, features in date_features.items() if not features and name not in used), None)
    return None if idle is None else f"{idle}: becomes no feature, of its own or of another date; add it to ignore"


def names_of(column: str, features: Iterable[str]) -> list[str]:
    """The names of what a column of dates becomes; that of the absolute date is the column's own."""
    names: list[str] = []
    for feature in features:
        waves = [f"{column}: {feature} ({wave})" for wave in ("sin", "cos")]
        names += waves if feature in PARTS else [column] if feature == ABSOLUTE else [f"{column}: {feature}"]
    return names


def features_of_date(
    column: str, features: Iterable[str], years: Callable[[str], Years]
) -> dict[str, NDArray[np.float32]]:
    """What a column of dates becomes, by name: NaN where a date is missing, infinity where it is none.

    `years` gives a column's dates as years since 2000.
    """
    own, found = years(column), list[NDArray]()
    for feature in features:
        difference = since(feature)
        if difference is not None:
            found.append(_difference(own, years(difference[1])) * _UNITS[difference[0]])
        elif feature == ABSOLUTE:
            found.append(own)
        else:
            found += _waves(own, feature)
    return {name: values.astype(np.float32) for name, values in zip(names_of(column, features), found, strict=True)}


def _difference(later: Years, earlier: Years) -> Years:
    """Infinity where either is no date: it is no gap, whatever the other is."""
    wrong = np.isinf(later) | np.isinf(earlier)
    return np.where(wrong, np.inf, np.where(wrong, 0, later) - np.where(wrong, 0, earlier))


def _waves(years: Years, part: str) -> tuple[Years, Years]:
    """Sine and cosine of where in a year, a week or a day dates are."""
    there, size = np.isfinite(years), PARTS[part]
    position = _position(np.where(there, years, 0), part)
    turns = [2 * math.pi * i / size for i in range(size)]
    waves = (np.array([wave(turn) for turn in turns])[position] for wave in (math.sin, math.cos))
    sine, cosine = (np.where(there, wave, years) for wave in waves)
    return sine, cosine


def _position(years: Years, part: str) -> NDArray[np.int64]:
    """The month from January, the weekday from Monday or the hour from midnight, counted from 0.

    >>> moment = np.array([24 + (59 + 17.5 / 24) / 365.25])  # the 29th of February 2024, about half past five
    >>> [int(_position(moment, part)[0]) for part in PARTS]
    [1, 3, 17]
    """
    seconds = np.floor(years * SECONDS_PER_YEAR + 1e-3).astype(np.int64)
    if part == "month":
        when = _EPOCH + seconds.astype("timedelta64[s]")
        return when.astype("datetime64[M]").astype(np.int64) % 12
    if part == "weekday":
        return (seconds // 86_400 + 5) % 7  # the first of January 2000 was a Saturday
    return seconds % 86_400 // 3600


def day_of(years: float) -> str:
    """A date for people.

    >>> day_of(24.0)
    '2024-01-01'
    """
    return str((_EPOCH + np.timedelta64(round(years * SECONDS_PER_YEAR), "s")).astype("datetime64[D]"))


def offered(dates: Mapping[str, Years]) -> dict[str, list[str]]:
    """What `pate init` makes of public columns of dates, so that it means the same in another year.

    Of the first column in which something happened: month, weekday, hour, and the age then by dates of birth (which are
    spread over many years). Of each other one: how long from the first, or from a date before it in the file
    that is nearer by a unit (hours instead of days or years) and, where they are not within hours of each other, month,
    weekday and hour too. Where no other date tells an age, a date of birth stays what it is.
    """
    lived = {name: years for name, years in dates.items() if _spread(years) >= _LONG}
    events = [name for name in dates if name not in lived]
    if not events:
        first = next(iter(lived), "")
        return {name: [ABSOLUTE if name == first else f"years since {first}"] for name in lived}
    main = events[0]
    found: dict[str, list[str]] = {name: [] for name in dates}
    found[main] = [*_parts(dates[main]), *(f"years since {name}" for name in lived)]
    for number, name in enumerate(events[1:], start=1):
        near = min(events[:number], key=lambda other: _apart(dates[name], dates[other]))
        if _unit(dates[name], dates[near]) == _unit(dates[name], dates[main]):
            near = main
        unit = _unit(dates[name], dates[near])
        found[name] = [] if unit == "hours" else _parts(dates[name])
        later, earlier = (near, name) if _median(dates[name]) < _median(dates[near]) else (name, near)
        found[later].append(f"{unit} since {earlier}")
    return found


def _parts(years: Years) -> list[str]:
    return ["month", "weekday", *(["hour"] if _position(_there(years), "hour").any() else [])]


def _there(years: Years) -> Years:
    return years[np.isfinite(years)]


def _median(years: Years) -> float:
    return float(np.median(_there(years)))


def _spread(years: Years) -> float:
    low, high = np.quantile(_there(years), [0.05, 0.95])
    return float(high - low)


def _apart(some: Years, others: Years) -> float:
    """Years between two columns of dates, typically."""
    return float(np.median(np.abs(_there(some - others)))) if np.isfinite(some - others).any() else 0.0


def _unit(later: Years, earlier: Years) -> str:
    typical = _apart(later, earlier) * _UNITS["days"]
    return "years" if typical > _DAYS_MANY else "days" if 24 * typical > _HOURS_MANY else "hours"
