"""Test examples by public columns: who is in which group, and what is refused before anything is done."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pate.config import Config, default_config_path, load_config, parse_config
from pate.data._sources import load
from pate.data.public import PublicData, category_columns, groupings
from pate.errors import ConfigError

FEATURES = ("age", "sex=f", "sex=m", "race=a", "race=Other", "rate=2")
X = np.array([[30, 1, 0, 0, 1, 0.5], [40, 0, 1, 1, 0, 2.0], [50, 0, 0, 0, 0, 0.0]], dtype=np.float32)
Y = np.array([0, 1, 0])


def data(X: np.ndarray = X, features: tuple[str, ...] | None = FEATURES, tested: bool = True) -> PublicData:
    test = {"X_test": X, "y_test": Y[: len(X)]} if tested else {}
    return PublicData(X, ("no", "yes"), features=features, **test)  # type: ignore[arg-type]


def members(data: PublicData, column: str) -> list[str]:
    (found,) = groupings(data, [column])
    assert found.column == column
    return [found.values[place] for place in found.members]


def test_an_example_is_in_the_group_of_its_value_and_in_other_if_that_is_not_listed() -> None:
    assert members(data(), "sex") == ["f", "m", "other"]
    assert members(data(), "race") == ["Other", "a", "other (not listed)"]
    assert groupings(data(X[:2]), ["sex"])[0].values == ("f", "m")  # nobody is in another
    assert groupings(data(X[:1]), ["sex"])[0].values == ("f", "m")  # and who is in none is told


def test_a_sign_in_a_name_makes_no_category() -> None:
    assert list(category_columns(data())) == ["sex", "race"]


@pytest.mark.parametrize(
    ("given", "column", "words"),
    [
        (data(), "age", "report.groups: 'age' is not a column of categories; there are sex, race"),
        (data(), "rate", "there are sex, race"),
        (data(), "sex=f", "there are sex, race"),
        (data(features=None), "sex", "this data has none, so leave report.groups out"),
        (data(tested=False), "sex", "there are no test examples with labels"),
    ],
)
def test_a_column_that_has_no_groups_is_refused_in_one_line(given: PublicData, column: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        groupings(given, [column])
    assert "\n" not in str(caught.value)


def test_without_groups_nothing_is_needed() -> None:
    assert groupings(data(features=None, tested=False), []) == ()


def test_of_files_the_configured_columns_count_and_not_how_features_are_called(tmp_path: Path) -> None:
    """A column of numbers with a sign in its name, a category with one, whole numbers, and gaps that are told apart."""
    rows = ["1,x,,1,no", "0,y=z,3,2,yes", "1,w,4,7,no"]
    for name in ("private", "public", "test"):
        (tmp_path / f"{name}.csv").write_text("\n".join(["k=1,a,n,ward,label", *rows]) + "\n")
    section = {
        "source": "csv",
        **{name: f"{name}.csv" for name in ("private", "public", "test")},
        "label": "label",
        "classes": ["no", "yes"],
        "categories": {"a": ["x", "y=z"], "ward": [2, 1]},
        "missing_values": {"treatment": "indicator"},
    }
    config: Config = parse_config(
        {
            "data": section,
            "n_teachers": 2,
            "report": {"groups": ["ward"]},
            "teachers": [{"name": "sklearn.svm.SVC"}],
            "mechanism": {"name": "gnmax", "sigma": 5},
            "student": {"name": "supervised"},
        }
    )
    found, _ = load(config.data, tmp_path, tmp_path)
    assert list(category_columns(found)) == ["a", "ward"]
    assert members(found, "a") == ["x", "y=z", "other"]
    assert members(found, "ward") == ["1", "2", "other"]


def test_groups_of_adult_are_those_of_its_file(real_data: Path) -> None:
    if not (real_data / "adult").is_dir():
        pytest.skip("no Adult data below the data folder")
    adult, _ = load(load_config(default_config_path("adult")).data, real_data, Path())
    lines = [line.split(", ") for line in (real_data / "adult" / "adult.test").read_text().splitlines()]
    rows = [line for line in lines if len(line) == 15][10_000:]
    for column, place in (("race", 8), ("sex", 9)):
        assert members(adult, column) == [row[place] for row in rows]
