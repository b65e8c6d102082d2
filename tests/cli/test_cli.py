"""The program as people meet it: real processes, real Ray, real kills."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support import REPOSITORY
from support.command_line import PATE, SMALL, in_process, pate
from support.small_data import own_data

from pate.report.schema import Report


def test_embedded_run_prints_one_json_object_and_keeps_its_promise(
    embedded: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    out, shown = embedded
    assert shown.returncode == 0, shown.stderr
    content = json.loads(shown.stdout)
    assert content["privacy"]["epsilon"] <= 9
    assert content["privacy"]["delta"] == 1e-5
    assert content["student"]["accuracy"] >= 0.80  # 90 % on average; noise is fresh in every run
    assert content["run"] == str(out)
    stored = json.loads((out / "report.json").read_text())
    assert Report.model_validate(stored).queries.asked == content["queries"]["asked"]


def test_says_the_cost_and_the_time_before_it_trains(embedded: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    _, shown = embedded
    before, found, _ = shown.stderr.partition("training will take about")
    assert found
    assert "ε to publish" in before


def test_run_directory_is_as_documented(embedded: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    out, _ = embedded
    names = {path.name for path in out.iterdir()}
    assert {"config.yaml", "report.json", "report.html", "labels.npz", "student", "ledger.db", "private"} <= names
    assert (out / "private").stat().st_mode & 0o777 == 0o700
    for path in (out / "private").iterdir():
        assert path.stat().st_mode & 0o077 == 0, path
    with np.load(out / "labels.npz", allow_pickle=False) as released:
        assert released["classes"].tolist() == [str(digit) for digit in range(10)]
        assert len(released["labels"]) == json.loads((out / "report.json").read_text())["queries"]["max_queries"]


def test_nothing_private_is_in_what_may_leave(
    embedded: tuple[Path, subprocess.CompletedProcess[str]], published: Callable[[Path], dict[str, str]]
) -> None:
    out, shown = embedded
    text = "".join(published(out).values()) + shown.stdout
    evaluation = json.loads((out / "private" / "evaluation.json").read_text())
    for figure in ("mean_teacher_accuracy", "plurality_accuracy"):
        assert figure not in text
    # the other may equal a student's by chance; this one by less than 1 in 10,000
    assert not stands_alone(str(evaluation["mean_teacher_accuracy"]), text)
    assert not stands_alone("1197", text)  # the number of private records
    assert not stands_alone("1,197", text)


def stands_alone(number: str, text: str) -> bool:
    """Whether the number stands in the text by itself, not among the digits of another one.

    >>> [stands_alone("1197", text) for text in ("1197 records", "[0.5,1197]", "n=1197.", "0.6509311974", "11970")]
    [True, True, True, False, False]
    """
    return re.search(rf"(?<![\w.]){re.escape(number)}(?!\.?\w)", text) is not None


def test_saved_student_predicts_without_ray(
    embedded: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    """From Python and by `pate predict`, in a process that has loaded nothing."""
    out, _ = embedded
    np.save(tmp_path / "in.npy", np.zeros((3, 8, 8), dtype=np.float32))
    code = (
        "import sys, numpy as np, pate\n"
        f"student = pate.load_model({str(out / 'student')!r})\n"
        "print(student.predict(np.zeros((3, 8, 8), dtype=np.float32)).shape)\n"
        "from pate.cli import main\n"
        f"sys.argv = ['pate', 'predict', {str(out)!r}, '--input', {str(tmp_path / 'in.npy')!r}, '--json']\n"
        "try:\n    main()\nfinally:\n    assert 'ray' not in sys.modules"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert shown.returncode == 0, shown.stderr
    shape, predicted = shown.stdout.splitlines()
    assert shape == "(3,)"
    assert json.loads(predicted)["delta"] == 1e-5
    assert len(json.loads(predicted)["labels"]) == 3


def test_resume_of_a_finished_run_changes_nothing(embedded: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    out, _ = embedded
    before = (out / "labels.npz").read_bytes()
    shown = in_process("run", "--out", out, "--resume")
    assert shown.returncode == 0, shown.stderr
    assert (out / "labels.npz").read_bytes() == before
    assert "training teachers" not in shown.stderr
    assert "starting Ray" not in shown.stderr  # votes are there
    assert "ε to publish" in shown.stdout


def stored_answers(ledger: Path) -> dict[bytes, int]:
    if not ledger.exists():
        return {}
    with sqlite3.connect(f"file:{ledger}?mode=ro", uri=True, timeout=10) as db:
        try:
            return dict(db.execute("SELECT query, label FROM answers").fetchall())
        except sqlite3.OperationalError:
            return {}  # killed before the tables were made


def total(ledger: Path) -> int:
    if not ledger.exists():
        return 0
    with sqlite3.connect(f"file:{ledger}?mode=ro", uri=True, timeout=10) as db:
        try:
            return int(db.execute("SELECT TOTAL(asked) FROM charges").fetchone()[0])
        except sqlite3.OperationalError:
            return 0


STAGES: dict[str, Callable[[Path, str], bool]] = {
    "starting": lambda out, text: (out / "private" / "key").exists(),
    "training": lambda out, text: "training will take" in text,
    "labelling": lambda out, text: total(out / "ledger.db") > 0,
    "student": lambda out, text: (out / "labels.npz").exists(),
}


@pytest.mark.parametrize(
    ("stage", "kill"),
    [
        ("labelling", signal.SIGKILL),
        *(pytest.param(stage, signal.SIGKILL, marks=pytest.mark.slow) for stage in ("starting", "training", "student")),
        *(pytest.param(stage, signal.SIGINT, marks=pytest.mark.slow) for stage in STAGES),
    ],
)
def test_killed_in_any_stage_then_resumed(stage: str, kill: signal.Signals, tmp_path: Path) -> None:
    out = tmp_path / "run"
    log = tmp_path / "log"
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [*PATE, "run", *SMALL, "--out", str(out)],
            stdout=stderr,
            stderr=stderr,
            cwd=REPOSITORY,
            start_new_session=True,
        )
        deadline = time.monotonic() + 120
        while not STAGES[stage](out, log.read_text()) and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.002)
        process.send_signal(kill)
        process.wait(timeout=300)
    paid, charged = stored_answers(out / "ledger.db"), total(out / "ledger.db")
    assert len(paid) == charged
    if stage == "labelling":
        assert charged > 0
    if kill == signal.SIGINT and process.returncode == 130:
        assert "--resume" in log.read_text()
    deadline = time.monotonic() + 60
    resume = in_process if stage == "labelling" else pate  # votes are there: it needs no Ray
    shown = resume("run", *SMALL, "--out", str(out), "--resume")
    while "another pate is at work" in shown.stderr and time.monotonic() < deadline:
        time.sleep(0.2)
        shown = resume("run", *SMALL, "--out", str(out), "--resume")
    assert shown.returncode == 0, shown.stderr
    after = stored_answers(out / "ledger.db")
    assert {query: after[query] for query in paid} == paid
    assert total(out / "ledger.db") == len(after) >= charged
    assert total(out / "ledger.db") == 300


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "n_teachers=10000"], ["n_teachers = 10000", "--force", "fewer teachers"]),
        (["--resume", "--out", "/nonexistent/run"], ["/nonexistent/run", "no run to resume"]),
        (["--out", "/proc/run"], ["/proc/run"]),
    ],
)
def test_a_mistake_is_one_line_and_status_two(arguments: list[str], words: list[str]) -> None:
    status, _, said = in_process("run", *arguments)
    assert status == 2, said
    assert "Traceback" not in said
    errors = [line for line in said.splitlines() if line.startswith("pate: error:")]
    assert len(errors) == 1
    for word in words:
        assert word in errors[0]


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("127.0.0.1:1", ["--address 127.0.0.1:1", "cannot join"]),
        ("http://127.0.0.1:8265", ["is a jobs address", "pate submit"]),
    ],
)
def test_an_address_that_nobody_can_join_is_one_line(address: str, words: list[str], tmp_path: Path) -> None:
    shown = in_process("run", "--address", address, "--out", tmp_path / "run")
    assert shown.returncode == 2, shown.stderr
    assert "trying" not in shown.stderr  # told at once
    assert not (tmp_path / "run").exists()
    errors = [line for line in shown.stderr.splitlines() if line.startswith("pate: error:")]
    assert len(errors) == 1
    for word in words:
        assert word in errors[0]


def test_a_directory_of_another_config_is_refused(embedded: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    out, _ = embedded
    again = in_process("run", "--out", out)
    assert again.returncode == 2
    assert "--resume" in again.stderr
    other = in_process("run", "--out", out, "--resume", "--set", "seed=5")
    assert other.returncode == 2
    assert "belongs to another config (seed is 0 there, 5 here)" in other.stderr


def test_two_runs_on_one_directory(embedded: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    import fcntl

    out, _ = embedded
    with (out / "private" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shown = in_process("run", "--out", out, "--resume")
    assert shown.returncode == 2
    assert "another pate is at work" in shown.stderr


def test_a_private_directory_others_can_read_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "run"
    (out / "private").mkdir(parents=True)
    os.chmod(out / "private", 0o755)
    shown = in_process("run", "--out", out, "--resume")
    assert shown.returncode == 2
    assert "chmod" in shown.stderr


def test_a_private_value_that_is_no_number_is_one_line_and_status_two(tmp_path: Path) -> None:
    own_data(tmp_path)
    path = tmp_path / "private.csv"
    header, first, rest = path.read_text().split("\n", 2)
    path.write_text("\n".join([header, "nan," + first.partition(",")[2], rest]))
    shown = in_process("run", tmp_path / "own.yaml", "--out", tmp_path / "run")
    assert shown.returncode == 2, shown.stderr
    assert "not a finite number" in shown.stderr
    assert "row 0" in shown.stderr
    assert "Traceback" not in shown.stderr
