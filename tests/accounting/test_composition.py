"""Composition against dp-accounting's own mechanisms and against closed forms."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pate.accounting.composition import (
    ORDERS,
    FixedGuarantee,
    RdpGuarantee,
    RepeatedGuarantee,
    randomised_response_rdp,
    rdp_epsilon,
    with_sampling_error,
)
from pate.mechanisms import ConfidentGNMax, GNMax, LNMax
from pate.noise.integer import TV_ERROR_PER_DRAW


def test_gnmax_costs_what_dp_accounting_says_of_the_gaussian() -> None:
    from dp_accounting import GaussianDpEvent, SelfComposedDpEvent
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(ORDERS)
    accountant.compose(SelfComposedDpEvent(GaussianDpEvent(40 / math.sqrt(2)), 1000))
    guarantee = GNMax(40.0).worst_case(1000, 1000).by_renyi()
    closed_form = RdpGuarantee(guarantee.rdp).epsilon(1e-5)
    assert closed_form == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-9)
    assert 0.6 * closed_form < guarantee.epsilon(1e-5) < closed_form


@given(st.floats(1e-9, 0.5), st.floats(1e-8, 100.0), st.floats(0.0, 1.5), st.booleans())
def test_renyi_costs_convert_as_dp_accounting_converts_them(
    delta: float, size: float, power: float, some_are_infinite: bool
) -> None:
    from dp_accounting.rdp import compute_epsilon

    rdp = size * ORDERS**power
    rdp[ORDERS > 50] = math.inf if some_are_infinite else rdp[ORDERS > 50]
    assert rdp_epsilon(ORDERS, rdp, delta) == pytest.approx(compute_epsilon(ORDERS, rdp, delta), rel=1e-12, abs=1e-14)


def exact_delta(guarantee: RepeatedGuarantee, epsilon: mp.mpf) -> mp.mpf:
    """The δ of Kairouz, Oh, Viswanath 2015, Theorem 3.3, loss by loss."""
    each, times = mp.mpf(guarantee.each_epsilon), guarantee.times
    p, finite = 1 / (1 + mp.exp(-each)), (1 - mp.mpf(guarantee.each_delta)) ** times
    losses = [(positive, (2 * positive - times) * each) for positive in range(times + 1)]
    chances = (
        mp.binomial(times, n) * p**n * (1 - p) ** (times - n) * -mp.expm1(epsilon - loss)
        for n, loss in losses
        if loss > epsilon
    )
    return 1 - finite * (1 - mp.fsum(chances))


@pytest.mark.parametrize(
    ("each_epsilon", "each_delta", "times", "delta"),
    [
        (0.05, 1e-9, 1000, 1e-6),  # here and in the next, losing everything takes nearly all of δ
        (0.3, 1e-9, 1000, 1e-6),
        (0.001, 0.0, 1000, 1e-6),
        (1.0, 1e-9, 100, 1e-5),
        (0.5, 0.0, 1, 0.2),
        (0.1, 0.0, 7, 1e-12),
    ],
)
def test_repeated_guarantees_cost_just_what_the_theorem_says(
    each_epsilon: float, each_delta: float, times: int, delta: float
) -> None:
    guarantee = RepeatedGuarantee(each_epsilon, each_delta, times)
    epsilon = mp.mpf(guarantee.epsilon(delta))
    with mp.workdps(50):
        assert (
            exact_delta(guarantee, epsilon * (1 - mp.mpf(1e-10)))
            > delta
            > exact_delta(guarantee, epsilon * (1 + mp.mpf(1e-10)))
        )


def test_repeated_guarantees_beyond_floating_point_are_bounded_by_the_sum() -> None:
    assert 2500 < RepeatedGuarantee(3.0, 0.0, 1000).epsilon(1e-6) < 3000
    assert RepeatedGuarantee(800.0, 0.0, 3).epsilon(1e-6) == 2400
    assert RepeatedGuarantee(0.1, 1e-6, 100).epsilon(1e-5) == math.inf
    assert RepeatedGuarantee(0.1, 0.0, 100).epsilon(0.0) == pytest.approx(10.0)
    assert RepeatedGuarantee(0.01, 0.0, 4).epsilon(0.9) == 0.0


def test_lnmax_is_never_worse_than_its_pure_epsilon() -> None:
    for scale in (1.0, 20.0):
        for asked in (1, 50):
            assert LNMax(scale).worst_case(asked, asked).by_renyi().epsilon(1e-12) <= 2 * asked / scale * 1.002


def test_randomised_response_rdp_against_the_definition() -> None:
    p = math.exp(0.7) / (1 + math.exp(0.7))
    for order in (1.5, 2.0, 10.0):
        direct = math.log(p**order * (1 - p) ** (1 - order) + (1 - p) ** order * p ** (1 - order)) / (order - 1)
        assert randomised_response_rdp(0.7, np.array([order]))[0] == pytest.approx(direct, rel=1e-12)


def test_confident_queries_cost_less_when_fewer_are_answered() -> None:
    mechanism = ConfidentGNMax(200, 150, 40)
    few, many = (mechanism.worst_case(640, answered).epsilon(1e-5) for answered in (100, 300))
    assert 0 < few < many < mechanism.worst_case(640, 640).epsilon(1e-5)


def test_finer_and_wider_orders_change_nothing_that_shows() -> None:
    fine = 1 + np.geomspace(1e-4, 1e6, 12_000)
    for mechanism, queries in ((GNMax(8.0), 100), (LNMax(20.0), 100), (LNMax(500.0), 1), (GNMax(1.0), 1000)):
        guarantee = RdpGuarantee(mechanism.worst_case(queries, queries).rdp)  # type: ignore[attr-defined]
        finest = rdp_epsilon(fine, guarantee.rdp(fine), 1e-5)[0]
        assert guarantee.epsilon(1e-5) == pytest.approx(finest, rel=5e-4)


def test_sampling_error_is_charged_to_delta() -> None:
    epsilon_at = GNMax(8.0).worst_case(100, 100).by_renyi().epsilon
    ideal = epsilon_at(1e-5)
    real = with_sampling_error(epsilon_at, 1e-5, 1100 * 2**38)
    assert ideal < real < ideal * 1.001
    assert with_sampling_error(epsilon_at, 1e-5, 1100 * 2**78) == math.inf
    assert with_sampling_error(GNMax(0.05).worst_case(1000, 1000).by_renyi().epsilon, 1e-5, 2**38) == math.inf


def test_a_larger_share_of_delta_is_set_aside_where_it_is_needed() -> None:
    seen = []

    def epsilon_at(delta: float) -> float:
        seen.append(delta)
        return 2.0

    tau = 0.05 * 1e-5 / (1 + math.exp(2.0))  # 5 % of δ
    assert with_sampling_error(epsilon_at, 1e-5, round(tau / TV_ERROR_PER_DRAW)) == 2.0
    assert seen[-1] == pytest.approx(0.9e-5)


@pytest.mark.parametrize("epsilon", [0.0, 2.0, 10.0])
@pytest.mark.parametrize("draws", [0, 1, 40, 1000])
@pytest.mark.parametrize("times", [2**38, 2**58, 2**68])
def test_the_share_set_aside_covers_both_samplers_errors(epsilon: float, draws: int, times: int) -> None:
    """(1 + e^ε)·draws·error comes off δ, and what is left is all that the mechanism may spend."""
    spent: list[float] = []

    def epsilon_at(delta: float) -> float:
        spent.append(delta)
        return epsilon

    needed = (1 + math.exp(epsilon)) * draws * times * TV_ERROR_PER_DRAW
    found = with_sampling_error(epsilon_at, 1e-5, draws * times)
    if needed > 0.5e-5:
        assert found == math.inf
    else:
        assert found == epsilon
        assert spent[-1] + needed <= 1e-5 * (1 + 1e-12)


def test_a_guarantee_holds_at_its_own_delta_and_above() -> None:
    fixed = FixedGuarantee(1.5, 1e-6)
    assert [fixed.epsilon(delta) for delta in (0.0, 0.99e-6, 1e-6, 1e-3)] == [math.inf, math.inf, 1.5, 1.5]
    repeated = RepeatedGuarantee(0.1, 1e-6, 5)
    assert repeated.epsilon(4.9e-6) == math.inf
    assert repeated.epsilon(5.1e-6) == pytest.approx(0.5, rel=1e-3)


def test_costs_that_are_no_numbers_are_refused() -> None:
    for wrong in (math.nan, -1e-9):
        with pytest.raises(ValueError, match="rdp"):
            rdp_epsilon(np.array([2.0, 3.0]), np.array([1.0, wrong]), 1e-5)
