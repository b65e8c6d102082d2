"""People's own data: NumPy archives and CSV files.

npz: either one file (`file:`) with the keys X_private, y_private, X_public and, if there are any, id_private,
X_test, y_test; or a file each (`private:`, `public:`, `test:`) with the keys X, y and id. Never unpickled.

csv: a file each, or one file with a `split` column that says private, public or test in every row. Columns are
numbers, or have their values listed under `categories` (one 0/1 feature a value; others are all 0).
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import IO, TYPE_CHECKING
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from pate.data.dataset import Dataset, class_positions
from pate.errors import DataError

if TYPE_CHECKING:
    from pate.data.settings import CsvData, NpzData

_PARTS = ("private", "public", "test")


def existing(path: str, folder: Path) -> Path:
    """`path` as it stands or below the data folder; an error that names both where it is in neither."""
    for candidate in (folder / path, Path(path)):
        if candidate.is_file():
            return candidate
    raise DataError(f"{path}: no such file, nor below {folder}; give its folder with --data-dir")


def load_npz(settings: NpzData, folder: Path) -> Dataset:
    arrays: dict[str, NDArray] = {}
    if settings.file is not None:
        arrays = _read_npz(existing(settings.file, folder))
    else:
        for part in _PARTS:
            path = getattr(settings, part)
            if path is not None:
                found = _read_npz(existing(path, folder))
                arrays |= {f"{key}_{part}": found[key] for key in ("X", "y", "id") if key in found}
    for key in ("X_private", "y_private", "X_public"):
        if key not in arrays:
            raise DataError(f"npz data: no array {key}; the keys are listed in docs/data.md")
    for key in ("X_private", "X_public", "X_test"):
        if key in arrays and arrays[key].dtype.kind not in "fiub":
            raise DataError(f"npz data: {key} holds {arrays[key].dtype}, not numbers")
    return _dataset(arrays, settings.classes)


def load_csv(settings: CsvData, folder: Path) -> Dataset:
    rows: dict[str, list[dict[str, str]]] = {}
    if settings.split is not None:
        if not isinstance(settings.private, str):
            raise DataError("data.split needs data.private, the one file that holds all rows")
        for number, row in enumerate(_read_csv(existing(settings.private, folder)), start=2):
            part = row.get(settings.split)
            if part not in _PARTS:
                raise DataError(
                    f"{settings.private} line {number}: column {settings.split!r} says {part!r}, "
                    "not private, public or test"
                )
            rows.setdefault(part, []).append(row)
    else:
        for part in _PARTS:
            path = getattr(settings, part)
            if path is not None:
                rows[part] = _read_csv(existing(path, folder))
    for part in ("private", "public"):
        if not rows.get(part):
            raise DataError(f"data.{part}: no rows; a csv source needs private and public ones")
    header = list(rows["private"][0])
    for key in ("label", "id"):
        column = getattr(settings, key)
        if column is not None and column not in header:
            raise DataError(f"data.{key} = {column!r}: no such column; there are {', '.join(header)}")
    special = {settings.label, settings.id, settings.split, *settings.ignore}
    features = [column for column in header if column not in special]
    arrays = {}
    for part, part_rows in rows.items():
        arrays[f"X_{part}"] = _feature_matrix(part_rows, features, settings.categories, part)
        if settings.label in part_rows[0] and part != "public":
            arrays[f"y_{part}"] = np.array([row[settings.label].strip() for row in part_rows])
        if settings.id is not None and part == "private":
            arrays["id_private"] = np.array([row[settings.id].strip() for row in part_rows])
    names = [_feature_names(column, settings.categories) for column in features]
    return _dataset(arrays, settings.classes, tuple(name for group in names for name in group))


def _feature_names(column: str, categories: dict[str, tuple[str | int, ...]]) -> list[str]:
    return [f"{column}={value}" for value in categories[column]] if column in categories else [column]


def _dataset(
    arrays: dict[str, NDArray], classes: tuple[str | int, ...], feature_names: tuple[str, ...] | None = None
) -> Dataset:
    def features(key: str) -> NDArray | None:
        return arrays[key].astype(np.float32) if key in arrays else None

    X_private, X_public = features("X_private"), features("X_public")
    assert X_private is not None  # both were checked by the loaders
    assert X_public is not None
    y_test = arrays.get("y_test")
    ids = arrays.get("id_private")
    return Dataset(
        X_private=X_private,
        y_private=class_positions(arrays["y_private"], classes, "private labels"),
        X_public=X_public,
        classes=tuple(str(name) for name in classes),
        ids_private=None if ids is None else [str(i) for i in ids],
        X_test=features("X_test"),
        y_test=None if y_test is None else class_positions(y_test, classes, "test labels"),
        features=feature_names,
    )


def _read_npz(path: Path) -> dict[str, NDArray]:
    return npz_arrays(path, str(path))


def npz_arrays(file: Path | IO[bytes], name: str) -> dict[str, NDArray]:
    """All arrays of an archive. Never unpickled."""
    try:
        with np.load(file, allow_pickle=False) as archive:
            return {key: archive[key] for key in archive.files}
    except (ValueError, OSError, AttributeError, BadZipFile) as error:
        raise DataError(f"{name}: not a readable npz archive of plain arrays ({error})") from None


def _read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        return csv_rows(file, str(path))


def csv_rows(file: Iterable[str], name: str) -> list[dict[str, str]]:
    """All rows, each with as many fields as the header."""
    try:
        rows = list(csv.DictReader(file, skipinitialspace=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{name}: not a UTF-8 csv file ({error})") from None
    for number, row in enumerate(rows, start=2):
        if None in row or None in row.values():
            raise DataError(f"{name} line {number}: not as many fields as the header has")
    return rows


def _feature_matrix(
    rows: list[dict[str, str]], columns: list[str], categories: dict[str, tuple[str | int, ...]], part: str
) -> NDArray[np.float32]:
    blocks = []
    for column in columns:
        if column not in rows[0]:
            raise DataError(f"{part} data: column {column!r} of the private data is missing")
        values = [row[column].strip() for row in rows]
        if column in categories:
            known = np.array([str(c) for c in categories[column]])
            blocks.append((np.array(values)[:, None] == known[None, :]).astype(np.float32))
        else:
            blocks.append(numbers(values, column, part)[:, None])
    if not blocks:
        raise DataError(f"{part} data: no feature columns are left")
    return np.concatenate(blocks, axis=1)


def numbers(values: list[str], column: str, part: str) -> NDArray[np.float32]:
    """A column of numbers; an empty cell is NaN."""
    try:
        return np.array([float(value) if value else np.nan for value in values], dtype=np.float32)
    except ValueError:
        bad = next(value for value in values if not _is_number(value))
        raise DataError(
            f"{part} data: column {column!r} holds {bad!r}, not a number; list its values under "
            f"data.categories.{column} or add it to data.ignore"
        ) from None


def _is_number(text: str) -> bool:
    try:
        float(text or "nan")
    except ValueError:
        return False
    return True
