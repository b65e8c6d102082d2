"""Students: `fit(X, y, X_unlabelled) -> self`, `predict(X) -> int[n]`, on public data and released labels only."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

from sklearn.base import BaseEstimator

from pate.errors import ConfigError
from pate.naming import import_dotted, nearest, short_names


def build_student(name: str, params: dict[str, Any], random_state: int) -> Any:
    """The student a config names: a module of this folder, or a dotted path to a class with the same contract."""
    if "." in name:
        cls: Any = import_dotted(name, "student.name")
    else:
        known = {n: c for n in short_names(__name__) if (c := _class_in(n)) is not None}
        if name not in known:
            raise ConfigError(f"student.name = {name!r}: no such student; {nearest(name, known)}")
        cls = known[name]
    try:
        return cls(**{"random_state": random_state, **params})
    except TypeError as error:
        raise ConfigError(f"student.params: {error}") from None


def _class_in(module_name: str) -> type[BaseEstimator] | None:
    module = importlib.import_module(f"{__name__}.{module_name}")
    for _, cls in inspect.getmembers(module, inspect.isclass):
        if cls.__module__ == module.__name__ and issubclass(cls, BaseEstimator):
            return cls
    return None
