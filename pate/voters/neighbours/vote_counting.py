"""Who counts: this process where it has read the records, else readers on the cluster, each its own shards.

Workers send counts, named by what they are the counts of, and never a record's own vote. Where a person may have
records in several shards, all of them are first brought together by a keyed hash of the id: a person spread over every
shard then has as many votes as anybody else.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.boundary.counts import PartialVotes
from pate.boundary.guard import Failed, error_kind, guarded, silence
from pate.config import RaySettings
from pate.data.disk_buffer import Block
from pate.data.partition import ranks
from pate.data.private import PrivateData, Records, Shards
from pate.errors import RunError
from pate.mechanisms.base import Split
from pate.runs.console import Console
from pate.runs.files import LEFT_OUT
from pate.runs.run import Run
from pate.voters.neighbours.cells import CellVote

HERE = "here"
PARTS_OF_PERSONS = 128
"""Persons are brought together in so many parts, of which whoever counts has one in memory."""


@dataclass(frozen=True)
class LocalVoteCounter:
    """Records that this process has read."""

    records: Records
    key: bytes

    @property
    def sources(self) -> tuple[str, ...]:
        return (HERE,)

    def count(self, cell_vote: CellVote) -> list[PartialVotes]:
        """Everybody's votes."""
        X, y, ids = self.records.X, self.records.y, self.records.ids
        counts = cell_vote.count(X, y) if ids is None else cell_vote.count_persons(X, y, ids, ranks(X, y, self.key))
        return [PartialVotes(self.sources, counts)]


@dataclass(frozen=True)
class RemoteVoteCounter:
    """Records that readers have read, where they are.

    Counting is a task beside each reader, which runs what the config names for features and has no key.
    """

    readers: tuple[Any, ...]
    per_person: bool

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(f"{'persons' if self.per_person else 'reader'} {i}" for i in range(len(self.readers)))

    def count(self, cell_vote: CellVote) -> list[PartialVotes]:
        """Everybody's votes: of each reader's records, or, by person, of as many shares of the persons."""
        import ray
        from ray.exceptions import RayError

        task = ray.remote(_count_persons if self.per_person else _count_records).options(num_cpus=1, max_retries=3)
        shared = ray.put(cell_vote)
        pending = [
            task.remote(shared, self.readers, i) if self.per_person else task.remote(shared, reader)
            for i, reader in enumerate(self.readers)
        ]
        try:
            counted: list[NDArray[np.int64]] = ray.get(pending)
        except RayError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, RunError) and not isinstance(cause, Failed):
                raise cause from None
            text = f"the votes could not be counted ({error_kind(error)}); go on with {{resume}}"
            raise RunError(text, resume=True) from None
        return [PartialVotes((name,), counts) for name, counts in zip(self.sources, counted, strict=True)]


@guarded("counting votes")
def _count_records(cell_vote: CellVote, reader: Any) -> NDArray[np.int64]:
    """Count the votes of one reader's records, a stretch at a time, so that memory does not grow with them."""
    from pate.voters.teachers.readers import answers

    silence()
    total = np.zeros((len(cell_vote.cells), cell_vote.n_classes), dtype=np.int64)
    begin = 0
    while True:
        ((X, y),) = answers([reader.stretch.remote(begin)])
        if len(X) == 0:
            return total
        total += cell_vote.count(X, y)
        begin += len(X)


@guarded("counting votes")
def _count_persons(cell_vote: CellVote, readers: Sequence[Any], share: int) -> NDArray[np.int64]:
    """Count the votes of a share of the persons, wherever their records were read, one part after the other."""
    from pate.voters.teachers.readers import answers

    silence()
    total = np.zeros((len(cell_vote.cells), cell_vote.n_classes), dtype=np.int64)
    for part in range(share, PARTS_OF_PERSONS, len(readers)):
        blocks: list[Block] = answers(reader.part.remote(part) for reader in readers)
        X, y, persons, ranks = (
            np.concatenate([getattr(block, name) for block in blocks]) for name in ("X", "y", "persons", "ranks")
        )
        total += cell_vote.count_persons(X, y, persons.tolist(), ranks.tolist())
    return total


def report_silent_records(private: PrivateData, n_classes: int, run: Run, console: Console) -> None:
    """For the operator alone, before anything is paid for: how many records cast no vote, and why. It stops nothing."""
    if not isinstance(private, Records):
        return
    without_id = private.left_out
    unusable = int((~private.usable(n_classes)).sum())
    if not without_id + unusable:
        return
    run.note(LEFT_OUT, {"records_without_valid_id": without_id, "records_without_label_or_numbers": unusable})
    total = len(private) + without_id
    silent = f"{without_id + unusable} of {total} private records cast no vote"
    console.info_private(f"{silent}: {without_id} have no valid id, {unusable} no label or no numbers")
    if without_id + unusable == total:
        console.info_private(
            "labels would be noise alone: stop, and see data.id, data.id_type, data.label and data.classes"
        )


def open_vote_counter(
    private: PrivateData, per_person: bool, run: Run, until_end: ExitStack, settings: RaySettings
) -> VoteCounter:
    """The private records of a run: here, or with readers on the cluster, which end with `until_end`."""
    if isinstance(private, Records):
        return LocalVoteCounter(private, run.key)
    from pate.voters.teachers.readers import readers_of

    assert isinstance(private, Shards)
    readers = readers_of(private, run, Split(PARTS_OF_PERSONS), settings)
    until_end.callback(readers.close)
    return RemoteVoteCounter(readers.actors, per_person)


VoteCounter = LocalVoteCounter | RemoteVoteCounter
"""Who counts the votes, here or where the records are."""
