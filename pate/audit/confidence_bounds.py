"""From an attack's successes to a lower bound on ε: by error rates, by samples, and from one run with many canaries.

A bound is wrong (above the true ε) with probability 1 − confidence at most, over the attacker's and the mechanism's
randomness. It says what was shown, never that there is no more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import betainccinv, betaincinv
from scipy.stats import binom

from pate.accounting import _parameters as parameters

_MAX_EPSILON = 60.0  # e⁶⁰ to one: no number of canaries that fits into memory shows more
_LEAST = math.exp(-700)

Floats = NDArray[np.float64]
Outcome = tuple[int, ...]
"""The labels of a stream's queries, in their order; one label for a single query."""
LabelSamples = NDArray[np.int64]
"""Independent runs on one data set: int[runs] of a single query, or int[runs, queries] of a stream."""


def epsilon_from_rates(
    true_positives: int, positives: int, false_positives: int, negatives: int, delta: float, confidence: float
) -> float:
    """The ε that an attack with these successes shows, at `delta`; 0 where it shows nothing.

    (ε, δ)-DP bounds every test for membership in both directions (Kairouz, Oh, Viswanath 2015):
    TPR ≤ e^ε·FPR + δ and 1 − FPR ≤ e^ε·(1 − TPR) + δ. Both use the same two limits, Clopper and Pearson's: the true
    positive rate is at least one and the false positive rate at most the other, each but for half of 1 − confidence.
    The members and the others must be independent trials, and the test fixed before them.

    >>> round(epsilon_from_rates(990, 1000, 10, 1000, delta=1e-5, confidence=0.95), 2)
    3.98
    """
    _check(delta, confidence)
    if not 0 <= true_positives <= positives or not 0 <= false_positives <= negatives or not positives * negatives:
        raise ValueError(
            f"true_positives = {true_positives} of {positives}, false_positives = {false_positives} of {negatives}: "
            "cannot be"
        )
    miss = (1 - confidence) / 2
    found = clopper_pearson_lower(np.array(true_positives), positives, miss)
    accused = clopper_pearson_upper(np.array(false_positives), negatives, miss)
    return float(np.maximum(log_excess(found, accused, delta), log_excess(1 - accused, 1 - found, delta)))


def epsilon_from_pairs(
    first_only: int, second_only: int, both: int, pairs: int, delta: float, confidence: float
) -> float:
    """The ε that an event shows which is likelier in the first of two samples, drawn in independent pairs.

    Narrower than `epsilon_from_rates` where the event is seen often: of the pairs with the event in one sample alone
    it is in the first with probability θ/(1 + θ), where θ = p(1 − q)/(q(1 − p)), and that is a binomial (McNemar).
    So p/q = θ(1 − p)/(1 − q), and (ε, δ)-DP says e^ε ≥ p/q − δ/q. Limits are Clopper and Pearson's: of θ but for 0.96
    of 1 − confidence, of p (above) and of q (below) but for 0.02 each. The event must be fixed before.

    >>> round(epsilon_from_pairs(5_400, 5_000, 100, 10**6, delta=1e-5, confidence=0.95), 3)
    0.041
    """
    _check(delta, confidence)
    if min(first_only, second_only, both) < 0 or first_only + second_only + both > pairs:
        raise ValueError(f"{first_only}, {second_only} and {both} of {pairs} pairs: cannot be")
    miss = 1 - confidence
    apart = first_only + second_only
    if not apart or not first_only:
        return 0.0
    share = float(clopper_pearson_lower(np.array(first_only), apart, 0.96 * miss))
    p_most = float(clopper_pearson_upper(np.array(first_only + both), pairs, 0.02 * miss))
    q_least = float(clopper_pearson_lower(np.array(second_only + both), pairs, 0.02 * miss))
    if share == 1 or q_least == 0:
        return 0.0
    ratio = share / (1 - share) * (1 - p_most) / (1 - q_least)
    return float(log_excess(np.array(ratio), np.array(1.0), delta / q_least))


