"""A small torch network as a scikit-learn classifier."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin

if TYPE_CHECKING:
    import torch


class Network(ClassifierMixin, BaseEstimator):
    """`architecture` is 'cnn' (two convolutions, for images) or 'mlp'. Deterministic for given data and seed.

    Adam with a fixed number of epochs: nothing is stopped or tuned by looking at data.
    """

    accepts_images = True

    def __init__(
        self,
        architecture: str = "cnn",
        hidden: int = 64,
        channels: int = 16,
        epochs: int = 20,
        batch_size: int = 32,
        learning_rate: float = 2e-3,
        weight_decay: float = 1e-4,
        device: str = "auto",
        random_state: int = 0,
    ) -> None:
        self.architecture = architecture
        self.hidden = hidden
        self.channels = channels
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.device = device
        self.random_state = random_state

    def fit(self, X: NDArray, y: NDArray) -> Network:
        import torch
        from torch.nn.functional import cross_entropy

        X, y = np.asarray(X), np.asarray(y)
        if self.architecture not in ("cnn", "mlp"):
            raise ValueError(f"architecture must be 'cnn' or 'mlp', not {self.architecture!r}")
        self.classes_, coded = np.unique(y, return_inverse=True)
        self.shape_ = list(X.shape[1:])
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.random_state)
            self.network_ = self._build().to(self._device())
        batches = np.random.default_rng(self.random_state)
        optimiser = torch.optim.Adam(self.network_.parameters(), lr=self.learning_rate, weight_decay=self.weight_decay)
        inputs, targets = self._tensor(X), torch.from_numpy(coded.reshape(-1)).to(self._device())
        self.network_.train()
        for _ in range(self.epochs):
            shuffled = torch.from_numpy(batches.permutation(len(inputs))).to(self._device())
            for batch in shuffled.split(self.batch_size):
                optimiser.zero_grad()
                cross_entropy(self.network_(inputs[batch]), targets[batch]).backward()
                optimiser.step()
        return self

    def predict_proba(self, X: NDArray) -> NDArray[np.float32]:
        import torch

        self.network_.eval()
        with torch.no_grad():
            blocks = [
                self.network_(block).softmax(1).cpu().numpy() for block in self._tensor(np.asarray(X)).split(1024)
            ]
        return np.concatenate(blocks) if blocks else np.zeros((0, len(self.classes_)), dtype=np.float32)

    def predict(self, X: NDArray) -> NDArray:
        return self.classes_[self.predict_proba(X).argmax(1)]

    def weights(self) -> dict[str, torch.Tensor]:
        """The learned tensors, by name."""
        return {name: tensor.contiguous().cpu() for name, tensor in self.network_.state_dict().items()}

    def restore(self, weights: dict[str, torch.Tensor], classes: list[int], shape: list[int]) -> Network:
        """The fitted network again, from `weights()`, `classes_` and `shape_`."""
        self.classes_, self.shape_ = np.asarray(classes), shape
        self.network_ = self._build().to(self._device())
        self.network_.load_state_dict(weights)
        return self

    def _device(self) -> str:
        import torch

        return ("cuda" if torch.cuda.is_available() else "cpu") if self.device == "auto" else self.device

    def _build(self) -> Any:
        from torch import nn

        if self.architecture == "mlp":
            width = int(np.prod(self.shape_))
            return nn.Sequential(
                nn.Flatten(),
                nn.Linear(width, self.hidden),
                nn.ReLU(),
                nn.Linear(self.hidden, len(self.classes_)),
            )
        if len(self.shape_) not in (2, 3):
            raise ValueError(f"a cnn needs images, not examples of shape {tuple(self.shape_)}; use architecture: mlp")
        height, width = self.shape_[:2]
        planes = self.shape_[2] if len(self.shape_) == 3 else 1
        flat = 2 * self.channels * (height // 4) * (width // 4)
        return nn.Sequential(
            nn.Conv2d(planes, self.channels, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(self.channels, 2 * self.channels, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(flat, self.hidden), nn.ReLU(), nn.Linear(self.hidden, len(self.classes_)),
        )  # fmt: skip

    def _tensor(self, X: NDArray) -> torch.Tensor:
        import torch

        tensor = torch.from_numpy(np.array(X, dtype=np.float32))  # a copy: arrays from Ray are read-only
        if self.architecture == "cnn":
            tensor = tensor.unsqueeze(1) if tensor.ndim == 3 else tensor.permute(0, 3, 1, 2)
            tensor = tensor.contiguous(memory_format=torch.channels_last)
        return tensor.to(self._device())
