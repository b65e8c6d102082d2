"""Students, which learn from public data and released labels: `fit(X, y, X_unlabelled)`, `predict`, `predict_proba`."""

from __future__ import annotations

from inspect import signature
from typing import Any

from sklearn.base import BaseEstimator

from pate.components._registry import Registry, nearest
from pate.errors import ConfigError

STUDENTS = Registry("pate.students", "student", BaseEstimator)


def build_student(name: str, params: dict[str, Any], random_state: int) -> Any:
    """The student a config names: a module of this folder, or a dotted path to a class with the same contract.

    One that has a method `check` is asked at once whether its parameters make sense.
    """
    cls = STUDENTS.find(name, "student.name")
    try:
        student = cls(**{"random_state": random_state, **params})
    except TypeError as error:
        wrong = [name for name in params if name not in signature(cls).parameters] if isinstance(cls, type) else []
        hint = f" {nearest(wrong[0], signature(cls).parameters)}" if wrong else ""
        raise ConfigError(f"student.params: {error};{hint}" if hint else f"student.params: {error}") from None
    if hasattr(student, "check"):
        student.check()
    return student
