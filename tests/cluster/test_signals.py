"""`pate run` that is told to end: one line, the usual exit status, nothing left running or on disk."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import REPOSITORY
from support.command_line import PATE, SMALL
from support.processes import groups_of, pids_of


@pytest.fixture
def place() -> Iterator[Path]:
    """Where temporary files go; the names of sockets in there must be short."""
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder:
        yield Path(folder)


def started(place: Path, out: Path, **options: object) -> subprocess.Popen[bytes]:
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}  # with all threads
    command = [*PATE, "run", *SMALL, "--out", str(out)]
    return subprocess.Popen(command, cwd=REPOSITORY, env=environment | {"TMPDIR": str(place)}, **options)  # type: ignore[call-overload,no-any-return]


def wait_until(text: str, log: Path, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 120
    while text not in log.read_text():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("number", "stage", "later", "group"),
    [
        (signal.SIGTERM, "trying each kind", 0.0, True),  # as a terminal and `timeout` do: to the group
        pytest.param(signal.SIGHUP, "trying each kind", 0.0, True, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, "training will take", 0.0, False, marks=pytest.mark.slow),
        *(pytest.param(signal.SIGTERM, "starting Ray", s, False, marks=pytest.mark.slow) for s in (0.5, 2, 3, 4, 5, 6)),
    ],
)
def test_a_signal_ends_a_run_with_one_line(
    number: signal.Signals, stage: str, later: float, group: bool, place: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with log.open("w") as stream:
        process = started(place, tmp_path / "run", stdout=stream, stderr=stream, start_new_session=True)
    wait_until(stage, log, process)
    time.sleep(later)
    before = log.read_text()
    if group:  # which Ray's processes are not in
        assert groups_of(process.pid) > {process.pid}
    (os.killpg if group else os.kill)(process.pid, number)
    assert process.wait(timeout=300) == 128 + number
    said = [line for line in log.read_text().removeprefix(before).splitlines() if line and not line.endswith("…")]
    assert len(said) == 1, log.read_text()
    assert said[0].startswith("interrupted; what was paid for is kept. Go on with: pate run")
    assert pids_of(process.pid) == []
    assert list(place.iterdir()) == []


def test_a_terminal_that_is_closed_ends_a_run(place: Path, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    script = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
    words = [*PATE, "run", *SMALL, "--set", "backend=local", "--out", str(tmp_path / "run")]
    command = [sys.executable, "-c", script, *words]
    process = subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=REPOSITORY,
        env=os.environ | {"TMPDIR": str(place), "TERM": "xterm"},
        start_new_session=True,
    )
    os.close(theirs)
    deadline = time.monotonic() + 120
    while not (tmp_path / "run" / "private" / "teachers").exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        os.read(ours, 1 << 16)
    os.close(ours)  # the kernel sends SIGHUP; what is written from now on fails
    assert process.wait(timeout=300) == 128 + signal.SIGHUP
    assert pids_of(process.pid) == []
    assert list(place.iterdir()) == []
