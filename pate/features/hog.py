"""Histograms of oriented gradients (Dalal and Triggs 2005), on overlapping cells."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pate.errors import DataError

_BLOCK = 256  # images at a time, so that the working memory stays in the cache


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

    exact_by_row = True  # elementwise, and sums within an image: the same bits in any batch

    def __init__(
        self, orientations: int = 12, cell: int = 8, stride: int = 4, signed: bool = True, softness: float = 10.0
    ) -> None:
        if min(orientations, cell, stride) < 1 or cell % stride or softness <= 0:
            raise ValueError("orientations, cell, stride and softness must be positive, and stride must divide cell")
        if max(orientations, cell) > 1000:
            raise ValueError(f"orientations = {orientations}, cell = {cell}: at most 1000")
        self.orientations = orientations
        self.cell = cell
        self.stride = stride
        self.signed = signed
        self.softness = softness

    def transform(self, X: NDArray) -> NDArray[np.float32]:
        X = np.asarray(X, dtype=np.float32)
        if X.ndim not in (3, 4) or min(X.shape[1:3]) < self.cell:
            raise DataError(f"hog needs images of at least {self.cell} pixels, not examples of shape {X.shape[1:]}")
        blocks = [self._cells(X[i : i + _BLOCK]) for i in range(0, max(len(X), 1), _BLOCK)]
        return np.concatenate(blocks)

    def _cells(self, images: NDArray[np.float32]) -> NDArray[np.float32]:
        grey = images.mean(axis=3) if images.ndim == 4 else images
        tiles = self._tiles(self._gradients(grey))
        span = self.cell // self.stride
        rows, columns = tiles.shape[1] - span + 1, tiles.shape[2] - span + 1
        shifted = (tiles[:, i : i + rows, j : j + columns] for i in range(span) for j in range(span))
        cells = sum(shifted, np.zeros((), dtype=np.float32))
        cells = cells / np.sqrt((cells**2).sum(axis=3, keepdims=True) + np.float32(self.softness))
        return cells.reshape(len(images), rows * columns * self.orientations)

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

    def _tiles(self, gradients: NDArray[np.float32]) -> NDArray[np.float32]:
        """Sums over squares of `stride` pixels; what is left over at the right and lower edge is dropped."""
        n, height, width, directions = gradients.shape
        rows, columns = height // self.stride, width // self.stride
        whole = gradients[:, : rows * self.stride, : columns * self.stride]
        return whole.reshape(n, rows, self.stride, columns, self.stride, directions).sum(axis=(2, 4))
