"""Whether the test file is like the public one, column by column: both are public, and nothing else is looked at.

Public examples of one year say little about another's: what lies beyond all of them cannot be learned from them. The
private records cannot be compared without being paid for; the test file is what stands in for new examples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from pate.data._columns import canonical, day_of
from pate.data._records import Format, Table, measured, years_in
from pate.errors import DataError

_SHARE = 0.05  # of test cells beyond what is public
_DISTANCE = 0.25  # between distributions: Kolmogorov and Smirnov's of numbers, total variation of categories
_CHANCE = 2.2  # of either, in standard deviations: files that are alike are told of once in ten thousand columns
_FEWEST = 20  # cells: of fewer, nothing is said
_MAX_SHOWN = 12


def drift_warnings(public: Table, test: Table | None, format: Format) -> tuple[str, ...]:
    """A line for each column in which the test file is unlike the public one, and what can be done."""
    if test is None:
        return ()
    found: list[str] = []
    with suppress(DataError):  # a column that is missing, or of another type, is refused elsewhere
        found = [text for text in _found(public, test, format) if text]
    if len(found) > _MAX_SHOWN:
        found = [
            *found[:_MAX_SHOWN],
            f"{len(found) - _MAX_SHOWN} more columns of the test file are unlike public ones",
        ]
    return tuple(found)


def _found(public: Table, test: Table, format: Format) -> Iterator[str]:
    if public.X is not None and test.X is not None:
        if public.X.ndim == test.X.ndim == 2 and public.X.shape[1:] == test.X.shape[1:]:
            for number, (own, other) in enumerate(zip(public.X.T, test.X.T, strict=True)):
                yield _of_numbers(f"feature {number}", own, other)
        return
    categories, dates = dict(format.categories), dict(format.dates)
    years = years_in(public, format), years_in(test, format)
    for name in format.features:
        if name in categories:
            cells = ([canonical(text) for text in format.column(table, name).texts()] for table in (public, test))
            yield _of_categories(name, *cells)
            continue
        (own, features), (other, others) = (
            measured(table, name, format, of_table) for table, of_table in zip((public, test), years, strict=True)
        )
        gaps = _of_gaps(name, np.isnan(own), np.isnan(other))
        if gaps:
            yield gaps
            continue
        lines = (
            _of_numbers(f"column {name!r}" + ("" if feature == name else f" ({feature.removeprefix(f'{name}: ')})"),
                        features[feature], others[feature], is_date=name in dates and feature == name, name=name)
            for feature in features
        )  # fmt: skip
        yield next(filter(None, lines), "")


def _of_numbers(where: str, own: NDArray, other: NDArray, is_date: bool = False, name: str = "") -> str:
    own, other = own[np.isfinite(own)], other[np.isfinite(other)]
    if min(len(own), len(other)) < _FEWEST:
        return ""
    low, high = own.min(), own.max()
    beyond = float(((other < low) | (other > high)).mean())
    expected = 2 / (len(own) + 1)
    allowed = expected + 4 * np.sqrt(expected / len(other)) + 2 / len(other)
    shown = (day_of(low), day_of(high)) if is_date else (f"{low:.4g}", f"{high:.4g}")
    if beyond > max(_SHARE, allowed):
        said = (
            f"{where}: {100 * beyond:.0f} % of the test file lies beyond the public file's range, {' to '.join(shown)}"
        )
        if is_date:
            return (
                f"{said}; an absolute date means nothing in another year: write data.date_features: "
                f"{{{name}: [month, weekday]}} or 'days since' another date, or add the column to data.ignore"
            )
        return (
            f"{said}, and counts as the end of it; if its unit or meaning is another, mend it, or add the column to "
            "data.ignore"
        )
    chance = _CHANCE * np.sqrt(1 / len(own) + 1 / len(other))
    if _distance(own, other) > max(_DISTANCE, chance):
        medians = [day_of(m) if is_date else f"{m:.4g}" for m in (np.median(other), np.median(own))]
        return (
            f"{where}: the test file is unlike the public one (median {medians[0]}, there {medians[1]}); if its unit "
            "or meaning is another, mend it, or add the column to data.ignore"
        )
    return ""


def _distance(own: NDArray, other: NDArray) -> float:
    """The largest difference between two distribution functions."""
    at = np.unique(np.concatenate([own, other]))
    below = (np.searchsorted(np.sort(values), at, side="right") / len(values) for values in (own, other))
    first, second = below
    return float(np.abs(first - second).max())


def _of_categories(name: str, own: list[str], other: list[str]) -> str:
    if min(len(own), len(other)) < _FEWEST:
        return ""
    known, found = Counter(own), Counter(other)
    unknown = {value: times for value, times in found.items() if value not in known}
    share = sum(unknown.values()) / len(other)
    if share > _SHARE:
        shown = ", ".join(map(repr, sorted(unknown, key=lambda value: -unknown[value])[:5]))
        return (
            f"column {name!r}: {100 * share:.0f} % of the test file holds what the public file never does ({shown}); "
            "write the same values in all files, or add the column to data.ignore"
        )
    apart = sum(abs(known[value] / len(own) - found[value] / len(other)) for value in {*known, *found}) / 2
    chance = _CHANCE / 2 * np.sqrt(len(known) * (1 / len(own) + 1 / len(other)))
    if apart > max(_DISTANCE, chance):
        most = [counts.most_common(1)[0][0] for counts in (found, known)]
        return (
            f"column {name!r}: the test file has other shares of values than the public one (most often {most[0]!r}, "
            f"there {most[1]!r}); if it means something else there, add the column to data.ignore"
        )
    return ""


def _of_gaps(name: str, own: NDArray[np.bool_], other: NDArray[np.bool_]) -> str:
    if min(len(own), len(other)) < _FEWEST:
        return ""
    shares = float(other.mean()), float(own.mean())
    if abs(shares[0] - shares[1]) <= max(_DISTANCE, _CHANCE * np.sqrt(1 / len(own) + 1 / len(other))):
        return ""
    return (
        f"column {name!r}: {100 * shares[0]:.0f} % of the test file is missing, and {100 * shares[1]:.0f} % of the "
        "public one; write missing values alike, or add the column to data.ignore"
    )
