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
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pate.audit._interface import fewer_records
from pate.audit._target import Subject
from pate.audit.results import Attack, AttackResult, NotApplicable, Options
from pate.components._registry import counted
from pate.config import Config
from pate.data.private import Records
from pate.data.public import PublicData
from pate.storage._files import KEY_BYTES

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
    what: str
    """What was counted: votes of a query, or counts of a round."""

    @property
    def refutes(self) -> bool:
        return self.moved > self.allowed


class ChangedRecord(Attack):
    """One finding for a run of PATE."""

    name = title = "sensitivity"
    explanation = (
        "Changes one record, counts all votes again by the real program, and looks whether more moved than the proof "
        "allows."
    )

    def run(self, subject: Subject, options: Options) -> Iterable[AttackResult]:
        config = subject.config
        if not isinstance(config, Config) or subject.kind != "student":
            raise NotApplicable("sensitivity: is about the votes of PATE")
        tries = _FEW_TRIES if options.quick else _TRIES
        with options.console.working("counting votes again with one record changed"):
            found = audit_sensitivity(
                config, subject.data, subject.records, tries=tries, config_dir=subject.config_dir, seed=options.seed
            )
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
    count = voters_of(with_learned_features(config, public.X_public)).vote_counter(
        public, config_dir, secrets.token_bytes(KEY_BYTES)
    )
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
    n_classes = public.n_classes
    for number in range(tries):
        row = 0 if number == 0 else int(rng.integers(len(records)))
        if records.ids is None:
            kept = np.arange(len(records)) != row
        else:
            kept = np.array([person != records.ids[row] for person in records.ids])
        yield "added or removed", records.only(kept)
        stranger, label = public.X_public[int(rng.integers(len(public.X_public)))], int(rng.integers(n_classes))
        X, y = np.concatenate([stranger[None], records.X]), np.concatenate([[label], records.y])
        ids = None if records.ids is None else ["somebody else", *records.ids]
        yield "added or removed", Records(X.astype(records.X.dtype), y, ids)
        other = records.y.copy()
        other[row] = (other[row] + 1) % n_classes
        moved = records.X.copy()
        moved[row] = stranger
        yield "changed", Records(moved, other, records.ids)
