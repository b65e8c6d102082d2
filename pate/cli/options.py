"""What commands share: groups in `--help`, an option, and what an argument of the library is called as an option."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperCommand, TyperGroup

if TYPE_CHECKING:
    from pate.runs.run import Resume

_OPTION, _ALONE = "--resume", "yes"

ResumeOption = Annotated[
    Literal["yes", "auto"] | None,
    typer.Option(
        _OPTION,
        metavar="[=auto]",
        show_default=False,
        help="go on with the run in --out; with =auto, begin it where there is none, so the command can be repeated",
    ),
]


class CommandWithResume(TyperCommand):
    """A command that takes `--resume` alone too: a word that comes next is a value of it only if it is `auto`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        for word in args:
            if word.startswith(f"{_OPTION}=") and word != f"{_OPTION}=auto":
                raise typer.BadParameter(f"{word}: write {_OPTION} alone, or {_OPTION}=auto", ctx=ctx)
        words = [
            f"{_OPTION}={_ALONE}" if word == _OPTION and following != "auto" else word
            for word, following in zip_longest(args, args[1:])
        ]
        return super().parse_args(ctx, words)


def as_argument(option: Literal["yes", "auto"] | None) -> Resume:
    """What the library calls it.

    >>> as_argument(None), as_argument("yes"), as_argument("auto")
    (False, True, 'auto')
    """
    return "auto" if option == "auto" else option is not None


def resume_hint(directory: Path | str) -> str:
    """What the command of this process, interrupted now, says: only what has begun can be resumed."""
    runs = sys.modules.get("pate.runs.run")  # no time to load it
    if runs is None or str(directory) not in runs.BEGUN:
        return "; nothing was begun"
    words = iter(sys.argv[1:])
    kept: list[str] = []
    for word in words:
        if word == "--out" or (word == _OPTION and "auto" in sys.argv):
            next(words, None)
        elif not word.startswith(("--out=", _OPTION)):
            kept.append(word)
    command = shlex.join(["pate", *kept, "--out", str(directory), _OPTION])
    return f"; what was paid for is kept. Go on with: {command}"


Trust = Annotated[
    list[str] | None,
    typer.Option(help="module.Class that may be imported though you did not write the run; may be given again"),
]
"""Of commands that build what a run names."""


class CommandGroup(TyperGroup):
    """Commands that `--help` lists by group (their `rich_help_panel`), each with its first sentence, however long."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a section for each group of commands."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            sentence = command.get_short_help_str(limit=1000)
            groups.setdefault(getattr(command, "rich_help_panel", None) or "Commands", []).append((name, sentence))
        for group, rows in groups.items():
            with formatter.section(group):
                formatter.write_dl(rows)


_OPTIONS = {"ids": "id", "overrides": "set"}


def as_option(argument: str, value: object) -> str:
    """An argument as people type it; its name alone where the value is None or True.

    >>> as_option("data_dir", None), as_option("resume", True), as_option("trust", ["my.Net", "my.Own"])
    ('--data-dir', '--resume', '--trust my.Net --trust my.Own')
    """
    option = f"--{_OPTIONS.get(argument, argument).replace('_', '-')}"
    if value is None or value is True:
        return option
    if isinstance(value, list):
        return " ".join(f"{option} {item}" for item in value)
    whole = isinstance(value, float) and value.is_integer()
    return f"{option} {value:.0f}" if whole else f"{option} {value}"


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Header and rows, one line each."""
    from pate.runs.console import printable

    widths = [max(len(printable(row[i])) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  ".join(printable(cell).ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
