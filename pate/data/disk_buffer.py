"""Private records by part on a reader's own disk: written a batch at a time, read a part at a time.

The file has no name: nobody else can open it, and it is gone with the process that made it, however that ends.
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pate.errors import RunError


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


class Spill:
    """Records of features of one shape, in runs: each is what was added at once, sorted by part.

    In memory are only the places where the parts of each run begin.
    """

    def __init__(self, shape: tuple[int, ...], with_persons: bool, folder: Path | None = None) -> None:
        digest = "S16"
        persons = [("person", digest)] if with_persons else []
        self._layout = np.dtype([("rank", digest), *persons, ("y", "<i8"), ("X", "<f4", shape)])
        self._with_persons = with_persons
        self._folder = Path(tempfile.gettempdir()) if folder is None else folder
        self._runs: list[NDArray[np.int64]] = []
        self._written = 0
        try:
            self._file = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115
        except OSError as error:
            raise self._no_room(error) from None

    def add(self, block: Block, parts: Sequence[NDArray[np.int64]]) -> None:
        """Write the rows of `block` that each part has."""
        records = np.empty(len(block.y), self._layout)
        records["rank"], records["y"], records["X"] = block.ranks, block.y, block.X
        if self._with_persons:
            records["person"] = block.persons
        ends = self._written + np.cumsum([0, *(len(rows) for rows in parts)])
        content = memoryview(records[np.concatenate(parts)].tobytes())
        try:
            while content:
                content = content[self._file.write(content) :]
        except OSError as error:
            raise self._no_room(error) from None
        self._runs.append(ends)
        self._written = int(ends[-1])

    def part(self, number: int) -> Block:
        """All records of a part."""
        return self._block([(int(run[number]), int(run[number + 1])) for run in self._runs])

    def stretch(self, begin: int, size: int) -> Block:
        """The records from the one numbered `begin` on, `size` of them or what is left, in the order of the file."""
        return self._block([(begin, min(begin + size, self._written))])

    def close(self) -> None:
        """Give the disk back."""
        self._file.close()

    def _block(self, spans: Sequence[tuple[int, int]]) -> Block:
        each, descriptor = self._layout.itemsize, self._file.fileno()
        content = b"".join(
            os.pread(descriptor, (end - begin) * each, begin * each) for begin, end in spans if end > begin
        )
        records = np.frombuffer(content, self._layout)
        if len(records) != sum(max(0, end - begin) for begin, end in spans):
            raise RunError(f"{self._folder}: what was written there cannot be read again on {socket.gethostname()}")
        persons = records["person"].copy() if self._with_persons else None
        return Block(records["X"].copy(), records["y"].copy(), records["rank"].copy(), persons)

    def _no_room(self, error: OSError) -> RunError:
        return RunError(
            f"{self._folder}: private records cannot be written there on {socket.gethostname()} "
            f"({error.strerror or type(error).__name__}); make room, or set TMPDIR to another folder on that machine"
        )
