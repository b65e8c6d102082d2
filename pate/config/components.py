"""Sections of a config that name a class and its parameters."""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from pate.config.workers import Resources
from pate.data.settings import Settings, Several

MOST_KINDS = 1_000


def listed(value: Any) -> Any:
    """One component or several, each by its name or whole."""
    steps = value if isinstance(value, (list, tuple)) else [value]
    return [{"name": step} if isinstance(step, str) else step for step in steps]


def _each_once(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(names)) < len(names):
        raise ValueError("names repeat; name each column once")
    return names


Columns = Annotated[Several[str], AfterValidator(_each_once)]


class Component(Settings):
    """A teacher family, a student or a baseline: short name or dotted path, and its parameters."""

    name: str
    params: dict[str, Any] = Field(default_factory=dict)


class Model(Component):
    """A classifier that may have public features before it: `features: hog`, or a list of names and components."""

    features: Several[Component] = ()

    _listed = field_validator("features", mode="before")(listed)


class TeacherFamily(Model):
    """One family of the mixture. Parameters that `vary` take each listed value, in equal shares; `resources` are what
    its workers have.

    From Python, `TeacherFamily(estimator=SVC(C=10))` says the same as the name and parameters would.
    """

    weight: float = Field(default=1.0, gt=0, le=1e6)
    vary: dict[str, Several[Any]] = Field(default_factory=dict)
    resources: Resources = Resources()

    @model_serializer(mode="wrap")
    def _without_what_was_not_said(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        content: dict[str, Any] = handler(self)
        if self.resources == Resources():
            content.pop("resources", None)
        return content

    @model_validator(mode="before")
    @classmethod
    def _from_estimator(cls, content: Any) -> Any:
        if hasattr(content, "get_params"):
            content = {"estimator": content}
        if isinstance(content, dict) and "estimator" in content and hasattr(content["estimator"], "get_params"):
            from pate.teachers import describe

            rest = {key: value for key, value in content.items() if key != "estimator"}
            content = describe(content["estimator"]) | rest
        return content

    @field_validator("vary")
    @classmethod
    def _something_to_vary(cls, value: dict[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
        for name, values in value.items():
            if not values:
                raise ValueError(f"{name}: give at least one value")
        kinds = math.prod(map(len, value.values()))
        if kinds > MOST_KINDS:
            raise ValueError(f"these values make {kinds:,} kinds of teachers; {MOST_KINDS:,} are the most")
        return value
