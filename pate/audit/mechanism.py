"""The mechanism itself: millions of draws through the real aggregator, on the histograms it tells apart best.

Draws go through an `Aggregator` with a ledger of its own, its stream, sampler and entropy; some of them the whole way,
collected, charged, stored and read back. Three things are tried, and what may go wrong is shared between them:

* the worst pair of neighbouring histograms and its event, both from exact probabilities: how close to the claim the
  real sampler comes (nine tenths of what may go wrong);
* other pairs, with answers that are more probable, and of every class against all others: bugs that the worst pair
  does not show;
* whether noise repeats: in a second aggregator, or in a copy of the process. Noise that can be drawn again can be
  subtracted, so no ε holds.

Assumes: the attacker knows all votes but one, and sees the answers to one query over and over; the claim is that of
one query. The bound is Clopper and Pearson's, as in Jagielski, Ullman, Oprea 2020; of queries that share noise (MSvec)
a short stream is drawn, and repeats are not looked for.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from pate.accounting import parameters
from pate.audit.bounds import clopper_pearson_lower, clopper_pearson_upper, epsilon_from_pairs, epsilon_from_rates
from pate.audit.results import AttackResult, NotApplicable
from pate.audit.scratch import answers, scratch_aggregator
from pate.audit.worst_pair import Pair, other_pairs, tied, worst_pair
from pate.boundary.aggregator import Aggregator
from pate.config import Config
from pate.mechanisms import Mechanism
from pate.mechanisms.base import Counts
from pate.mechanisms.cell_costs import Round, guarantee
from pate.noise.integer import Entropy

if TYPE_CHECKING:
    from pate.audit.results import Options
    from pate.audit.target import Subject

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


DRAWS, FEW_DRAWS = 100_000_000, 2_000_000
_AT_ONCE = 1 << 18
_WHOLE_WAY = 400  # queries that are collected, charged, stored and read back, in each of three ledgers
_SECONDS_FOR_A_COPY = 120.0
_ALIKE = 0.99  # beyond, no answer is left to chance, and nothing can be told from answers that are alike
_MAX_OTHERS = 3_000_000  # draws from pairs that are not the worst
_STREAM_RUNS = 4_000
_STREAM_QUERIES = 3
_FOR_THE_WORST_PAIR, _FOR_OTHER_PAIRS, _FOR_REPEATS = 0.9, 0.099, 0.001  # shares of 1 − confidence


@dataclass(frozen=True)
class MechanismAudit:
    """What the draws showed of one query; `epsilon_exact` is that of the worst pair, from exact probabilities."""

    mechanism: Mechanism
    epsilon_lower: float
    epsilon_exact: float
    epsilon_claimed: float
    delta: float
    confidence: float
    draws: int
    repeats: bool
    """Whether noise came twice: then no ε holds, and `epsilon_lower` is infinite."""
    seconds: float

    @property
    def refutes(self) -> bool:
        return self.epsilon_lower > self.epsilon_claimed


def attack(subject: Subject, options: Options) -> list[AttackResult]:
    """One finding for each mechanism that the run's config names."""
    from pate.voters import voters_of

    config = subject.config
    if not isinstance(config, Config) or subject.kind != "student":
        raise NotApplicable("mechanism: is about the votes of PATE")
    voters = voters_of(config)
    draws = FEW_DRAWS if options.quick else DRAWS
    found = []
    for mechanism in dict.fromkeys(voters.audited_mechanisms()):
        with options.console.working(f"{draws:,} draws from {mechanism}"):
            result = audit_mechanism(
                mechanism,
                n_teachers=max(1, voters.n_parts),
                n_classes=subject.n_classes,
                delta=subject.delta,
                confidence=options.confidence,
                draws=draws,
                single=voters.counts_one_record,
            )
        found.append(_finding(result, subject.name, voters.counts_one_record))
    return found


