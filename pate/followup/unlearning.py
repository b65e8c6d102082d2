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
from contextlib import ExitStack
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pate.config import Config
from pate.data.columns import IdType, canonical_id
from pate.data.dataset import Dataset, Records, Shards, Votes
from pate.data.partition import forgetting_marks, identities
from pate.data.shards import summary_of
from pate.errors import DataError, RunError
from pate.preflight.learned_features import with_learned_features
from pate.runs import files
from pate.runs.run import Run
from pate.runs.signatures import user_secret
from pate.runs.version import Version
from pate.voters.teachers.checkpoints import TeacherFiles
from pate.voters.teachers.readers import must_be, parts_of
from pate.voters.teachers.rounds import teacher_rounds
from pate.voters.teachers.worker import Teaching

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


def remembered(data: Dataset, directory: Run) -> Dataset:
    """The data without what was forgotten; refused if the rest is not what the run began with.

    Shards that are still unread are looked at by whoever reads them; see `pate.voters.teachers.readers`.
    """
    ensemble, key = Version.of(directory), directory.key
    if ensemble.forgotten and isinstance(data.private, Shards):
        data = replace(data, private=replace(data.private, forgotten=ensemble.forgotten))
    elif ensemble.forgotten:
        gone = np.isin(_marks(data, key), ensemble.forgotten)
        data = replace(data, private=data.records.only(~gone))
    records = summary_of(data.private, key).text if isinstance(data.private, Records) else None
    if ensemble.pending is not None:
        must_be(records is None or ensemble.data_digest == records, directory)
        _erase(directory, ensemble.pending)
        if ensemble.data_digest is not None:
            directory.replace(files.RECORDS_DIGEST, ensemble.data_digest)
        ensemble.model_copy(update={"pending": None, "data_digest": None}).store(directory)
    must_be(directory.same_as_before(files.DATA_DIGEST, _digest(data, key)), directory)
    if records is not None:
        must_be(directory.same_as_before(files.RECORDS_DIGEST, records), directory)
    return data


def forget(
    config: Config,
    data: Dataset,
    directory: Run,
    ids: Sequence[str],
    rows: Sequence[int],
    config_dir: Path = Path(),
) -> int:
    """Take records out and train their teachers again; returns how many teachers that were."""
    before, marks = Version.of(directory), _marks(data, directory.key)
    chosen = _chosen(data, ids, rows, getattr(config.data, "id_type", "text"))
    if set(marks[chosen]) <= set(before.forgotten):
        raise DataError("forgotten already; nothing was changed")
    known = remembered(data, directory)
    gone = np.isin(_marks(known, directory.key), marks[chosen])
    touched = []  # records that vote themselves touch no teacher; what was released of their votes stays released
    if config.voters == "teachers":
        touched = [part for part, members in enumerate(parts_of(config, known, directory.key)) if gone[members].any()]
    Version(
        version=before.version + 1,
        forgotten=(*before.forgotten, *sorted(set(marks[chosen]) - set(before.forgotten))),
        pending=tuple(touched),
        data_digest=summary_of(known.records.only(~gone), directory.key).text,
    ).store(directory)
    left = remembered(data, directory)
    if touched:
        _retrain(config, left, directory, config_dir, touched)
    return len(touched)


def _retrain(config: Config, data: Dataset, directory: Run, config_dir: Path, parts: Sequence[int]) -> None:
    """Train teachers of these parts again; one that hangs or takes its process down becomes a constant, as in a run.

    Teachers of later rounds are erased, and trained again only if their round is still to vote.
    """
    from pate.cluster.session import ray_session
    from pate.voters.teachers.ensemble import Ensemble
    from pate.voters.teachers.readers import private_records

    config = with_learned_features(config, data.X_public)
    teaching = Teaching.of(
        teacher_rounds(config)[0].config, len(data.classes), config_dir, shape=data.X_public.shape[1:]
    )
    store = TeacherFiles(directory.private, directory.key, user=user_secret(directory.key_file))
    with ExitStack() as stack:
        if config.backend == "ray":
            stack.enter_context(ray_session(None, config.ray))
        records = private_records(config, data, directory)
        settings = config.ray if config.backend == "ray" else None
        stack.enter_context(Ensemble(teaching, records, store, settings)).train(parts=parts)


def _chosen(data: Dataset, ids: Sequence[str], rows: Sequence[int], id_type: IdType) -> list[int]:
    """Row numbers of the records to forget."""
    if ids and data.records.ids is None:
        raise DataError("{ids}: the data has no id column; name the record by its row with {rows}", ids=None, rows=None)
    chosen = []
    for wanted in ids:
        canonical = canonical_id(wanted, id_type)
        found = [row for row, own in enumerate(data.records.ids or ()) if own == canonical]
        if not found:
            raise DataError("{ids}: no record has that id (was it removed from the source first?)", ids=None)
        chosen += found
    for row in rows:
        if not 0 <= row < len(data.records):
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


def _marks(data: Dataset, key: bytes) -> NDArray[np.str_]:
    return np.array(forgetting_marks(identities(data.records.X, data.records.y, data.records.ids), key))


def _digest(data: Dataset, key: bytes) -> str:
    """A digest of all data but private records, as the source holds it, whatever examples are asked first.

    Records have a digest of their own, the same whoever reads them."""
    data = data.in_source_order()
    digest = blake2b(key=key, digest_size=16)
    votes = (data.private.counts,) if isinstance(data.private, Votes) else ()
    for array in (data.X_public, *votes):
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
