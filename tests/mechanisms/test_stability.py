"""MStab and MSamp against brute force over all small histograms, plain sums and samples."""

from __future__ import annotations

import dataclasses
import itertools
import math

import mpmath
import numpy as np
import pytest
from scipy.stats import binomtest
from support.small_votes import histograms, hockey_stick

from pate.accounting import composition
from pate.accounting.calculators import compose_advanced
from pate.accounting.composition import RepeatedGuarantee
from pate.data.partition import poisson_subsets
from pate.errors import ConfigError
from pate.mechanisms import GaussianMSamp, GaussianMStab, LectureMSvec, MSamp, MStab, MSvec
from pate.mechanisms.stability import CLEAR_LEAD, lecture_sampling_rate, plurality_gap, stable_moves
from pate.planning.costs import worst_case_epsilon

FALSE_ALARM = 1e-6  # of each statistical test, all its comparisons together

MSTABS = [MStab(1.0, 0.05), MStab(0.5, 0.3), MStab(2.0, 1e-3), MStab(0.1, 1e-5), MStab(3.0, 0.6)]
MSAMPS = [
    MSamp(epsilon, delta, (kappa + 0.5) / 12, 6)  # κ is ⌊κ + ½⌋
    for epsilon, delta in [(1.0, 0.05), (4.0, 0.2), (0.3, 1e-4)]
    for kappa in (1, 2, 3)
]
GAUSSIAN = [
    GaussianMStab(1.0, 0.05),
    GaussianMStab(2.5, 0.1),
    GaussianMStab(0.6, 1e-3),
    *(GaussianMSamp(1.0, 0.05, (kappa + 0.5) / 12, 6) for kappa in (1, 2, 3)),
]
LECTURES = [LectureMSvec(8.0, 0.3, 1, 3), LectureMSvec(2.0, 1e-5, 10, 1000)]
EVERY = [*MSTABS[:3], *MSAMPS[:3], *GAUSSIAN, *LECTURES, MSvec(2.5, 0.2, 2, 3)]


def pairs_within(counts, moved):
    """Index pairs of histograms at most so many moved votes apart, both directions."""
    distance = np.abs(counts[:, None] - counts[None]).sum(axis=2) // 2
    return np.nonzero(distance <= moved)


SMALL = [histograms(n, k) for n in range(1, 7) for k in range(1, 4)]


def worst_delta(mechanism, counts):
    log_outcomes = mechanism.log_outcomes(counts)
    i, j = pairs_within(counts, mechanism.votes_per_record)
    return hockey_stick(log_outcomes[i], log_outcomes[j], mechanism.epsilon).max()


@pytest.mark.parametrize("mechanism", MSTABS, ids=str)
def test_mstab_keeps_its_promise_on_every_small_histogram_and_no_smaller_delta_would_do(mechanism):
    worst = max(worst_delta(mechanism, counts) for counts in SMALL)
    assert worst == pytest.approx(mechanism.exact_delta, rel=1e-12)
    assert mechanism.exact_delta < mechanism.query_delta


@pytest.mark.parametrize("mechanism", MSAMPS, ids=str)
def test_msamp_keeps_its_promise_on_every_small_histogram(mechanism):
    worst = max(worst_delta(mechanism, counts) for counts in SMALL)
    assert worst <= mechanism.exact_delta * (1 + 1e-12)
    assert mechanism.exact_delta < mechanism.query_delta
    assert worst > mechanism.exact_delta * math.exp(-mechanism.epsilon), "the bound is far from tight"


def test_msamp_breaks_its_promise_if_a_record_moves_one_vote_more():
    mechanism = MSamp(4.0, 0.01, 1.5 / 12, 6)
    log_outcomes = mechanism.log_outcomes(histograms(6, 2))
    i, j = pairs_within(histograms(6, 2), mechanism.votes_per_record + 1)
    worst = hockey_stick(log_outcomes[i], log_outcomes[j], mechanism.epsilon).max()
    assert worst > 10 * mechanism.query_delta


def test_mstab_promise_does_not_hang_on_the_strictness_of_its_test():
    for epsilon, votes in itertools.product((0.01, 0.3, 1.0, 5.0), range(1, 9)):
        delta = math.exp(-epsilon * votes)  # ln(1/δ)/ε is whole but for rounding: > and ≥ differ
        assert MStab(epsilon, delta).exact_delta < delta
        assert math.exp(MStab(epsilon, delta).noise.log_sf(votes)) < delta


