"""What a model without privacy would do on a benchmark: the figures to compare with. On benchmark data only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pate.cluster.remote_task import RemoteTask, gpu_on_cluster, on_gpu
from pate.data.dataset import Dataset
from pate.data.groups import groupings
from pate.networks.threads import one_thread
from pate.report.fairness import without_privacy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pate.runs.console import Console
    from pate.teachers import Recipe


def nonprivate_figures(
    recipe: Recipe,
    data: Dataset,
    private: NDArray[np.int64],
    groups: Sequence[str],
    seed: int,
    console: Console,
) -> dict[str, Any]:
    """What a benchmark's report tells of a model without privacy, beside the `private` answers to test examples."""
    found, truth = nonprivate_predictions(recipe, data, seed, console), data.y_test
    assert truth is not None
    return {
        "nonprivate_accuracy": float((found == truth).mean()),
        "without_privacy": without_privacy(groupings(data, groups), private, found, truth, len(data.classes)),
    }


def nonprivate_accuracy(recipe: Recipe, data: Dataset, seed: int, console: Console) -> float:
    """The share of test examples that a model, trained on all of a benchmark's records together, gets right."""
    return float((nonprivate_predictions(recipe, data, seed, console) == data.y_test).mean())


def nonprivate_predictions(recipe: Recipe, data: Dataset, seed: int, console: Console) -> NDArray[np.int64]:
    """What that model says of each test example."""
    assert data.benchmark
    assert data.X_test is not None
    assert data.y_test is not None
    usable = data.records.only(data.records.usable(len(data.classes)))
    given = recipe, seed, usable.X, usable.y, data.X_test
    with console.working("training without privacy, for comparison"):
        if not gpu_on_cluster(getattr(recipe.estimator(seed), "device", "cpu")):
            return answers_of(*given)
        return np.asarray(on_gpu(RemoteTask("the model without privacy", answers_of, given), lambda: None, console))


def answers_of(recipe: Recipe, seed: int, X: NDArray, y: NDArray, X_test: NDArray, **_: Any) -> NDArray[np.int64]:
    """Predictions for `X_test` of a classifier by that recipe, trained on `X` and `y`."""
    from pate.teachers.part import PartClassifier

    features = recipe.build_features()
    with one_thread():
        classifier = PartClassifier(recipe.estimator(seed)).fit(features.transform(X), y)
        return np.asarray(classifier.predict(features.transform(X_test)), dtype=np.int64)
