"""`pate audit` on real runs: every kind of model side by side, files where they belong, bad input in one line."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from html import unescape
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from support.small_run import CONFIG
from support.subjects import Memory, made_subject, random_examples
from typer.testing import CliRunner

from pate import followup as unlearning
from pate import pipeline
from pate.audit._target import Baseline, NonprivateTrainer, control, subject_of, without_privacy
from pate.audit.membership import LossThreshold, confidence
from pate.audit.results import AttackResult, Audit, Audited, Options, attack_classes
from pate.audit.runner import audit, beside_control, render_audit
from pate.baselines._run import run_baseline
from pate.cli import app
from pate.cli._audit import _show
from pate.cli._options import as_option
from pate.config import BaselineConfig, Config, parse_config
from pate.data._settings import BenchmarkData
from pate.data._sources import load
from pate.data.private import records_of
from pate.errors import PateError
from pate.runs.run import Run
from pate.teachers import Recipe

ERM = {
    "name": "erm",
    "data": {"source": "digits"},
    "baseline": {"name": "dp_erm", "params": {"regularisation": 1e-2}},
    "budget": {"epsilon": 2},
}
SGD = {
    "name": "sgd",
    "data": {"source": "digits"},
    "baseline": {
        "name": "dp_sgd",
        "params": {
            "model": "linear",
            "lot_size": 256,
            "epochs": 2,
            "learning_rate": 1.0,
            "sigma": 2,
            "accountant": "rdp",
        },
    },
}
NEIGHBOURS = {
    "name": "neighbours",
    "data": {"source": "digits"},
    "voters": "neighbours",
    "neighbours": {"cells": 20},
    "mechanism": {"name": "histogram", "scale": 2},
    "student": {"name": "supervised", "params": {"estimator": "sklearn.svm.SVC"}},
    "backend": "local",
}
FEW = "threshold,correctness,lira"


@pytest.fixture(scope="module")
def runs(finished_run: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of teachers, one of neighbours and two baselines, on the digits."""
    folder = tmp_path_factory.mktemp("audited")
    shutil.copytree(finished_run, folder / "digits")
    for config in (ERM, SGD):
        run_baseline(parse_config(config, BaselineConfig), folder / str(config["name"]))
    pipeline.run(parse_config(NEIGHBOURS), folder / "neighbours", pages=False)
    return {name: folder / name for name in ("digits", "erm", "sgd", "neighbours")}


def _audit(*arguments: object) -> str:
    shown = CliRunner().invoke(app, ["audit", *map(str, arguments)])
    if isinstance(shown.exception, PateError):
        return shown.exception.worded(as_option)
    assert shown.exit_code == 0, shown.exception
    return shown.stdout


def test_models_are_trained_by_what_is_beside_the_config_of_their_own_run(tmp_path: Path) -> None:
    """Two runs that are compared may each have a file of the same name."""
    source = "from pate.baselines.dp_erm import DPLinearClassifier\nfrom sklearn.naive_bayes import GaussianNB\n"
    source += "class Own(DPLinearClassifier):\n    whose = '{0}'\nclass Plain(GaussianNB):\n    whose = '{0}'\n"
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "beside_two_configs.py").write_text(source.format(name))
    X, y = np.eye(6, 3, dtype=np.float32), np.arange(6) % 2
    for name in "abab":
        own = Baseline("beside_two_configs.Own", 2, 1.0, 0.0, folder=tmp_path / name)
        assert own.train(X, y, 0).model.whose == name
        plain = NonprivateTrainer(Recipe("beside_two_configs.Plain", {}), 2, folder=tmp_path / name)
        assert plain.train(X, y, 0).adapter.estimator.whose == name