@pytest.mark.parametrize("mechanism", GAUSSIAN, ids=str)
def test_gaussian_tests_keep_their_promise_on_every_small_histogram_once_and_twice(mechanism):
    """At the ε that is published for one query and for two, which may differ."""
    wide = [np.column_stack([np.arange(n + 1), n - np.arange(n + 1)]) for n in (12, 25)]
    for counts in (*SMALL, *wide):
        log_outcomes = mechanism.log_outcomes(counts)
        i, j = pairs_within(counts, mechanism.votes_per_record)
        p, q = np.exp(log_outcomes[i]), np.exp(log_outcomes[j])
        for delta in (0.2, 0.5):
            once, twice = (mechanism.worst_case(n, n).epsilon(delta) for n in (1, 2))
            if once < 100:
                assert np.maximum(0, p - math.exp(once) * q).sum(axis=1).max() <= delta * (1 + 1e-9)
            if twice < 100 and len(p) < 400:
                joint_p = p[:, None, :, None] * p[None, :, None, :]
                joint_q = q[:, None, :, None] * q[None, :, None, :]
                worst = np.maximum(0, joint_p - math.exp(twice) * joint_q).sum(axis=(2, 3)).max()
                assert worst <= delta * (1 + 1e-9)
    assert mechanism.worst_case(1, 1).epsilon(0.5) < 100


@pytest.mark.parametrize("mechanism", GAUSSIAN, ids=str)
def test_a_gaussian_threshold_is_the_lowest_that_keeps_bad_answers_rare(mechanism):
    assert mechanism.exact_delta <= mechanism.query_delta
    assert math.exp(mechanism.noise.log_sf(mechanism.test.threshold - 1)) > mechanism.query_delta
    tie = np.array([[7, 7, 1]])
    assert mechanism.log_outcomes(tie)[0, :2] == pytest.approx(math.log(mechanism.exact_delta / 2), rel=1e-9)
    bad = mechanism.worst_case(3, 3).lost
    assert bad == pytest.approx(1 - (1 - mechanism.exact_delta) ** 3, rel=1e-9)


def test_nothing_limits_how_many_queries_a_gaussian_test_declines():
    """All that were asked may be; a limit on answers is one, and makes the rest cheaper."""
    mechanism = GaussianMStab(20.0, 1e-9)
    unlimited = mechanism.worst_case(300, 300)
    alike = unlimited.by_method(1e-5)["Rényi, most queries alone"]
    assert unlimited.epsilon(1e-5) == pytest.approx(alike, rel=1e-9)
    assert mechanism.worst_case(300, 5).epsilon(1e-5) < 0.8 * alike
    assert mechanism.worst_case(300, 0).epsilon(1e-5) == mechanism.worst_case(300, 1).epsilon(1e-5) > 0
    assert mechanism.worst_case(300, 5).limits == composition.TestLimits(tests=300, passes=5, failures=300)


def test_the_published_cost_is_for_every_query() -> None:
    """Simple or advanced composition of (ε, δ) a query; none where the queries' δ together leave nothing."""
    mechanism, votes = MStab(0.1, 1e-7), np.tile([[40, 2]], (60, 1))
    advanced = compose_advanced(0.1, 1e-7, 60, 1e-5 - 6e-6).epsilon
    assert mechanism.published_epsilon(votes, 1e-5) == pytest.approx(min(6.0, advanced), rel=1e-12)
    assert mechanism.published_epsilon(votes, 6e-6) == math.inf


def test_gaussian_noise_needs_far_fewer_teachers_where_many_queries_are_asked():
    laplace, gaussian = MStab(0.029, 5e-9), GaussianMStab(31.0, 5e-9)
    prices = [worst_case_epsilon(m, 1000) for m in (laplace, gaussian)]
    assert prices[1] < prices[0] < 4.1
    assert 3 * gaussian.teachers_needed(0.99) < laplace.teachers_needed(0.99)


