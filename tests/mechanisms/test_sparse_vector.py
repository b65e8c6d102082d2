"""MSvec against brute force over short streams, plain sums, samples and its own limits."""

from __future__ import annotations

import itertools
import math
import pickle
from functools import lru_cache
from itertools import product

import mpmath
import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import binomtest
from support.small_votes import histograms

from pate.errors import BudgetExceeded, ConfigError
from pate.mechanisms import UNANSWERED, LectureMSvec, MSvec, build
from pate.mechanisms.base import FEW_QUERIES
from pate.mechanisms.stability import log_plurality_shares, plurality_gap
from pate.noise.integer import DiscreteGaussian, DiscreteLaplace
from pate.planning.costs import worst_case_epsilon

FALSE_ALARM = 1e-6  # of each statistical test, all its comparisons together

LECTURE = [
    LectureMSvec(8.0, 0.3, 1, 3),
    LectureMSvec(20.0, 0.2, 2, 3),
    LectureMSvec(12.0, 0.5, 3, 3),
    LectureMSvec(30.0, 0.3, 1, 3),
]
LAPLACE = [MSvec(1.0, 0.3, 1, 4000), MSvec(3.0, 0.2, 1, 500)]
GAUSSIAN = [MSvec(2.5, 0.2, 2, 3), MSvec(1.5, 0.3, 3, 3), MSvec(5.0, 0.05, 3, 3)]
SMALL = [*LECTURE, *LAPLACE, *GAUSSIAN]


def log_stream_outcomes(mechanism: MSvec, counts: np.ndarray) -> np.ndarray:
    """Exact joint log-probabilities of a short stream: one axis per query, each of n_classes + 1, ⊥ last.

    A tuple of labels, with `UNANSWERED` = −1, is an index. What follows the stream's end is ⊥.
    """
    n_queries, n_classes = counts.shape
    declined = np.append(np.full(n_classes, -np.inf), 0.0)
    answered = np.column_stack([log_plurality_shares(counts), np.full(n_queries, -np.inf)])
    total = np.full((n_classes + 1,) * n_queries, -np.inf)
    scores = tuple(mechanism.design.scores(plurality_gap(counts)).tolist())
    for bits in product((True, False), repeat=n_queries):
        joint = np.asarray(log_bits(mechanism, scores, bits))
        for i, bit in enumerate(bits):
            joint = np.add.outer(joint, answered[i] if bit else declined)
        total = np.logaddexp(total, joint)
    return total


@lru_cache(maxsize=4096)
def log_bits(mechanism: MSvec, scores: tuple[int, ...], bits: tuple[bool, ...]) -> float:
    """log-probability that just these queries are answered: a sum over each epoch's threshold noise."""
    test = mechanism.design.noise
    values, log_fresh = mechanism.design.threshold_values()
    log_epoch, unstable = log_fresh, 0
    for i, bit in enumerate(bits):
        if unstable == mechanism.unstable or i == mechanism.max_queries:
            return -np.inf if any(bits[i:]) else float(logsumexp(log_epoch))
        missing = mechanism.votes_to_pass + values - scores[i]
        if bit:
            log_epoch = log_epoch + test.log_sf(missing)
        else:
            log_epoch = log_fresh + logsumexp(log_epoch + test.log_cdf(missing - 1))
            unstable += 1
    return float(logsumexp(log_epoch))


def test_both_designs_are_among_the_small_ones():
    assert all(isinstance(m.design.threshold_noise, DiscreteLaplace) for m in [*LECTURE, *LAPLACE])
    assert all(isinstance(m.design.noise, DiscreteGaussian) and m.design.threshold_noise is None for m in GAUSSIAN)


