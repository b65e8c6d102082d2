"""Own classes are imported for whoever trusts them by name, and for nobody else."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

import pate
from pate.baselines import build_baseline
from pate.cli import app
from pate.cli._options import as_option
from pate.components._registry import import_dotted, importing_only
from pate.config import default_config_path, parse_config, read_yaml
from pate.data.public import PublicData
from pate.errors import ConfigError, NotTrusted
from pate.ledger import Charge, Pin
from pate.runs._console import Console
from pate.runs.context import RunContext, RunOptions
from pate.runs.model_store import load_model, save_model
from pate.runs.run import Run
from pate.students import build_student
from pate.students._stage import train_student
from pate.voters.base import Release

OWN = """
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.svm import SVC
from torch import nn

class Net(nn.Sequential):
    def __init__(self, shape, n_classes, width=4):
        super().__init__(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, n_classes))

class Flat(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 3))

class Own(SVC):
    pass

class Same:
    def transform(self, X):
        return X
"""
CARD = {"classes": ["a", "b", "c"], "shape": [8, 8]}


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module that somebody wrote, in a folder of its own."""
    name = "somebodys_own"
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / f"{name}.py").write_text(OWN)
    monkeypatch.setattr(sys, "path", [*sys.path, str(folder)])
    yield name
    sys.modules.pop(name, None)


def examples() -> tuple[np.ndarray, np.ndarray]:
    y = np.arange(30) % 3
    X = np.random.default_rng(0).random((30, 8, 8)).astype(np.float32)
    X[np.arange(30), y] += 2
    return X, y


@pytest.mark.parametrize("kind", ["network", "estimator"])
def test_an_own_class_in_a_student_needs_trust(kind: str, own: str, tmp_path: Path) -> None:
    X, y = examples()
    name = f"{own}.{'Net' if kind == 'network' else 'Own'}"
    params: dict[str, Any] = {"estimator": name}
    if kind == "network":
        params = {"estimator": "network", "params": {"architecture": name, "module_params": {"width": 5}, "steps": 2}}
    student = build_student("supervised", params, 0).fit(X, y)
    save_model(student, tmp_path / "student", CARD)
    np.save(tmp_path / "X.npy", X)
    del sys.modules[own]
    with pytest.raises(NotTrusted, match=rf"would import {re.escape(name)}; .* trust=\['{re.escape(name)}'\]"):
        load_model(tmp_path / "student")
    arguments = ["predict", str(tmp_path), "--input", str(tmp_path / "X.npy")]
    assert isinstance(CliRunner().invoke(app, [*arguments, "--trust", f"{own}.Other"]).exception, NotTrusted)
    assert own not in sys.modules
    np.testing.assert_array_equal(load_model(tmp_path / "student", trust=[name]).predict(X), student.predict(X))
    shown = CliRunner().invoke(app, [*arguments, "--trust", name])
    assert shown.stdout.split() == [CARD["classes"][label] for label in student.predict(X)]


@pytest.mark.parametrize(
    "given", [{"model": "Flat"}, {"model": "linear", "preprocessing": [{"name": "Same"}]}], ids=str
)
def test_an_own_class_in_a_baseline_needs_trust(given: dict[str, Any], own: str, tmp_path: Path) -> None:
    X, y = examples()
    params = {"lot_size": 15, "epochs": 0.5, "sigma": 1.0}
    params |= json.loads(json.dumps(given).replace('"Flat"', f'"{own}.Flat"').replace('"Same"', f'"{own}.Same"'))
    run = {"epsilon": None, "delta": 1e-3, "n_records": 30, "random_state": 0, "classes": range(3)}
    model = build_baseline("dp_sgd", params, run).fit(X, y)
    save_model(model, tmp_path / "model", CARD | {"baseline": "dp_sgd", "params": params})
    del sys.modules[own]
    with pytest.raises(NotTrusted, match=r"trust=\['somebodys_own"):
        load_model(tmp_path / "model")
    assert own not in sys.modules
    names = [f"{own}.Flat", f"{own}.Same"]
    np.testing.assert_array_equal(load_model(tmp_path / "model", trust=names).predict(X), model.predict(X))


def test_a_size_that_the_file_does_not_hold_is_refused_before_memory_is_taken(tmp_path: Path) -> None:
    X, y = examples()
    save_model(build_student("gan", {"steps": 1, "channels": 2, "hidden": 4}, 0).fit(X, y), tmp_path, CARD)
    card = json.loads((tmp_path / "student.json").read_text())
    card["params"]["hidden"] = 10**9
    (tmp_path / "student.json").write_text(json.dumps(card))
    with pytest.raises(pate.errors.RunError, match=r"by the parameters it would be \(.*1000000000"):
        load_model(tmp_path)


def test_a_stored_student_that_cannot_be_read_back_is_trained_again(tmp_path: Path) -> None:
    """skops does not take trees on trust; the labels are there, and paid for."""
    X, y = examples()
    tree = {"name": "supervised", "params": {"estimator": "sklearn.tree.DecisionTreeClassifier"}}
    config = parse_config(read_yaml(default_config_path()) | {"student": tree})
    context = RunContext(config, tmp_path / "run", RunOptions(), Console(), PublicData(X, ("a", "b", "c")), epsilon=1.0)
    context.run = directory = Run(tmp_path / "run")
    (directory.path / "private").mkdir(parents=True)
    release = Release(np.arange(len(y)), y, Charge(len(y), len(y)), len(y), len(y), Pin(1, b"m" * 32))
    students = [train_student(context, release) for _ in range(2)]
    np.testing.assert_array_equal(students[0].predict(X), students[1].predict(X))
    with pytest.raises(NotTrusted, match=r"trust=\['sklearn\.tree\._tree\.Tree'"):
        load_model(directory.student_folder)
    load_model(directory.student_folder, trust=["sklearn.tree._tree.Tree"])


