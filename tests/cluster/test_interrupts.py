"""Signals to end, in processes of their own."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

_BEGIN = """import os, signal, subprocess, sys, time
from pate.cluster._interrupts import advising, held_back, interruptible, received, speaking
"""


def shown_by(code: str, **options: object) -> list[str]:
    command = [sys.executable, "-c", _BEGIN + code]
    shown = subprocess.run(command, capture_output=True, text=True, **{"timeout": 240} | options)  # type: ignore[call-overload]
    assert shown.returncode == 0, shown.stderr
    return shown.stdout.splitlines()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_every_signal_to_end_is_a_keyboard_interrupt(number: signal.Signals) -> None:
    code = f"""
with interruptible():
    try:
        os.kill(os.getpid(), {number:d})
        time.sleep(60)
    except KeyboardInterrupt:
        print(received().name)
print(signal.getsignal(signal.SIGTERM).name, signal.getsignal(signal.SIGHUP).name)
"""
    assert shown_by(code) == [number.name, "SIG_DFL SIG_DFL"]


def test_what_is_ignored_or_handled_elsewhere_is_left_alone() -> None:
    code = """
signal.signal(signal.SIGTERM, lambda *_: print("theirs"))
with interruptible():
    os.kill(os.getpid(), signal.SIGHUP)
    os.kill(os.getpid(), signal.SIGTERM)
print("went on")
"""
    ignoring = {"preexec_fn": lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)}  # as nohup does
    assert shown_by(code, **ignoring) == ["theirs", "went on"]


def test_a_request_that_comes_twice_interrupts_once() -> None:
    code = """
with interruptible():
    try:
        os.kill(os.getpid(), signal.SIGHUP)
        time.sleep(60)
    except KeyboardInterrupt:
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGTERM)
        print("undisturbed", received().name)
"""
    assert shown_by(code) == ["undisturbed SIGHUP"]


@pytest.mark.parametrize(
    ("number", "threads"), [(signal.SIGTERM, 0), (signal.SIGINT, 1), (signal.SIGTERM, 1), (signal.SIGHUP, 1)]
)
def test_what_is_held_back_comes_to_whoever_had_it_before(number: signal.Signals, threads: int) -> None:
    """Another thread may take the signal: it must not be lost, nor run a handler that was set meanwhile."""
    code = f"""
import threading
for _ in range({threads}):
    threading.Thread(target=time.sleep, args=(3,), daemon=True).start()
with interruptible():
    try:
        with held_back():
            os.kill(os.getpid(), {number:d})
            time.sleep(0.2)
            signal.signal(signal.SIGTERM, lambda *_: print("a handler from within"))
            print("not yet")
        print("lost")
    except KeyboardInterrupt:
        print(received().name)
"""
    assert shown_by(code) == ["not yet", number.name]


def test_children_that_are_started_meanwhile_can_be_ended() -> None:
    code = """
with interruptible():
    with held_back():
        child = subprocess.Popen(["sleep", "60"], preexec_fn=lambda: None)
    child.terminate()
    print(child.wait(timeout=60))
"""
    assert shown_by(code) == ["-15"]


def test_a_command_says_one_line_at_once_however_often_it_is_told() -> None:
    code = """
import io
ours, theirs = os.pipe()
os.dup2(theirs, 2)
with interruptible(), speaking(), advising(lambda: "; this is how to go on"):
    for number in (signal.SIGINT, signal.SIGINT, signal.SIGTERM):
        try:
            os.kill(os.getpid(), number)
            time.sleep(0.1)
        except KeyboardInterrupt:
            print("raised")
os.kill(os.getpid(), 0)
print(os.read(ours, 1000))
"""
    assert shown_by(code) == ["raised", "raised", repr(b"interrupted; this is how to go on\n")]


def test_what_is_held_back_is_answered_at_once() -> None:
    code = """
ours, theirs = os.pipe()
os.dup2(theirs, 2)
with interruptible(), speaking():
    try:
        with held_back():
            os.kill(os.getpid(), signal.SIGINT)
            print(os.read(ours, 1000))  # waits for it
            print("not yet")
        print("lost")
    except KeyboardInterrupt:
        print("raised")
"""
    assert shown_by(code) == [repr(b"interrupted\n"), "not yet", "raised"]


def test_an_import_is_not_broken_off(tmp_path: Path) -> None:
    (tmp_path / "pressed.py").write_text(
        "import os\nos.kill(os.getpid(), 2)\nfor _ in range(10**5): pass\nprint('whole')\n"
    )
    code = """
with interruptible(), speaking():
    try:
        import pressed
        while True:
            time.sleep(0.01)
    except KeyboardInterrupt:
        print("then raised")
"""
    assert shown_by(code, cwd=tmp_path) == ["whole", "then raised"]


def test_a_library_says_nothing() -> None:
    code = """
os.dup2(1, 2)
with interruptible(), advising(lambda: "not for a library"):
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except KeyboardInterrupt:
        print("raised")
"""
    assert shown_by(code) == ["raised"]
