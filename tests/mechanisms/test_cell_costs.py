"""What rounds cost: by brute force over all small data sets, and against an oracle."""

from __future__ import annotations

import itertools
import math

import mpmath
import numpy as np
import pytest
from scipy.special import logsumexp

from pate.errors import ConfigError
from pate.mechanisms import GNMax, Histogram, LNMax, Mechanism, MStab, PermuteAndFlip
from pate.mechanisms._cell_costs import Round, cost_of, guarantee

MECHANISMS: list[Mechanism] = [LNMax(2.0), GNMax(2.0), Histogram(2.0), PermuteAndFlip(2.0)]
SMALL = np.array(list(itertools.product(range(4), repeat=3)))
"""All histograms of one cell with three classes and up to three votes for each."""


def changed_by_one() -> tuple[np.ndarray, np.ndarray]:
    """All pairs of them that differ in one count, by 1."""
    pairs = [(row, row + step) for row in SMALL for step in np.eye(3, dtype=np.int64) if (row + step <= 3).all()]
    before, after = zip(*pairs, strict=True)
    return np.array(before), np.array(after)


def outcomes(mechanism: Mechanism, counts: np.ndarray) -> np.ndarray:
    """Log-probabilities of everything released about one cell: a label, or (near enough) all noisy counts."""
    if not mechanism.releases_counts:
        return mechanism.log_outcomes(counts)
    noisy = np.array(list(itertools.product(range(-9, 13), repeat=3)))
    assert isinstance(mechanism, Histogram)
    return np.array([mechanism.noise.log_pmf(noisy - row).sum(axis=1) for row in counts])


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=str)
def test_one_changed_count_costs_no_more_than_claimed(mechanism: Mechanism) -> None:
    """Pure and Rényi, in both directions, over all small histograms and their neighbours."""
    claimed = mechanism.count_cost()
    assert claimed is not None
    before, after = changed_by_one()
    here, there = outcomes(mechanism, before), outcomes(mechanism, after)
    possible = np.isfinite(here).all(axis=0)
    here, there = here[:, possible], there[:, possible]
    assert np.abs(here - there).max() <= claimed.pure() + 1e-12
    for order in (1.5, 2.0, 8.0, 32.0):
        bound = float(claimed.rdp(np.array([order]))[0])
        for p, q in ((here, there), (there, here)):
            rdp = logsumexp(order * p + (1 - order) * q, axis=1) / (order - 1)
            assert rdp.max() <= bound * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=str)
@pytest.mark.parametrize("votes", [1, 2])
def test_a_changed_record_costs_no_more_than_claimed(mechanism: Mechanism, votes: int) -> None:
    """Two cells, all small pairs of histograms: votes go down in some counts and up in others, in one cell or both."""
    claimed = guarantee([Round(2, mechanism)], votes)
    cells = np.array(list(itertools.product(range(3), repeat=2)))  # two classes keep it small
    log = {tuple(row): outcomes_of_two(mechanism, row) for row in cells}
    order = 4.0
    bound = claimed.rdp_at(order)
    worst = 0.0
    for a, b, c, d in itertools.product(cells, repeat=4):
        change = np.concatenate([c - a, d - b])
        if np.abs(change).max() > 1 or (change > 0).sum() > votes or (change < 0).sum() > votes:
            continue
        rdp = sum(
            logsumexp(order * log[tuple(p)] + (1 - order) * log[tuple(q)]) / (order - 1) for p, q in ((a, c), (b, d))
        )
        worst = max(worst, float(rdp))
    assert 0 < worst <= bound * (1 + 1e-9)


def outcomes_of_two(mechanism: Mechanism, row: np.ndarray) -> np.ndarray:
    if not mechanism.releases_counts:
        return mechanism.log_outcomes(row[None])[0, :2]
    assert isinstance(mechanism, Histogram)
    noisy = np.array(list(itertools.product(range(-40, 43), repeat=2)))
    return np.asarray(mechanism.noise.log_pmf(noisy - row).sum(axis=1))