def test_only_classes_of_ours_and_of_scikit_learn_pass() -> None:
    with importing_only(["json.JSONDecoder"]) as guard:
        for name in ("sklearn.svm.SVC", "sklearn.gaussian_process.kernels.RBF", "pate.teachers.network.Network"):
            import_dotted(name, "key")
        import_dotted("json.JSONDecoder", "key")
        bad = ["json.JSONEncoder", "sklearn.datasets.fetch_openml", "sklearn.datasets._base.urlretrieve", "os.system"]
        bad += ["pate.cli._student.forget", "pate.teachers.pickle", "pate.runs.model_store.Path"]
        for name in bad:
            with pytest.raises(NotTrusted, match=re.escape(name)):
                import_dotted(name, "key")
    assert guard.refused == bad
    import_dotted("json.JSONEncoder", "key")  # a config of one's own is code


def test_names_are_imported_in_one_place_only() -> None:
    """Whoever imports by a name that is not written in the code does so through `import_dotted`."""
    risky = re.compile(
        r"import_module\((?!f?\"{?(package|__name__))|__import__|pickle\.loads?\(|torch\.load\(|(?<![.\w])(?:eval|exec)\("
    )
    root = Path(pate.__file__).parent
    found = {
        f"{path.relative_to(root)}: {line.strip()}"
        for path in root.rglob("*.py")
        for line in path.read_text().splitlines()
        if risky.search(line)
    }
    assert found == {
        "components/_registry.py: return importlib.import_module(path)",
        "components/_registry.py: folder = importlib.import_module(package)",
        "__init__.py: return getattr(importlib.import_module(_HOMES[name]), name)",
        "teachers/__init__.py: if getattr(importlib.import_module(shorter), cls.__qualname__, None) is not cls:",
        "teachers/__init__.py: present, estimator = pickle.loads(content)",
        "teachers/__init__.py: prototype = pickle.loads(prototype.content)  # packed by this run's driver",
        "cluster/_remote_task.py: pickle.loads(pickle.dumps(error))",  # to see whether it can be sent back
    }


def plan(folder: Path, changes: dict[str, Any], *options: str) -> Any:
    content = yaml.safe_load(default_config_path().read_text()) | {"n_teachers": 10} | changes
    (folder / "config.yaml").write_text(yaml.safe_dump(content))
    return CliRunner().invoke(app, ["plan", str(folder / "config.yaml"), "--json", *options])


def test_plan_imports_what_is_trusted_only(tmp_path: Path) -> None:
    name = "beside_the_config.Own"
    (tmp_path / "beside_the_config.py").write_text(OWN + f"\nopen({str(tmp_path / 'mark')!r}, 'w').close()\n")
    own = {"name": name}
    nested = {"name": "sklearn.pipeline.Pipeline", "params": {"steps": [["own", own]]}}
    network = {"name": "network", "params": {"architecture": "beside_the_config.Net", "steps": 1}}
    features = {"name": "sklearn.svm.SVC", "features": [{"name": "beside_the_config.Same"}]}
    path = list(sys.path)
    for teacher in (own, nested, network, features):
        shown = plan(tmp_path, {"teachers": [teacher]})
        assert shown.exit_code == 0, shown.output
        result = json.loads(shown.stdout)
        assert result["not_imported"] == [next(iter(re.findall(r"beside_the_config\.\w+", str(teacher))))]
        assert result["seconds_of_training"] is None
        assert result["epsilon"] > 0
    shown = plan(tmp_path, {"student": {"name": "supervised", "params": {"estimator": name}}})
    result = json.loads(shown.stdout)
    assert result["not_imported"] == [name]
    assert result["seconds_of_student"] is None
    plan(tmp_path, {"teachers": [features]})
    assert not (tmp_path / "mark").exists()
    assert sys.path == path
    words = CliRunner().invoke(app, ["plan", str(tmp_path / "config.yaml")]).stdout
    assert "a config is code" in words
    assert "--trust beside_the_config.Same" in words
    try:
        result = json.loads(plan(tmp_path, {"teachers": [own]}, "--trust", name).stdout)
    finally:
        sys.path[:] = path
        sys.modules.pop("beside_the_config", None)
    assert result["seconds_of_training"] > 0
    assert result["not_imported"] == []
    assert (tmp_path / "mark").exists()


def test_plan_reads_no_cache_of_pickles(tmp_path: Path) -> None:
    steps = [["svc", {"name": "sklearn.svm.SVC"}]]
    teacher = {"name": "sklearn.pipeline.Pipeline", "params": {"steps": steps, "memory": str(tmp_path / "cache")}}
    assert json.loads(plan(tmp_path, {"teachers": [teacher]}).stdout)["not_imported"] == ["joblib.Memory"]
    assert not (tmp_path / "cache").exists()


def test_plan_refuses_a_mechanism_that_nobody_trusts(tmp_path: Path) -> None:
    shown = plan(tmp_path, {"mechanism": {"name": "beside.Mechanism"}})
    assert isinstance(shown.exception, ConfigError)
    assert "--trust beside.Mechanism" in shown.exception.worded(as_option)
