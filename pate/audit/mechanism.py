"""The two halves of PATE's guarantee, tried on the real program: how far one record moves the votes, and the noise.

`ChangedRecord` counts votes again with one record changed. `MechanismDraws` draws millions of answers through the real
aggregator, on the histograms it tells apart best.
"""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from multiprocessing import Pipe, get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from pate.accounting import _parameters as parameters
from pate.audit._target import Subject
from pate.audit.confidence_bounds import (
    Floats,
    LabelSamples,
    clopper_pearson_lower,
    clopper_pearson_upper,
    epsilon_from_pairs,
    epsilon_from_rates,
    epsilon_from_samples,
    log_excess,
)
from pate.audit.results import Attack, AttackResult, NotApplicable, Options, fewer_records, scratch_folder
from pate.boundary._aggregator import Aggregator
from pate.components._registry import counted
from pate.config import Config
from pate.data.private import Records
from pate.data.public import PublicData
from pate.ledger import Ledger, Limits
from pate.mechanisms import Mechanism
from pate.mechanisms._cell_costs import Round, guarantee
from pate.mechanisms.base import Counts
from pate.noise import Entropy
from pate.storage._files import KEY_BYTES

_TRIES, _FEW_TRIES = 5, 2  # of each kind of change
DRAWS, FEW_DRAWS = 100_000_000, 2_000_000
_AT_ONCE = 1 << 18
_WHOLE_WAY = 400  # queries that are collected, charged, stored and read back, in each of three ledgers
_SECONDS_FOR_A_COPY = 120.0
_ALIKE = 0.99  # beyond, no answer is left to chance, and nothing can be told from answers that are alike
_MAX_OTHERS = 3_000_000  # draws from pairs that are not the worst
_STREAM_RUNS, _STREAM_QUERIES = 4_000, 3
_FOR_THE_WORST_PAIR, _FOR_OTHER_PAIRS, _FOR_REPEATS = 0.9, 0.099, 0.001  # shares of 1 − confidence
_MAX_CANDIDATES = 600
_OUT_OF_REACH = 4  # times the votes that are sure to win (99.9 %): classes without votes then play no part
_TWO_ERRORS, _OFTEN = 2.0, 100.0
_LEVELS = (0.5, 0.25, 0.1, 0.01)  # how probable the answer is that a moved vote makes less so


def _config_of_votes(subject: Subject, attack: str) -> Config:
    if not isinstance(subject.config, Config) or subject.kind != "student":
        raise NotApplicable(f"{attack}: is about the votes of PATE")
    return subject.config


@dataclass(frozen=True)
class MechanismAudit:
    """What the draws showed of one query; `epsilon_exact` is that of the worst pair, from exact probabilities.

    Where the same noise came twice, `repeats`, no ε holds, and `epsilon_lower` is infinite.
    """

    epsilon_lower: float
    epsilon_exact: float
    epsilon_claimed: float
    delta: float
    repeats: bool

    @property
    def refutes(self) -> bool:
        return self.epsilon_lower > self.epsilon_claimed