def test_a_sampling_rate_that_is_left_out_is_the_largest_that_leaves_clear_votes_answered():
    for mechanism in (MSamp(1.0, 1e-6, n_teachers=1000), GaussianMSamp(9.5, 5e-8, n_teachers=1000)):
        kappa, lead = mechanism.votes_per_record, math.floor(CLEAR_LEAD * 1000)
        votes = np.array([[lead, 0]])
        assert -np.expm1(mechanism.log_outcomes(votes)[0, -1]) >= 0.99
        larger = dataclasses.replace(mechanism, sampling_rate=(kappa + 1) / 2000)
        assert larger.votes_per_record == kappa + 1
        assert -np.expm1(larger.log_outcomes(votes)[0, -1]) < 0.99
        assert kappa / 2000 < mechanism.sampling_rate < (kappa + 1) / 2000
    assert MSamp(0.01, 1e-9, n_teachers=50).votes_per_record == 1, "out of reach: the least there is"
    assert lecture_sampling_rate(1.0, 1e-6) < MSamp(1.0, 1e-6, n_teachers=1000).sampling_rate / 4
    with pytest.raises(ConfigError, match="has to know the number of teachers"):
        MSamp(1.0, 1e-6)


def moves_until_unstable(histogram):
    """The least moved votes that end in another plurality or a tie, by breadth first search, less one."""
    seen, shell, steps = {histogram}, {histogram}, 0
    winner = histogram.index(max(histogram))
    while all(h[winner] > max(h[:winner] + h[winner + 1 :]) for h in shell):
        shell = {
            tuple(c - (i == source) + (i == target) for i, c in enumerate(h))
            for h in shell
            for source, target in itertools.permutations(range(len(h)), 2)
            if h[source]
        } - seen
        seen |= shell
        steps += 1
    return max(0, steps - 1)


def test_distance_is_how_many_votes_may_move():
    for counts in SMALL:
        if counts.shape[1] > 1:
            distances = stable_moves(plurality_gap(counts))
            assert distances.tolist() == [moves_until_unstable(tuple(row)) for row in counts.tolist()]


def oracle_outcomes(passes, scale, histogram, reach):
    """Outcome probabilities by a plain sum over the noise, in 40 digits."""
    with mpmath.workdps(40):
        weights = {z: mpmath.exp(-abs(z) / mpmath.mpf(scale)) for z in range(-reach, reach + 1)}
        answered = sum(w for z, w in weights.items() if passes(z)) / sum(weights.values())
        tied = [i for i, c in enumerate(histogram) if c == max(histogram)]
        labels = [answered / len(tied) if i in tied else 0 for i in range(len(histogram))]
        return [float(p) for p in [*labels, 1 - answered]]


@pytest.mark.parametrize("histogram", [(5, 0, 1), (2, 2, 2), (3, 3, 0), (4, 1, 1), (0, 6, 0), (14, 3, 1)])
def test_log_outcomes_against_a_plain_sum(histogram):
    counts = np.array([histogram])
    distance = moves_until_unstable(histogram)
    for m in MSTABS[:3]:
        expected = oracle_outcomes(
            lambda z, m=m: distance + z > -math.log(m.query_delta) / m.epsilon, 1 / m.epsilon, histogram, 400
        )
        np.testing.assert_allclose(np.exp(m.log_outcomes(counts)[0]), expected, rtol=1e-12, atol=1e-300)
    gap = sorted(histogram)[-1] - sorted(histogram)[-2]
    for m, kappa in zip(MSAMPS[:6], (1, 2, 3) * 2, strict=True):
        threshold = 2 * kappa * (1 + math.log(1 / m.query_delta) / m.epsilon)
        expected = oracle_outcomes(lambda z, t=threshold: gap + z > t, 2 * kappa / m.epsilon, histogram, 1200)
        np.testing.assert_allclose(np.exp(m.log_outcomes(counts)[0]), expected, rtol=1e-12, atol=1e-300)


def test_worst_case_is_the_composition_of_what_each_query_costs() -> None:
    """Optimally composed, which has a test of its own."""
    for mechanism, asked in ((MStab(0.1, 1e-8), 100), (MSAMPS[6], 3)):
        expected = RepeatedGuarantee(mechanism.epsilon, mechanism.exact_delta, asked)
        assert mechanism.worst_case(asked, asked) == expected
        assert mechanism.worst_case(asked, 0) == expected, "⊥ costs too"


