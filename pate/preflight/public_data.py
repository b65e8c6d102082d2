"""Whether there are enough public examples to ask about, and the groups that the report is to count by."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pate.data.public import groupings
from pate.voters import voters_of

if TYPE_CHECKING:
    from pate.runs.context import RunContext


def check(context: RunContext) -> None:
    """Raise ConfigError where the public data does not suit the config."""
    groupings(context.public, context.config.report.groups)
    voters_of(context.config).check_public(context.public)
