"""Who counts changes nothing: here, or readers on a cluster, with persons spread over all shards."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from voters.neighbours.test_never_stops import rows_of, section

from pate.boundary import sum_counts
from pate.data._settings import NpzData
from pate.data._sources import load
from pate.data.private import Shards, is_per_person, records_of
from pate.mechanisms.base import Split
from pate.voters._readers import Readers
from pate.voters.neighbours._cells import Cells, CellVote, RecordFeatures, Space
from pate.voters.neighbours._rounds import PARTS_OF_PERSONS, LocalVoteCounter, RemoteVoteCounter

KEY = b"e" * 32


@pytest.mark.usefixtures("local_ray")
@pytest.mark.parametrize(
    ("by_person", "case", "voters"),
    [
        (False, "one label unknown", 11),
        (True, "one label unknown", 6),
        (True, "no valid id", 0),
        pytest.param(False, "no record", 0, marks=pytest.mark.slow),
    ],
)
def test_readers_count_what_one_process_counts(tmp_path: Path, by_person: bool, case: str, voters: int) -> None:
    """Twelve records of six persons in three shards: who is in two of them has no more votes than others."""
    chosen = section(tmp_path, "npz", case, 3) | {"read_by": "workers"}
    if not by_person:
        for i in range(3):
            rows = rows_of(case)[i::3]
            X = np.array([row[1:3] for row in rows], dtype=np.float64).reshape(-1, 2)
            np.savez(tmp_path / f"shard-{i}.npz", X=X, y=np.array([row[3] for row in rows], dtype="U1"))
        chosen |= {"ids": False}
    about = NpzData.model_validate(chosen)
    public, here = load(about, None, tmp_path, by_workers=False, keep_missing=True)
    _, there = load(about, None, tmp_path, by_workers=True, keep_missing=True)
    assert isinstance(there, Shards)
    seen = RecordFeatures(())(public.X_public)
    cells = Cells.of(Space.of(seen, None), seen, 7, seed=0)
    readers = Readers(there, KEY, Split(PARTS_OF_PERSONS))
    try:
        remote, local = RemoteVoteCounter(readers.actors, is_per_person(there)), LocalVoteCounter(records_of(here), KEY)
        for votes in (1, 2):
            cell_vote = CellVote(RecordFeatures(()), cells, votes, 2)
            expected = sum_counts(local.count(cell_vote), local.sources)
            np.testing.assert_array_equal(sum_counts(remote.count(cell_vote), remote.sources), expected)
            assert expected.sum() == votes * voters
    finally:
        readers.close()
