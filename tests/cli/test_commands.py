"""Commands in the tests' own process: their status, what they take up, and what they pass on."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from pate import cli
from pate.cli import app, hide_library_warnings
from pate.cli._run import _place, new_run
from pate.cluster._checks import CheckResult
from pate.config import default_config_path, load_config
from pate.errors import RunError
from pate.runs.model_store import save_model
from pate.students import build_student


def test_a_mistake_ends_with_status_two(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["pate", "predict", "nowhere", "--input", "x.npy"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == "pate: error: nowhere: is not a run directory\n"


def test_a_class_name_cannot_steer_the_terminal(tmp_path: Path) -> None:
    X = np.array([[0.0], [1.0]], dtype=np.float32)
    card = {"classes": ["\x1b[2Jcat", "dog"], "shape": [1], "epsilon": 1.0, "delta": 1e-5}
    save_model(build_student("supervised", {}, 0).fit(X, np.array([0, 1])), tmp_path / "student", card)
    np.save(tmp_path / "x.npy", X)
    shown = CliRunner().invoke(app, ["predict", str(tmp_path), "--input", str(tmp_path / "x.npy")])
    assert shown.exit_code == 0, shown.output
    assert "dog" in shown.stdout
    assert "\x1b" not in shown.stdout


def test_a_shared_ledger_does_not_go_to_a_cluster() -> None:
    setting = "budget.ledger={path: shared, id: ledger-0}"
    shown = CliRunner().invoke(
        app, ["submit", str(default_config_path()), "--set", setting, "--address", "http://127.0.0.1:9"]
    )
    assert isinstance(shown.exception, RunError)
    assert str(shown.exception).startswith("budget.ledger:")


def test_the_newest_run_of_the_same_config_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATE_RUNS", str(tmp_path))
    config = load_config()
    for time, override in (("20260101-000001", []), ("20260101-000002", ["seed=5"]), ("20260101-000003", ["seed=6"])):
        (tmp_path / f"digits-{time}").mkdir()
        (tmp_path / f"digits-{time}" / "config.yaml").write_text(load_config(None, override).to_yaml())
    assert _place(config, True) == tmp_path / "digits-20260101-000001"
    assert _place(load_config(None, ["seed=5"]), True) == tmp_path / "digits-20260101-000002"
    with pytest.raises(RunError, match="no run of this config"):
        _place(load_config(None, ["seed=7"]), True)


def test_two_runs_begun_in_a_second_have_two_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATE_RUNS", str(tmp_path))
    made = set()
    for _ in range(3):
        path = new_run("digits")
        path.mkdir()  # fails if it is there
        made.add(path)
    assert len(made) == 3


def test_a_shared_ledger_holds_the_budget_it_was_made_with(tmp_path: Path) -> None:
    options = ["--epsilon", "3", "--delta", "1e-6", "--order", "16"]
    shown = CliRunner().invoke(app, ["ledger", "create", str(tmp_path / "shared"), *options])
    assert yaml.safe_load(shown.stdout)["budget"]["ledger"]["path"] == str(tmp_path / "shared")
    content = json.loads(CliRunner().invoke(app, ["ledger", "show", str(tmp_path / "shared"), "--json"]).stdout)
    budget = content["budget"]
    assert (budget["rdp_order"], budget["epsilon"], budget["delta"]) == (16, 3, 1e-6)


@pytest.mark.parametrize(("levels", "status"), [(["ok", "warn"], 0), (["ok", "fail", "warn"], 2)])
def test_a_cluster_that_fails_a_check_ends_with_status_two(
    levels: list[str], status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    findings = [CheckResult(level, "disk", "words") for level in levels]  # type: ignore[arg-type]
    monkeypatch.setattr(sys.modules["pate.cli._cluster"], "_joined", lambda address: (findings, {}))
    assert CliRunner().invoke(app, ["doctor", "--address", "127.0.0.1:1"]).exit_code == status


def test_a_mechanism_gets_the_delta_of_the_command_line() -> None:
    options = ["--epsilon", "1", "--unstable", "10", "--max-queries", "1000", "--delta", "1e-7", "--json"]
    shown = CliRunner().invoke(app, ["plan", "--mechanism", "msvec", *options])
    assert shown.exit_code == 0, shown.exception
    assert json.loads(shown.stdout)["mechanism"]["delta"] == 1e-7


def test_warnings_of_pate_are_shown_and_those_of_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "warnoptions", [])
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        hide_library_warnings()
        for module in ("pate", "pate.baselines.dp_sgd", "sklearn.svm", "pateful", "torch.pate"):
            warnings.warn_explicit(f"from {module}", UserWarning, "file.py", 1, module=module)
    assert [str(warning.message) for warning in shown] == ["from pate", "from pate.baselines.dp_sgd"]
