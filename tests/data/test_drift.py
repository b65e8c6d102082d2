"""Public and test file, column by column: what is unlike is told with what to do, and what is alike is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pate.data._settings import CsvData, NpzData
from pate.data._sources import load

SETTINGS: dict[str, Any] = {
    "source": "csv", "private": "private.csv", "public": "public.csv", "test": "test.csv", "label": "ill",
    "classes": ["no", "yes"], "categories": {"ward": ["a", "b", "c"]}, "dates": {"seen": "%Y-%m-%d"},
    "missing_values": {"treatment": "indicator"},
}  # fmt: skip


def rows(n: int, seed: int, year: int = 2022, unit: float = 1.0, wards: str = "ab", gaps: float = 0.1) -> list[str]:
    rng = np.random.default_rng(seed)
    seen = [f"{year}-{month:02}-{day:02}" for month, day in zip(rng.integers(1, 13, n), rng.integers(1, 29, n))]  # noqa: B905
    height = [f"{unit * h:.4f}" for h in rng.normal(170, 10, n)]
    weight = ["" if rng.random() < gaps else f"{w:.1f}" for w in rng.normal(70, 9, n)]
    return [",".join(row) for row in zip(seen, height, weight, rng.choice(list(wards), n), strict=True)]


def warnings(folder: Path, test: list[str], settings: type[Any] = CsvData, **changes: Any) -> tuple[str, ...]:
    for name, lines, ill in (("public", rows(300, 1), ""), ("private", rows(50, 2, 2024), ",no"), ("test", test, "")):
        header = "seen,height,weight,ward" + (",ill" if ill else "")
        (folder / f"{name}.csv").write_text("\n".join([header, *(line + ill for line in lines)]) + "\n")
    found, _ = load(settings.model_validate(SETTINGS | changes), None, folder)
    sharded, _ = load(settings.model_validate(SETTINGS | changes | {"private": ["private.csv"]}), None, folder)
    assert found.warnings == sharded.warnings
    return found.warnings


@pytest.mark.parametrize("seed", range(20))
def test_files_of_one_kind_are_not_told_of(seed: int, tmp_path: Path) -> None:
    """Whatever the sizes; a false alarm is less likely than 1 in 1,000 columns."""
    assert warnings(tmp_path, rows(20 + 20 * seed, 100 + seed)) == ()


@pytest.mark.parametrize(
    ("changed", "column", "words", "remedy"),
    [
        ({"year": 2023}, "seen", "100 % of the test file lies beyond the public file's range, 2022-01-01 to", "month"),
        ({"unit": 0.01}, "height", "100 % of the test file lies beyond", "unit"),
        ({"unit": 1.05}, "height", "is unlike the public one|lies beyond", "data.ignore"),
        ({"wards": "abx"}, "ward", "holds what the public file never does ('x')", "write the same values"),
        ({"wards": "a"}, "ward", "other shares of values", "data.ignore"),
        ({"gaps": 0.7}, "weight", "of the test file is missing, and", "write missing values alike"),
    ],
)
def test_the_column_that_is_unlike_is_told_once_with_what_to_do(
    changed: dict[str, Any], column: str, words: str, remedy: str, tmp_path: Path
) -> None:
    (line,) = warnings(tmp_path, rows(300, 5, **changed))
    assert line.startswith(f"column {column!r}")
    assert any(word in line for word in words.split("|"))
    assert remedy in line
    assert "data.ignore" in line
    assert line.isprintable()


def test_dates_that_mean_the_same_in_another_year_are_not_told_of(tmp_path: Path) -> None:
    assert warnings(tmp_path, rows(300, 5, 2023), date_features={"seen": ["month", "weekday"]}) == ()


def test_private_records_are_not_compared(tmp_path: Path) -> None:
    """Those of the fixture are of another year."""
    assert warnings(tmp_path, rows(300, 5)) == ()


def test_arrays_are_compared_by_their_place(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name, far in (("private", 0), ("public", 0), ("test", 9)):
        X = rng.normal(size=(100, 30)) + far * (np.arange(30) > 10)
        np.savez(tmp_path / f"{name}.npz", X=X, y=np.zeros(100, dtype=int))
    given = {"source": "npz", "classes": [0, 1], **{part: f"{part}.npz" for part in ("private", "public", "test")}}
    public, _ = load(NpzData.model_validate(given), None, tmp_path)
    assert public.warnings[0].startswith("feature 11: ")
    assert public.warnings[-1] == "7 more columns of the test file are unlike public ones"
