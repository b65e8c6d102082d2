"""What people see while a run goes on: bars on a terminal, plain lines elsewhere, on standard error; or JSON lines."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pate.components._registry import counted

if TYPE_CHECKING:
    from rich.console import Console as RichConsole

_LINES, _JSON_LINES = 4, 50  # of one piece of work: by what is done, since the time it takes may be private
_Update = Callable[..., None]


def plain_console(stderr: bool = False) -> RichConsole:
    """The one way to print through rich: text is shown as it is, whatever brackets, colons or numbers it holds.

    A notebook is no terminal: what is printed there is saved with it, and may be passed on.
    """
    from rich.console import Console as RichConsole

    return RichConsole(stderr=stderr, markup=False, emoji=False, highlight=False, force_jupyter=False)


def printable(text: str) -> str:
    r"""Text from elsewhere on one line, without anything that a terminal would take as a command.

    >>> print(printable("cat\x1b[2J\n"))
    cat\x1b[2J\n
    """
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


class Console:
    """Progress and notes of a run, on standard error unless told otherwise."""

    def __init__(self, stderr: bool = True) -> None:
        self._rich = plain_console(stderr=stderr)

    def info(self, text: str) -> None:
        """One note."""
        self._rich.print(text, soft_wrap=True)

    def info_private(self, text: str) -> None:
        """For the operator at a terminal only: elsewhere it would end up in a log."""
        if self.at_terminal:
            self.info(f"note (private): {text}")

    @property
    def at_terminal(self) -> bool:
        """Whether the operator reads this, and not a log: as the stream says, whatever asks for colours."""
        try:
            return self._rich.file.isatty()
        except ValueError:  # closed
            return False

    @contextmanager
    def track(self, what: str, total: int) -> Iterator[_Update]:
        """Yields a function that is told how many of `total` are done, and perhaps a note."""
        if self._rich.is_terminal:
            with self._bar(what, total) as update:
                yield update
            return
        shown = 0

        def line(done: int, note: str = "") -> None:
            """At every quarter of the way, which says nothing of how long that took."""
            nonlocal shown
            come_to = _LINES * done // max(total, 1)
            if shown < come_to < _LINES:
                shown = come_to
                self.info(f"{what}: {done} of {total}{f'; {note}' if note else ''}")

        yield line

    @contextmanager
    def working(self, what: str) -> Iterator[None]:
        """Something of unknown length is going on."""
        if self._rich.is_terminal:
            from rich.text import Text

            with self._rich.status(Text(what)):
                yield
        else:
            self.info(f"{what} …")
            yield

    @contextmanager
    def trying(self, what: str) -> Iterator[None]:
        """Show work done before a run begins; quiet in a log, where a mistake found then is to be the only line."""
        with self.working(what) if self._rich.is_terminal else nullcontext():
            yield

    @contextmanager
    def _bar(self, what: str, total: int) -> Iterator[_Update]:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, Task, TextColumn, TimeRemainingColumn
        from rich.text import Text

        class Rate(TextColumn):
            def render(self, task: Task) -> Text:
                return Text("" if task.speed is None else f"{counted(task.speed)}/s")

        described, rate = TextColumn("{task.description}", markup=False), Rate("")
        columns = (described, BarColumn(), MofNCompleteColumn(), rate, TimeRemainingColumn())
        with Progress(*columns, console=self._rich, transient=True) as progress:
            task = progress.add_task(what, total=total)
            yield lambda done, note="": progress.update(task, completed=done, description=f"{what} {note}".rstrip())


class Quiet(Console):
    """Says nothing: for use as a library."""

    def __init__(self) -> None:
        """Nothing to write to."""

    def info(self, text: str) -> None:
        pass

    @property
    def at_terminal(self) -> bool:
        return False

    @contextmanager
    def track(self, what: str, total: int) -> Iterator[_Update]:
        yield lambda done, note="": None

    @contextmanager
    def working(self, what: str) -> Iterator[None]:
        yield

    @contextmanager
    def trying(self, what: str) -> Iterator[None]:
        yield


class _JsonConsole(Console):
    """Progress and notes as JSON lines on standard error, for log collectors: without private notes, and without
    times, since how long private work takes is private too."""

    def info(self, text: str) -> None:
        self._line("note", text=text)

    @property
    def at_terminal(self) -> bool:
        return False

    @contextmanager
    def track(self, what: str, total: int) -> Iterator[_Update]:
        shown = 0

        def update(done: int, note: str = "") -> None:
            nonlocal shown
            come_to = _JSON_LINES * done // max(total, 1)
            if come_to > shown:
                shown = come_to
                told = {"note": note} if note else {}
                self._line("progress", what=what, done=done, total=total, **told)

        self._line("begin", what=what, total=total)
        yield update
        self._line("end", what=what)

    @contextmanager
    def working(self, what: str) -> Iterator[None]:
        self._line("begin", what=what)
        yield
        self._line("end", what=what)

    @contextmanager
    def trying(self, what: str) -> Iterator[None]:
        with self.working(what):
            yield

    def _line(self, event: str, **content: Any) -> None:
        print(json.dumps({"event": event} | content, ensure_ascii=False), file=sys.stderr, flush=True)


def console_for(log_json: bool) -> Console:
    """The console of a command: for people, or for log collectors."""
    return _JsonConsole() if log_json else Console()


def in_a_job() -> bool:
    """Whether this is a job that was submitted to a Ray cluster: what it prints stays in a log there."""
    return "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ


def labels_table(classes: Iterable[object], labels: NDArray[np.int64]) -> str:
    """How many labels of each class were released, as HTML.

    >>> labels_table(["cat", "<dog>"], np.array([0, 1, 1, -1]))
    '<table><tr><th>class</th><th>labels</th></tr><tr><td>cat</td><td>1</td></tr><tr><td>&lt;dog&gt;</td><td>2</td></tr></table>'
    """
    names = list(classes)
    counts = np.bincount(labels[labels >= 0], minlength=len(names))
    rows = (f"<tr><td>{escape(str(name))}</td><td>{n}</td></tr>" for name, n in zip(names, counts, strict=True))
    return f"<table><tr><th>class</th><th>labels</th></tr>{''.join(rows)}</table>"
