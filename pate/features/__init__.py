"""Public features: transforms that come before a teacher and look at no private data.

A transform has `transform(X) -> array` and works on each example by itself. Nothing is fitted, so a record still
touches only its own teacher, and every guarantee stands.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from numpy.typing import NDArray

from pate.errors import ConfigError
from pate.naming import import_dotted, nearest, short_names


class Transform(Protocol):
    """What every file of this folder has."""

    def transform(self, X: NDArray) -> NDArray:
        """The features of each example, from that example alone."""


class Features:
    """Transforms, one after the other; none at all leaves examples as they are."""

    def __init__(self, steps: Sequence[Transform] = ()) -> None:
        self._steps = steps

    def transform(self, X: NDArray) -> NDArray:
        """The features of each example, from that example alone."""
        for step in self._steps:
            X = step.transform(X)
        return X


def build_features(steps: Sequence[Mapping[str, Any]], key: str) -> Features:
    """The transforms a config names: `name` is a file of this folder or a dotted path, `params` its parameters."""
    return Features(build_steps(steps, key))


def build_steps(steps: Sequence[Mapping[str, Any]], key: str) -> list[Transform]:
    """The same, one by one."""
    return [_build(step["name"], dict(step.get("params", {})), f"{key}.{i}") for i, step in enumerate(steps)]


def _build(name: str, params: dict[str, Any], key: str) -> Transform:
    cls: Any
    if "." in name:
        cls = import_dotted(name, f"{key}.name")
    else:
        known = short_names(__name__)
        if name not in known:
            raise ConfigError(f"{key}.name = {name!r}: no such features; {nearest(name, known)}, or a dotted path")
        cls = _class_in(name)
    try:
        transform = cls(**params)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{key} = {name!r}: {error}") from None
    if not callable(getattr(transform, "transform", None)):
        raise ConfigError(f"{key}.name = {name!r}: has no transform(X)")
    if callable(getattr(transform, "fit", None)):
        raise ConfigError(
            f"{key}.name = {name!r}: is fitted to data, so it cannot come before the teachers; "
            "put it into the teacher, as a step of a sklearn.pipeline.Pipeline"
        )
    result: Transform = transform
    return result


def _class_in(module_name: str) -> type:
    module = importlib.import_module(f"{__name__}.{module_name}")
    own = [cls for _, cls in inspect.getmembers(module, inspect.isclass) if cls.__module__ == module.__name__]
    return next(cls for cls in own if hasattr(cls, "transform"))
