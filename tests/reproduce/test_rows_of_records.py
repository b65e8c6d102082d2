"""Rows in which records vote themselves: without teachers or Ray, their features worked out once for all seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from pate import pipeline
from pate.reproduce import Study, study
from pate.reproduce import _table as table
from pate.reproduce._run import Reproduction, reproduce
from pate.runs._console import Quiet
from pate.voters.neighbours._cells import RecordFeatures

CONFIG = {
    "data": {"source": "digits"},
    "voters": "neighbours",
    "neighbours": {"cells": 30, "features": [{"name": "hog", "params": {"cell": 4}}]},
    "mechanism": {"name": "histogram", "scale": 2},
    "student": {"name": "supervised", "params": {"estimator": "sklearn.linear_model.LogisticRegression"}},
    "nonprivate": {"name": "sklearn.naive_bayes.GaussianNB"},
}
ROWS = {
    "small": {
        "rows": [
            {
                "name": "louder",
                "config": "near",
                "mechanism": {"scale": 40},
                "paper": {"epsilon": 0.1},
                "differs": "all",
                "quick": True,
            }
        ]
    }
}
PAPER = {"data": "small", "epsilon": 0.1, "kind": "as published", "delta": None, "accuracy": 0.99, "nonprivate": None}


@pytest.fixture(scope="module")
def near(tmp_path_factory: pytest.TempPathFactory) -> Study:
    folder = tmp_path_factory.mktemp("rows")
    for name, content in {"rows": ROWS, "near": CONFIG, "papers": {"rows": [PAPER]}}.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(content))
    return study("small", votes=False, quick=True, files=[folder / "rows.yaml"], papers=folder / "papers.yaml")


@pytest.fixture(scope="module")
def worked_out() -> list[int]:
    """Of how many examples features were worked out, call by call."""
    return []


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reproduction") / "run"


@pytest.fixture(scope="module")
def result(near: Study, out: Path, worked_out: list[int]) -> Reproduction:
    computed, run = RecordFeatures.computed, pipeline.run

    def counted(self: RecordFeatures, X: Any) -> Any:
        worked_out.append(len(X))
        return computed(self, X)

    with pytest.MonkeyPatch.context() as spied:
        spied.setattr(RecordFeatures, "computed", counted)
        spied.setattr("pate.cluster._session.ray_session", None)
        spied.setattr(pipeline, "run", lambda *a, **b: run(*a, **b, pages=False))
        return reproduce(near, out, seeds=2, data_dir=None, address=None, console=Quiet())


def test_a_row_is_a_run_of_its_own_config_with_what_the_row_changes(result: Reproduction, near: Study) -> None:
    assert near.figure_teachers == ()
    (row,) = result.public["rows"]
    assert row["epsilon"] == pytest.approx(0.05, rel=1e-2)
    assert row["epsilon_added_or_removed"] == pytest.approx(0.025, rel=1e-2)
    assert row["asked"]["mean"] == 30
    assert len(row["student_accuracy"]["each"]) == 2
    assert len(set(row["runs"])) == 2
    assert result.public["nonprivate_accuracy"] > 0.5


def test_figures_of_votes_do_not_exist_and_the_tables_cope(result: Reproduction, out: Path) -> None:
    (inside,) = result.private["rows"]
    assert inside["epsilon_data_dependent"] is None
    assert inside["vote_accuracy"] is None
    assert result.private["ensembles"] == []
    assert not (out / "private" / "figures_2_and_3.png").exists()
    lines = table.public_lines(result.public)
    assert "added/removed" in lines[2]
    assert "0.0500" in lines[3]
    assert "0.0250" in lines[3]
    assert any("added, removed or changed" in line for line in lines)
    assert not any("depends on the votes" in line for line in lines)
    assert any("louder" in line for line in table.private_lines(result.public, result.private))


def test_features_are_worked_out_once_for_all_seeds(result: Reproduction, out: Path, worked_out: list[int]) -> None:
    tried = 5
    assert sorted(n for n in worked_out if n != tried) == [400, 1197]
    kept = list((out / "private" / "features").iterdir())
    assert len(kept) == 2
    assert {path.stat().st_mode & 0o777 for path in kept} == {0o600}
    assert (out / "private" / "features").stat().st_mode & 0o077 == 0
    assert not list(out.glob("rows/*/private/features"))


def test_a_repeated_call_runs_nothing_again(
    result: Reproduction, near: Study, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "run", None)
    assert reproduce(near, out, seeds=2, data_dir=None, address=None, console=Quiet()) == result
