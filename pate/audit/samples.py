"""A statistical audit of a mechanism: a lower bound on its ε from its answers alone.

It asks nothing of the mechanism but samples, so it also finds what a proof or `log_outcomes` cannot: a
sampler, a threshold or a state that is not what was proved. It can show that a claim is wrong, never that it
is right. `pate.audit.mechanism` takes them through the real aggregator.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pate.accounting import parameters
from pate.audit.bounds import clopper_pearson_lower, clopper_pearson_upper
from pate.mechanisms.base import Counts, Mechanism
from pate.noise.integer import Entropy

Outcome = tuple[int, ...]
"""The labels of a stream's queries, in their order; one label for a single query."""

LabelSamples = NDArray[np.int64]
"""Independent runs on one data set: int[runs] of a single query, or int[runs, queries] of a stream."""


@dataclass(frozen=True)
class AuditResult:
    """What one half of the samples says of an event that the other half chose."""

    epsilon_lower_bound: float
    """0 where nothing was found; a true ε below this is an event of probability `false_alarm` at most."""
    delta: float
    false_alarm: float
    event: frozenset[Outcome]
    likelier: str
    """'a' or 'b': the samples in which the event is the likelier."""
    probability_at_least: float
    """Lower confidence limit of the event where it is likelier."""
    probability_at_most: float
    """Upper confidence limit of the event in the other samples."""

    def refutes(self, epsilon: float) -> bool:
        """Whether the samples contradict (epsilon, delta)-DP."""
        return self.epsilon_lower_bound > epsilon


@dataclass(frozen=True)
class _Tally:
    """How often each outcome came up in the likelier samples and in the others, and their runs."""

    often: NDArray[np.int64]
    seldom: NDArray[np.int64]
    often_runs: int
    seldom_runs: int

    def limits(
        self, often: NDArray[np.int64], seldom: NDArray[np.int64], miss: float
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Limits of two probabilities; with probability 1 − miss both hold."""
        lower = clopper_pearson_lower(often, self.often_runs, miss / 2)
        return lower, clopper_pearson_upper(seldom, self.seldom_runs, miss / 2)


def audit(sample_a: LabelSamples, sample_b: LabelSamples, delta: float, false_alarm: float = 1e-6) -> AuditResult:
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
    choose, test = (_tallies(codes_a[i], codes_b[i], len(outcomes)) for i in (0, 1))
    best = max(range(2), key=lambda side: _best_event(choose[side], delta, false_alarm)[0])
    _, chosen = _best_event(choose[best], delta, false_alarm)
    often, seldom = (np.array([counts[chosen].sum()]) for counts in (test[best].often, test[best].seldom))
    lower, upper = test[best].limits(often, seldom, false_alarm)
    return AuditResult(
        epsilon_lower_bound=float(_epsilon(lower, upper, delta)[0]),
        delta=delta,
        false_alarm=false_alarm,
        event=frozenset(tuple(int(label) for label in outcomes[i]) for i in chosen),
        likelier="ab"[best],
        probability_at_least=float(lower[0]),
        probability_at_most=float(upper[0]),
    )


def sample_answers(mechanism: Mechanism, counts: Counts, runs: int, entropy: Entropy = os.urandom) -> LabelSamples:
    """Independent runs on the histogram of a query (int[runs]) or those of a stream (int[runs, queries])."""
    stream = np.atleast_2d(counts)
    if mechanism.priced_as_stream:
        labels = np.array([mechanism.release(stream, entropy) for _ in range(runs)])
    else:
        labels = mechanism.release(np.tile(stream, (runs, 1)), entropy).reshape(runs, len(stream))
    return labels[:, 0] if np.ndim(counts) == 1 else labels


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


def _tallies(codes_a: NDArray[np.int64], codes_b: NDArray[np.int64], n_outcomes: int) -> tuple[_Tally, _Tally]:
    """One with a as the likelier samples, one with b."""
    a, b = (np.bincount(codes, minlength=n_outcomes) for codes in (codes_a, codes_b))
    return _Tally(a, b, len(codes_a), len(codes_b)), _Tally(b, a, len(codes_b), len(codes_a))


def _best_event(tally: _Tally, delta: float, miss: float) -> tuple[float, NDArray[np.int64]]:
    """The best bound these very samples would give, and its event; half a count keeps ratios finite."""
    ratio = (tally.often + 0.5) / tally.often_runs / ((tally.seldom + 0.5) / tally.seldom_runs)
    order = np.argsort(-ratio, kind="stable")
    lower, upper = tally.limits(np.cumsum(tally.often[order]), np.cumsum(tally.seldom[order]), miss)
    bounds = _epsilon(lower, upper, delta)
    leading = int(np.argmax(bounds))
    return float(bounds[leading]), order[: leading + 1]


def _epsilon(lower: NDArray[np.float64], upper: NDArray[np.float64], delta: float) -> NDArray[np.float64]:
    excess = np.maximum(lower - delta, math.exp(-700))
    return np.maximum(0.0, np.log(excess) - np.log(upper))
