"""What cells mean: numbers, dates, categories, labels and ids, each by a rule that looks at that cell alone.

Guarantee: what a record becomes depends on its own cells and the configuration, whatever other records hold. Where a
column's type could change because of one record (a missing value makes whole numbers floats, a word makes numbers
text) the rules give the others the same result under either type, or refuse the file. Errors name file, column and
row, never a value: the value is private.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import groupby
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pate.errors import DataError

IdType = Literal["text", "integer"]
Treatment = Literal["refuse", "public_median", "indicator", "keep"]
"""What becomes of missing numbers and dates."""
Family = Literal["cells", "text", "integer", "real", "boolean", "date", "nothing", "other"]
MISSING = frozenset(("", "na", "n/a", "nan", "null", "none", "?"))
"""What stands for a missing number or date, in capitals or not."""

_INTEGER = re.compile(r"([+-]?)([0-9]++)", re.ASCII)  # no pattern may try a long cell in more than one way: ++, *+
_NUMBER = re.compile(r"[+-]?(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?", re.ASCII)
_DECIMAL_COMMA = re.compile(r"[+-]?[0-9]*+,[0-9]++", re.ASCII)
_DECIMAL_POINT = re.compile(r"[+-]?[0-9]*+\.[0-9]++", re.ASCII)
_LIKE_A_DATE = re.compile(r"[0-9]{1,4}[-./][0-9]{1,2}[-./][0-9]{1,4}(?:[ T].*+)?", re.ASCII)
_LONGEST_DATE = 200  # signs; the patterns of strptime are not ours, and depend on the locale
_FEW_SIGNS = 1000
_YEAR_ZERO, SECONDS_PER_YEAR = datetime(2000, 1, 1), 365.25 * 86_400


@dataclass(frozen=True)
class Column:
    """One column of a file: texts without surrounding blanks ('' where missing), or numbers.

    `family` is "cells" in a csv file, whose cells have no type of their own, and "date" where a parquet file says so:
    the values are years then, see `years_of`. `missing` marks numbers that are not there, and `rows` says which row of
    the file each value is from, where it is not the first, second and so on. `decimal` is the sign before decimals.
    """

    where: str
    family: Family
    stored_as: str
    values: list[str] | NDArray
    missing: NDArray[np.bool_] | None = None
    rows: Sequence[int] | None = None
    decimal: str = "."

    def take(self, rows: Sequence[int]) -> Column:
        """The values of some rows of a column of texts."""
        return replace(self, values=[self.values[row] for row in rows], rows=rows)

    def with_markers_as_missing(self, markers: Sequence[str]) -> Column:
        """The column with an empty cell, or no number, wherever one of `markers` stands.

        Texts are compared without surrounding blanks, in Unicode's form NFC, in capitals or not; in a column that is
        stored as numbers, markers that are numbers are compared by value.
        """
        if not markers or self.family in ("date", "other", "boolean", "nothing"):
            return self
        if isinstance(self.values, list):
            known = {folded(marker) for marker in markers}
            return replace(self, values=["" if folded(text) in known else text for text in self.values])
        numbers = [number for marker in markers if math.isfinite(number := _number(marker.strip()))]
        there = np.isin(self.values, numbers)
        return replace(self, missing=there if self.missing is None else self.missing | there)

    def error(self, row: int, text: str) -> DataError:
        """The error about the value in a row; the value itself is private and not in it."""
        number = row if self.rows is None else self.rows[row]
        return DataError(f"{self.where}, row {number} (counted from 0): {text}")

    def texts(self) -> list[str]:
        """The values as text, whole floats as whole numbers: 2, 2.0 and '2' are one label or category."""
        if self.family in ("other", "date"):
            raise DataError(f"{self.where} holds {self.stored_as}: neither numbers nor text; save it as one of them")
        if isinstance(self.values, list):
            return self.values
        texts = [_text(value) for value in self.values]
        if self.missing is not None:
            for row in np.flatnonzero(self.missing):
                texts[row] = ""
        return texts

    def numbers(self, date: str | None = None, lenient: bool = False) -> NDArray[np.float32]:
        """Finite numbers, NaN where one is missing. With `date`, a format, they are dates: years since 2000.

        The first row that holds something else (a word, infinity, a number beyond 32-bit floats) is refused; where
        `lenient` says so it is infinity instead, for a record that takes no part.
        """
        wide = self._wide(date)
        with np.errstate(over="ignore"):
            found = wide.astype(np.float32)
        wrong = np.isinf(found)
        if wrong.any() and not lenient:
            raise self.no_number(int(np.argmax(wrong)), date)
        found[wrong] = np.inf
        found[np.isnan(found)] = np.nan  # one pattern of bits
        return found

    def years(self, form: str) -> NDArray[np.float64]:
        """Dates of that form as years since 2000, NaN where one is missing, infinity where it is none."""
        return self._wide(form)

    def _wide(self, date: str | None) -> NDArray[np.float64]:
        """NaN where a value is missing, infinity where it is neither a number (or date) nor missing."""
        if date is not None and self.family not in ("cells", "text", "date", "nothing"):
            raise DataError(f"{self.where} holds {self.stored_as}, but data.dates says that it holds dates")
        if date is None and self.family == "date":
            raise DataError(f"{self.where} holds dates ({self.stored_as}); list it under data.dates, or data.ignore")
        if isinstance(self.values, list):
            texts = self.texts()
            if date is not None:
                return np.array([_years(text, date) for text in texts], dtype=np.float64)
            return np.array([_number(text, self.decimal) for text in texts], dtype=np.float64)
        wide = self.values.astype(np.float64)  # from any type by the same way, so that the last bit agrees too
        if self.missing is not None:
            wide[self.missing] = np.nan
        return wide

    def no_number(self, row: int, date: str | None) -> DataError:
        """What is wrong with a cell, and what to write; only its own look decides, which is not quoted."""
        text = self.values[row] if isinstance(self.values, list) else ""
        if date is not None:
            hint = "write the form that the file has, or list what marks a missing date (data.missing_values.markers)"
            if _of_the_form(text, date):
                hint = "the form is right, but there is no such day: mend the cell, or leave it empty"
            elif math.isfinite(_number(text, self.decimal)):
                hint = "it is like a number: take numbers out of data.dates"
            return self.error(row, f"not a date of the form {date} (data.dates); {hint}")
        hint = (
            "mend the cell or empty it, or add it to data.missing_values.markers, words to data.categories, or the "
            "column to data.ignore"
        )
        if self.decimal == "." and _DECIMAL_COMMA.fullmatch(text):
            hint = "say data.decimal: ',' if decimals come after a comma"
        elif self.decimal == "," and _DECIMAL_POINT.fullmatch(text):
            hint = "say data.decimal: '.' if decimals come after a point"
        elif _LIKE_A_DATE.fullmatch(text):
            return self.error(row, "not a finite number but like a date; give its form under data.dates")
        return self.error(row, f"not a finite number; {hint}")

    def labels(self, classes: Sequence[object], keep_unknown: bool = False) -> NDArray[np.int64]:
        """Positions in the configured list of classes, which is never added to.

        The first row with another label is refused, unless such rows are kept, as −1.
        """
        texts = self.texts()
        found = _places(texts, classes)
        if not keep_unknown and (found < 0).any():
            row = int(np.argmax(found < 0))
            if not texts[row]:
                raise self.error(row, "its label is missing; drop such rows")
            if texts[row].casefold() in {canonical(str(name)).casefold() for name in classes}:
                raise self.error(row, "its label is in other capitals than in data.classes; write them alike")
            raise self.error(row, "its label is not among data.classes; add it there or drop such rows")
        return found

    def ids(self, id_type: IdType) -> list[str | None]:
        """Ids in their canonical form, None where there is no valid one.

        All files declare one type. A column of another type is refused, and so are floats: one missing value makes
        a whole column floats, and the person 17 would be 17.0 there.
        """
        if self.family not in ("cells", "nothing", id_type):
            hint = f"; say data.id_type: {self.family}" if self.family in ("text", "integer") else ""
            raise DataError(
                f"{self.where} holds {self.stored_as}, but ids are declared as {id_type} (data.id_type){hint}; "
                "they are whole numbers or text, the same in all files"
            )
        return [canonical_id(text, id_type) for text in self.texts()]


def canonical(text: str) -> str:
    """The one form of a class or category: without surrounding blanks, in Unicode's composed form, else as written.

    >>> canonical(" Ann "), canonical("e\u0301") == "é"
    ('Ann', True)
    """
    return _composed(text.strip())


def _composed(text: str) -> str:
    r"""Unicode's composed form (NFC), in time that grows as the text does.

    Unicode's own way sorts the marks on a letter by exchanging neighbours, which takes long for a cell full of them;
    so the marks of a long text are sorted before.

    >>> _composed("a\u0301\u0323"), len(_composed("a" + "\u0301" * 50_000 + "\u0323" * 50_000))
    ('ạ́', 100000)
    """
    if text.isascii():
        return text
    if len(text) > _FEW_SIGNS:
        signs = (part for sign in text for part in unicodedata.normalize("NFD", sign))
        runs = groupby(signs, key=lambda sign: unicodedata.combining(sign) > 0)
        text = "".join(
            sign for marks, run in runs for sign in (sorted(run, key=unicodedata.combining) if marks else run)
        )
    return unicodedata.normalize("NFC", text)


def folded(text: str) -> str:
    """The one form of a text that marks a missing value: as `canonical`, and in small letters.

    >>> folded(" K.A. ")
    'k.a.'
    """
    return canonical(text).casefold()


def is_number(text: str, decimal: str = ".") -> bool:
    """Whether a cell holds a number, however large.

    >>> is_number("-9"), is_number("1,5"), is_number("1,5", ","), is_number("k.A.")
    (True, False, True, False)
    """
    return not math.isnan(found := _number(text, decimal)) and (math.isfinite(found) or bool(_NUMBER.fullmatch(text)))


def canonical_id(text: str, id_type: IdType) -> str | None:
    """The one form of an id, the same for every way to write it; None if it is not a valid id.

    Text: without surrounding white space, in Unicode's composed form (NFC), otherwise as it stands. Integer: decimal
    digits after an optional sign, of any length.

    >>> canonical_id(" Ann ", "text"), canonical_id("1.0", "text"), canonical_id("", "text")
    ('Ann', '1.0', None)
    >>> canonical_id("+017", "integer"), canonical_id("-0", "integer"), canonical_id("1.0", "integer")
    ('17', '0', None)
    """
    text = text.strip()
    if id_type == "integer":
        match = _INTEGER.fullmatch(text)
        if match is None:
            return None
        sign, digits = match[1], match[2].lstrip("0") or "0"
        return f"-{digits}" if sign == "-" and digits != "0" else digits
    try:
        text.encode()
    except UnicodeEncodeError:  # half a surrogate pair is no character
        return None
    return _composed(text) or None


def _places(texts: Sequence[str], names: Sequence[object]) -> NDArray[np.int64]:
    """Which of the names each text is, −1 for none of them."""
    place = {canonical(str(name)): i for i, name in enumerate(names)}
    return np.array([place.get(canonical(text), -1) for text in texts], dtype=np.int64)


def one_hot(texts: Sequence[str], categories: Sequence[object]) -> NDArray[np.float32]:
    """A column of 0 and 1 for each category; a text that is not among them, or none, is all zeros.

    >>> one_hot(["b", "", "a"], ["a", "b"]).tolist()
    [[0.0, 1.0], [0.0, 0.0], [1.0, 0.0]]
    """
    found = _places(texts, categories)
    features = np.zeros((len(texts), len(categories)), dtype=np.float32)
    rows = np.flatnonzero(found >= 0)
    features[rows, found[rows]] = 1
    return features


def array_features(X: NDArray, where: str, keep_missing: bool = False, first_row: int = 0) -> NDArray[np.float32]:
    """The features in an array whose first axis is examples, as finite float32; DataError where they are not.

    With `keep_missing`, examples with NaN or infinity stay what they are. `first_row` is the number of the first.
    """
    if X.dtype.kind not in "fiub":
        raise DataError(f"{where} holds {X.dtype}, not numbers")
    if X.ndim < 2 or 0 in X.shape[1:]:
        raise DataError(f"{where}: examples of shape {X.shape[1:]}; the first axis is examples, the others features")
    if X.dtype.kind in "iu" and X.dtype.itemsize > 4:
        X = X.astype(np.float64)  # as a column would be
    with np.errstate(over="ignore"):
        found = X.astype(np.float32)
    if not keep_missing and not np.isfinite(found).all():
        row = first_row + int(np.argmin(np.isfinite(found).reshape(len(found), -1).all(axis=1)))
        raise DataError(f"{where}, row {row} (counted from 0): NaN or infinity; fill missing values before the run")
    return found


def _text(value: np.generic) -> str:
    """A number as text; NaN is a missing one."""
    if not isinstance(value, np.floating):
        return str(value)
    if np.isnan(value):
        return ""
    return str(int(value)) if value.is_integer() else str(value)


def _number(text: str, decimal: str = ".") -> float:
    """NaN where it is missing, infinity where it is no number. Blanks, `1_000` or signs of thousands are none."""
    if decimal != ".":
        text = "x" if "." in text else text.replace(decimal, ".")  # 1.234 may be a thousand: nobody knows
    if _NUMBER.fullmatch(text):
        return float(text)
    return _gap(text)


def _gap(text: str) -> float:
    """NaN for a cell that says that nothing is there, infinity for one that says something else."""
    return math.nan if text.casefold() in MISSING else math.inf


def years_of(when: datetime) -> float:
    """A date as a number: years of 365.25 days since the first of January 2000; of UTC where it has a time zone.

    >>> years_of(datetime(2000, 1, 1)), round(years_of(datetime(2024, 7, 1)), 3)
    (0.0, 24.498)
    """
    naive = when if when.tzinfo is None else when.astimezone(UTC).replace(tzinfo=None)
    return (naive - _YEAR_ZERO).total_seconds() / SECONDS_PER_YEAR


def _of_the_form(text: str, form: str) -> bool:
    """Whether a text has digits where a date of that form has them.

    >>> _of_the_form("31.02.1970", "%d.%m.%Y"), _of_the_form("1970-02-31", "%d.%m.%Y")
    (True, False)
    """
    pattern = re.escape(form)
    for sign, digits in (("Y", 4), ("y", 2), *((sign, 2) for sign in "dmHMS")):
        pattern = pattern.replace(f"%{sign}", rf"\d{{1,{digits}}}")
    return "%" not in pattern and re.fullmatch(pattern, text) is not None


def _years(text: str, form: str) -> float:
    """Years since 1970 of a date in that form; NaN where it is none."""
    if len(text) > _LONGEST_DATE:
        return _gap(text)
    try:
        return years_of(datetime.strptime(text, form))
    except (ValueError, OverflowError):
        return _gap(text)


ABSOLUTE = "years"
"""The date itself, as years since 2000: another year lies beyond everything that was seen."""

PARTS = {"month": 12, "weekday": 7, "hour": 24}
"""Positions in a cycle, each written as its sine and cosine, so that December is next to January."""

UNITS = {"years": 1.0, "days": 365.25, "hours": 24 * 365.25}
_SINCE = re.compile(r"(years|days|hours) since (.++)", re.DOTALL)
_EPOCH = np.datetime64("2000-01-01", "s")

Years = NDArray[np.float64]
_DateFeatures = Mapping[str, Sequence[str]]


def since(feature: str) -> tuple[str, str] | None:
    """Unit and other column of a difference between two columns of dates; None of anything else.

    >>> since("days since onset"), since("month")
    (('days', 'onset'), None)
    """
    match = _SINCE.fullmatch(feature)
    return None if match is None else (match[1], match[2])


def problem_of(date_features: _DateFeatures, dates: Collection[str]) -> str | None:
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
            found.append(_difference(own, years(difference[1])) * UNITS[difference[0]])
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
    at = position(np.where(there, years, 0), part)
    turns = [2 * math.pi * i / size for i in range(size)]
    waves = (np.array([wave(turn) for turn in turns])[at] for wave in (math.sin, math.cos))
    sine, cosine = (np.where(there, wave, years) for wave in waves)
    return sine, cosine


def position(years: Years, part: str) -> NDArray[np.int64]:
    """The month from January, the weekday from Monday or the hour from midnight, counted from 0.

    >>> moment = np.array([24 + (59 + 17.5 / 24) / 365.25])  # the 29th of February 2024, about half past five
    >>> [int(position(moment, part)[0]) for part in PARTS]
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
