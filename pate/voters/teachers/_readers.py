"""Readers: actors that read private shards where they are, so that records do not pass the driver.

Each shard is read once, by one reader, a batch at a time; records wait by part on the reader's disk, and a worker asks
all readers for those of its own parts. The key that says which part a record belongs to stays with the readers, which
run nothing but this package, and never goes to the workers, which run people's own classes.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.boundary._guard import error_kind, guarded, guarded_class, silence
from pate.components._registry import about
from pate.config import RaySettings
from pate.data import partition
from pate.data._formats import NO_FILE
from pate.data._records import no_valid_id
from pate.data._shards import Block, ShardReader, Summary, matching, named_once
from pate.data.private import PrivateData, Shards, records_of
from pate.data.private import Records as AllRecords
from pate.errors import ConfigError, DataError, PateError, RunError
from pate.mechanisms.base import Split
from pate.runs._files import KEY, LEFT_OUT, RECORDS_DIGEST, SPILL
from pate.runs.run import Run
from pate.storage._files import read_key
from pate.teachers._part import constant, pack
from pate.voters.teachers._settings import TeachersConfig
from pate.voters.teachers._worker import Records

_RECORDS_TO_LEARN_FROM, _MIN_RECORDS = 10, 5
_MAX_READERS = 64
_MAX_RESTARTS = 3
_USUAL = RaySettings()


def require_same_data(same: bool, directory: Run) -> None:
    """Raise DataError unless `same`: a run must go on with the data it began with."""
    if not same:
        raise DataError(f"{directory.place}: was begun with other data; start a new run with another {{out}}", out=None)


def split_of(config: TeachersConfig) -> Split:
    """How the configured mechanism assigns records to parts."""
    return config.build_mechanism().split(config.n_teachers)


def parts_of(config: TeachersConfig, records: AllRecords, key: bytes) -> list[NDArray[np.int64]]:
    """Row numbers of each teacher's records."""
    return partition.parts_of(records.X, records.y, records.ids, key, split_of(config))


def check_part_sizes(
    config: TeachersConfig, n_records: int, n_classes: int, force: bool, notify: Callable[[str], object]
) -> None:
    """Refuse parts that are too small. How many records there are is for those whom `notify` informs, not the error."""
    each = split_of(config).share * n_records
    if each < _MIN_RECORDS and not force:
        enough = n_records / 4 / _MIN_RECORDS
        for_whom = f"{about(enough)} teachers would have enough" if enough >= 2 else "too few for any two teachers"
        notify(f"{about(each)} private records per teacher; {for_whom}")
        raise ConfigError(
            f"n_teachers = {config.n_teachers}: parts of the private records would be too small to learn from; use "
            "fewer teachers, or add {force}",
            force=True,
        )
    if each < max(_RECORDS_TO_LEARN_FROM, n_classes):
        notify(f"parts of {about(each, 2)} records are small for {n_classes} classes")


@guarded_class("a reader")
class _Reader(ShardReader):
    """The reader as an actor: guarded and unheard, since Ray keeps what an actor raises and prints."""

    def __init__(self, shards: Shards, key: bytes, split: Split, private: Path | None, some: slice) -> None:
        silence()
        super().__init__(shards, key, split, _shared(private, key), some)

    def ready(self) -> bool:
        """Whether it has been started."""
        return True


def _shared(private: Path | None, key: bytes) -> Path | None:
    """The folder for records below a run's `private`, if that is the same on this machine; its key tells."""
    if private is None:
        return None
    with suppress(OSError, RunError):
        if read_key(private / KEY) == key:
            folder = private / SPILL
            folder.mkdir(mode=0o700, exist_ok=True)
            return folder
    return None