def kinds_and_pairs(counts):
    """A histogram of each kind, and index pairs of kinds one vote apart or none, in both directions.

    MSvec sees of a histogram its distance and which classes lead: histograms alike in both are one kind.
    """
    top = np.sort(counts, axis=1)
    distance = np.maximum(0, np.ceil((top[:, -1] - top[:, -2]) / 2) - 1)
    signature = np.column_stack([distance, counts == top[:, -1:]])
    _, kinds, kind = np.unique(signature, axis=0, return_index=True, return_inverse=True)
    i, j = np.nonzero(np.abs(counts[:, None] - counts[None]).sum(axis=2) <= 2)
    pairs = np.unique(np.column_stack([kind.reshape(-1)[i], kind.reshape(-1)[j]]), axis=0)
    return counts[kinds], pairs[:, 0], pairs[:, 1]


def worst_delta(mechanism, every_histogram, n_queries, epsilons):
    """The largest hockey-stick divergence over all pairs of streams of which each query is one vote apart."""
    counts, first, second = kinds_and_pairs(every_histogram)
    streams = itertools.product(counts, repeat=n_queries)
    outcomes = np.exp([log_stream_outcomes(mechanism, np.array(s)).ravel() for s in streams])
    outcomes = outcomes.reshape(*(len(counts),) * n_queries, -1)
    worst = np.zeros(len(epsilons))
    for head in range(len(first)):  # a pair for the first query; all pairs for the others at once
        grids = np.ix_(*[np.arange(len(first))] * (n_queries - 1))
        p = outcomes[(first[head], *(first[g] for g in grids))]
        q = outcomes[(second[head], *(second[g] for g in grids))]
        for i, epsilon in enumerate(epsilons):
            worst[i] = max(worst[i], np.maximum(0, p - math.exp(epsilon) * q).sum(axis=-1).max())
    return worst


@pytest.mark.parametrize("mechanism", LECTURE, ids=str)
@pytest.mark.parametrize(("n_classes", "n_queries"), [(2, 3), (3, 1), (3, 2)])
def test_every_short_stream_keeps_the_lectures_promise(mechanism, n_classes, n_queries):
    """At ε, and at the smaller ε and δ that the proof gives: 2/λ, and one bad answer's chance, an epoch."""
    by_proof = 2 * mechanism.unstable / mechanism.noise_scale
    chance = mechanism.unstable * math.exp(mechanism.log_outcomes(np.array([[1, 0]]))[0, 0])
    for n_teachers in (1, 2, 5, 6):
        counts = histograms(n_teachers, n_classes)
        at_claim, at_proof = worst_delta(mechanism, counts, n_queries, [mechanism.epsilon, by_proof])
        assert at_claim <= mechanism.exact_delta * (1 + 1e-12)
        assert mechanism.exact_delta < mechanism.delta
        assert at_proof <= chance * (1 + 1e-12)
    assert by_proof <= mechanism.epsilon


@pytest.mark.parametrize("mechanism", [*LECTURE[:2], *LAPLACE, *GAUSSIAN], ids=str)
@pytest.mark.parametrize(("n_classes", "n_queries"), [(2, 3), (3, 1), (3, 2)])
def test_every_short_stream_keeps_to_the_epsilon_that_is_published(mechanism, n_classes, n_queries):
    """At the δ that is named, and at others: what `worst_case` says of so many queries."""
    deltas = [mechanism.delta, 0.7 * mechanism.delta, 0.9]
    guarantee = mechanism.worst_case(n_queries, n_queries)
    epsilons = [guarantee.epsilon(delta) for delta in deltas]
    possible = [(e, d) for e, d in zip(epsilons, deltas, strict=True) if e < 100]
    assert possible
    for n_teachers in (1, 5, 6):
        worst = worst_delta(mechanism, histograms(n_teachers, n_classes), n_queries, [e for e, _ in possible])
        assert all(found <= delta * (1 + 1e-9) for found, (_, delta) in zip(worst, possible, strict=True))


