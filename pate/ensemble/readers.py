"""Readers: actors that read private shards where they are, so that records do not pass the driver.

Each shard is read once, by one reader; a worker asks all readers for the records of its own parts. The key that says
which part a record belongs to stays with the readers, which run nothing but this package, and never goes to the
workers, which run people's own classes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.boundary import guarded_class, kind_of
from pate.config import Config
from pate.data import partition
from pate.data.dataset import Dataset, Shards
from pate.data.records import no_valid_id
from pate.data.shards import Block, ShardReader, Split, Summary, digest_of
from pate.ensemble.worker import Records
from pate.errors import DataError, PateError, RunError
from pate.runs.files import LEFT_OUT
from pate.runs.run import Run

_MOST_READERS = 64


def must_be(same: bool, directory: Run) -> None:
    """Raise DataError unless `same`: a run must go on with the data it began with."""
    if not same:
        raise DataError(f"{directory.place}: was begun with other data; start a new run with another {{out}}", out=None)


def split_of(config: Config) -> Split:
    """How the configured mechanism assigns records to parts."""
    return config.build_mechanism().split(config.n_teachers)


def parts_of(config: Config, data: Dataset, key: bytes) -> list[NDArray[np.int64]]:
    """Row numbers of each teacher's records."""
    return partition.parts_of(data.records.X, data.records.y, data.records.ids, key, split_of(config))


@guarded_class("a reader")
class _Reader(ShardReader):
    """The reader as an actor: guarded, since Ray keeps the text of what an actor raises."""


@dataclass(frozen=True)
class RemotePart:
    """The records of one part, to be fetched from the readers by the worker that needs them."""

    readers: tuple[Any, ...]
    part: int

    def fetch(self) -> Records:
        """All records of the part, in the same order whoever reads them."""
        import ray
        from ray.exceptions import RayError

        try:
            blocks: list[Block] = ray.get([reader.part.remote(self.part) for reader in self.readers])
        except RayError as error:
            text = f"private shards cannot be read any more ({_why(error)}); go on with {{resume}}"
            raise RunError(text, resume=True) from None
        return Block.merged(blocks)


class Readers:
    """All readers of a run, spread over the nodes. One that dies with its node reads its shards again elsewhere."""

    def __init__(self, shards: Shards, key: bytes, split: Split | None) -> None:
        import ray
        from ray.exceptions import RayError

        n = int(min(len(shards.paths), max(1, ray.cluster_resources().get("CPU", 1)), _MOST_READERS))
        actor = ray.remote(_Reader).options(
            num_cpus=0, scheduling_strategy="SPREAD", max_restarts=-1, max_task_retries=-1
        )
        split = Split(n) if split is None else split
        self.actors = tuple(actor.remote(shards.paths[i::n], shards.format, key, split) for i in range(n))
        try:
            found: list[Summary | str] = ray.get([reader.load.remote() for reader in self.actors])
        except RayError as error:
            raise RunError(f"private shards could not be read ({_why(error)}); is there enough memory?") from None
        for answer in found:
            if isinstance(answer, str):
                raise DataError(answer)
        summaries = [answer for answer in found if isinstance(answer, Summary)]
        self.records, self.digest = sum(summary.records for summary in summaries), digest_of(summaries)
        self.left_out = sum(summary.left_out for summary in summaries)
        if self.left_out and not self.records and not shards.format.keep_missing:
            raise no_valid_id(shards.format.id_type)

    def part(self, number: int) -> RemotePart:
        """The records of a part, not fetched yet."""
        return RemotePart(self.actors, number)

    def close(self) -> None:
        """End all readers."""
        import ray

        for reader in self.actors:
            ray.kill(reader)


def _why(error: Exception) -> str:
    """The reader's own message, where there is one, else the kind of error."""
    cause = getattr(error, "cause", None)
    return str(cause) if isinstance(cause, PateError) else kind_of(error)


@dataclass(frozen=True)
class PrivateRecords:
    """How many private records there are, those of each part, and how to close what holds them."""

    n_records: int
    n_parts: int
    of_part: Callable[[int], Any]
    close: Callable[[], None] = lambda: None
    left_out: int = 0


def split_records(config: Config, data: Dataset, key: bytes) -> PrivateRecords:
    """Records by part, of those that this process has read."""
    rows, X, y = parts_of(config, data, key), data.records.X, data.records.y
    return PrivateRecords(
        len(X), config.n_teachers, lambda part: (X[rows[part]], y[rows[part]]), left_out=data.records.left_out
    )


def readers_of(shards: Shards, directory: Run, split: Split | None = None) -> Readers:
    """Readers that have read all shards, which must be those the run began with.

    Without a `split` there is a part for each reader, for persons who are brought together from all shards.
    """
    readers = Readers(shards, directory.key, split)
    must_be(directory.same_as_before("shards_digest", readers.digest), directory)
    return readers


def private_records(config: Config, data: Dataset, directory: Run) -> PrivateRecords:
    """Records by part: from here where the driver has read them, else from readers on the cluster.

    How many were left out because they have no valid id is noted under `private/`, for the operator.
    """
    if not isinstance(data.private, Shards):
        found = split_records(config, data, directory.key)
    else:
        readers = readers_of(data.private, directory, split_of(config))
        found = PrivateRecords(readers.records, config.n_teachers, readers.part, readers.close, readers.left_out)
    if found.left_out:
        directory.note(LEFT_OUT, {"records_without_valid_id": found.left_out})
    return found
