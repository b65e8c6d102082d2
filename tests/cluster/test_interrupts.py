"""Signals to end, in processes of their own."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

_BEGIN = """import os, signal, subprocess, sys, time
from pate.cluster.interrupts import held_back, interruptible, received
"""


def shown_by(code: str, **options: object) -> list[str]:
    command = [sys.executable, "-c", _BEGIN + code]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60, **options)  # type: ignore[call-overload]
    assert shown.returncode == 0, shown.stderr
    return shown.stdout.splitlines()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_every_signal_to_end_is_a_keyboard_interrupt(number: signal.Signals) -> None:
    code = f"""
with interruptible():
    try:
        os.kill(os.getpid(), {number:d})
        time.sleep(5)
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
        time.sleep(5)
    except KeyboardInterrupt:
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGTERM)
        print("undisturbed", received().name)
"""
    assert shown_by(code) == ["undisturbed SIGHUP"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("threads", [0, 1])
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
    print(child.wait(timeout=5))
"""
    assert shown_by(code) == ["-15"]
