"""A trained teacher as bytes, and back.

Networks are safetensors. Everything else is a pickle, since users bring classes of their own; cloudpickle's, which also
holds the code of a class that cannot be imported, such as one of a notebook. Whoever calls `unpack` must know that the
bytes were written by this run (`pate.voters.teachers.checkpoints` checks that first).
"""

from __future__ import annotations

import json
import pickle
from typing import Any

import cloudpickle
import numpy as np
from numpy.typing import NDArray

from pate.teachers import Recipe
from pate.teachers.network import Network
from pate.teachers.part import PartClassifier

_CONSTANT, _NETWORK, _PICKLE = b"c", b"n", b"p"


def pack(teacher: PartClassifier) -> bytes:
    """The teacher with all it learned."""
    present = teacher.present_.tolist()
    if len(present) < 2:
        return _CONSTANT + json.dumps(present).encode()
    if isinstance(teacher.estimator, Network):
        return _NETWORK + _safetensors(teacher.estimator, present)
    return _PICKLE + cloudpickle.dumps((present, teacher.estimator))


def unpack(payload: bytes, recipe: Recipe) -> PartClassifier:
    """The teacher again. Only for bytes that this run wrote, since a pickle can run code."""
    kind, content = payload[:1], payload[1:]
    estimator: Any = None
    if kind == _CONSTANT:
        present = json.loads(content)
    elif kind == _NETWORK:
        present, estimator = _restored(content, recipe)
    else:
        present, estimator = pickle.loads(content)
    teacher = PartClassifier(estimator)
    teacher.present_ = np.asarray(present, dtype=np.int64)
    return teacher


def constant(y: NDArray[np.int64], n_classes: int) -> PartClassifier:
    """A stand-in where training failed: it always votes for the most frequent label of its part."""
    teacher = PartClassifier(None)
    known = y[(y >= 0) & (y < n_classes)]
    teacher.present_ = np.array([np.bincount(known, minlength=n_classes).argmax()])
    return teacher


def _safetensors(network: Network, present: list[int]) -> bytes:
    from safetensors.torch import save

    about = {"present": present, "classes": network.classes_.tolist(), "shape": network.shape_}
    return save(network.weights(), metadata={"pate": json.dumps(about)})


def _restored(content: bytes, recipe: Recipe) -> tuple[list[int], Network]:
    from safetensors.torch import load

    length = int.from_bytes(content[:8], "little")
    about = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["pate"])
    network = recipe.estimator(0)
    assert isinstance(network, Network)
    return about["present"], network.restore(load(content), about["classes"], about["shape"])
