"""Whether there are enough public examples to ask about, and the groups that the report is to count by."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pate.data.public import groupings
from pate.errors import ConfigError

if TYPE_CHECKING:
    from pate.runs.context import RunContext


def check(context: RunContext) -> None:
    """Raise ConfigError where the public data does not suit the config."""
    if context.options.evaluate_teachers and not (context.public.benchmark and context.public.y_public is not None):
        text = "{evaluate_teachers}: is for teachers on a benchmark; how often they are right is private"
        raise ConfigError(text, evaluate_teachers=True)
    groupings(context.public, context.config.report.groups)
    context.voters.check_public(context.public)