@dataclass(frozen=True)
class RemotePart:
    """The records of one part, to be fetched from the readers by the worker that needs them."""

    readers: tuple[Any, ...]
    part: int

    def fetch(self) -> Records:
        """All records of the part, in the same order whoever reads them."""
        return Block.merged(answers(reader.part.remote(self.part) for reader in self.readers))

    def stand_in(self, n_classes: int) -> bytes:
        """A constant in place of the part's teacher; no record comes to this process."""
        import ray

        payload: bytes
        (payload,) = answers([ray.remote(_stand_in).options(num_cpus=0).remote(self, n_classes)])
        return payload


@guarded("a reader")
def _stand_in(part: RemotePart, n_classes: int) -> bytes:
    silence()
    _, labels = part.fetch()
    return pack(constant(labels, n_classes))


def answers(calls: Iterable[Any]) -> list[Any]:
    """What readers answer; RunError where they no longer can."""
    import ray
    from ray.exceptions import RayError

    try:
        found: list[Any] = ray.get(list(calls))
    except RayError as error:
        text = f"private shards cannot be read any more ({words_of(error)}); go on with {{resume}}"
        raise RunError(text, resume=True) from None
    return found


class Readers:
    """All readers of a run, spread over the nodes that compute.

    One that dies, with its node or of memory, reads its shards again, elsewhere if need be; but only so many times.
    Records lie on the disk of the run's folder `private` where a reader's machine shares that, else on its own.
    """

    def __init__(
        self, shards: Shards, key: bytes, split: Split, private: Path | None = None, settings: RaySettings = _USUAL
    ) -> None:
        import ray

        places = _places(settings)
        paths = named_once([*shards.paths, *_elsewhere(shards.patterns, places[0])])
        cpus = int(ray.cluster_resources().get("CPU", 1))
        n = min(len(paths), cpus, _MAX_READERS, len(places))
        options = {"memory": settings.memory_per_reader, "max_restarts": _MAX_RESTARTS, "max_task_retries": -1}
        named = replace(shards, paths=paths, patterns=())
        self._private = private
        self.actors = tuple(
            _on_node(_Reader, node, options).remote(named, key, split, private, slice(i, None, n))
            for i, node in enumerate(places[:n])
        )
        try:
            found = self._loaded(settings)
        except BaseException:
            self.close()
            raise
        self.records, self.digest, self.left_out = found.records, found.text, found.left_out
        if self.left_out and not self.records and not shards.format.keep_missing:
            self.close()
            raise no_valid_id(shards.format.id_type)

    def _loaded(self, settings: RaySettings) -> Summary:
        import ray
        from ray.exceptions import RayError

        try:
            starting = [reader.ready.remote() for reader in self.actors]
            if ray.wait(starting, num_returns=len(starting), timeout=settings.worker_timeout_seconds)[1]:
                raise RunError(_no_room(settings.memory_per_reader))
            found: list[Summary | str] = ray.get([reader.load.remote() for reader in self.actors])
        except RayError as error:
            raise RunError(f"private shards could not be read ({words_of(error)})") from None
        for answer in found:
            if isinstance(answer, str):
                hint = "; say data.read_by: driver if only the driver's machine has it" if NO_FILE in answer else ""
                raise DataError(answer + hint)
        return sum((answer for answer in found if isinstance(answer, Summary)), Summary())

    def part(self, number: int) -> RemotePart:
        """The records of a part, not fetched yet."""
        return RemotePart(self.actors, number)

    def close(self) -> None:
        """End all readers, and with them what they keep on disk."""
        import ray

        for reader in self.actors:
            ray.kill(reader)
        if self._private is not None:
            shutil.rmtree(self._private / SPILL, ignore_errors=True)


