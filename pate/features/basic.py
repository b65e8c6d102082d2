"""Transforms that are a formula: nothing is learned and no weights are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pate.errors import DataError

if TYPE_CHECKING:
    import torch

_BLOCK = 256  # images at a time, so that the working memory stays in the cache


@dataclass(eq=False)
class Hog:
    """Histograms of oriented gradients on overlapping cells; each image by itself.

    Each gradient is shared between the two nearest directions. Colour images are averaged to grey.

    Parameters
    ----------
    orientations : int, default 12
        Number of directions.
    cell : int, default 8
        Width of a cell in pixels.
    stride : int, default 4
        Pixels from one cell to the next; must divide `cell`.
    signed : bool, default True
        Whether light-on-dark and dark-on-light edges differ.
    softness : float, default 10.0
        Added to a cell's norm before it is divided by it, so that empty cells stay small.
    """

    name = "hog"
    exact_by_row = True  # elementwise, and sums within an image: the same bits in any batch

    orientations: int = 12
    cell: int = 8
    stride: int = 4
    signed: bool = True
    softness: float = 10.0

    def __post_init__(self) -> None:
        if min(self.orientations, self.cell, self.stride) < 1 or self.cell % self.stride or self.softness <= 0:
            raise ValueError("orientations, cell, stride and softness must be positive, and stride must divide cell")
        if max(self.orientations, self.cell) > 1000:
            raise ValueError(f"orientations = {self.orientations}, cell = {self.cell}: at most 1000")

    def transform(self, X: NDArray) -> NDArray[np.float32]:
        X = np.asarray(X, dtype=np.float32)
        if X.ndim not in (3, 4) or min(X.shape[1:3]) < self.cell:
            raise DataError(f"hog needs images of at least {self.cell} pixels, not examples of shape {X.shape[1:]}")
        return np.concatenate([self._cells(X[i : i + _BLOCK]) for i in range(0, max(len(X), 1), _BLOCK)])

    def _cells(self, images: NDArray[np.float32]) -> NDArray[np.float32]:
        grey = images.mean(axis=3) if images.ndim == 4 else images
        gradients = self._gradients(grey)
        n, height, width, directions = gradients.shape
        rows, columns = height // self.stride, width // self.stride  # what is left over at the edges is dropped
        whole = gradients[:, : rows * self.stride, : columns * self.stride]
        tiles = whole.reshape(n, rows, self.stride, columns, self.stride, directions).sum(axis=(2, 4))
        span = self.cell // self.stride
        rows, columns = tiles.shape[1] - span + 1, tiles.shape[2] - span + 1
        shifted = (tiles[:, i : i + rows, j : j + columns] for i in range(span) for j in range(span))
        cells = sum(shifted, np.zeros((), dtype=np.float32))
        cells = cells / np.sqrt((cells**2).sum(axis=3, keepdims=True) + np.float32(self.softness))
        return cells.reshape(n, rows * columns * self.orientations)

    def _gradients(self, grey: NDArray[np.float32]) -> NDArray[np.float32]:
        """Strength of the gradient at each pixel, by direction: [images, height, width, orientations]."""
        across, down = np.zeros_like(grey), np.zeros_like(grey)
        across[:, :, 1:-1] = grey[:, :, 2:] - grey[:, :, :-2]
        down[:, 1:-1] = grey[:, 2:] - grey[:, :-2]
        turn = np.float32(2 * np.pi if self.signed else np.pi)
        position = (np.arctan2(down, across) % turn) * (self.orientations / turn)
        lower = np.floor(position)
        share = (position - lower).reshape(-1)
        lower = lower.astype(np.int64).reshape(-1)
        strength = np.hypot(across, down).reshape(-1)
        pixel = np.arange(grey.size) * self.orientations
        result = np.zeros(grey.size * self.orientations, dtype=np.float32)
        result[pixel + lower % self.orientations] = (1 - share) * strength
        result[pixel + (lower + 1) % self.orientations] += share * strength
        return result.reshape(*grey.shape, self.orientations)


@dataclass(eq=False)
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

    name = "upright"

    spread: float = 0.45
    most: float = 2.0

    def __post_init__(self) -> None:
        if self.spread <= 0 or self.most < 1:
            raise ValueError("spread must be positive and most at least 1")

    def transform(self, X: NDArray) -> NDArray[np.float32]:
        X = np.asarray(X, dtype=np.float32)
        if X.ndim not in (3, 4):
            raise DataError(f"upright needs images, not examples of shape {X.shape[1:]}")
        return np.concatenate([self._block(X[i : i + _BLOCK]) for i in range(0, max(len(X), 1), _BLOCK)])

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

    def _maps(self, ink: torch.Tensor) -> torch.Tensor:
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

    def _scale(self, variance: torch.Tensor) -> torch.Tensor:
        return (variance.clamp(min=1e-6).sqrt() / self.spread).clamp(1 / self.most, self.most)


@dataclass(eq=False)
class RandomFourierFeatures:
    """Random Fourier features, on which a linear model approximates one with the Gaussian kernel.

    x ↦ (cos(Ωx), sin(Ωx))/√n_pairs with Ω drawn once from N(0, 2·gamma): inner products come near exp(−gamma·|x −
    x'|²) (Rahimi and Recht 2007), and every row has norm exactly 1. Ω comes from the seed and the number of columns
    alone, so it is public.

    Parameters
    ----------
    n_pairs : int
        Number of frequencies; there are twice as many features.
    gamma : float
        Width of the kernel, as in sklearn.svm.SVC.
    random_state : int, default 0
        Seed of everything that is drawn while training.
    """

    name = "fourier"

    n_pairs: int
    gamma: float
    random_state: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.n_pairs <= 10**6:
            raise ValueError(f"n_pairs = {self.n_pairs}: must be 1 to 1,000,000")

    def transform(self, X: NDArray) -> NDArray[np.float64]:
        rng = np.random.default_rng(self.random_state)
        frequencies = np.sqrt(2.0 * self.gamma) * rng.standard_normal((X.shape[1], self.n_pairs))
        angles = np.asarray(X, dtype=np.float64) @ frequencies
        return np.concatenate([np.cos(angles), np.sin(angles)], axis=1) / np.sqrt(self.n_pairs)


@dataclass(eq=False)
class Weighted:
    """Columns of a table multiplied by factors, so that they count for more or less in distances.

    Numbers between 0 and 1 hardly count beside categories, which are 0 or 1 whole; a factor makes up for that.

    Parameters
    ----------
    columns : list of int
        Columns by number; the first is 0.
    by : float or list of float
        One factor for all of them, or one for each.
    """

    name = "weighted"
    exact_by_row = True  # elementwise

    columns: Sequence[int]
    by: float | Sequence[float]

    def __post_init__(self) -> None:
        n, by = len(self.columns), self.by
        if any(isinstance(column, bool) or not isinstance(column, int) or column < 0 for column in self.columns):
            raise ValueError(f"columns = {list(self.columns)}: must be whole numbers, the first column is 0")
        try:
            self._factors = np.broadcast_to(np.asarray(by, dtype=np.float32), (n,))
        except ValueError:
            raise ValueError(f"by = {by!r}: must be one number, or one for each of {n} columns") from None
        if not np.isfinite(self._factors).all():
            raise ValueError(f"by = {by!r}: must be finite")

    def transform(self, X: NDArray) -> NDArray[np.float32]:
        X, last = np.array(X, dtype=np.float32), max(self.columns, default=0)
        if X.ndim != 2 or X.shape[1] <= last:
            raise DataError(f"weighted: columns up to {last} are not in examples of {X.shape[1:]}")
        X[:, list(self.columns)] *= self._factors
        return X
