"""Every mechanism of the folder, found unasked: sampler against log_outcomes, worst-case claims by brute force."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import chi2

from pate.components._registry import short_names
from pate.errors import ConfigError
from pate.mechanisms import (
    UNANSWERED,
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
    mechanism_class,
)

EXAMPLES: list[Mechanism] = [
    LNMax(1.0),
    LNMax(3.0),
    GNMax(1.0),
    GNMax(2.5),
    Histogram(2.0),
    PermuteAndFlip(1.0),
    PermuteAndFlip(3.0),
    ConfidentGNMax(threshold=4, sigma1=1.5, sigma2=1.0),
    ConfidentGNMax(threshold=3.5, sigma1=3.0, sigma2=2.0),
]


def histograms(n_teachers: int, n_classes: int) -> np.ndarray:
    """All of them."""
    rows = itertools.product(range(n_teachers + 1), repeat=n_classes)
    return np.array([row for row in rows if sum(row) == n_teachers])


def neighbours(row: np.ndarray) -> np.ndarray:
    """All histograms one moved vote away."""
    moved = []
    for a, b in itertools.permutations(range(len(row)), 2):
        if row[a] > 0:
            other = row.copy()
            other[a] -= 1
            other[b] += 1
            moved.append(other)
    return np.array(moved)


def test_examples_cover_the_folder() -> None:
    import importlib

    found = set()
    for module in short_names("pate.mechanisms"):
        for value in vars(importlib.import_module(f"pate.mechanisms.{module}")).values():
            if isinstance(value, type) and issubclass(value, Mechanism) and "name" in vars(value):
                found.add(value)
    tested_in_their_own_files = {MStab, MSamp, GaussianMStab, GaussianMSamp, MSvec, LectureMSvec}
    assert found == {type(example) for example in EXAMPLES} | tested_in_their_own_files
    for cls in found:
        assert mechanism_class({"name": cls.name}) is cls


@pytest.mark.parametrize("mechanism", EXAMPLES, ids=str)
def test_outcomes_sum_to_one_and_follow_a_permutation(mechanism: Mechanism) -> None:
    counts = np.concatenate([histograms(5, 4), [[250, 0, 0, 0], [130, 115, 5, 0], [63, 63, 62, 62]]])
    outcomes = mechanism.log_outcomes(counts)
    np.testing.assert_allclose(np.exp(outcomes).sum(axis=1), 1, atol=1e-12)
    permutation = np.array([2, 0, 3, 1])
    permuted = mechanism.log_outcomes(counts[:, permutation])
    np.testing.assert_allclose(permuted[:, :-1], outcomes[:, permutation], rtol=1e-12)
    np.testing.assert_array_equal(permuted[:, -1], outcomes[:, -1])
    assert mechanism.may_decline == np.isfinite(outcomes[:, -1]).any()


@pytest.mark.parametrize("mechanism", EXAMPLES, ids=str)
def test_releases_follow_log_outcomes(mechanism: Mechanism) -> None:
    """χ² on 100,000 releases a histogram; false-alarm rate 1e-6 a histogram, and fixed by the seed."""
    for row in ([3, 2, 1], [2, 2, 2], [6, 0, 0]):
        labels = mechanism.release(np.tile(row, (100_000, 1)), random.Random(11).randbytes)
        observed = np.array([(labels == outcome).sum() for outcome in (0, 1, 2, UNANSWERED)])
        expected = np.exp(mechanism.log_outcomes(np.array([row]))[0]) * len(labels)
        possible = expected > 5
        assert observed[expected == 0].sum() == 0
        statistic = ((observed - expected) ** 2 / np.maximum(expected, 1e-300))[possible].sum()
        assert statistic < chi2.isf(1e-6, possible.sum())


@pytest.mark.parametrize("mechanism", EXAMPLES, ids=str)
@pytest.mark.parametrize("order", [1.5, 2.0, 8.0, 32.0])
def test_worst_case_holds_for_all_small_histograms(mechanism: Mechanism, order: float) -> None:
    claimed = mechanism.worst_case(1, 1).rdp_at(order)  # type: ignore[attr-defined]
    for n_classes in (2, 3):
        for row in histograms(6, n_classes):
            here = mechanism.log_outcomes(row[None])
            there = mechanism.log_outcomes(neighbours(row))
            possible = np.isfinite(here[0])
            moments = order * here[:, possible] + (1 - order) * there[:, possible]
            rdp = logsumexp(moments, axis=1) / (order - 1)
            assert rdp.max() <= claimed * (1 + 1e-9)


def test_pure_epsilon_of_lnmax_is_two_over_scale() -> None:
    mechanism = LNMax(2.0)
    worst = 0.0
    for row in histograms(6, 3):
        ratio = mechanism.log_outcomes(row[None])[:, :-1] - mechanism.log_outcomes(neighbours(row))[:, :-1]
        worst = max(worst, float(np.abs(ratio).max()))
    assert worst <= 2 / 2.0 + 1e-12


def test_answers_are_right_where_there_is_no_noise_to_speak_of() -> None:
    counts = np.array([[0, 9, 1], [10, 0, 0]])
    assert GNMax(0.05).release(counts).tolist() == [1, 0]
    assert LNMax(0.01).release(counts).tolist() == [1, 0]
    confident = ConfidentGNMax(threshold=9.5, sigma1=0.05, sigma2=0.05)
    assert confident.release(counts).tolist() == [UNANSWERED, 0]


def test_ties_are_broken_evenly() -> None:
    """Five-way ties, 50,000 times: each label's share within 6 standard deviations (false alarms < 1e-8)."""
    labels = GNMax(0.05).release(np.full((50_000, 5), 4), random.Random(3).randbytes)
    assert np.abs(np.bincount(labels, minlength=5) - 10_000).max() < 6 * np.sqrt(50_000 * 0.16)


