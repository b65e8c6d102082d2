"""Figures of a run that may be published, gathered while its data is at hand. Nothing here sees votes or teachers."""

from __future__ import annotations

import math
import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pate.report.schema import EpsilonCurves
from pate.storage.files import make_folder, write_atomically

if TYPE_CHECKING:
    from pate.data.public import PublicData
    from pate.data.settings import DataSettings
    from pate.students.posterior import Labelled

EXAMPLES_SHOWN = 24
_PACKAGES = ("numpy", "scipy", "scikit-learn", "torch", "ray", "dp-accounting")


@dataclass(frozen=True)
class ExampleImages:
    """Public images, their rows in the public data, the released labels and, of benchmarks only, the true ones."""

    images: NDArray[np.uint8]
    rows: NDArray[np.int64]
    labels: NDArray[np.int64]
    truth: NDArray[np.int64] | None


def confusion_of(predicted: NDArray[np.int64], truth: NDArray[np.int64], n_classes: int) -> tuple[tuple[int, ...], ...]:
    """Test examples by true class and prediction.

    >>> confusion_of(np.array([0, 1, 1]), np.array([0, 0, 1]), 2)
    ((1, 1), (0, 1))
    """
    counts = np.bincount(truth * n_classes + predicted, minlength=n_classes**2).reshape(n_classes, n_classes)
    return tuple(tuple(int(number) for number in row) for row in counts)


def publishable_curves(curves: Any) -> EpsilonCurves | None:
    """ε against the number of queries, for every data set."""
    if curves is None:
        return None
    queries = tuple(next(iter(curves.values())))
    finite = {
        name: tuple(value if math.isfinite(value) else None for value in curve.values())
        for name, curve in curves.items()
    }
    return EpsilonCurves(queries=queries, epsilon=finite)


def data_name(settings: DataSettings) -> str:
    """The data set by its short name; that of the images where stored votes play the teachers."""
    return str(getattr(settings, "images", settings.source))


def software() -> dict[str, str]:
    """Versions to repeat a run with."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def save_examples(path: Path, data: PublicData, labels: NDArray[np.int64], labelled: Labelled | None = None) -> None:
    """Keep the first public examples that have labels, if they are images, for the page's grid.

    Those are the first ones, or where cells gave the labels, those that `labelled` names, with their likeliest label.
    """
    if labelled is not None:
        likeliest = np.lexsort((-labelled.weights, labelled.rows))
        rows, first = np.unique(labelled.rows[likeliest], return_index=True)
        data, labels = data.with_queries_first(rows), labelled.labels[likeliest][first]
    shown = min(EXAMPLES_SHOWN, len(labels))
    images = as_images(data.X_public[:shown])
    if images is None:
        return
    content: dict[str, Any] = {
        "images": images,
        "rows": np.arange(shown) if data.public_rows is None else data.public_rows[:shown],
        "labels": labels[:shown],
    }
    if data.benchmark and data.y_public is not None:
        content["truth"] = data.y_public[:shown]

    def write(partial: Path) -> None:
        with partial.open("wb") as file:
            np.savez_compressed(file, **content)

    make_folder(path.parent)
    write_atomically(path, write, mode=0o644)


def load_examples(path: Path) -> ExampleImages | None:
    """What `save_examples` kept; None if there is nothing."""
    if not path.exists():
        return None
    with np.load(path, allow_pickle=False) as archive:
        truth = archive["truth"] if "truth" in archive.files else None
        return ExampleImages(archive["images"], archive["rows"], archive["labels"], truth)


def as_images(X: NDArray) -> NDArray[np.uint8] | None:
    """Grey or colour images of bytes, uint8[n, height, width(, 3)]; None if these are no images."""
    if X.ndim == 4 and X.shape[-1] == 1:
        X = X[..., 0]
    if X.ndim not in (3, 4) or (X.ndim == 4 and X.shape[-1] != 3) or not len(X):
        return None
    if X.dtype == np.uint8:
        return np.ascontiguousarray(X)
    values = X.astype(np.float64)
    low, high = values.min(), values.max()
    if low < 0 or high > 1:  # not in the usual interval: as far as these examples reach
        values = (values - low) / max(high - low, 1e-12)
    return (255 * values).round().astype(np.uint8)
