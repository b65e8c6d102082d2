"""Rounds of teachers: how many queries each asks, and what its teachers are and see."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pate.config.components import TeacherFamily
from pate.data.settings import Settings, Several


class TeacherRoundSettings(Settings):
    """One round: how many queries, and its own families of teachers if they differ from the config's.

    `features: student`: its teachers, and their own features, see what the student of all rounds before has learned to
    see instead of the examples themselves.
    """

    queries: int = Field(ge=1, le=10_000_000)
    features: Literal["student"] | None = None
    teachers: Several[TeacherFamily] = ()
