"""Public features: transforms that come before a teacher and look at no private data.

A transform has `transform(X) -> array` and works on each example by itself. Nothing is fitted to private records, so a
record still touches only its own teacher, and every guarantee stands. Where that must hold for each record, as for
neighbours and DP-SGD, a class that is not known to work so is handed one record at a time. A transform may have
`learn(X_public) -> parameters`: it is called with public examples only, before anything is trained or counted, and the
parameters that it returns are added to its own wherever it is made from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from pate.boundary._guard import is_pate_module
from pate.components._registry import Registry
from pate.errors import ConfigError
from pate.networks._process import seed_globally, seeded_globally


@runtime_checkable
class Transform(Protocol):
    """What every file of this folder has."""

    def transform(self, X: NDArray) -> NDArray:
        """The features of each example, from that example alone."""


FEATURES = Registry("pate.features", "features", Transform)


class Features:
    """Transforms, one after the other; none at all leaves examples as they are."""

    def __init__(self, steps: Sequence[Transform] = ()) -> None:
        self._steps = steps

    def __bool__(self) -> bool:
        return bool(self._steps)

    def transform(self, X: NDArray) -> NDArray:
        """The features of examples that are public, or that one teacher has to itself."""
        for step in self._steps:
            X = step.transform(X)
        return X

    def transform_each(self, X: NDArray) -> NDArray:
        """The features of each example, from that example alone: a class that is not known to work by rows, as this
        package's own do and those that say `exact_by_row`, gets every one by itself."""
        for step in self._steps:
            X = step.transform(X) if _works_by_rows(step) else alone(step.transform, X)
        return np.asarray(X)

    def transform_records(self, X: NDArray, like: NDArray) -> NDArray:
        """The features of private records, each from that record alone; NaN for one that they cannot be computed for.

        `like` are features of an example that is nobody's. A record whose features have another shape has none.
        """
        if not self or not len(X):
            return X if not self else np.zeros((0, *like.shape[1:]), dtype=like.dtype)
        found = np.full((len(X), *like.shape[1:]), np.nan, dtype=np.result_type(like, np.float32))
        if all(map(_works_by_rows, self._steps)):
            with suppress(Exception):
                together = self.transform(X)
                if together.shape == found.shape:
                    return together
        for i in range(len(X)):
            with suppress(Exception):  # nobody is told of it, and the others are not stopped
                one = self.transform_each(X[i : i + 1])
                if one.shape[1:] == like.shape[1:] and len(one) == 1:
                    found[i] = one[0]
        return found


def alone(function: Callable[[NDArray], Any], X: NDArray) -> NDArray:
    """What a function gives for each example by itself: whatever it draws on the way is the same for every one, so that
    nothing about an example depends on how many came before it."""
    if len(X) == 0:
        return np.asarray(function(X))
    found = []
    with seeded_globally(0):
        for i in range(len(X)):
            seed_globally(0)
            found.append(np.asarray(function(X[i : i + 1])))
    return np.concatenate(found)


def _works_by_rows(step: Transform) -> bool:
    return is_pate_module(type(step).__module__) or getattr(step, "exact_by_row", False) is True


def build_features(steps: Sequence[Mapping[str, Any]], key: str) -> Features:
    """The transforms a config names: `name` is a file of this folder or a dotted path, `params` its parameters."""
    return Features(build_steps(steps, key))


def build_steps(steps: Sequence[Mapping[str, Any]], key: str) -> list[Transform]:
    """The transforms of `steps`, one by one."""
    return [_build(step["name"], dict(step.get("params", {})), f"{key}.{i}") for i, step in enumerate(steps)]


def learned_steps(steps: Sequence[Mapping[str, Any]], X_public: NDArray, key: str) -> list[dict[str, Any]]:
    """Steps in which every transform that learns has learned from public examples, as the steps before it give them."""
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
    cls = FEATURES.find(name, f"{key}.name")
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
