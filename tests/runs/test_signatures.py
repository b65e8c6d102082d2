"""What a run wrote itself is loaded whatever it is made of; what somebody put there, or sent, is not."""

from __future__ import annotations

import json
import shutil
import stat
from pathlib import Path

import numpy as np
import pytest
from support.command_line import in_process

from pate.baselines.dp_erm import DPLinearClassifier
from pate.config import Config, parse_config
from pate.data.public import PublicData
from pate.errors import NotTrusted
from pate.ledger import Charge, Pin
from pate.runs._console import Quiet
from pate.runs._signatures import user_key
from pate.runs.context import RunContext, RunOptions
from pate.runs.model_store import load_model, save_model
from pate.runs.run import Run
from pate.students._stage import train_student
from pate.voters.base import Release

X = np.random.default_rng(0).normal(size=(90, 4)).astype(np.float32)
LABELS = (X[:, 0] > 0).astype(np.int64) + (X[:, 1] > 1)
DATA = PublicData(X, ("a", "b", "c"))
FOREST = "sklearn.ensemble.RandomForestClassifier"


def config_of(estimator: str, params: dict | None = None) -> Config:
    content = {
        "n_teachers": 5,
        "data": {"source": "arrays"},
        "teachers": [{"name": "sklearn.naive_bayes.GaussianNB"}],
        "mechanism": {"name": "gnmax", "sigma": 5},
        "budget": {"max_queries": 90},
        "student": {"name": "supervised", "params": {"estimator": estimator, "params": params or {}}},
    }
    return parse_config(content)


def trained(out: Path, estimator: str, params: dict | None = None) -> np.ndarray:
    config = config_of(estimator, params)
    with Run.create(out, config) as run:
        context = RunContext(config, out, RunOptions(), Quiet(), DATA, epsilon=1.0)
        context.run, asked = run, len(LABELS)
        spent = Charge(asked, asked)
        released = Release(np.arange(asked), LABELS, spent, asked, asked, Pin(5, b"m" * 32))
        student = train_student(context, released)
    return student.predict(X)


@pytest.mark.parametrize(
    ("estimator", "params"),
    [
        ("sklearn.linear_model.LogisticRegression", {}),
        (FOREST, {"n_estimators": 5}),
        ("sklearn.ensemble.ExtraTreesClassifier", {"n_estimators": 5}),
        ("sklearn.ensemble.GradientBoostingClassifier", {"n_estimators": 5}),
        ("sklearn.ensemble.HistGradientBoostingClassifier", {"max_iter": 5}),
        ("sklearn.ensemble.AdaBoostClassifier", {"n_estimators": 5}),
        ("sklearn.ensemble.BaggingClassifier", {"n_estimators": 5}),
        ("sklearn.tree.DecisionTreeClassifier", {}),
        ("sklearn.neighbors.KNeighborsClassifier", {}),
        ("lightgbm.LGBMClassifier", {"n_estimators": 5, "verbose": -1}),
        ("xgboost.XGBClassifier", {"n_estimators": 5}),
    ],
    ids=lambda value: value.rpartition(".")[2] if isinstance(value, str) else "",
)
def test_what_the_run_wrote_can_be_used(estimator: str, params: dict, tmp_path: Path) -> None:
    if not estimator.startswith("sklearn."):
        pytest.importorskip(estimator.partition(".")[0])
    predicted = trained(tmp_path / "run", estimator, params)
    np.save(tmp_path / "X.npy", X)
    shown = in_process("predict", tmp_path / "run", "--input", tmp_path / "X.npy")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.split() == [DATA.classes[label] for label in predicted]


def test_a_student_that_somebody_put_there_is_refused(tmp_path: Path) -> None:
    trained(tmp_path / "run", FOREST, {"n_estimators": 5})
    trained(tmp_path / "other", FOREST, {"n_estimators": 6})
    for name in ("student.json", "model.skops"):
        shutil.copy(tmp_path / "other" / "student" / name, tmp_path / "run" / "student" / name)
        with Run.load(tmp_path / "run") as run, pytest.raises(NotTrusted, match="Tree"):
            run.student()
    with Run.load(tmp_path / "run") as run:
        run.student(trust=["sklearn.tree._tree.Tree"])


