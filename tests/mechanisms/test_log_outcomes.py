"""Noisy-max probabilities against sums in 60-digit arithmetic that share nothing with the code."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pate.accounting._parameters import TooWide
from pate.accounting.exact import move_votes
from pate.mechanisms import ConfidentGNMax, GNMax, LNMax, Mechanism, PermuteAndFlip

NOISY_MAX = [LNMax(20.0), LNMax(0.4), LNMax(3.0), GNMax(40.0), GNMax(9.0), GNMax(0.6)]
ALL = [*NOISY_MAX, ConfidentGNMax(12.5, 3.0, 2.0), ConfidentGNMax(200.0, 150.0, 40.0)]


class MpNoise:
    """P(Z = k) and P(Z < k), summed directly."""

    def __init__(self, mechanism: LNMax | GNMax, reach: int) -> None:
        if isinstance(mechanism, LNMax):
            weight = [mpmath.exp(-mpmath.mpf(k) / mechanism.scale) for k in range(reach + 1)]
        else:
            weight = [mpmath.exp(-(mpmath.mpf(k) ** 2) / (2 * mechanism.sigma**2)) for k in range(reach + 1)]
        total = weight[0] + 2 * mpmath.fsum(weight[1:])
        self.reach = reach
        self.pmf = [w / total for w in weight[:0:-1] + weight]
        self.below = [mpmath.mpf(0)]
        for p in self.pmf:
            self.below.append(self.below[-1] + p)

    def at(self, k: int) -> tuple[mpmath.mpf, mpmath.mpf]:
        if k < -self.reach:
            return mpmath.mpf(0), mpmath.mpf(0)
        if k > self.reach:
            return mpmath.mpf(0), mpmath.mpf(1)
        return self.pmf[k + self.reach], self.below[k + self.reach]


def mp_win_probability(noise: MpNoise, counts: list[int], winner: int) -> mpmath.mpf:
    """Σ_v P(winner at v)·Σ_m P(m rivals at v, the others below)/(1 + m), the inner sum multiplied out."""
    total = mpmath.mpf(0)
    for v in range(min(counts) - noise.reach, max(counts) + noise.reach + 1):
        at_v, _ = noise.at(v - counts[winner])
        ties = [mpmath.mpf(1)]
        for rival, count in enumerate(counts):
            if rival != winner and at_v:
                p, below = noise.at(v - count)
                ties = [a * below + b * p for a, b in zip([*ties, 0], [0, *ties], strict=True)]
        total += at_v * mpmath.fsum(chance / (1 + m) for m, chance in enumerate(ties))
    return total


@pytest.mark.parametrize(
    ("mechanism", "counts"),
    [
        (LNMax(20.0), [3, 0, 247]),
        (LNMax(1.0), [40, 90, 0, 0]),  # 1e-40
        (LNMax(0.4), [3, 3, 2, 0]),
        (GNMax(10.0), [190, 0, 5]),  # 1e-40
        (GNMax(0.6), [5, 5, 4, 1, 1]),
        (GNMax(4.0), [60, 60, 1]),
    ],
)
def test_noisy_max_probabilities_are_exact_however_small(mechanism: LNMax | GNMax, counts: list[int]) -> None:
    ours = mechanism.log_outcomes(np.array([counts]))[0]
    with mpmath.workdps(60):
        noise = MpNoise(mechanism, 2 * mechanism.noise.half_width() + max(counts))
        exact = [float(mpmath.log(mp_win_probability(noise, counts, i))) for i in range(len(counts))]
    assert min(exact) < -80 or sum(counts) < 300
    np.testing.assert_allclose(ours[:-1], exact, rtol=0, atol=1e-9)
    assert ours[-1] == -np.inf


def test_some_of_those_probabilities_are_as_small_as_they_should_be() -> None:
    assert GNMax(10.0).log_outcomes(np.array([[190, 0, 5]])).min(where=[[True, True, True, False]], initial=0) < -90


def test_two_classes_by_hand() -> None:
    """P(the class with one vote more wins) = P(Z₁ − Z₂ > −1) + P(Z₁ − Z₂ = −1)/2."""
    mechanism, k = GNMax(1.3), np.arange(-60, 61)
    p = np.exp(mechanism.noise.log_pmf(k))
    difference = np.convolve(p, p)  # symmetric: of Z₁ + Z₂, so of Z₁ − Z₂
    expected = difference[k[-1] * 2 :].sum() + difference[k[-1] * 2 - 1] / 2
    assert np.exp(mechanism.log_outcomes(np.array([[2, 1]]))[0, 0]) == pytest.approx(expected, rel=1e-13)


histograms = st.integers(2, 11).flatmap(
    lambda k: st.lists(st.lists(st.integers(0, 120), min_size=k, max_size=k), min_size=1, max_size=3)
)


@pytest.mark.parametrize("mechanism", ALL, ids=str)
@settings(max_examples=25, deadline=None)
@given(counts=histograms)
def test_probabilities_sum_to_one_and_follow_the_labels(mechanism: Mechanism, counts: list[list[int]]) -> None:
    votes = np.array(counts)
    outcomes = mechanism.log_outcomes(votes)
    assert outcomes.shape == (len(votes), votes.shape[1] + 1)
    np.testing.assert_allclose(np.exp(outcomes).sum(axis=1), 1.0, rtol=0, atol=1e-12)
    permuted = mechanism.log_outcomes(votes[:, ::-1])
    np.testing.assert_allclose(permuted[:, :-1], outcomes[:, -2::-1], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(permuted[:, -1], outcomes[:, -1], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("mechanism", ALL, ids=str)
@settings(max_examples=25, deadline=None)
@given(counts=histograms, data=st.data())
def test_quick_neighbours_are_those_of_log_outcomes(
    mechanism: LNMax | GNMax | ConfidentGNMax, counts: list[list[int]], data: st.DataObject
) -> None:
    votes = np.array(counts) + np.eye(len(counts[0]), dtype=int)[0]
    rows = np.repeat(np.arange(len(votes)), 3)
    label = st.integers(0, votes.shape[1] - 1)
    sources, targets = np.zeros_like(rows), np.zeros_like(rows)
    for i, row in enumerate(rows):
        sources[i] = data.draw(label.filter(lambda s, row=row: votes[row, s] > 0))
        targets[i] = data.draw(label.filter(lambda t, i=i: t != sources[i]))
    quick = mechanism.log_outcomes_after_moves(votes, rows, sources, targets)
    slow = mechanism.log_outcomes(move_votes(votes, rows, sources, targets))
    np.testing.assert_allclose(quick, slow, rtol=1e-12, atol=1e-9)


def test_quick_neighbours_give_way_to_log_outcomes_where_noise_is_very_narrow() -> None:
    mechanism = GNMax(0.3)
    moves = np.array([0]), np.array([1]), np.array([0])
    quick = mechanism.log_outcomes_after_moves(np.array([[0, 90, 7]]), *moves)
    np.testing.assert_array_equal(quick, mechanism.log_outcomes(np.array([[1, 89, 7]])))
    assert np.isfinite(quick[0, :-1]).all()


@pytest.mark.parametrize("mechanism", [LNMax(2.0), PermuteAndFlip(2.0)], ids=str)
def test_very_many_classes_are_refused_in_a_line(mechanism: Mechanism) -> None:
    """The quadrature over ties takes a time that grows with the cube of their number."""
    assert np.isfinite(mechanism.log_outcomes(np.eye(1, 300, dtype=np.int64))[0, :-1]).all()
    with pytest.raises(TooWide, match="10,000 classes: too many"):
        mechanism.log_outcomes(np.eye(1, 10_000, dtype=np.int64))
