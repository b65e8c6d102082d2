"""The largest moment of a noisy argmax by the lead of the plurality; the cost of ConfidentGNMax where n teachers vote.

Words and notation are those of `histogram_grid`, which treats all histograms alike. Here the class with most votes
leads each other one by at least L votes before a vote moves from a to b; docs/proofs.md has the proof. There are three
kinds of moves:

- the plurality loses a vote: it is a, and x − y ≥ L whatever the rival does;
- it gains one: it is b, and y − x ≥ L;
- it is neither. Then it is one of the rival's classes, and x and y are at most −L less its noise. The moment is
  jointly convex, so it is at most its average over that noise.

All tables are indexed by L = 0, 1, 2 …, do not rise, and end where they change no more.

ConfidentGNMax: to charge the worst test and the worst answer is to charge for two histograms at once. An answer is
dearest in a tie, and in a tie of n votes the largest count is n/2 at most, so that the test seldom passes. In `moves`
one histogram pays for both.

Neighbouring relation: one vote moves; the number of votes, n, is public and stays. Sensitivity: the largest count m
changes by at most 1, two counts change by 1 each.
Guarantee: the Rényi divergence of what one query releases, ⊥ or a label, is at most `Moves.rdp`, for every histogram of
n votes, every neighbour, both directions and any number of classes. It composes over queries that are chosen by
earlier answers: each costs that much whether it is answered or not.

Proof, in full in docs/proofs.md: with t(m) the probability to pass and E the excess of the answer's moment, the excess
of both together is that of the test and t(m)^order·t(m')^(1 − order)·E. If m ≤ (n + 1)/2, E is at most that of all
histograms. If m is larger, the plurality leads every class by 2m − n votes at least, and the three kinds of moves
have m' = m − 1, m + 1 and m.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pate.accounting import _parameters as parameters
from pate.accounting.tight._histogram_grid import (
    TOLERANCE,
    Floats,
    Ints,
    Outcomes,
    Plane,
    block_bounds,
    first_blocks,
    moment_excess,
    threshold_excesses,
    two_class_excesses,
)

if TYPE_CHECKING:
    from pate.noise.integer import IntegerNoise

Score = Callable[[Ints, Floats], Floats]
"""Score(leads, excess): how much an excess matters that occurs at these leads, increasing in both."""


def moves_of_the_plurality(plane: Plane, gains: bool, largest: float, score: Score, matters: float) -> Floats:
    """The excess where the plurality loses (or `gains`) a vote, by its lead: upper bounds.

    They are within `TOLERANCE` of what is attained where their score is above `matters`, and rough elsewhere.
    `largest` is the excess over all histograms, which nothing exceeds.
    """
    sign = -1 if gains else 1
    ends = 2 * plane.radius + 2 * plane.first_size + 4
    found = np.zeros(ends + 1)
    for loses_ties in (True, False):
        _search_leads(plane, Outcomes(plane, loses_ties), sign, score, matters, found)
    two_class = two_class_excesses(plane.noise, plane.radius, plane.order)  # by the lead of a, from −2·radius on
    leads = sign * np.arange(-2 * plane.radius, 2 * plane.radius + 3)
    np.maximum.at(found, leads[leads >= 0], two_class[leads >= 0])
    found = np.maximum.accumulate(found[::-1])[::-1]
    test = float(threshold_excesses(plane.noise, plane.radius, plane.order).max())
    return np.minimum(plane.with_slack(np.maximum(found, test)), largest)


def _search_leads(plane: Plane, outcomes: Outcomes, sign: int, score: Score, matters: float, found: Floats) -> None:
    """Branch and bound as in `histogram_grid`; every block's last bound is entered in `found` at its largest lead."""
    size = plane.first_size
    x, y = first_blocks(plane, size)
    while True:
        leads = np.minimum(sign * (x - y) + size - 1, len(found) - 1)
        x, y, leads = x[leads >= 0], y[leads >= 0], leads[leads >= 0]
        if len(x) == 0:
            return
        bound, value = block_bounds(plane, outcomes, x, y, size)
        corner = sign * (x - y - (size - 1 if size > 1 else 0))
        inside = corner >= 0
        attained = score(np.minimum(corner[inside], len(found) - 1), value[inside])
        matters = max(matters, float(attained.max(initial=0.0)))
        split = score(leads, bound) > matters * (1 + TOLERANCE)
        if size == plane.last_size:
            split[:] = False
        np.maximum.at(found, leads[~split], bound[~split])
        size //= 2
        x = np.concatenate([x[split], x[split] + size, x[split], x[split] + size])
        y = np.concatenate([y[split], y[split], y[split] + size, y[split] + size])
        searched = plane.must_search(x, y, size)
        x, y = x[searched], y[searched]