def test_worst_case_of_one_query_and_of_none():
    mechanism = MStab(0.7, 1e-4)
    assert mechanism.worst_case(1, 1).epsilon(mechanism.exact_delta) == pytest.approx(0.7)
    assert mechanism.worst_case(1, 1).epsilon(mechanism.query_delta) < 0.7
    assert mechanism.worst_case(1, 1).epsilon(mechanism.exact_delta * 0.99) == math.inf
    assert mechanism.worst_case(0, 0).epsilon(0.0) == 0


def test_what_can_be_answered():
    for mechanism in EVERY:
        assert mechanism.answer_probability(6) == pytest.approx(
            1 - np.exp(mechanism_of_size(mechanism, 6).log_outcomes(np.array([[6, 0]]))[0, -1]), rel=1e-9
        )
        for probability in (0.5, 0.99):
            needed = mechanism.teachers_needed(probability)
            reach = range(1, 400) if needed is None else range(max(1, needed - 60), needed + 1)
            able = [n for n in reach if mechanism.answer_probability(n) >= probability]
            assert able == ([] if needed is None else [needed])


def mechanism_of_size(mechanism, n_teachers):
    if isinstance(mechanism, (MSamp, GaussianMSamp)):
        return dataclasses.replace(mechanism, n_teachers=n_teachers)
    return mechanism


def test_what_the_design_says_can_be_answered():
    assert MStab(1.0, 1e-5).teachers_needed(0.5) == 25
    assert MSamp(1.0, 1e-5, 0.01, 250).votes_per_record == 5
    assert MSamp(1.0, 1e-5, 0.01, 250).answer_probability(250) > 0.9999
    assert MSamp(1.0, 1e-5, 0.05, 250).teachers_needed(0.5) is None, "κ outgrows the teachers"
    assert 4700 < LectureMSvec(1.0, 1e-5, 10, 1000).gap_needed(0.5) < 4900
    assert MSvec(1.0, 1e-5, 10, 1000).gap_needed(0.5) < 460, "what Gaussian noise and a tight price make of it"


def test_kappa_is_that_of_the_decimal_written():
    assert MSamp(1.0, 1e-5, 0.29, 50).votes_per_record == 29
    assert MSamp(1.0, 1e-5, 0.0001, 50).votes_per_record == 1


def test_subsets_of_a_record_are_at_most_kappa_of_independent_ones():
    key, n_subsets, rate = b"key", 40, 0.1
    ids = [b"record %d" % i for i in range(4000)]
    free = [poisson_subsets(i, key, n_subsets, rate, n_subsets) for i in ids]
    held = [poisson_subsets(i, key, n_subsets, rate, 3) for i in ids]
    assert all(len(h) == min(3, len(f)) and set(h) <= set(f) for h, f in zip(held, free, strict=True))
    member = np.zeros((len(ids), n_subsets))
    for row, subsets in zip(member, free, strict=True):
        row[list(subsets)] = 1
    sizes = member.sum(axis=0).astype(int)
    pairs = [int((member[:, i] * member[:, i + 1]).sum()) for i in range(n_subsets - 1)]
    checks = [*((s, rate) for s in sizes), *((s, rate**2) for s in pairs)]
    assert all(binomtest(int(s), len(ids), p).pvalue > FALSE_ALARM / len(checks) for s, p in checks)
    assert 0 < len(set(itertools.chain(*held))) == n_subsets, "the cap must not favour the first subsets"


def test_subsets_depend_on_the_record_and_the_key_only():
    same = poisson_subsets(b"a", b"key", 200, 0.2, 200)
    assert same == poisson_subsets(b"a", b"key", 200, 0.2, 200)
    assert same != poisson_subsets(b"a", b"other key", 200, 0.2, 200)
    assert same != poisson_subsets(b"b", b"key", 200, 0.2, 200)
    assert poisson_subsets(b"a", b"key", 7, 1.0, 7) == tuple(range(7))
    for bad in [(b"", 0.1), (b"k" * 65, 0.1), (b"key", 0.0), (b"key", 1.1)]:
        with pytest.raises(ValueError, match="must"):
            poisson_subsets(b"a", bad[0], 10, bad[1], 2)
