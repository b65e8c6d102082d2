"""Who counts changes nothing: here, or readers on a cluster, with persons spread over all shards."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pate.boundary import sum_counts
from pate.data._settings import NpzData
from pate.data._sources import load
from pate.data.private import Records, Shards, is_per_person
from pate.mechanisms.base import Split
from pate.voters._readers import Readers
from pate.voters.neighbours._cells import Cells, CellVote, RecordFeatures, Space
from pate.voters.neighbours._rounds import PARTS_OF_PERSONS, LocalVoteCounter, RemoteVoteCounter

KEY = b"e" * 32


def write(folder: Path, ids: bool) -> NpzData:
    """Four shards; person p has a record in every one."""
    rng = np.random.default_rng(0)
    for number in range(4):
        arrays = {"X": rng.normal(size=(50, 3)), "y": rng.integers(0, 2, size=50)}
        if ids:
            arrays["id"] = np.array([f"p{i}" for i in range(50)])
        np.savez(folder / f"shard-{number}.npz", **arrays)
    np.savez(folder / "public.npz", X=rng.normal(size=(30, 3)))
    return NpzData(source="npz", private="shard-*.npz", public="public.npz", classes=(0, 1), ids=ids, read_by="workers")


@pytest.mark.usefixtures("local_ray")
@pytest.mark.parametrize("ids", [False, True], ids=["records", "persons"])
def test_readers_count_what_one_process_counts(tmp_path: Path, ids: bool) -> None:
    settings = write(tmp_path, ids)
    public, here = load(settings, None, tmp_path, by_workers=False)
    _, there = load(settings, None, tmp_path, by_workers=True)
    assert isinstance(here, Records)
    assert isinstance(there, Shards)
    seen = RecordFeatures(())(public.X_public)
    local = LocalVoteCounter(here, KEY)
    readers = Readers(there, KEY, Split(PARTS_OF_PERSONS))
    try:
        remote = RemoteVoteCounter(readers.actors, is_per_person(there))
        for votes in (1, 2):
            cell_vote = CellVote(RecordFeatures(()), Cells.of(Space.of(seen, None), seen, 7, seed=0), votes, 2)
            expected = sum_counts(local.count(cell_vote), local.sources)
            np.testing.assert_array_equal(sum_counts(remote.count(cell_vote), remote.sources), expected)
            assert expected.sum() == votes * (50 if ids else 200)  # who is in every shard has no more votes than others
    finally:
        readers.close()
