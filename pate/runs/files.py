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

    @property
    def config_file(self) -> Path:
        return self.path / CONFIG

    @property
    def report_file(self) -> Path:
        return self.path / REPORT

    @property
    def page(self) -> Path:
        return self.path / PAGE

    @property
    def statement(self) -> Path:
        return self.path / STATEMENT

    @property
    def plots(self) -> Path:
        return self.path / PLOTS

    @property
    def examples_file(self) -> Path:
        """Labelled public examples that the page shows."""
        return self.plots / EXAMPLES

    @property
    def labels_file(self) -> Path:
        return self.path / LABELS

    @property
    def student_folder(self) -> Path:
        return self.path / STUDENT

    @property
    def student_card(self) -> Path:
        return self.student_folder / STUDENT_CARD

    @property
    def students_folder(self) -> Path:
        """Further students of the same labels, each in a folder of its own."""
        return self.path / STUDENTS

    @property
    def model_folder(self) -> Path:
        """A baseline's model."""
        return self.path / MODEL

    @property
    def ledger_file(self) -> Path:
        return self.path / LEDGER

    @property
    def private(self) -> Path:
        """The folder of everything that never leaves."""
        return self.path / PRIVATE

    @property
    def key_file(self) -> Path:
        return self.private / KEY

    @property
    def lock_file(self) -> Path:
        return self.private / LOCK

    @property
    def ledger_head(self) -> Path:
        """The last link of the ledger, beside it."""
        return self.private / LEDGER_HEAD

    @property
    def anchor_file(self) -> Path:
        """Which anchor the run was begun with."""
        return self.private / ANCHOR

    @property
    def places_file(self) -> Path:
        """Where the run found its data."""
        return self.private / PLACES

    @property
    def ensemble_file(self) -> Path:
        """Which records were forgotten."""
        return self.private / ENSEMBLE

    @property
    def failures_file(self) -> Path:
        """Which teachers failed to train."""
        return self.private / FAILURES

    @property
    def votes_file(self) -> Path:
        return self.private / VOTES

    @property
    def rounds_file(self) -> Path:
        """Which examples each round asked about, where queries are chosen in rounds."""
        return self.private / ROUNDS

    @property
    def cells_folder(self) -> Path:
        """Cells of public examples that records voted in, by round."""
        return self.private / CELLS

    @property
    def features_folder(self) -> Path:
        """Public features of records and examples, kept until the last round was held."""
        return self.private / FEATURES

    @property
    def spill_folder(self) -> Path:
        """Where readers keep private records by part while the run goes on."""
        return self.private / SPILL

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

    @property
    def evaluation_file(self) -> Path:
        """How often the teachers of a benchmark are right."""
        return self.private / EVALUATION

    @property
    def epsilon_file(self) -> Path:
        """The data-dependent ε."""
        return self.private / EPSILON

    @property
    def student_checkpoint(self) -> Path:
        """What a student that is being trained goes on from."""
        return self.private / STUDENT_CHECKPOINT

    @property
    def held_out_folder(self) -> Path:
        """What students said about labels that they were not taught."""
        return self.private / HELD_OUT

    @property
    def baseline_state(self) -> Path:
        """What a baseline that is being trained goes on from."""
        return self.private / BASELINE_STATE

    @property
    def released_file(self) -> Path:
        """What a baseline releases and what that cost, stored before it is published."""
        return self.private / RELEASED

    @property
    def seconds_file(self) -> Path:
        """How long each stage took."""
        return self.private / SECONDS

    @property
    def private_page(self) -> Path:
        """The report for the operator only."""
        return self.private / PAGE

    @property
    def audit_file(self) -> Path:
        """What attacks found, without single records: of a benchmark only."""
        return self.path / AUDIT

    @property
    def audit_page(self) -> Path:
        return self.path / AUDIT_PAGE

    @property
    def private_audit_file(self) -> Path:
        """What attacks found about the private records."""
        return self.private / AUDIT

    @property
    def private_audit_page(self) -> Path:
        return self.private / AUDIT_PAGE

    @property
    def attacks_folder(self) -> Path:
        """What an audit goes on from: how sure shadow models are of private records."""
        return self.private / ATTACKS

    def may_leave(self) -> list[str]:
        """The files there that may leave the run, by name from its directory on; nothing that a link leads to."""
        found = (path for path in sorted(self.path.rglob("*")) if path.is_file() and not path.is_symlink())
        return [name for name in (path.relative_to(self.path).as_posix() for path in found) if may_leave(name)]
