"""A rehearsal before anything is spent: the run's cells or teachers on labelled public rows alone, split in two.

One half votes, without noise, and the other shows whether its votes tell classes apart at all. What is wrong with a
table (another year's dates, other units, a category written otherwise) shows here, where it costs nothing. Nothing
private is used: not the records, and not how many there are.
"""

from __future__ import annotations

import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pate.report._builder import area_under_curve
from pate.runs._console import Quiet
from pate.voters import voters_of

if TYPE_CHECKING:
    from pate.config import Config
    from pate.data.public import PublicData
    from pate.runs.context import RunContext
    from pate.voters.base import RehearsedVotes

_MAX_ROWS = 1000  # that vote
_SECONDS = 5.0  # that a student may take: else there is none
_MIN_OF_A_CLASS = 5
_DEVIATIONS = 2.5  # above an even chance: fewer are chance, but for one rehearsal in a hundred
_MAX_BY_CHANCE = 0.7  # a rehearsal on so few rows that chance alone may give more would tell nothing


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


def check(context: RunContext) -> None:
    """Rehearse a run that begins, and note what came out: a warning where it is no better than chance."""
    if context.options.resume is True:
        return
    found = rehearse(context.config, context.public, context.student_seconds)
    if found is not None:
        notes = context.notes
        (notes.public if found.tells_classes_apart else notes.warnings).append(str(found))


def rehearse(config: Config, public: PublicData, student_seconds: float = 0.0) -> Rehearsal | None:
    """Rehearse a run; None of a benchmark, without enough labelled public rows, or where it would take too long.

    `student_seconds` is about how long a student takes: one that takes long is left out, and the voters answer.
    """
    if public.benchmark:
        return None
    has_test = public.X_test is not None and public.y_test is not None
    X, y = (public.X_test, public.y_test) if has_test else (public.X_public, public.y_public)
    if X is None or y is None:
        return None
    rows = np.random.default_rng(config.seed).permutation(len(y))[: 2 * _MAX_ROWS]
    rows = rows[np.argsort(y[rows], kind="stable")]
    voting, asked = rows[::2], rows[1::2]  # each has its share of every class
    chance = _by_chance(y[asked])
    if chance is None or len(np.unique(y[voting])) < 2:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        votes = voters_of(config).rehearse(public, X[voting], y[voting], X[asked])
        if votes is None:
            return None
        is_quick = student_seconds / (1 + config.refinements) <= _SECONDS
        shares = _student_shares(config.without_refinement(), public.n_classes, votes, X[asked]) if is_quick else None
    auc = area_under_curve(votes.shares if shares is None else shares, y[asked])
    assert auc is not None
    voters = votes.voters + ("" if shares is None else " and a student")
    return Rehearsal(auc, chance, voters, len(asked), "test" if has_test else "public")


def _student_shares(
    config: Config, n_classes: int, votes: RehearsedVotes, held_out: NDArray
) -> NDArray[np.float64] | None:
    """What a student of such votes says about the other half; None where there can be none."""
    from pate.students._stage import fit_student

    quiet = Quiet()
    try:
        with tempfile.TemporaryDirectory(prefix="pate-") as folder:
            checkpoint = Path(folder) / "checkpoint"
            student = fit_student(config, votes.examples, votes.labels, votes.labelled, n_classes, checkpoint, quiet)
        shares = np.zeros((len(held_out), n_classes))
        shares[:, student.classes_] = student.predict_proba(held_out)
    except Exception:  # of anybody's class; whether a run's student works is tried elsewhere
        return None
    return shares


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
