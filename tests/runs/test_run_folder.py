"""A run directory: of one config, one process at a time and its owner; what is published there, and what it pins."""

from __future__ import annotations

import json
import os
import pickle
import re
import stat
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from support import REPOSITORY
from support.command_line import in_process
from support.small_run import make_run

from pate.baselines._run import run_baseline
from pate.config import BaselineConfig, Config, parse_config
from pate.data.public import PublicData
from pate.errors import RunError
from pate.followup import train_extra_student
from pate.ledger import Pin
from pate.runs._run_ledger import Labels, pin_to_json, published_pins, read_labels, write_labels
from pate.runs.run import Run


def config(**changes: object) -> Config:
    content = {
        "n_teachers": 20,
        "data": {"source": "digits"},
        "teachers": [{"name": "sklearn.svm.SVC"}],
        "mechanism": {"name": "gnmax", "sigma": 5},
        "student": {"name": "supervised"},
    }
    return parse_config(content | changes)


def test_a_second_process_is_kept_out(tmp_path: Path) -> None:
    with (
        Run.create(tmp_path / "run", config()),
        pytest.raises(RunError, match="another pate is at work there"),
        Run.create(tmp_path / "run", config(), resume=True),
    ):
        pass
    with Run.create(tmp_path / "run", config(), resume=True):
        pass


@pytest.mark.parametrize(
    "changes", [{"mechanism": {"name": "gnmax", "sigma": 1}}, {"n_teachers": 10}, {"budget": {"max_queries": 5000}}]
)
def test_another_config_does_not_go_on_with_it(changes: dict[str, object], tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", config()):
        pass
    with (
        pytest.raises(RunError, match="belongs to another config"),
        Run.create(tmp_path / "run", config(**changes), resume=True),
    ):
        pass


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for resume in (True, False):
        with pytest.raises(RunError), Run.create(tmp_path, config(), resume=resume):
            pass
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("mode", [0o750, 0o705])
def test_a_private_folder_that_others_can_enter_is_refused(mode: int, tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", config()) as run:
        assert run.private.stat().st_mode & 0o077 == 0
    (tmp_path / "run" / "private").chmod(mode)
    with pytest.raises(RunError, match="others can read it"), Run.create(tmp_path / "run", config(), resume=True):
        pass


def test_what_a_run_began_with_is_remembered(tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", config()) as run:
        assert run.same_as_before("digest", "one")
    with Run.create(tmp_path / "run", config(), resume=True) as run:
        assert run.same_as_before("digest", "one")
        assert not run.same_as_before("digest", "two")
        assert run.same_as_before("digest", "one")
        run.replace("digest", "two")
        assert run.same_as_before("digest", "two")


# Nobody but the owner can write to anything that pate makes, whatever the umask that it was started with.


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def writable_by_others(folder: Path) -> list[str]:
    found = [path for path in folder.rglob("*") if not path.is_symlink()]
    return [str(path) for path in found if path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH)]


@pytest.mark.usefixtures("open_umask")
def test_others_cannot_write_to_a_run_or_to_what_is_made_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    run = tmp_path / "runs" / "digits"
    make_run(run)
    train_extra_student(run, ["student.params.estimator=sklearn.linear_model.LogisticRegression"])
    config = {
        "data": {"source": "digits"},
        "baseline": {"name": "dp_erm", "params": {"regularisation": 0.01}},
        "budget": {"epsilon": 50},
    }
    run_baseline(parse_config(config, BaselineConfig), f"file://{tmp_path}/stored/erm")
    assert in_process("compare", run, "--out", tmp_path / "compared").returncode == 0
    if find_spec("mlflow"):
        assert in_process("report", run, "--mlflow", tmp_path / "mlflow").returncode == 0
    assert {"plots", "student", "students", "private"} <= {path.name for path in run.iterdir()}
    assert writable_by_others(tmp_path) == []


def test_every_folder_is_made_with_a_mode() -> None:
    """`Path.mkdir` alone leaves it to the umask, and so does `parents=True` for all folders but the last."""
    bare = re.compile(r"\.mkdir\((?![^)]*\bmode=)|parents=True|makedirs\(")
    for path in sorted((REPOSITORY / "pate").rglob("*.py")):
        assert not bare.search(path.read_text()), f"{path.name}: use make_folder of pate/storage/_files.py"


# What is published: labels.npz and the student's card.

FIRST, LATER = Pin(4, bytes(range(32))), Pin(7, bytes(range(32, 64)))
X = np.arange(12, dtype=np.float32).reshape(6, 2)
DATA = PublicData(X, ("a", "b"), public_rows=np.array([5, 0, 3, 1, 2, 4]))
LABELS = Labels(np.array([1, 0, 1]), np.array([3, 5, 1]), FIRST, np.array([0.5, 1, 1]), np.array([7, 7, 2]))


def test_labels_come_back_with_their_rows_and_their_pin(tmp_path: Path) -> None:
    write_labels(tmp_path / "labels.npz", LABELS, ("a", "b"))
    found = read_labels(tmp_path / "labels.npz")
    assert found is not None
    assert (found.labels.tolist(), found.rows.tolist(), found.pin) == ([1, 0, 1], [3, 5, 1], FIRST)
    assert found.weights is not None
    assert found.cells is not None
    assert (found.weights.tolist(), found.cells.tolist()) == ([0.5, 1, 1], [7, 7, 2])
    np.testing.assert_array_equal(found.examples(DATA), X[[2, 0, 3]])  # where rows 3, 5 and 1 of the source are now
    assert read_labels(tmp_path / "none.npz") is None


def test_labels_of_examples_that_are_not_there_are_refused() -> None:
    fewer = replace(DATA, X_public=X[:3], public_rows=np.array([5, 0, 3]))
    with pytest.raises(RunError, match="names public examples that are not there"):
        LABELS.examples(fewer)


def test_both_files_pin_the_ledger(tmp_path: Path) -> None:
    assert published_pins(tmp_path) == {}
    write_labels(tmp_path / "labels.npz", LABELS, ("a", "b"))
    assert published_pins(tmp_path) == {"labels.npz": FIRST}
    (tmp_path / "student").mkdir()
    (tmp_path / "student" / "student.json").write_text(json.dumps({"ledger": pin_to_json(LATER)}))
    assert published_pins(tmp_path) == {"labels.npz": FIRST, "student/student.json": LATER}


@pytest.mark.parametrize("content", [b"", b"not an archive", b"PK\x03\x04"])
def test_damaged_labels_were_published_all_the_same(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "labels.npz").write_bytes(content)
    with pytest.raises(RunError, match="is damaged, or of another pate"):
        published_pins(tmp_path)


class Runs:
    """Code, where a pickle is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


def test_labels_are_never_unpickled(tmp_path: Path) -> None:
    assert pickle.loads(pickle.dumps(Runs(tmp_path / "ran"))) is None
    (tmp_path / "ran").unlink()  # so would it be
    np.savez(tmp_path / "labels.npz", labels=np.array([Runs(tmp_path / "ran")], dtype=object), rows=np.arange(1))
    with pytest.raises(RunError, match="is damaged"):
        read_labels(tmp_path / "labels.npz")
    assert not (tmp_path / "ran").exists()
