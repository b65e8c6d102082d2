"""What a private record holds stops nothing; what public examples or the config lack is one line, nothing charged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner
from voters.neighbours.test_neighbours_run import Data, config, data, run, stored

from pate.boundary import PartialCounts
from pate.cli import app
from pate.data.private import Records
from pate.errors import DataError
from pate.voters.neighbours._cells import CellVote, RecordFeatures
from pate.voters.neighbours._rounds import LocalVoteCounter

LOGISTIC = {"name": "supervised", "params": {"estimator": "sklearn.linear_model.LogisticRegression"}}
CSV = {"source": "csv", "private": "private.csv", "public": "public.csv", "label": "y", "classes": ["a", "b", "c"]}
NPZ = {"source": "npz", "private": "private.npz", "public": "public.npz", "classes": [0, 1, 2]}
TEACHERS = {
    "voters": "teachers",
    "neighbours": None,
    "n_teachers": 2,
    "teachers": [{"name": "sklearn.naive_bayes.GaussianNB"}],
    "mechanism": {"name": "gnmax", "sigma": 5},
    "budget": {"max_queries": 10},
}


class NanForLarge:
    """A transform that fails for some public examples, and that must never be shown a NaN."""

    def transform(self, X: np.ndarray) -> np.ndarray:
        assert np.isfinite(X).all()
        return np.where(X > 5, np.nan, X)


@pytest.fixture
def votes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many votes were counted in each round."""
    counted: list[int] = []
    count = LocalVoteCounter.count

    def spied(self: LocalVoteCounter, cell_vote: CellVote) -> list[PartialCounts]:
        found = count(self, cell_vote)
        counted.append(int(found[0].counts.sum()))
        return found

    monkeypatch.setattr(LocalVoteCounter, "count", spied)
    return counted


def with_missing() -> Data:
    """Three of 600 records have no place."""
    public, records = data()
    X = records.X.copy()
    X[3, 0], X[5, 1], X[7] = np.nan, np.inf, -np.inf
    return public, Records(X, records.y)


def write(folder: Path, source: str, given: Data) -> None:
    public, records = given
    X, y, names = records.X, records.y, "abc"
    if source == "npz":
        np.savez(folder / "private.npz", X=X, y=y)
        np.savez(folder / "public.npz", X=public.X_public)
        return
    cells = [["" if np.isnan(x) else str(x) for x in row] for row in X]
    cells[11][0] = "word"
    (folder / "private.csv").write_text(
        "p,q,y\n" + "".join(f"{p},{q},{names[label]}\n" for (p, q), label in zip(cells, y, strict=True))
    )
    (folder / "public.csv").write_text("p,q\n" + "".join(f"{p},{q}\n" for p, q in public.X_public))


@pytest.mark.parametrize(("source", "missing"), [("arrays", 3), ("npz", 3), ("csv", 4)])
def test_a_private_record_that_is_no_number_casts_no_vote(
    tmp_path: Path, votes: list[int], source: str, missing: int
) -> None:
    """Only where records vote themselves: teachers refuse it."""
    from pate import pipeline
    from pate.runs._console import Quiet

    given = with_missing()
    about: dict[str, Any] = {"csv": CSV, "npz": NPZ}.get(source, {"source": "arrays"})
    if source != "arrays":
        write(tmp_path, source, given)

    def held(place: str, **changes: Any) -> None:
        public, private = given if source == "arrays" else (None, None)
        chosen = config(data=about, **changes)
        out = tmp_path / place
        pipeline.run(chosen, out, data_dir=tmp_path, public=public, private=private, console=Quiet(), pages=False)

    held("run")
    assert votes == [600 - missing]
    assert stored(tmp_path / "run")[0] == 1
    with pytest.raises(DataError, match="row 3"):
        held("other", **TEACHERS)
    assert not (tmp_path / "other").exists()


def test_no_transform_sees_what_is_no_number() -> None:
    X = np.array([[1.0, 2.0], [np.nan, 1.0], [3.0, 4.0]])
    features = RecordFeatures([{"name": f"{__name__}.NanForLarge"}])
    np.testing.assert_array_equal(features(X), [[1, 2], [np.nan, np.nan], [3, 4]])
    np.testing.assert_array_equal(features(X[[0, 2]]), features(X)[[0, 2]])


def with_public(given: Data, X: np.ndarray) -> Data:
    public, records = given
    return replace(public, X_public=X, y_public=None), records


def with_one_class(given: Data) -> Data:
    public, records = given
    return replace(public, classes=("a",)), records


@pytest.mark.parametrize(
    ("make", "changes", "words"),
    [
        (lambda d: with_public(d, d[0].X_public[:1]), {"neighbours": {"cells": 1}}, "only 1 public example"),
        (lambda d: with_public(d, d[0].X_public[:5]), {}, "neighbours.cells = 6: there are only 5 public examples"),
        (lambda d: with_public(d, np.where(d[0].X_public > 6, np.nan, d[0].X_public)), {}, "public data: NaN"),
        (with_one_class, {}, "at least two classes"),
        (lambda d: d, {"neighbours": {"cells": 6, "features": [f"{__name__}.NanForLarge"]}}, "NaN or infinite"),
    ],
    ids=["one public example", "more cells", "NaN in public", "one class", "NaN in public features"],
)
def test_what_is_refused_is_one_line_and_nothing_is_charged(
    tmp_path: Path, make: Any, changes: dict[str, Any], words: str
) -> None:
    from pate.errors import PateError

    with pytest.raises(PateError) as error:
        run(tmp_path / "run", config(**changes), make(data()))
    assert words in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run" / "ledger.db").exists() or stored(tmp_path / "run") == (0, 0, 0)


def test_plan_refuses_what_run_refuses(tmp_path: Path) -> None:
    near = "name: near\ndata: {source: digits}\nvoters: neighbours\nneighbours: {cells: 401}\n"
    near += "mechanism: {name: histogram, scale: 2}\nstudent: {name: supervised}\n"
    (tmp_path / "near.yaml").write_text(near)
    shown = CliRunner().invoke(app, ["plan", str(tmp_path / "near.yaml")])
    assert shown.exit_code != 0
    assert "only 400 public examples" in str(shown.exception or shown.output)
