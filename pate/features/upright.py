"""Handwriting set upright: every image moved, sheared and scaled by its own moments."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pate.errors import DataError

_BLOCK = 1024


class Upright:
    """Handwriting set upright: every image moved, sheared and scaled by its own moments.

    The ink's centre comes to the middle, its slant is taken out, its spread becomes `spread` both ways. Images keep
    their size; channels of colour move together.

    Parameters
    ----------
    spread : float, default 0.45
        Standard deviation of the ink in half-images; 0.45 fills a 28 × 28 digit well.
    most : float, default 2.0
        Largest factor by which an image is enlarged or reduced.
    """

    def __init__(self, spread: float = 0.45, most: float = 2.0) -> None:
        if spread <= 0 or most < 1:
            raise ValueError("spread must be positive and most at least 1")
        self.spread = spread
        self.most = most

    def transform(self, X: NDArray) -> NDArray[np.float32]:
        X = np.asarray(X, dtype=np.float32)
        if X.ndim not in (3, 4):
            raise DataError(f"upright needs images, not examples of shape {X.shape[1:]}")
        blocks = [self._block(X[i : i + _BLOCK]) for i in range(0, max(len(X), 1), _BLOCK)]
        return np.concatenate(blocks)

    def _block(self, images: NDArray[np.float32]) -> NDArray[np.float32]:
        import torch
        from torch.nn.functional import affine_grid, grid_sample

        if len(images) == 0:
            return images
        tensor = torch.from_numpy(np.array(images))
        planes = tensor.unsqueeze(1) if tensor.ndim == 3 else tensor.permute(0, 3, 1, 2)
        grid = affine_grid(self._maps(planes.mean(1)), list(planes.shape), align_corners=True)
        moved = grid_sample(planes, grid, align_corners=True)
        return (moved[:, 0] if tensor.ndim == 3 else moved.permute(0, 2, 3, 1)).numpy()

    def _maps(self, ink):  # type: ignore[no-untyped-def]
        """For each image the affine map from upright coordinates to its own; coordinates run from −1 to 1."""
        import torch

        down, across = (torch.linspace(-1, 1, size) for size in ink.shape[1:])
        total = ink.sum((1, 2)) + 1e-6
        by_row, by_column = ink.sum(2) / total[:, None], ink.sum(1) / total[:, None]
        y, x = (by_row * down).sum(1), (by_column * across).sum(1)
        dy, dx = down[None] - y[:, None], across[None] - x[:, None]
        variance_y, variance_x = (by_row * dy**2).sum(1), (by_column * dx**2).sum(1)
        covariance = torch.einsum("nyx,ny,nx->n", ink, dy, dx) / total
        slant = covariance / (variance_y + 1e-6)
        height = self._scale(variance_y)
        maps = torch.zeros(len(ink), 2, 3)
        maps[:, 0, 0] = self._scale(variance_x - slant * covariance)
        maps[:, 0, 1] = slant * height
        maps[:, 0, 2], maps[:, 1, 1], maps[:, 1, 2] = x, height, y
        return maps

    def _scale(self, variance):  # type: ignore[no-untyped-def]
        return (variance.clamp(min=1e-6).sqrt() / self.spread).clamp(1 / self.most, self.most)
