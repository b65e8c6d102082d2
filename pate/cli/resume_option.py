"""`--resume` and `--resume=auto`: one option, whose value may be left out."""

from __future__ import annotations

import shlex
import sys
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperCommand

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
