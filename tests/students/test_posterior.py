"""Labels and weights from released counts."""

from __future__ import annotations

import numpy as np
import pytest

from pate.mechanisms import Histogram
from pate.noise.integer import DiscreteGaussian, DiscreteLaplace, IntegerNoise
from pate.students._posterior import _expected_counts, is_only_noise, label_members, shares


@pytest.mark.parametrize("noise", [DiscreteLaplace(3.0), DiscreteGaussian(3.0)], ids=str)
def test_expected_counts_are_what_simulation_says(noise: IntegerNoise) -> None:
    """True counts drawn from a geometric law of mean 20, noise added: means of the true ones by noisy value.

    Each mean of n draws is off by at most 6 of its standard errors: false alarms below 1e-6 over all values.
    """
    rng = np.random.default_rng(0)
    true = rng.geometric(1 / 21, size=400_000) - 1
    noisy = true + noise.sample(true.shape, lambda n: rng.bytes(n))
    counts = np.arange(500)
    geometric = (20 / 21) ** counts / 21
    for value in (-4, -1, 0, 1, 5, 20):
        drawn = true[noisy == value]
        found = float(_expected_counts(np.array([value]), noise, counts, geometric)[0])
        assert abs(drawn.mean() - found) < 6 * drawn.std() / np.sqrt(len(drawn)) + 1e-9


def test_small_and_mixed_cells_say_little() -> None:
    noise = DiscreteLaplace(20.0)
    found = shares(np.array([[400, 3, -5], [210, 205, -5], [2, -1, 1], [-5, 10, 620]]), noise)
    large, mixed, empty, _ = found
    assert large.max() > 0.85
    assert mixed.max() < 0.55
    assert empty.max() < 0.5
    for share in (large, mixed, empty):
        assert share.sum() == pytest.approx(1)


@pytest.mark.parametrize("noise", [DiscreteLaplace(20.0), DiscreteGaussian(20.0)], ids=str)
def test_how_counts_are_spread_is_learned_from_all_of_them(noise: IntegerNoise) -> None:
    """300 pure cells of 120 votes, two classes nine to one: shares are as right as what knows all of that would say.

    Draws are fixed, so there is no false alarm; the labels' log loss may be a tenth above the best there is.
    """
    rng = np.random.default_rng(0)
    label = (rng.random(300) < 0.1).astype(int)
    votes = np.zeros((300, 2), dtype=np.int64)
    votes[np.arange(300), label] = 120
    noisy = votes + noise.sample(votes.shape, lambda n: rng.bytes(n))
    found = shares(noisy, noise)
    log_odds = noise.log_pmf(noisy - [0, 120]).sum(axis=1) - noise.log_pmf(noisy - [120, 0]).sum(axis=1)
    best = 1 / (1 + 9 * np.exp(-log_odds))
    truth = np.take_along_axis(np.stack([1 - best, best], axis=1), label[:, None], axis=1)
    assert -np.log(np.take_along_axis(found, label[:, None], axis=1)).mean() < -np.log(truth).mean() + 0.1
    assert (found.argmax(axis=1) == label).mean() > 0.99


def test_a_count_that_stands_out_wins_whatever_its_neighbours_have() -> None:
    """Where classes are alike, nearly always the class with the largest noisy count has the largest share."""
    rng = np.random.default_rng(1)
    votes = np.zeros((500, 10), dtype=np.int64)
    votes[np.arange(500), np.arange(500) % 10] = 120
    noisy = votes + DiscreteLaplace(40.0).sample(votes.shape, lambda n: rng.bytes(n))
    found = shares(noisy, DiscreteLaplace(40.0))
    assert (found.argmax(axis=1) == noisy.argmax(axis=1)).mean() > 0.9


