"""A run folder that somebody sent runs none of their code, whatever command takes it."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from support import REPOSITORY
from support.command_line import Ended, in_process
from support.small_data import own_data

from pate.cli import app
from pate.components._registry import (
    _BESIDE,
    config_folder,
    import_dotted,
    import_folders,
    importing_only,
    make_importable,
)
from pate.config import load_config
from pate.followup import train_extra_student
from pate.runs._signatures import is_own
from pate.runs.run import Run
from pate.voters.teachers._checkpoints import TeacherFiles

NAME = "somebodys_trap"
TRAP = """
from pathlib import Path
from sklearn.linear_model import LogisticRegression
from pate.baselines.dp_erm import DPLinearClassifier

Path(__file__).with_name("ran").touch()

class Teacher(LogisticRegression):
    pass

class Features:
    def transform(self, X):
        return X

class Erm(DPLinearClassifier):
    pass

class Student(LogisticRegression):
    def fit(self, X, y, X_unlabelled=None):
        return super().fit(X[y >= 0], y[y >= 0])
"""
PATE_OF_SOMEBODY = f"""
teachers: [{{name: {NAME}.Teacher, features: [{{name: {NAME}.Features}}]}}]
student: {{name: {NAME}.Student}}
nonprivate: {{name: {NAME}.Teacher}}
backend: local
"""
PLAIN = """
teachers: [{name: sklearn.naive_bayes.GaussianNB}]
student: {name: supervised, params: {estimator: sklearn.linear_model.LogisticRegression}}
backend: local
"""
DATA = (
    "{source: csv, private: private.csv, public: public.csv, test: test.csv, label: kind, id: who, classes: [cat, dog]}"
)
RUN = f"name: own\nn_teachers: 6\ndata: {DATA}\nmechanism: {{name: lnmax, scale: 2}}\nbudget: {{max_queries: 20}}\n"
BASELINE = f"name: erm\ndata: {DATA}\nbudget: {{epsilon: 2}}\nrecords: 300\n"
ERM = "baseline: {name: dp_erm, params: {regularisation: 0.01}}\n"
KINDS = ("run", "baseline", "teachers")


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What somebody made and sent: `run` and `baseline`, whose configs name code beside them, and `teachers`, of a
    plain config that anybody may use, with pickles where its teachers would be."""
    folder = tmp_path_factory.mktemp("sent")
    own_data(folder)
    (folder / f"{NAME}.py").write_text(TRAP)
    (folder / "run.yaml").write_text(RUN + PATE_OF_SOMEBODY)
    (folder / "baseline.yaml").write_text(
        BASELINE + f"baseline: {{name: {NAME}.Erm, params: {{regularisation: 0.01}}}}"
    )
    (folder / "teachers.yaml").write_text(RUN + PLAIN)
    (folder / "plain.yaml").write_text(BASELINE + ERM)
    environment = os.environ | {"XDG_STATE_HOME": str(folder / "theirs"), "PYTHONPATH": str(REPOSITORY)}
    for command in ("run", "baseline"):
        words = [sys.executable, "-m", "pate.cli", command, f"{command}.yaml", "--out", command, "--json"]
        subprocess.run([*words, *["--force"] * (command == "run")], cwd=folder, env=environment, check=True)
    config = load_config(folder / "teachers.yaml")
    with Run.create(folder / "teachers", config) as run:
        places = {"data_dir": None, "config_dir": str(folder)}
        run.note("places.json", places)
        store = TeacherFiles(run.private, run.key, user=b"of somebody")
        for part in range(config.n_teachers):
            store.save(part, b"p" + pickle.dumps(_Trap(folder / "ran")))
    (folder / "ran").unlink()
    return folder


class _Trap:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


