"""No nonsense is priced: every entry point refuses it, and what is accepted never costs less than what is sane."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import math
import pickle
import pkgutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fuzzing import fuzz

import pate.mechanisms
from pate.accounting import _parameters as parameters
from pate.accounting import calculators, composition, published_bounds, sanitise
from pate.accounting._parameters import ParameterError
from pate.accounting.exact import exact_cost, exact_epsilon
from pate.accounting.worst_case import WorstCaseGuarantee, threshold_test_rdp, worst_case_rdp
from pate.config import parse_config
from pate.errors import PateError
from pate.ledger import Limits, SharedBudget
from pate.mechanisms import (
    ConfidentGNMax,
    GaussianMSamp,
    GaussianMStab,
    GNMax,
    Histogram,
    LectureMSvec,
    LNMax,
    Mechanism,
    MSamp,
    MStab,
    MSvec,
    PermuteAndFlip,
    build,
)
from pate.noise.integer import DiscreteGaussian, DiscreteLaplace
from pate.planning import costs
from pate.planning import plan as planning

NEVER = [math.nan, math.inf, -math.inf, True, False, "1", "", None, [], b"1", 1j, np.array([1.0, 2.0])]
NOT_ABOVE_0 = [*NEVER, 0, -1, -1e-300]
NO_NOISE = [*NOT_ABOVE_0, 1e-4, 1e5, 1e308, 10**400]
NO_EPSILON = [*NOT_ABOVE_0, 1e308]
NO_DELTA = [*NOT_ABOVE_0, 1, 2, 1 + 1e-12]
NO_COUNT = [*NEVER, -1, -1000, 0.5, 10**400, 1e308]
COUNT_OR_NONE = [x for x in NO_COUNT if x is not None]
NO_RATE = [*NOT_ABOVE_0, 1.0001, 2]
NO_ORDER = [*NEVER, 1, 0.5, 0, -3]
HASHABLE_NO_ORDER = [x for x in NO_ORDER if not isinstance(x, (list, np.ndarray))]
NO_VOTES: list[Any] = [
    np.array([[3, -1]]),
    np.array([[0, 0]]),
    np.array([[2, 1], [2, 2]]),
    np.array([[1.5, 1.5]]),
    np.array([[math.nan, 1.0]]),
    np.array([[math.inf, 1.0]]),
    np.array([1, 2]),
    np.zeros((2, 2, 2), dtype=int),
    np.zeros((0, 3), dtype=int),
    np.array([["a", "b"]]),
    np.array([[True, False]]),
    np.array([[2**62, 2**62]]),
]

SANE: dict[str, dict[str, Any]] = {
    "lnmax": {"scale": 20.0},
    "histogram": {"scale": 20.0},
    "permute_and_flip": {"scale": 20.0},
    "gnmax": {"sigma": 20.0},
    "confident_gnmax": {"threshold": 30.0, "sigma1": 20.0, "sigma2": 10.0},
    "mstab": {"epsilon": 0.5, "query_delta": 1e-7},
    "msamp": {"epsilon": 0.5, "query_delta": 1e-7, "sampling_rate": 0.05, "n_teachers": 250},
    "msvec": {"epsilon": 1.0, "delta": 1e-5, "unstable": 5, "max_queries": 100},
    "lecture_msvec": {"epsilon": 1.0, "delta": 1e-5, "unstable": 5, "max_queries": 100},
    "gaussian_mstab": {"sigma": 20.0, "query_delta": 1e-7},
    "gaussian_msamp": {"sigma": 20.0, "query_delta": 1e-7, "sampling_rate": 0.05, "n_teachers": 250},
}
NONSENSE = {
    "scale": NO_NOISE,
    "sigma": NO_NOISE,
    "sigma1": NO_NOISE,
    "sigma2": NO_NOISE,
    "threshold": [*NEVER, 1e300, -(10**400)],
    "epsilon": NO_EPSILON,
    "query_delta": NO_DELTA,
    "delta": NO_DELTA,
    "sampling_rate": [rate for rate in NO_RATE if rate is not None],  # left out, it is chosen
    "n_teachers": [*NO_COUNT, 0],
    "unstable": [*NO_COUNT, 0],
    "max_queries": [*NO_COUNT, 0],
}


def mechanism_classes() -> dict[str, type[Mechanism]]:
    """Every mechanism of the folder: a new one has to come with what it refuses."""
    found = {}
    for module in pkgutil.iter_modules(pate.mechanisms.__path__):
        for _, cls in inspect.getmembers(importlib.import_module(f"pate.mechanisms.{module.name}"), inspect.isclass):
            if issubclass(cls, Mechanism) and "name" in vars(cls):
                found[cls.name] = cls
    return found


MECHANISMS = {name: cls(**SANE[name]) for name, cls in mechanism_classes().items()}
FIELDS = [
    (name, field.name)
    for name, cls in mechanism_classes().items()
    for field in dataclasses.fields(cls)  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("name", "field"), FIELDS)
def test_a_mechanism_refuses_nonsense_for_each_of_its_parameters(name: str, field: str) -> None:
    unknown = (name, field) == ("confident_gnmax", "n_teachers")  # there None means that nobody has said
    for wrong in NONSENSE[field]:
        if not (unknown and wrong is None):
            with pytest.raises(ParameterError, match=field):
                mechanism_classes()[name](**SANE[name] | {field: wrong})
        with pytest.raises(PateError, match=rf"mechanism\.{field}") as caught:
            build({"name": name, **SANE[name], field: wrong})
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("mechanism", MECHANISMS.values(), ids=str)
def test_no_mechanism_prices_a_number_of_queries_that_is_none(mechanism: Mechanism) -> None:
    for wrong in NO_COUNT:
        for limits in ((wrong, 1), (5, wrong)):
            with pytest.raises(ParameterError):
                mechanism.worst_case(*limits)  # type: ignore[arg-type]
    for wrong in (*NEVER, -1, 1, 2):
        with pytest.raises(ParameterError):
            mechanism.worst_case(5, 5).epsilon(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("mechanism", MECHANISMS.values(), ids=str)
def test_no_mechanism_answers_what_are_no_votes(mechanism: Mechanism) -> None:
    for wrong in ([[3, -1]], [[1.5, 1.5]], [[math.nan, 1.0]], [1, 2], [["a", "b"]]):
        with pytest.raises(PateError):
            mechanism.release(np.array(wrong))


VOTES = np.array([[90, 5, 5], [50, 45, 5]])
COST = sanitise.answers_cost(VOTES, DiscreteGaussian(20.0), 4.0)
CONFIDENT = ConfidentGNMax(**SANE["confident_gnmax"])
GAUSSIAN, LAPLACE = DiscreteGaussian(5.0), DiscreteLaplace(5.0)

ENTRY_POINTS: dict[str, tuple[Callable[[Any], Any], list[Any]]] = {
    "exact_epsilon, votes": (lambda x: exact_epsilon(GNMax(9.0), x, 1e-5), NO_VOTES),
    "exact_epsilon, delta": (lambda x: exact_epsilon(GNMax(9.0), VOTES, x), NO_DELTA),
    "ExactCost.epsilon": (exact_cost(GNMax(9.0), VOTES, np.array([2.0, 4.0])).epsilon, NO_DELTA),
    "exact_cost, orders": (lambda x: exact_cost(GNMax(9.0), VOTES, np.array([2.0, x])), NO_ORDER[:4]),
    "worst_case_rdp": (lambda x: worst_case_rdp(LAPLACE, x), HASHABLE_NO_ORDER),
    "threshold_test_rdp": (lambda x: threshold_test_rdp(GAUSSIAN, x), HASHABLE_NO_ORDER),
    "rdp_epsilon": (lambda x: composition.rdp_epsilon(np.array([2.0]), np.array([0.1]), x), NO_DELTA),
    "rdp_epsilon, rdp": (lambda x: composition.rdp_epsilon(np.array([2.0]), np.array([x]), 1e-5), [math.nan, -1.0]),
    "rdp_epsilon, orders": (
        lambda x: composition.rdp_epsilon(np.array([x]), np.array([0.1]), 1e-5),
        [1.0, 0.5, math.nan],
    ),
    "with_sampling_error": (lambda x: composition.with_sampling_error(lambda _: 1.0, x, 3), NO_DELTA),
    "with_sampling_error, draws": (
        lambda x: composition.with_sampling_error(lambda _: 1.0, 1e-5, x),
        [-1, math.nan],
    ),
    "gaussian_rdp": (lambda x: composition.gaussian_rdp(1.0, x, np.array([2.0])), NOT_ABOVE_0),
    "randomised_response_rdp": (lambda x: composition.randomised_response_rdp(x, np.array([2.0])), NOT_ABOVE_0),
    "FixedGuarantee": (lambda x: composition.FixedGuarantee(x, 0.0), [math.nan, -1, True, "1", None]),
    "FixedGuarantee, delta": (lambda x: composition.FixedGuarantee(1.0, x), [math.nan, -1, 1, 2, True, "0"]),
    "RepeatedGuarantee": (lambda x: composition.RepeatedGuarantee(1.0, 0.0, x), NO_COUNT),
    "worst_case_epsilon, asked": (lambda x: costs.worst_case_epsilon(GNMax(9.0), x, None, 1e-5, 3), NO_COUNT),
    "worst_case_epsilon, answered": (
        lambda x: costs.worst_case_epsilon(CONFIDENT, 5, x, 1e-5, 3),
        COUNT_OR_NONE,
    ),
    "worst_case_epsilon, delta": (lambda x: costs.worst_case_epsilon(GNMax(9.0), 5, None, x, 3), NO_DELTA),
    "worst_case_epsilon, classes": (
        lambda x: costs.worst_case_epsilon(GNMax(9.0), 5, None, 1e-5, x),
        [*NO_COUNT, 0, 1],
    ),
    "summarise, votes": (lambda x: costs.summarise(GNMax(9.0), x, 1e-5, None, 8), NO_VOTES),
    "summarise, delta": (lambda x: costs.summarise(GNMax(9.0), VOTES, x, None, 8), NO_DELTA),
    "summarise, answered": (lambda x: costs.summarise(CONFIDENT, VOTES, 1e-5, x, 8), COUNT_OR_NONE),
    "summarise, moments": (lambda x: costs.summarise(LNMax(9.0), VOTES, 1e-5, None, x), [*NO_COUNT, 0, 10**8]),
    "published_epsilon": (lambda x: costs.published_epsilon(LNMax(9.0), VOTES, x), NO_DELTA),
    "planning.Workload, asked": (lambda x: planning.Workload(x, None, 1e-5, 3), [*NO_COUNT, 0]),
    "planning.Workload, answered": (lambda x: planning.Workload(5, x, 1e-5, 3), COUNT_OR_NONE),
    "planning.Workload, delta": (lambda x: planning.Workload(5, None, x, 3), NO_DELTA),
    "planning.Workload, classes": (lambda x: planning.Workload(5, None, 1e-5, x), [*NO_COUNT, 0, 1]),
    "solve_noise": (
        lambda x: planning.solve_noise({"name": "gnmax"}, x, planning.Workload(5, None, 1e-5, 3)),
        NO_EPSILON,
    ),
    "answerable, teachers": (lambda x: planning.answerable(GNMax(9.0), x, 3), COUNT_OR_NONE),
    "histograms_of_gaps": (lambda x: planning.histograms_of_gaps({3: x}, 9, 3), NO_RATE),
    "release_rdp, order": (lambda x: sanitise.release_rdp(x, 0.02, 4.0), NO_ORDER),
    "release_rdp, beta": (lambda x: sanitise.release_rdp(4.0, x, 4.0), NOT_ABOVE_0),
    "release_rdp, sigma_ss": (lambda x: sanitise.release_rdp(4.0, 0.02, x), NOT_ABOVE_0),
    "epsilon_sanitised, delta": (
        lambda x: sanitise.epsilon_sanitised(COST, beta=0.02, sigma_ss=4.0, delta=x),
        NO_DELTA,
    ),
    "epsilon_sanitised, failure": (
        lambda x: sanitise.epsilon_sanitised(COST, beta=0.02, sigma_ss=4.0, delta=1e-5, failure=x),
        [x for x in NO_DELTA if x is not None],
    ),
    "answers_cost, votes": (lambda x: sanitise.answers_cost(x, GAUSSIAN, 4.0), NO_VOTES),
    "answers_cost, order": (lambda x: sanitise.answers_cost(VOTES, GAUSSIAN, x), NO_ORDER),
    "tests_cost, votes": (lambda x: sanitise.tests_cost(x, GAUSSIAN, 9.0, 4.0), NO_VOTES),
    "tests_cost, threshold": (
        lambda x: sanitise.tests_cost(VOTES, GAUSSIAN, x, 4.0),
        NONSENSE["threshold"],
    ),
    "tests_cost, order": (lambda x: sanitise.tests_cost(VOTES, GAUSSIAN, 9.0, x), NO_ORDER),
    "rdp_by_gap, order": (lambda x: sanitise.rdp_by_gap(GAUSSIAN, x, 3, 9), HASHABLE_NO_ORDER),
    "rdp_by_gap, classes": (lambda x: sanitise.rdp_by_gap(GAUSSIAN, 4.0, x, 9), [-1, 0.5, 0, 1, math.nan, "3"]),
    "lnmax_epsilon, scale": (lambda x: published_bounds.lnmax_epsilon(VOTES, x, 1e-5), NOT_ABOVE_0),
    "lnmax_epsilon, delta": (lambda x: published_bounds.lnmax_epsilon(VOTES, 20.0, x), NO_DELTA),
    "lnmax_epsilon, lambda": (lambda x: published_bounds.lnmax_epsilon(VOTES, 20.0, 1e-5, x), [*NO_COUNT, 0]),
    "gnmax_rdp, sigma": (lambda x: published_bounds.gnmax_rdp(VOTES, x, [2.0]), NOT_ABOVE_0),
    "gnmax_rdp, orders": (
        lambda x: published_bounds.gnmax_rdp(VOTES, 20.0, x),
        [[], [1.0], [math.nan], "2", None, 2.0],
    ),
    "threshold_rdp": (lambda x: published_bounds.threshold_rdp(VOTES, x, 20.0, [2.0]), NONSENSE["threshold"]),
    "epsilon_from_rdp": (lambda x: published_bounds.epsilon_from_rdp([2.0], [0.1], x), NO_DELTA),
    "amplify_exact, epsilon": (lambda x: calculators.amplify_exact(x, 0.0, 0.1), [math.nan, -1, True, "1", None]),
    "amplify_exact, delta": (lambda x: calculators.amplify_exact(1.0, x, 0.1), [math.nan, -1, 1, 2, True, "0"]),
    "amplify_exact, rate": (lambda x: calculators.amplify_exact(1.0, 0.0, x), NO_RATE),
    "amplify_linear": (lambda x: calculators.amplify_linear(0.5, 0.0, x), NO_RATE),
    "amplify_lecture": (lambda x: calculators.amplify_lecture(0.5, 0.0, x), NO_RATE),
    "zcdp_of_gaussian": (calculators.zcdp_of_gaussian, NOT_ABOVE_0),
    "zcdp_of_pure": (calculators.zcdp_of_pure, NOT_ABOVE_0),
    "zcdp_epsilon": (lambda x: calculators.zcdp_epsilon(x, 1e-5), [math.nan, -1, True, "1", None]),
    "closed_moment_epsilon": (lambda x: calculators.closed_moment_epsilon(0.1, x, 10, 1e-5), NOT_ABOVE_0),
    "group_privacy": (lambda x: calculators.group_privacy(1.0, 0.0, x), [*NO_COUNT, 0]),
    "laplace_accuracy": (lambda x: calculators.laplace_accuracy(x, 3, 0.1), NOT_ABOVE_0),
    "gaussian_sigma_classic": (lambda x: calculators.gaussian_sigma_classic(0.5, x), NO_DELTA),
    "gaussian_sigma_analytic": (lambda x: calculators.gaussian_sigma_analytic(x, 1e-5), NO_EPSILON),
    "compose_basic": (lambda x: calculators.compose_basic(1.0, 0.0, x), [*NO_COUNT, 0]),
    "compose_advanced": (lambda x: calculators.compose_advanced(0.1, 0.0, 10, x), NO_DELTA),
    "compose_optimal, k": (lambda x: calculators.compose_optimal(0.1, 0.0, x, 1e-5), [*NO_COUNT, 0]),
    "compose_optimal, delta": (lambda x: calculators.compose_optimal(0.1, 0.0, 10, x), NO_DELTA),
    "moments_epsilon, rate": (lambda x: calculators.moments_epsilon(x, 4.0, 10, 1e-5), NO_RATE),
    "moments_epsilon, sigma": (lambda x: calculators.moments_epsilon(0.1, x, 10, 1e-5), NOT_ABOVE_0),
    "moments_epsilon, steps": (lambda x: calculators.moments_epsilon(0.1, 4.0, x, 1e-5), [*NO_COUNT, 0]),
    "moments_epsilon, delta": (lambda x: calculators.moments_epsilon(0.1, 4.0, 10, x), NO_DELTA),
    "strong_composition_epsilon": (lambda x: calculators.strong_composition_epsilon(0.1, 4.0, 10, x), NO_DELTA),
    "Limits, asked": (lambda x: Limits(x, 1, "GNMax"), NO_COUNT),
    "Limits, answered": (lambda x: Limits(1, x, "GNMax"), NO_COUNT),
    "Limits, rdp": (lambda x: Limits(1, 1, "GNMax", rdp_answered=x), [math.nan, -1e-9, math.inf, "1", True]),
    "SharedBudget, order": (lambda x: SharedBudget(x, 1.0, 1e-5), NO_ORDER),
    "SharedBudget, epsilon": (lambda x: SharedBudget(8.0, x, 1e-5), NO_EPSILON),
    "SharedBudget, delta": (lambda x: SharedBudget(8.0, 1.0, x), NO_DELTA),
    "MSvec.begin": (lambda x: MSvec(1.0, 1e-5, 3, 10).begin(x, 2), NO_COUNT),
    "gap_needed": (lambda x: MStab(0.5, 1e-7).gap_needed(x), NO_DELTA),
}


@pytest.mark.parametrize("name", ENTRY_POINTS)
def test_nonsense_is_refused(name: str) -> None:
    call, nonsense = ENTRY_POINTS[name]
    for wrong in nonsense:
        with pytest.raises((ParameterError, parameters.VotesError)) as caught:
            call(wrong)
        assert "\n" not in str(caught.value)


CONFIG = {
    "n_teachers": 20,
    "data": {"source": "digits"},
    "teachers": [{"name": "sklearn.svm.SVC"}],
    "mechanism": {"name": "gnmax", "sigma": 6},
    "student": {"name": "supervised"},
}
IN_CONFIG = {
    "budget.delta": NO_DELTA,
    "budget.max_queries": [*NO_COUNT, 0],
    "budget.max_answers": [x for x in [*NO_COUNT, 0] if x is not None],
    "budget.epsilon": [x for x in NO_EPSILON if x is not None],
    "budget.sanitise.order": NO_ORDER,
    "budget.sanitise.beta": [*NOT_ABOVE_0, 0.4],
    "budget.sanitise.sigma_ss": NOT_ABOVE_0,
    "mechanism.sigma": NO_NOISE,
    "n_teachers": [*NO_COUNT, 0, 1, 10**9],
    "seed": [*NEVER, -1, 2**32, 2**40, 0.5],
}


@pytest.mark.parametrize("key", IN_CONFIG)
def test_a_config_refuses_the_same_nonsense(key: str) -> None:
    for wrong in IN_CONFIG[key]:
        content: dict[str, Any] = {**CONFIG, "budget": {}, "mechanism": dict(CONFIG["mechanism"])}  # type: ignore[call-overload]
        if "sanitise" in key:
            content["budget"]["sanitise"] = {"order": 4, "beta": 0.05}
        place = content
        *sections, last = key.split(".")
        for section in sections:
            place = place[section]
        place[last] = wrong
        with pytest.raises(PateError, match=key.replace(".", r"\.")) as caught:
            parse_config(content)
        assert "\n" not in str(caught.value)


def test_what_is_refused_late_otherwise_is_refused_with_the_config() -> None:
    for change, words in (
        ({"sigma": 0.3}, "too large to sanitise"),
        ({"sigma": 5, "max_queries": 20_000}, "too large to sanitise"),
    ):
        budget = {"max_queries": change.pop("max_queries", 100), "sanitise": {"order": 4, "beta": 0.05}}
        with pytest.raises(PateError, match=words):
            parse_config({**CONFIG, "mechanism": {"name": "gnmax", **change}, "budget": budget})


def test_numbers_of_every_kind_are_taken() -> None:
    assert parameters.delta(np.float32(0.25)) == 0.25
    assert parameters.queries(np.int64(7)) == 7
    assert parameters.queries(7.0) == 7
    assert isinstance(GNMax(40).sigma, float)  # type: ignore[arg-type]
    assert MSamp(1, 1e-6, 0.1, 250.0).n_teachers == 250  # type: ignore[arg-type]
    assert isinstance(MSamp(1, 1e-6, 0.1, 250.0).n_teachers, int)  # type: ignore[arg-type]


def test_an_error_says_what_would_do_and_travels_between_processes() -> None:
    with pytest.raises(ParameterError) as caught:
        parameters.delta(2)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert str(copy) == str(caught.value)
    assert str(copy).startswith("delta = 2: must be a number above 0 and below 1")
    assert str(copy.under("budget")).startswith("budget.delta = 2:")


# What is accepted costs no less than its nearest sane neighbour.

SLACK = 1 - 2e-3  # the proven search is right to a thousandth


def priced(mechanism: Mechanism, asked: int, answered: int, delta: float = 1e-5) -> float:
    return costs.worst_case_epsilon(mechanism, asked, answered, delta, 10, roughly=True)


def with_noise(name: str, noise: float) -> Mechanism:
    return {
        "lnmax": lambda: LNMax(noise),
        "histogram": lambda: Histogram(noise),
        "permute_and_flip": lambda: PermuteAndFlip(noise),
        "gnmax": lambda: GNMax(noise),
        "confident_gnmax": lambda: ConfidentGNMax(40.0, noise, noise / 2),
        "mstab": lambda: MStab(1 / noise, 1e-9),
        "msvec": lambda: MSvec(1 / noise, 1e-6, 3, 4000),
        "lecture_msvec": lambda: LectureMSvec(1 / noise, 1e-6, 3, 4000),
        "gaussian_mstab": lambda: GaussianMStab(noise, 1e-10),
        "gaussian_msamp": lambda: GaussianMSamp(noise, 1e-10, 0.01, 250),
        "msamp": lambda: MSamp(1 / noise, 1e-9, 0.01, 250),
    }[name]()


@pytest.mark.parametrize("name", sorted(SANE))
def test_more_queries_answers_and_noise_never_lower_the_privacy_for_less(name: str) -> None:
    mechanism = with_noise(name, 5.0)
    epsilon = priced(mechanism, 40, 3)
    assert epsilon > 0
    assert priced(mechanism, 90, 3) >= SLACK * epsilon
    assert priced(mechanism, 40, 30) >= SLACK * epsilon
    assert priced(mechanism, 40, 3, 1e-7) >= SLACK * epsilon
    assert SLACK * priced(with_noise(name, 12.0), 40, 3) <= epsilon


@pytest.mark.parametrize("name", sorted(SANE))
def test_each_query_costs_and_renyi_costs_add_up(name: str) -> None:
    """By every figure that a guarantee gives: at a δ, by methods, at an order, and roughly."""
    one, many = (with_noise(name, 4.0).worst_case(n, n) for n in (1, 20))
    assert 1.5 * one.epsilon(1e-4) < many.epsilon(1e-4) < math.inf
    assert 1.5 * one.quick_epsilon(1e-4) < many.quick_epsilon(1e-4) < math.inf
    if isinstance(one, composition.RdpGuarantee) and isinstance(many, composition.RdpGuarantee):
        orders = np.array([1.5, 8.0])
        np.testing.assert_allclose(many.rdp(orders), 20 * one.rdp(orders), rtol=1e-9)
        assert many.rdp_at(8.0) == pytest.approx(20 * one.rdp_at(8.0), rel=1e-9)
    if isinstance(many, WorstCaseGuarantee):
        assert many.by_renyi().epsilon(1e-4) == pytest.approx(many.epsilon_and_order(1e-4)[0], rel=1e-12)
        assert all(many.epsilon(1e-4) <= found for found in many.by_method(1e-4).values())


@pytest.mark.parametrize("name", sorted(SANE))
def test_the_most_noise_and_the_fewest_queries_still_cost(name: str) -> None:
    widest = {"mstab": 9000.0, "msamp": 900.0, "msvec": 100.0, "lecture_msvec": 100.0}.get(name, 10_000.0)
    assert priced(with_noise(name, widest), 1, 1) > 0
    assert priced(with_noise(name, widest), 1, 0) > 0


@given(value=st.one_of(st.floats(), st.integers(), st.booleans(), st.text(), st.none(), st.binary()))
@fuzz(60)
def test_whatever_is_accepted_is_in_range(value: object) -> None:
    for check, inside in (
        (parameters.epsilon, lambda x: 0 < x < math.inf),
        (parameters.delta, lambda x: 0 < x < 1),
        (parameters.noise, lambda x: 1e-3 <= x <= 1e4),
        (parameters.clip_norm, lambda x: 1e-12 <= x <= 1e12),
        (parameters.queries, lambda x: isinstance(x, int) and 0 <= x <= 10**9),
        (parameters.order, lambda x: 1 < x < math.inf),
        (parameters.seed, lambda x: isinstance(x, int) and 0 <= x < 2**32),
    ):
        try:
            accepted = check(value)
        except ParameterError:
            continue
        assert inside(accepted)
        assert accepted == value
        assert not isinstance(value, (bool, str))
