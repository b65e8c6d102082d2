"""A head that is gone: the run ends in one line that says so, and goes on elsewhere without paying twice."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support import REPOSITORY
from support.command_line import PATE, pate
from support.heads import head

_WATCHED = """import os, socket, sys, threading, time
from pate.cluster import _session as connect
from pate.cluster._interrupts import interruptible
connect._SECONDS_BETWEEN_LOOKS, os.environ["RAY_gcs_rpc_server_reconnect_timeout_s"] = 0.05, "30.2"
listening = socket.create_server(("127.0.0.1", 0))
place = listening.getsockname()
"""
GONE = "the head of that Ray cluster is gone. What was paid for is kept"

HELD_UP = (REPOSITORY / "tests" / "support" / "held_up.py").read_text()

CONFIG = """
name: lost
n_teachers: 40
data: {source: digits}
teachers: [{name: held_up.Slow}]
mechanism: {name: gnmax, sigma: 20}
budget: {max_queries: 40}
student: {name: supervised, params: {estimator: held_up.HeldUp}}
"""


def shown_by(code: str) -> list[str]:
    shown = subprocess.run([sys.executable, "-c", _WATCHED + code], capture_output=True, text=True, timeout=240)
    assert shown.returncode == 0, shown.stderr
    return shown.stdout.splitlines()


def test_a_head_that_stays_away_interrupts_what_is_going_on() -> None:
    code = """
with interruptible():
    try:
        with connect.raise_on_head_loss("there:1", place):
            listening.close()
            time.sleep(50)
    except connect.RunError as error:
        print(error)
"""
    (said,) = shown_by(code)
    assert GONE in said
    assert "resume=True" in said


def test_what_heeds_no_signal_ends_all_the_same() -> None:
    code = """
import signal
os.environ["RAY_gcs_rpc_server_reconnect_timeout_s"], connect._SECONDS_TO_LEAVE = "1.2", 1
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
with interruptible(), connect.raise_on_head_loss("there:1", place):
    listening.close()
    time.sleep(50)
"""
    shown = subprocess.run([sys.executable, "-c", _WATCHED + code], capture_output=True, text=True, timeout=240)
    assert shown.returncode == 2
    (said,) = shown.stderr.splitlines()
    assert said.startswith(f"pate: error: there:1: {GONE}")
    assert "--resume" in said


def test_a_head_that_comes_back_in_time_is_waited_for() -> None:
    code = """
os.environ["RAY_gcs_rpc_server_reconnect_timeout_s"] = "40"
with interruptible(), connect.raise_on_head_loss("there:1", place):
    listening.close()
    time.sleep(0.5)
    again = socket.create_server(place)
    time.sleep(0.5)
print("went on")
time.sleep(0.5)
print("and on")
"""
    assert shown_by(code) == ["went on", "and on"]


def test_what_fails_meanwhile_is_laid_at_its_door_and_other_errors_are_left_alone() -> None:
    code = """
def said(closing):
    try:
        with connect.raise_on_head_loss("there:1", place):
            if closing:
                listening.close()
            raise ValueError("theirs")
    except Exception as error:
        return str(error)
print(said(False))
print(said(True))
"""
    theirs, ours = shown_by(code)
    assert theirs == "theirs"
    assert GONE in ours


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["train", "student"])
def test_a_run_whose_head_is_killed_ends_in_one_line_and_goes_on(stage: str, tmp_path: Path) -> None:
    (tmp_path / "held_up.py").write_text(HELD_UP)
    (tmp_path / "lost.yaml").write_text(CONFIG)
    out, log = tmp_path / "run", tmp_path / "log"
    begun = ["run", str(tmp_path / "lost.yaml"), "--out", str(out)]
    teachers, labels = out / "private" / "teachers", out / "labels.npz"
    with head(RAY_gcs_rpc_server_reconnect_timeout_s="36") as cluster, log.open("w") as stream:
        command = [*PATE, *begun, "--address", cluster.address]
        run = subprocess.Popen(command, stdout=stream, stderr=stream, env=cluster.environment, cwd=REPOSITORY)

        def wait_until(happened: Callable[[], bool]) -> None:
            deadline = time.monotonic() + 180
            while not happened():
                assert run.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.05)

        wait_until(lambda: "starting Ray" in log.read_text())
        if stage == "student":
            (tmp_path / "hold").touch()
            wait_until(lambda: "training the student" in log.read_text())
        else:
            wait_until(lambda: len(list(teachers.glob("*"))) >= 5)
        kept = {path: path.stat().st_mtime_ns for path in (*teachers.glob("*"), *out.glob(labels.name))}
        cluster.kill_gcs()
        assert run.wait(timeout=120) == 2, log.read_text()
    *_, said = log.read_text().splitlines()
    assert said.startswith(f"pate: error: --address {cluster.address}: {GONE}")
    assert "--resume" in said
    assert "rpc_client" not in log.read_text()  # Ray's own words
    assert kept
    (tmp_path / "hold").unlink(missing_ok=True)
    again = pate(*begun, "--resume=auto", "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["queries"]["asked"] == 40
    for path, time_ns in kept.items():
        assert path.stat().st_mtime_ns == time_ns or path == labels, path  # trained once
    ledger = json.loads(pate("ledger", "show", str(out), "--json").stdout)
    assert sum(charge["asked"] for charge in ledger["charges"]) == 40
    assert pate("ledger", "verify", str(out)).returncode == 0
