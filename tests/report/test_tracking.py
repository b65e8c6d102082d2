"""Figures for experiment trackers: publishable ones alone, in the layout that MLflow's file store has."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from support.command_line import in_process

from pate.report.reading import read_report
from pate.report.tracking import as_object, figures, write_mlflow


def test_figures_are_those_of_the_report(finished_run: Path) -> None:
    report = read_report(finished_run)
    found = figures(report)
    assert found["epsilon"] == report.privacy.epsilon
    assert found["accuracy"] == report.student.accuracy
    assert sum(found[f"labels/{name}"] for name in report.classes) == report.queries.answered  # type: ignore[union-attr]
    assert 0 <= found["recall/3"] <= 1


def test_an_mlflow_store_has_its_layout(finished_run: Path, tmp_path: Path) -> None:
    folder = write_mlflow(finished_run, tmp_path / "store")
    assert write_mlflow(finished_run, tmp_path / "store") == folder
    (experiment,) = (tmp_path / "store").iterdir()
    assert experiment.name.isdigit()
    about, run = (yaml.safe_load((place / "meta.yaml").read_text()) for place in (experiment, folder))
    assert (about["experiment_id"], about["name"]) == (experiment.name, "digits")
    assert run["experiment_id"] == experiment.name
    assert re.fullmatch("[0-9a-f]{32}", run["run_id"])
    assert run["run_id"] == run["run_uuid"] == folder.name
    assert run["artifact_uri"] == (folder / "artifacts").as_uri()
    time, value, step = (folder / "metrics" / "epsilon").read_text().split()
    assert (int(time), int(step)) == (run["end_time"], 0)
    assert run["start_time"] == run["end_time"], "how long private work took is private"
    assert float(value) == read_report(finished_run).privacy.epsilon
    assert (folder / "params" / "mechanism.name").read_text() == "confident_gnmax"
    assert (folder / "artifacts" / "student" / "student.json").exists()
    assert not [path for path in folder.rglob("*") if path.name in ("private", "ledger.db", "config.yaml")]


def test_nothing_private_is_exported(
    finished_run: Path, tmp_path: Path, published: Callable[[Path], dict[str, str]]
) -> None:
    run = Path(shutil.copytree(finished_run, tmp_path / "run"))
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["data"] = {"source": "csv", "private": "hiv.csv", "label": "sick", "classes": ["a", "b"], "id": "nurse"}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    shutil.rmtree(run / "private")
    folder = write_mlflow(run, tmp_path / "store")
    text = json.dumps(as_object(run)) + "".join(path.read_text() for path in folder.glob("[mpt]*/*") if path.is_file())
    assert "hiv" not in text
    assert "nurse" not in text
    assert "left out" not in text


def test_on_the_command_line(finished_run: Path, tmp_path: Path) -> None:
    before = (finished_run / "report.html").stat().st_mtime_ns
    shown = in_process("report", finished_run, "--json", "--mlflow", tmp_path / "store")
    assert shown.returncode == 0, shown.stderr
    content = json.loads(shown.stdout)
    assert content["summary"]["epsilon"] == content["report"]["privacy"]["epsilon"]
    assert content["config"]["mechanism.name"] == "confident_gnmax"
    assert all(not isinstance(value, dict) for value in content["summary"].values())
    assert len(list((tmp_path / "store").iterdir())) == 1
    assert (finished_run / "report.html").stat().st_mtime_ns == before


def test_mlflow_reads_it(finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    tracking = pytest.importorskip("mlflow.tracking")
    folder = write_mlflow(finished_run, tmp_path / "store")
    client = tracking.MlflowClient((tmp_path / "store").as_uri())
    run = client.get_run(folder.name)
    assert run.data.metrics["epsilon"] == read_report(finished_run).privacy.epsilon
    assert run.data.params["n_teachers"] == "40"
    assert "student" in {file.path for file in client.list_artifacts(folder.name)}
    assert os.environ["MLFLOW_ALLOW_FILE_STORE"] == "true"
