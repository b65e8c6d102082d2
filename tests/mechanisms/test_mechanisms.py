"""Every mechanism of the folder, found unasked: sampler against log_outcomes, worst-case claims by brute force."""

from __future__ import annotations

import random

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2
from support.small_votes import histograms, pairs_of_outcomes, renyi

from pate.accounting._parameters import TooWide
from pate.accounting.exact import move_votes
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


def test_examples_cover_the_folder() -> None:
    import importlib

    found = set()
    for module in short_names("pate.mechanisms"):
        for value in vars(importlib.import_module(f"pate.mechanisms.{module}")).values():
            if isinstance(value, type) and issubclass(value, Mechanism) and "name" in vars(value):
                found.add(value)
    assert found == {type(example) for example in EVERY}
    for cls in found:
        assert mechanism_class({"name": cls.name}) is cls


@pytest.mark.parametrize("mechanism", EVERY, ids=str)
def test_outcomes_sum_to_one_and_follow_a_permutation(mechanism: Mechanism) -> None:
    large = np.random.default_rng(5).multinomial(250, [0.4, 0.3, 0.2, 0.1], size=5)
    counts = np.concatenate([histograms(5, 4), large, [[250, 0, 0, 0], [63, 63, 62, 62], [100_000, 0, 0, 0]]])
    outcomes = mechanism.log_outcomes(counts)
    assert outcomes.shape == (len(counts), 5)
    np.testing.assert_allclose(np.exp(outcomes).sum(axis=1), 1, atol=1e-12)
    np.testing.assert_array_equal(mechanism.log_outcomes(counts.astype(np.uint32)), outcomes)
    permutation = np.array([2, 0, 3, 1])
    permuted = mechanism.log_outcomes(counts[:, permutation])
    np.testing.assert_allclose(permuted[:, :-1], outcomes[:, permutation], rtol=1e-12)
    np.testing.assert_array_equal(permuted[:, -1], outcomes[:, -1])
    assert mechanism.may_decline == np.isfinite(outcomes[:, -1]).any()


@pytest.mark.parametrize("mechanism", [m for m in EVERY if not m.priced_as_stream], ids=str)
def test_releases_follow_log_outcomes(mechanism: Mechanism) -> None:
    """χ² on 60,000 releases a histogram; false-alarm rate 1e-6 a histogram, and fixed by the seed."""
    for row in ([3, 2, 1], [2, 2, 2], [6, 0, 0]):
        labels = mechanism.release(np.tile(row, (60_000, 1)), random.Random(11).randbytes)
        observed = np.array([(labels == outcome).sum() for outcome in (0, 1, 2, UNANSWERED)])
        expected = np.exp(mechanism.log_outcomes(np.array([row]))[0]) * len(labels)
        possible = expected > 5
        assert observed[expected == 0].sum() == 0
        statistic = ((observed - expected) ** 2 / np.maximum(expected, 1e-300))[possible].sum()
        assert statistic < chi2.isf(1e-6, possible.sum())


@pytest.mark.parametrize("mechanism", EXAMPLES, ids=str)
def test_worst_case_holds_for_all_small_histograms(mechanism: Mechanism) -> None:
    for votes, classes in ((6, 2), (1, 3), (6, 3)):
        pairs = pairs_of_outcomes(mechanism, votes, classes)
        for order in (1.5, 8.0, 32.0):
            claimed = mechanism.worst_case(1, 1).rdp_at(order)  # type: ignore[attr-defined]
            assert renyi(*pairs, order).max() <= claimed * (1 + 1e-9)
        if isinstance(mechanism, (LNMax, PermuteAndFlip)):
            assert np.abs(np.subtract(*(side[:, :-1] for side in pairs))).max() <= 2 / mechanism.scale + 1e-12


@pytest.mark.parametrize("mechanism", EVERY, ids=str)
def test_as_many_queries_are_answered_as_expected(mechanism: Mechanism) -> None:
    """On average over 1,500 runs, within 6 standard errors: a false alarm in 1e-8, and fixed by the seed."""
    counts = np.array([[6, 0, 0], [3, 2, 1], [5, 1, 0], [6, 0, 0], [0, 0, 6]])
    entropy = random.Random(2).randbytes
    answered = np.array([(mechanism.release(counts, entropy) != UNANSWERED).sum() for _ in range(1500)])
    error = max(float(answered.std()) / np.sqrt(len(answered)), 1e-9)
    assert abs(answered.mean() - mechanism.expected_answered(counts)) < 6 * error


@pytest.mark.parametrize("mechanism", [m for m in EVERY if m.votes_per_record == 1], ids=str)
@pytest.mark.parametrize(("n_teachers", "n_classes"), [(1, 2), (6, 2), (6, 4)])
def test_a_unanimous_vote_gets_its_label_as_often_as_is_said(
    mechanism: Mechanism, n_teachers: int, n_classes: int
) -> None:
    unanimous = np.eye(1, n_classes, dtype=np.int64) * n_teachers
    expected = np.exp(mechanism.log_outcomes(unanimous)[0, 0])
    assert mechanism.answer_probability(n_teachers, n_classes) == pytest.approx(expected, rel=1e-9)


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


@pytest.mark.parametrize("mechanism", EVERY, ids=str)
@pytest.mark.parametrize("n_classes", [3, 5])
def test_every_draw_of_a_query_is_charged(mechanism: Mechanism, n_classes: int) -> None:
    """Eight bytes are a draw of noise and sixteen break a tie; among 150 tied votes some take all there can be."""
    random_bytes, taken = random.Random(5).randbytes, [0]

    def entropy(n: int) -> bytes:
        taken[-1] += 1 if n == 16 else n // 8
        return random_bytes(n)

    for _ in range(150):
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
    for given_to in ({}, {"name": "lnmax"}, {"name": "os.path"}, {"name": "no.X"}, {"name": "lnmax", "b": 1}):
        with pytest.raises(ConfigError, match="mechanism"):
            build(given_to)


# Probabilities against sums in 60 digits that share nothing with the code


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
    np.testing.assert_allclose(ours[:-1], exact, rtol=0, atol=1e-9)
    assert ours[-1] == -np.inf
    assert min(exact) < (-80 if max(counts) in (90, 190) else 0)


rows_of_counts = st.integers(2, 11).flatmap(
    lambda k: st.lists(st.lists(st.integers(0, 120), min_size=k, max_size=k), min_size=1, max_size=3)
)
QUICK = [LNMax(20.0), LNMax(0.4), GNMax(9.0), GNMax(0.6), ConfidentGNMax(12.5, 3.0, 2.0)]


@pytest.mark.parametrize("mechanism", QUICK, ids=str)
@settings(max_examples=15, deadline=None)
@given(counts=rows_of_counts, data=st.data())
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
