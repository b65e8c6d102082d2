"""What a query of ConfidentGNMax costs at most, test and answer together, where n teachers vote.

Charging the worst test and the worst answer charges for two histograms at once: an answer is dearest in a tie, and in a
tie of n votes the largest count is n/2 at most, so that the test seldom passes. Here one histogram pays for both.

Neighbouring relation: one vote moves; the number of votes, n, is public and stays. Sensitivity: the largest count m
changes by at most 1, two counts change by 1 each.
Guarantee: the Rényi divergence of what one query releases, ⊥ or a label, is at most `Moves.rdp`, for every histogram of
n votes, every neighbour, both directions and any number of classes. It composes over queries that are chosen by
earlier answers: each costs that much whether it is answered or not.

Proof, in full in docs/proofs.md: with t(m) the probability to pass and E the excess of the answer's moment, the excess
of both together is that of the test and t(m)^order·t(m')^(1 − order)·E. If m ≤ (n + 1)/2, E is at most that of all
histograms. If m is larger, the plurality leads every class by 2m − n votes at least, and the three kinds of moves of
`vote_leads` have m' = m − 1, m + 1 and m.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pate.accounting import parameters
from pate.accounting.tight.histogram_grid import Plane, _excess, threshold_excesses, two_class_excesses
from pate.accounting.tight.margins import moves_among_others, moves_of_the_plurality
from pate.accounting.tight.two_class_reduction import Floats, Ints

if TYPE_CHECKING:
    from pate.noise.integer import IntegerNoise

_ROUNDING = 1e-8  # relative
_ROUGHLY = 600  # pairs of largest counts that an approximation looks at
_ORDERS_APART = 5


def log_test(noise: IntegerNoise, threshold: float, largest: NDArray[np.integer]) -> tuple[Floats, Floats]:
    """log-probabilities that a largest count with integer noise reaches the threshold, and that it does not."""
    needed = math.ceil(threshold) - largest  # the noise that passes the test
    return noise.log_sf(needed), noise.log_cdf(needed - 1)


@dataclass(frozen=True)
class Question:
    """A query of ConfidentGNMax: public parameters, and how many vote."""

    test_noise: IntegerNoise
    answer_noise: IntegerNoise
    threshold: float
    n_teachers: int

    def log_test(self, largest: Ints) -> tuple[Floats, Floats]:
        """log-probabilities that a largest count passes the noisy test, and that it does not."""
        return log_test(self.test_noise, self.threshold, largest)


@dataclass(frozen=True)
class Moves:
    """For each kind of move: the excess of the test, what the answer's moment is weighed by, and its excess."""

    test: Floats
    weight: Floats
    answer: Floats

    def rdp(self, order: float) -> float:
        """The Rényi cost of a query, rounded up."""
        return math.log1p(float(np.max(self.test + self.weight * self.answer)) * (1 + _ROUNDING)) / (order - 1)


@lru_cache(maxsize=256)
def moves(question: Question, order: float, answer_rdp: float) -> Moves | None:
    """Every kind of move from every histogram, bounded; None where this leaves the range of floating point.

    `answer_rdp` is the answer's cost over all histograms, `worst_case_rdp` of its noise at this order.
    """
    plane = Plane(question.answer_noise, order)
    if question.n_teachers > parameters.MAX_VOTES or not plane.representable:
        return None
    largest = math.expm1((order - 1) * answer_rdp)
    before, after = _pairs(question.n_teachers)
    with np.errstate(over="ignore"):
        test, weight = _weights(question, before, after, order)
    if not (np.isfinite(test).all() and np.isfinite(weight).all()):
        return None
    lead = 2 * before - question.n_teachers
    answer = np.full(len(before), largest)
    clear = 2 * before > question.n_teachers + 1
    attained = float((test + weight * largest)[~clear].max())
    for change in (-1, 1):
        chosen = clear & (after - before == change)
        if not chosen.any():
            continue
        score = _Score(lead[chosen], test[chosen], weight[chosen])
        table = moves_of_the_plurality(plane, change > 0, largest, score, attained)
        answer[chosen] = table[np.minimum(lead[chosen], len(table) - 1)]
    chosen = clear & (after == before)
    table = moves_among_others(plane, largest, max(plane.last_size, plane.first_size // 4))
    answer[chosen] = table[np.minimum(lead[chosen], len(table) - 1)]
    return Moves(test, weight, answer)


def approximate_rdp(question: Question, orders: Floats) -> Floats:
    """About what a query costs, at some of the orders; infinite at the others. It proves nothing.

    The answer is priced as that of two classes, or as a test against a rival that happens to be there.
    """
    before, after = _pairs(question.n_teachers)
    some = np.unique(np.linspace(0, len(before) - 1, _ROUGHLY).astype(np.int64))
    before, after = before[some], after[some]
    clear, lead = 2 * before > question.n_teachers + 1, np.maximum(2 * before - question.n_teachers, 0)
    result = np.full(len(orders), np.inf)
    for i in np.flatnonzero(orders < 8 * question.answer_noise.scale)[::_ORDERS_APART]:
        order = float(orders[i])
        loses, gains, rival = _two_classes(question.answer_noise, order)
        of_two = [table[np.minimum(lead, len(table) - 1)] for table in (loses, gains)]
        by_plurality = np.maximum(np.where(after < before, *of_two), rival)
        answer = np.where(clear, np.where(after == before, 0.0, by_plurality), loses[0])
        with np.errstate(over="ignore", invalid="ignore"):
            rdp = Moves(*_weights(question, before, after, order), answer).rdp(order)
        result[i] = rdp if math.isfinite(rdp) else math.inf
    return result


def _two_classes(noise: IntegerNoise, order: float) -> tuple[Floats, Floats, float]:
    """The excess of two classes where the one that leads, by 0, 1 … or more, loses a vote; or gains; that of a test."""
    radius = math.ceil(12 * noise.scale)
    two_class = two_class_excesses(noise, radius, order)  # by the lead of the class that loses, from −2·radius on
    gains, loses = two_class[: 2 * radius + 1], two_class[2 * radius :]
    rival = float(threshold_excesses(noise, radius, order).max())
    return np.maximum.accumulate(loses[::-1])[::-1], np.maximum.accumulate(gains)[::-1], rival


def _pairs(n_teachers: int) -> tuple[Ints, Ints]:
    """The largest count before and after a vote moves, all pairs that there are."""
    largest = np.arange(1, n_teachers + 1)
    before = np.concatenate([largest[1:], largest[:-1], largest])
    after = np.concatenate([largest[1:] - 1, largest[:-1] + 1, largest])
    return before, after


def _weights(question: Question, before: Ints, after: Ints, order: float) -> tuple[Floats, Floats]:
    """The excess of the test's moment, and t(before)^order·t(after)^(1 − order)."""
    passes, fails = question.log_test(before)
    passes_after, fails_after = question.log_test(after)
    test = _excess(passes, passes_after, order) + _excess(fails, fails_after, order)
    return test, np.exp(order * passes + (1 - order) * passes_after)


class _Score:
    """For leads and an excess: what they come to with the largest test and weight that such a lead allows."""

    def __init__(self, leads: Ints, test: Floats, weight: Floats) -> None:
        by_lead = np.argsort(leads)
        self._leads = leads[by_lead]
        self._test = np.maximum.accumulate(test[by_lead])
        self._weight = np.maximum.accumulate(weight[by_lead])

    def __call__(self, leads: Ints, excess: Floats) -> Floats:
        place = np.searchsorted(self._leads, leads, side="right") - 1
        scored: Floats = np.where(place < 0, 0.0, self._test[place] + self._weight[place] * excess)
        return scored
