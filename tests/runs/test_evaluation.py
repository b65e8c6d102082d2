"""How often teachers are right is measured on request, and costs no vote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.small_run import CONFIG

from pate import pipeline
from pate.config import parse_config

SMALL = CONFIG | {
    "n_teachers": 3,
    "teachers": [{"name": "sklearn.naive_bayes.GaussianNB"}],
    "mechanism": {"name": "gnmax", "sigma": 5},
    "budget": {"max_queries": 30, "delta": 1e-5},
    "nonprivate": None,
}


def test_teachers_are_measured_only_where_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, file = tmp_path / "run", tmp_path / "run" / "private" / "evaluation.json"
    assert pipeline.run(parse_config(SMALL), out, pages=False).private_figures == {}
    assert not file.exists()
    monkeypatch.setattr(
        "pate.voters.teachers.ensemble.Ensemble", None
    )  # by votes that are there: nobody is trained or asked
    outcome = pipeline.run(parse_config(SMALL), out, pages=False, resume=True, evaluate_teachers=True)
    figures = json.loads(file.read_text())
    assert outcome.private_figures == figures
    assert figures["examples"] == 30
    assert 0.3 < figures["mean_teacher_accuracy"] <= figures["plurality_accuracy"] + 0.1
