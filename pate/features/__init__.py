"""Public features: transforms that come before a teacher and look at no private data.

A transform has `transform(X) -> array` and works on each example by itself. Nothing is fitted to private records, so a
record still touches only its own teacher, and every guarantee stands. A transform may have
`learn(X_public) -> parameters`: it is called with public examples only, before anything is trained or counted, and the
parameters that it returns are added to its own wherever it is made from then on.
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


def learned_steps(steps: Sequence[Mapping[str, Any]], X_public: NDArray, key: str) -> list[dict[str, Any]]:
    """The same steps; those that learn from public examples have done so, each on what those before it give."""
    result: list[dict[str, Any]] = []
    for number, step in enumerate(steps):
        params = dict(step.get("params", {}))
        learn = getattr(_build(step["name"], params, f"{key}.{number}"), "learn", None)
        if callable(learn):
            found = learn(build_features(result, key).transform(X_public))
            if not isinstance(found, Mapping):
                raise ConfigError(f"{key}.{number}.name = {step['name']!r}: learn(X_public) must return parameters")
            params |= found
        result.append({"name": step["name"], "params": params})
    return result


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