def test_one_cell_no_votes_and_huge_counts_are_normal() -> None:
    noise = DiscreteLaplace(4.0)
    for released in ([[5, -3]], [[-9, -9], [-1, -2]], [[0, 0]], [[10**7, 3], [1, 10**7]], [[10**7, 3], [10**7, -2]]):
        found = shares(np.array(released), noise)
        assert np.isfinite(found).all()
        np.testing.assert_allclose(found.sum(axis=1), 1)
    assert found[0, 0] > 0.99


def test_hard_labels_have_weights_and_doubtful_cells_are_left_out() -> None:
    cell_shares = np.array([[0.9, 0.1], [0.4, 0.6], [0.5, 0.5]])
    found = label_members(cell_shares, np.array([0, 1, 2, 0]), min_vote_share=0.55, soft=False)
    assert found.rows.tolist() == [0, 1, 3]
    assert found.labels.tolist() == [0, 1, 0]
    np.testing.assert_allclose(found.weights, [0.8, 0.2, 0.8])
    some = found.only(np.array([True, False, True]))
    assert [part.tolist() for part in (some.rows, some.labels, some.cells)] == [[0, 3], [0, 0], [0, 0]]
    assert found.same_as(np.array([0, 1, 0]), np.array([0.8, 0.2, 0.8]))
    for labels, weights in (([0, 1, 1], [0.8, 0.2, 0.8]), ([0, 1, 0], [0.8, 0.8, 0.2]), ([0, 1], [0.8, 0.2])):
        assert not found.same_as(np.array(labels), np.array(weights)), "other labels than those that were published"
    assert not found.same_as(found.labels, None)


def test_soft_labels_come_with_every_class() -> None:
    found = label_members(np.array([[0.9, 0.1], [0.4, 0.6]]), np.array([1, 0]), min_vote_share=0.0, soft=True)
    assert found.rows.tolist() == [0, 0, 1, 1]
    assert found.labels.tolist() == [0, 1, 0, 1]
    np.testing.assert_allclose(found.weights, [0.4, 0.6, 0.9, 0.1])


def test_a_students_guesses_are_brought_to_the_shares_of_their_cells() -> None:
    """Within a cell the order of the guesses stays, its mean becomes the cell's share, and rows sum to 1."""
    shares_of_cells, cells = np.array([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]]), np.array([1, 0, 0, 1, 0])
    labelled = label_members(shares_of_cells, cells, min_vote_share=0.0, soft=True)
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
    labelled = label_members(np.array([[0.9, 0.1]]), np.array([0, 0]), min_vote_share=0.0, soft=True)
    found = labelled.refined(np.array([[0.0, 1.0], [0.0, 1.0]])).weights.reshape(2, 2)
    np.testing.assert_allclose(found, [[0.9, 0.1], [0.9, 0.1]], atol=1e-3)


def test_counts_are_released_with_noise_on_zeros_too() -> None:
    """Every count of every cell moves: 3,000 zeros with Laplace noise of scale 20 are not all zero again."""
    noisy = Histogram(20.0).release_counts(np.zeros((300, 10), dtype=np.int64))
    assert noisy.shape == (300, 10)
    assert (noisy != 0).mean() > 0.9  # 1 in 40 stays by chance: 2,700 of 3,000 is 30 standard deviations away
    assert (noisy < 0).any()
    assert len(np.unique(noisy, axis=0)) == 300


def test_noise_alone_is_told_from_votes_by_all_counts_together() -> None:
    """Of fixed draws: hardly ever of noise alone, always of 40 votes a cell, where a single cell would not tell."""
    rng, noise = np.random.default_rng(0), DiscreteLaplace(20.0)
    drawn = [noise.sample((200, 5), lambda n: rng.bytes(n)) for _ in range(50)]
    assert all(is_only_noise(one, noise) for one in drawn)
    votes = np.zeros((200, 5), dtype=np.int64)
    votes[np.arange(200), np.arange(200) % 5] = 40
    assert not any(is_only_noise(one + votes, noise) for one in drawn)
