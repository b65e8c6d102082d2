"""Students, which learn from public data and released labels: `fit(X, y, X_unlabelled)`, `predict`, `predict_proba`."""

from __future__ import annotations

from inspect import signature
from typing import Any

from sklearn.base import BaseEstimator

from pate.components.registry import class_in, import_dotted, nearest, short_names
from pate.errors import ConfigError


def own_students() -> dict[str, type[BaseEstimator]]:
    """The students of this folder, by short name."""
    return {name: cls for name in short_names(__name__) if (cls := _class_in(name)) is not None}


def build_student(name: str, params: dict[str, Any], random_state: int) -> Any:
    """The student a config names: a module of this folder, or a dotted path to a class with the same contract.

    One that has a method `check` is asked at once whether its parameters make sense.
    """
    if "." in name:
        cls: Any = import_dotted(name, "student.name")
    else:
        known = own_students()
        if name not in known:
            raise ConfigError(f"student.name = {name!r}: no such student; {nearest(name, known)}")
        cls = known[name]
    try:
        student = cls(**{"random_state": random_state, **params})
    except TypeError as error:
        wrong = [name for name in params if name not in signature(cls).parameters] if isinstance(cls, type) else []
        hint = f" {nearest(wrong[0], signature(cls).parameters)}" if wrong else ""
        raise ConfigError(f"student.params: {error};{hint}" if hint else f"student.params: {error}") from None
    if hasattr(student, "check"):
        student.check()
    return student


def _class_in(module_name: str) -> type[BaseEstimator] | None:
    return class_in(__name__, module_name, BaseEstimator)