class MechanismDraws(Attack):
    """Millions of draws from each mechanism that the run's config names.

    Draws go through an `Aggregator` with a ledger of its own, its stream, sampler and entropy; some of them the whole
    way, collected, charged, stored and read back. Three things are tried, and what may go wrong is shared between them:

    * the worst pair of neighbouring histograms and its event, both from exact probabilities: how close to the claim the
      real sampler comes (nine tenths of what may go wrong);
    * other pairs, with answers that are more probable, and of every class against all others: bugs that the worst pair
      does not show;
    * whether noise repeats: in a second aggregator, or in a copy of the process. Noise that can be drawn again can be
      subtracted, so no ε holds.

    Assumes: the attacker knows all votes but one, and sees the answers to one query over and over; the claim is that of
    one query. The bound is Clopper and Pearson's, as in Jagielski, Ullman, Oprea 2020; of queries that share noise
    (MSvec) a short stream is drawn, and repeats are not looked for.
    """

    name = title = "mechanism"
    explanation = (
        "Asks the noisy vote many times on two vote counts that one record tells apart, and looks at how different the "
        "answers are. It tests the program that draws the noise."
    )

    def run(self, subject: Subject, options: Options) -> Iterable[AttackResult]:
        from pate.voters import voters_of

        voters = voters_of(_config_of_votes(subject, self.name))
        draws = FEW_DRAWS if options.quick else DRAWS
        single = voters.counts_one_record
        for mechanism in dict.fromkeys(voters.audited_mechanisms()):
            with options.console.working(f"{draws:,} draws from {mechanism}"):
                found = audit_mechanism(
                    mechanism,
                    n_teachers=max(1, voters.n_parts),
                    n_classes=subject.data.n_classes,
                    delta=subject.delta,
                    confidence=options.confidence,
                    draws=draws,
                    single=single,
                )
            note = f"{draws:,} draws from {mechanism}"
            if not math.isnan(found.epsilon_exact):
                note += f"; exact for the worst histograms: {found.epsilon_exact:.3g}"
            if found.repeats:
                note = f"{mechanism}: the same noise came twice, so it can be subtracted and no ε holds"
            yield AttackResult(
                attack=self.title,
                model=subject.name,
                assumes="the attacker knows every vote but one record's, and sees one query's answer; the claim is one "
                "query's",
                relation="a record that votes once added or removed" if single else "a vote moved",
                epsilon_lower=found.epsilon_lower,
                confidence=options.confidence,
                delta=found.delta,
                epsilon_claimed=found.epsilon_claimed,
                note=note,
            )


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
    miss = 1 - confidence
    delta = max(delta, *(float(getattr(mechanism, name, 0.0)) for name in ("delta", "query_delta")))
    asked = _STREAM_QUERIES if mechanism.priced_as_stream else 1
    cost = guarantee([Round(1, mechanism)], 1, changed=False) if single else mechanism.worst_case(asked, asked)
    repeats = _noise_repeats(mechanism, n_teachers, miss * _FOR_REPEATS)
    if mechanism.priced_as_stream:
        shown, exact = _of_stream(mechanism, n_teachers, delta, miss * (1 - _FOR_REPEATS)), math.nan
    elif mechanism.releases_counts and single:
        exact, shown = _of_a_count(mechanism, n_classes, delta, miss * (1 - _FOR_REPEATS), draws // 2)
    else:
        exact = worst_pair(mechanism, n_teachers, delta, single).epsilon
        others = _other_pairs(mechanism, n_teachers, n_classes, single, draws)
        of_worst = draws // 2 - sum(size for _, size in others)
        pair = worst_pair(mechanism, n_teachers, delta, single, of_worst)
        share = miss * _FOR_OTHER_PAIRS / len(others)
        with _scratch_aggregator(mechanism, 1, 1) as door:
            shown = max(
                _of_pairs(door, pair, delta, miss * _FOR_THE_WORST_PAIR, of_worst),
                *(_of_event(door, one, delta, share, size) for one, size in others),
            )
    return MechanismAudit(math.inf if repeats else shown, exact, cost.epsilon(delta), delta, repeats)


def _noise_repeats(mechanism: Mechanism, n_teachers: int, miss: float) -> bool:
    """Whether two fresh aggregators, or this process and a copy of it, answer alike more often than independent noise
    would; said of independent noise with probability `miss` at most."""
    if mechanism.priced_as_stream:  # ends after some queries, and then answers alike whatever it drew
        return False
    counts, _, outcomes, _ = _candidates(mechanism, n_teachers, single=False)
    each = (outcomes**2).sum(axis=1)  # how probable it is that two answers are alike
    tied, alike = counts[int(np.argmin(each))], float(each.min())
    if alike > _ALIKE:
        return False
    queries = np.tile(tied, (_WHOLE_WAY, 1))
    # What a generator remembers, a copy of this process remembers. Nothing is pickled for it: a mechanism whose class
    # was made in a function could not be.
    received, sent = Pipe(duplex=False)
    copy = get_context("fork").Process(target=lambda: sent.send(_answers(mechanism, queries)), daemon=True)
    copy.start()
    sent.close()
    here, *others = _answers(mechanism, queries), _answers(mechanism, queries)
    with suppress(Exception):  # a copy of a process with threads may be stuck, or may die
        if received.poll(_SECONDS_FOR_A_COPY):
            others.append(received.recv())
    copy.kill()
    copy.join()
    seen = max(int((here == other).sum()) for other in others)
    return bool(2 * binom.sf(seen - 1, _WHOLE_WAY, alike) < miss)


def _of_event(door: Aggregator, pair: Pair, delta: float, miss: float, draws: int) -> float:
    """What an event that was fixed beforehand shows."""
    ours, theirs = (
        sum(int(np.isin(labels, pair.event).sum()) for labels in _drawn(door, counts, draws))
        for counts in (pair.counts, pair.neighbour)
    )
    return epsilon_from_rates(ours, draws, theirs, draws, delta, 1 - miss)


def _of_pairs(door: Aggregator, pair: Pair, delta: float, miss: float, draws: int) -> float:
    """Lower bound on ε from pairs of single draws.

    Pairs get 0.7 of the allowed error probability, since they show more of outcomes that are frequent.
    """
    first_only = second_only = both = 0
    for labels in zip(_drawn(door, pair.counts, draws), _drawn(door, pair.neighbour, draws), strict=True):
        ours, theirs = (np.isin(one, pair.event) for one in labels)
        together = int((ours & theirs).sum())
        first_only, second_only = first_only + int(ours.sum()) - together, second_only + int(theirs.sum()) - together
        both += together
    by_rates = epsilon_from_rates(first_only + both, draws, second_only + both, draws, delta, 1 - 0.3 * miss)
    return max(by_rates, epsilon_from_pairs(first_only, second_only, both, draws, delta, 1 - 0.7 * miss))


def _drawn(door: Aggregator, counts: NDArray[np.int64], draws: int) -> Iterator[NDArray[np.int64]]:
    """Answers by the aggregator's own stream and entropy, by column of `log_outcomes`, block by block."""
    for begin in range(0, draws, _AT_ONCE):
        size = min(_AT_ONCE, draws - begin)
        labels, _ = door._draw(np.broadcast_to(counts, (size, len(counts))))  # what `label` calls before the ledger
        yield labels % (len(counts) + 1)


def _of_stream(mechanism: Mechanism, n_teachers: int, delta: float, miss: float) -> float:
    """Lower bound on ε for a stream whose queries share secret noise: a vote moves in each of the first few."""
    votes = max(n_teachers, mechanism.teachers_needed(0.5) or 0)
    counts = np.tile([[votes, 0]], (_STREAM_QUERIES, 1))
    moved = counts + np.array([-1, 1]) * mechanism.votes_per_record
    ours, theirs = (sample_answers(mechanism, c, _STREAM_RUNS) for c in (counts, moved))
    return epsilon_from_samples(ours, theirs, delta, miss).epsilon_lower_bound


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
            counts = (10 + grown) * np.eye(n_classes, dtype=np.int64)[label]
            released = mechanism.release_counts(np.broadcast_to(counts, (each, n_classes)))
            above.append(int((released[:, label] > 10).sum()))
        shown.append(epsilon_from_rates(above[0], each, above[1], each, delta, 1 - miss / n_classes))
    return exact, max(shown)


def sample_answers(mechanism: Mechanism, counts: Counts, runs: int, entropy: Entropy = os.urandom) -> LabelSamples:
    """Independent runs on the histogram of a query (int[runs]) or those of a stream (int[runs, queries])."""
    stream = np.atleast_2d(counts)
    if mechanism.priced_as_stream:
        labels = np.array([mechanism.release(stream, entropy) for _ in range(runs)])
    else:
        labels = mechanism.release(np.tile(stream, (runs, 1)), entropy).reshape(runs, len(stream))
    return labels[:, 0] if np.ndim(counts) == 1 else labels


@contextmanager
def _scratch_aggregator(mechanism: Mechanism, asked: int, n_teachers: int) -> Iterator[Aggregator]:
    """An aggregator as a run has one, its entropy the operating system's; what it charges is charged to nobody."""
    with scratch_folder() as folder:
        key, limits = secrets.token_bytes(KEY_BYTES), Limits(asked, asked, repr(mechanism))
        open_ledger = partial(Ledger, folder / "charges.db", key, folder / "charges.head", "audit", limits)
        with closing(Aggregator(mechanism, open_ledger, folder, key, n_teachers)) as aggregator:
            yield aggregator


def _answers(mechanism: Mechanism, counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The labels of these histograms [queries, classes], all of as many votes, the whole way: collected, drawn, charged
    and stored in a fresh ledger, and read from there."""
    from pate.voters.stored import StoredCount

    n_teachers, X = int(counts[0].sum()), np.arange(len(counts), dtype=np.float64)[:, None]
    with _scratch_aggregator(mechanism, len(counts), n_teachers) as aggregator:
        aggregator.collect(X, StoredCount(counts, n_teachers))
        return aggregator.label(X).labels


# The histograms that a mechanism tells apart best: of those in which two classes share all votes, as there a moved vote
# counts twice. For LNMax a third class with votes adds a few percent to the exact ε; it is never above the claim.


@dataclass(frozen=True)
class Pair:
    """Neighbouring histograms, the likelier first, and an event: outcomes by column of `log_outcomes`."""

    counts: NDArray[np.int64]
    neighbour: NDArray[np.int64]
    event: NDArray[np.int64]
    epsilon: float = math.nan
    """Exact: ln((p − δ)/q) of the event's two probabilities, where they were computed."""


def _other_pairs(
    mechanism: Mechanism, n_teachers: int, n_classes: int, single: bool, draws: int
) -> list[tuple[Pair, int]]:
    """Neighbouring histograms for bugs that the worst pair does not show, and how many of all draws are of each.

    The event is the answer of one class. The first are of two classes, the answer being more or less probable: too
    little noise may make the worst pair's event so rare that it is never seen. The others are of each class against all
    others, which are level: an answer that depends on the noise of every class.
    """
    counts, neighbours, ours, _ = _candidates(mechanism, n_teachers, single)
    behind = np.flatnonzero(counts[:, 0] <= counts[:, 1])
    rows = [behind[int(np.argmin(np.abs(ours[behind, 0] - level)))] for level in _LEVELS]
    nearer = [Pair(counts[row], neighbours[row], np.array([0])) for row in rows]
    moved = 1 if single else mechanism.votes_per_record
    scale = float(getattr(getattr(mechanism, "noise", None), "scale", 1.0))
    level = []
    for less in (0, max(1, round(scale / 2))):
        fewer = np.full(n_classes, int(counts[0].sum()), dtype=np.int64)
        fewer[0] -= less
        step = np.array([moved, 0 if single else -moved] + [0] * (n_classes - 2))
        level += [Pair(np.roll(fewer + step, by), np.roll(fewer, by), np.array([by])) for by in range(n_classes)]
    of_nearer = min(2 * draws // 5, _MAX_OTHERS) // (2 * len(nearer))
    of_level = min(draws // 5, _MAX_OTHERS) // (2 * len(level))
    return [*((pair, of_nearer) for pair in nearer), *((pair, of_level) for pair in level)]


def worst_pair(
    mechanism: Mechanism,
    n_teachers: int,
    delta: float,
    single: bool = False,
    draws: int | None = None,
    moved: int | None = None,
) -> Pair:
    """The pair with the largest exact ε at `delta`; given `draws`, the one that so many draws of each show most of.

    `single`: one count grows by 1, instead of votes moving. `moved`: so many votes, instead of `votes_per_record`.
    """
    counts, neighbours, ours, theirs = _candidates(mechanism, n_teachers, single, moved)
    found = []
    for first, second, p, q in ((counts, neighbours, ours, theirs), (neighbours, counts, theirs, ours)):
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(p > 0, np.log(p) - np.log(q), -np.inf)
        order = np.argsort(-ratio, axis=1, kind="stable")
        likely, unlikely = (np.cumsum(np.take_along_axis(x, order, axis=1), axis=1) for x in (p, q))
        exact = log_excess(likely, unlikely, delta)
        value = exact if draws is None else _to_be_shown(likely, unlikely, delta, draws)
        row, last = np.unravel_index(int(np.argmax(value)), value.shape)
        pair = Pair(first[row], second[row], order[row, : last + 1], float(exact[row, last]))
        found.append((float(value[row, last]), pair))
    return max(found, key=lambda one: one[0])[1]


@lru_cache(maxsize=16)
def _candidates(
    mechanism: Mechanism, n_teachers: int, single: bool, votes_moved: int | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats, Floats]:
    """Histograms, their neighbours, and how probable every outcome is of either."""
    moved = 1 if single else votes_moved or mechanism.votes_per_record
    votes = max(n_teachers, _OUT_OF_REACH * (mechanism.teachers_needed(0.999) or 0), 2 * moved)
    rows = []
    for total in (votes, votes + 1):  # both parities of the gap
        first = np.unique(np.linspace(moved, total, min(total - moved + 1, _MAX_CANDIDATES // 2)).astype(np.int64))
        rows.append(np.column_stack([first, total - first]))
    counts = np.concatenate(rows)
    neighbours = counts + (np.array([-moved, 0]) if single else np.array([-moved, moved]))
    return counts, neighbours, np.exp(mechanism.log_outcomes(counts)), np.exp(mechanism.log_outcomes(neighbours))


def _to_be_shown(likely: Floats, unlikely: Floats, delta: float, draws: int) -> Floats:
    """About the bound at 95 % confidence, were each event seen as often as expected: by pairs, or by rates if rare."""
    lower = clopper_pearson_lower(np.floor(likely * draws).clip(0, draws).astype(np.int64), draws, 0.01)
    upper = clopper_pearson_upper(np.ceil(unlikely * draws).clip(0, draws).astype(np.int64), draws, 0.01)
    by_rates = log_excess(lower, upper, delta)
    seen = np.maximum(np.minimum(likely, unlikely) * draws, 1e-9)
    margin = _TWO_ERRORS * np.sqrt(2 / seen)
    return np.maximum(by_rates, np.where(seen > _OFTEN, log_excess(likely, unlikely, delta) - margin, 0.0))


# How far one record moves the votes


@dataclass(frozen=True)
class Sensitivity:
    """The most that a record moved, in votes of one query or in counts of one round, and the most that it may.

    `change` is what was done to the record that moved most beyond what it may, and `what` was counted.
    """

    moved: float
    allowed: float
    change: str
    epsilon_shown: float
    epsilon_claimed: float
    tries: int
    what: str

    @property
    def refutes(self) -> bool:
        return self.moved > self.allowed


class ChangedRecord(Attack):
    """One record removed, added or changed, and the votes counted again: no noise, no statistics, no false alarms.

    Every guarantee of PATE rests on how far one record can move what noise is added to. So records are changed one at a
    time, the real partition, teachers or cells and the real aggregator count again, and histograms are compared. With
    teachers as many votes may move in a query as the mechanism's `votes_per_record` says: one; with neighbours as many
    counts may change by 1 as a record has votes, twice as many if it was changed.

    Where a record moved more than it may, `epsilon_lower` is what a query (a round) of the mechanism costs if a record
    moves that much and the other votes are as bad as they can be: exact, not a matter of chance. Where none did there
    is no such figure, and only the records that were tried are known.
    """

    name = title = "sensitivity"
    explanation = (
        "Changes one record, counts all votes again by the real program, and looks whether more moved than the proof "
        "allows."
    )

    def run(self, subject: Subject, options: Options) -> Iterable[AttackResult]:
        config, tries = _config_of_votes(subject, self.name), _FEW_TRIES if options.quick else _TRIES
        audited = partial(audit_sensitivity, tries=tries, config_dir=subject.config_dir, seed=options.seed)
        with options.console.working("counting votes again with one record changed"):
            found = audited(config, subject.data, subject.records)
        yield AttackResult(
            attack=self.title,
            model=subject.name,
            assumes="the attacker knows all records but one, and the other votes are as bad as they can be; no chance",
            relation=f"a record {found.change}",
            epsilon_lower=found.epsilon_shown if found.refutes else None,
            confidence=1.0,
            delta=subject.delta,
            epsilon_claimed=found.epsilon_claimed,
            note=f"of {found.tries} records tried, one moved {counted(found.moved)} {found.what}; it may move "
            f"{counted(found.allowed)}",
        )


def audit_sensitivity(
    config: Config,
    public: PublicData,
    records: Records,
    *,
    tries: int = _FEW_TRIES,
    config_dir: Path = Path(),
    seed: int = 0,
) -> Sensitivity:
    """Count the votes of the records, and of `tries` neighbouring data sets of each kind."""
    from pate.preflight._features import with_learned_features
    from pate.voters import voters_of

    public = replace(public, per_person=records.ids is not None)
    voters = voters_of(with_learned_features(config, public.X_public))
    count = voters.vote_counter(public, config_dir, secrets.token_bytes(KEY_BYTES))
    if count is None:
        raise NotApplicable("sensitivity: these votes are not those of records")
    records = fewer_records(records, count.max_records, seed)
    before = count(records)
    seen = []
    for change, neighbour in _neighbours(public, records, tries, np.random.default_rng(seed)):
        moved, allowed = count.moved(count(neighbour) - before, change)
        seen.append((moved / allowed, moved, allowed, change))
    _, moved, allowed, change = max(seen)
    shown, claimed = count.costs(moved, change)
    return Sensitivity(moved, allowed, change, shown, claimed, len(seen), count.what)


def _neighbours(
    public: PublicData, records: Records, tries: int, rng: np.random.Generator
) -> Iterator[tuple[str, Records]]:
    """Neighbouring data sets. The first and some other records go; a public example with some label comes in front.

    A record changes under its id, where there are ids; where records vote themselves it may without.
    """
    for number in range(tries):
        row = 0 if number == 0 else int(rng.integers(len(records)))
        owners = list(range(len(records))) if records.ids is None else list(records.ids)
        yield "added or removed", records.only(np.array([owner != owners[row] for owner in owners]))
        stranger, label = public.X_public[int(rng.integers(len(public.X_public)))], int(rng.integers(public.n_classes))
        X, y = np.concatenate([stranger[None], records.X]), np.concatenate([[label], records.y])
        ids = None if records.ids is None else ["somebody else", *records.ids]
        yield "added or removed", Records(X.astype(records.X.dtype), y, ids)
        X, y = records.X.copy(), records.y.copy()
        X[row], y[row] = stranger, (y[row] + 1) % public.n_classes
        yield "changed", Records(X, y, records.ids)
