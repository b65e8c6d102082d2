"""Teachers that take their time, to be copied beside a config: a run can be looked at, or lost, while they train."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
from sklearn.naive_bayes import GaussianNB


class Slow(GaussianNB):
    """Takes a third of a second."""

    def fit(self, X: np.ndarray, y: np.ndarray) -> Slow:
        time.sleep(0.3)
        return super().fit(X, y)


class HeldUp(GaussianNB):
    """Waits as long as there is a file `hold` beside this one."""

    def fit(self, X: np.ndarray, y: np.ndarray) -> HeldUp:
        while Path(__file__).with_name("hold").exists():
            time.sleep(0.1)
        return super().fit(X, y)