@dataclass(frozen=True)
class EventBound:
    """What one half of the samples says of an event that the other half chose."""

    epsilon_lower_bound: float
    """0 where nothing was found; a true ε below this is an event of probability `false_alarm` at most."""
    event: frozenset[Outcome]
    likelier: str
    """'a' or 'b': the samples in which the event is the likelier."""

    def refutes(self, epsilon: float) -> bool:
        """Whether the samples contradict (epsilon, delta)-DP."""
        return self.epsilon_lower_bound > epsilon


def epsilon_from_samples(
    sample_a: LabelSamples, sample_b: LabelSamples, delta: float, false_alarm: float = 1e-6
) -> EventBound:
    """A lower bound on the ε at `delta` of the mechanism that gave both samples, on neighbouring data sets.

    The first half of each sample chooses an event: of the outcomes, sorted by how much likelier one data set
    makes them, the leading ones whose bound is best. The second half, which had no say in it, gives the
    bound ln((p − delta)/q) from Clopper–Pearson limits of the event's probabilities p and q. Both limits
    hold with probability 1 − `false_alarm`, whatever the event: so a mechanism that keeps its promise is
    accused with probability `false_alarm` at most. Any function of the answers alone may be audited in their
    place.
    """
    parameters.delta_or_zero(delta)
    parameters.open_probability(false_alarm, "false_alarm")
    outcomes, codes_a, codes_b = encode_outcomes(sample_a, sample_b)
    choose, test = (
        [np.bincount(codes[half], minlength=len(outcomes)) for codes in (codes_a, codes_b)] for half in (0, 1)
    )

    def limits(counts: Sequence[NDArray[np.int64]], likelier: int, order: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """Bounds on the probability of the first outcomes in this order: one, two and so on.

        The lower is for the likelier sample, the upper for the other; of each pair both hold but for `false_alarm`.
        """
        often, seldom = counts[likelier], counts[1 - likelier]
        lower = clopper_pearson_lower(np.cumsum(often[order]), int(often.sum()), false_alarm / 2)
        return lower, clopper_pearson_upper(np.cumsum(seldom[order]), int(seldom.sum()), false_alarm / 2)

    found = []
    for side in (0, 1):
        shares = [(counts + 0.5) / counts.sum() for counts in choose]  # half a count keeps ratios finite
        order = np.argsort(-shares[side] / shares[1 - side], kind="stable")
        bounds = log_excess(*limits(choose, side, order), delta)
        best = int(np.argmax(bounds))
        found.append((float(bounds[best]), side, order[: best + 1]))
    _, likelier, chosen = max(found, key=lambda one: one[0])
    lower, upper = (of_all[-1:] for of_all in limits(test, likelier, chosen))
    return EventBound(
        epsilon_lower_bound=float(log_excess(lower, upper, delta)[0]),
        event=frozenset(tuple(int(label) for label in outcomes[i]) for i in chosen),
        likelier="ab"[likelier],
    )


def encode_outcomes(
    sample_a: LabelSamples, sample_b: LabelSamples
) -> tuple[LabelSamples, list[NDArray[np.int64]], list[NDArray[np.int64]]]:
    """The distinct outcomes, one per row, and the row numbers of both samples, split into halves."""
    rows_a, rows_b = (np.asarray(s).reshape(len(s), -1) for s in (sample_a, sample_b))
    if rows_a.shape[1] != rows_b.shape[1] or min(len(rows_a), len(rows_b)) < 2:
        raise ValueError(f"two samples of like outcomes are needed, not {rows_a.shape} and {rows_b.shape}")
    outcomes, codes = np.unique(np.concatenate([rows_a, rows_b]), axis=0, return_inverse=True)
    codes = codes.reshape(-1)
    codes_a, codes_b = codes[: len(rows_a)], codes[len(rows_a) :]
    return outcomes, np.array_split(codes_a, 2), np.array_split(codes_b, 2)


def clopper_pearson_lower(hits: NDArray[np.int64], runs: int, miss: float) -> Floats:
    """The probability is at least this, but for a chance of `miss`."""
    return np.nan_to_num(betaincinv(hits, runs - hits + 1, miss), nan=0.0)  # nan: no hits


def clopper_pearson_upper(hits: NDArray[np.int64], runs: int, miss: float) -> Floats:
    """The probability is at most this, but for a chance of `miss`."""
    return np.nan_to_num(betainccinv(hits + 1, runs - hits, miss), nan=1.0)  # nan: nothing but hits


def log_excess(likely: Floats, unlikely: Floats, delta: float) -> Floats:
    """ln((likely − δ)/unlikely), 0 where that is negative."""
    excess = np.maximum(likely - delta, _LEAST)
    return np.maximum(0.0, np.log(excess) - np.log(np.maximum(unlikely, _LEAST)))


def one_run_epsilon(canaries: int, guesses: int, correct: int, delta: float, confidence: float) -> float:
    """The ε that one run shows in which `correct` of `guesses` were right about being in; 0 where it shows nothing.

    Steinke, Nasr, Jagielski 2023 (arXiv 2305.08846), Theorem 5.2. Each of `canaries` records was put in or left out by
    a fair coin of its own, and the attacker, who saw what was released, says of `guesses` of them which: a number
    fixed beforehand. Neighbouring relation: one record in or out, so ε is that of one record added or removed. If the
    coin instead chose between two contents of a record, it is that of one record changed.

    If the run was (ε, δ)-DP, then with W ~ Binomial(guesses, e^ε/(1 + e^ε)) and f(v) = P[W ≥ v]

        P[correct ≥ v] ≤ f(v) + 2·canaries·δ · max over i ≥ 1 of (f(v − i) − f(v))/i.

    The bound is the largest ε up to which every ε has such a probability below 1 − confidence.

    >>> round(one_run_epsilon(1000, 1000, 900, delta=1e-5, confidence=0.95), 2)
    2.02
    """
    _check(delta, confidence)
    parameters.queries(canaries, "canaries", least=1)
    if not 0 <= correct <= guesses <= canaries:
        raise ValueError(f"{correct} correct of {guesses} guesses about {canaries} canaries: cannot be")
    if guesses == 0:
        return 0.0

    def margin(epsilon: float) -> float:
        return one_run_p_value(canaries, guesses, correct, epsilon, delta) - (1 - confidence)

    if margin(0.0) >= 0:
        return 0.0
    return float(brentq(margin, 0.0, _MAX_EPSILON, xtol=1e-13)) if margin(_MAX_EPSILON) >= 0 else _MAX_EPSILON


def one_run_p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """The most that P[at least `correct` right guesses] can be where the run is (epsilon, delta)-DP; see above."""
    right = 1 / (1 + math.exp(-epsilon))
    chance = float(binom.sf(correct - 1, guesses, right))
    if delta == 0 or correct == 0:
        return min(1.0, chance)
    below = np.cumsum(binom.pmf(np.arange(correct - 1, -1, -1), guesses, right))  # f(v − i) − f(v), for i = 1, 2, …
    worst = float((below / np.arange(1, correct + 1)).max())
    return min(1.0, chance + 2 * canaries * delta * worst)


@dataclass(frozen=True)
class Planned:
    """What so many canaries can show: all guesses right, and the best to be expected where the claim is true."""

    canaries: int
    at_best: float
    expected: float | None


def plan(
    canaries: Sequence[int], delta: float, confidence: float = 0.95, claimed: float | None = None
) -> list[Planned]:
    """For `pate audit --plan`: no attack with so many canaries shows more than `at_best`.

    The strongest attack on something that leaks all of `claimed` shows about `expected`: what is shown of randomised
    response of this ε, whose answers tell all that ε allows, on average.

    >>> [(p.canaries, round(p.at_best, 2), round(p.expected, 2)) for p in plan([100, 1000], 1e-5, claimed=1.0)]
    [(100, 3.49, 0.61), (1000, 5.78, 0.88)]
    """
    planned = []
    for n in canaries:
        expected = None
        if claimed is not None:
            right = math.floor(n / (1 + math.exp(-parameters.epsilon(claimed))))
            expected = one_run_epsilon(n, n, right, delta, confidence)
        planned.append(Planned(n, one_run_epsilon(n, n, n, delta, confidence), expected))
    return planned


def _check(delta: float, confidence: float) -> None:
    parameters.delta_or_zero(delta)
    parameters.open_probability(confidence, "confidence")
