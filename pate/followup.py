"""What can be done with a finished run: unlearning, and further students.

Unlearning: a record leaves the ensemble as if it had never been there. One record touched one teacher (with MSamp a
few), so only those are trained again. Their old checkpoints are erased, and so are all stored votes, to which they
contributed. Labels that were released stay released: they are paid for and public, and the ledger keeps the version of
the ensemble each came from. What was forgotten is remembered by a keyed digest, so that a run goes on without the
record whether or not the source still holds it. All steps can be repeated: after a crash, the next `pate forget` or
`pate run --resume` completes what is missing.

Further students of labels that a run has released and paid for: nothing is asked, nothing charged, ε stays. A student
sees released labels and public examples alone. So any number of them may be tried, compared by their agreement with
released labels that they were not taught, and published.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.cluster._session import joined
from pate.components._registry import also_trust, dotted_names, importing_only
from pate.config import Config
from pate.config._loading import overridden
from pate.data._columns import IdType, canonical_id
from pate.data._shards import summary_of
from pate.data.partition import forgetting_marks, identities
from pate.data.private import PrivateData, Records, Shards, Votes, clip_to_public_range, records_of
from pate.data.public import PublicData
from pate.errors import ConfigError, DataError, PateError, RunError
from pate.preflight._features import with_learned_features
from pate.preflight._student import try_student
from pate.report._builder import measure
from pate.report.schema import Student
from pate.runs import _files as files
from pate.runs._console import Console
from pate.runs._files import STUDENT_CARD
from pate.runs._run_ledger import pin_to_json
from pate.runs._signatures import is_signed, own_or_trusted
from pate.runs.model_store import load_card, load_model, save_model
from pate.runs.run import Run, Version
from pate.storage._files import make_folder
from pate.students._posterior import Labelled
from pate.students._stage import HeldOut, fit_student, held_out, mention_stored_labels, model_card, student_name
from pate.voters import voters_of
from pate.voters._readers import require_same_data
from pate.voters.teachers._checkpoints import TeacherFiles

_MADE_FROM_TEACHERS = (
    files.VOTES,
    files.EVALUATION,
    files.EPSILON,
    files.FAILURES,
    files.PAGE,
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
        for left in (name, f"{name}.partial"):  # what a crash left of one counts as well
            (directory.private / left).unlink(missing_ok=True)
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


@dataclass(frozen=True)
class ExtraStudent:
    """A student of the run's labels: its name, where it is stored, and what it says about labels it was not taught.

    `test` are its figures on test examples: None where there are none with labels, or its files may not be loaded.
    """

    name: str
    folder: Path
    settings: dict[str, Any]
    agreement: HeldOut | None
    own: bool
    test: Student | None = None


@dataclass(frozen=True)
class Trials:
    """The run's own student and all further ones, best first; ε and δ of every one of them.

    Best is who agrees most with held-out labels where every class counts the same: else, with a rare class, a student
    that never names it would win.
    """

    students: tuple[ExtraStudent, ...]
    epsilon: float
    delta: float

    @property
    def best(self) -> ExtraStudent | None:
        """The one that agrees most, class by class; None where there are too few held-out labels to tell."""
        return self.students[0] if self.students and self.students[0].agreement is not None else None

    def as_good(self) -> tuple[ExtraStudent, ...]:
        """Students whose distance to the best is not more than chance explains."""
        best = self.best
        if best is None or best.agreement is None:
            return ()
        others = [one for one in self.students[1:] if one.agreement is not None]
        return tuple(one for one in others if not best.agreement.is_better_than(one.agreement))  # type: ignore[arg-type]


def train_extra_student(
    place: Path | str,
    overrides: Sequence[str] = (),
    *,
    student: Mapping[str, Any] | None = None,
    data_dir: Path | None = None,
    address: str | None = None,
    trust: Sequence[str] = (),
    console: Console | None = None,
    public: PublicData | None = None,
    private: PrivateData | None = None,
) -> Trials:
    """Train the student that the run's config describes with `overrides` (`student.…=value`), store it below
    `students/`, and compare it with the run's own and with all that were tried before.

    `student` is a whole section, as in a config, in place of the run's. `public` and `private` are the run's data,
    where it is in memory; else it is read from where the run found it. `address` is a Ray cluster whose GPUs train
    networks.
    `trust` names what a run may import ("module.Class") that was not made by this user.
    """
    console = console or Console()
    with Run.load(place) as found, own_or_trusted(trust, found):
        known_data_dir, config_dir = found.places
        config = found.config
        if not isinstance(config, Config):
            raise RunError(f"{place}: is a run of `pate baseline`, which has no labels for a student")
        wanted = _with_student(config, overrides, student)
        also_trust(dotted_names(wanted.student.model_dump()))  # the run's own are by now, and these the user names
        with Run.create(place, config, resume=True) as run:
            if public is None or private is None:
                unread = getattr(config.data, "sharded", False)
                public, private = voters_of(config).load(data_dir or known_data_dir, config_dir, unread)
            data, private = clip_to_public_range(public, private)
            drop_forgotten(data, private, run)  # refuses other data than the run's
            labels, labelled, data = _released(run, data)
            wanted = with_learned_features(wanted, data.X_public)
            is_new = wanted.student != config.student
            if is_new:
                try_student(wanted, data, may_decline=True)
            in_cluster = joined(address, config.ray) if config.backend == "ray" else nullcontext()
            with mention_stored_labels("the student", place), in_cluster:
                if is_new:
                    held_out(wanted, data, labels, labelled, run, console)
                    _train_and_store(wanted, data, labels, labelled, run, console)
                return _compared(config, data, labels, labelled, run, console, trust)


def _with_student(config: Config, overrides: Sequence[str], student: Mapping[str, Any] | None = None) -> Config:
    """The config with another student; only keys of the student may differ."""
    for text in overrides:
        if text.partition("=")[0].split(".")[0] != "student":
            raise ConfigError(
                "{overrides}: only the student may differ, as in student.name=mixmatch; what was released stays",
                overrides=text,
            )
    section = dict(config.student.model_dump(mode="json") if student is None else student)
    named = [text.partition("=")[2] for text in overrides if text.startswith("student.name=")]
    if named and named[-1] != section.get("name"):
        section = {"name": named[-1]}  # another kind has parameters of its own
    params = section.get("params") or {}
    estimators = [text.partition("=")[2] for text in overrides if text.startswith("student.params.estimator=")]
    if estimators and estimators[-1] != params.get("estimator"):
        section["params"] = {key: value for key, value in params.items() if key != "params"}  # likewise
    return overridden(config, {"student": section}, overrides)


def _train_and_store(
    config: Config, data: PublicData, labels: Any, labelled: Labelled | None, run: Run, console: Console
) -> None:
    """Train a student on all labels and store it, unless that was done before."""
    folder = run.students_folder / student_name(config)
    if (folder / STUDENT_CARD).exists():
        return
    student = fit_student(config, data.X_public, labels, labelled, len(data.classes), run.student_checkpoint, console)
    published = run.labels
    assert published is not None
    card = model_card(config, data, voters_of(config).publishable_epsilon(data.n_classes))
    card |= {"ledger": pin_to_json(published.pin), "settings": config.student.model_dump(mode="json")}
    make_folder(folder.parent)
    save_model(student, folder, card, run)
    run.sync()


def _compared(
    config: Config,
    data: PublicData,
    labels: Any,
    labelled: Labelled | None,
    run: Run,
    console: Console,
    trust: Sequence[str],
) -> Trials:
    """The run's own student and every further one, best first."""

    def tried(other: Config, folder: Path, own: bool) -> ExtraStudent:
        agreement = held_out(other, data, labels, labelled, run, console)
        name, test = student_name(other), None
        if data.X_test is not None and data.y_test is not None:
            with suppress(PateError), console.working("asking the student about test examples"):
                test = measure(name, load_model(folder, run=run), data)[0]
        return ExtraStudent(name, folder, other.student.model_dump(mode="json"), agreement, own, test)

    found = [tried(config, run.student_folder, own=True)]
    for card in sorted(run.students_folder.glob(f"*/{STUDENT_CARD}")):
        settings = load_card(card.parent).get("settings")
        if isinstance(settings, dict):
            with nullcontext() if is_signed(run, card.parent) else importing_only(trust):
                found.append(tried(overridden(config, {"student": settings}, ()), card.parent, own=False))
    unique = {one.name: one for one in reversed(found)}  # the run's own, where it was tried before it became that
    order = sorted(unique.values(), key=lambda one: -(one.agreement.balanced if one.agreement else -1.0))
    run.sync()
    return Trials(tuple(order), voters_of(config).publishable_epsilon(data.n_classes), config.budget.delta)


def _released(run: Run, data: PublicData) -> tuple[Any, Labelled | None, PublicData]:
    """Labels as the run's own student was given them, and the data with the examples that have them first."""
    published = run.labels
    if published is None:
        raise RunError(f"{run.place}: has released no labels yet; go on with it, or name a run that has")
    places = published.places(data)
    if published.weights is not None:
        return published.labels, Labelled(places, published.labels, published.weights, published.cells), data
    return published.labels, None, data.with_queries_first(places)