def test_permute_and_flip_claims_what_is_attained() -> None:
    """1/scale is the supremum: a lone vote against a far rival."""
    mechanism = PermuteAndFlip(2.0)
    ratio = mechanism.log_outcomes(np.array([[1, 9]]))[0, 0] - mechanism.log_outcomes(np.array([[0, 9]]))[0, 0]
    assert ratio == pytest.approx(0.5, rel=1e-9)


def test_permute_and_flip_against_an_oracle() -> None:
    """Its outcomes by summing over all noise in 40 digits."""
    counts, scale = [2, 2, 0], 1.5
    with mpmath.workdps(40):
        q = mpmath.exp(-1 / mpmath.mpf(scale))
        mass = [(1 - q) * q**k for k in range(70)]
        wins = [mpmath.mpf(0)] * 3
        for noisy in itertools.product(range(22), repeat=3):
            values = [c + z for c, z in zip(counts, noisy, strict=True)]
            tied = [i for i, value in enumerate(values) if value == max(values)]
            for i in tied:
                wins[i] += mass[noisy[0]] * mass[noisy[1]] * mass[noisy[2]] / len(tied)
        expected = [float(value) for value in wins]
    shown = np.exp(PermuteAndFlip(scale).log_outcomes(np.array([counts]))[0, :3])
    np.testing.assert_allclose(shown, expected, atol=3 * math.exp(-22 / scale))


def test_the_cost_does_not_grow_with_cells_but_with_votes_and_rounds() -> None:
    def epsilon(*rounds: Round, votes: int = 1) -> float:
        return cost_of(rounds, votes, 1e-5, 10).epsilon

    one = epsilon(Round(100, Histogram(20.0)))
    assert one == pytest.approx(0.1, rel=1e-3)
    assert one <= 0.1
    assert epsilon(Round(5000, Histogram(20.0))) == pytest.approx(one, rel=1e-3)
    assert 0.299 < epsilon(Round(100, Histogram(20.0)), votes=3) <= 0.3
    assert 0.299 < epsilon(Round(100, Histogram(20.0)), Round(500, PermuteAndFlip(10.0))) <= 0.3
    mixed = epsilon(Round(100, Histogram(20.0)), Round(500, GNMax(50.0)))
    assert one < mixed < 0.3
    cost = cost_of([Round(100, Histogram(20.0))], 1, 1e-5, 10)
    assert cost.added_or_removed == pytest.approx(cost.epsilon / 2, rel=1e-3)


def test_gaussian_rounds_cost_what_the_analytic_gaussian_does() -> None:
    """Two counts with continuous noise: ε solves Balle and Wang's (2018) equation; integer noise is as good."""
    sigma, delta = 50.0, 1e-5
    cost = cost_of([Round(100, GNMax(sigma))], 1, delta, 10).epsilon

    def excess(epsilon: float) -> float:
        from scipy.stats import norm

        shift = math.sqrt(2) / sigma
        upper, lower = shift / 2 - epsilon / shift, -shift / 2 - epsilon / shift
        return float(norm.cdf(upper) - math.exp(epsilon) * norm.cdf(lower)) - delta

    assert excess(cost) < 1e-12  # never below the truth
    assert excess(0.97 * cost) > 0  # and within three percent of it


def test_mechanisms_for_teachers_only_are_refused() -> None:
    with pytest.raises(ConfigError, match="is for teachers"):
        guarantee([Round(10, MStab(0.1, 1e-8))], 1)


def test_every_draw_of_every_cell_is_charged() -> None:
    """So many cells that the sampler's error no longer fits into the smallest share of a tiny δ."""
    few, many = (cost_of([Round(n, Histogram(2.0))], 1, 1e-20, 10).epsilon for n in (10, 10**9))
    assert few < math.inf
    assert many == math.inf
