"""A rehearsal before anything is spent: the run's cells or teachers on labelled public rows alone, split in two.

One half votes, without noise, and the other shows whether its votes tell classes apart at all. What is wrong with a
table (another year's dates, other units, a category written otherwise) shows here, where it costs nothing. Nothing
private is used: not the records, and not how many there are.
"""

from __future__ import annotations

import math
import tempfile
import time
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pate.data.dataset import Dataset, Records, Votes
from pate.report.quality import area_under_curve
from pate.runs.console import Quiet

if TYPE_CHECKING:
    from pate.config import Config
    from pate.students.posterior import Labelled

_MAX_ROWS, _MAX_PUBLIC = 1000, 3000  # that vote, that are asked about; that cells are made of
_MAX_TEACHERS, _MIN_TEACHERS = 10, 3
_SECONDS = 5.0  # that features, teachers or a student may take: else fewer of them, or none
_ROWS_OF_A_CELL = 10
_MIN_OF_A_CLASS = 5
_DEVIATIONS = 2.5  # above an even chance: fewer are chance, but for one rehearsal in a hundred
_MAX_BY_CHANCE = 0.7  # a rehearsal on so few rows that chance alone may give more would tell nothing
_MIN_OF_A_TEACHER = 20  # rows, where nobody may know how many a teacher of the run has
_TRIED = 5  # examples, to see how long features take
_PRIOR = 2.0  # votes that every cell is taken to have in the shares of all cells together


@dataclass(frozen=True)
class Rehearsal:
    """What came out: area under the ROC curve, mean over classes, of how many rows, and by whom it was voted."""

    auc: float
    by_chance: float
    """The largest area that chance alone would give."""
    voters: str
    rows: int
    source: str

    @property
    def tells_classes_apart(self) -> bool:
        """Whether that is better than chance."""
        return self.auc > self.by_chance

    def __str__(self) -> str:
        found = (
            f"rehearsal without noise, on labelled rows of the {self.source} file alone: {self.voters} tell the "
            f"classes of {self.rows:,} others apart with an AUC of {self.auc:.2f}"
        )
        if self.tells_classes_apart:
            return f"{found} (chance: 0.50); nothing was spent"
        return (
            f"{found}, NO BETTER THAN CHANCE (0.50). Votes of private records will hardly do better, and ε is spent "
            "in any case: look at what is warned about columns, at units, dates and categories, and leave out with "
            "data.ignore what means something else in each file"
        )


def rehearse(config: Config, data: Dataset, student_seconds: float = 0.0) -> Rehearsal | None:
    """Rehearse a run; None of a benchmark, without enough labelled public rows, or where it would take too long.

    `student_seconds` is about how long a student takes: one that takes long is left out, and the voters answer.
    """
    if data.benchmark or isinstance(data.private, Votes):
        return None
    source = "test" if data.X_test is not None and data.y_test is not None else "public"
    X, y = (data.X_test, data.y_test) if source == "test" else (data.X_public, data.y_public)
    if X is None or y is None:
        return None
    voting, asked = _halves(y, config.seed)
    chance = _by_chance(y[asked])
    if chance is None or len(np.unique(y[voting])) < 2:
        return None
    data = replace(data, private=Records(X[voting], y[voting]), X_test=X[asked], y_test=None, y_public=None)
    once, times = config, 1
    if config.neighbours is not None:  # one student, where the run refines labels by several
        times += config.neighbours.refine
        once = config.model_copy(update={"neighbours": config.neighbours.model_copy(update={"refine": 0})})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        votes = (_of_cells if config.voters == "neighbours" else _of_teachers)(config, data)
        if votes is None:
            return None
        shares = _student_shares(once, data, votes) if student_seconds / times <= _SECONDS else None
    auc = area_under_curve(votes.shares if shares is None else shares, y[asked])
    assert auc is not None
    return Rehearsal(auc, chance, votes.voters + ("" if shares is None else " and a student"), len(asked), source)


@dataclass(frozen=True)
class _Votes:
    """Whose, labels of public `examples` by them, and the share of each class among votes about the other half."""

    voters: str
    examples: NDArray
    labels: NDArray[np.int64]
    labelled: Labelled | None
    shares: NDArray[np.float64]


def _student_shares(config: Config, data: Dataset, votes: _Votes) -> NDArray[np.float64] | None:
    """What a student of such votes says about the other half; None where there can be none."""
    from pate.students.stage import fit_student, student_inputs, with_transforms

    n_classes, quiet = len(data.classes), Quiet()
    try:
        with tempfile.TemporaryDirectory(prefix="pate-") as folder:
            seen = student_inputs(config, votes.examples, quiet)
            bare = fit_student(
                config, seen, votes.labels, votes.labelled, n_classes, Path(folder) / "checkpoint", quiet
            )
        student = with_transforms(config, bare)
        shares = np.zeros((len(data.X_test), n_classes))  # type: ignore[arg-type]
        shares[:, bare.classes_] = student.predict_proba(data.X_test)
    except Exception:  # of anybody's class; whether a run's student works is tried elsewhere
        return None
    return shares


