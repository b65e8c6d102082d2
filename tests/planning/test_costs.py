"""What queries cost, with the sampler's error of all their draws charged to δ."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pate.accounting.composition import SAMPLER_SHARES
from pate.accounting.exact import exact_epsilon
from pate.errors import ConfigError
from pate.mechanisms import ConfidentGNMax, GNMax, LNMax, Mechanism, MSamp, MStab, MSvec
from pate.noise.integer import TV_ERROR_PER_DRAW
from pate.planning.costs import ReleaseCost, compose, cumulative_epsilons, summarise, worst_case_epsilon
from pate.planning.plan import Workload, answerable, epsilon_of, expect, one_more_query, solve_noise


def test_each_draw_of_each_query_is_charged() -> None:
    """At δ = 1e-20 the error of ten million draws takes half of δ; that of a single query's would take a thousandth."""
    mechanism, asked, delta = GNMax(3000.0), 10**6, 1e-20
    ideal = mechanism.worst_case(asked, asked).epsilon(delta)
    needed = (1 + math.exp(ideal)) * (asked * 11 + 1) * TV_ERROR_PER_DRAW / delta
    assert SAMPLER_SHARES[-2] < needed < SAMPLER_SHARES[-1]
    found = worst_case_epsilon(mechanism, asked, None, delta, n_classes=10)
    assert found == mechanism.worst_case(asked, asked).epsilon(delta * (1 - SAMPLER_SHARES[-1])) > ideal


def test_exact_figures_are_charged_for_each_draw_too() -> None:
    """At δ = 1e-24 the error of 800 draws takes more than a tenth of δ; that of one query's four draws a hundredth."""
    mechanism, votes, delta = LNMax(20.0), np.tile([60, 2, 1], (200, 1)), 1e-24
    ideal, half = (exact_epsilon(mechanism, votes, d) for d in (delta, delta / 2))
    for epsilon in (ideal.rdp, ideal.pld):
        needed = (1 + math.exp(epsilon)) * 200 * 4 * TV_ERROR_PER_DRAW / delta
        assert SAMPLER_SHARES[-2] < needed < SAMPLER_SHARES[-1]
    found = summarise(mechanism, votes, delta, None, 8)
    assert (found.exact_rdp, found.exact_pld) == (half.rdp, half.pld)
    assert half.rdp > ideal.rdp
    assert half.rdp != half.pld


def test_a_limit_on_answers_lowers_the_cost_and_none_means_that_all_are_answered() -> None:
    mechanism = ConfidentGNMax(threshold=30, sigma1=12, sigma2=9)
    every, few, none = (worst_case_epsilon(mechanism, 40, limit) for limit in (40, 10, 0))
    assert none < few < every == worst_case_epsilon(mechanism, 40)


def test_a_votes_file_cannot_say_what_msamp_costs() -> None:
    with pytest.raises(ConfigError, match="msamp"):
        summarise(MSamp(1.0, 1e-5, 0.1, 20), np.array([[20, 0]]), 1e-5, None, 8)


def test_curves_are_those_of_the_figures() -> None:
    mechanism, votes = LNMax(8.0), np.tile([30, 2, 1], (20, 1))
    curves = cumulative_epsilons(mechanism, votes, 1e-5, np.array([5, 20]))
    assert curves["published bound (private)"][0] == summarise(mechanism, votes[:5], 1e-5, None, 8).published_bound
    assert curves["every data set (publishable)"][1] == worst_case_epsilon(mechanism, 20, None, 1e-5, 3)


@pytest.mark.parametrize("settings", [{"name": "gnmax"}, {"name": "mstab", "query_delta": 1e-9}], ids=str)
def test_the_noise_that_is_found_keeps_to_the_target(settings: dict[str, object]) -> None:
    workload = Workload(max_queries=50, max_answers=None, delta=1e-6, n_classes=10)
    found = solve_noise(settings, 2.0, workload)
    at_target = worst_case_epsilon(found, 50, None, 1e-6, 10)
    assert epsilon_of(found, workload) == at_target
    assert 0.97 * 2.0 < at_target <= 2.0


