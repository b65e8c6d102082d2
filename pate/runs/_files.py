"""The files of a run by name, and which of them may leave it. Every other module asks here."""

from __future__ import annotations

import re
from pathlib import Path

CONFIG = "config.yaml"
REPORT, PAGE, STATEMENT = "report.json", "report.html", "privacy.txt"
PLOTS, EXAMPLES = "plots", "examples.npz"
AUDIT, AUDIT_PAGE = "audit.json", "audit.html"  # below private/; of a benchmark also beside it
RESULTS, TABLE = "results.json", "table.txt"  # of a study (`pate reproduce`), whose runs are folders below it
LABELS = "labels.npz"
STUDENT, STUDENT_CARD = "student", "student.json"
STUDENTS = "students"  # further ones, each in a folder of its own
MODEL, MODEL_CARD = "model", "model.json"  # of a baseline
TENSORS, OBJECT = "model.safetensors", "model.skops"  # the weights of either
LEDGER = "ledger.db"
PRIVATE = "private"

# Below private/, and never to leave it:
KEY, LOCK = "key", "lock"
LEDGER_HEAD, ANCHOR = "ledger.head", "anchor"
DATA_DIGEST, RECORDS_DIGEST, PLACES, LEFT_OUT = "data_digest", "records_digest", "places.json", "left_out.json"
SPILL = "spill"  # where readers of this machine keep records, in files without names
TEACHERS, FAILURES, ENSEMBLE = "teachers", "failures.json", "ensemble.json"
VOTES, ROUNDS, EVALUATION, EPSILON = "votes.npz", "rounds.json", "evaluation.json", "epsilon.json"
CELLS, FEATURES = "cells", "features"  # for records that vote near themselves
TEACHER_ROUND = "round-{}"  # teachers of the second round and later, and the student between
STUDENT_CHECKPOINT, BASELINE_STATE, RELEASED = "student_checkpoint", "state.safetensors", "released.safetensors"
SECONDS, SIGNATURES, HELD_OUT = "seconds.json", "signatures.json", "held_out"
ATTACKS = "attacks"  # shadow models and the like, kept so that an audit can go on

MAY_LEAVE = (REPORT, PAGE, STATEMENT, PLOTS, LABELS, STUDENT, STUDENTS, MODEL, AUDIT, AUDIT_PAGE)
"""What may leave a run, files and folders; of a folder, only the files that pate writes there (see `may_leave`)."""
OF_A_STUDY = (RESULTS, TABLE)
"""What may leave a study: of each of its runs, what may leave that one, by itself."""

_OF_STUDENT = "|".join(map(re.escape, (STUDENT_CARD, TENSORS, OBJECT)))
_IN_FOLDERS = {
    PLOTS: rf"\w+\.(svg|png)|{re.escape(EXAMPLES)}",
    STUDENT: _OF_STUDENT,
    STUDENTS: rf"[A-Za-z0-9_-]+/({_OF_STUDENT})",
    MODEL: "|".join(map(re.escape, (MODEL_CARD, TENSORS))),
}
_LEAVES = re.compile(
    "|".join(f"{name}/({_IN_FOLDERS[name]})" if name in _IN_FOLDERS else re.escape(name) for name in MAY_LEAVE)
)


def may_leave(name: str) -> bool:
    """Whether a file of a run may leave it, by its name from the run directory on.

    >>> may_leave("student/student.json"), may_leave("student/records.csv"), may_leave("private/votes.npz")
    (True, False, False)
    """
    return _LEAVES.fullmatch(name) is not None


class RunFiles:
    """Where each file of the run in the folder `path` is, or would be."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file, self.ledger_file = path / CONFIG, path / LEDGER
        self.report_file, self.page, self.statement = path / REPORT, path / PAGE, path / STATEMENT
        self.plots = path / PLOTS
        self.examples_file = self.plots / EXAMPLES  # labelled public examples that the page shows
        self.labels_file = path / LABELS
        self.student_folder = path / STUDENT
        self.student_card = self.student_folder / STUDENT_CARD
        self.students_folder = path / STUDENTS  # further students of the same labels, each in a folder of its own
        self.model_folder = path / MODEL  # a baseline's model
        self.audit_file, self.audit_page = path / AUDIT, path / AUDIT_PAGE  # no single records; of benchmarks only

        self.private = private = path / PRIVATE  # the folder of everything that never leaves
        self.key_file, self.lock_file = private / KEY, private / LOCK
        self.ledger_head = private / LEDGER_HEAD  # the last link of the ledger, beside it
        self.anchor_file = private / ANCHOR  # which anchor the run was begun with
        self.places_file = private / PLACES  # where the run found its data
        self.ensemble_file = private / ENSEMBLE  # which records were forgotten
        self.failures_file = private / FAILURES  # which teachers failed to train
        self.votes_file = private / VOTES
        self.rounds_file = private / ROUNDS  # which examples each round asked about, where queries are chosen in rounds
        self.cells_folder = private / CELLS  # cells of public examples that records voted in, by round
        self.features_folder = private / FEATURES  # of records and examples, kept until the last round was held
        self.spill_folder = private / SPILL  # where readers keep private records by part while the run goes on
        self.evaluation_file = private / EVALUATION  # how often the teachers of a benchmark are right
        self.epsilon_file = private / EPSILON  # the data-dependent ε
        self.student_checkpoint = private / STUDENT_CHECKPOINT  # what a student that is being trained goes on from
        self.held_out_folder = private / HELD_OUT  # what students said about labels that they were not taught
        self.baseline_state = private / BASELINE_STATE  # what a baseline that is being trained goes on from
        self.released_file = private / RELEASED  # a baseline's release and its charge, stored before it is published
        self.seconds_file = private / SECONDS  # how long each stage took
        self.private_page = private / PAGE  # the report for the operator only
        self.private_audit_file, self.private_audit_page = private / AUDIT, private / AUDIT_PAGE
        self.attacks_folder = private / ATTACKS  # what an audit goes on from: shadow models and the like

    def teachers_of_round(self, number: int) -> Path:
        """The folder below which the teachers of a round are: of the first, as of a run without rounds, `private`."""
        return self.private if number == 1 else self.private / TEACHER_ROUND.format(number)

    def teacher_folders(self) -> list[Path]:
        """Below which teachers are, of whatever round."""
        return [self.private, *sorted(self.private.glob(TEACHER_ROUND.format("*")))]

    def student_of_round(self, number: int) -> Path:
        """The student of the labels of the rounds up to this one, where teachers of the next see by it."""
        return self.private / TEACHER_ROUND.format(number) / STUDENT

    def round_student(self, number: int) -> Path:
        """The student between a round of votes and the next."""
        return self.cells_folder / f"student-{number}"

    def may_leave(self) -> list[str]:
        """The files there that may leave the run, by name from its directory on; nothing that a link leads to."""
        found = (path for path in sorted(self.path.rglob("*")) if path.is_file() and not path.is_symlink())
        return [name for name in (path.relative_to(self.path).as_posix() for path in found) if may_leave(name)]