def audit_mechanism(
    mechanism: Mechanism,
    *,
    n_teachers: int = 1,
    n_classes: int = 2,
    delta: float = 1e-5,
    confidence: float = 0.95,
    draws: int = FEW_DRAWS,
    single: bool = False,
) -> MechanismAudit:
    """A lower bound on the ε of one query; above the true one with probability 1 − confidence at most.

    Neighbouring relation: as many votes move as `votes_per_record` says; with `single`, for records that vote near
    themselves, one count grows by 1. `draws` is how many answers are drawn in all.
    """
    parameters.delta(delta)
    parameters.open_probability(confidence, "confidence")
    started, miss = time.perf_counter(), 1 - confidence
    claimed, delta = _claim(mechanism, delta, single)
    repeats = noise_repeats(mechanism, n_teachers, miss * _FOR_REPEATS)
    if mechanism.priced_as_stream:
        shown, exact = _of_stream(mechanism, n_teachers, delta, miss * (1 - _FOR_REPEATS)), math.nan
    elif mechanism.releases_counts and single:
        exact, shown = _of_a_count(mechanism, n_classes, delta, miss * (1 - _FOR_REPEATS), draws // 2)
    else:
        exact = worst_pair(mechanism, n_teachers, delta, single).epsilon
        nearer, level = other_pairs(mechanism, n_teachers, n_classes, single)
        of_nearer = min(2 * draws // 5, _MAX_OTHERS) // (2 * len(nearer))
        of_level = min(draws // 5, _MAX_OTHERS) // (2 * len(level))
        of_worst = draws // 2 - len(nearer) * of_nearer - len(level) * of_level
        pair = worst_pair(mechanism, n_teachers, delta, single, of_worst)
        share = miss * _FOR_OTHER_PAIRS / (len(nearer) + len(level))
        with scratch_aggregator(mechanism, 1, 1) as door:
            shown = max(
                _of_pairs(door, pair, delta, miss * _FOR_THE_WORST_PAIR, of_worst),
                *(_of_event(door, one, delta, share, of_nearer) for one in nearer),
                *(_of_event(door, one, delta, share, of_level) for one in level),
            )
    return MechanismAudit(
        mechanism=mechanism,
        epsilon_lower=math.inf if repeats else shown,
        epsilon_exact=exact,
        epsilon_claimed=claimed,
        delta=delta,
        confidence=confidence,
        draws=draws,
        repeats=repeats,
        seconds=time.perf_counter() - started,
    )


def noise_repeats(mechanism: Mechanism, n_teachers: int, miss: float) -> bool:
    """Whether two fresh aggregators, or this process and a copy of it, answer alike more often than independent noise
    would; said of independent noise with probability `miss` at most."""
    if mechanism.priced_as_stream:  # ends after some queries, and then answers alike whatever it drew
        return False
    counts, alike = tied(mechanism, n_teachers)
    if alike > _ALIKE:
        return False
    queries = np.tile(counts, (_WHOLE_WAY, 1))
    elsewhere = _in_a_copy(lambda: answers(mechanism, queries))
    here, again = answers(mechanism, queries), answers(mechanism, queries)
    seen = max(int((here == other).sum()) for other in (elsewhere(), again) if other is not None)
    return bool(2 * binom.sf(seen - 1, _WHOLE_WAY, alike) < miss)


def _in_a_copy(work: Callable[[], NDArray[np.int64]]) -> Callable[[], NDArray[np.int64] | None]:
    """Begin `work` in a copy of this process as it is now; what is returned waits for its result, or None."""
    context: Any = get_context("fork")  # whatever a generator remembers, the copy remembers too
    ours, theirs = context.Pipe(duplex=False)

    def send() -> None:
        theirs.send(work())

    process = context.Process(target=send)
    process.start()
    theirs.close()  # so that reading ends if the copy does

    def result() -> NDArray[np.int64] | None:
        try:
            found: NDArray[np.int64] | None = ours.recv() if ours.poll(_SECONDS_FOR_A_COPY) else None
        except EOFError:
            found = None
        process.kill()  # done by now, or stuck: a copy of a process with threads may be
        process.join()
        return found

    return result


def _claim(mechanism: Mechanism, delta: float, single: bool) -> tuple[float, float]:
    """ε that is claimed of one query, and at which δ: the mechanism's own where that is larger."""
    own = [float(getattr(mechanism, name, 0.0)) for name in ("delta", "query_delta")]
    delta = max(delta, *own)
    asked = _STREAM_QUERIES if mechanism.priced_as_stream else 1
    cost = guarantee([Round(1, mechanism)], 1, changed=False) if single else mechanism.worst_case(asked, asked)
    return cost.epsilon(delta), delta


def _of_event(door: Aggregator, pair: Pair, delta: float, miss: float, draws: int) -> float:
    """What an event that was fixed beforehand shows."""
    ours, theirs = (_tally(door, counts, draws)[pair.event].sum() for counts in (pair.counts, pair.neighbour))
    return epsilon_from_rates(int(ours), draws, int(theirs), draws, delta, 1 - miss)


def _of_pairs(door: Aggregator, pair: Pair, delta: float, miss: float, draws: int) -> float:
    """Lower bound on ε from pairs of single draws.

    Pairs get 0.7 of the allowed error probability, since they show more of outcomes that are frequent.
    """
    first_only = second_only = both = 0
    for size in _blocks(draws):
        ours, theirs = (np.isin(_drawn(door, c, size), pair.event) for c in (pair.counts, pair.neighbour))
        together = int((ours & theirs).sum())
        first_only, second_only = first_only + int(ours.sum()) - together, second_only + int(theirs.sum()) - together
        both += together
    by_rates = epsilon_from_rates(first_only + both, draws, second_only + both, draws, delta, 1 - 0.3 * miss)
    return max(by_rates, epsilon_from_pairs(first_only, second_only, both, draws, delta, 1 - 0.7 * miss))


def _tally(door: Aggregator, counts: NDArray[np.int64], draws: int) -> NDArray[np.int64]:
    """How often each class was answered, and ⊥ last."""
    outcomes = len(counts) + 1
    return np.sum([np.bincount(_drawn(door, counts, size), minlength=outcomes) for size in _blocks(draws)], axis=0)


def _drawn(door: Aggregator, counts: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Answers by the aggregator's own stream and entropy, by column of `log_outcomes`."""
    labels, _ = door._draw(np.broadcast_to(counts, (size, len(counts))))  # what `label` calls before the ledger
    return labels % (len(counts) + 1)


def _blocks(draws: int) -> list[int]:
    return [min(_AT_ONCE, draws - begin) for begin in range(0, draws, _AT_ONCE)]


def _of_stream(mechanism: Mechanism, n_teachers: int, delta: float, miss: float) -> float:
    """Lower bound on ε for a stream whose queries share secret noise: a vote moves in each of the first few."""
    votes = max(n_teachers, mechanism.teachers_needed(0.5) or 0)
    counts = np.tile([[votes, 0]], (_STREAM_QUERIES, 1))
    moved = counts + np.array([-1, 1]) * mechanism.votes_per_record
    ours, theirs = (sample_answers(mechanism, c, _STREAM_RUNS) for c in (counts, moved))
    return audit(ours, theirs, delta, miss).epsilon_lower_bound


def _of_a_count(mechanism: Mechanism, n_classes: int, delta: float, miss: float, draws: int) -> tuple[float, float]:
    """ε that is exact, and what is shown, of a released count that grows by 1, in every class in turn.

    The privacy loss of discrete Laplace noise is the same on either side of the count: above it, or not.
    """
    noise: Any = mechanism.noise  # type: ignore[attr-defined]
    exact = float(noise.log_sf(0) - noise.log_sf(1))
    each, shown = max(draws // (2 * n_classes), 1), [0.0]
    for label in range(n_classes):
        above = []
        for grown in (1, 0):
            counts = np.zeros(n_classes, dtype=np.int64)
            counts[label] = 10 + grown
            released = mechanism.release_counts(np.broadcast_to(counts, (each, n_classes)))
            above.append(int((released[:, label] > 10).sum()))
        shown.append(epsilon_from_rates(above[0], each, above[1], each, delta, 1 - miss / n_classes))
    return exact, max(shown)


def _finding(result: MechanismAudit, model: str, single: bool) -> AttackResult:
    exact = "" if math.isnan(result.epsilon_exact) else f"; exact for the worst histograms: {result.epsilon_exact:.3g}"
    note = f"{result.draws:,} draws from {result.mechanism}{exact}"
    if result.repeats:
        note = f"{result.mechanism}: the same noise came twice, so it can be subtracted and no ε holds"
    return AttackResult(
        attack="mechanism",
        model=model,
        assumes="the attacker knows every vote but one record's, and sees one query's answer; the claim is one query's",
        relation="a record that votes once added or removed" if single else "a vote moved",
        epsilon_lower=result.epsilon_lower,
        confidence=result.confidence,
        delta=result.delta,
        epsilon_claimed=result.epsilon_claimed,
        seconds=result.seconds,
        note=note,
    )
