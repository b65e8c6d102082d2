"""Signals to end: SIGTERM and SIGHUP are raised as KeyboardInterrupt, as Ctrl-C is."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LEFT_TO_THE_SYSTEM = (signal.SIG_DFL, signal.default_int_handler)
_SECONDS_OF_ONE_REQUEST = 10.0  # closing a terminal, or stopping a service, may send several signals

_received: signal.Signals | None = None
_raised_at = -_SECONDS_OF_ONE_REQUEST
_holding_back = False


@contextmanager
def interruptible() -> Iterator[None]:
    """Within, a signal to end raises KeyboardInterrupt in the main thread.

    Signals that are ignored (nohup), or that the calling program handles itself, are left as they are.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    ours = {number: handler for number, handler in before.items() if handler in _LEFT_TO_THE_SYSTEM}
    for number in ours:
        signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number, handler in ours.items():
            signal.signal(number, handler)


@contextmanager
def held_back() -> Iterator[None]:
    """Signals to end that come within the block take effect at its end; handlers that are set within are undone.

    For what must not stop halfway. Threads that begin within the block never take such a signal from the main thread.
    """
    global _holding_back
    if threading.current_thread() is not threading.main_thread() or _holding_back:
        yield
        return
    came: list[int] = []
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    handled = {number: handler for number, handler in before.items() if handler not in (None, signal.SIG_IGN)}
    for number in handled:  # for what reaches other threads: Python runs handlers in the main thread all the same
        signal.signal(number, lambda number, _: came.append(number))
    _holding_back = True
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        for number, handler in handled.items():
            signal.signal(number, handler)
        _holding_back = False
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if came:
            signal.raise_signal(came[0])


def received() -> signal.Signals | None:
    """The signal that interrupted last, if one has."""
    return _received


def _interrupt(number: int, _: FrameType | None) -> None:
    global _received, _raised_at
    if number != signal.SIGINT and time.monotonic() - _raised_at < _SECONDS_OF_ONE_REQUEST:
        return
    _received, _raised_at = signal.Signals(number), time.monotonic()
    raise KeyboardInterrupt


def _leave_children_to_us() -> None:
    """A child that starts within `held_back`, as Ray's do, obeys SIGTERM, which is blocked here.

    It gets a process group of its own: what is sent to ours is for us, who end it in order. A Ray that ends first takes
    its driver with it.
    """
    if _holding_back:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        with suppress(OSError):
            os.setpgid(0, 0)


os.register_at_fork(after_in_child=_leave_children_to_us)