@pytest.fixture
def received(sent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy in which commands may write, for a user who knows no other copy; the trap is where its configs say."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    _BESIDE.use(None)  # as in a process of the user's own
    copy = Path(shutil.copytree(sent, tmp_path / "received"))
    yield copy
    sys.modules.pop(NAME, None)
    (sent / "ran").unlink(missing_ok=True)


def commands() -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command there is, with its parameters."""

    def below(command: Any, name: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
        for word, inner in getattr(command, "commands", {}).items():
            yield from below(inner, (*name, word))
        if not hasattr(command, "commands"):
            yield name, command

    yield from below(typer.main.get_command(app), ())


def is_place(parameter: Any) -> bool:
    """Whether a run's folder may be given there: whatever takes text, and speaks of a run or a folder."""
    words = f"{parameter.name} {getattr(parameter, 'help', None) or ''} {parameter.metavar or ''}"
    kind = str(parameter.type_descriptor.annotation)
    return ("str" in kind or "Path" in kind) and any(word in words for word in ("run", "folder", "directory"))


def is_argument(parameter: Any) -> bool:
    return not parameter.opts[0].startswith("-")


CASES = [
    (name, parameter.name)
    for name, command in commands()
    for parameter in command.params
    if is_place(parameter) and parameter.name not in ("data_dir", "address")
]


def command_line(name: tuple[str, ...], place: str, run: Path, folder: Path) -> list[str]:
    """The command with the run at that place, what it cannot do without, and all that lets it go far."""
    command = dict(commands())[name]
    usual = {
        "address": "http://127.0.0.1:9",
        "input": folder / "public.csv",
        "id": "p3",
        "epsilon": 1,
        "public": folder,
    }
    words: list[object] = [*name]
    plain = folder / ("plain.yaml" if "baseline" in name else "teachers.yaml")
    for parameter in command.params:
        option = max(parameter.opts, key=len)
        key = option.lstrip("-").replace("-", "_")
        value = run if parameter.name == place else usual.get(key)
        if is_argument(parameter):
            named_config = parameter.name == "config"
            words += [plain if named_config else "digits" if key == "data" and name[0] == "reproduce" else run]
        elif value is not None and (parameter.required or parameter.name == place or key in usual):
            words += [option, value]
        elif key in ("resume", "force", "quick"):
            words += [option]
    return [str(word) for word in words]


def nothing_ran(sent: Path, ended: Ended) -> None:
    assert not (sent / "ran").exists(), ended
    assert NAME not in sys.modules
    assert config_folder() != sent
    assert ended.returncode in (0, 1, 2), ended
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("name", "place"), CASES, ids=[f"{' '.join(name)}-{place}" for name, place in CASES])
def test_no_command_runs_code_of_a_run_that_was_sent(
    name: tuple[str, ...], place: str, kind: str, sent: Path, received: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(received)
    nothing_ran(sent, in_process(*command_line(name, place, received / kind, received)))


def test_every_command_that_takes_a_run_is_among_them() -> None:
    known = {name[0] for name, _ in CASES}
    assert known >= {
        "run",
        "student",
        "predict",
        "report",
        "baseline",
        "compare",
        "audit",
        "reproduce",
        "forget",
        "ledger",
    }


@pytest.mark.parametrize("command", ["student", "audit", "forget"])
def test_a_command_says_what_it_would_import(command: str, received: Path) -> None:
    ended = in_process(command, received / "run", *(["--id", "p3"] if command == "forget" else []))
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert f"--trust {NAME}.Features --trust {NAME}.Student --trust {NAME}.Teacher" in ended.stderr


def test_what_is_trusted_by_name_is_imported_from_where_python_finds_it(
    sent: Path, received: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trust = [word for name in ("Features", "Student", "Teacher") for word in ("--trust", f"{NAME}.{name}")]
    ended = in_process("student", received / "run", *trust)
    assert "No module named" in ended.stderr, "the folder that the run names is no place to import from"
    monkeypatch.syspath_prepend(str(sent))
    ended = in_process("student", received / "run", *trust)
    assert ended.returncode == 0, ended.stderr
    assert (sent / "ran").exists()


def test_a_student_that_somebody_put_into_an_own_run_is_not_built(sent: Path, received: Path, tmp_path: Path) -> None:
    assert in_process("run", received / "teachers.yaml", "--out", tmp_path / "own", "--force").returncode == 0
    card = json.loads((received / "run" / "student" / "student.json").read_text())
    folder = tmp_path / "own" / "students" / "theirs"
    shutil.copytree(received / "run" / "student", folder)
    (folder / "student.json").write_text(json.dumps(card | {"settings": {"name": f"{NAME}.Student"}}))
    (received / "students.py").touch()
    nothing_ran(sent, ended := in_process("student", tmp_path / "own"))
    assert f"--trust {NAME}.Student" in ended.stderr


def test_a_run_of_ones_own_imports_from_beside_its_config(received: Path, tmp_path: Path) -> None:
    module = f"{NAME}_of_mine"
    (received / f"{module}.py").write_text(TRAP)
    (received / "mine.yaml").write_text((RUN + PATE_OF_SOMEBODY).replace(NAME, module))
    assert in_process("run", received / "mine.yaml", "--out", tmp_path / "mine", "--force").returncode == 0
    _BESIDE.use(None)
    assert is_own(Run.load(tmp_path / "mine"))
    assert len(train_extra_student(tmp_path / "mine").students) == 1
    for file in (tmp_path / "mine" / "config.yaml", tmp_path / "mine" / "private" / "places.json"):
        written = file.read_text()
        file.write_text(written + "\n")
        assert not is_own(Run.load(tmp_path / "mine")), file
        file.write_text(written)
    assert is_own(Run.load(tmp_path / "mine"))


def test_who_goes_on_with_a_run_makes_it_their_own_without_its_teachers(sent: Path, received: Path) -> None:
    """The config is the user's, since it was given; pickles that somebody left are trained again, or trusted."""
    ended = in_process("run", received / "teachers.yaml", "--out", received / "teachers", "--resume", "--force")
    nothing_ran(sent, ended)
    assert ended.returncode == 0, ended.stderr
    assert "were not trained by you here, and are trained again" in ended.stderr
    assert is_own(Run.load(received / "teachers"))


def test_teachers_of_ones_own_from_elsewhere_are_used_if_they_are_trusted(sent: Path, received: Path) -> None:
    words = ["run", received / "teachers.yaml", "--out", received / "teachers", "--resume", "--force"]
    ended = in_process(*words, "--trust", "private/teachers")
    assert (sent / "ran").exists(), ended.stderr


def test_a_guard_within_a_guard_trusts_no_more() -> None:
    with (
        importing_only(["a.b"]),
        importing_only(["a.b", "collections.abc.Mapping"]),
        pytest.raises(Exception, match="trust"),
    ):
        import_dotted("collections.abc.Mapping", "here")


def test_trust_in_a_name_is_none_in_the_folder_that_a_run_names(tmp_path: Path) -> None:
    """A file there could stand in for any package that is not installed, here or in a worker."""
    with importing_only(["my.Net"]):
        make_importable(tmp_path)
        assert import_folders(tmp_path) == ()
    assert config_folder() != tmp_path
    with importing_only(["my.Net"], beside=True):  # of a config that the user names
        assert import_folders(tmp_path) == (str(tmp_path),)
