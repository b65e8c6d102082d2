"""Private records in several files (csv, npz or parquet shards), read by the driver or by the cluster itself.

A record's part is a keyed hash of its own identity, so who reads it, and with which others, changes nothing: parts,
teachers and votes are the same. Columns and classes come from the config and the public file, never from a shard.
"""

from __future__ import annotations

import glob
import math
import os
import socket
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.data._formats import Problems, Wanted
from pate.data._records import Format, records_of, tables_in
from pate.data.partition import contents, forgetting_marks, identities, keyed_digest, parts_of, ranks
from pate.data.private import Records, Shards
from pate.errors import DataError, RunError
from pate.mechanisms.base import Split
from pate.storage import is_url

_DIGEST_BITS = 128
_CELLS_AT_ONCE, _MAX_ROWS_AT_ONCE = 1 << 21, 1 << 16


@dataclass(frozen=True)
class Summary:
    """What a reader found: private, as the records are. The digest is the same for any order and split into shards."""

    records: int = 0
    digest: int = 0
    left_out: int = 0

    def __add__(self, other: Summary) -> Summary:
        digest = (self.digest + other.digest) % 2**_DIGEST_BITS
        return Summary(self.records + other.records, digest, self.left_out + other.left_out)

    @property
    def text(self) -> str:
        """The digest: equal for the same records, however they are spread over shards and readers."""
        return f"{self.digest:032x}"


class ShardReader:
    """Reads some shards once, a batch at a time, and hands out their records by part from its own disk.

    The disk is that of `folder`, else the machine's usual place for temporary files. What was read at once is a run
    there, sorted by part; in memory are only the places where the parts of each run begin.
    `pate.voters._readers` makes actors of it.
    """

    def __init__(
        self, shards: Shards, key: bytes, split: Split, folder: Path | None = None, some: slice = slice(None)
    ) -> None:
        self._paths, self._format, self._forgotten = shards.paths[some], shards.format, frozenset(shards.forgotten)
        self._key, self._split, self._folder = key, split, folder
        persons = [("person", "S16")] if self._format.id is not None else []
        self._layout = np.dtype([("rank", "S16"), *persons, ("y", "<i8"), ("X", "<f4", self._format.shape)])
        self._file: Any = None
        self._runs: list[NDArray[np.int64]] = []
        self._written = 0

    def load(self) -> Summary | str:
        """Read everything; what is wrong with a shard comes back as text, so that no log quotes it."""
        self.close()
        found, problems = Summary(), Problems()
        try:
            try:
                self._file = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115
            except OSError as error:
                raise self._no_room(error) from None
            for path in self._paths:
                with problems.gathered():
                    for records in _records_in(path, self._format):
                        kept = self._without_forgotten(records)
                        found += summary_of(kept, self._key)
                        self._write(kept)
            problems.raise_all()
        except BaseException as error:  # half of it must never be taken for all
            self.close()
            if isinstance(error, DataError | RunError):
                return str(error)
            raise
        return found

    def part(self, number: int) -> Block:
        """This reader's records of a part."""
        self._load_again_elsewhere()
        return self._read([(int(run[number]), int(run[number + 1])) for run in self._runs])

    def stretch(self, begin: int) -> tuple[NDArray, NDArray[np.int64]]:
        """Some of this reader's records, from the one numbered `begin` on; none where there are no more."""
        self._load_again_elsewhere()
        block = self._read([(begin, min(begin + _rows_at_once(self._format), self._written))])
        return block.X, block.y

    def close(self) -> None:
        """Give the disk back."""
        if self._file is not None:
            self._file.close()
        self._file, self._runs, self._written = None, [], 0

    def _load_again_elsewhere(self) -> None:
        if self._file is None and isinstance(self.load(), str):
            raise DataError(f"private shards cannot be read again on {socket.gethostname()}")

    def _without_forgotten(self, records: Records) -> Records:
        if not self._forgotten:
            return records
        marks = forgetting_marks(identities(records.X, records.y, records.ids), self._key)
        return records.only(np.array([mark not in self._forgotten for mark in marks], dtype=bool))

    def _write(self, records: Records) -> None:
        """Write the records by part, each with its rank and, where there are ids, a keyed hash of whose it is."""
        X, y, ids = records.X, records.y, records.ids
        rows = np.empty(len(y), self._layout)
        rows["rank"], rows["y"], rows["X"] = ranks(X, y, self._key), y, X
        if ids is not None:
            rows["person"] = [keyed_digest(self._key, b"person", name) for name in identities(X, y, ids)]
        parts = parts_of(X, y, ids, self._key, self._split)
        ends = self._written + np.cumsum([0, *(len(part) for part in parts)])
        content = memoryview(rows[np.concatenate(parts)].tobytes())
        try:
            while content:
                content = content[self._file.write(content) :]
        except OSError as error:
            raise self._no_room(error) from None
        self._runs.append(ends)
        self._written = int(ends[-1])

    def _read(self, spans: Sequence[tuple[int, int]]) -> Block:
        each, descriptor = self._layout.itemsize, self._file.fileno()
        content = b"".join(
            os.pread(descriptor, (end - begin) * each, begin * each) for begin, end in spans if end > begin
        )
        records = np.frombuffer(content, self._layout)
        if len(records) != sum(max(0, end - begin) for begin, end in spans):
            raise RunError(f"{self._place}: what was written there cannot be read again on {socket.gethostname()}")
        persons = records["person"].copy() if self._format.id is not None else None
        return Block(records["X"].copy(), records["y"].copy(), records["rank"].copy(), persons)

    @property
    def _place(self) -> str:
        return str(self._folder or tempfile.gettempdir())

    def _no_room(self, error: OSError) -> RunError:
        return RunError(
            f"{self._place}: private records cannot be written there on {socket.gethostname()} "
            f"({error.strerror or type(error).__name__}); make room, or set TMPDIR to another folder on that machine"
        )