def test_noise_that_is_enough_by_estimate_alone_is_raised() -> None:
    """A target that 70 votes of noise keep to by the quick estimate, but not by the proven bound."""
    workload, wanted = Workload(max_queries=50, max_answers=None, delta=1e-6, n_classes=10), GNMax(70.0)
    target = 1.0004 * wanted.worst_case(50, 50).quick_epsilon(1e-6)
    assert epsilon_of(wanted, workload) > target
    assert epsilon_of(solve_noise({"name": "gnmax"}, target, workload), workload) <= target


def test_a_summary_keeps_to_what_was_asked_for() -> None:
    """The limit on answers, the paper's moments, and the draws of so many classes."""
    votes = np.tile([60, 2, 1], (40, 1))
    limited = summarise(CONFIDENT, votes, 1e-5, 10, 8).data_independent
    assert limited == worst_case_epsilon(CONFIDENT, 40, 10, 1e-5, 3) < worst_case_epsilon(CONFIDENT, 40, None, 1e-5, 3)
    few, many = (summarise(LNMax(20.0), votes, 1e-5, None, moments).published_bound for moments in (2, 30))
    assert few is not None
    assert many is not None
    assert few > many
    wide = np.tile([60, *[0] * 999], (40, 1))
    assert worst_case_epsilon(LNMax(20.0), 40, None, 1e-24, 10) < 3
    assert summarise(LNMax(20.0), wide, 1e-24, None, 8).data_independent is None  # their draws take more than δ


def test_what_has_no_renyi_cost_is_added_at_its_own_delta() -> None:
    parts = [ReleaseCost(9.0, 1e-6, GNMax(40).worst_case(50, 50), 100) for _ in range(2)]
    together, plain = compose(parts)[0], ReleaseCost(0.5, 1e-3)
    epsilon, delta = compose([*parts, plain])
    assert epsilon == pytest.approx(together + 0.5)
    assert delta == pytest.approx(1e-3 + 2e-6)


CONFIDENT = ConfidentGNMax(threshold=30, sigma1=12, sigma2=9)


@pytest.mark.parametrize(("mechanism", "answers"), [(LNMax(20.0), None), (CONFIDENT, 5), (MStab(0.1, 1e-9), None)])
def test_one_more_query_is_answered_and_charged_at_the_same_delta(mechanism: Mechanism, answers: int | None) -> None:
    now, then = (Workload(20 + n, None if answers is None else answers + n, 1e-6, 3) for n in (0, 1))
    added = epsilon_of(mechanism, then, roughly=True) - epsilon_of(mechanism, now, roughly=True)
    assert one_more_query(mechanism, now) == added > 0
    stream = MSvec(1.0, 1e-6, unstable=5, max_queries=20)
    assert one_more_query(stream, now) is None  # more than the stream is made for


def test_expected_answers_follow_from_the_shares_of_the_histograms() -> None:
    counts = np.array([[90, 10, 0], [50, 50, 0]])
    few, all_ = (expect(GNMax(2.0), counts, np.array(shares), 40) for shares in ([3.0, 1.0], [1.0, 0.0]))
    assert few.answered == all_.answered == 40  # it always answers
    assert few.plurality_share == pytest.approx(0.75 + 0.25 / 2, abs=1e-6)
    assert all_.plurality_share == pytest.approx(1)
    tested = expect(ConfidentGNMax(70.0, 2.0, 2.0), counts, np.array([3.0, 1.0]), 40)
    assert tested.answered == pytest.approx(30, abs=1e-6)
    assert tested.plurality_share == pytest.approx(1)


def test_a_stream_is_expected_to_answer_no_more_than_is_asked() -> None:
    stream, votes = MSvec(20.0, 1e-6, unstable=50, max_queries=60), np.tile([10**6, 0], (50, 1))
    assert expect(stream, votes, None, 20).answered == pytest.approx(20, abs=0.1)
    assert expect(stream, votes[:1], np.array([1.0]), 30).answered == pytest.approx(30, abs=0.1)


def test_what_is_answerable_is_said_of_all_the_teachers_and_classes() -> None:
    found = answerable(GNMax(40.0), 100, 50)
    assert found["probability"] == GNMax(40.0).answer_probability(100, 50) < GNMax(40.0).answer_probability(100, 2)
    half, most = (found[key] for key in ("teachers_for_half", "teachers_for_99_percent"))
    for needed, probability in ((half, 0.5), (most, 0.99)):
        assert needed is not None
        assert GNMax(40.0).answer_probability(int(needed), 50) >= probability
        assert GNMax(40.0).answer_probability(int(needed) - 1, 50) < probability
