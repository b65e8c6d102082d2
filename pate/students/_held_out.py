"""How well a student agrees with released labels that it was not taught: what can be told without any test label.

All labels are released, so it costs no privacy. Labels that are wrong lower the agreement of all students alike. Labels
of one cell, or of examples that are equal, were given together: they are held out together, and count as one.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pate.config import Config
from pate.mechanisms import UNANSWERED
from pate.runs._console import Console, Quiet
from pate.runs.run import Run
from pate.storage._files import write_arrays
from pate.students._neural import equal_examples
from pate.students._posterior import Labelled
from pate.students._stage import fit_bare_student, new_student, student_inputs

if TYPE_CHECKING:
    from pate.data.public import PublicData
    from pate.runs.context import RunContext
    from pate.voters.base import Release

FOLDS = 3
_FEWEST = 9  # groups of labels: with fewer, no share means anything


@dataclass(frozen=True)
class HeldOut:
    """What students said about each label that they were not taught, beside the label and how much it counts."""

    predicted: NDArray[np.int64]
    labels: NDArray[np.int64]
    weights: NDArray[np.float64]
    groups: NDArray[np.int64]

    @property
    def share(self) -> float:
        """The share of the labels, by weight, that they agree with."""
        return float((self.weights * self._right).sum() / self.weights.sum())

    @property
    def error(self) -> float:
        """The standard error of `share`, group by group."""
        return self._error_of(self._right - self.share)

    @property
    def balanced(self) -> float:
        """The mean over classes of the share of their labels."""
        shares = [
            (self.weights * self._right)[own].sum() / self.weights[own].sum()
            for own in (self.labels == label for label in np.unique(self.labels))
            if self.weights[own].sum() > 0
        ]
        return float(np.mean(shares))

    @property
    def commonest(self) -> float:
        """The share that always saying the commonest label would agree with."""
        return float(np.bincount(self.labels, self.weights).max() / self.weights.sum())

    def is_better_than(self, other: HeldOut) -> bool:
        """Whether the lead in `balanced` over another student on the same labels is more than two standard errors."""
        ahead, even = self._right.astype(np.float64) - other._right, self._even
        mean = float((even * ahead).sum() / even.sum())
        return mean > 2 * replace(self, weights=even)._error_of(ahead - mean)

    @property
    def _even(self) -> NDArray[np.float64]:
        """Weights with which every class counts the same."""
        of_class = np.bincount(self.labels, self.weights)
        return self.weights / np.maximum(of_class, 1e-300)[self.labels]

    @property
    def _right(self) -> NDArray[np.bool_]:
        return self.predicted == self.labels

    def _error_of(self, residuals: NDArray) -> float:
        sums = np.bincount(self.groups, self.weights * residuals)
        return float(np.sqrt((sums**2).sum()) / self.weights.sum())


def student_name(config: Config) -> str:
    """A name for a student: what it is, and a digest of all that makes it differ from others.

    >>> from pate.config import load_config
    >>> student_name(load_config(None, ["student={name: supervised, params: {estimator: sklearn.svm.SVC}}"]))[:4]
    'SVC-'
    """
    given = config.student
    kind = str(given.params.get("estimator", given.name) if given.name == "supervised" else given.name)
    content = json.dumps([given.model_dump(mode="json"), config.seed, config.refinements], sort_keys=True, default=str)
    short = re.sub(r"[^A-Za-z0-9_-]", "", kind.rpartition(".")[2])[:40] or "student"
    return f"{short}-{blake2b(content.encode(), digest_size=4).hexdigest()}"


def held_out(
    config: Config,
    data: PublicData,
    labels: NDArray[np.int64],
    labelled: Labelled | None,
    run: Run,
    console: Console,
    tries: int = FOLDS,
) -> HeldOut | None:
    """Agreement of students taught all but a third of the labels with that third, for the first `tries` thirds.

    None where there are too few labels.

    `labels` and `labelled` as for `train_student`. What was found is kept, and not computed again.
    """
    places = np.arange(len(labels)) if labelled is None else labelled.rows
    counts = labels != UNANSWERED if labelled is None else labelled.weights > 0
    groups = _groups(data.X_public[places], None if labelled is None else labelled.cells)
    fold = np.random.default_rng(config.seed).permutation(groups.max(initial=-1) + 1)[groups] % FOLDS
    if len(np.unique(groups[counts])) < _FEWEST:
        return None
    path = run.held_out_folder / f"{student_name(config)}-{tries}.npz"
    predicted = _kept(path, len(labels))
    if predicted is None:
        seen = student_inputs(config, data.X_public, console)
        predicted = np.full(len(labels), UNANSWERED, dtype=np.int64)
        with console.track("students without a third of the labels", tries) as update:
            for number in range(tries):
                back = fold == number
                rest = _without(labels, labelled, back)
                student = fit_bare_student(config, seen, *rest, len(data.classes), run.student_checkpoint, Quiet())
                predicted[back] = student.predict(seen[places[back]])
                update(number + 1)
        path.parent.mkdir(exist_ok=True, mode=0o700)
        write_arrays(path, {"predicted": predicted})
    weights = np.ones(len(labels)) if labelled is None else labelled.weights
    counts &= predicted != UNANSWERED
    return HeldOut(predicted[counts], labels[counts], weights[counts], groups[counts])


def held_out_unless_tested(context: RunContext, release: Release) -> HeldOut | None:
    """Agreement with held-out labels, where there are no test labels to tell how good the student is."""
    config, public = context.config, context.public
    if public.X_test is not None and public.y_test is not None:
        return None
    tries = count_run_tries(config)
    return held_out(config, public, release.labels, release.labelled, context.run, context.console, tries)


def count_run_tries(config: Config) -> int:
    """How many thirds a run itself holds out: one where a student takes many steps of training, else all."""
    return 1 if hasattr(new_student(config), "steps") else FOLDS


def _without(
    labels: NDArray[np.int64], labelled: Labelled | None, back: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], Labelled | None]:
    """The labels but those that are held back, whose examples count as unlabelled."""
    if labelled is None:
        return np.where(back, UNANSWERED, labels), None
    cells = None if labelled.cells is None else labelled.cells[~back]
    rest = Labelled(labelled.rows[~back], labelled.labels[~back], labelled.weights[~back], cells)
    return rest.labels, rest


def _groups(X: NDArray, cells: NDArray[np.int64] | None) -> NDArray[np.int64]:
    """The number of the group of each label: its cell, or its example."""
    if cells is not None:
        return np.unique(cells, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return equal_examples(X)


def _kept(path: Path, n: int) -> NDArray[np.int64] | None:
    try:
        with np.load(path, allow_pickle=False) as archive:
            predicted: NDArray[np.int64] = archive["predicted"]
    except Exception:  # not there, or damaged: it can be computed again
        return None
    return predicted if predicted.shape == (n,) else None
