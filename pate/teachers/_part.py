"""A teacher: any classifier on one part of the data, whatever the part lacks; as bytes, and back."""

from __future__ import annotations

import json
import math
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pate.mechanisms import UNANSWERED
from pate.storage._files import tensors_from_bytes, tensors_to_bytes

if TYPE_CHECKING:
    from pate.teachers import Recipe

_CONSTANT, _NETWORK, _PICKLE = b"c", b"n", b"p"


class PartClassifier:
    """Adapts a scikit-learn style classifier to the configured set of classes.

    A part may lack classes, hold one class only, or be empty: then the answer is that class, or class 0.
    Labels are re-coded to 0 … m−1 for the estimator, since some want that; `UNANSWERED` passes through, for
    semi-supervised estimators. Images are flattened unless the estimator says `accepts_images = True`.
    """

    def __init__(self, estimator: Any) -> None:
        self.estimator = estimator

    def fit(self, X: NDArray, y: NDArray[np.int64], sample_weight: NDArray[np.float64] | None = None) -> PartClassifier:
        """Fit the estimator, if the part has two classes or more."""
        self.present_ = np.unique(y[y != UNANSWERED])
        if len(self.present_) >= 2:
            coded = np.searchsorted(self.present_, y)
            further = {} if sample_weight is None else {"sample_weight": sample_weight}
            self.estimator.fit(self.shaped(X), np.where(y == UNANSWERED, UNANSWERED, coded), **further)
        return self

    def predict(self, X: NDArray) -> NDArray[np.int64]:
        """Labels among those of the part."""
        if len(self.present_) < 2:
            constant = self.present_[0] if len(self.present_) else 0
            return np.full(len(X), constant, dtype=np.int64)
        coded = np.asarray(self.estimator.predict(self.shaped(X))).astype(np.int64).reshape(-1)
        return self.present_[coded].astype(np.int64)

    def shaped(self, X: NDArray) -> NDArray:
        """Examples as the estimator takes them: images, or rows of numbers."""
        return X if getattr(self.estimator, "accepts_images", False) else X.reshape(len(X), math.prod(X.shape[1:]))


def constant(y: NDArray[np.int64], n_classes: int) -> PartClassifier:
    """A stand-in where training failed: it always votes for the most frequent label of its part."""
    teacher = PartClassifier(None)
    known = y[(y >= 0) & (y < n_classes)]
    teacher.present_ = np.array([np.bincount(known, minlength=n_classes).argmax()])
    return teacher


def pack(teacher: PartClassifier) -> bytes:
    """The teacher with all it learned.

    Networks are safetensors. Everything else is a pickle, since users bring classes of their own; cloudpickle's, which
    also holds the code of a class that cannot be imported, such as one of a notebook.
    """
    import cloudpickle

    from pate.teachers.network import Network

    present = teacher.present_.tolist()
    if len(present) < 2:
        return _CONSTANT + json.dumps(present).encode()
    if isinstance(teacher.estimator, Network):
        about = {"present": present, "learned": teacher.estimator.learned()}
        return _NETWORK + tensors_to_bytes(teacher.estimator.weights(), about)
    return _PICKLE + cloudpickle.dumps((present, teacher.estimator))


def unpack(payload: bytes, recipe: Recipe) -> PartClassifier:
    """The teacher again. Only for bytes that this run wrote, since a pickle can run code: whoever calls it has checked
    their seals (`pate.voters.teachers._checkpoints`)."""
    kind, content = payload[:1], payload[1:]
    estimator: Any = None
    if kind == _CONSTANT:
        present = json.loads(content)
    elif kind == _NETWORK:
        network: Any = recipe.estimator(0)
        weights, about = tensors_from_bytes(content)
        present, estimator = about["present"], network.restore(weights, about["learned"])
    else:
        present, estimator = pickle.loads(content)
    teacher = PartClassifier(estimator)
    teacher.present_ = np.asarray(present, dtype=np.int64)
    return teacher
