"""Figures for experiment trackers: publishable ones alone, as flat JSON and in MLflow."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.command_line import in_process

from pate.report._files import read_report, tracked_figures, tracked_object, write_mlflow


@pytest.fixture
def client(tmp_path: Path) -> Any:
    mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed: pip install 'pate[mlflow]'")
    (tmp_path / "store").mkdir()
    return lambda: mlflow.MlflowClient((tmp_path / "store").as_uri())


@pytest.mark.parametrize("as_uri", [False, True], ids=["folder", "uri"])
def test_mlflow_has_figures_settings_and_files(finished_run: Path, tmp_path: Path, client: Any, as_uri: bool) -> None:
    store = tmp_path / "store"
    key = write_mlflow(finished_run, store.as_uri() if as_uri else str(store))
    assert write_mlflow(finished_run, str(store)) == key, "the same run is there once"
    experiment = client().get_experiment_by_name("digits")
    (run,) = client().search_runs([experiment.experiment_id])
    assert run.info.run_id == key
    assert (run.info.run_name, run.info.status) == (finished_run.name, "FINISHED")
    assert run.info.start_time == run.info.end_time, "how long private work took is private"
    report = read_report(finished_run)
    assert run.data.metrics["epsilon"] == report.privacy.epsilon
    assert sorted(run.data.metrics.values()) == pytest.approx(sorted(tracked_figures(report).values()))
    assert run.data.params["n_teachers"] == "40"
    assert run.data.params["mechanism.name"] == "confident_gnmax"
    assert {"labels.npz", "report.json", "student"} <= {file.path for file in client().list_artifacts(key)}
    assert not [file for file in store.rglob("*") if file.name in ("private", "ledger.db", "config.yaml")]


def of_private_data(finished_run: Path, folder: Path) -> Path:
    """The run as if it were of private data."""
    run = Path(shutil.copytree(finished_run, folder))
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["data"] = {"source": "csv", "private": "hiv.csv", "label": "sick", "classes": ["a", "b"], "id": "nurse"}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    return run


def test_nothing_private_is_exported(
    finished_run: Path, tmp_path: Path, published: Callable[[Path], dict[str, str]]
) -> None:
    run = of_private_data(finished_run, tmp_path / "run")
    shutil.rmtree(run / "private")
    text = json.dumps(tracked_object(run))
    assert not [word for word in ("hiv", "nurse", "left out") if word in text]


def test_nothing_private_is_in_mlflow(finished_run: Path, tmp_path: Path, client: Any) -> None:
    write_mlflow(of_private_data(finished_run, tmp_path / "run"), str(tmp_path / "store"))
    (run,) = client().search_runs([client().get_experiment_by_name("digits").experiment_id])
    text = json.dumps([run.data.params, run.data.metrics, run.data.tags])
    assert not [word for word in ("hiv", "nurse", "left out") if word in text]
    assert not [path for path in (tmp_path / "store").rglob("*") if path.name in ("private", "ledger.db")]


def test_on_the_command_line(finished_run: Path, tmp_path: Path) -> None:
    before = (finished_run / "report.html").stat().st_mtime_ns
    shown = in_process("report", finished_run, "--json")
    assert shown.returncode == 0, shown.stderr
    content = json.loads(shown.stdout)
    assert content["summary"]["epsilon"] == content["report"]["privacy"]["epsilon"]
    assert content["config"]["mechanism.name"] == "confident_gnmax"
    assert all(not isinstance(value, dict) for value in content["summary"].values())
    assert (finished_run / "report.html").stat().st_mtime_ns == before


def test_without_mlflow_one_line_says_how_to_install_it(
    finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    shown = in_process("report", finished_run, "--mlflow", tmp_path / "store")
    assert shown.returncode == 2
    assert "pip install 'pate[mlflow]'" in shown.stderr
    assert len(shown.stderr.strip().splitlines()) == 1


def test_a_store_that_does_not_answer_is_refused_in_one_line(finished_run: Path, tmp_path: Path, client: Any) -> None:
    (tmp_path / "file").write_text("no folder")
    shown = in_process("report", finished_run, "--mlflow", tmp_path / "file")
    assert shown.returncode == 2
    assert len(shown.stderr.strip().splitlines()) == 1
