"""Examples as people have them (csv, parquet, data frames) → what a student takes, as its card says.

A card tells how columns become features: their names, categories, dates, and what stands for gaps. All of it comes from
the configuration and the public file. A card may come from anybody: it is data, checked before it is used.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.data._columns import SECONDS_PER_YEAR, Column, canonical_id, one_hot
from pate.data._formats import Columns, Dialect, Problems, SeveralErrors, Table, Wanted, array_column, other_delimiter
from pate.data._records import Format, features_of, read_table
from pate.data.partition import contents, keyed_digest
from pate.data.public import PublicRange
from pate.errors import DataError

_BITS = 128  # of a digest

_MAX_BITS = 10_000  # Python writes no whole number of more than 4,300 digits


def is_frame(X: Any) -> bool:
    """Whether X is a table with named columns, of pandas or the like."""
    return hasattr(X, "columns") and hasattr(X, "dtypes")


Rule = float | tuple[str, ...]
"""What a column becomes: a number, this one where it is missing; or a 0/1 feature for each of these words."""


@dataclass(frozen=True)
class Encoder:
    """How records become rows of numbers. Each record by itself: what it holds moves no other.

    Categories are those that a categorical column declares, else those among the public examples it was made from; a
    word that is none of them is all zeros. A missing number is the median of the public examples, and numbers beyond
    the range of these are clipped to it. `columns` are None for arrays, which are taken as they are.
    """

    columns: tuple[tuple[Any, Rule], ...] | None
    range: PublicRange | None = None

    @classmethod
    def of(cls, public: Any, by_values: bool = False) -> Encoder:
        """From public examples; an array is taken as it is, within the range of the public ones.

        With `by_values` the types of columns say nothing: for examples that were split off from private records.
        """
        names = public.columns if is_frame(public) else None
        found = cls(None if names is None else tuple((name, _rule(public[name], by_values)) for name in names))
        rules = [rule for _, rule in found.columns or ()]
        flags = [flag for rule in rules for flag in ([True] * len(rule) if isinstance(rule, tuple) else [False])]
        return replace(found, range=PublicRange.of(found.transform(public), flags))

    @property
    def names(self) -> tuple[str, ...] | None:
        """A name for each feature, where columns have names."""
        if self.columns is None:
            return None
        return tuple(
            text
            for name, rule in self.columns
            for text in ([f"{name}={known}" for known in rule] if isinstance(rule, tuple) else [name])
        )

    def transform(self, X: Any) -> NDArray[np.float32]:
        """Rows of numbers; for arrays the numbers they hold."""
        if self.columns is None:
            found = np.asarray(X, dtype=np.float32)
        else:
            found = np.concatenate([_features(X[name], rule) for name, rule in self.columns], axis=1)
        return found if self.range is None else self.range.clip(found)


def _rule(values: Any, by_values: bool) -> Rule:
    """What a public column becomes: by its type, or by its values alone."""
    if not by_values and (declared := getattr(values.dtype, "categories", None)) is not None:
        return tuple(cell_text(value) for value in declared)
    there = [value for value in values.tolist() if cell_text(value)]
    by_type = getattr(values.dtype, "kind", "O") in "biuf"
    if all(isinstance(value, int | float) for value in there) if by_values else by_type:
        finite = [number for number in map(_number, there) if np.isfinite(number)]
        return float(np.median(finite)) if finite else 0.0
    return tuple(sorted({cell_text(value) for value in there}))


def _features(values: Any, rule: Rule) -> NDArray[np.float32]:
    if isinstance(rule, tuple):
        return one_hot([cell_text(value) for value in values], rule)
    found = np.array([_number(value) for value in values], dtype=np.float32)
    return np.where(np.isfinite(found), found, np.float32(rule))[:, None]


def with_columns_of(X: Any, X_public: Any) -> Any:
    """Public examples, as a frame with the columns of the frame X or an array with as many as the array X."""
    from sklearn.utils import check_array

    if is_frame(X) != is_frame(X_public):
        raise DataError("X_public: must be a data frame where X is one, and an array where X is one")
    if is_frame(X):
        missing = [name for name in X.columns if name not in X_public.columns]
        if missing:
            raise DataError(f"X_public: has no column {missing[0]!r}, which X has")
        return X_public[list(X.columns)]
    X_public = check_array(X_public, dtype=np.float32, input_name="X_public", ensure_min_samples=0)
    if X_public.shape[1] != X.shape[1]:
        raise DataError(f"X_public: has {X_public.shape[1]} columns, X has {X.shape[1]}; give the same ones")
    return X_public


def person_ids(ids: Any) -> list[str | None]:
    """The canonical id of each record: whole numbers or text, each by itself; None where there is no valid one.

    Numbers with decimals are refused: one missing id makes floats of all, and whom a record belongs to would depend on
    others.

    >>> person_ids([17, 4]), person_ids([" Ann", "", None])
    (['17', '4'], ['Ann', None, None])
    """
    found = np.asarray(ids)
    if found.ndim == 2 and found.shape[1] == 1:
        found = found[:, 0]
    if found.ndim != 1:
        raise DataError(f"ids: has shape {found.shape}; give one for each record")
    if found.dtype.kind not in "iuUTO":
        raise DataError(
            f"ids: holds {found.dtype}, not whole numbers or text; where one is missing, give text, or pandas' Int64"
        )
    return [
        canonical_id(str(value), "text")
        if isinstance(value, int | np.integer | str) and not isinstance(value, bool)
        else None
        for value in found.tolist()
    ]


def split_off_public(X: Any, ids: list[str] | None, fraction: float, seed: int) -> NDArray[np.bool_]:
    """Which records are taken as public: a hash of a record's own features decides, or of its id.

    So nobody is public by one record and protected by another.
    """
    if ids is not None:
        identities = [b"id:" + one.encode() for one in ids]
    elif is_frame(X):
        identities = [identity(row) for row in X.to_numpy(dtype=object)]
    else:
        identities = contents(X, np.zeros(len(X), dtype=np.int64))
    key, limit = f"public {seed}".encode(), int(fraction * 2**_BITS)
    return np.array([int.from_bytes(keyed_digest(key, b"public", i), "little") < limit for i in identities], dtype=bool)


def identity(row: Any) -> bytes:
    """What a record of a frame says, the same whatever types other records give to its columns."""
    return b"record:" + repr([cell_text(value) for value in row]).encode()


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):  # None, pandas.NA, a word, a whole number of 400 digits
        return float("nan")


def cell_text(value: Any) -> str:
    """A cell as text: a whole float is a whole number, since one missing value makes floats of a column."""
    if value is None or type(value).__name__ == "NAType" or value != value:
        return ""
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:
        return hex(value)
    return str(int(value)) if isinstance(value, (float, np.floating)) and float(value).is_integer() else str(value)


_YEAR_2000 = np.datetime64("2000-01-01", "us")


def table_in(path: Path, format: Format, dialect: Dialect) -> Table:
    """The columns of a csv file of that dialect, or of a parquet file; those that no student needs are read too."""
    source = "parquet" if _is_parquet(path) else "csv"
    return read_table(str(path), source, Wanted({}, ("",), format.features), dialect)


def dialect_seen(content: bytes, usual: Dialect) -> Dialect:
    """How a csv file is written: in Unicode where its bytes say so, else as the run's own files were.

    >>> dialect_seen("größer".encode(), Dialect(encoding="cp1252")).encoding
    'utf-8'
    >>> dialect_seen("größer".encode("cp1252"), Dialect(encoding="cp1252")).encoding
    'cp1252'
    """
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return replace(usual, encoding="utf-16")
    if content.isascii() and not usual.encoding.lower().startswith("utf"):
        return usual  # which may be one of those that write everything in ASCII
    try:
        content.decode("utf-8")
    except UnicodeError:
        return usual
    return usual if b"\0" in content else replace(usual, encoding="utf-8")


def table_of(frame: Any) -> Table:
    """The columns of a data frame."""
    names = [str(name) for name in frame.columns]
    where = "the data frame"
    return Table(where, {str(name): _frame_column(frame[name], f"{where}: column {str(name)!r}") for name in names})


def examples_of(table: Table, format: Format) -> NDArray[np.float32]:
    """The features of every row, as the student takes them."""
    absent = [name for name in format.features if name not in table.columns]
    if absent:
        shown = ", ".join(map(repr, absent[:9]))
        hint = _why_absent(absent, list(table.columns), format)
        raise DataError(f"{table.where}: lacks the columns {shown}, which this student takes{hint}")
    try:
        return features_of(table, format)
    except DataError as error:
        problems = Problems()
        for one in error.found if isinstance(error, SeveralErrors) else [error]:
            problems.add(DataError(_without_config(one.text()), **one.arguments))
        problems.raise_all()
        raise


def _without_config(text: str) -> str:
    """What is wrong with a file, for people who have a student and not the config that it came from.

    >>> _without_config("a.csv: column 'x', line 2: not a date of the form %Y (data.dates); write the form that it has")
    "a.csv: column 'x', line 2: not a date of the form %Y; write it as in the files of the student's run"
    """
    if "data." not in text:
        return text
    wrong = re.sub(r" \(data\.\w++\)", "", text.partition("; ")[0])
    return f"{wrong}; write it as in the files of the student's run"


def _why_absent(absent: list[str], names: list[str], format: Format) -> str:
    """What may be the matter with a file that lacks columns."""
    if sign := other_delimiter(names):
        return f"; it seems to be separated by {sign!r}"
    folded = {name.casefold(): name for name in names}
    if alike := folded.get(absent[0].casefold()):
        return f"; it has {alike!r}: write {absent[0]!r}"
    return "; is there a header line?" if len(absent) == len(format.features) else ""


def texts_of(columns: Columns, name: str, where: str) -> list[str]:
    """A column as it stands, to be written beside the answers."""
    if name not in columns:
        raise DataError(f"{where}: no column {name!r} to keep")
    return columns[name].texts()


def _is_parquet(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(4) == b"PAR1"
    except OSError:
        return False  # which reading it tells


def _frame_column(values: Any, where: str) -> Column:
    """Numbers as numbers, dates as dates, and everything else as text."""
    kind = getattr(values.dtype, "kind", "O")
    array = np.asarray(values)
    if kind == "M" and array.dtype.kind == "M":
        years = (array.astype("datetime64[us]") - _YEAR_2000) / np.timedelta64(1, "s") / SECONDS_PER_YEAR
        return Column(where, "date", str(values.dtype), years, np.isnat(array))
    if array.dtype.kind in "iufb":
        return array_column(array, where)
    return Column(where, "text", str(values.dtype), [cell_text(value).strip() for value in array.tolist()])