@pytest.mark.parametrize("mechanism", GAUSSIAN, ids=str)
def test_streams_near_a_gaussian_threshold_keep_to_it_too(mechanism):
    """Few teachers never come near it: three queries of all scores round it, one apart in each or alike."""
    design, width = mechanism.design, 2
    low = max(0, design.votes_to_pass - width)
    scores = np.arange(low, min(design.most, low + 2 * width) + 1)
    counts = np.column_stack([2 * scores + 1, 0 * scores])
    streams = itertools.product(range(len(scores)), repeat=3)
    logs = np.array([log_stream_outcomes(mechanism, counts[list(s)])[(slice(None, None, 2),) * 3] for s in streams])
    logs = logs.reshape(*(len(scores),) * 3, -1)
    epsilon = mechanism.worst_case(3, 3).epsilon(mechanism.delta)
    worst = 0.0
    for steps in itertools.product((-1, 0, 1), repeat=3):
        here = tuple(slice(max(0, -s), len(scores) - max(0, s)) for s in steps)
        there = tuple(slice(max(0, s), len(scores) - max(0, -s)) for s in steps)
        p, q = np.exp(logs[here]), np.exp(logs[there])
        worst = max(worst, np.maximum(0, p - math.exp(epsilon) * q).sum(axis=-1).max())
    assert 0 < worst <= mechanism.delta - mechanism.unstable * design.bad_answer()


@pytest.mark.parametrize("mechanism", [*LECTURE, *LAPLACE], ids=str)
def test_streams_without_a_bad_query_are_purely_private(mechanism):
    """Where d ≥ 1 throughout, no δ is needed, and an epoch costs 2/λ, most of which can happen."""
    near = mechanism.votes_to_pass
    gaps = 2 * np.arange(max(1, near - 2), near + 3) + 1
    counts = np.column_stack([gaps, 0 * gaps])
    logs = {
        gap: log_stream_outcomes(mechanism, counts[list(gap)])[(slice(None, None, 2),) * 3]  # 0 or ⊥
        for gap in itertools.product(range(len(gaps)), repeat=3)
    }
    steps = list(itertools.product((-1, 0, 1), repeat=3))
    neighbours = [(g, tuple(np.add(g, step).tolist())) for g in logs for step in steps]
    losses = [_largest_ratio(logs[g], logs[h]) for g, h in neighbours if h in logs]
    limit = 2 * mechanism.unstable / mechanism.design.threshold_noise.scale
    assert max(losses) <= limit * (1 + 1e-9)
    assert mechanism.unstable > 1 or max(losses) > 0.25 * limit, "three queries do not fill several epochs"


def _largest_ratio(log_p, log_q):
    possible = np.isfinite(log_p)
    assert (possible == np.isfinite(log_q)).all()
    return (log_p[possible] - log_q[possible]).max()


def oracle_stream(mechanism, distances, reach=120):
    """Probabilities of answered/declined by plain sums over the noise, in 30 digits: {bits: probability}."""
    design, q_limit, m = mechanism.design, mechanism.unstable, mechanism.max_queries
    with mpmath.workdps(30):
        values = range(-reach, reach + 1)
        if isinstance(mechanism, LectureMSvec):
            scale = mpmath.sqrt(32 * q_limit * mpmath.log(2 / mpmath.mpf(mechanism.delta))) / mechanism.epsilon
            threshold = 2 * scale * mpmath.log(2 * m / mpmath.mpf(mechanism.delta))
        else:
            scale, threshold = mpmath.mpf(design.noise.scale) / 2, design.votes_to_pass - mpmath.mpf("0.5")
        if design.threshold_noise is None:
            prior = {0: mpmath.mpf(1)}
            weights = [mpmath.exp(-(mpmath.mpf(z) ** 2) / (8 * scale**2)) for z in values]
        else:
            weights = [mpmath.exp(-abs(z) / scale) for z in values]
            prior = {t: w / sum(weights) for t, w in zip(values, weights, strict=True)}
            weights = [mpmath.exp(-abs(z) / (2 * scale)) for z in values]
        cumulative = list(itertools.accumulate(w / sum(weights) for w in weights))

        def declines(distance, t):
            most = min(reach, math.floor(threshold + t - distance))  # d + z > T + t fails up to this z
            return cumulative[most + reach] if most >= -reach else mpmath.mpf(0)

        def walk(i, belief, used):
            if i == len(distances) or used == q_limit:
                return {(False,) * (len(distances) - i): sum(belief.values())}
            no = {t: w * declines(distances[i], t) for t, w in belief.items()}
            yes = {t: w - no[t] for t, w in belief.items()}
            fresh = {t: w * sum(no.values()) for t, w in prior.items()}
            result = {(True, *rest): p for rest, p in walk(i + 1, yes, used).items()}
            return result | {(False, *rest): p for rest, p in walk(i + 1, fresh, used + 1).items()}

        return {bits: float(p) for bits, p in walk(0, prior, 0).items()}


