"""Rounds of teachers: those of a later round may see what the student of the rounds before has learned to see.

All rounds have one partition, one mechanism and one budget, so a record moves one vote in every query, whatever the
round, and ε is that of all their queries, known before the first. What a later round's teachers see depends on released
labels: the cost of the limits holds by adaptive composition, a data-dependent ε does not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pate.students.stage import StudentFeatures
from pate.voters.teachers.settings import TeachersConfig

Seen = Callable[[int, NDArray[np.int64]], StudentFeatures]
"""What a student of the labels of the rounds up to this one sees; kept, so that a resumed run has the same."""


@dataclass(frozen=True)
class TeacherRound:
    """A round: its number from 1 on, its config, in which `teachers` are its own, and whether they see by a student."""

    number: int
    config: TeachersConfig
    queries: int
    by_student: bool


def teacher_rounds(config: TeachersConfig) -> tuple[TeacherRound, ...]:
    """The rounds of a config; one where it lists none."""
    if not config.teacher_rounds:
        return (TeacherRound(1, config, config.budget.max_queries, False),)
    return tuple(
        TeacherRound(number, config.of_round(number), one.queries, one.features == "student")
        for number, one in enumerate(config.teacher_rounds, start=1)
    )


def run_rounds(
    config: TeachersConfig,
    X: NDArray,
    needs_votes: Callable[[NDArray], bool],
    vote: Callable[[TeacherRound, NDArray, StudentFeatures | None], None],
    ask: Callable[[NDArray], NDArray[np.int64]],
    seen: Seen,
) -> NDArray[np.int64]:
    """Labels of the first examples of `X`, round by round: train and `vote` where that is still needed, then `ask`."""
    labels = np.zeros(0, dtype=np.int64)
    for round_ in teacher_rounds(config):
        queries = X[len(labels) : len(labels) + round_.queries]
        if needs_votes(queries):
            vote(round_, queries, seen(round_.number - 1, labels) if round_.by_student else None)
        labels = np.concatenate([labels, ask(queries)])
    return labels
