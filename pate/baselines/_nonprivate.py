"""What a model without privacy does on a benchmark: the figures to compare with.

It sees all private records together, so it is for benchmarks alone, whose records are public.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pate.cluster._remote_task import RemoteTask, gpu_on_cluster, on_gpu
from pate.config._components import Component, Model
from pate.data.private import PrivateData, Records
from pate.data.public import PublicData
from pate.networks._process import one_thread

if TYPE_CHECKING:
    from pate.runs._console import Console
    from pate.teachers import Recipe


def nonprivate_model(
    model: Component | None, public: PublicData, private: PrivateData, seed: int, console: Console
) -> Callable[[], NDArray[np.int64]] | None:
    """What trains a config's model without privacy and gives its answers to the test examples.

    None where the config names none, or where this process has read no records of a benchmark.
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
