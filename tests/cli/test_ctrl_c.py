"""Ctrl-C is answered by one line, always, and what it advises is true; never by a traceback."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support import REPOSITORY
from support.small_data import own_data

_PRESSED = """
import os, signal, sys
class Pressed:
    '''Ctrl-C the moment that a module is looked for.'''
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), {number})
sys.meta_path.insert(0, Pressed())
sys.argv = ["pate", *{words!r}]
import runpy
runpy.run_module("pate", run_name="__main__")
"""


def pressed(module: str, *words: object, number: int = signal.SIGINT, **options: object) -> tuple[int, list[str]]:
    """Exit status, and what was said, of a command that is interrupted when it loads a module; progress left out."""
    code = _PRESSED.format(module=module, words=[str(word) for word in words], number=int(number))
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-c", code]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment, **options)  # type: ignore[call-overload]
    lines = (shown.stdout + shown.stderr).splitlines()
    return shown.returncode, [line for line in lines if not line.endswith("…") and " ε to publish" not in line]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    own_data(tmp_path)
    with (tmp_path / "own.yaml").open("a") as file:
        file.write("backend: local\n")
    return tmp_path


@pytest.mark.parametrize(
    "module",
    ["typer", "numpy", *(pytest.param(name, marks=pytest.mark.slow) for name in ("pydantic", "pate.pipeline"))],
)
def test_while_modules_are_loaded_nothing_was_begun(module: str, folder: Path) -> None:
    status, said = pressed(module, "run", folder / "own.yaml", "--out", folder / "run")
    assert (status, said) in [(130, ["interrupted; nothing was begun"]), (130, ["interrupted"])]
    assert not (folder / "run").exists()


@pytest.mark.parametrize(
    ("module", "number"),
    [
        ("pate.voters.teachers.ensemble", signal.SIGINT),
        pytest.param("matplotlib.figure", signal.SIGTERM, marks=pytest.mark.slow),
    ],
)
def test_a_run_that_was_begun_goes_on_by_the_command_that_is_told(module: str, number: int, folder: Path) -> None:
    words = ["run", folder / "own.yaml", "--set", "n_teachers=9", "--data-dir", folder, "--out", folder / "a run"]
    status, said = pressed(module, *words, number=number)
    assert status == 128 + number
    (line,) = said
    begun = (folder / "a run" / "config.yaml").exists()
    assert begun == ("Go on with: " in line), line
    if begun:
        command = line.partition("Go on with: pate ")[2]
        assert "--data-dir" in command
        again = subprocess.run(
            [sys.executable, "-m", "pate", *shlex.split(command), "--json"],
            capture_output=True,
            text=True,
            timeout=240,
            cwd=REPOSITORY,
        )
        assert again.returncode == 0, again.stderr
    else:
        assert line == "interrupted; nothing was begun"


@pytest.mark.parametrize("command", [["student"], ["predict", "--input", "public.csv"]])
def test_other_commands_say_one_line_too(command: list[str], folder: Path) -> None:
    status, said = pressed("numpy", *command, folder / "run", cwd=folder)
    assert (status, said) in [(130, ["interrupted; nothing was begun"]), (130, ["interrupted"])]


def test_advice_to_resume_is_for_what_has_begun(folder: Path) -> None:
    """A teacher's class is imported before there is a run, with all else that a run needs loaded."""
    status, said = pressed("sklearn.naive_bayes", "run", folder / "own.yaml", "--out", folder / "run")
    assert (status, said) == (130, ["interrupted; nothing was begun"])
    assert not (folder / "run").exists()
