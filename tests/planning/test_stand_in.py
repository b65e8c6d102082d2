"""`pate plan --stand-in`: how many teachers, by labelled public data that stands in for the private records."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.command_line import in_process
from support.small_data import own_data

from pate.config import parse_config
from pate.data.private import Records
from pate.data.public import PublicData
from pate.errors import DataError
from pate.planning.plan import Workload, epsilon_of, solve_noise
from pate.voters.teachers._trials import find_number, scaled

CONFIG = parse_config(
    {
        "n_teachers": 10,
        "data": {"source": "digits"},
        "teachers": [{"name": "sklearn.neighbors.KNeighborsClassifier", "params": {"n_neighbors": 1}}],
        "mechanism": {"name": "gnmax", "sigma": 5},
        "budget": {"max_queries": 100, "delta": 1e-5},
        "student": {"name": "supervised"},
    }
)


def stand_in(n_records: int, n_classes: int = 4, noise: float = 0.3) -> tuple[PublicData, Records]:
    """Points around a few centres: one record of a class is enough to know it."""
    rng = np.random.default_rng(0)
    y = np.arange(n_records + 200) % n_classes
    X = (3 * np.eye(n_classes)[y] + noise * rng.normal(size=(len(y), n_classes))).astype(np.float32)
    first, rest = np.arange(n_records), np.arange(n_records, len(y))
    return PublicData(X[rest], tuple("abcd")[:n_classes], y_public=y[rest]), Records(X[first], y[first])


WORKLOAD = Workload(100, None, 1e-5, 4)


def test_the_noise_is_that_of_the_target_and_more_teachers_stand_more_of_it() -> None:
    found = find_number(CONFIG, *stand_in(2000), 2000, 2.0, WORKLOAD, numbers=(10, 50, 100))
    assert 1.9 < epsilon_of(found.mechanism, WORKLOAD) <= 2.0
    assert [one.n_teachers for one in found.tried] == [10, 50, 100]
    assert [one.records_each for one in found.tried] == [200, 40, 20]
    assert [one.trained for one in found.tried] == [10, 25, 25]
    shares = [one.released for one in found.tried]
    assert shares == sorted(shares)
    assert shares[0] < 0.6 < 0.9 < shares[-1]
    assert found.best.n_teachers == 100


def test_teachers_of_too_few_records_are_worse_than_the_noise() -> None:
    """Of 16 classes' worth of records a teacher of two sees two classes: its votes are mostly guesses."""
    found = find_number(CONFIG, *stand_in(2000), 2000, 8.0, WORKLOAD, numbers=(100, 1000))
    few, many = found.tried
    assert many.records_each == 2
    assert many.teacher < few.teacher
    assert found.best.n_teachers == 100


def test_a_smaller_stand_in_tells_what_it_can() -> None:
    found = find_number(CONFIG, *stand_in(500), 5000, 2.0, WORKLOAD, numbers=(10, 50, 250, 5000))
    assert found.too_large == (10,)  # five teachers of 500 would be needed
    assert [(one.n_teachers, one.trained) for one in found.tried] == [(50, 5), (250, 25)]
    with pytest.raises(DataError, match="500 public records are too few to stand in for 500,000"):
        find_number(CONFIG, *stand_in(500), 500_000, 2.0, WORKLOAD, numbers=(10, 250))


def test_votes_are_scaled_to_whole_ones_that_keep_their_order() -> None:
    rng = np.random.default_rng(0)
    votes = rng.multinomial(7, [0.4, 0.3, 0.2, 0.1], size=200)
    for number in (7, 10, 1000):
        large = scaled(votes, number)
        assert (large.sum(1) == number).all()
        assert (np.abs(large - votes * number / 7) < 1).all()
    np.testing.assert_array_equal(scaled(votes, 7), votes)


def test_on_the_command_line_with_files_of_ones_own(tmp_path: Path) -> None:
    own_data(tmp_path)
    options = ["--stand-in", "--records", "400", "--target-epsilon", "4", "--max-queries", "50", "--delta", "1e-6"]
    shown = json.loads(in_process("plan", tmp_path / "own.yaml", *options, "--json").stdout)
    assert (shown["max_queries"], shown["delta"]) == (50, 1e-6)
    assert shown["mechanism"]["sigma"] == solve_noise({"name": "gnmax"}, 4.0, Workload(50, None, 1e-6, 2)).sigma  # type: ignore[attr-defined]
    assert shown["n_teachers"] in [one["n_teachers"] for one in shown["tried"]]
    text = in_process("plan", tmp_path / "own.yaml", *options).stdout
    assert f"n_teachers: {shown['n_teachers']}" in text
    assert "released right" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--records", "400"], "--stand-in: needs --records and --target-epsilon"),
        (["--target-epsilon", "2"], "--stand-in: needs --records and --target-epsilon"),
        (["--records", "400", "--target-epsilon", "4", "--set", "teachers.0.name=csv.DictReader"], "would import csv"),
    ],
)
def test_mistakes_are_told(options: list[str], message: str, tmp_path: Path) -> None:
    own_data(tmp_path)
    ended = in_process("plan", tmp_path / "own.yaml", "--stand-in", *options)
    assert ended.returncode == 2
    assert message in ended.stderr
    assert not ended.stdout


def test_it_is_about_a_config() -> None:
    ended = in_process("plan", "--stand-in", "--records", "400", "--target-epsilon", "4")
    assert ended.returncode == 2
    assert "--stand-in: is for a config whose data are labelled and public; name it" in ended.stderr