@pytest.mark.parametrize("mechanism", [*LECTURE[:2], LAPLACE[1], *GAUSSIAN[:2]], ids=str)
def test_stream_outcomes_against_a_plain_sum(mechanism):
    counts = np.array([[6, 0], [1, 4], [5, 1]])
    outcomes = np.exp(log_stream_outcomes(mechanism, counts))
    expected = oracle_stream(mechanism, [2, 1, 1])
    total = 0.0
    for bits in itertools.product((True, False), repeat=3):
        labels = tuple(label if bit else UNANSWERED for bit, label in zip(bits, (0, 1, 0), strict=True))
        assert outcomes[labels] == pytest.approx(expected.get(bits, 0.0), rel=1e-10, abs=1e-14)
        total += outcomes[labels]
    assert total == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("mechanism", [*SMALL, LectureMSvec(1.0, 1e-5, 10, 1000), MSvec(1.0, 1e-6, 2, 200)], ids=str)
def test_the_closed_form_of_one_query_is_the_sum_over_its_threshold(mechanism):
    counts = np.array([[6, 0, 0], [3, 3, 0], [2, 2, 2], [2400, 0, 0], [9000, 200, 1], [60_000, 3, 2]])
    joint = np.array([log_stream_outcomes(mechanism, row[None]) for row in counts])
    np.testing.assert_allclose(mechanism.log_outcomes(counts), joint, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("mechanism", [LECTURE[1], LAPLACE[0], GAUSSIAN[1]], ids=str)
def test_samples_follow_the_joint_outcomes(mechanism):
    entropy = np.random.default_rng(11).bytes
    counts, runs = np.array([[6, 0], [2, 2], [0, 9]]), 5000
    samples = np.array([mechanism.release(counts, entropy) for _ in range(runs)])
    expected = np.exp(log_stream_outcomes(mechanism, counts))
    for labels in itertools.product((0, 1, UNANSWERED), repeat=3):
        hits = int((samples == labels).all(axis=1).sum())
        assert binomtest(hits, runs, min(1.0, expected[labels])).pvalue > FALSE_ALARM / 27, labels


UNANIMOUS, SPLIT = np.array([[100_000, 0]]), np.array([[500, 500]])
TYPICAL = LectureMSvec(2.0, 1e-5, 3, 20)  # with noise on the threshold
MANY = MSvec(2.0, 1e-5, 12, 20)  # with Gaussian noise


def test_a_stream_ends_after_its_last_unstable_answer():
    stream = TYPICAL.begin()
    assert stream.answer(UNANIMOUS).tolist() == [0]
    answers = stream.answer(np.repeat(SPLIT, 10, axis=0))
    assert answers.tolist() == [UNANSWERED] * 3, "answers stop where the stream does"
    assert (stream.unstable, stream.asked) == (3, 4)
    with pytest.raises(BudgetExceeded, match="unstable = 3"):
        stream.answer(UNANIMOUS)


def test_a_stream_refuses_a_batch_beyond_its_queries_whole():
    stream = TYPICAL.begin()
    stream.answer(np.repeat(UNANIMOUS, 15, axis=0))
    with pytest.raises(BudgetExceeded, match="5 of max_queries are left"):
        stream.answer(np.repeat(UNANIMOUS, 6, axis=0))
    assert (stream.unstable, stream.asked) == (0, 15)
    assert stream.answer(np.repeat(UNANIMOUS, 5, axis=0)).tolist() == [0] * 5


def test_resuming_costs_one_and_draws_a_fresh_threshold():
    taken = []

    def entropy(n):
        taken.append(n)
        return np.random.default_rng(len(taken)).bytes(n)

    stream = TYPICAL.begin()
    stream.answer(np.repeat(UNANIMOUS, 2, axis=0), entropy)
    resumed = TYPICAL.begin(unstable=stream.unstable, asked=stream.asked)
    assert (resumed.unstable, resumed.asked) == (1, 2)
    resumed.answer(UNANIMOUS, entropy)
    assert taken == [16, 8, 8, 8], "two queries and a threshold; a query and a fresh threshold"
    resumed.answer(SPLIT)
    assert resumed.unstable == 2
    ended = TYPICAL.begin(unstable=resumed.unstable, asked=resumed.asked)
    with pytest.raises(BudgetExceeded, match="ended"):
        ended.answer(UNANIMOUS)
    assert TYPICAL.begin().unstable == 0, "the first start is free"


def test_a_threshold_is_drawn_once_and_again_only_after_a_declined_query():
    """Eight bytes per draw: one for each query, one for each threshold; sixteen break a tie."""
    taken = []

    def entropy(n):
        taken.append(n)
        return np.random.default_rng(len(taken)).bytes(n)

    stream = TYPICAL.begin()
    stream.answer(np.repeat(UNANIMOUS, 4, axis=0), entropy)
    stream.answer(np.repeat(UNANIMOUS, 4, axis=0), entropy)
    assert taken == [32, 8, 32], "eight answers, one threshold"
    stream.answer(np.concatenate([SPLIT, UNANIMOUS]), entropy)
    assert taken[3:] == [16, 16, 8], "a tie, and a fresh threshold after ⊥"


def test_the_threshold_is_neither_shown_nor_stored():
    streams = [TYPICAL.begin() for _ in range(2)]
    for seed, stream in enumerate(streams):
        stream.answer(UNANIMOUS, np.random.default_rng(seed).bytes)
    assert repr(streams[0]) == repr(streams[1]), "whatever the thresholds are"
    with pytest.raises(TypeError, match="never stored"):
        pickle.dumps(streams[0])


def test_release_is_a_whole_stream_and_declines_after_its_end():
    labels = TYPICAL.release(np.concatenate([UNANIMOUS, *[SPLIT] * 3, *[UNANIMOUS] * 5]))
    assert labels.tolist() == [0] + [UNANSWERED] * 8
    labels = TYPICAL.release(np.repeat(UNANIMOUS, 25, axis=0))
    assert labels.tolist() == [0] * 20 + [UNANSWERED] * 5
    assert TYPICAL.release(np.empty((0, 2), dtype=np.int64)).shape == (0,)


def test_a_gaussian_stream_has_no_secret_and_goes_on_for_free():
    taken = []

    def entropy(n):
        taken.append(n)
        return np.random.default_rng(len(taken)).bytes(n)

    stream = MANY.begin()
    assert stream.answer(np.concatenate([UNANIMOUS, SPLIT, UNANIMOUS]), entropy).tolist() == [0, UNANSWERED, 0]
    assert taken == [24, 16], "a draw for each query, a tie, and no threshold"
    resumed = MANY.begin(unstable=stream.unstable, asked=stream.asked)
    assert (resumed.unstable, resumed.asked) == (1, 3)
    assert resumed.answer(np.repeat(SPLIT, 17, axis=0)).tolist() == [UNANSWERED] * 11
    assert resumed.ended


def test_what_a_stream_costs():
    mechanism = MSvec(1.0, 1e-5, 10, 1000)
    assert 0.98 < mechanism.worst_case(1000, 1000).epsilon(0.999e-5) <= 1.0, "room is left for the sampler's error"
    assert mechanism.worst_case(100, 100).epsilon(1e-5) < 0.9, "fewer queries cost less"
    assert mechanism.worst_case(1, 1).epsilon(1e-9) == math.inf
    assert mechanism.worst_case(0, 0).epsilon(0.0) == 0
    with pytest.raises(BudgetExceeded, match="max_queries = 1000"):
        mechanism.worst_case(1001, 0)


@pytest.mark.parametrize("unstable", [1, 3, 10, 100])
def test_the_named_epsilon_is_used_up_and_not_exceeded(unstable):
    for epsilon in (0.5, 4.0):
        mechanism = MSvec(epsilon, 1e-5, unstable, 1000)
        assert 0.97 * epsilon < worst_case_epsilon(mechanism, 1000) <= epsilon
        assert mechanism.votes_to_pass < LectureMSvec(epsilon, 1e-5, unstable, 1000).votes_to_pass / 5


@pytest.mark.parametrize(("unstable", "published"), [(1, 0.101), (5, 0.226), (20, 0.325)])
def test_the_lectures_noise_is_published_at_its_smallest_proven_price(unstable, published):
    mechanism = LectureMSvec(1.0, 1e-5, unstable, 1000)
    assert mechanism.worst_case(1000, 1000).epsilon(1e-5) == pytest.approx(published, abs=1e-3)
    assert mechanism.published_epsilon(np.array([[9, 1]]), 1e-5) == 1.0, "what the lecture claims"


@pytest.mark.parametrize("unstable", [1, 10, 97, 98, 1000])
@pytest.mark.parametrize("epsilon", [0.5, 1.0, 8.0])
def test_the_lectures_epsilon_covers_the_optimal_composition_of_the_epochs(epsilon, unstable):
    mechanism = LectureMSvec(epsilon, 1e-5, unstable, 1000)
    assert mechanism.exact_delta < 1e-5
    assert mechanism.worst_case(1000, 1000).epsilon(mechanism.exact_delta) <= epsilon


def test_an_epsilon_whose_noise_cannot_be_drawn_is_refused():
    with pytest.raises(ConfigError, match="epsilon"):  # a query's noise could be drawn, the threshold's not
        LectureMSvec(27950, 1e-5, 2, 100)
    with pytest.raises(ConfigError, match="epsilon = 1e-05: too small"):
        MSvec(1e-5, 1e-5, 2, 100)
    for kind in (MSvec, LectureMSvec):
        with pytest.raises(ConfigError, match="delta"):  # 1/δ would be infinite
            kind(1, 2e-308, 2, 100)


def test_an_epsilon_for_which_the_lectures_bound_fails_is_refused():
    with pytest.raises(ValueError, match="too large"):
        LectureMSvec(60.0, 1e-5, 200, 1000)


def test_built_from_settings():
    good = {"name": "msvec", "epsilon": 1, "delta": 1e-5, "unstable": 10, "max_queries": 1000}
    built = build(good)
    assert built == MSvec(1.0, 1e-5, 10, 1000)
    assert isinstance(built.unstable, int)
    assert (MSvec.default_queries(good), MSvec.default_queries({})) == (1000, FEW_QUERIES)
    for wrong in ({"epsilon": -1}, {"delta": 0}, {"unstable": 1.5}, {"max_queries": 0}, {"max_queries": 9}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            build(good | wrong)


def test_a_run_must_state_the_streams_own_delta_and_limit():
    mechanism = MSvec(1.0, 1e-5, 10, 1000)
    mechanism.check(1000, 1e-5, 250)
    with pytest.raises(ConfigError, match=r"mechanism\.delta = 1e-05: must not exceed"):
        mechanism.check(1000, 0.99e-5, 250)
    with pytest.raises(ConfigError, match=r"budget\.max_queries = 1001"):
        mechanism.check(1001, 1e-5, 250)


def test_advanced_composition_covers_what_is_claimed():
    """Where epochs do not simply add up, √(2·Q·ln(2/δ))·2/λ + Q·(2/λ)·(e^(2/λ) − 1) must not exceed ε."""
    accepted = []
    for epsilon in np.geomspace(0.1, 100, 40):
        try:
            mechanism = LectureMSvec(float(epsilon), 1e-5, 400, 1000)
        except ValueError:
            continue
        each = 2 / mechanism.noise_scale
        spent = math.sqrt(2 * 400 * math.log(2 / 1e-5)) * each + 400 * each * math.expm1(each)
        assert spent <= epsilon * (1 + 1e-12)
        accepted.append(epsilon)
    assert 1 < max(accepted) < 100