def test_what_a_run_of_somebody_else_names_is_no_place_to_import_from(
    runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    data = load(BenchmarkData(source="digits"), None, Path())
    with Run.load(runs["erm"]) as run:
        assert subject_of(run, *data).trainer.folder == run.places[1]
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
        assert subject_of(run, *data).trainer.folder == Path()


def test_all_kinds_of_models_stand_side_by_side(runs: dict[str, Path]) -> None:
    others = [part for name in ("neighbours", "erm", "sgd") for part in ("--against", runs[name])]
    shown = _audit(runs["digits"], *others, "--attacks", FEW, "--quick")
    assert "No claim was contradicted" in shown
    run = Run.load(runs["digits"])
    found = Audit.from_json(json.loads(run.private_audit_file.read_text()))
    assert [model.name for model in found.models] == [
        "digits",
        "neighbours",
        "erm",
        "sgd",
        "without privacy",
        "control",
    ]
    claims = {model.name: model.epsilon for model in found.models}
    assert claims["erm"] == 2
    assert claims["neighbours"] == pytest.approx(
        0.5, abs=1e-3
    )  # a record added or removed: half of what a change costs
    assert claims["without privacy"] is None
    for model in found.models:
        assert {f.attack for f in found.findings if f.model == model.name} >= {"loss threshold", "LiRA, offline"}
    page = run.private_audit_page.read_text()
    assert "do not publish" in page
    assert 'alt="private record' in page


def test_members_are_the_private_records_and_outsiders_the_test_examples(runs: dict[str, Path]) -> None:
    """Also where only some were learned from: others are no members. A row is that of the record among all."""
    data, private = load(parse_config(CONFIG).data, None, Path())
    records = records_of(private)
    with Run.load(runs["neighbours"]) as run:
        subject, student = subject_of(run, data, private), run.student()
    np.testing.assert_array_equal(subject.members.X, records.X)
    np.testing.assert_array_equal(subject.members.y, records.y)
    np.testing.assert_array_equal(subject.outsiders.X, data.X_test)
    np.testing.assert_array_equal(subject.outsiders.y, data.y_test)
    np.testing.assert_array_equal(subject.model.predict(records.X), student.predict(records.X))
    assert (subject.epsilon, subject.delta) == (pytest.approx(0.5, abs=1e-3), 1e-5)
    few = subject.members.some(100, 3)
    assert len(few) == 100
    np.testing.assert_array_equal(records.X[few.rows], few.X)
    np.testing.assert_array_equal(records.y[few.rows], few.y)
    plain = without_privacy(subject, 100, 3)
    np.testing.assert_array_equal(plain.members.rows, few.rows)
    assert (plain.model.predict(few.X) == few.y).all(), "a network learns a hundred digits by heart"
    assert plain.epsilon is None
    taught: list[np.ndarray] = []
    trainer = SimpleNamespace(train=lambda *given: taught.extend(given), description="d")
    blind = control(replace(subject, reference=trainer), 100, 3)  # type: ignore[arg-type]
    assert (blind.epsilon, len(taught[0])) == (None, 100)
    public = {row.tobytes() for row in data.X_public}
    assert all(row.tobytes() in public for row in taught[0]), "it sees public examples alone"
    np.testing.assert_array_equal(taught[1], student.predict(taught[0]))
    (found,) = LossThreshold().run(replace(subject, members=few), Options(examples=50))
    sure = confidence(subject.model, few.X, few.y)
    assert set(dict(found.at_risk)) <= set(few.rows.tolist())
    assert dict(found.at_risk).items() <= {(int(row), float(own)) for row, own in zip(few.rows, sure, strict=True)}


def test_every_figure_of_an_audit_stands_under_its_own_name() -> None:
    """And these fields are stored and no others; of benchmarks they are published but for single records."""
    figures = {"members": 11, "outsiders": 12, "auc": 0.613, "auc_error": 0.004, "tpr_at_0_1_percent": 0.015}
    figures |= {"tpr_at_1_percent": 0.016, "advantage": 0.17, "epsilon_lower": 0.18, "confidence": 0.95}
    figures |= {"delta": 1e-6, "epsilon_claimed": 0.91, "seconds": 13.0}
    own = AttackResult(
        "loss threshold", "mine", "a", **figures, curve=((0.001, 0.22), (0.05, 0.33)), at_risk=((7, 1.5),)
    )
    other = replace(own, model="theirs", auc=0.723, epsilon_lower=0.28, epsilon_claimed=0.92, curve=())
    models = (
        Audited("mine", "baseline", "DP-SGD", 0.91, 1e-5, 0.81, 0.72),
        Audited("theirs", "student", "PATE", 0.92, 1e-4, 0.63, 0.54),
    )
    found = Audit("mine", "digits", True, False, models, (own, other), ("left",), 14.0)
    content = found.to_json()
    assert set(content) == {
        *("name", "data", "benchmark", "quick", "models", "findings", "left_out", "seconds", "pate_version"),
    }
    assert set(content["models"][0]) == {
        *("name", "kind", "method", "epsilon", "delta", "right_on_members", "right_on_outsiders"),
    }
    assert set(content["findings"][0]) == {
        *("attack", "model", "assumes", "relation", "members", "outsiders", "canaries", "auc", "auc_error"),
        *("tpr_at_0_1_percent", "tpr_at_1_percent", "advantage", "epsilon_lower", "confidence", "delta"),
        *("epsilon_claimed", "epsilon_of_groups", "seconds", "note", "curve", "at_risk", "refutes"),
    }
    page = re.sub(r"<svg.*?</svg>", "", unescape(render_audit(found)), flags=re.DOTALL)
    rows = [
        re.sub(r"<[^>]*>", "|", row).strip("|\n ").replace("||", "|")
        for row in re.findall(r"(?s)<tr[^>]*>(.*?)</tr>", page)
    ]
    cells = [[cell.strip() for cell in row.split("|") if cell.strip()] for row in rows]
    for expected in (
        ["mine", "DP-SGD", "0.91", "81.0 %", "72.0 %", "9.0"],
        ["theirs", "PATE", "0.92", "63.0 %", "54.0 %", "9.0"],
        ["mine: membership", "0.91", "0.18", "loss threshold", "a record added or removed", "0.95"],
        ["theirs: membership", "0.92", "0.28", "loss threshold", "a record added or removed", "0.95"],
        ["mine", "loss threshold", "22.0", "22.0", "33.0"],
        ["mine", "loss threshold", "0.613 ± 0.004", "1.5 %", "1.6 %", "17.0 %", "0.18", "0.91"],
        ["theirs", "loss threshold", "0.723 ± 0.004", "1.5 %", "1.6 %", "17.0 %", "0.28", "0.92"],
    ):
        assert expected in [row[: len(expected)] for row in cells], expected
    shown = re.sub(r"(\s*<[^>]*>\s*)+", "|", page)
    for name, value in (("best attack's AUC (0.5 is guessing)", "0.613"), ("largest ε shown", "0.18")):
        assert f"|{name}|{value}|" in shown or f"|{value}|{name}|" in shown


def test_runs_with_classes_beside_their_configs_stand_side_by_side(tmp_path: Path) -> None:
    """Each run's own classes are looked for in the folder of its own config."""
    for name in ("a", "b"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / f"mechanism_of_{name}.py").write_text(
            "from dataclasses import dataclass\n\nfrom pate.mechanisms.noisy_max import GNMax\n\n\n"
            "@dataclass(frozen=True)\nclass Mine(GNMax):\n    pass\n"
        )
        changes = {
            "name": name,
            "n_teachers": 3,
            "teachers": [{"name": "sklearn.naive_bayes.GaussianNB"}],
            "mechanism": {"name": f"mechanism_of_{name}.Mine", "sigma": 5},
            "budget": {"max_queries": 40},
        }
        (folder / "config.yaml").write_text(yaml.safe_dump(CONFIG | changes))
        pipeline.run(folder / "config.yaml", tmp_path / f"run_{name}", pages=False)
    found = audit(tmp_path / "run_a", [tmp_path / "run_b"], attacks=["mechanism"], options=Options(quick=True))
    assert [finding.model for finding in found.findings] == ["a", "b"]


def test_figures_stay_private_and_benchmarks_have_a_copy_without_records(runs: dict[str, Path]) -> None:
    _audit(runs["erm"], "--attacks", "threshold", "--quick")
    run = Run.load(runs["erm"])
    assert run.private_audit_file.stat().st_mode & 0o077 == run.private_audit_page.stat().st_mode & 0o077 == 0
    assert {"audit.json", "audit.html"} <= set(run.may_leave())
    private, public = (json.loads(path.read_text()) for path in (run.private_audit_file, run.audit_file))
    assert all(finding["at_risk"] for finding in private["findings"])
    assert not any(finding["at_risk"] for finding in public["findings"])
    assert 'alt="private record' in run.private_audit_page.read_text()
    assert 'alt="private record' not in run.audit_page.read_text()


def test_of_private_data_nothing_is_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same digits as somebody's own file: audited, and nothing leaves private/, nor stands in a job's log."""
    data, private = load(parse_config(CONFIG).data, None, tmp_path)
    records = records_of(private)
    assert data.X_test is not None
    arrays = {"X_private": records.X, "y_private": records.y, "X_public": data.X_public}
    np.savez(tmp_path / "own.npz", **arrays, X_test=data.X_test, y_test=data.y_test)
    own = {"source": "npz", "file": "own.npz", "classes": list(range(10))}
    config = parse_config({**CONFIG, "data": own})
    pipeline.run(config, tmp_path / "run", data_dir=tmp_path, pages=False)
    assert "AUC" in _audit(tmp_path / "run", "--attacks", "threshold", "--quick")
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    in_a_job = _audit(tmp_path / "run", "--attacks", "threshold", "--quick")
    assert in_a_job == f"private: do not publish: {tmp_path}/run/private/audit.html, audit.json\n"
    run = Run.load(tmp_path / "run")
    assert run.private_audit_page.exists()
    assert not run.audit_file.exists()
    assert not run.audit_page.exists()
    shown = _audit(tmp_path / "run", "--data-dir", tmp_path / "elsewhere")
    assert "private data is not at hand" in shown
    np.savez(tmp_path / "own.npz", **{**arrays, "X_private": 1 - records.X}, X_test=data.X_test, y_test=data.y_test)
    assert "was made with other data" in _audit(tmp_path / "run", "--attacks", "threshold")


def test_bad_input_is_one_line(runs: dict[str, Path], tmp_path: Path) -> None:
    assert _audit("nowhere") == "nowhere: is not a run directory"
    assert "--attacks treshold: no such attack; did you mean 'threshold'?" in _audit(
        runs["digits"], "--attacks", "treshold"
    )
    assert "named columns" in _audit(runs["digits"], "--attacks", "attribute")
    other = tmp_path / "other"
    shutil.copytree(runs["erm"], other)
    config = yaml.safe_load((other / "config.yaml").read_text())
    (other / "config.yaml").write_text(yaml.safe_dump({**config, "data": {"source": "adult"}}))
    assert "is about other data than" in _audit(runs["digits"], "--against", other)
    shutil.copytree(runs["digits"], tmp_path / "bare")
    shutil.rmtree(tmp_path / "bare" / "student")
    assert "has no student or model to attack" in _audit(tmp_path / "bare")
    (tmp_path / "bare" / "report.json").unlink()
    assert "is no finished run" in _audit(tmp_path / "bare")
    shutil.rmtree(tmp_path / "bare" / "private")
    assert "has no private/ folder" in _audit(tmp_path / "bare")


def test_forgetting_erases_what_attacks_know_of_records(runs: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(runs["digits"], tmp_path / "run")
    _audit(tmp_path / "run", "--attacks", "lira", "--quick")
    config = Run.load(tmp_path / "run").config
    assert isinstance(config, Config)
    with Run.create(tmp_path / "run", config, resume=True) as run:
        assert run.attacks_folder.exists()
        public, private = load(config.data, None, tmp_path)
        unlearning.forget(config, public, records_of(private), run, (), [3])
        assert not run.attacks_folder.exists()
        assert not run.private_audit_file.exists()
        assert not run.private_audit_page.exists()
    found = audit(tmp_path / "run", attacks=["threshold"], options=Options.of(True, examples=2000))
    assert found.findings[0].members == 1196  # of 1,197


def test_every_attack_is_explained_on_the_page() -> None:
    found = attack_classes()
    assert list(found)[:4] == ["threshold", "correctness", "label-only", "lira"]
    findings = tuple(AttackResult(f"{attack.title}, way", "model", "") for attack in found.values())
    model = Audited("model", "baseline", "DP-SGD", 0.5, 1e-5, 1.0, 0.5)
    page = unescape(render_audit(Audit("model", "digits", True, True, (model,), findings)))
    assert all(attack.explanation in page for attack in found.values())


def test_a_contradicted_claim_is_told_first() -> None:
    members, outsiders = random_examples(400, 3, 2, 1), random_examples(400, 3, 2, 2)
    subject = made_subject(members, outsiders, Memory.of(members.X, members.y, 2), epsilon=0.5)
    findings = list(LossThreshold().run(subject, Options.of(True)))
    assert findings[0].refutes
    model = Audited("model", "baseline", "DP-SGD", 0.5, 1e-5, 1.0, 0.5)
    page = render_audit(Audit("model", "digits", True, True, (model,), tuple(findings)))
    assert "A claimed ε was contradicted" in page


def test_what_a_model_that_never_saw_the_records_shows_too_contradicts_nothing(capsys: pytest.CaptureFixture) -> None:
    def finding(model: str, attack: str, lower: float, claimed: float | None) -> AttackResult:
        return AttackResult(attack, model, "", epsilon_lower=lower, epsilon_claimed=claimed)

    raw = [
        finding("probe", "RMIA", 0.17, 0.1),
        finding("probe", "LiRA, offline", 0.4, 0.1),
        finding("probe", "one run: gradients", 0.17, 0.1),
        finding("control", "RMIA", 0.19, None),
        finding("control", "LiRA, offline", 0.2, None),
    ]
    assert [f.refutes for f in raw] == [True, True, True, False, False]
    rmia, lira, gradients, *of_control = beside_control(raw, "control")
    assert (rmia.refutes, rmia.explained_by_groups) == (False, True)
    assert (lira.refutes, lira.explained_by_groups) == (True, False), "it shows more than both together"
    assert (gradients.refutes, gradients.explained_by_groups) == (True, False), "canaries are no groups"
    assert of_control == raw[3:]
    model = Audited("probe", "baseline", "DP-SGD", 0.1, 1e-5, 0.9, 0.9)
    found = Audit("probe", "mnist", True, True, (model,), (rmia, *of_control))
    assert Audit.from_json(json.loads(json.dumps(found.to_json()))).findings[0] == rmia
    page = render_audit(found)
    assert "was contradicted:" not in page
    assert "the groups differ by themselves" in page
    _show(found)
    told = capsys.readouterr().out
    assert "CONTRADICTED" not in told
    assert "gives 0.19: the groups differ by themselves" in told
