"""What one step of DP-SGD sums up before it adds noise, with every key fixed: what a record may move by so much."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pate.baselines.dp_sgd import DPSGDClassifier


def fixed_key(n: int) -> bytes:
    """The operating system's entropy, were it always the same."""
    return b"\x07" * n


class Summing(DPSGDClassifier):
    """Keeps the sum of clipped gradients of its last step."""

    def _with_noise(self, gradients: Any, draws: Any) -> list[torch.Tensor]:
        self.sum_ = torch.cat([part.reshape(-1) for part in gradients]).cpu().double().numpy()
        return super()._with_noise(gradients, draws)


def clipped_sum_of(X: NDArray, y: NDArray, **settings: Any) -> NDArray[np.float64]:
    """The sum of one step that takes every record into its lot."""
    usual: dict[str, Any] = {
        "sigma": 1.0, "delta": 1e-5, "n_records": 100, "lot_size": 100, "epochs": 1, "classes": range(2),
        "clip_norm": 1.0, "model": "linear", "accountant": "rdp", "entropy": fixed_key,
    }  # fmt: skip
    model = Summing(**(usual | settings))
    model.fit(X, y)
    total: NDArray[np.float64] = model.sum_
    return total
