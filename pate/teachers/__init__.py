"""Teacher families. A teacher is a scikit-learn style classifier: `fit(X, y) -> self`, `predict(X) -> int[n]`."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from sklearn.base import BaseEstimator

from pate.errors import ConfigError
from pate.naming import import_dotted, nearest, short_names

if TYPE_CHECKING:
    from pate.config import TeacherFamily


def build_estimator(name: str, params: dict[str, Any], random_state: int, key: str) -> BaseEstimator:
    """The classifier a config names, by module of this folder or dotted path, seeded where it takes a seed."""
    cls = _own_class(name, key) if "." not in name else import_dotted(name, key)
    if not (callable(cls) and hasattr(cls, "fit") and hasattr(cls, "predict")):
        raise ConfigError(f"{key} = {name!r}: not a classifier with fit and predict")
    try:
        estimator = cls(**params)
    except TypeError as error:
        raise ConfigError(f"{key} = {name!r}: {error}") from None
    if "random_state" not in params and "random_state" in _parameters(estimator):
        estimator.set_params(random_state=random_state)
    return estimator


def family_of_part(families: Sequence[TeacherFamily], n_teachers: int) -> list[int]:
    """Which family each part gets: shares by weight, evenly spread, from the configuration alone.

    Smooth weighted round-robin: every part adds each weight to its family's credit, the richest family is
    chosen and pays the sum of the weights.
    """
    total = sum(family.weight for family in families)
    credit = [0.0] * len(families)
    chosen = []
    for _ in range(n_teachers):
        credit = [c + family.weight for c, family in zip(credit, families, strict=True)]
        best = max(range(len(families)), key=lambda i: (round(credit[i], 9), -i))
        credit[best] -= total
        chosen.append(best)
    return chosen


def seed_of_part(seed: int, part: int, attempt: int = 0) -> int:
    """A teacher's random state: from configuration, part and attempt only."""
    digest = blake2b(f"{seed}/{part}/{attempt}".encode(), digest_size=4, person=b"teacher").digest()
    return int.from_bytes(digest, "little") % 2**31


def _parameters(estimator: object) -> dict[str, Any]:
    return estimator.get_params() if hasattr(estimator, "get_params") else {}


def _own_class(name: str, key: str) -> type[BaseEstimator]:
    known = [n for n in short_names(__name__) if _class_in(n) is not None]
    if name not in known:
        raise ConfigError(f"{key} = {name!r}: no such teacher; {nearest(name, known)}, or a dotted path")
    cls = _class_in(name)
    assert cls is not None
    return cls


def _class_in(module_name: str) -> type[BaseEstimator] | None:
    module = importlib.import_module(f"{__name__}.{module_name}")
    for _, cls in inspect.getmembers(module, inspect.isclass):
        if cls.__module__ == module.__name__ and issubclass(cls, BaseEstimator) and cls.__name__ != "PartClassifier":
            return cls
    return None