def moves_among_others(plane: Plane, largest: float, size: int) -> Floats:
    """The excess where the plurality neither loses nor gains a vote, by its lead: upper bounds, from blocks of `size`.

    With s the most that x and y can be, and f(s) the largest excess for x, y ≤ s, it is E f(−L − Z) at most. For a
    geometric tail Z = G − G′ and the rival's noisy count is counted without its G, so it is E f(−L + G′).
    """
    f, lowest = largest_below(plane, largest, size)
    reach, ratio = plane.noise.half_width(), plane.noise.tail_ratio
    noise = np.arange(-reach, reach + 1)
    mass = np.exp(plane.noise.log_pmf(noise))
    if ratio:
        mass = np.where(noise <= 0, (1 - ratio) * ratio ** np.maximum(-noise, 0.0), 0.0)
    ends = reach - lowest + 1
    s = np.arange(-ends - reach, reach + 1)
    values = f[np.clip(s - lowest, 0, len(f) - 1)]
    average = np.convolve(values, mass, mode="valid")[::-1]  # at L = 0 … ends
    missing = max(0.0, 1 - float(mass.sum())) + 1e-12  # noise further out: as if it were the worst
    return np.minimum(plane.with_slack(average + missing * largest), largest)


def largest_below(plane: Plane, largest: float, size: int) -> tuple[Floats, int]:
    """f(s) for s from the second result on: the largest excess where x ≤ s and y ≤ s; above its end it is `largest`."""
    first, table = tabulated(plane, size)
    lowest = plane.lowest - 2 * plane.radius
    s = np.arange(lowest, plane.far + 1)
    corner = first + size * np.arange(len(table))
    highest = np.maximum(corner[:, None], corner[None, :])
    inside = np.zeros(len(s))
    np.maximum.at(inside, np.minimum(highest, s[-1]) - lowest, table)
    inside = np.maximum.accumulate(inside)
    inside[-1] = largest  # from `far` on, where also the rival may be so low that it does not matter
    tests = _tests_below(plane, s)
    found = np.maximum(inside, tests)
    if plane.noise.tail_ratio:  # below 0 it is a mixture of x = 0, in that share, and of x out of play
        found[s < 0] = plane.noise.tail_ratio ** -s[s < 0] * largest + tests[s < 0]
    return np.minimum(found, largest), lowest


def _tests_below(plane: Plane, most: Ints) -> Floats:
    """The excess where one class is out of play, and the other has at most so many votes more than the rival."""
    radius = int(np.abs(most).max()) + 2 + plane.drop
    test = threshold_excesses(plane.noise, radius, plane.order)  # of noise ≥ k, from k = −radius on
    loses = np.maximum.accumulate(test[::-1])[::-1]  # k ≥ −most, less what a geometric rival is above its least
    gains = np.maximum.accumulate(test)  # as a test of 1 − k
    return np.maximum(loses[radius - most], _smoothed(plane, gains, radius + 1 + most, -1))


def tests_above(plane: Plane, gains: bool, least: Ints) -> Floats:
    """The excess where the other class is out of play, and the one that loses or `gains` has at least so many votes."""
    radius = int(np.abs(least).max()) + 2 + plane.drop
    test = threshold_excesses(plane.noise, radius, plane.order)
    if gains:
        return _smoothed(plane, np.maximum.accumulate(test[::-1])[::-1], radius + least, -1)
    return _smoothed(plane, np.maximum.accumulate(test), radius + 1 - least, 1)


def _smoothed(plane: Plane, values: Floats, places: Ints, sign: int) -> Floats:
    """E values[place ± G], G being how far the rival is above its least; 0 for Gaussian noise."""
    above = np.arange(plane.drop + 1)
    ratio = plane.noise.tail_ratio
    mass = (1 - ratio) * ratio**above
    mass[-1] = ratio**plane.drop  # what lies further out is part of the slack
    result: Floats = values[np.clip(places[:, None] + sign * above, 0, len(values) - 1)] @ mass
    return result


@lru_cache(maxsize=4)
def tabulated(plane: Plane, size: int) -> tuple[int, Floats]:
    """The part of the plane that is searched, in blocks: its first x and y, and the largest excess of each, [x, y]."""
    x, y = first_blocks(plane, size)
    first = int(min(x.min(), y.min()))
    n = (max(int(x.max()), int(y.max())) - first) // size + 1
    table = np.zeros((n, n))
    for loses_ties in (True, False):
        bound, _ = block_bounds(plane, Outcomes(plane, loses_ties), x, y, size)
        np.maximum.at(table, ((x - first) // size, (y - first) // size), bound)
    return first, table


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
        score = _score_of(lead[chosen], test[chosen], weight[chosen])
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
    passes, fails = log_test(question.test_noise, question.threshold, before)
    passes_after, fails_after = log_test(question.test_noise, question.threshold, after)
    test = moment_excess(passes, passes_after, order) + moment_excess(fails, fails_after, order)
    return test, np.exp(order * passes + (1 - order) * passes_after)


def _score_of(leads: Ints, test: Floats, weight: Floats) -> Score:
    """For leads and an excess: what they come to with the largest test and weight that such a lead allows."""
    by_lead = np.argsort(leads)
    known = leads[by_lead]
    largest_test, largest_weight = np.maximum.accumulate(test[by_lead]), np.maximum.accumulate(weight[by_lead])

    def score(leads: Ints, excess: Floats) -> Floats:
        place = np.searchsorted(known, leads, side="right") - 1
        scored: Floats = np.where(place < 0, 0.0, largest_test[place] + largest_weight[place] * excess)
        return scored

    return score
