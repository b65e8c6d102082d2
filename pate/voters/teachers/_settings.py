"""The sections of a config for teachers: how many, which families, and rounds of them.

All rounds have one partition, one mechanism and one budget, so a record moves one vote in every query, whatever the
round, and ε is that of all their queries, known before the first. What a later round's teachers see depends on released
labels: the cost of the limits holds by adaptive composition, a data-dependent ε does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field, model_validator

from pate.config._components import TeacherFamily
from pate.config._settings import QueryConfig
from pate.data._settings import Settings, Several


class TeacherRoundSettings(Settings):
    """One round of teachers.

    Parameters
    ----------
    queries : int
        How many queries it asks.
    features : "student", default=None
        Whether its teachers see what the student of all rounds before has learned to see, instead of the examples.
    teachers : list of TeacherFamily, default=()
        Its own families; without any, those of the config.
    """

    queries: int = Field(ge=1, le=10_000_000)
    features: Literal["student"] | None = None
    teachers: Several[TeacherFamily] = ()


@dataclass(frozen=True)
class TeacherRound:
    """A round: its number from 1 on, its config, in which `teachers` are its own, and whether they see by a student."""

    number: int
    config: TeachersConfig
    queries: int
    by_student: bool


class TeachersConfig(QueryConfig):
    """A run in which teachers vote, each trained on its part of the private records.

    Parameters
    ----------
    teachers : list of TeacherFamily
        The families that share the parts, by weight.
    teacher_rounds : list of TeacherRoundSettings, default=()
        Rounds, of which later ones may see by a student of the earlier; without any, one round asks all queries.
    **others
        What every run on queries has.
    """

    teachers: Several[TeacherFamily]
    teacher_rounds: Several[TeacherRoundSettings] = ()

    @model_validator(mode="before")
    @classmethod
    def _sum_queries_of_rounds(cls, content: Any) -> Any:
        """Where rounds are listed and `budget.max_queries` is not given, it is the sum of theirs."""
        if not isinstance(content, Mapping) or not isinstance(content.get("teacher_rounds"), (list, tuple)):
            return content
        budget, asked = content.get("budget", {}), [_queries(one) for one in content["teacher_rounds"]]
        if not asked or None in asked or not isinstance(budget, Mapping) or "max_queries" in budget:
            return content
        return {**content, "budget": {**budget, "max_queries": sum(asked)}}

    @model_validator(mode="after")
    def _check_rounds(self) -> TeachersConfig:
        if not self.teachers:
            raise ValueError("teachers: missing; add at least one family to the config")
        if not self.teacher_rounds:
            return self
        if self.teacher_rounds[0].features == "student":
            raise ValueError("teacher_rounds.0.features = 'student': there is no student before the first round")
        total = sum(one.queries for one in self.teacher_rounds)
        if self.budget.max_queries != total:
            raise ValueError(
                f"budget.max_queries = {self.budget.max_queries}: the rounds ask {total}; leave it "
                "out, or make them agree"
            )
        if self.budget.adaptive:
            raise ValueError(
                f"budget.query_selection = {self.budget.query_selection!r}: has rounds of its own; use one or the other"
            )
        if self.budget.sanitise is not None:
            raise ValueError(
                "budget.sanitise: rounds have no data-dependent cost that it could bound; use one or the other"
            )
        return self

    @property
    def adaptive(self) -> bool:
        return self.budget.adaptive or bool(self.teacher_rounds)

    @property
    def student_shapes_release(self) -> bool:
        return self.budget.adaptive or any(one.features == "student" for one in self.teacher_rounds)

    @property
    def rounds(self) -> tuple[TeacherRound, ...]:
        """The rounds, each with its config; one where none is listed."""
        if not self.teacher_rounds:
            return (TeacherRound(1, self, self.budget.max_queries, False),)
        return tuple(
            TeacherRound(
                number,
                self.model_copy(update={"teachers": one.teachers or self.teachers}),
                one.queries,
                one.features == "student",
            )
            for number, one in enumerate(self.teacher_rounds, start=1)
        )

    def to_plain(self) -> dict[str, Any]:
        content = super().to_plain()
        if not self.teacher_rounds:
            del content["teacher_rounds"]
        return content


def _queries(one: Any) -> int | None:
    """How many queries a round asks; None where that is no whole number, which is reported elsewhere."""
    asked = one.get("queries") if isinstance(one, Mapping) else getattr(one, "queries", None)
    if isinstance(asked, float) and asked.is_integer():
        asked = int(asked)
    return asked if type(asked) is int and asked > 0 else None
