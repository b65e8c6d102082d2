"""What commands share: groups in `--help`, an option, and what an argument of the library is called as an option."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

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