def _places(settings: RaySettings) -> list[str]:
    """A node for each reader that there is memory for, in turn. An empty cluster that can grow is asked for a node.

    Nodes without CPUs are not for work: the head of a large cluster.
    """
    import ray
    from ray.exceptions import GetTimeoutError

    def room() -> list[str]:
        nodes = [(node["NodeID"], node["Resources"]) for node in ray.nodes() if node["Alive"]]
        fits = {
            id: int(has.get("memory", 0) // settings.memory_per_reader) for id, has in nodes if has.get("CPU", 0) >= 1
        }
        return [id for _, id in sorted((i, id) for id, n in fits.items() for i in range(min(n, _MAX_READERS)))]

    if not any(node["Alive"] and node["Resources"].get("CPU", 0) >= 1 for node in ray.nodes()):
        try:
            ray.get(ray.remote(_nothing).options(num_cpus=1).remote(), timeout=settings.worker_timeout_seconds)
        except GetTimeoutError:
            raise RunError(_no_room(settings.memory_per_reader)) from None
    found = room()
    if not found:
        raise RunError(_no_room(settings.memory_per_reader))
    return found


def _on_node(what: Any, node: str, options: Mapping[str, Any] | None = None) -> Any:
    """A task or actor that takes no CPU, on a node or, if that is gone, elsewhere."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    there = NodeAffinitySchedulingStrategy(node, soft=True)
    return ray.remote(what).options(num_cpus=0, scheduling_strategy=there, **options or {})


def _nothing() -> None:
    """What a node that computes can do."""


def _no_room(memory: int) -> str:
    return (
        f"no node has room for a reader of private shards, which is given ray.memory_per_reader = {memory / 1e9:g}GB; "
        "lower that, or give the cluster more memory"
    )


def _elsewhere(patterns: Sequence[str], node: str) -> list[str]:
    """The files that patterns match on a node, where this machine sees none."""
    if not patterns:
        return []
    task = _on_node(_matching, node)
    (found,) = answers([task.remote(patterns)])
    if isinstance(found, str):
        raise DataError(found)
    return list(found)


@guarded("a reader")
def _matching(patterns: Sequence[str]) -> list[str] | str:
    try:
        return matching(patterns)
    except DataError as error:
        return str(error)


def words_of(error: Exception) -> str:
    """The reader's own message, where there is one, else why it is gone or the kind of error."""
    from ray.exceptions import RayActorError

    cause = getattr(error, "cause", None)
    if isinstance(error, RayActorError):
        return (
            f"a reader died {_MAX_RESTARTS + 1} times, and is not tried again; if it was memory, raise "
            "ray.memory_per_reader, so that fewer readers share a node, or write more and smaller shards"
        )
    return str(cause) if isinstance(cause, PateError) else error_kind(error)


@dataclass(frozen=True)
class PrivateRecords:
    """How many private records there are, those of each part, and how to close what holds them."""

    n_records: int
    n_parts: int
    of_part: Callable[[int], Any]
    close: Callable[[], None] = lambda: None
    left_out: int = 0


def split_records(config: TeachersConfig, records: AllRecords, key: bytes) -> PrivateRecords:
    """Records by part, of those that this process has read."""
    rows, X, y = parts_of(config, records, key), records.X, records.y
    return PrivateRecords(
        len(X), config.n_teachers, lambda part: (X[rows[part]], y[rows[part]]), left_out=records.left_out
    )


def readers_of(shards: Shards, directory: Run, split: Split, settings: RaySettings) -> Readers:
    """Readers that have read all shards, which must be those the run began with."""
    shutil.rmtree(directory.spill_folder, ignore_errors=True)  # what a crash left, where even a removed file has a name
    readers = Readers(shards, directory.key, split, directory.private.resolve(), settings)
    try:
        require_same_data(directory.same_as_before(RECORDS_DIGEST, readers.digest), directory)
    except BaseException:
        readers.close()
        raise
    return readers


def private_records(config: TeachersConfig, private: PrivateData, directory: Run) -> PrivateRecords:
    """Records by part: from here where the driver has read them, else from readers on the cluster.

    How many were left out because they have no valid id is noted under `private/`, for the operator.
    """
    if not isinstance(private, Shards):
        found = split_records(config, records_of(private), directory.key)
    else:
        readers = readers_of(private, directory, split_of(config), config.ray)
        found = PrivateRecords(readers.records, config.n_teachers, readers.part, readers.close, readers.left_out)
    if found.left_out:
        directory.note(LEFT_OUT, {"records_without_valid_id": found.left_out})
    return found
