"""The planted bugs still match the code, and the runner tells a bug that is noticed from one that is not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from planted import load, problems

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
AT_LEAST = 200


def test_every_planted_bug_matches_the_code_and_names_tests_that_exist() -> None:
    assert problems(load(HERE), REPOSITORY) == []


def test_there_are_enough_planted_bugs() -> None:
    assert len(load(HERE)) >= AT_LEAST


SMALL_CODE = "def double(x):\n    return x + x\n\n\ndef unused(x):\n    return x\n"
SMALL_TESTS = "from pate.sums import double\n\n\ndef test_double():\n    assert double(3) == 6\n"
NOTICED = {"id": "noticed", "old": "x + x", "new": "x - x"}
UNNOTICED = {"id": "unnoticed", "old": "return x\n", "new": "return -x\n"}
EQUIVALENT = {"id": "same", "old": "x + x", "new": "x * 2", "equivalent": "it is the same number"}


@pytest.fixture
def small_project(tmp_path: Path) -> Path:
    (tmp_path / "pate").mkdir()
    (tmp_path / "tests/mutants").mkdir(parents=True)
    (tmp_path / "pate/__init__.py").touch()
    (tmp_path / "pate/sums.py").write_text(SMALL_CODE)
    (tmp_path / "tests/test_sums.py").write_text(SMALL_TESTS)
    return tmp_path


def plant(project: Path, *entries: dict[str, object], part: str = "cli", options: str = "") -> tuple[int, str]:
    """The runner's exit status on a small project with these bugs, and what it printed."""
    common = {"file": "pate/sums.py", "why": "sums are wrong", "tests": ["tests/test_sums.py"]}
    folder = project / "tests/mutants"
    (folder / f"{part}.yaml").write_text(yaml.safe_dump([{**common, **entry} for entry in entries]))
    command = [sys.executable, str(HERE / "run.py"), "--root", str(project), "--folder", str(folder), "--jobs", "1"]
    done = subprocess.run([*command, *options.split()], capture_output=True, text=True, timeout=120)
    assert (project / "pate/sums.py").read_text() == SMALL_CODE, "bugs are planted in a copy"
    return done.returncode, done.stdout + done.stderr


def test_a_noticed_bug_is_caught_and_an_unnoticed_one_is_missed(small_project: Path) -> None:
    status, said = plant(small_project, NOTICED, UNNOTICED, EQUIVALENT)
    assert status == 1
    assert [line.split()[0] for line in said.splitlines()[:3]] == ["caught", "missed", "equivalent"]
    assert said.splitlines()[-1].split() == ["all", "3", "1", "1", "1", "0"]


def test_what_is_compiled_of_one_bug_is_not_taken_for_the_next(small_project: Path) -> None:
    harmless = {**NOTICED, "id": "harmless", "new": "x * 2"}  # of the same length
    _, said = plant(small_project, NOTICED, harmless, {**NOTICED, "id": "again"}, options="--no-clean")
    assert [line.split()[0] for line in said.splitlines()[:3]] == ["caught", "missed", "caught"]


def test_a_random_choice_takes_only_what_can_be_noticed(small_project: Path) -> None:
    status, said = plant(small_project, NOTICED, EQUIVALENT, options="--no-clean --random 5 --seed 1")
    assert status == 0
    assert said.startswith("5 at random: --random 5 --seed 1")
    assert said.splitlines()[-1].split() == ["all", "1", "1", "0", "0", "0"]


def test_text_that_no_longer_matches_fails_before_anything_runs(small_project: Path) -> None:
    gone = {**NOTICED, "id": "gone", "old": "x + y"}
    twice = {**NOTICED, "id": "twice", "old": "return x"}
    lost = {**NOTICED, "id": "lost", "tests": ["tests/test_lost.py"]}
    torn = {**NOTICED, "id": "torn", "new": "x +"}
    status, said = plant(small_project, gone, twice, lost, torn, NOTICED, {**NOTICED, "old": "x + x\n"})
    assert status == 2
    assert [line.split(":")[0] for line in said.splitlines()] == [
        "noticed",
        "cli/gone",
        "cli/twice",
        "cli/lost",
        "cli/torn",
    ]


def test_tests_that_fail_without_a_bug_prove_nothing(small_project: Path) -> None:
    (small_project / "tests/test_sums.py").write_text(SMALL_TESTS.replace("6", "7"))
    assert plant(small_project, NOTICED)[0] == 2


def test_tests_that_cannot_be_loaded_or_never_end_count_only_where_that_was_said(small_project: Path) -> None:
    renamed = {**NOTICED, "id": "renamed", "old": "def double", "new": "def twice"}
    endless = {**NOTICED, "id": "endless", "old": "return x + x", "new": "__import__('time').sleep(999)"}
    for bug, said_so, options in ((renamed, "at_import", ""), (endless, "hangs", "--limit 1")):
        status, said = plant(small_project, bug, {**bug, "id": "said", said_so: True}, options=f"--no-clean {options}")
        assert status == 2
        assert [line.split()[0] for line in said.splitlines()[:2]] == ["broken", "caught"]
