"""Beyond the public range is its end: for every source and every kind of voters, record by record."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from voters.neighbours.test_bad_input import TEACHERS
from voters.neighbours.test_neighbours_run import config, data, run

from pate import load as load_predictor
from pate.baselines._run import run_baseline
from pate.config import BaselineConfig
from pate.data._settings import CsvData, NpzData, ParquetData
from pate.data._shards import ShardReader
from pate.data._sources import load
from pate.data.private import Records, Shards, records_of
from pate.data.public import PublicData, PublicRange
from pate.mechanisms.base import Split
from pate.runs._console import Quiet

FLOATS = st.floats(width=32)
SETTINGS: dict[str, Any] = {"label": "ill", "classes": ["no", "yes"], "categories": {"sex": ["f", "m"]}}
KINDS: dict[str, Any] = {"csv": CsvData, "parquet": ParquetData, "npz": NpzData}


@given(arrays(np.float32, (5, 3), elements=FLOATS), arrays(np.float32, (4, 3), elements=FLOATS))
def test_each_record_by_itself_ends_within_the_public_range_and_no_number_becomes_one(
    public: np.ndarray, private: np.ndarray
) -> None:
    found = PublicRange.of(public)
    clipped = found.clip(private)
    for row, whole in zip(private, clipped, strict=True):
        np.testing.assert_array_equal(found.clip(row[None])[0], whole)  # whoever else is there
    np.testing.assert_array_equal(np.isfinite(clipped), np.isfinite(private))
    np.testing.assert_array_equal(found.clip(clipped), clipped)
    np.testing.assert_array_equal(found.clip(public), public)  # nothing public moves
    assert PublicRange.of_card(found.on_card(), (3,)) == found
    for column in range(3):
        there = public[np.isfinite(public[:, column]), column]
        own = clipped[np.isfinite(clipped[:, column]), column]
        if len(there) and len(own):
            assert there.min() <= own.min() <= own.max() <= there.max()


def test_images_have_one_range_of_all_pixels() -> None:
    images = np.linspace(0, 1, 32, dtype=np.float32).reshape(2, 4, 4)
    assert PublicRange.of(images) == PublicRange((0.0,), (1.0,))
    assert PublicRange.of(images).clip(np.full((1, 4, 4), 255, dtype=np.float32)).max() == 1


def write(folder: Path, source: str, name: str, ages: list[float], gap: bool = False) -> None:
    sexes, labels = ["f", "m"] * len(ages), ["no", "yes"] * len(ages)
    if source == "npz":
        X = np.array([[age, i % 2] for i, age in enumerate(ages)], dtype=np.float32)
        np.savez(folder / f"{name}.npz", X=X, y=np.array(labels[: len(ages)]))
        return
    import pandas

    shown = [*ages, None] if gap else ages
    frame = pandas.DataFrame({"age": shown, "sex": sexes[: len(shown)], "ill": labels[: len(shown)]})
    saved = folder / f"{name}.{source}"
    frame.to_csv(saved, index=False) if source == "csv" else frame.to_parquet(saved)


@pytest.mark.parametrize("missing", ["refuse", "indicator"])
@pytest.mark.parametrize("source", KINDS)
def test_every_source_clips_private_and_test_records_to_the_public_file(
    source: str, missing: str, tmp_path: Path
) -> None:
    write(tmp_path, source, "private", [-1e30, 30, 99, 1e30])
    write(tmp_path, source, "public", [20, 40, 60], gap=missing == "indicator")
    write(tmp_path, source, "test", [10, 50, 1e20])
    given = SETTINGS | {"source": source} | {part: f"{part}.{source}" for part in ("private", "public", "test")}
    given = (
        given | {"missing_values": {"treatment": missing}}
        if source != "npz"
        else {k: given[k] for k in given if k in NpzData.model_fields}
    )
    settings = KINDS[source].model_validate(given)
    loaded, private = load(settings, None, tmp_path, keep_missing=True)
    records = records_of(private)
    assert records.X[:, 0].tolist() == [20, 30, 60, 60]
    assert loaded.X_test is not None
    assert loaded.X_test[:, 0].tolist() == [20, 50, 60]
    assert loaded.X_public[:3, 0].tolist() == [20, 40, 60]
    if source != "npz":
        np.testing.assert_array_equal(records.X[:, 1], [1, 0, 1, 0])  # categories stay
        _, shards = load(KINDS[source].model_validate(given | {"private": [given["private"]]}), None, tmp_path, True)
        assert isinstance(shards, Shards)
        reader = ShardReader(shards, b"k" * 32, Split(1))
        reader.load()
        assert sorted(reader.part(0).X[:, 0].tolist()) == [20, 30, 60, 60]


class Beholds:
    """A transform that notes the largest number it was shown."""

    largest = 0.0

    def transform(self, X: np.ndarray) -> np.ndarray:
        Beholds.largest = max(Beholds.largest, float(X.max()))
        return X


SEEN = [{"name": f"{__name__}.Beholds"}]
FAR: dict[str, Any] = {
    "neighbours": {"neighbours": {"cells": 6, "features": SEEN}},
    "teachers": TEACHERS | {"teachers": [{"name": "sklearn.naive_bayes.GaussianNB", "features": SEEN}]},
}


def far() -> tuple[PublicData, Records]:
    """Half of the private and test records have numbers a million times too large."""
    public, private = data()
    assert public.X_test is not None
    X, X_test = private.X.copy(), public.X_test.copy()
    X[::2] *= 1e6
    X_test[::2] *= 1e6
    return replace(public, X_test=X_test, benchmark=False), Records(X, private.y)


@pytest.mark.parametrize("voters", FAR)
def test_no_voter_and_no_student_is_shown_anything_beyond_what_is_public(voters: str, tmp_path: Path) -> None:
    Beholds.largest = 0.0
    public, private = far()
    run(tmp_path / "run", config(**FAR[voters]), given=(public, private))
    assert 0 < Beholds.largest <= public.X_public.max()
    predictor = load_predictor(tmp_path / "run", trust=[SEEN[0]["name"]])
    beyond = np.array([[1e9, -1e9]], dtype=np.float32)
    end = PublicRange.of(public.X_public).clip(beyond)
    assert abs(end).max() < 100
    np.testing.assert_array_equal(predictor.predict_proba(beyond), predictor.predict_proba(end))


def test_no_probe_is_shown_anything_beyond_what_is_public(tmp_path: Path) -> None:
    """A baseline: DP-SGD on features."""
    Beholds.largest = 0.0
    public, private = far()
    params = {"model": "linear", "lot_size": 50, "epochs": 1, "preprocessing": SEEN}
    content = {
        "name": "probe",
        "data": {"source": "arrays"},
        "baseline": {"name": "dp_sgd", "params": params},
        "budget": {"epsilon": 4, "delta": 1e-5},
        "records": 600,
    }
    run_baseline(
        BaselineConfig.model_validate(content), tmp_path / "run", public=public, private=private, console=Quiet()
    )
    assert 0 < Beholds.largest <= public.X_public.max()
    predictor = load_predictor(tmp_path / "run")  # signed by the run, so its own classes are trusted
    beyond = np.array([[1e9, -1e9]], dtype=np.float32)
    end = PublicRange.of(public.X_public).clip(beyond)
    np.testing.assert_array_equal(predictor.predict_proba(beyond), predictor.predict_proba(end))
