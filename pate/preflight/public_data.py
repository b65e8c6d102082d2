"""Whether there are enough public examples to ask about, and the groups that the report is to count by."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pate.data.public import groupings

if TYPE_CHECKING:
    from pate.runs.context import RunContext


def check(context: RunContext) -> None:
    """Raise ConfigError where the public data does not suit the config."""
    groupings(context.public, context.config.report.groups)
    context.voters.check_public(context.public)
