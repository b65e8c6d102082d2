"""Private learners that need no teachers, to compare PATE with.

A baseline is a scikit-learn style classifier whose constructor takes `epsilon`, `n_records` (a public figure),
`classes` and `random_state`, and that knows `epsilon_` and `delta_` after `fit`. A config names it by short name or
dotted path.
"""

from __future__ import annotations

import inspect
from typing import Any

from sklearn.base import BaseEstimator

from pate.components._registry import Registry, nearest
from pate.errors import ConfigError

_BASELINES = Registry("pate.baselines", "baseline", BaseEstimator)


def build_baseline(name: str, params: dict[str, Any], given: dict[str, Any]) -> Any:
    """The baseline a config names; of `given` (ε, δ, number of records, …) it gets what its constructor takes."""
    cls = _BASELINES.find(name, "baseline.name")
    if not (hasattr(cls, "fit") and hasattr(cls, "predict")):
        raise ConfigError(f"baseline.name = {name!r}: not a classifier with fit and predict")
    known = set(inspect.signature(cls).parameters)
    taken = {key: value for key, value in given.items() if key in known}
    for key in params:
        if key in ("epsilon", "delta"):
            raise ConfigError(f"baseline.params.{key}: goes under budget, so that every method has it in one place")
        if key == "entropy" or key in given:
            raise ConfigError(f"baseline.params.{key}: is set by the run and cannot be given")
        if key not in known:
            raise ConfigError(f"baseline.params.{key}: unknown; {nearest(key, known - set(given) - {'entropy'})}")
    return cls(**taken, **params)
