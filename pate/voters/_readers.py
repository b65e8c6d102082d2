"""Readers: actors that read private shards where they are, so that records do not pass the driver.

Each shard is read once, by one reader, a batch at a time; records wait by part on the reader's disk, and a worker asks
all readers for those of its own parts. The key that says which part a record belongs to stays with the readers, which
run nothing but this package, and never goes to the workers, which run people's own classes.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from pate.boundary._guard import error_kind, guarded, guarded_class, silence
from pate.config import RaySettings
from pate.data._formats import NO_FILE
from pate.data._records import no_valid_id
from pate.data._shards import ShardReader, Summary, matching, named_once
from pate.data.private import Shards
from pate.errors import DataError, PateError, RunError
from pate.mechanisms.base import Split
from pate.runs._files import KEY, RECORDS_DIGEST, SPILL
from pate.runs.run import Run
from pate.storage._files import read_key

_MAX_READERS = 64
_MAX_RESTARTS = 3
_USUAL = RaySettings()


def require_same_data(same: bool, directory: Run) -> None:
    """Raise DataError unless `same`: a run must go on with the data it began with."""
    if not same:
        raise DataError(f"{directory.place}: was begun with other data; start a new run with another {{out}}", out=None)


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
            raise no_valid_id(shards.format.settings.id_type)

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
            ray.get(ray.remote(lambda: None).options(num_cpus=1).remote(), timeout=settings.worker_timeout_seconds)
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
