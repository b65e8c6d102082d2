"""Features that are kept: bit for bit what would be worked out again, for their owner only, and gone when forgotten."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from voters.neighbours.test_neighbours_run import config, data, run

from pate.runs.run import Run
from pate.voters.neighbours._cells import Cells, CellVote, FeatureCache, RecordFeatures, Space

STEPS = [{"name": "upright", "params": {}}, {"name": "hog", "params": {}}]


class Doubled:
    """A transform in double precision, of tables."""

    def transform(self, X: np.ndarray) -> np.ndarray:
        return 2 * np.asarray(X, dtype=np.float64)


class Never(RecordFeatures):
    """Features that must not be worked out again."""

    def computed(self, X: np.ndarray) -> np.ndarray:
        raise AssertionError("worked out again")


def images(n: int) -> np.ndarray:
    return np.random.default_rng(n).random((n, 16, 16)).astype(np.float32)


def test_a_record_has_the_same_cells_with_and_without(tmp_path: Path) -> None:
    public, private, y = images(40), images(60), np.arange(60) % 3
    plain = RecordFeatures(STEPS)
    seen = plain(public)
    cells = Cells.of(Space.of(seen, 8), seen, 7, seed=0)
    expected = CellVote(plain, cells, 2, 3).count(private, y)
    for features in (plain, Never(STEPS)):  # the second time, everything is read
        kept = FeatureCache(features, tmp_path / "features")
        again = kept(public)
        assert again.dtype == seen.dtype
        assert again.tobytes() == seen.tobytes()
        np.testing.assert_array_equal(CellVote(kept, cells, 2, 3).count(private, y), expected)
    files = list((tmp_path / "features").iterdir())
    assert len(files) == 2
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    assert {np.load(path).dtype for path in files} == {plain.computed(public).dtype}


def test_other_examples_other_steps_and_other_weights_are_other_features(tmp_path: Path) -> None:
    X, weights = images(3), tmp_path / "weights"
    weights.write_text("1")

    def names(steps: list[dict], X: np.ndarray) -> set[str]:
        class Flat(RecordFeatures):
            def computed(self, X: np.ndarray) -> np.ndarray:
                return X.reshape(len(X), -1)

        FeatureCache(Flat(steps), tmp_path / "features")(X)
        return {path.name for path in (tmp_path / "features").iterdir()}

    steps = [{"name": "a", "params": {"weights": str(weights)}}]
    assert len(names(steps, X)) == 1
    assert len(names(steps, X)) == 1
    assert len(names(steps, X[::-1])) == 2
    assert len(names(steps, X.reshape(3, 8, 32))) == 3
    assert len(names([{"name": "b", "params": {}}], X)) == 4
    weights.write_text("2")
    assert len(names(steps, X)) == 5
    for number, params in enumerate(({"cell": 4}, {"cell": 8}), start=6):
        assert len(names([{"name": "b", "params": params}], X)) == number


def test_what_cannot_be_read_or_written_is_worked_out(tmp_path: Path) -> None:
    X, plain = images(4), RecordFeatures(STEPS)
    kept = FeatureCache(plain, tmp_path / "features")
    kept(X)
    (path,) = (tmp_path / "features").iterdir()
    path.write_bytes(path.read_bytes()[:-7])
    np.testing.assert_array_equal(kept(X), plain(X))
    (tmp_path / "file").touch()
    np.testing.assert_array_equal(FeatureCache(plain, tmp_path / "file" / "features")(X), plain(X))


def test_rounds_and_a_resumed_run_share_features_and_a_finished_run_keeps_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worked_out: list[int] = []
    computed = RecordFeatures.computed

    def counted(self: RecordFeatures, X: np.ndarray) -> np.ndarray:
        worked_out.append(len(X))
        return computed(self, X)

    monkeypatch.setattr(RecordFeatures, "computed", counted)
    near = {"features": [f"{__name__}.Doubled"], "rounds": [{"cells": 4}, {"cells": 8}]}
    place, chosen = tmp_path / "run", config(neighbours=near)
    with monkeypatch.context() as broken:
        broken.setattr("pate.boundary._aggregator.Aggregator.release_round", _counts_and_stops)
        with pytest.raises(_Stop):
            run(place, chosen)
    assert (place / "private" / "features").stat().st_mode & 0o077 == 0
    run(place, chosen, resume=True)
    assert [n for n in worked_out if n in (80, 600)] == [80, 600]
    assert not (place / "private" / "features").exists()


def test_forgetting_erases_kept_features(tmp_path: Path) -> None:
    from pate.followup import forget

    place, chosen, (public, records) = tmp_path / "run", config(), data()
    run(place, chosen, (public, records))
    with Run.create(place, chosen, resume=True) as directory:
        FeatureCache(RecordFeatures([{"name": f"{__name__}.Doubled"}]), directory.features_folder)(records.X)
        forget(chosen, public, records, directory, ids=(), rows=[3])
        assert not directory.features_folder.exists()


class _Stop(Exception):
    pass


def _counts_and_stops(self: object, name: str, cell_vote: CellVote, by: object, electorate: object) -> None:
    electorate.count(cell_vote)  # type: ignore[attr-defined]
    raise _Stop
