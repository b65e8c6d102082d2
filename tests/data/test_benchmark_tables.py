"""Adult and KDD'99: fixed rules for every column, on made-up rows and on the real files where they are."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from pate.data import _benchmarks as benchmarks
from pate.data._benchmarks import load_table
from pate.data._settings import BenchmarkData
from pate.data._sources import load
from pate.errors import DataError

ADULT_ROWS = """\
39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, 0, 40, Cuba, <=50K
50, ?, 83311, HS-grad, 9, Divorced, Sales, Husband, Black, Female, 99999, 0, 120, United-States, >50K
"""


def write_adult(folder: Path, n_test: int = 10_002) -> Path:
    (folder / "adult").mkdir()
    (folder / "adult" / "adult.data").write_text(ADULT_ROWS + "\n")
    test_rows = ADULT_ROWS.replace("K\n", "K.\n") * (n_test // 2)
    (folder / "adult" / "adult.test").write_text("|1x3 Cross validator\n" + test_rows)
    return folder


def test_adult_columns_follow_their_rules(tmp_path: Path) -> None:
    public, private = load(BenchmarkData(source="adult"), write_adult(tmp_path), Path())
    assert private.X.shape == (2, 104)
    assert len(public.features or ()) == 104
    assert (len(public.X_public), len(public.X_test)) == (10_000, 2)
    np.testing.assert_array_equal(private.y, [0, 1])
    np.testing.assert_array_equal(public.y_test, [0, 1])
    row = dict(zip(public.features, private.X[1], strict=True))
    assert row["age"] == 0.5
    assert row["hours-per-week"] == 1.0  # beyond its bound
    assert 0.99 < row["capital-gain"] <= 1
    assert row["sex=Female"] == 1
    assert not any(value for name, value in row.items() if name.startswith("workclass"))  # '?' is nothing
    assert private.X.min() >= 0
    assert private.X.max() <= 1
    assert public.benchmark


def test_one_row_does_not_change_another(tmp_path: Path) -> None:
    folder = write_adult(tmp_path)
    _, before = load_table("adult", [folder])
    with (folder / "adult" / "adult.data").open("a") as file:
        file.write(ADULT_ROWS.splitlines()[0].replace("39,", "99,").replace("2174", "77777") + "\n")
    _, after = load_table("adult", [folder])
    np.testing.assert_array_equal(after.X[:2], before.X)


def test_public_and_test_rows_follow_the_private_ones() -> None:
    X, y = np.arange(10)[:, None], np.arange(10) % 2
    public, private = benchmarks._split(X, y, 5, 3, ("a", "b"), None)
    assert private.X.ravel().tolist() == [0, 1, 2, 3, 4]
    assert public.X_public.ravel().tolist() == [5, 6, 7]
    assert public.X_test.ravel().tolist() == [8, 9]
    assert [public.y_public.tolist(), public.y_test.tolist()] == [[1, 0, 1], [0, 1]]


def test_kdd_columns_are_all_used_and_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used = [
        *benchmarks._KDD_COUNTS,
        *benchmarks._KDD_FLAGS_AND_SHARES,
        *benchmarks._KDD_LOGARITHMS,
        *benchmarks._KDD_CATEGORIES,
    ]
    assert sorted(used) == list(range(41))
    (tmp_path / "kddcup99").mkdir()
    row = "58329,tcp,http,SF,693375640,5155468,1,3,3,30,5,1,884,1,2,993,28,2,8,0,0,1,511,511" + ",1.00" * 7
    row += ",255,255" + ",0.50" * 8
    with gzip.open(tmp_path / "kddcup99" / "kddcup.data_10_percent.gz", "wt") as file:
        file.writelines(f"{row},{label}\n" for label in ["normal.", "smurf.", "satan."] * 33_334)
    public, private = load_table("kddcup99", [tmp_path])
    assert private.X.shape == (2, 118)
    assert private.X.max() == 1
    assert private.X.min() == 0
    assert 0.3 < public.y_test.mean() < 0.36  # smurf is a denial of service, satan is not


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"put adult\.data and adult\.test from https"):
        load_table("adult", [tmp_path])


def test_the_real_files(real_data: Path) -> None:
    if not (real_data / "adult").is_dir():
        pytest.skip("no Adult data below the data folder")
    public, private = load_table("adult", [real_data])
    assert [len(private.X), len(public.X_public), len(public.X_test)] == [32_561, 10_000, 6_281]
    assert abs(private.y.mean() - 0.2408) < 1e-4