def test_outcomes_of_one_in_1e40_are_exact() -> None:
    """Two classes: P(the loser wins) is a tail of the noise's difference, summed in mpmath."""
    import mpmath
    from support.exact_noise import exact_mass

    mechanism = LNMax(2.0)
    with mpmath.workdps(60):
        mass = [exact_mass(mechanism.noise, k) for k in range(400)]
        probability = mpmath.mpf(0)
        for difference in range(190, 400):
            at = sum(mass[abs(i)] * mass[abs(difference - i)] for i in range(difference - 399, 400))
            probability += at if difference > 190 else at / 2
        expected = float(mpmath.log(probability))
    assert -95 < expected < -85  # about 1e-40
    shown = mechanism.log_outcomes(np.array([[0, 190]]))[0, 0]
    assert shown == pytest.approx(expected, abs=1e-9)


EVERY: list[Mechanism] = [
    *EXAMPLES,
    MStab(1.0, 0.3),
    MSamp(1.0, 0.3, 0.1, 20),
    GaussianMStab(1.5, 0.3),
    GaussianMSamp(1.5, 0.3, 0.1, 20),
    MSvec(8.0, 0.3, 1, 3),
    MSvec(2.5, 0.2, 2, 3),
    LectureMSvec(8.0, 0.3, 1, 3),
]


@pytest.mark.parametrize("mechanism", EVERY, ids=str)
@pytest.mark.parametrize("n_classes", [3, 5])
def test_every_draw_of_a_query_is_charged(mechanism: Mechanism, n_classes: int) -> None:
    """Eight bytes are a draw of noise and sixteen break a tie; among 300 tied votes some take all there can be."""
    random_bytes, taken = random.Random(5).randbytes, [0]

    def entropy(n: int) -> bytes:
        taken[-1] += 1 if n == 16 else n // 8
        return random_bytes(n)

    for _ in range(300):
        mechanism.begin().answer(np.full((1, n_classes), 4), entropy)
        taken.append(0)
    assert max(taken) == mechanism.noise_draws(n_classes)


def test_what_a_query_costs_in_a_shared_ledger() -> None:
    confident, order = ConfidentGNMax(threshold=4, sigma1=1.5, sigma2=1.0), 3.0
    test, answer = confident.rdp_per_query(order) or (0.0, 0.0)
    assert test == confident.worst_case(1, 0).rdp_at(order) > 0
    assert test + answer == pytest.approx(confident.worst_case(1, 1).rdp_at(order), rel=1e-12)
    assert answer == pytest.approx(GNMax(1.0).worst_case(1, 1).rdp_at(order), rel=1e-12)
    assert GNMax(1.0).rdp_per_query(order) == (0.0, GNMax(1.0).worst_case(1, 1).rdp_at(order))
    by_default = Mechanism.rdp_per_query(confident, order)
    assert by_default == (confident.worst_case(1, 1).rdp_at(order), 0.0), "⊥ of a mechanism that says no more"
    for without in (MStab(1.0, 0.3), GaussianMStab(1.5, 0.3), MSvec(8.0, 0.3, 1, 3), MSvec(2.5, 0.2, 2, 3)):
        assert without.rdp_per_query(order) is None


def test_queries_that_are_not_answered_are_charged() -> None:
    """LNMax and GNMax answer every query, whatever limit there is on answers; so ⊥ of the others costs too."""
    for mechanism in (LNMax(1.0), GNMax(1.0), MStab(0.1, 1e-9)):
        assert mechanism.worst_case(20, 0).epsilon(1e-5) == mechanism.worst_case(20, 20).epsilon(1e-5) > 0
    answers, tested = (m.worst_case(20, 20).epsilon(1e-5) for m in (GNMax(9.0), ConfidentGNMax(4, 9.0, 9.0)))
    assert tested > 1.1 * answers, "its tests cost too"
    test = ConfidentGNMax(threshold=4, sigma1=1.5, sigma2=1.0).worst_case(20, 0)
    assert test.rdp_at(3.0) == pytest.approx(20 * test.costs[0].proven(3.0), rel=1e-12)


def test_which_mechanisms_have_an_exact_cost() -> None:
    without = {type(m).__name__ for m in EVERY if not m.has_exact_cost}
    assert without == {"MSamp", "GaussianMSamp", "MSvec", "LectureMSvec"}


def test_which_mechanisms_have_a_sanitised_cost() -> None:
    having = {type(m).__name__ for m in EVERY if m.has_sanitised_cost}
    assert having == {"LNMax", "GNMax", "ConfidentGNMax"}
    for mechanism in EVERY:
        if not mechanism.has_sanitised_cost:
            with pytest.raises(ConfigError, match="only for lnmax"):
                mechanism.sanitised_cost(np.array([[3, 1]]), np.array([True]), 4.0)


def test_records_of_msamp_are_in_at_most_kappa_parts() -> None:
    split = MSamp(1.0, 1e-5, 0.1, 50).split(50)
    assert (split.n_parts, split.rate, split.max_parts) == (50, 0.1, 10)
    assert GNMax(1.0).split(50).rate is None


def test_build_names_what_is_wrong() -> None:
    assert build({"name": "pate.mechanisms.LNMax", "scale": 20}) == LNMax(20.0)
    assert build({"name": "confident-gnmax", "threshold": 200, "sigma1": 150, "sigma2": 40}).may_decline
    for settings in ({}, {"name": "lnmax"}, {"name": "os.path"}, {"name": "pate.nothing.X"}, {"name": "lnmax", "b": 1}):
        with pytest.raises(ConfigError, match="mechanism"):
            build(settings)
