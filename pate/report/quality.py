"""Whether a student is any good, from what may be published: released labels, test examples, public examples.

Accuracy alone deceives where classes are skewed: always saying the commonest is right on most of them. So beside it
stand what that would be right on, the recall of every class, and words where a student or its labels have collapsed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pate.data.public import groupings
from pate.mechanisms import UNANSWERED
from pate.report.explanations import is_majority_class_model
from pate.report.fairness import group_figures, mean_over_classes, recall_of
from pate.report.figures import confusion_of
from pate.report.formats import percent
from pate.report.schema import Agreement, Calibration, ReleasedLabels, Report, Student

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pate.data.public import PublicData
    from pate.report.schema import BaselineReport
    from pate.students.held_out import HeldOut
    from pate.students.posterior import Labelled

_BINS = 10
_ONE_CLASS = 0.95  # of the labels: a student of these can hardly learn another
_ALL_ONE_CLASS = 0.99  # of the examples, by the student
_HARDLY = 0.01  # of what examples are expected to be: a class that hardly any share says
_PUBLIC = 2_000  # examples that the student is asked about, at most
_FEWEST = 20  # labels or examples: of fewer, one class may have them all by chance


def measured(
    name: str,
    model: Any,
    data: PublicData,
    *,
    groups: Sequence[str] = (),
    agreement: HeldOut | None = None,
    shaped: Any = lambda X: X,
) -> tuple[Student, NDArray[np.int64] | None]:
    """The figures of a model on test examples, where there are labels, and its answers to them.

    `groups` are columns that test examples are counted by, `agreement` is what was found of labels that were held out,
    and `shaped` makes examples what the model takes.
    """
    n_classes, X, y = len(data.classes), data.X_test, data.y_test
    some = data.X_public[:: -(-len(data.X_public) // _PUBLIC)]
    said = tuple(int(n) for n in np.bincount(model.predict(shaped(some)), minlength=n_classes))
    found = Student(
        name=name,
        test_examples=len(X) if X is not None else 0,
        accuracy=None,
        public_predictions=said,
        agreement=None if agreement is None else _agreement(agreement),
    )
    if X is None or y is None or not len(X):
        return found, None
    predicted, shares = _answers(model, shaped(X), n_classes)
    confusion = confusion_of(predicted, y, n_classes)
    figures = {
        "accuracy": float((predicted == y).mean()),
        "test_digest": data.test_digest(),
        "confusion": confusion,
        "balanced_accuracy": balanced_accuracy(np.array(confusion)),
        "recall": recall_of(confusion),
        "groups": group_figures(groupings(data, groups), predicted, y, n_classes),
        "commonest_share": float(np.bincount(y, minlength=n_classes).max() / len(y)),
        "auc": None if shares is None else area_under_curve(shares, y),
        "calibration": None if shares is None else calibration(_of_predicted(shares, predicted), predicted == y),
    }
    return found.model_copy(update=figures), predicted


def balanced_accuracy(confusion: NDArray[np.int64]) -> float:
    """The mean over the classes that occur of the share that is recognised.

    >>> balanced_accuracy(np.array([[90, 0], [5, 5]]))
    0.75
    """
    mean = mean_over_classes(recall_of(confusion.tolist()))
    assert mean is not None
    return mean


def _of_predicted(shares: NDArray[np.float64], predicted: NDArray[np.int64]) -> NDArray[np.float64]:
    """The probability of each predicted class, which need not be the likeliest, as one column."""
    return np.take_along_axis(shares, predicted[:, None], axis=1)


def area_under_curve(shares: NDArray[np.float64], y: NDArray[np.int64]) -> float | None:
    """The probability that an example of a class has a larger share of it than one of another class; of several
    classes, their mean. None where only one class occurs.

    >>> area_under_curve(np.array([[0.9, 0.1], [0.6, 0.4], [0.7, 0.3], [0.2, 0.8]]), np.array([0, 0, 1, 1]))
    0.75
    """
    from scipy.stats import rankdata

    areas = []
    for label in range(shares.shape[1]):
        own = int((y == label).sum())
        if 0 < own < len(y):
            ranks = rankdata(shares[:, label])[y == label].sum()
            areas.append((ranks - own * (own + 1) / 2) / (own * (len(y) - own)))
    return float(np.mean(areas)) if areas else None


def calibration(shares: NDArray[np.float64], right: NDArray[np.bool_]) -> Calibration:
    """How sure the model is of its answers, in tenths, beside how often it is right."""
    sure = shares.max(axis=1)
    which = np.minimum((sure * _BINS).astype(int), _BINS - 1)
    bins = [
        (float(sure[which == b].mean()), float(right[which == b].mean()), int((which == b).sum()))
        for b in range(_BINS)
        if (which == b).any()
    ]
    error = sum(n * abs(said - was) for said, was, n in bins) / len(sure)
    return Calibration(error=float(error), bins=tuple(bins))


def released_labels(labels: NDArray[np.int64], labelled: Labelled | None, n_classes: int) -> ReleasedLabels:
    """How many labels each class has; of examples that have several, the likeliest counts."""
    expected = None
    if labelled is not None:
        weights = np.bincount(labelled.labels, labelled.weights, minlength=n_classes)
        expected = tuple(float(share) for share in weights / max(weights.sum(), 1e-300))
        order = np.lexsort((-labelled.weights, labelled.rows))
        first = np.unique(labelled.rows[order], return_index=True)[1]
        labels = labelled.labels[order][first]
    answered = labels[labels != UNANSWERED]
    counts = np.bincount(answered, minlength=n_classes)
    return ReleasedLabels(
        by_class=tuple(int(n) for n in counts),
        commonest_share=float(counts.max() / max(1, counts.sum())),
        expected_shares=expected,
    )


def warnings_of(report: Report | BaselineReport) -> tuple[str, ...]:
    """What people should know before they use the student, in words; most serious first."""
    names, student, found = report.classes, report.student, []
    if student.accuracy is not None and student.confusion is not None and is_majority_class_model(student):
        common = names[int(np.array(student.confusion).sum(axis=1).argmax())]
        found.append(
            f"It is right on {percent(student.accuracy)} of the test examples, and always saying {common!r} would be "
            f"right on {percent(student.commonest_share)}."
        )
    found += _collapsed(student.public_predictions, names, getattr(report, "public_examples", None))
    if isinstance(report, Report) and report.labels is not None:
        found += _one_sided(report.labels, names)
    agreement = student.agreement
    if agreement is not None and agreement.share <= agreement.commonest:
        found.append(
            f"It agrees with {percent(agreement.share)} of the released labels that it was not taught, and always "
            f"saying the commonest class would agree with {percent(agreement.commonest)}."
        )
    return tuple(found)


def _collapsed(said: tuple[int, ...] | None, names: tuple[str, ...], there_are: int | None) -> list[str]:
    total = sum(said or ())
    if said is None or total < _FEWEST or max(said) < _ALL_ONE_CLASS * total:
        return []
    asked = f"{total:,} of the {there_are:,} public examples" if there_are else f"{total:,} public examples"
    return [
        f"Asked about {asked}, the student says {names[said.index(max(said))]!r} of {_part(max(said), total)}: it has "
        "collapsed to one class."
    ]


def _one_sided(labels: ReleasedLabels, names: tuple[str, ...]) -> list[str]:
    """Counted are labels; where examples have shares of several, those: the likeliest of each would hide the others."""
    counts, total = labels.by_class, sum(labels.by_class)
    shares = labels.expected_shares or tuple(n / max(1, total) for n in counts)
    if total < _FEWEST:
        return []
    if max(shares) >= _ONE_CLASS:
        common = names[shares.index(max(shares))]
        said = f"Of the {total:,} released labels, {_part(max(counts), total)} say {common!r}"
        if labels.expected_shares is not None:
            said = f"By the released counts, {percent(max(shares))} of the {total:,} public examples are {common!r}"
        return [f"{said}: there is little else to learn from them."]
    absent = [name for name, n, share in zip(names, counts, shares, strict=True) if n == 0 and share < _HARDLY]
    if not absent:
        return []
    shown = ", ".join(map(repr, absent[:5])) + (" and others" if len(absent) > 5 else "")
    return [f"No released label says {shown}: the student cannot know of it."]


def _part(n: int, total: int) -> str:
    """A number of things for people, of whom the total is known.

    >>> _part(199, 200), _part(200, 200)
    ('199 (99.5 %)', 'all')
    """
    return "all" if n == total else f"{n:,} ({percent(n / total)})"


def _answers(model: Any, X: NDArray, n_classes: int) -> tuple[NDArray[np.int64], NDArray[np.float64] | None]:
    """Classes, and a column of probabilities for each class; None where the model gives none."""
    if hasattr(model, "answers"):
        predicted, found = model.answers(X)
    else:
        predicted = model.predict(X)
        if not hasattr(model, "predict_proba"):
            return predicted, None
        found = model.predict_proba(X)
    found, shares = np.asarray(found, dtype=np.float64), np.zeros((len(X), n_classes))
    known = np.asarray(getattr(model, "classes_", np.arange(n_classes)), dtype=np.int64)
    if found.shape != (len(X), len(known)) or not np.isfinite(found).all():
        return predicted, None
    shares[:, known] = found
    return predicted, shares


def _agreement(found: HeldOut) -> Agreement:
    return Agreement(
        share=found.share,
        error=found.error,
        mean_over_classes=found.balanced,
        commonest=found.commonest,
        labels=len(found.labels),
    )
