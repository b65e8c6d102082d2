"""Transforms of one's own before DP-SGD: each record by itself, and one that they fail for counts for nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.clipped_sums import clipped_sum_of
from support.fuzzing import fuzz

from pate.baselines._run import run_baseline
from pate.baselines.dp_sgd import DPSGDClassifier
from pate.config import BaselineConfig
from pate.errors import ConfigError
from pate.features import Features, alone
from pate.features.basic import Hog
from pate.voters.neighbours._cells import RecordFeatures


class Centred:
    """Subtracts the mean of whatever it is given."""

    def transform(self, X: np.ndarray) -> np.ndarray:
        return X - X.mean(axis=0) + 0.1 * X


class Ranked:
    """Numbers what it is given, a row for each."""

    def transform(self, X: np.ndarray) -> np.ndarray:
        return X + np.arange(len(X)).reshape(-1, *[1] * (X.ndim - 1))


class Picky:
    """Fails for large examples, changes the shape or the kind of others."""

    def transform(self, X: np.ndarray) -> Any:
        if (X > 90).any():
            raise ValueError(f"cannot take {X.max()}")
        if (X > 80).any():
            return X.reshape(-1)
        if (X > 70).any():
            return np.full(X.shape, "word")
        if (X > 60).any():
            return np.full(X.shape, np.inf)
        return np.float64(X) if (X > 50).any() else X


class Drawing:
    """Adds noise of the global generators to each example."""

    def transform(self, X: np.ndarray) -> np.ndarray:
        noise = np.random.standard_normal(X.shape) + torch.randn(X.shape).numpy()  # noqa: NPY002
        return X + noise.astype(np.float32)


class Remembering:
    """Subtracts the mean of all that it has seen."""

    def __init__(self) -> None:
        self.middle: Any = 0.0

    def transform(self, X: np.ndarray) -> np.ndarray:
        self.middle = 0.5 * self.middle + 0.5 * X.mean(axis=0)
        return X - self.middle


class ByRows:
    """Says that it works by rows, and may be given many at once."""

    exact_by_row = True
    largest: ClassVar[list[int]] = []

    def transform(self, X: np.ndarray) -> np.ndarray:
        self.largest.append(len(X))
        return 2 * X


OWN = ["Centred", "Ranked", "Picky", "Drawing"]
VALUES = st.sampled_from([0.0, 1.0, -3.0, 55.0, 65.0, 75.0, 85.0, 95.0, float("nan"), 3e38])


def name_of(own: str) -> str:
    return f"{__name__}.{own}"


def records(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 2, 3)).astype(np.float32), rng.integers(0, 2, n)


@given(own=st.sampled_from(OWN), n=st.integers(0, 9), place=st.integers(0, 9), value=VALUES, other=VALUES)
@fuzz(8)
def test_a_record_moves_the_sum_by_one_norm_whatever_the_transform(
    own: str, n: int, place: int, value: float, other: float
) -> None:
    """Added or removed; changed, by two."""
    (X, y), place, sums = records(n, seed=n), min(place, n), []
    settings: dict[str, Any] = {"preprocessing": [name_of(own)]}
    for one in (value, other):
        more = np.insert(X, place, np.full((2, 3), one, dtype=np.float32), axis=0), np.insert(y, place, 1)
        sums.append(clipped_sum_of(*more, **settings))
    without = clipped_sum_of(X, y, **settings)
    assert np.linalg.norm(sums[0] - without) <= 1 + 1e-4
    assert np.linalg.norm(sums[0] - sums[1]) <= 2 + 1e-4


@pytest.mark.parametrize("own", OWN)
def test_a_far_record_moves_nobody_elses_gradient(own: str) -> None:
    X, y = records(12)
    far = np.insert(X, 3, np.full((2, 3), 49.0, dtype=np.float32), axis=0), np.insert(y, 3, 1)
    moved = clipped_sum_of(*far, preprocessing=[name_of(own)]) - clipped_sum_of(X, y, preprocessing=[name_of(own)])
    assert np.linalg.norm(moved) <= 1 + 1e-4


@pytest.mark.parametrize("own", OWN)
def test_a_transform_gives_a_record_the_same_in_any_company(own: str) -> None:
    X, _ = records(7)
    steps = RecordFeatures([{"name": name_of(own)}])
    together = steps(X)
    np.testing.assert_array_equal(together[3], steps(X[3:4])[0])
    np.testing.assert_array_equal(np.delete(together, 1, axis=0), steps(np.delete(X, 1, axis=0)))


@pytest.mark.parametrize("value", [65.0, 75.0, 85.0, 95.0])
def test_a_record_that_a_transform_fails_for_is_as_if_it_were_not_there(value: float) -> None:
    X, y = records(8)
    bad = np.insert(X, 3, np.full((2, 3), value), axis=0), np.insert(y, 3, 1)
    settings: dict[str, Any] = {"preprocessing": [name_of("Picky")]}
    np.testing.assert_allclose(clipped_sum_of(*bad, **settings), clipped_sum_of(X, y, **settings), atol=1e-6)
    usual: dict[str, Any] = {
        "n_records": 9,
        "classes": range(2),
        "lot_size": 9,
        "epochs": 1,
        "sigma": 1.0,
        "delta": 1e-3,
    }
    model = DPSGDClassifier(model="linear", accountant="rdp", **usual, **settings).fit(*bad)
    assert model.left_out_ == 1


def test_a_transform_that_remembers_is_refused_before_a_record_is_looked_at() -> None:
    with pytest.raises(ConfigError, match="depends on examples that it saw before"):
        clipped_sum_of(*records(5), preprocessing=[name_of("Remembering")])


def test_what_works_by_rows_is_given_many_at_once() -> None:
    ByRows.largest.clear()
    clipped_sum_of(*records(9), preprocessing=[name_of("ByRows")])
    assert max(ByRows.largest) == 9


def test_our_own_transforms_fail_for_one_record_alone() -> None:
    """In the private path, whatever is wrong with a record, the others have what they have without it."""

    class Failing(Hog):
        def transform(self, X: np.ndarray) -> np.ndarray:
            if (X > 9).any():
                raise ValueError("too large")
            return super().transform(X)

    Failing.__module__ = Hog.__module__
    X = np.random.default_rng(0).random((5, 16, 16)).astype(np.float32)
    like = Features([Hog()]).transform_each(X[:1])
    whole = Features([Failing()]).transform_records(X, like)
    X[2] = 10
    found = Features([Failing()]).transform_records(X, like)
    assert np.isnan(found[2]).all()
    np.testing.assert_array_equal(np.delete(found, 2, axis=0), np.delete(whole, 2, axis=0))


def test_the_global_generators_are_put_back() -> None:
    np.random.seed(0)  # noqa: NPY002
    torch.manual_seed(0)
    expected = np.random.standard_normal(), torch.rand(1)  # noqa: NPY002
    np.random.seed(0)  # noqa: NPY002
    torch.manual_seed(0)
    alone(Drawing().transform, records(4)[0])
    assert (np.random.standard_normal(), torch.rand(1)) == expected  # noqa: NPY002


def test_a_run_whose_transform_fails_for_a_record_says_nothing_of_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    said = []
    for value in (1.0, 95.0):
        X, y = np.ones((20, 2)), np.arange(20) % 2
        X[4] = value
        np.savez(tmp_path / "data.npz", X_private=X, y_private=y, X_public=X[:2])
        content = {
            "name": "picky",
            "data": {"source": "npz", "file": "data.npz", "classes": ["0", "1"]},
            "records": 20,
            "baseline": {
                "name": "dp_sgd",
                "params": {
                    "model": "linear",
                    "lot_size": 10,
                    "epochs": 1,
                    "accountant": "rdp",
                    "preprocessing": [name_of("Picky")],
                },
            },
            "budget": {"epsilon": 3, "delta": 1e-5},
        }
        run_baseline(BaselineConfig.model_validate(content), tmp_path / f"run{value:g}", data_dir=tmp_path)
        shown = capfd.readouterr()
        lines = (shown.out + shown.err).splitlines()
        said.append([line for line in lines if not line.startswith("note: the same private data was used by run1")])
    assert said[0] == said[1]