def test_so_is_one_whose_signature_is_of_another_folder(tmp_path: Path) -> None:
    trained(tmp_path / "run", FOREST, {"n_estimators": 5})
    shutil.copytree(tmp_path / "run" / "student", tmp_path / "run" / "students" / "x")
    with Run.load(tmp_path / "run") as run, pytest.raises(NotTrusted):
        load_model(run.students_folder / "x", run=run)


def test_what_somebody_left_where_a_model_is_written_is_neither_signed_nor_read(tmp_path: Path) -> None:
    """A run that somebody sent, and that goes on here, may hold a card of theirs where the model is going to be."""
    module = "module_of_somebody_else"
    (tmp_path / f"{module}.py").write_text("raise RuntimeError('imported')")
    theirs = {"student": "supervised", "params": {"estimator": f"{module}.Net"}, "learned": {"present": [0, 1]}}
    theirs |= {"files": [], "classes": ["a", "b", "c"]}
    model = DPLinearClassifier(1.0, n_records=90, classes=(0, 1, 2)).fit(X, LABELS)
    with Run.create(tmp_path / "run", config_of(FOREST)) as run:
        run.model_folder.mkdir()
        (run.model_folder / "student.json").write_text(json.dumps(theirs))
        (run.model_folder / "model.skops").write_bytes(b"")
        card = {"baseline": "dp_erm", "params": {}, "classes": ["a", "b", "c"]}
        save_model(model, run.model_folder, card, run)
        assert (load_model(run.model_folder, run=run).predict(X) == model.predict(X)).all()
        (run.model_folder / "student.json").write_text(json.dumps(theirs))
        with pytest.raises(NotTrusted, match=module):
            load_model(run.model_folder, run=run)


def test_a_whole_run_that_somebody_sent_is_foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its key and signatures: they are theirs."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "theirs"))
    trained(tmp_path / "run", FOREST, {"n_estimators": 5})
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "mine"))
    with Run.load(tmp_path / "run") as run, pytest.raises(NotTrusted):
        run.student()
    trained(tmp_path / "own", FOREST, {"n_estimators": 5})
    with Run.load(tmp_path / "run") as run, pytest.raises(NotTrusted):
        run.student()


def test_so_is_a_student_folder_by_itself(tmp_path: Path) -> None:
    trained(tmp_path / "run", FOREST, {"n_estimators": 5})
    shutil.copytree(tmp_path / "run" / "student", tmp_path / "taken")
    with Run.load(tmp_path / "taken") as run, pytest.raises(NotTrusted):
        run.predictor()


def test_without_a_place_for_a_key_nothing_is_signed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    trained(tmp_path / "run", FOREST, {"n_estimators": 5})
    assert not (tmp_path / "run" / "private" / "signatures.json").exists()


def test_the_users_key_is_for_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    trained(tmp_path / "run", FOREST, {"n_estimators": 5})
    assert stat.S_IMODE(user_key().stat().st_mode) == 0o600
    assert stat.S_IMODE(user_key().parent.stat().st_mode) == 0o700


def test_a_students_files_can_be_read_by_all_who_get_them(tmp_path: Path) -> None:
    trained(tmp_path / "run", FOREST, {"n_estimators": 5})
    trained(tmp_path / "net", "network", {"architecture": "mlp", "hidden": 4, "steps": 2})
    for folder in (tmp_path / "run" / "student", tmp_path / "net" / "student"):
        assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o644}


def test_a_classifier_takes_any_student() -> None:
    from sklearn.ensemble import RandomForestClassifier

    from pate import PATEClassifier

    forest = RandomForestClassifier(n_estimators=3)
    model = PATEClassifier(n_teachers=10, epsilon=8, max_queries=30, student=forest, classes=[0, 1, 2])
    assert set(model.fit(X, LABELS, X_public=X[:40]).predict(X)) <= {0, 1, 2}
