"""From an attack's successes to a lower bound on ε: by error rates, and from one run with many canaries.

A bound is wrong (above the true ε) with probability 1 − confidence at most, over the attacker's and the mechanism's
randomness. It says what was shown, never that there is no more.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainccinv, betaincinv
from scipy.stats import binom

from pate.accounting import parameters

_MAX_EPSILON = 60.0  # e⁶⁰ to one: no number of canaries that fits into memory shows more
_HALVINGS = 50


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
    _successes(true_positives, positives, "true_positives", "positives")
    _successes(false_positives, negatives, "false_positives", "negatives")
    miss = (1 - confidence) / 2
    found = float(clopper_pearson_lower(np.array(true_positives), positives, miss))
    accused = float(clopper_pearson_upper(np.array(false_positives), negatives, miss))
    return max(0.0, _log_ratio(found - delta, accused), _log_ratio(1 - accused - delta, 1 - found))


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
    return max(0.0, _log_ratio(ratio - delta / q_least, 1.0))


def clopper_pearson_lower(hits: NDArray[np.int64], runs: int, miss: float) -> NDArray[np.float64]:
    """The probability is at least this, but for a chance of `miss`."""
    positive = np.maximum(hits, 1)
    return np.where(hits == 0, 0.0, betaincinv(positive, runs - positive + 1, miss))


def clopper_pearson_upper(hits: NDArray[np.int64], runs: int, miss: float) -> NDArray[np.float64]:
    """The probability is at most this, but for a chance of `miss`."""
    short = np.minimum(hits, runs - 1)
    return np.where(hits == runs, 1.0, betainccinv(short + 1, runs - short, miss))


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

    def refuted(epsilon: float) -> bool:
        return one_run_p_value(canaries, guesses, correct, epsilon, delta) < 1 - confidence

    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while refuted(high):
        low, high = high, 2 * high
        if low > _MAX_EPSILON:
            return low
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def one_run_p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """The most that P[at least `correct` right guesses] can be where the run is (epsilon, delta)-DP; see above."""
    right = 1 / (1 + math.exp(-epsilon))
    chance = float(binom.sf(correct - 1, guesses, right))
    if delta == 0 or correct == 0:
        return min(1.0, chance)
    below = np.cumsum(binom.pmf(np.arange(correct - 1, -1, -1), guesses, right))  # f(v − i) − f(v), for i = 1, 2, …
    worst = float((below / np.arange(1, correct + 1)).max())
    return min(1.0, chance + 2 * canaries * delta * worst)


def best_one_run_epsilon(canaries: int, delta: float, confidence: float) -> float:
    """The most that so many canaries can show: every guess is right. Where δ is 0, ε = ln(p/(1 − p)), pᵐ = 1 − conf.

    >>> round(best_one_run_epsilon(1000, delta=1e-5, confidence=0.95), 1)
    5.8
    """
    return one_run_epsilon(canaries, canaries, canaries, delta, confidence)


def expected_one_run_epsilon(canaries: int, epsilon: float, delta: float, confidence: float) -> float:
    """What so many canaries show of randomised response of this ε, whose answers tell all that ε allows, on average.

    No attack on something that keeps an ε of this can do better on average; it is what to expect of the strongest.
    """
    right = math.floor(canaries / (1 + math.exp(-parameters.epsilon(epsilon))))
    return one_run_epsilon(canaries, canaries, right, delta, confidence)


def _check(delta: float, confidence: float) -> None:
    parameters.delta_or_zero(delta)
    parameters.open_probability(confidence, "confidence")


def _successes(successes: int, trials: int, name: str, of: str) -> None:
    if trials < 1 or not 0 <= successes <= trials:
        raise ValueError(f"{name} = {successes} of {of} = {trials}: cannot be")


def _log_ratio(numerator: float, denominator: float) -> float:
    return math.log(numerator / denominator) if numerator > 0 else 0.0
