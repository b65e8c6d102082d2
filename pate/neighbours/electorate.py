"""Who counts: this process where it has read the records, else readers on the cluster, each its own shards.

Workers send counts, named by what they are the counts of, and never a record's own vote. Where a person may have
records in several shards, all of them are first brought to one reader by a keyed hash of the id: a person spread over
every shard then has as many votes as anybody else.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.boundary import guarded, kind_of, silence
from pate.data.dataset import Dataset, Records, Shards
from pate.data.partition import ranks
from pate.data.shards import Block
from pate.errors import RunError
from pate.neighbours.voting import Election, PartialVotes
from pate.runs.run import Run

HERE = "here"
_AT_ONCE = 1 << 16


@dataclass(frozen=True)
class LocalElectorate:
    """Records that this process has read."""

    records: Records
    key: bytes

    @property
    def sources(self) -> tuple[str, ...]:
        return (HERE,)

    def count(self, election: Election) -> list[PartialVotes]:
        """Everybody's votes."""
        X, y, ids = self.records.X, self.records.y, self.records.ids
        counts = election.count(X, y) if ids is None else election.count_persons(X, y, ids, ranks(X, y, self.key))
        return [PartialVotes(self.sources, counts)]


@dataclass(frozen=True)
class RemoteElectorate:
    """Records that readers have read, where they are.

    Counting is a task beside each reader, which runs what the config names for features and has no key.
    """

    readers: tuple[Any, ...]
    per_person: bool

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(f"{'part' if self.per_person else 'reader'} {i}" for i in range(len(self.readers)))

    def count(self, election: Election) -> list[PartialVotes]:
        """Everybody's votes: of each reader's records, or, by person, of each part of the persons."""
        import ray
        from ray.exceptions import RayError

        task = ray.remote(_count_persons if self.per_person else _count_records).options(num_cpus=1, max_retries=3)
        shared = ray.put(election)
        pending = [
            task.remote(shared, self.readers, i) if self.per_person else task.remote(shared, reader)
            for i, reader in enumerate(self.readers)
        ]
        try:
            counted: list[NDArray[np.int64]] = ray.get(pending)
        except RayError as error:
            text = f"the votes could not be counted ({kind_of(error)}); go on with {{resume}}"
            raise RunError(text, resume=True) from None
        return [PartialVotes((name,), counts) for name, counts in zip(self.sources, counted, strict=True)]


@guarded("counting votes")
def _count_records(election: Election, reader: Any) -> NDArray[np.int64]:
    """Of one reader, a stretch at a time, so that memory does not grow with the records."""
    import ray

    silence()
    total = np.zeros((len(election.cells), election.n_classes), dtype=np.int64)
    begin = 0
    while True:
        X, y = ray.get(reader.stretch.remote(begin, _AT_ONCE))
        if len(X) == 0:
            return total
        total += election.count(X, y)
        begin += len(X)


@guarded("counting votes")
def _count_persons(election: Election, readers: Sequence[Any], part: int) -> NDArray[np.int64]:
    """Of the persons of one part, wherever their records were read."""
    import ray

    silence()
    blocks: list[Block] = ray.get([reader.part.remote(part) for reader in readers])
    X, y = np.concatenate([block.X for block in blocks]), np.concatenate([block.y for block in blocks])
    ids, ranks = (list(chain.from_iterable(getattr(block, name) for block in blocks)) for name in ("ids", "ranks"))
    return election.count_persons(X, y, ids, ranks)


def electorate_of(data: Dataset, run: Run, until_end: ExitStack) -> Electorate:
    """The private records of a run: here, or with readers on the cluster, which end with `until_end`."""
    if isinstance(data.private, Records):
        return LocalElectorate(data.private, run.key)
    from pate.ensemble.readers import readers_of

    assert isinstance(data.private, Shards)  # stored votes have no records, and the config refuses them
    readers = readers_of(data.private, run)
    until_end.callback(readers.close)
    return RemoteElectorate(readers.actors, data.per_person)


Electorate = LocalElectorate | RemoteElectorate
"""Who counts the votes, here or where the records are."""
