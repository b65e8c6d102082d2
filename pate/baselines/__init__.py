"""What PATE is compared with: private learners that need no teachers, and on benchmarks a model without privacy.

A baseline is a scikit-learn style classifier whose constructor takes `epsilon`, `n_records` (a public figure),
`classes` and `random_state`, and that knows `epsilon_` and `delta_` after `fit`. A config names it by short name or
dotted path.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator

from pate.cluster._remote_task import RemoteTask, gpu_on_cluster, on_gpu
from pate.components._registry import Registry, nearest
from pate.config._components import Component, Model
from pate.data.private import PrivateData, Records
from pate.data.public import PublicData
from pate.errors import ConfigError
from pate.networks._process import one_thread

if TYPE_CHECKING:
    from pate.runs._console import Console
    from pate.teachers import Recipe

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


def nonprivate_model(
    model: Component | None, public: PublicData, private: PrivateData, seed: int, console: Console
) -> Callable[[], NDArray[np.int64]] | None:
    """What trains a config's model without privacy and gives its answers to the test examples.

    None where the config names none, or where this process has read no records of a benchmark. It sees all private
    records together, so it is for benchmarks alone, whose records are public.
    """
    from pate.teachers import Recipe, recipe_of

    if model is None or not public.benchmark or not isinstance(private, Records):
        return None
    plain = Recipe(model.name, dict(model.params), key="nonprivate")
    recipe = recipe_of(model, "nonprivate") if isinstance(model, Model) else plain
    return partial(_predict, recipe, public, private, seed, console)


def nonprivate_accuracy(recipe: Recipe, public: PublicData, records: Records, seed: int, console: Console) -> float:
    """The share of test examples that a model, trained on all of a benchmark's records together, gets right."""
    return float((_predict(recipe, public, records, seed, console) == public.y_test).mean())


def _predict(recipe: Recipe, public: PublicData, records: Records, seed: int, console: Console) -> NDArray[np.int64]:
    assert public.benchmark
    assert public.X_test is not None
    usable = records.only(records.usable(public.n_classes))
    given = recipe, seed, usable.X, usable.y, public.X_test
    with console.working("training without privacy, for comparison"):
        if not gpu_on_cluster(getattr(recipe.estimator(seed), "device", "cpu")):
            return answers_of(*given)
        return np.asarray(on_gpu(RemoteTask("the model without privacy", answers_of, given), lambda: None, console))


def answers_of(recipe: Recipe, seed: int, X: NDArray, y: NDArray, X_test: NDArray, **_: Any) -> NDArray[np.int64]:
    """Predictions for `X_test` of a classifier by that recipe, trained on `X` and `y`."""
    from pate.teachers import PartClassifier

    features = recipe.build_features()
    with one_thread():
        classifier = PartClassifier(recipe.estimator(seed)).fit(features.transform(X), y)
        return np.asarray(classifier.predict(features.transform(X_test)), dtype=np.int64)
