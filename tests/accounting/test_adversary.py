"""Value iteration against the worst adversary, beside exact games of small votes and the same done in another way."""

import math

import numpy as np
import pytest
from support.small_votes import pairs_of_outcomes

from pate.accounting import _adversary as adversary
from pate.accounting._adversary import _game, _Searched, adversary_epsilons
from pate.accounting._histogram_grid import Outcomes, log_two_class_wins
from pate.mechanisms import GNMax, LNMax
from pate.noise.integer import DiscreteGaussian, DiscreteLaplace

NOISES = [DiscreteGaussian(2.0), DiscreteGaussian(9.0), DiscreteLaplace(1.5), DiscreteLaplace(6.0)]


def _exact_delta(pairs, queries, epsilon):
    """δ at ε of the best adversary with two queries or one: nothing is rounded."""
    p, q = pairs

    def gain(s, left):
        if left == 0:
            return np.maximum(s - 1, 0)
        inner = gain(s[..., None, None] * (p / q), left - 1)
        return (q * inner).sum(axis=-1).max(axis=-1)

    return float(math.exp(epsilon) * gain(np.array(math.exp(-epsilon)), queries))


@pytest.mark.parametrize(
    ("mechanism", "n_classes"), [(GNMax(2.0), 3), (LNMax(1.5), 3), (GNMax(1.0), 2), (LNMax(3.0), 4)]
)
@pytest.mark.parametrize("queries", [1, 2])
def test_no_adversary_of_small_votes_gains_more(mechanism, n_classes, queries):
    pairs = [np.exp(side[:, :-1]) for side in pairs_of_outcomes(mechanism, 5, n_classes)]
    for delta in (1e-2, 1e-4):
        known = mechanism.worst_case(queries, queries).epsilon_and_order(delta)[0]
        (epsilon,) = adversary_epsilons(mechanism.noise, [queries], delta, 1.02 * known)  # it pays for many queries
        assert _exact_delta(pairs, queries, epsilon) <= delta


def _two_class_epsilon(noise, queries, delta, points=6001, widest=8.0):
    """The same game with two classes alone, W by interpolation: a floor, as every lead of two classes can occur."""
    log_win = log_two_class_wins(noise, math.ceil(6 * noise.scale))
    win, lose = np.exp(log_win), np.exp(log_win[::-1])
    u = np.linspace(-widest, widest, points)
    gain = np.maximum(np.expm1(u), 0)
    leads = range(2, len(win), max(1, round(noise.scale / 6)))
    for _ in range(queries):
        gain = np.maximum.reduce(
            [
                sum(
                    q * np.interp(u + math.log(p / q), u, gain)
                    for p, q in ((win[i], win[i - 2]), (lose[i], lose[i - 2]))
                )
                for i in leads
            ]
        )
    return -u[(gain <= delta * np.exp(u)) & (u <= 0)].max()


@pytest.mark.parametrize(("noise", "queries"), [(DiscreteGaussian(8.0), 40), (DiscreteLaplace(5.0), 30)])
def test_it_is_just_above_what_two_classes_attain(noise, queries):
    (epsilon,) = adversary_epsilons(noise, [queries], 1e-5, 20.0)
    floor = _two_class_epsilon(noise, queries, 1e-5)
    assert 0.998 * floor < epsilon < 1.025 * floor  # 0.002: the floor's own grid


