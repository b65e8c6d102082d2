"""Whether what the section of the voters names works on public examples."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pate.runs.context import RunContext


def check(context: RunContext) -> None:
    """Raise ConfigError where teachers, or public features, do not work."""
    context.voters.try_on_public(context.public)
