"""What a command is told reaches the library, under its own name: every option of every command that trains."""

from __future__ import annotations

import importlib
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import typer
from support.command_line import in_process

from pate.cli import app
from pate.config import default_config_path

LIBRARY = {
    "run": ("pate.pipeline", "run"),
    "baseline": ("pate.baselines._run", "run_baseline"),
    "student": ("pate.followup", "train_extra_student"),
    "audit": ("pate.audit.runner", "audit"),
    "reproduce": ("pate.reproduce._run", "reproduce"),
    "compare": ("pate.report._comparison", "compare_runs"),
}
NEEDED = {
    "run": [str(default_config_path())],
    "baseline": ["base.yaml"],
    "reproduce": ["digits"],
    "compare": ["runs/one", "runs/two"],
}
BASE = "name: base\ndata: {source: digits}\nbaseline: {name: dp_erm}\nbudget: {epsilon: 2}\n"
ALL = ["run", "baseline", "student", "audit", "reproduce"]
CASES: list[tuple[str, str, str, Any]] = [
    *((command, "--data-dir there", "data_dir", Path("there")) for command in ALL),
    *((command, "--address 10.0.0.1:6379", "address", "10.0.0.1:6379") for command in ALL if command != "audit"),
    *((command, "--trust my.Own --trust my.Net", "trust", ["my.Own", "my.Net"]) for command in ("student", "audit")),
    ("run", "--trust private/teachers", "trust", ["private/teachers"]),
    *((command, "--anchor /copies/links", "anchor", "/copies/links") for command in ("run", "baseline")),
    *((command, "--resume --out there", "resume", True) for command in ("run", "baseline")),
    *((command, "--resume=auto --out there", "resume", "auto") for command in ("run", "baseline")),
    *((command, "--out there", "out", "there") for command in ("run", "baseline")),
    ("reproduce", "--out there", "out", Path("there")),
    ("run", "--force", "force", True),
    ("run", "--evaluate-teachers", "evaluate_teachers", True),
    ("run", "--set seed=4711", "config.seed", 4711),
    ("baseline", "--set seed=4711", "config.seed", 4711),
    ("student", "--set student.name=mixmatch", "overrides", ["student.name=mixmatch"]),
    ("student", "--config own.yaml", "student", {"name": "mixmatch"}),
    ("audit", "--against runs/two --against runs/three", "against", ["runs/two", "runs/three"]),
    ("audit", "--attacks threshold,shadow", "attacks", ["threshold", "shadow"]),
    ("audit", "--confidence 0.875", "options.confidence", 0.875),
    ("audit", "--sensitive age --sensitive sex", "options.sensitive", ("age", "sex")),
    ("reproduce", "--seeds 5", "seeds", 5),
    ("compare", "--with-private", "with_private", True),
]
ELSEWHERE = {  # what is said of an option by other tests: how results are printed, and what a study or an audit holds
    *("--help", "-h", "--json", "--log-json", "--plan", "--quick", "--votes", "--rows", "--figures"),
    ("audit", "--address"),
    ("compare", "--out"),
}


class Reached(Exception):
    """The library was called."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "base.yaml").write_text(BASE)
    (tmp_path / "own.yaml").write_text("student: {name: mixmatch}\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def asked(command: str, words: list[str], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The arguments by name that the library gets from a command."""
    found: dict[str, Any] = {}
    module = importlib.import_module(LIBRARY[command][0])
    parameters = signature(getattr(module, LIBRARY[command][1]))

    def reached(*arguments: Any, **given: Any) -> None:
        bound = parameters.bind(*arguments, **given)
        bound.apply_defaults()
        found.update(bound.arguments | bound.arguments.get("options", {}) if command == "run" else bound.arguments)
        raise Reached

    with monkeypatch.context() as patched:
        patched.setattr(module, LIBRARY[command][1], reached)
        ended = in_process(command, *NEEDED.get(command, ["runs/one"]), *words)
    assert found, ended.stderr
    return found


@pytest.mark.parametrize(("command", "words", "argument", "value"), CASES, ids=lambda part: str(part).replace("/", ":"))
def test_the_library_gets_it(
    command: str, words: str, argument: str, value: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def its(arguments: dict[str, Any]) -> Any:
        name, _, field = argument.partition(".")
        return getattr(arguments[name], field) if field else arguments.get(name)

    assert its(asked(command, words.split(), monkeypatch)) == value
    assert its(asked(command, [], monkeypatch)) != value, "it is so without the option too"


def test_no_option_is_left_out() -> None:
    commands: Any = typer.main.get_command(app)
    told = {(command, word.partition("=")[0]) for command, words, *_ in CASES for word in words.split()}
    for command in LIBRARY:
        options = {name for option in commands.commands[command].params for name in option.opts if name[0] == "-"}
        assert {name for name in options - ELSEWHERE if (command, name) not in told | ELSEWHERE} == set(), command


@pytest.mark.parametrize("command", ["show", "verify"])
def test_a_ledger_is_compared_with_the_anchor_that_is_named(command: str, folder: Path) -> None:
    assert in_process("ledger", "create", "shared", "--epsilon", "3").returncode == 0
    (folder / "links").touch()
    assert in_process("ledger", command, "shared").returncode == 0
    ended = in_process("ledger", command, "shared", "--anchor", folder / "links")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert f"{folder / 'links'}: the anchor holds nothing of this ledger" in ended.stderr
