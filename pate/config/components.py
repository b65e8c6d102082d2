"""Sections of a config that name a class and its parameters."""

from __future__ import annotations

import math
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    Field,
    PrivateAttr,
    SerializerFunctionWrapHandler,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from pate.config.workers import Resources
from pate.data.settings import Settings, Several

MAX_KINDS = 1_000


def listed(value: Any) -> Any:
    """One component or several, each by its name or whole."""
    steps = value if isinstance(value, (list, tuple)) else [value]
    return [{"name": step} if isinstance(step, str) else step for step in steps]


def is_estimator(value: Any) -> bool:
    """Whether it is an object with `fit` and `predict`, and not a class."""
    return not isinstance(value, type) and all(callable(getattr(value, name, None)) for name in ("fit", "predict"))


def _each_once(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(names)) < len(names):
        raise ValueError("names repeat; name each column once")
    return names


Columns = Annotated[Several[str], AfterValidator(_each_once)]


class Component(Settings):
    """A teacher family, a student or a baseline: short name or dotted path, and its parameters.

    From Python it may stand for an object in memory, its `prototype`, of which copies are made. A file never says so.
    """

    name: str
    params: dict[str, Any] = Field(default_factory=dict)
    _prototype: Any = PrivateAttr(default=None)

    @property
    def prototype(self) -> Any:
        """The object that is copied, where name and parameters alone would not make it again; else None."""
        return self._prototype

    def copied_from(self, prototype: Any) -> Self:
        """This component, made by copying `prototype`."""
        changed = self.model_copy()
        changed._prototype = prototype
        return changed


class Model(Component):
    """A classifier that may have public features before it: `features: hog`, or a list of names and components."""

    features: Several[Component] = ()

    _listed = field_validator("features", mode="before")(listed)


class TeacherFamily(Model):
    """One family of the mixture. Parameters that `grid` take each listed value, in equal shares; `resources` are what
    its workers have.

    From Python, `TeacherFamily(estimator=SVC(C=10))` says the same as the name and parameters would. An estimator
    that no name and plain parameters describe (of a class in a notebook, with a parameter that is NaN) is copied.
    """

    weight: float = Field(default=1.0, gt=0, le=1e6)
    grid: dict[str, Several[Any]] = Field(default_factory=dict)
    resources: Resources = Resources()

    @model_serializer(mode="wrap")
    def _without_what_was_not_said(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        content: dict[str, Any] = handler(self)
        if self.resources == Resources():
            content.pop("resources", None)
        return content

    @model_validator(mode="wrap")
    @classmethod
    def _from_estimator(cls, content: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        estimator = content.get("estimator") if isinstance(content, dict) else content
        if not is_estimator(estimator):
            return handler(content)
        from pate.teachers import described_or_kept

        rest = {key: value for key, value in content.items() if key != "estimator"} if isinstance(content, dict) else {}
        written, kept = described_or_kept(estimator)
        family = handler(written | rest)
        family._prototype = kept
        return family

    @field_validator("grid")
    @classmethod
    def _something_to_vary(cls, value: dict[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
        for name, values in value.items():
            if not values:
                raise ValueError(f"{name}: give at least one value")
        kinds = math.prod(map(len, value.values()))
        if kinds > MAX_KINDS:
            raise ValueError(f"these values make {kinds:,} kinds of teachers; {MAX_KINDS:,} are the most")
        return value
