"""Labels and weights from released counts."""

from __future__ import annotations

import numpy as np
import pytest

from pate.mechanisms import Histogram
from pate.neighbours.posterior import expected_counts, of_members, shares
from pate.noise.integer import DiscreteGaussian, DiscreteLaplace, IntegerNoise


@pytest.mark.parametrize("noise", [DiscreteLaplace(3.0), DiscreteGaussian(3.0)], ids=str)
def test_expected_counts_are_what_simulation_says(noise: IntegerNoise) -> None:
    """True counts drawn from a geometric law of mean 20, noise added: means of the true ones by noisy value.

    Each mean of n draws is off by at most 6 of its standard errors: false alarms below 1e-6 over all values.
    """
    rng = np.random.default_rng(0)
    true = rng.geometric(1 / 21, size=400_000) - 1
    noisy = true + noise.sample(true.shape, lambda n: rng.bytes(n))
    for value in (-4, -1, 0, 1, 5, 20):
        drawn = true[noisy == value]
        found = float(expected_counts(np.array([value]), noise, mean=20)[0])
        assert abs(drawn.mean() - found) < 6 * drawn.std() / np.sqrt(len(drawn)) + 1e-9


def test_small_and_mixed_cells_say_little() -> None:
    noise = DiscreteLaplace(20.0)
    found = shares(np.array([[400, 3, -5], [210, 205, -5], [2, -1, 1], [-5, 10, 620]]), noise)
    large, mixed, empty, _ = found
    assert large.max() > 0.85
    assert mixed.max() < 0.55
    assert empty.max() < 0.4
    for share in (large, mixed, empty):
        assert share.sum() == pytest.approx(1)


def test_hard_labels_have_weights_and_doubtful_cells_are_left_out() -> None:
    cell_shares = np.array([[0.9, 0.1], [0.4, 0.6], [0.5, 0.5]])
    found = of_members(cell_shares, np.array([0, 1, 2, 0]), least_share=0.55, soft=False)
    assert found.rows.tolist() == [0, 1, 3]
    assert found.labels.tolist() == [0, 1, 0]
    np.testing.assert_allclose(found.weights, [0.8, 0.2, 0.8])


def test_soft_labels_come_with_every_class() -> None:
    found = of_members(np.array([[0.9, 0.1], [0.4, 0.6]]), np.array([1, 0]), least_share=0.0, soft=True)
    assert found.rows.tolist() == [0, 0, 1, 1]
    assert found.labels.tolist() == [0, 1, 0, 1]
    np.testing.assert_allclose(found.weights, [0.4, 0.6, 0.9, 0.1])


def test_a_students_guesses_are_brought_to_the_shares_of_their_cells() -> None:
    """Within a cell the order of the guesses stays, its mean becomes the cell's share, and rows sum to 1."""
    shares_of_cells, cells = np.array([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]]), np.array([1, 0, 0, 1, 0])
    labelled = of_members(shares_of_cells, cells, least_share=0.0, soft=True)
    guesses = np.random.default_rng(0).dirichlet([1, 1, 1], size=5)
    found = labelled.refined(guesses).weights.reshape(5, 3)
    np.testing.assert_allclose(found.sum(axis=1), 1)
    for cell in (0, 1):
        np.testing.assert_allclose(found[cells == cell].mean(axis=0), shares_of_cells[cell], atol=2e-3)
        ratio = (found / guesses)[cells == cell]
        np.testing.assert_allclose(ratio / ratio[:, :1], np.broadcast_to((ratio / ratio[:, :1])[0], ratio.shape))
    assert labelled.refined(guesses).rows is labelled.rows


def test_what_a_cell_has_is_not_what_a_student_guesses() -> None:
    """A student that is sure of the wrong class is outvoted by its cells, and none is ruled out for good."""
    labelled = of_members(np.array([[0.9, 0.1]]), np.array([0, 0]), least_share=0.0, soft=True)
    found = labelled.refined(np.array([[0.0, 1.0], [0.0, 1.0]])).weights.reshape(2, 2)
    np.testing.assert_allclose(found, [[0.9, 0.1], [0.9, 0.1]], atol=1e-3)


def test_counts_are_released_with_noise_on_zeros_too() -> None:
    """Every count of every cell moves: 3,000 zeros with Laplace noise of scale 20 are not all zero again."""
    noisy = Histogram(20.0).release_counts(np.zeros((300, 10), dtype=np.int64))
    assert noisy.shape == (300, 10)
    assert (noisy != 0).mean() > 0.9  # 1 in 40 stays by chance: 2,700 of 3,000 is 30 standard deviations away
    assert (noisy < 0).any()
    assert len(np.unique(noisy, axis=0)) == 300
