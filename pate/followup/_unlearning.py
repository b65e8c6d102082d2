"""Unlearning: a record leaves the ensemble as if it had never been there.

One record touched one teacher (with MSamp a few), so only those are trained again. Their old
checkpoints are erased, and so are all stored votes, to which they contributed. Labels that were released stay released:
they are paid for and public, and the ledger keeps the version of the ensemble each came from.

What was forgotten is remembered by a keyed digest, so that a run goes on without the record whether or not the
source still holds it. All steps can be repeated: after a crash, the next `pate forget` or `pate run --resume`
completes what is missing.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pate.config import Config
from pate.data._columns import IdType, canonical_id
from pate.data._shards import summary_of
from pate.data.partition import forgetting_marks, identities
from pate.data.private import PrivateData, Records, Shards, Votes, records_of
from pate.data.public import PublicData
from pate.errors import DataError, RunError
from pate.preflight._features import with_learned_features
from pate.runs import _files as files
from pate.runs.run import Run, Version
from pate.voters import voters_of
from pate.voters.teachers._checkpoints import TeacherFiles
from pate.voters.teachers._readers import require_same_data

_MADE_FROM_TEACHERS = (
    files.VOTES,
    f"{files.VOTES}.partial",
    files.EVALUATION,
    files.EPSILON,
    files.FAILURES,
    files.PAGE,
    f"{files.PAGE}.partial",
    files.AUDIT,
    files.AUDIT_PAGE,
)


def drop_forgotten(public: PublicData, private: PrivateData, directory: Run) -> PrivateData:
    """The private data without what was forgotten; refused if the rest is not what the run began with.

    Shards that are still unread are looked at by whoever reads them; see `pate.voters.teachers._readers`.
    """
    ensemble, key = Version.of(directory), directory.key
    if ensemble.forgotten and isinstance(private, Shards):
        private = replace(private, forgotten=ensemble.forgotten)
    elif ensemble.forgotten:
        known = records_of(private)
        private = known.only(~np.isin(_marks(known, key), ensemble.forgotten))
    records = summary_of(private, key).text if isinstance(private, Records) else None
    if ensemble.pending is not None:
        require_same_data(records is None or ensemble.data_digest == records, directory)
        _erase(directory, ensemble.pending)
        if ensemble.data_digest is not None:
            directory.replace(files.RECORDS_DIGEST, ensemble.data_digest)
        ensemble.model_copy(update={"pending": None, "data_digest": None}).store(directory)
    require_same_data(directory.same_as_before(files.DATA_DIGEST, _digest(public, private, key)), directory)
    if records is not None:
        require_same_data(directory.same_as_before(files.RECORDS_DIGEST, records), directory)
    return private


def forget(
    config: Config,
    public: PublicData,
    records: Records,
    directory: Run,
    ids: Sequence[str],
    rows: Sequence[int],
    config_dir: Path = Path(),
) -> int:
    """Take records out and train their teachers again; returns how many teachers that were."""
    before, marks = Version.of(directory), _marks(records, directory.key)
    chosen = _chosen(records, ids, rows, getattr(config.data, "id_type", "text"))
    if set(marks[chosen]) <= set(before.forgotten):
        raise DataError("forgotten already; nothing was changed")
    known = records_of(drop_forgotten(public, records, directory))
    gone = np.isin(_marks(known, directory.key), marks[chosen])
    parts = voters_of(config).touched_parts(known, gone, directory.key)
    Version(
        version=before.version + 1,
        forgotten=(*before.forgotten, *sorted(set(marks[chosen]) - set(before.forgotten))),
        pending=tuple(parts),
        data_digest=summary_of(known.only(~gone), directory.key).text,
    ).store(directory)
    left = drop_forgotten(public, records, directory)
    if parts:
        voters = voters_of(with_learned_features(config, public.X_public))
        voters.retrain(public, left, directory, config_dir, parts)
    return len(parts)


def _chosen(records: Records, ids: Sequence[str], rows: Sequence[int], id_type: IdType) -> list[int]:
    """Row numbers of the records to forget."""
    if ids and records.ids is None:
        raise DataError("{ids}: the data has no id column; name the record by its row with {rows}", ids=None, rows=None)
    chosen = []
    for wanted in ids:
        canonical = canonical_id(wanted, id_type)
        found = [row for row, own in enumerate(records.ids or ()) if own == canonical]
        if not found:
            raise DataError("{ids}: no record has that id (was it removed from the source first?)", ids=None)
        chosen += found
    for row in rows:
        if not 0 <= row < len(records):
            raise DataError("{rows}: there is no such row among the private records", rows=row)
        chosen.append(row)
    if not chosen:
        raise RunError("nothing to forget: give {ids} or {rows}", ids=None, rows=None)
    return chosen


def _erase(directory: Run, parts: Sequence[int]) -> None:
    for folder in directory.teacher_folders():
        store = TeacherFiles(folder, directory.key)
        for part in parts:
            store.erase(part)
    for name in _MADE_FROM_TEACHERS:
        (directory.private / name).unlink(missing_ok=True)
    shutil.rmtree(directory.features_folder, ignore_errors=True)
    shutil.rmtree(directory.attacks_folder, ignore_errors=True)


def _marks(records: Records, key: bytes) -> NDArray[np.str_]:
    return np.array(forgetting_marks(identities(records.X, records.y, records.ids), key))


def _digest(public: PublicData, private: PrivateData, key: bytes) -> str:
    """A digest of all data but private records, as the source holds it, whatever examples are asked first.

    Records have a digest of their own, the same whoever reads them."""
    X = public.in_source_order().X_public
    digest = blake2b(key=key, digest_size=16)
    votes = (private.counts,) if isinstance(private, Votes) else ()
    for array in (X, *votes):
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
