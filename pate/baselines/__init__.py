"""Private learners that need no teachers, to compare PATE with.

A baseline is a scikit-learn style classifier whose constructor takes `epsilon`, `n_records` (a public figure),
`classes` and `random_state`, and that knows `epsilon_` and `delta_` after `fit`. A config names it by short name or
dotted path.
"""

from __future__ import annotations

import inspect
from typing import Any

from pate.components.registry import import_dotted, nearest
from pate.errors import ConfigError

_HOMES = {
    "dp_sgd": "pate.baselines.dp_sgd.DPSGDClassifier",
    "dp_erm": "pate.baselines.dp_erm.DPLinearClassifier",
    "dp_erm_tuned": "pate.baselines.dp_erm.PrivatelyTuned",
}


def build_baseline(name: str, params: dict[str, Any], given: dict[str, Any]) -> Any:
    """The baseline a config names; of `given` (ε, δ, number of records, …) it gets what its constructor takes."""
    if "." not in name and name not in _HOMES:
        raise ConfigError(f"baseline.name = {name!r}: no such baseline; {nearest(name, _HOMES)}, or a dotted path")
    cls: Any = import_dotted(_HOMES.get(name, name), "baseline.name")
    if not (callable(cls) and hasattr(cls, "fit") and hasattr(cls, "predict")):
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
