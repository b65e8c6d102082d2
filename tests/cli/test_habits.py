"""What people's fingers expect: -h, python -m pate, completion, and a run in a notebook."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import rich.console
from support.command_line import in_process
from support.small_data import own_data

import pate
from pate.runs._console import Console, Quiet, plain_console

SMALL = {
    "name": "notebook",
    "n_teachers": 8,
    "data": {"source": "digits"},
    "teachers": [{"name": "sklearn.naive_bayes.GaussianNB"}],
    "mechanism": {"name": "gnmax", "sigma": 4},
    "budget": {"max_queries": 40},
    "student": {"name": "supervised", "params": {"estimator": "sklearn.naive_bayes.GaussianNB"}},
    "backend": "local",
}


@pytest.mark.parametrize(
    "arguments", [["-h"], ["run", "-h"], ["ledger", "-h"], ["ledger", "show", "-h"], ["plan", "-h"]]
)
def test_a_short_h_helps(arguments: list[str]) -> None:
    shown = in_process(*arguments)
    assert (shown.returncode, shown.stdout.startswith("Usage: ")) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["rum"], "No such command 'rum'. Did you mean 'run'? (see `pate --help`)"),
        (["run", "--output", "x"], "no such option: --output; did you mean --out?"),
        (["run", "a.yaml", "b.yaml"], "unexpected extra argument"),
        (["init", "data.csv"], "Missing option '--public' (see `pate init --help`)"),
        (["init", "data.csv", "--public", "p.csv", "--records", "4k"], "--records"),
        (["account", "votes.npy", "--mechanism", "gnmax"], "Missing option '--delta'"),
        (["ledger", "shew"], "shew"),
        (["trian"], "No such command 'trian'; there are init, plan, "),
        (["run", "--epsilon", "2"], "what a config says is changed with --set, as in --set budget.epsilon=2"),
    ],
)
def test_a_mistake_in_the_command_is_one_line(arguments: list[str], words: str) -> None:
    ended = in_process(*arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("pate: error: ")
    assert ended.stderr.count("\n") == 1
    assert words in ended.stderr


@pytest.mark.parametrize("arguments", [[], ["ledger"]])
def test_without_a_command_there_is_help(arguments: list[str]) -> None:
    ended = in_process(*arguments)
    assert "Usage: " in ended.stdout + ended.stderr
    assert "pate: error" not in ended.stderr


def test_python_m_pate_is_pate() -> None:
    shown = subprocess.run([sys.executable, "-m", "pate", "--version"], capture_output=True, text=True, timeout=300)
    assert shown.stdout == f"{pate.__version__}\n"


def test_shells_complete_commands() -> None:
    program = str(Path(sys.executable).parent / "pate")
    words = {"COMP_WORDS": "pate pre", "COMP_CWORD": "1", "_PATE_COMPLETE": "complete_bash"}
    shown = subprocess.run([program], capture_output=True, text=True, timeout=60, env=os.environ | words)
    assert shown.stdout.split() == ["predict"]


def test_a_notebook_is_no_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """What is printed in one is saved with it: nothing private is."""
    monkeypatch.setattr(rich.console, "_is_jupyter", lambda: True)
    assert not plain_console().is_jupyter
    Console().info_private("17 records have no valid id")
    assert "17" not in "".join(capsys.readouterr())


def test_a_run_from_plain_values_or_a_file_shows_itself_in_a_notebook(tmp_path: Path) -> None:
    outcome = pate.run(SMALL, tmp_path / "run", console=Quiet(), pages=False, force=True)
    shown = outcome._repr_html_()
    assert shown.startswith("<table>")
    assert f"{outcome.report.privacy.epsilon:.3g}" in shown
    assert "private" not in shown
    assert "seconds" not in shown, "of private work, which are private"
    (tmp_path / "my.yaml").write_text(pate.load_config().to_yaml().replace("n_teachers: 80", "n_teachers: 1"))
    with pytest.raises(pate.PateError, match="n_teachers"):
        pate.run(tmp_path / "my.yaml", tmp_path / "other")


@pytest.mark.parametrize("log", [[], ["--log-json"]])
def test_what_is_printed_into_a_pipe_says_nothing_of_how_long_private_work_took(log: list[str], tmp_path: Path) -> None:
    own_data(tmp_path)
    run = tmp_path / "run"
    with Path(tmp_path / "own.yaml").open("a") as file:
        file.write("backend: local\n")
    (tmp_path / "erm.yaml").write_text(_ERM)
    ran = in_process("run", tmp_path / "own.yaml", "--out", run, *log)
    baseline = in_process("baseline", tmp_path / "erm.yaml", "--out", tmp_path / "erm", *log)
    planned = in_process("plan", tmp_path / "own.yaml", "--json")
    assert (ran.returncode, baseline.returncode, planned.returncode) == (0, 0, 0), (ran, baseline, planned)
    assert json.loads(planned.stdout)["seconds_of_training"] is None, "it grows with the number of records"
    published = "".join((folder / "report.json").read_text() for folder in (run, tmp_path / "erm"))
    for text in (*ran[1:], *baseline[1:], published, pate.Run.load(run)._repr_html_()):
        assert not re.search(r"seconds|\d s\b|per second|\d\d:\d\d", text), text
    assert json.loads((run / "private" / "seconds.json").read_text())["vote"] > 0, "the operator can look it up"


_ERM = """
name: erm
data: {source: csv, private: private.csv, public: public.csv, test: test.csv, label: kind, id: who, classes: [cat, dog]}
baseline: {name: dp_erm, params: {regularisation: 0.01}}
budget: {epsilon: 1}
records: 300
"""


@pytest.mark.parametrize("arguments", [[], ["ledger"]])
def test_help_lists_commands_by_group_with_whole_sentences(arguments: list[str]) -> None:
    shown = in_process(*arguments, "--help").stdout
    assert "..." not in shown.replace("[ARGS]...", "")
    if not arguments:
        places = [shown.index(f"\n{group}:\n") for group in ("Plan", "Run", "Look", "Cluster")]
        assert places == sorted(places)
        assert shown.index("\n  ledger ") < places[3] < shown.index("\n  doctor ")
