"""Nobody but the owner can write to anything that pate makes, whatever the umask that it was started with."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from support import REPOSITORY
from support.command_line import in_process
from support.small_run import make_run

from pate.baselines._run import run_baseline
from pate.config import BaselineConfig, parse_config
from pate.followup import train_extra_student


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
