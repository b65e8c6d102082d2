"""Examples as people have them (csv, parquet, data frames) → what a student takes, as its card says.

A card tells how columns become features: their names, categories, dates, and what stands for gaps. All of it comes from
the configuration and the public file. A card may come from anybody: it is data, checked before it is used.
"""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from pate.data.columns import SECONDS_PER_YEAR, Column
from pate.data.csv_records import is_delimiter
from pate.data.dates import problem_of
from pate.data.formats import Columns, Dialect, Wanted, array_column, other_delimiter
from pate.data.frames import cell_text
from pate.data.problems import Problems, SeveralErrors
from pate.data.records import Format, Table, features_of, read_table
from pate.data.settings import MissingValues
from pate.errors import DataError

_YEAR_2000 = np.datetime64("2000-01-01", "us")
_MAX_FEATURES = 1_000_000


def describe_columns(format: Format) -> dict[str, Any] | None:
    """How files become features, for a student's card; None where they hold arrays of numbers.

    Neither the column of ids nor columns that are ignored are named.
    """
    if format.source == "npz":
        return None
    return {
        "label": format.label,
        "features": list(format.features),
        "categories": {name: [str(value) for value in values] for name, values in format.categories},
        "dates": dict(format.dates),
        "date_features": {name: list(features) for name, features in format.date_features},
        "missing_values": {"markers": list(format.markers), "treatment": format.treatment},
        "medians": dict(format.medians),
        "indicators": list(format.indicators),
        "csv": asdict(format.dialect),
    }


def format_from_card(card: dict[str, Any]) -> Format:
    """What `describe_columns` wrote; ValueError if it is anything else, or has no columns."""
    columns, shape = card.get("columns"), tuple(card.get("shape") or ())
    if not isinstance(columns, dict):
        raise ValueError("does not say how columns become features: give its examples as an array, .npz or .npy")
    features, categories = _names(columns.get("features")), _mapping(columns.get("categories"), list)
    dates, medians = _mapping(columns.get("dates"), str), _mapping(columns.get("medians"), float, int)
    date_features = {name: _names(some) for name, some in _mapping(columns.get("date_features"), list).items()}
    indicators, written = _names(columns.get("indicators")), _mapping(columns.get("csv"), str)
    missing = _missing_values(columns.get("missing_values"))
    if not written.keys() <= {"delimiter", "decimal", "encoding"}:
        raise ValueError("says nothing that is known about csv files")
    if not {*categories, *dates, *indicators} <= set(features) or problem_of(date_features, dates):
        raise ValueError("speaks of columns that are not among its features")
    try:
        "".encode(written.get("encoding", "utf-8"))
    except (LookupError, UnicodeError):
        raise ValueError("names an encoding that is not known") from None
    if not is_delimiter(written.get("delimiter", ",")):
        raise ValueError("names a delimiter that cannot stand between cells")
    found = Format(
        source="csv",
        classes=tuple(card.get("classes") or ()),
        shape=shape,
        label=str(columns.get("label")),
        features=features,
        categories=tuple((name, tuple(_names(values))) for name, values in categories.items()),
        dates=tuple(dates.items()),
        date_features=tuple(date_features.items()),
        dialect=Dialect(**written),
        treatment=missing.treatment,
        markers=tuple(str(marker) for marker in missing.markers),
        medians=tuple((name, float(value)) for name, value in medians.items()),
        indicators=indicators,
    )
    if not set(medians) <= {feature for name in found.measured for feature in found.names_of(name)}:
        raise ValueError("speaks of columns that are not among its features")
    if shape != (len(found.feature_names or ()),):
        raise ValueError(f"has columns for {len(found.feature_names or ())} features, and a student of shape {shape}")
    return found


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


def _missing_values(value: Any) -> MissingValues:
    try:
        return MissingValues.model_validate(value)
    except ValidationError:
        raise ValueError("says nothing that is known about missing values") from None


def _names(values: Any) -> tuple[str, ...]:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ValueError("has columns that are not listed by name")
    if len(values) > _MAX_FEATURES or len(set(values)) < len(values):
        raise ValueError("names a column twice")
    return tuple(values)


def _mapping(values: Any, *kinds: type) -> dict[str, Any]:
    plain = isinstance(values, dict) and all(isinstance(value, kinds) for value in values.values())
    if not plain or any(isinstance(value, bool) for value in values.values()):
        raise ValueError("has columns of which it says nothing that is known")
    return dict(values)
