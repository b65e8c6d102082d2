"""A wavelet scattering transform of small images: features that do not depend on any data.

Bruna and Mallat, "Invariant Scattering Convolution Networks", 2013. Images are convolved with Morlet wavelets at
`n_scales` scales and `n_angles` orientations, the moduli are averaged by a Gaussian window and sampled every
2^n_scales pixels (first order), and moduli of finer scales are convolved again with coarser wavelets (second
order): 1 + n_scales·n_angles + n_angles²·n_scales·(n_scales − 1)/2 channels, 81 with the defaults.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pate.errors import DataError

if TYPE_CHECKING:
    import torch

_SIGMA = 0.8  # width in pixels of the finest window
_FREQUENCY = 3 * math.pi / 4  # of the finest wavelet
_BATCH = 32  # intermediate images stay in the processor's cache


@dataclass(eq=False)
class Scattering:
    """A wavelet scattering transform of small images; each image by itself.

    `transform(X)` takes images (n, height, width) or (n, height, width, planes) and gives (n, channels, height',
    width').

    Parameters
    ----------
    n_scales : int, default 2
        Number of scales; sides must be multiples of 2**n_scales.
    n_angles : int, default 8
        Number of directions of the wavelets.
    """

    n_scales: int = 2
    n_angles: int = 8

    def __post_init__(self) -> None:
        if not (1 <= self.n_scales <= 10 and 1 <= self.n_angles <= 64):
            raise ValueError(f"n_scales = {self.n_scales} must be 1 to 10, n_angles = {self.n_angles} 1 to 64")

    @property
    def n_channels(self) -> int:
        """Channels per colour plane."""
        pairs = self.n_scales * (self.n_scales - 1) // 2
        return 1 + self.n_scales * self.n_angles + pairs * self.n_angles**2

    def transform(self, X: NDArray) -> NDArray[np.float32]:
        import torch

        if np.ndim(X) not in (3, 4):
            raise DataError(f"scattering needs images, not examples of shape {np.shape(X)[1:]}")
        images = torch.from_numpy(np.array(X, dtype=np.float32))
        planes = images.unsqueeze(1) if images.ndim == 3 else images.permute(0, 3, 1, 2)
        n, n_planes, height, width = planes.shape
        step = 2**self.n_scales
        if height % step or width % step:
            raise ValueError(f"images of {height}×{width} pixels: sides must be multiples of {step}")
        filters = _Filters(self.n_scales, self.n_angles, height, width)
        flat = planes.reshape(n * n_planes, height, width)
        with torch.no_grad():
            blocks = [filters.apply(block) for block in flat.split(_BATCH)]
        channels = torch.cat(blocks) if blocks else torch.zeros(0, self.n_channels, height // step, width // step)
        return channels.reshape(n, n_planes * self.n_channels, height // step, width // step).numpy()


def group_normalise(features: NDArray, n_groups: int) -> NDArray[np.float32]:
    """Each example's channels, in `n_groups` groups, shifted and scaled to mean 0 and variance 1 in each group.

    Statistics of the example itself only: unlike batch statistics they say nothing about other records.
    """
    n, channels = features.shape[:2]
    if channels % n_groups:
        raise ValueError(f"{channels} channels do not go into {n_groups} equal groups")
    grouped = features.reshape(n, n_groups, -1)
    centred = grouped - grouped.mean(axis=2, keepdims=True)
    scale = np.sqrt((centred**2).mean(axis=2, keepdims=True) + 1e-5)
    return (centred / scale).reshape(features.shape).astype(np.float32)


class _Filters:
    """Wavelets as spectra on the padded grid, and the window as a matrix for each resolution and side."""

    def __init__(self, n_scales: int, n_angles: int, height: int, width: int) -> None:
        import torch

        self.n_scales, self.pad = n_scales, 2**n_scales
        self.size = (height + 2 * self.pad, width + 2 * self.pad)
        angles = [math.pi * i / n_angles for i in range(n_angles)]
        self.wavelets = [  # one tensor (angles, rows, columns) per scale; their spectra are real
            torch.from_numpy(np.stack([_morlet_spectrum(self.size, scale, angle, n_angles) for angle in angles]))
            for scale in range(n_scales)
        ]
        self.windows = [  # at resolution r images have been sampled every 2^r pixels
            tuple(torch.from_numpy(_window(side, r, n_scales, self.pad)) for side in self.size) for r in range(n_scales)
        ]

    def apply(self, images: torch.Tensor) -> torch.Tensor:
        """(batch, height, width) → (batch, channels, height / 2^n_scales, width / 2^n_scales)."""
        import torch
        from torch.nn.functional import pad

        padded = pad(images.unsqueeze(1), (self.pad,) * 4, mode="reflect").squeeze(1)
        spectrum = torch.fft.fft2(padded)
        outputs = [self._average(padded.unsqueeze(1), 0)]
        second = []
        for scale in range(self.n_scales):
            moduli = self._modulus(spectrum.unsqueeze(1), scale, 0)
            outputs.append(self._average(moduli, scale))
            for coarser in range(scale + 1, self.n_scales):
                deeper = torch.fft.fft2(moduli).unsqueeze(2)  # (batch, angles, 1, rows, columns)
                again = self._modulus(deeper, coarser, scale).flatten(1, 2)
                second.append(self._average(again, coarser))
        return torch.cat(outputs + second, dim=1)

    def _modulus(self, spectrum: torch.Tensor, scale: int, resolution: int) -> torch.Tensor:
        """|signal ∗ wavelet| sampled every 2^scale pixels, for a signal sampled every 2^resolution."""
        import torch

        wavelets = _fold(self.wavelets[scale], 2**resolution)
        return torch.fft.ifft2(_fold(spectrum * wavelets, 2 ** (scale - resolution))).abs()

    def _average(self, signal: torch.Tensor, resolution: int) -> torch.Tensor:
        """signal ∗ window, sampled; the Gaussian is separable, so it is a small matrix on either side."""
        rows, columns = self.windows[resolution]
        return rows @ signal @ columns.T


def _fold(spectrum: torch.Tensor, factor: int) -> torch.Tensor:
    """The spectrum of the signal sampled every `factor` pixels: the mean of its aliases."""
    if factor == 1:
        return spectrum
    rows, columns = spectrum.shape[-2] // factor, spectrum.shape[-1] // factor
    return spectrum.reshape(*spectrum.shape[:-2], factor, rows, factor, columns).mean((-4, -2))


def _morlet_spectrum(size: tuple[int, int], scale: int, angle: float, n_angles: int) -> NDArray[np.float32]:
    """Gaussian window times a wave, less the multiple of the window that makes its mean zero; periodic."""
    sigma, frequency, slant = _SIGMA * 2**scale, _FREQUENCY / 2**scale, 4.0 / n_angles
    window = _oriented_gaussian(size, sigma, slant, angle, 0.0)
    wave = _oriented_gaussian(size, sigma, slant, angle, frequency)
    wavelet = (wave - window * (wave.sum() / window.sum())) * slant / (2 * math.pi * sigma**2)
    return np.fft.fft2(wavelet).real.astype(np.float32)


def _oriented_gaussian(
    size: tuple[int, int], sigma: float, slant: float, angle: float, frequency: float
) -> NDArray[np.complex128]:
    rows, columns = size
    total = np.zeros(size, dtype=np.complex128)
    for row_shift in range(-2, 3):  # the plane wrapped onto the grid
        for column_shift in range(-2, 3):
            y = (np.arange(rows) + row_shift * rows)[:, None]
            x = (np.arange(columns) + column_shift * columns)[None, :]
            along = x * math.cos(angle) + y * math.sin(angle)
            across = -x * math.sin(angle) + y * math.cos(angle)
            envelope = np.exp(-(along**2 + (slant * across) ** 2) / (2 * sigma**2))
            total += envelope * np.exp(1j * frequency * along)
    return total


def _window(side: int, resolution: int, n_scales: int, pad: int) -> NDArray[np.float32]:
    """Rows: the output pixels within the image. Columns: pixels sampled every 2^resolution."""
    step, sigma = 2**n_scales, _SIGMA * 2 ** (n_scales - 1)
    outputs = np.arange(pad, side - pad, step)
    inputs = np.arange(0, side, 2**resolution)
    distance = outputs[:, None] - inputs[None, :]
    wrapped = sum(np.exp(-((distance + shift * side) ** 2) / (2 * sigma**2)) for shift in range(-2, 3))
    return (wrapped / wrapped.sum(axis=1, keepdims=True)).astype(np.float32)
