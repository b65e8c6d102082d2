"""A kind of voters from a file of the user's own takes part in everything, since nobody asks which kind there is."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from support.command_line import in_process
from support.own_voters import Means

from pate import GNMax, PATEClassifier, load_config
from pate.voters import voters_of

CONFIG = {
    "name": "own-voters",
    "voters": "support.own_voters.Means",
    "means": {"power": 2},
    "n_teachers": 40,
    "data": {"source": "digits"},
    "mechanism": {"name": "gnmax", "sigma": 5.0},
    "budget": {"max_queries": 60},
    "student": {"name": "supervised", "params": {"estimator": "sklearn.naive_bayes.GaussianNB"}},
    "backend": "local",
}


@pytest.fixture(scope="module")
def config_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("own") / "own.yaml"
    path.write_text(yaml.safe_dump(CONFIG))
    return path


def test_its_section_is_part_of_the_config(config_file: Path) -> None:
    config = load_config(config_file)
    assert isinstance(voters_of(config), Means)
    assert config.to_plain()["means"] == {"power": 2}
    shown = in_process("run", str(config_file), "--set", "means.pover=1", "--out", "nowhere")
    assert shown.returncode == 2
    assert "means.pover: unknown key; did you mean 'power'?" in shown.stderr


def test_it_is_planned_and_run_and_reported(config_file: Path, tmp_path: Path) -> None:
    planned = in_process("plan", str(config_file), "--json", "--trust", "support.own_voters.Means")
    assert planned.returncode == 0, planned.stderr
    ran = in_process("run", str(config_file), "--out", str(tmp_path / "run"), "--json")
    assert ran.returncode == 0, ran.stderr
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["voters"]["kind"] == "class means"
    assert report["privacy"]["epsilon"] == pytest.approx(voters_of(load_config(config_file)).publishable_epsilon(10))
    assert report["student"]["accuracy"] > 0.5
    assert "40 parts voted by their class means." in (tmp_path / "run" / "report.html").read_text()
    assert "A record is in one part and moves one vote." in (tmp_path / "run" / "privacy.txt").read_text()


def test_a_classifier_takes_it_by_its_path() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 3))
    y = np.where(X[:, 0] > 0, "up", "down")
    model = PATEClassifier(
        voters="support.own_voters.Means",
        n_teachers=20,
        mechanism=GNMax(3.0),
        max_queries=40,
        classes=["down", "up"],
    )
    model.fit(X, y, X_public=rng.normal(size=(60, 3)))
    assert model.report_.voters.method == "PATE, 20 class means"
    assert model.score(X, y) > 0.8
