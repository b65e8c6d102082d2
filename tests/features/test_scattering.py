"""Fixed feature maps against slow, obvious computations."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.signal import fftconvolve

from pate.baselines._inputs import public_components
from pate.features.basic import RandomFourierFeatures
from pate.features.scattering import Scattering, group_normalise


def slow_scattering(image: np.ndarray, n_angles: int) -> np.ndarray:
    """Two scales, by plain convolution of the reflected image at full resolution, sampled at the end."""
    size, pad = image.shape[0], 4
    padded = np.pad(image, pad, mode="reflect")
    side = size + 2 * pad
    tiled = np.tile(padded, (3, 3))  # the transform is periodic on the padded grid

    def convolve(signal: np.ndarray, kernel: np.ndarray) -> np.ndarray:
        wide = np.tile(signal, (3, 3)) if signal.shape[0] == side else signal
        reach = kernel.shape[0] // 2
        full = fftconvolve(wide, kernel, mode="full")[reach:-reach, reach:-reach]
        return full[side : 2 * side, side : 2 * side]

    reach = np.arange(-side, side + 1)
    y, x = np.meshgrid(reach, reach, indexing="ij")

    def morlet(scale: int, angle: float) -> np.ndarray:
        sigma, slant, frequency = 0.8 * 2**scale, 4 / n_angles, 3 * math.pi / 4 / 2**scale
        along, across = x * math.cos(angle) + y * math.sin(angle), -x * math.sin(angle) + y * math.cos(angle)
        envelope = np.exp(-(along**2 + (slant * across) ** 2) / (2 * sigma**2))
        wave = envelope * np.exp(1j * frequency * along)
        return (wave - envelope * wave.sum() / envelope.sum()) * slant / (2 * math.pi * sigma**2)

    window = np.exp(-(x**2 + y**2) / (2 * 1.6**2))
    window /= window.sum()

    def sampled(signal: np.ndarray) -> np.ndarray:
        return convolve(signal, window).real[pad:-pad:4, pad:-pad:4]

    angles = [math.pi * i / n_angles for i in range(n_angles)]
    assert tiled.shape == (3 * side, 3 * side)
    fine = [np.abs(convolve(padded, morlet(0, a))) for a in angles]
    coarse = [np.abs(convolve(padded, morlet(1, a))) for a in angles]
    deep = [np.abs(convolve(u, morlet(1, a))) for u in fine for a in angles]
    return np.stack([sampled(s) for s in [padded, *fine, *coarse, *deep]])


def test_scattering_is_what_plain_convolutions_give() -> None:
    """The fast transform samples early, so that aliases of wavelets and moduli come in: within a few percent."""
    rng = np.random.default_rng(0)
    image = rng.random((12, 12)).astype(np.float32)
    fast, slow = Scattering(n_angles=4).transform(image[None])[0], slow_scattering(image, 4)
    assert fast.shape == slow.shape == (25, 3, 3)
    np.testing.assert_allclose(fast[:5], slow[:5], atol=1e-4)  # order 0 and the finest scale are never sampled early
    assert np.abs(fast - slow).max() < 0.1 * np.abs(slow[1:]).max()
    assert np.linalg.norm(fast[5:] - slow[5:]) < 0.05 * np.linalg.norm(slow[5:])


def test_scattering_shapes_rows_and_zero_images() -> None:
    rng = np.random.default_rng(1)
    images = rng.random((70, 8, 12)).astype(np.float32)
    features = Scattering().transform(images)
    assert features.shape == (70, 81, 2, 3)
    assert Scattering().n_channels == 81
    np.testing.assert_allclose(Scattering().transform(images[40:41])[0], features[40], atol=1e-6)
    colour = Scattering().transform(np.repeat(images[:3, ..., None], 2, axis=3))
    np.testing.assert_allclose(colour[:, 81:], features[:3], atol=1e-6)
    constant = Scattering().transform(np.ones((1, 8, 8)))[0]
    np.testing.assert_allclose(constant[0], 1, atol=1e-5)  # the window has mean 1, the wavelets mean 0
    np.testing.assert_allclose(constant[1:], 0, atol=1e-5)
    assert Scattering().transform(np.zeros((0, 8, 8))).shape == (0, 81, 2, 2)


def test_scattering_moves_less_than_the_image_does() -> None:
    """A shift by one pixel changes features much less than pixels: the point of averaging moduli."""
    rng = np.random.default_rng(2)
    image = np.zeros((28, 28), dtype=np.float32)
    image[8:20, 8:20] = rng.random((12, 12))
    shifted = np.roll(image, 1, axis=1)
    a, b = Scattering().transform(np.stack([image, shifted]))
    assert np.linalg.norm(a - b) / np.linalg.norm(a) < 0.5 * np.linalg.norm(image - shifted) / np.linalg.norm(image)


def test_group_normalisation_uses_the_example_alone() -> None:
    rng = np.random.default_rng(3)
    features = rng.random((5, 6, 2, 2)) * 100
    normal = group_normalise(features, 3)
    grouped = normal.reshape(5, 3, -1)
    np.testing.assert_allclose(grouped.mean(2), 0, atol=1e-5)
    np.testing.assert_allclose(grouped.std(2), 1, atol=1e-3)
    np.testing.assert_allclose(group_normalise(features[2:3], 3)[0], normal[2], atol=1e-6)
    with pytest.raises(ValueError, match="4 equal groups"):
        group_normalise(features, 4)


def test_fourier_features_come_near_the_kernel() -> None:
    rng = np.random.default_rng(4)
    X = rng.normal(size=(20, 3))
    Z = RandomFourierFeatures(20_000, gamma=0.4, random_state=1).transform(X)
    distances = ((X[:, None] - X[None]) ** 2).sum(2)
    np.testing.assert_allclose(Z @ Z.T, np.exp(-0.4 * distances), atol=0.04)
    np.testing.assert_allclose(np.linalg.norm(Z, axis=1), 1)


def test_public_components_are_the_leading_ones() -> None:
    rng = np.random.default_rng(5)
    X = rng.normal(size=(500, 6)) * np.array([9, 5, 1, 0.1, 0.1, 0.1])
    components = public_components(X, 2)
    np.testing.assert_allclose(components.T @ components, np.eye(2), atol=1e-6)
    assert np.linalg.norm(components[:3]) ** 2 > 1.99
    with pytest.raises(ValueError, match="7 components"):
        public_components(X, 7)
