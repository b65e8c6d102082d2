"""The audit accuses no mechanism that keeps its promise, and each of four that were broken on purpose."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
from scipy.stats import binom, binomtest

from pate.audit.confidence_bounds import (
    clopper_pearson_lower,
    clopper_pearson_upper,
    encode_outcomes,
    epsilon_from_samples,
)
from pate.audit.mechanism import sample_answers
from pate.mechanisms import (
    ConfidentGNMax,
    GaussianMSamp,
    GaussianMStab,
    GNMax,
    LectureMSvec,
    LNMax,
    MSamp,
    MStab,
    MSvec,
)
from pate.mechanisms.stability import stable_moves
from pate.noise.integer import DiscreteLaplace

RUNS = 60_000
STREAM_RUNS = 5000


def moved(counts, votes=1):
    """The neighbour with so many votes moved from the first class to the second, in every query."""
    step = np.zeros(np.shape(counts)[-1], dtype=np.int64)
    step[:2] = -votes, votes
    return np.asarray(counts) + step


def lower_bound(mechanism, counts, neighbour, delta, runs=RUNS, seed=1):
    entropy = np.random.default_rng(seed).bytes
    samples = (sample_answers(mechanism, np.array(c), runs, entropy) for c in (counts, neighbour))
    return epsilon_from_samples(*samples, delta=delta)


def priced(mechanism, asked, delta):
    return mechanism.worst_case(asked, asked).epsilon(delta)


HONEST = [
    (LNMax(2.0), (6, 0), 0.0),
    (LNMax(2.0), (3, 2, 1), 0.01),
    (LNMax(5.0), [(3, 0), (2, 1), (4, 4)], 1e-3),
    (GNMax(2.0), (6, 0), 0.01),
    (GNMax(1.5), (2, 1, 1), 0.05),
    (ConfidentGNMax(5.0, 2.0, 1.5), (7, 1), 0.01),
    (ConfidentGNMax(5.0, 2.0, 1.5), [(7, 1), (3, 3)], 0.01),
    (MStab(1.0, 0.05), (13, 6), 0.05),
    (MStab(1.0, 0.05), (2, 1), 0.05),
    (MStab(0.5, 0.3), (3, 3, 2), 0.3),
    (MSamp(4.0, 0.2, 2.5 / 12, 6), (6, 0), 0.2),
    (MSamp(2.0, 0.1, 1.5 / 12, 6), (5, 1), 0.1),
    (GaussianMStab(2.0, 0.02), (13, 4), 0.05),
    (GaussianMStab(1.0, 0.05), [(2, 1), (5, 1)], 0.2),
    (GaussianMSamp(1.0, 0.05, 2.5 / 12, 6), (6, 0), 0.2),
    (LectureMSvec(12.0, 0.5, 3, 3), [(16, 3), (18, 3), (6, 5)], 0.5),
    (LectureMSvec(8.0, 0.3, 1, 3), [(2, 1), (3, 2), (2, 1)], 0.3),
    (MSvec(1.0, 0.3, 3, 3), [(16, 3), (18, 3), (6, 5)], 0.3),
    (MSvec(2.5, 0.2, 2, 3), [(5, 1), (6, 1), (2, 1)], 0.2),
]


@pytest.mark.parametrize(("mechanism", "counts", "delta"), HONEST)
def test_no_honest_mechanism_is_accused(mechanism, counts, delta):
    """False alarm: 1e-6 each."""
    asked = len(np.atleast_2d(counts))
    claim = 2 * asked / mechanism.scale if isinstance(mechanism, LNMax) else priced(mechanism, asked, delta)
    assert math.isfinite(claim)
    runs = STREAM_RUNS if mechanism.priced_as_stream else RUNS
    result = lower_bound(mechanism, counts, moved(counts, mechanism.votes_per_record), delta, runs)
    assert not result.refutes(claim), result


def test_the_bound_comes_close_to_the_truth():
    """The exact ε of these pairs is 0.93, 0.78: from `log_outcomes`."""
    assert lower_bound(MStab(1.0, 0.05), (13, 6), (12, 7), 0.05).epsilon_lower_bound > 0.85
    assert lower_bound(LNMax(2.0), (6, 0), (5, 1), 0.0).epsilon_lower_bound > 0.6


@dataclass(frozen=True)
class HalvedNoise(MStab):
    """Bug 1: the scale is half of what was promised."""

    @property
    def noise(self):
        return DiscreteLaplace(0.5 / self.epsilon)


@dataclass(frozen=True)
class RawGap(MStab):
    """Bug 2: the gap, which a moved vote changes by 2, is taken for the distance."""

    def missing_noise(self, gap):
        return super().missing_noise(0) - gap


@dataclass(frozen=True)
class TruncatedFloats(MStab):
    """Bug 4: float32 Laplace noise is cut to whole votes towards zero, which doubles the weight of 0."""

    def release(self, counts, entropy):
        rng = np.random.default_rng(int.from_bytes(entropy(8), "little"))
        noise = rng.laplace(scale=1 / self.epsilon, size=len(counts)).astype(np.float32).astype(np.int32)
        gap = np.abs(counts[:, 0] - counts[:, 1])
        return np.where(noise >= self.missing_noise(gap), counts.argmax(axis=1), -1)


@pytest.mark.parametrize(
    ("broken", "counts", "delta"),
    [
        (LNMax(1.0), (4, 0), 0.0),  # of a promised scale of 2
        (HalvedNoise(1.0, 0.05), (13, 6), 0.05),
        (RawGap(1.0, 0.05), (12, 9), 0.05),
        (TruncatedFloats(1.0, 0.05), (13, 6), 0.05),
    ],
)
def test_broken_mechanisms_are_caught(broken, counts, delta):
    """All promise ε = 1; the margin shows that it is not by luck."""
    result = lower_bound(broken, counts, moved(counts), delta)
    assert result.refutes(1.0)
    assert result.epsilon_lower_bound > 1.15, result


SVEC = LectureMSvec(epsilon=4.9, delta=0.1, unstable=1, max_queries=400)  # λ is 2 votes
HALF = SVEC.max_queries // 2


def careless_svec(distances, runs, rng):
    """Bug 3: MSvec that draws its threshold once, counts no ⊥ and never stops; True where it answers."""
    threshold = SVEC.votes_to_pass + DiscreteLaplace(SVEC.noise_scale).sample((runs, 1), rng.bytes)
    noise = DiscreteLaplace(2 * SVEC.noise_scale).sample((runs, len(distances)), rng.bytes)
    return distances + noise >= threshold


def alternating_stream():
    """Distances at the threshold: one more in the first half and, on the neighbour, in the second half."""
    high = np.full(HALF, SVEC.votes_to_pass)
    return np.concatenate([high, high - 1]), np.concatenate([high - 1, high])


def difference_of_halves(answered):
    """How many more the first half answered: a function of the answers, so the promise covers it."""
    return answered[:, :HALF].sum(axis=1) - answered[:, HALF:].sum(axis=1)


def test_a_sparse_vector_that_neither_redraws_nor_counts_is_caught():
    rng = np.random.default_rng(2)
    samples = [
        np.concatenate([difference_of_halves(careless_svec(distances, 5000, rng)) for _ in range(8)])
        for distances in alternating_stream()
    ]
    result = epsilon_from_samples(*samples, delta=SVEC.delta)
    assert result.epsilon_lower_bound > 1.05 * SVEC.epsilon, result


def test_the_real_sparse_vector_on_the_same_stream_is_not():
    samples = []
    for distances in alternating_stream():
        gaps = 2 * distances + 1
        assert (stable_moves(gaps) == distances).all()
        counts = np.column_stack([gaps, 0 * gaps])
        labels = sample_answers(SVEC, counts, 1500, np.random.default_rng(3).bytes)
        samples.append(difference_of_halves(labels >= 0))
    assert not epsilon_from_samples(*samples, delta=SVEC.delta).refutes(SVEC.epsilon)


def test_false_alarms_are_as_rare_as_stated():
    """Randomised response spends all of its ε; at a stated rate of 1 in 20 its accusers must be as few.

    False alarm of this test: 1e-6.
    """
    rng = np.random.default_rng(4)
    epsilon, trials, rate = 0.5, 500, 0.05
    likely = 1 / (1 + math.exp(-epsilon))
    accused = sum(
        epsilon_from_samples(rng.random(2000) < likely, rng.random(2000) > likely, 0.0, rate).refutes(epsilon)
        for _ in range(trials)
    )
    assert binomtest(accused, trials, rate, alternative="greater").pvalue > 1e-6, accused


def test_confidence_limits_are_clopper_and_pearsons():
    hits = np.array([0, 1, 7, 500, 999, 1000])
    lower, upper = (f(hits, 1000, 5e-7) for f in (clopper_pearson_lower, clopper_pearson_upper))
    np.testing.assert_allclose(binom.sf(hits[1:] - 1, 1000, lower[1:]), 5e-7, rtol=1e-6)
    np.testing.assert_allclose(binom.cdf(hits[:-1], 1000, upper[:-1]), 5e-7, rtol=1e-6)
    assert (lower[0], upper[-1]) == (0.0, 1.0)


def test_outcomes_are_tuples_of_labels():
    a = np.array([[0, 1], [0, -1], [2, 2], [0, 1]])
    b = np.array([[0, -1], [0, -1]])
    outcomes, codes_a, codes_b = encode_outcomes(a, b)
    assert outcomes.tolist() == [[0, -1], [0, 1], [2, 2]]
    assert [half.tolist() for half in codes_a] == [[1, 0], [2, 1]]
    assert [half.tolist() for half in codes_b] == [[0], [0]]


def test_an_event_names_the_outcomes_that_betray():
    a, b = np.tile([[1, -1]], (4000, 1)), np.tile([[1, 1]], (4000, 1))
    result = epsilon_from_samples(a, b, delta=1e-5)
    assert result.event in ({(1, -1)}, {(1, 1)})
    assert (result.likelier == "a") == (result.event == {(1, -1)})
    assert result.epsilon_lower_bound == pytest.approx(math.log(2000 / math.log(2e6)), rel=0.02)
    assert epsilon_from_samples(a, a, delta=0.0).epsilon_lower_bound == 0


def test_samples_that_cannot_be_compared_are_refused():
    with pytest.raises(ValueError, match="two samples"):
        epsilon_from_samples(np.zeros((10, 2), dtype=int), np.zeros(10, dtype=int), 0.0)
    with pytest.raises(ValueError, match="delta"):
        epsilon_from_samples(np.zeros(10, dtype=int), np.zeros(10, dtype=int), 1.0)