def summary_of(records: Records, key: bytes) -> Summary:
    """What a reader would find if it had read just these."""
    X, y, ids = records.X, records.y, records.ids
    whole = contents(X, y)
    if ids is not None:
        whole = [a + b for a, b in zip(identities(X, y, ids), whole, strict=True)]
    digests = (keyed_digest(key, b"data", record) for record in whole)
    digest = sum(int.from_bytes(d, "little") for d in digests) % 2**_DIGEST_BITS
    return Summary(len(records), digest, records.left_out)


def read_all(paths: Sequence[str], format: Format) -> Records:
    """The records of some shards, in the order given. Every mistake names its shard."""
    found: list[Records] = []
    problems = Problems()
    for path in paths:
        with problems.gathered():
            found += _records_in(path, format)
    problems.raise_all()
    return Records(
        np.concatenate([np.empty((0, *format.shape), np.float32), *(records.X for records in found)]),
        np.concatenate([np.empty(0, np.int64), *(records.y for records in found)]),
        None if format.id is None else [i for records in found for i in records.ids or ()],
        sum(records.left_out for records in found),
        sum((Counter(records.unlisted) for records in found), Counter()),
    )


def _records_in(path: str, format: Format) -> Iterator[Records]:
    """The records of one shard, a batch at a time; the first batch with a mistake ends it."""
    needed = {} if format.settings.source == "npz" else {"label": format.settings.label, "id": format.id}
    wanted = Wanted(needed, format.settings.ignore, format.features, format.keep_missing)
    for table in tables_in(path, format.settings.source, wanted, format.dialect, _rows_at_once(format)):
        yield records_of(table, format)


def _rows_at_once(format: Format) -> int:
    """How many records are in memory together: a few megabytes of them."""
    cells = _CELLS_AT_ONCE // (4 if format.settings.source == "csv" else 1)  # each of which is a text there
    return max(1, min(_MAX_ROWS_AT_ONCE, cells // math.prod(format.shape)))


def matching(patterns: Sequence[str]) -> list[str]:
    """The files on this machine that patterns match, each at least one."""
    found = {pattern: matching_files(pattern) for pattern in patterns}
    for pattern, paths in found.items():
        if not paths:
            raise DataError(f"{pattern}: no file here matches (on {socket.gethostname()})")
    return [path for paths in found.values() for path in paths]


def named_once(paths: Sequence[str]) -> tuple[str, ...]:
    """The shards, refused if one is there twice."""
    repeated = sorted({path for path in paths if paths.count(path) > 1})
    if repeated:
        raise DataError(f"{repeated[0]}: listed twice; its records would count double")
    return tuple(paths)


def matching_files(pattern: str) -> list[str]:
    """The files here, or at a URL, that a pattern matches."""
    if not is_url(pattern):
        return sorted(glob.glob(pattern))
    import fsspec

    try:
        fs, path = fsspec.url_to_fs(pattern)
        return sorted(fs.unstrip_protocol(name) for name in fs.glob(path))
    except Exception as error:
        raise DataError(f"{pattern}: cannot be listed ({str(error) or type(error).__name__})") from None


class Block:
    """Records of one part that one reader has, with the rank of each and, where there are ids, whose it is.

    A person is a keyed hash of the id: who counts has no need of the id itself.
    """

    def __init__(
        self, X: NDArray, y: NDArray[np.int64], ranks: NDArray[np.bytes_], persons: NDArray[np.bytes_] | None = None
    ) -> None:
        self.X, self.y, self.ranks, self.persons = X, y, ranks, persons

    @staticmethod
    def merged(blocks: Sequence[Block]) -> tuple[NDArray, NDArray[np.int64]]:
        """The whole part, in the order it would have if one reader had read everything."""
        order = np.argsort(np.concatenate([block.ranks for block in blocks]), kind="stable")
        X, y = np.concatenate([block.X for block in blocks]), np.concatenate([block.y for block in blocks])
        return X[order], y[order]
