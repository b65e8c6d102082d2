"""A teacher whose training is waiting, so that two cores suffice for many."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import ray
from sklearn.base import BaseEstimator


class Sleeper(BaseEstimator):
    """Waits some seconds, or `until` a file is there."""

    def __init__(self, seconds: float = 0.2, until: str = "") -> None:
        self.seconds, self.until = seconds, until

    def fit(self, X: np.ndarray, y: np.ndarray) -> Sleeper:
        time.sleep(self.seconds)
        while self.until and not Path(self.until).exists():
            time.sleep(0.1)
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:
        return np.zeros(len(X), dtype=np.int64)


def node(**_: Any) -> str:
    """Where this runs, as Ray names it."""
    return str(ray.get_runtime_context().get_node_id())
