"""What every kind of voters promises, also one of a user's own: it takes part in everything, nobody asks its kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from support.command_line import in_process
from support.own_voters import Means

from pate import GNMax, PATEClassifier, load_config
from pate.config import parse_config
from pate.voters import kind_names, voters_of

CONFIG: dict[str, Any] = {
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


TEACHERS = {"voters": "teachers", "teachers": [{"name": "sklearn.naive_bayes.GaussianNB"}], "means": None}
STORED = {"voters": "stored", "stored": {"file": "votes.npy"}, "means": None}
NEAR = {"voters": "neighbours", "means": None, "n_teachers": None, "budget": None}
DECLINES = {"name": "confident_gnmax", "threshold": 30, "sigma1": 20, "sigma2": 5}
ROUNDS = {"votes_per_record": 2, "rounds": [{"cells": 4, "scale": 40}, {"cells": 8, "scale": 20}]}
KINDS: dict[str, dict[str, Any]] = {
    "own": {},
    "stored": STORED,
    "teachers": TEACHERS,
    "teachers who may decline": TEACHERS | {"mechanism": DECLINES, "budget": {"max_queries": 60, "max_answers": 9}},
    "neighbours": NEAR | {"neighbours": {"cells": 7}, "mechanism": {"name": "gnmax", "sigma": 9}},
    "neighbours in rounds": NEAR | {"neighbours": ROUNDS, "mechanism": {"name": "histogram", "scale": 1}},
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_shared_ledger_charges_no_less_than_a_run_costs(kind: str) -> None:
    """Nor much more: the sum over all queries and answers is the guarantee's own cost at the ledger's order."""
    config = parse_config({key: value for key, value in (CONFIG | KINDS[kind]).items() if value is not None})
    voters = voters_of(config)
    needed: Any = voters.guarantee()
    for order in (1.5, 4.0, 32.0):
        limits = voters.limits(order)
        charged = limits.max_queries * limits.rdp_asked + limits.max_answers * limits.rdp_answered
        assert needed.rdp_at(order) * (1 - 1e-6) <= charged <= 1.7 * needed.rdp_at(order)
    assert voters.limits().max_queries == limits.max_queries


@pytest.mark.parametrize("kind", KINDS)
def test_the_published_epsilon_is_the_guarantees_with_the_samplers_error(kind: str) -> None:
    config = parse_config({key: value for key, value in (CONFIG | KINDS[kind]).items() if value is not None})
    voters = voters_of(config)
    least = voters.guarantee().epsilon(config.budget.delta)
    assert least <= voters.publishable_epsilon(3) <= 1.01 * least


def test_every_kind_is_tried() -> None:
    assert {content.get("voters", CONFIG["voters"]) for content in KINDS.values()} == {*kind_names(), CONFIG["voters"]}


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
