"""How the command line calls the arguments of the library, for errors that tell people to change one."""

from __future__ import annotations

from typing import Annotated

import typer

Trust = Annotated[
    list[str] | None,
    typer.Option(help="module.Class that may be imported though you did not write the run; may be given again"),
]
"""Of commands that build what a run names."""

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
