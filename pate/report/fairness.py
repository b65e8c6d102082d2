"""How right a model is on each class and group of test examples, and what each of them lost to privacy.

Test examples count as public. What a model without privacy does on them is known of benchmarks alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pate.report.figures import confusion_of
from pate.report.schema import Group, GroupLost, Lost, NonprivateComparison

if TYPE_CHECKING:
    from pate.data.public import Grouping

FEWEST = 30
"""Test examples: a share of fewer has a standard error of up to nine points and more."""

Classes = NDArray[np.int64]
"""A class for each test example."""


def recall_of(confusion: Sequence[Sequence[int]]) -> tuple[float | None, ...]:
    """The share of each class that is recognised, by true class (rows) and answer; None where a class does not occur.

    >>> recall_of([[1, 1, 0], [0, 1, 0], [0, 0, 0]])
    (0.5, 1.0, None)
    """
    return tuple(row[label] / sum(row) if sum(row) else None for label, row in enumerate(confusion))


def mean_over_classes(recall: Sequence[float | None]) -> float | None:
    """Balanced accuracy: the mean over the classes that occur.

    >>> mean_over_classes((0.5, 1.0, None))
    0.75
    """
    known = [share for share in recall if share is not None]
    return sum(known) / len(known) if known else None


def group_figures(
    groupings: Sequence[Grouping], predicted: Classes, truth: Classes, n_classes: int
) -> tuple[Group, ...]:
    """How right a model is on each group, those without test examples too: that nobody knows is worth telling."""
    return tuple(
        _group(grouping.column, value, predicted[members], truth[members], n_classes)
        for grouping, value, members in _each_group(groupings)
    )


def without_privacy(
    groupings: Sequence[Grouping], private: Classes, nonprivate: Classes, truth: Classes, n_classes: int
) -> NonprivateComparison:
    """The answers of a model without privacy beside those of a private one to the same test examples."""
    recall = recall_of(confusion_of(nonprivate, truth, n_classes))
    balanced = mean_over_classes(recall)
    assert balanced is not None
    loss = (nonprivate == truth).astype(np.int64) - (private == truth)
    whole = lost_by(loss)
    assert whole is not None
    return NonprivateComparison(
        balanced_accuracy=balanced,
        recall=recall,
        groups=group_figures(groupings, nonprivate, truth, n_classes),
        lost=whole,
        lost_by_class=tuple(lost_by(loss[own]) for own in _each_class(truth, n_classes)),
        lost_by_group=tuple(
            _lost_by_group(loss[members], truth[members], n_classes) for *_, members in _each_group(groupings)
        ),
    )


def lost_by(loss: NDArray[np.int64]) -> Lost | None:
    """Mean accuracy loss and its standard error, from examples that were lost (1), gained (−1) or kept (0).

    Two models err on much the same examples, so this error is smaller than that of two shares apart. It counts half an
    example more of each of the four pairs of answers (Agresti and Min, Statistics in Medicine 24, 2005, "Wald+2"): what
    is so of all of a few examples is not taken for certain.

    >>> found = lost_by(np.array([1] * 10 + [-1] * 4 + [0] * 86))
    >>> found.share, round(found.error, 4)
    (0.06, 0.0375)
    """
    if not len(loss):
        return None
    lost, gained, n = int((loss == 1).sum()), int((loss == -1).sum()), len(loss) + 2
    error = math.sqrt(lost + gained + 1 - (lost - gained) ** 2 / n) / n
    return Lost(share=float(loss.mean()), error=error)


def error_of_share(right: int, n: int) -> float:
    """The standard error of a share, likewise: with half an example more that is right, and half a wrong one.

    >>> round(error_of_share(80, 100), 3), round(error_of_share(30, 30), 3)
    (0.04, 0.023)
    """
    share = (right + 0.5) / (n + 1)
    return math.sqrt(share * (1 - share) / (n + 1))


def _lost_by_group(loss: NDArray[np.int64], truth: Classes, n_classes: int) -> GroupLost | None:
    whole = lost_by(loss)
    if whole is None:
        return None
    by_class = tuple(lost_by(loss[own]) for own in _each_class(truth, n_classes))
    return GroupLost(share=whole.share, error=whole.error, by_class=by_class)


def _group(column: str, value: str, predicted: Classes, truth: Classes, n_classes: int) -> Group:
    n, right, confusion = len(truth), int((predicted == truth).sum()), confusion_of(predicted, truth, n_classes)
    recall = recall_of(confusion)
    return Group(
        column=column,
        value=value,
        examples=n,
        too_few=n < FEWEST,
        accuracy=right / n if n else None,
        error=error_of_share(right, n) if n else None,
        balanced_accuracy=mean_over_classes(recall),
        recall=recall,
        class_examples=tuple(sum(row) for row in confusion),
    )


def _each_class(truth: Classes, n_classes: int) -> list[NDArray[np.bool_]]:
    return [truth == label for label in range(n_classes)]


def _each_group(groupings: Sequence[Grouping]) -> list[tuple[Grouping, str, NDArray[np.bool_]]]:
    return [
        (grouping, value, grouping.members == number)
        for grouping in groupings
        for number, value in enumerate(grouping.values)
    ]
