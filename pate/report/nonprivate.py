"""What a model without privacy would do on a benchmark: the figure to compare with. On benchmark data only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from pate.cluster.placed import Task, gpu_elsewhere, on_gpu
from pate.data.dataset import Dataset
from pate.networks.threads import one_thread

if TYPE_CHECKING:
    from pate.console import Console
    from pate.teachers import Recipe


def nonprivate_accuracy(recipe: Recipe, data: Dataset, seed: int, console: Console) -> float:
    """The share of test examples that a model, trained on all of a benchmark's records together, gets right."""
    assert data.benchmark
    assert data.X_test is not None
    assert data.y_test is not None
    usable = data.records.only(data.records.usable(len(data.classes)))
    given = recipe, seed, usable.X, usable.y, data.X_test, data.y_test
    with console.working("training without privacy, for comparison"):
        if not gpu_elsewhere(getattr(recipe.estimator(seed), "device", "cpu")):
            return accuracy_of(*given)
        task = Task("the model without privacy", accuracy_of, given)
        return float(on_gpu(task, lambda: None, console))


def accuracy_of(recipe: Recipe, seed: int, X: NDArray, y: NDArray, X_test: NDArray, y_test: NDArray, **_: Any) -> float:
    """Of a classifier of that recipe, trained on the one and asked about the other."""
    from pate.teachers.part import PartClassifier

    features = recipe.build_features()
    with one_thread():
        classifier = PartClassifier(recipe.estimator(seed)).fit(features.transform(X), y)
        return float((classifier.predict(features.transform(X_test)) == y_test).mean())
