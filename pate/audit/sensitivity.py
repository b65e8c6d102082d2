"""One record removed, added or changed, and the votes counted again: no noise, no statistics, no false alarms.

Every guarantee of PATE rests on how far one record can move what noise is added to. So records are changed one at a
time, the real partition, teachers or cells and the real aggregator count again, and histograms are compared. With
teachers as many votes may move in a query as the mechanism's `votes_per_record` says: one; with neighbours as many
counts may change by 1 as a record has votes, twice as many if it was changed.

Where a record moved more than it may, `epsilon_lower` is what a query (a round) of the mechanism costs if a record
moves that much and the other votes are as bad as they can be: exact, not a matter of chance. Where none did there is no
such figure, and only the records that were tried are known.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pate.audit.one_run_pate import fewer_records, first_cell_vote
from pate.audit.results import AttackResult, NotApplicable
from pate.audit.scratch import scratch_folder
from pate.audit.worst_pair import worst_pair
from pate.boundary.aggregator import Aggregator, query_ids
from pate.boundary.counts import sum_votes
from pate.components.registry import counted
from pate.config import Config
from pate.data.dataset import Dataset, Records
from pate.ledger import Ledger
from pate.mechanisms import Mechanism
from pate.mechanisms.cell_rounds import Round, guarantee
from pate.preflight.learned_features import with_learned_features
from pate.storage.files import KEY_BYTES
from pate.voters.neighbours.vote_counting import LocalVoteCounter
from pate.voters.teachers.ensemble import Ensemble
from pate.voters.teachers.readers import split_records
from pate.voters.teachers.worker import Teaching

if TYPE_CHECKING:
    from pathlib import Path

    from pate.audit.results import Options
    from pate.audit.target import Subject

_RECORDS_PER_PART = 20  # as many as make a teacher; what is shown does not depend on it
_MAX_QUERIES = 500
_MAX_RECORDS = 5_000  # that vote near themselves
_TRIES, _FEW_TRIES = 5, 2  # of each kind of change


@dataclass(frozen=True)
class Sensitivity:
    """The most that a record moved, in votes of one query or in counts of one round, and the most that it may."""

    moved: float
    allowed: float
    change: str
    """What was done to the record that moved most beyond what it may."""
    epsilon_shown: float
    epsilon_claimed: float
    tries: int

    @property
    def refutes(self) -> bool:
        return self.moved > self.allowed


def attack(subject: Subject, options: Options) -> list[AttackResult]:
    """One finding for a run of PATE."""
    config = subject.config
    if not isinstance(config, Config) or subject.kind != "student":
        raise NotApplicable("sensitivity: is about the votes of PATE")
    started = time.perf_counter()
    with options.console.working("counting votes again with one record changed"):
        tries = _FEW_TRIES if options.quick else _TRIES
        found = audit_sensitivity(config, subject.data, tries=tries, config_dir=subject.config_dir, seed=options.seed)
    what = "counts of a round" if config.voters == "neighbours" else "votes of a query"
    return [
        AttackResult(
            attack="sensitivity",
            model=subject.name,
            assumes="the attacker knows all records but one, and the other votes are as bad as they can be; no chance",
            relation=f"a record {found.change}",
            epsilon_lower=found.epsilon_shown if found.refutes else None,
            confidence=1.0,
            delta=subject.delta,
            epsilon_claimed=found.epsilon_claimed,
            seconds=time.perf_counter() - started,
            note=f"of {found.tries} records tried, one moved {counted(found.moved)} {what}; it may move "
            f"{counted(found.allowed)}",
        )
    ]


def audit_sensitivity(
    config: Config, data: Dataset, *, tries: int = _FEW_TRIES, config_dir: Path | None = None, seed: int = 0
) -> Sensitivity:
    """Count the votes of the data, and of `tries` neighbouring data sets of each kind."""
    from pathlib import Path

    config = with_learned_features(config, data.X_public)
    key = secrets.token_bytes(KEY_BYTES)
    rng = np.random.default_rng(seed)
    if config.voters == "neighbours":
        data = fewer_records(data, _MAX_RECORDS, seed)
        count: _CountNeighbours | _CountTeachers = _CountNeighbours(config, data, key)
    else:
        data = fewer_records(data, _RECORDS_PER_PART * config.n_teachers, seed)
        count = _CountTeachers(config, data, key, config_dir or Path())
    before = count(data)
    seen = []
    for change, neighbour in _neighbours(data, tries, rng):
        moved, allowed = count.moved(count(neighbour) - before, change)
        seen.append((moved / allowed, moved, allowed, change))
    _, moved, allowed, change = max(seen)
    shown, claimed = count.costs(moved, change)
    return Sensitivity(moved, allowed, change, shown, claimed, len(seen))


def _neighbours(data: Dataset, tries: int, rng: np.random.Generator) -> Iterator[tuple[str, Dataset]]:
    """Neighbouring data sets. The first and some other records go; a public example with some label comes in front.

    A record changes under its id, where there are ids; where records vote themselves it may without.
    """
    records, n_classes = data.records, len(data.classes)
    for number in range(tries):
        row = 0 if number == 0 else int(rng.integers(len(records)))
        if records.ids is None:
            kept = np.arange(len(records)) != row
        else:
            kept = np.array([person != records.ids[row] for person in records.ids])
        yield "added or removed", replace(data, private=records.only(kept))
        stranger, label = data.X_public[int(rng.integers(len(data.X_public)))], int(rng.integers(n_classes))
        X, y = np.concatenate([stranger[None], records.X]), np.concatenate([[label], records.y])
        ids = None if records.ids is None else ["somebody else", *records.ids]
        yield "added or removed", replace(data, private=Records(X.astype(records.X.dtype), y, ids))
        other = records.y.copy()
        other[row] = (other[row] + 1) % n_classes
        moved = records.X.copy()
        moved[row] = stranger
        yield "changed", replace(data, private=Records(moved, other, records.ids))


class _CountNeighbours:
    """Votes in the cells of the first round."""

    def __init__(self, config: Config, data: Dataset, key: bytes) -> None:
        assert config.neighbours is not None
        self._election, self._votes, self._key = first_cell_vote(config, data), config.neighbours.votes_per_record, key
        self._mechanism, self._delta = config.build_rounds()[0].mechanism, config.budget.delta

    def __call__(self, data: Dataset) -> NDArray[np.int64]:
        electorate = LocalVoteCounter(data.records, self._key)
        return sum_votes(electorate.count(self._election), electorate.sources)

    def moved(self, difference: NDArray[np.int64], change: str) -> tuple[float, float]:
        return float(np.abs(difference).sum()), float(self._votes * (2 if change == "changed" else 1))

    def costs(self, moved: float, change: str) -> tuple[float, float]:
        def cost(counts: int) -> float:
            return guarantee([Round(1, self._mechanism)], counts, changed=False).epsilon(self._delta) if counts else 0.0

        return cost(int(moved)), cost(self._votes * (2 if change == "changed" else 1))


class _CountTeachers:
    """Votes on the examples that are asked about, as an aggregator has collected them."""

    def __init__(self, config: Config, data: Dataset, key: bytes, config_dir: Path) -> None:
        self._config, self._config_dir, self._key = config, config_dir, key
        self._mechanism: Mechanism = config.build_mechanism()
        self._queries = data.X_public[: min(config.budget.max_queries, _MAX_QUERIES)]
        self._per_person = data.records.ids is not None

    def __call__(self, data: Dataset) -> NDArray[np.int64]:
        teaching = Teaching.of(self._config, len(data.classes), self._config_dir)
        with scratch_folder() as folder:
            aggregator = Aggregator(self._mechanism, _no_ledger, folder, self._key, self._config.n_teachers)
            with Ensemble(teaching, split_records(self._config, data, self._key)) as ensemble:
                ensemble.train()
                ensemble.vote(lambda voters: aggregator.collect(self._queries, voters))
            return np.array([aggregator._votes[query] for query in query_ids(self._queries, self._key)])

    def moved(self, difference: NDArray[np.int64], change: str) -> tuple[float, float]:
        """A record without an id that changes is another one: one goes and one comes."""
        steps = 2 if change == "changed" and not self._per_person else 1
        return float(np.abs(difference).sum(axis=1).max() / 2), float(steps * self._mechanism.votes_per_record)

    def costs(self, moved: float, change: str) -> tuple[float, float]:
        delta = self._config.budget.delta
        claimed = self._mechanism.worst_case(1, 1).epsilon(delta)
        if not moved or self._mechanism.priced_as_stream:
            return 0.0, claimed
        votes = int(np.ceil(moved / (2 if change == "changed" and not self._per_person else 1)))
        return worst_pair(self._mechanism, self._config.n_teachers, delta, moved=votes).epsilon, claimed


def _no_ledger() -> Ledger:
    raise AssertionError("nothing is released here")
