"""What a user can cause. Every message is one line that names the key or file, the value, and what would do."""

import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self


class PateError(Exception):
    """A mistake the user can mend; the command line prints it as one line and ends with status 2.

    A text that tells the user to change an argument names it in braces, and the argument's value is given by name. It
    is written as in Python, without `=` where the value is None; the command line writes its own options instead.

    >>> print(PateError("no such file; give its folder with {data_dir}, or add {force}", data_dir=None, force=True))
    no such file; give its folder with data_dir, or add force=True
    """

    private = ""
    """What tells of a private record, such as its place, and is no part of the message: for the operator alone."""

    def __init__(self, *parts: object, **arguments: object) -> None:
        super().__init__(*parts)
        self.arguments = arguments

    def privately(self, text: str) -> Self:
        """This error, with what only the operator at a terminal may be told."""
        self.private = text
        return self

    def __str__(self) -> str:
        return self.worded(_as_in_python)

    def worded(self, write: Callable[[str, object], str]) -> str:
        """One line, whatever of other people's errors it quotes; `write` names an argument and its value."""
        text = self.text()
        for name, value in self.arguments.items():
            text = text.replace(f"{{{name}}}", write(name, value))
        return " ".join(text.split())

    def text(self) -> str:
        """The message with its arguments still in braces."""
        return super().__str__()


class ConfigError(PateError):
    """The configuration is not one that can run."""


class NotTrusted(ConfigError):
    """A file names something that would have to be imported, and the user has not allowed it."""


class DataError(PateError):
    """A data file is missing, or holds what cannot be used."""


class RunError(PateError):
    """The run directory, or the cluster behind the run, is not in a state to go on from."""


class BudgetExceeded(PateError):
    """The charge does not fit into the limits that were fixed before the first query."""


def own_line(error: BaseException) -> str | None:
    """The line of somebody's own file that an error came from, as `mine.py, line 7`; None where none had a part."""
    trace, found = error.__traceback__, None
    if isinstance(error, SyntaxError) and (path := own_path(error.filename or "")):
        return f"{path}, line {error.lineno}"
    while trace is not None:
        path = own_path(trace.tb_frame.f_code.co_filename)
        found = f"{path}, line {trace.tb_lineno}" if path else found
        trace = trace.tb_next
    return found


def own_path(file: str) -> str | None:
    """A file as people name it; None where it is of this package, of an installed one or of Python."""
    path = Path(file).absolute()
    libraries = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    elsewhere = not file or file.startswith("<") or any(path.is_relative_to(folder) for folder in libraries)
    if elsewhere or path.is_relative_to(Path(__file__).parent):
        return None
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _as_in_python(name: str, value: object) -> str:
    return name if value is None else f"{name}={value!r}"


def numbered(texts: Sequence[str], most: int = 20) -> str:
    """Several problems in one line; a single one as it is.

    >>> numbered(["a: missing"]), numbered(["a: missing", "b: not a number"])
    ('a: missing', '2 problems: (1) a: missing; (2) b: not a number')
    """
    if len(texts) == 1:
        return texts[0]
    rest = f"; and {len(texts) - most} more" if len(texts) > most else ""
    return f"{len(texts)} problems: {'; '.join(f'({i}) {text}' for i, text in enumerate(texts[:most], start=1))}{rest}"


def first_line(error: Exception) -> str:
    """The first line of another package's error, or its kind where it says nothing."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