def _halves(y: NDArray[np.int64], seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Two halves of some rows, each with its share of every class."""
    rows = np.random.default_rng(seed).permutation(len(y))[: 2 * _MAX_ROWS]
    rows = rows[np.argsort(y[rows], kind="stable")]
    return rows[::2], rows[1::2]


def _by_chance(y: NDArray[np.int64]) -> float | None:
    """The largest area that votes which say nothing would have; None where there are too few rows to say.

    The standard deviation is that of the rank-sum test, averaged over classes as if these were not independent.
    """
    counts = np.bincount(y)
    own = counts[(counts >= _MIN_OF_A_CLASS) & (len(y) - counts >= _MIN_OF_A_CLASS)]
    if len(own) < 2:
        return None
    present = counts[counts > 0]
    spread = np.sqrt((len(y) + 1) / (12 * present * (len(y) - present)))
    largest = float(0.5 + _DEVIATIONS * spread.mean())
    return None if largest > _MAX_BY_CHANCE else largest


def _of_cells(config: Config, data: Dataset) -> _Votes | None:
    """Votes in cells, of which there are fewer than in the run, since there are fewer rows."""
    from pate.students.posterior import label_members
    from pate.voters.neighbours.cell_vote import CellVote
    from pate.voters.neighbours.cells import Cells, Space
    from pate.voters.neighbours.features import RecordFeatures

    assert config.neighbours is not None
    assert data.X_test is not None
    settings, queries, n_classes = config.neighbours, config.build_rounds()[0].cells, len(data.classes)
    features = RecordFeatures([step.model_dump() for step in settings.features])
    X, y = data.records.X, data.records.y
    examples = data.X_public[:: -(-len(data.X_public) // _MAX_PUBLIC)]
    started = time.perf_counter()
    features(examples[:_TRIED])
    each = (time.perf_counter() - started) / len(examples[:_TRIED])
    if settings.features and each * (len(examples) + len(X) + len(data.X_test)) > _SECONDS:
        return None
    seen = features(examples)
    number = min(queries, len(examples), max(2, len(X) // _ROWS_OF_A_CELL))
    cells = Cells.of(Space.of(seen, settings.components, settings.standardise), seen, number, config.seed)
    counts = CellVote(features, cells, 1, n_classes, examples[:1]).count(X, y).astype(np.float64)
    prior = counts.sum(axis=0) / max(1.0, counts.sum())
    shares = (counts + _PRIOR * prior) / (counts.sum(axis=1, keepdims=True) + _PRIOR)
    labelled = label_members(shares, cells.nearest(seen)[:, 0], 0.0, settings.soft)
    of_asked = shares[cells.nearest(features(data.X_test))[:, 0]]
    return _Votes(f"{len(X):,} rows in {number} cells", examples, labelled.labels, labelled, of_asked)


def _of_teachers(config: Config, data: Dataset) -> _Votes | None:
    """Votes of a few teachers, each of about as many rows as in the run, where anybody may know how many that are."""
    from pate.planning.stand_in import votes_of
    from pate.voters.teachers.local import expected_seconds

    assert data.X_test is not None
    n_rows, about = len(data.records), getattr(config.data, "public_record_count", None)
    each = max(_MIN_OF_A_TEACHER, n_rows // _MAX_TEACHERS) if about is None else max(2, about // config.n_teachers)
    number = min(config.n_teachers, _MAX_TEACHERS, max(_MIN_TEACHERS, n_rows // each))
    first = config.of_round(1) if config.teacher_rounds else config
    kinds = tuple(family for family in first.teachers if config.backend == "local" or _is_known(family.name))
    if not kinds:
        return None
    changes = {"teachers": kinds, "n_teachers": number, "mechanism": _UNUSED, "backend": "local"}
    few = first.model_copy(update=changes)
    seconds = expected_seconds(few, data.X_public, each, len(data.classes))
    if seconds > _SECONDS:
        number = math.floor(number * _SECONDS / seconds)
        few = few.model_copy(update={"n_teachers": number})
        if number < min(config.n_teachers, _MIN_TEACHERS):
            return None
    kept = np.random.default_rng(config.seed).permutation(n_rows)[: number * each]
    records = Records(data.records.X[kept], data.records.y[kept])
    examples = data.X_public[:_MAX_PUBLIC]
    queries = examples[: min(config.budget.max_queries, _MAX_ROWS)]
    votes = votes_of(few, replace(data, private=records), np.concatenate([queries, data.X_test]))
    labels, of_asked = votes[: len(queries)].argmax(axis=1), votes[len(queries) :]
    voters = f"{number} teachers of about {len(kept) // number:,} rows"
    return _Votes(voters, examples, labels, None, of_asked / of_asked.sum(axis=1, keepdims=True))


_UNUSED = {"name": "gnmax", "sigma": 1.0}  # nobody draws from it


def _is_known(name: str) -> bool:
    """Whether teachers of a kind are trained here too where workers train the run's: not those of somebody's own."""
    return "." not in name or name.startswith(("sklearn.", "pate."))
