"""Signals to end: SIGTERM and SIGHUP are raised as KeyboardInterrupt, as Ctrl-C is.

A command says one line the moment that a signal comes, whatever it is at, and nothing more: see `speaking`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LEFT_TO_THE_SYSTEM = (signal.SIG_DFL, signal.default_int_handler)
_SECONDS_OF_ONE_REQUEST = 10.0  # closing a terminal, or stopping a service, may send several signals

_SECONDS_BETWEEN_LOOKS = 0.02
_IMPORTING = {"importlib._bootstrap", "importlib._bootstrap_external"}

_received: signal.Signals | None = None
_raised_at = -_SECONDS_OF_ONE_REQUEST
_holding_back = False
_advice: Callable[[], str] | None = None  # None: nobody is to be told
_told = _quietly = _after_import = False


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
def speaking() -> Iterator[None]:
    """Within, a signal to end is answered by one line on standard error, at once; for a command, not for a library.

    KeyboardInterrupt is not raised within an import then, which could turn it into another error, but at its end; a
    second Ctrl-C does not wait for that.
    """
    global _advice, _told
    _advice, _told = str, False
    try:
        yield
    finally:
        _advice = None


@contextmanager
def advising(advice: Callable[[], str]) -> Iterator[None]:
    """Within, that line ends with what `advice` returns when a signal comes."""
    global _advice
    before = _advice
    _advice = None if before is None else advice
    try:
        yield
    finally:
        _advice = before


def was_told() -> bool:
    """Whether a signal came, and was answered by a line: whatever fails from then on is no news."""
    return _told


def interrupt_quietly() -> None:
    """Raise KeyboardInterrupt in the main thread, as a signal would, for a reason that the caller will tell."""
    global _quietly
    _quietly = True
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)


@contextmanager
def held_back(end_at_once: bool = False) -> Iterator[None]:
    """Signals to end that come within the block take effect at its end; handlers that are set within are undone.

    For what must not stop halfway. Threads that begin within the block never take such a signal from the main thread.
    Who is `speaking` says their line at once all the same; with `end_at_once` the process ends there: for a block
    that leaves nothing behind, such as an import.
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
    over = threading.Event()
    listener = threading.Thread(target=_listen, args=(set(handled), came, over, end_at_once), daemon=True)
    if _advice is not None:
        listener.start()
    try:
        yield
    finally:
        over.set()
        if listener.ident is not None:
            listener.join()
        for number, handler in handled.items():
            signal.signal(number, handler)
        _holding_back = False
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if came:
            signal.raise_signal(came[0])


def received() -> signal.Signals | None:
    """The signal that interrupted last, if one has."""
    return _received


def _listen(numbers: set[signal.Signals], came: list[int], over: threading.Event, end_at_once: bool) -> None:
    """In a thread that takes signals which the main thread holds back."""
    global _received
    while not over.is_set():
        found = signal.sigtimedwait(numbers, _SECONDS_BETWEEN_LOOKS)
        if found is not None:
            _received = signal.Signals(found.si_signo)
            came.append(found.si_signo)
            _tell("; nothing was begun" if end_at_once else None)
            if end_at_once:
                os._exit(128 + found.si_signo)


def _tell(advice: str | None = None) -> None:
    global _told
    if _advice is None or _told:
        return
    _told = True
    over_a_bar = "\r\x1b[K" if sys.stderr.isatty() else ""
    with suppress(OSError):  # the terminal may be gone
        os.write(
            2, f"{over_a_bar}interrupted{_advice() if advice is None else advice}\n".encode(errors="backslashreplace")
        )


def _interrupt(number: int, frame: FrameType | None) -> None:
    global _received, _raised_at, _quietly, _after_import
    first, again = not _told, _after_import
    _after_import = False
    if not again and number != signal.SIGINT and time.monotonic() - _raised_at < _SECONDS_OF_ONE_REQUEST:
        return
    _received, _raised_at = signal.Signals(number), time.monotonic()
    if _quietly:
        _quietly = False
        raise KeyboardInterrupt
    _tell()
    if _advice is not None and (first or again) and _is_importing(frame):
        threading.Thread(target=_interrupt_later, args=(number,), daemon=True).start()
        return
    raise KeyboardInterrupt


def _interrupt_later(number: int) -> None:
    """Once the main thread imports nothing."""
    global _after_import
    main = threading.main_thread().ident or 0
    while _is_importing(sys._current_frames().get(main)):
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    _after_import = True
    signal.pthread_kill(main, number)


def _is_importing(frame: FrameType | None) -> bool:
    """Whether a command's own line imports something; what called the command may be an import as well."""
    while frame is not None and frame.f_globals.get("__name__") != "pate.cli":
        if frame.f_globals.get("__name__") in _IMPORTING:
            return True
        frame = frame.f_back
    return False


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
