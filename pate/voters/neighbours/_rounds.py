"""The rounds of a run: cells, votes, what is released about them, and the labels that public examples get from it.

Votes are counted in this process where it has read the records, else by readers on the cluster, each its own shards.
Workers send counts, named by what they are the counts of, and never a record's own vote. Where a person may have
records in several shards, all of them are first brought together by a keyed hash of the id: a person spread over every
shard then has as many votes as anybody else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.boundary import PartialCounts
from pate.boundary._guard import Failed, error_kind, guarded, silence
from pate.components._registry import found_file
from pate.config import RaySettings
from pate.data._shards import Block
from pate.data.partition import ranks
from pate.data.private import PrivateData, Records, Shards
from pate.errors import RunError
from pate.mechanisms import Mechanism
from pate.mechanisms._cell_costs import Round
from pate.mechanisms.base import Split
from pate.runs._console import Console
from pate.runs._files import LEFT_OUT
from pate.runs.run import Run
from pate.storage._files import make_folder, write_arrays
from pate.students import _posterior as posterior
from pate.students._posterior import Labelled
from pate.voters.neighbours import NeighbourSettings
from pate.voters.neighbours._cells import Cells, CellVote, FeatureCache, RecordFeatures, Space

Release = Callable[[str, CellVote, Mechanism], NDArray[np.int64]]
"""What a round released, by its name: drawn and paid for once, stored ever after."""

Teach = Callable[[int, Labelled], Any]
"""A student of the labels so far, for the cells of the next round."""


@dataclass(frozen=True)
class Rounds:
    """All rounds of a run. Cells are stored below `folder` before anybody votes in them: a resumed run has the same.

    Public features of examples are kept below `kept`, if that is a folder, and not computed again.
    """

    settings: NeighbourSettings
    rounds: tuple[Round, ...]
    seed: int
    folder: Path
    kept: Path | None = None

    def run(self, X_public: NDArray, n_classes: int, release: Release, teach: Teach) -> Labelled:
        """Labels of public examples after the last round."""
        labelled, student = None, None
        for number, round in enumerate(self.rounds, start=1):
            if round.by_student:
                assert labelled is not None  # the config has no student before the first round
                student = teach(number - 1, labelled)
            features = self.features(student if round.by_student else None)
            seen = features(X_public)
            cells = self.make_cells(number, round, seen)
            name = f"round {number} of {len(self.rounds)}, cells {digest(cells)}"
            cell_vote = CellVote(features, cells, self.settings.votes_per_record, n_classes, X_public[:1])
            released = release(name, cell_vote, round.mechanism)
            labelled = self._labels(round.mechanism, released, cells, seen, n_classes)
        assert labelled is not None  # there is at least one round
        return labelled

    def _labels(
        self, mechanism: Mechanism, released: NDArray[np.int64], cells: Cells, seen: NDArray, n_classes: int
    ) -> Labelled:
        """What a round says about public examples, from what it released alone."""
        if mechanism.releases_counts:
            shares = posterior.shares(released, mechanism.noise)  # type: ignore[attr-defined]
        else:
            shares = np.eye(n_classes)[released[:, 0]]
        least, soft = self.settings.min_vote_share, self.settings.soft
        if self.settings.label == "cells":
            return posterior.label_members(shares, cells.nearest(seen)[:, 0], least, soft)
        found = posterior.label_members(shares, np.arange(len(cells)), least, soft)
        return Labelled(cells.nearest_examples(seen)[found.rows], found.labels, found.weights)

    def features(self, student: Any) -> RecordFeatures | FeatureCache:
        """The features that cells are made in: public ones, cached, or those of a student, which are of one round."""
        steps = [_by_full_path(step.model_dump()) for step in self.settings.features]
        features = RecordFeatures(steps, student)
        return features if student is not None or self.kept is None or not steps else FeatureCache(features, self.kept)

    def make_cells(self, number: int, round: Round, seen: NDArray) -> Cells:
        """The cells of the round of that number, stored before anybody votes in them."""
        path = self.folder / f"cells-{number}.npz"
        if path.exists():
            return Cells.read(path)
        space = Space.of(seen, self.settings.components, self.settings.standardise or round.by_student)
        cells = Cells.of(space, seen, round.cells, self.seed)
        make_folder(self.folder, 0o700)
        write_arrays(path, cells.arrays())
        return cells


def _by_full_path(step: dict[str, Any]) -> dict[str, Any]:
    """The step with its weights by their full path: whoever counts elsewhere does not know the config's folder."""
    weights = step["params"].get("weights")
    file = found_file(weights) if isinstance(weights, str) else None
    return step if file is None else step | {"params": {**step["params"], "weights": str(file)}}


def digest(cells: Cells) -> str:
    """Equal for equal cells."""
    content = blake2b(digest_size=8)
    for name, array in sorted(cells.arrays().items()):
        content.update(name.encode() + np.ascontiguousarray(array).tobytes())
    return content.hexdigest()


PARTS_OF_PERSONS = 128
"""Persons are brought together in so many parts, of which whoever counts has one in memory."""


@dataclass(frozen=True)
class LocalVoteCounter:
    """Records that this process has read."""

    records: Records
    key: bytes

    @property
    def sources(self) -> tuple[str, ...]:
        return ("here",)

    def count(self, cell_vote: CellVote) -> list[PartialCounts]:
        """Everybody's votes."""
        X, y, ids = self.records.X, self.records.y, self.records.ids
        counts = cell_vote.count(X, y) if ids is None else cell_vote.count_persons(X, y, ids, ranks(X, y, self.key))
        return [PartialCounts(self.sources, counts)]


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

    def count(self, cell_vote: CellVote) -> list[PartialCounts]:
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
        return [PartialCounts((name,), counts) for name, counts in zip(self.sources, counted, strict=True)]


@guarded("counting votes")
def _count_records(cell_vote: CellVote, reader: Any) -> NDArray[np.int64]:
    """Count the votes of one reader's records, a stretch at a time, so that memory does not grow with them."""
    from pate.voters._readers import answers

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
    from pate.voters._readers import answers

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
    from pate.voters._readers import readers_of

    assert isinstance(private, Shards)
    readers = readers_of(private, run, Split(PARTS_OF_PERSONS), settings)
    until_end.callback(readers.close)
    return RemoteVoteCounter(readers.actors, per_person)


VoteCounter = LocalVoteCounter | RemoteVoteCounter
"""Who counts the votes, here or where the records are."""