@pytest.mark.parametrize("noise", NOISES, ids=repr)
@pytest.mark.parametrize("loses_ties", [True, False])
def test_no_point_of_the_plane_is_worth_more_than_the_curves(noise, loses_ties):
    """For hockey sticks in s and random convex W: what a pair gives is at most what the best curve gives."""
    rng = np.random.default_rng(0)
    region, game = _Searched(noise), _game(noise)
    outcomes = Outcomes(region, loses_ties)
    size = 4000
    x = rng.integers(region.lowest, region.far + 1, size)
    y = x + rng.integers(-3 * round(noise.scale) - 3, 3 * round(noise.scale) + 3, size)
    inside = region.must_search(x, y, 1)
    x, y = x[inside], y[inside]

    def answers(x, y):
        rivals = [outcomes.log_rival(x, y, coin) for coin in outcomes.coins]
        return np.exp(np.stack([outcomes.log_win(x, y), outcomes.log_win(y, x), *rivals]))

    p, q = answers(x, y), answers(x - 1, y + 1)
    reach = game.masses.shape[1] // 2
    ratios = np.exp(game.step * np.arange(-reach, reach + 1))
    worths = []
    for t in np.exp(rng.normal(0, 1.5 / noise.scale, 40)):
        worths.append(lambda z, t=t: np.maximum(z - t, 0))
    for order in (2.0, noise.scale / 2 + 1, noise.scale + 1):
        worths.append(lambda z, order=order: z**order)
    for worth in worths:
        best = (game.masses @ worth(ratios)).max()
        assert (q * worth(p / q)).sum(axis=0).max() <= best * (1 + 1e-9) + 1e-12


def test_figures_of_the_papers_settings():
    """δ = 1e-5; two classes attain 1.976 and 6.62, Rényi's conversion gives 2.135 and 7.10."""
    for noise, queries, known, floor in (
        (DiscreteLaplace(20.0), 100, 2.135, 1.976),
        (DiscreteGaussian(8.0), 100, 7.11, 6.62),
    ):
        (epsilon,) = adversary_epsilons(noise, [queries], 1e-5, known)
        assert floor < epsilon < 1.02 * floor
        assert epsilon < 0.955 * known


def test_more_queries_and_smaller_deltas_cost_more():
    noise = DiscreteGaussian(9.0)
    along = adversary_epsilons(noise, [1, 2, 10, 50], 1e-5, 6.0)
    assert along == sorted(along)
    assert adversary_epsilons(noise, [50], 1e-7, 8.0)[0] > along[-1]
    assert adversary_epsilons(noise, [50], 1e-5, 6.0)[0] == along[-1]


def test_what_is_too_large_or_too_small_is_left_to_others():
    assert adversary_epsilons(DiscreteGaussian(0.9), [1], 1e-5, 5.0) == [math.inf]
    assert adversary_epsilons(DiscreteGaussian(65.0), [1], 1e-5, 5.0) == [math.inf]
    assert adversary_epsilons(DiscreteLaplace(31.0), [1], 1e-5, 5.0) == [math.inf]
    noise = DiscreteGaussian(2.0)
    for queries, delta, known in ((10, 1e-5, 0.01), (10**6, 1e-5, 50.0), (10, 1e-5, math.inf), (60, 1e-14, 8.0)):
        assert adversary_epsilons(noise, [queries], delta, known) == [math.inf]  # the last: more than δ is neglected


def test_what_is_neglected_is_charged(monkeypatch):
    noise = DiscreteGaussian(9.0)
    before = adversary_epsilons(noise, [100], 1e-5, 6.0)
    monkeypatch.setattr(adversary, "NEGLECTED", 1e-10)
    _game.cache_clear()
    try:
        assert adversary_epsilons(noise, [100], 1e-5, 6.0) > before
    finally:
        _game.cache_clear()
        adversary._gains.cache_clear()


@pytest.mark.parametrize(("mechanism", "asked"), [(GNMax(12.0), 40), (LNMax(8.0), 25)])
def test_the_guarantee_takes_the_smaller_figure_and_tells_both(mechanism, asked):
    guarantee = mechanism.worst_case(asked, asked)
    methods = guarantee.by_method(1e-5)
    assert guarantee.epsilon(1e-5) == methods["worst adversary"] < methods["Rényi"]
    assert methods["Rényi"] == guarantee.epsilon_and_order(1e-5)[0]


def test_figures_of_a_guarantee_grow_with_its_queries():
    few, many = (GNMax(12.0).worst_case(asked, asked).epsilon(1e-5) for asked in (10, 40))
    assert 1.8 * few < many < 2.5 * few


@pytest.mark.parametrize("noise", NOISES, ids=repr)
def test_another_query_never_lowers_the_gain_not_even_at_the_ends_of_the_grid(noise):
    gains = adversary._gains(noise, 64, 64, 6)
    assert (np.diff(gains, axis=0) >= -1e-12).all()
