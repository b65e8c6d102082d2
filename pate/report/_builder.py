"""The report of a run, from what came out of the trust boundary and from public data.

Test examples count as public. Accuracy alone deceives where classes are skewed: always saying the commonest is right on
most of them. So beside it stand what that would be right on, the recall of every class, and how sure the model is.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pate import __version__
from pate.data.public import PublicData, groupings
from pate.mechanisms import UNANSWERED
from pate.report.schema import (
    Agreement,
    Benchmark,
    Calibration,
    Description,
    EpsilonCurves,
    Group,
    GroupLost,
    Lost,
    NonprivateComparison,
    Privacy,
    Queries,
    ReleasedLabels,
    Report,
    Sanitised,
    Student,
)
from pate.report.sections._groups import FEWEST, error_of_share, mean_of_known
from pate.report.sections._pipeline import likeliest_labels
from pate.report.sections._privacy import privacy_statement
from pate.report.sections._quality import warnings_of

if TYPE_CHECKING:
    from pate.data._settings import DataSettings
    from pate.data.public import Grouping, PublicData
    from pate.runs.context import RunContext
    from pate.students._posterior import Labelled
    from pate.students._stage import HeldOut
    from pate.voters.base import Release, Voters


Classes = NDArray[np.int64]
"""A class for each test example."""

_BINS = 10
_PUBLIC = 2_000  # examples that the student is asked about, at most


def measure(
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
    said = np.bincount(model.predict(shaped(some)), minlength=n_classes)
    found = Student(
        name=name,
        test_examples=len(X) if X is not None else 0,
        accuracy=None,
        public_predictions=tuple(said.tolist()),
        agreement=None
        if agreement is None
        else Agreement(
            share=agreement.share,
            error=agreement.error,
            mean_over_classes=agreement.balanced,
            commonest=agreement.commonest,
            labels=len(agreement.labels),
        ),
    )
    if X is None or y is None or not len(X):
        return found, None
    predicted, shares = _answers(model, shaped(X), n_classes)
    confusion = count_confusion(predicted, y, n_classes)
    recall = recall_of(confusion)
    figures: dict[str, Any] = {
        "accuracy": float((predicted == y).mean()),
        "test_digest": data.test_digest(),
        "confusion": confusion,
        "balanced_accuracy": mean_of_known(recall),
        "recall": recall,
        "groups": group_figures(groupings(data, groups), predicted, y, n_classes),
        "commonest_share": float(np.bincount(y, minlength=n_classes).max() / len(y)),
    }
    if shares is not None:
        sure = shares[np.arange(len(y)), predicted]  # of the answer, which need not be likeliest
        figures |= {"auc": area_under_curve(shares, y), "calibration": calibration(sure, predicted == y)}
    return found.model_copy(update=figures), predicted


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


def count_confusion(predicted: Classes, truth: Classes, n_classes: int) -> tuple[tuple[int, ...], ...]:
    """Test examples by true class (rows) and prediction.

    >>> count_confusion(np.array([0, 1, 1]), np.array([0, 0, 1]), 2)
    ((1, 1), (0, 1))
    """
    from sklearn.metrics import confusion_matrix

    counts = confusion_matrix(truth, predicted, labels=range(n_classes)) if len(truth) else np.zeros([n_classes] * 2)
    return tuple(tuple(int(n) for n in row) for row in counts)


def recall_of(confusion: Sequence[Sequence[int]]) -> tuple[float | None, ...]:
    """The share of each class that is recognised; None where a class does not occur.

    >>> recall_of([[1, 1, 0], [0, 1, 0], [0, 0, 0]])
    (0.5, 1.0, None)
    """
    return tuple(row[label] / sum(row) if sum(row) else None for label, row in enumerate(confusion))


def area_under_curve(shares: NDArray[np.float64], y: Classes) -> float | None:
    """The area under the ROC curve of each class against the rest, on average over the classes that occur.

    None where only one class occurs.

    >>> area_under_curve(np.array([[0.9, 0.1], [0.6, 0.4], [0.7, 0.3], [0.2, 0.8]]), np.array([0, 0, 1, 1]))
    0.75
    """
    from sklearn.metrics import roc_auc_score

    occurring = np.unique(y)
    if len(occurring) < 2:
        return None
    return float(np.mean([roc_auc_score(y == label, shares[:, label]) for label in occurring]))


def calibration(sure: NDArray[np.float64], right: NDArray[np.bool_]) -> Calibration:
    """How sure the model is of its answers, in tenths, beside how often it is right."""
    from sklearn.calibration import calibration_curve

    sure = sure.clip(0.0, 1.0)
    shares, confidences = calibration_curve(right, sure, n_bins=_BINS)
    counts = np.bincount(np.searchsorted(np.linspace(0, 1, _BINS + 1)[1:-1], sure))  # as scikit-learn bins them
    bins = tuple(zip(confidences.tolist(), shares.tolist(), counts[counts > 0].tolist(), strict=True))
    error = sum(n * abs(confidence - share) for confidence, share, n in bins) / len(sure)
    return Calibration(error=error, bins=bins)


def group_figures(
    groupings: Sequence[Grouping], predicted: Classes, truth: Classes, n_classes: int
) -> tuple[Group, ...]:
    """How right a model is on each group, those without test examples too: that nobody knows is worth telling."""
    found = []
    for column, value, members in _each_group(groupings):
        n, right = int(members.sum()), int((predicted == truth)[members].sum())
        confusion = count_confusion(predicted[members], truth[members], n_classes)
        recall = recall_of(confusion)
        found.append(
            Group(
                column=column,
                value=value,
                examples=n,
                too_few=n < FEWEST,
                accuracy=right / n if n else None,
                error=error_of_share(right, n) if n else None,
                balanced_accuracy=mean_of_known(recall),
                recall=recall,
                class_examples=tuple(sum(row) for row in confusion),
            )
        )
    return tuple(found)


def compare_without_privacy(
    groupings: Sequence[Grouping], private: Classes, nonprivate: Classes, truth: Classes, n_classes: int
) -> NonprivateComparison:
    """The answers of a model without privacy beside those of a private one to the same test examples."""
    recall = recall_of(count_confusion(nonprivate, truth, n_classes))
    balanced = mean_of_known(recall)
    assert balanced is not None
    loss = (nonprivate == truth).astype(np.int64) - (private == truth)
    whole = _lost(loss)
    assert whole is not None

    def by_class(members: NDArray[np.bool_]) -> tuple[Lost | None, ...]:
        return tuple(_lost(loss[members & (truth == label)]) for label in range(n_classes))

    lost_by_group: list[GroupLost | None] = []
    for *_, members in _each_group(groupings):
        lost = _lost(loss[members])
        lost_by_group.append(
            None if lost is None else GroupLost(share=lost.share, error=lost.error, by_class=by_class(members))
        )
    return NonprivateComparison(
        balanced_accuracy=balanced,
        recall=recall,
        groups=group_figures(groupings, nonprivate, truth, n_classes),
        lost=whole,
        lost_by_class=by_class(np.ones(len(truth), dtype=bool)),
        lost_by_group=tuple(lost_by_group),
    )


def _lost(loss: NDArray[np.int64]) -> Lost | None:
    """Mean accuracy loss and its standard error, from examples that were lost (1), gained (−1) or kept (0).

    Two models err on much the same examples, so this error is smaller than that of two shares apart. It counts half an
    example more of each of the four pairs of answers (Agresti and Min, Statistics in Medicine 24, 2005, "Wald+2"): what
    is so of all of a few examples is not taken for certain.

    >>> found = _lost(np.array([1] * 10 + [-1] * 4 + [0] * 86))
    >>> found.share, round(found.error, 4)
    (0.06, 0.0375)
    """
    if not len(loss):
        return None
    lost, gained, n = int((loss == 1).sum()), int((loss == -1).sum()), len(loss) + 2
    error = math.sqrt(lost + gained + 1 - (lost - gained) ** 2 / n) / n
    return Lost(share=float(loss.mean()), error=error)


def _each_group(groupings: Sequence[Grouping]) -> list[tuple[str, str, NDArray[np.bool_]]]:
    """Column, value, and which test examples have it."""
    return [
        (grouping.column, value, grouping.members == number)
        for grouping in groupings
        for number, value in enumerate(grouping.values)
    ]


def released_labels(labels: NDArray[np.int64], labelled: Labelled | None, n_classes: int) -> ReleasedLabels:
    """How many labels each class has; of examples that have several, the likeliest counts."""
    expected = None
    if labelled is not None:
        weights = np.bincount(labelled.labels, labelled.weights, minlength=n_classes)
        expected = tuple(float(share) for share in weights / max(weights.sum(), 1e-300))
        _, labels = likeliest_labels(labelled)
    counts = np.bincount(labels[labels != UNANSWERED], minlength=n_classes)
    return ReleasedLabels(
        by_class=tuple(counts.tolist()),
        commonest_share=float(counts.max() / max(1, counts.sum())),
        expected_shares=expected,
    )


_PACKAGES = ("numpy", "scipy", "scikit-learn", "torch", "ray", "dp-accounting")


def report_of_run(
    context: RunContext, release: Release, student: Any, nonprivate: Any = None, *, curves: bool = False
) -> Report:
    """All that a run publishes about itself; `curves` of ε are for its pages, and take seconds."""
    config, data, voters = context.config, context.public, context.voters
    measures, answers = measure(
        config.student.name, student, data, groups=config.report.groups, agreement=context.agreement
    )
    epsilon, delta = context.epsilon, config.budget.delta
    max_queries, max_answers = voters.query_limits
    queries = Queries(
        asked=release.asked,
        answered=release.answered,
        max_queries=max_queries,
        max_answers=max_answers,
        adaptive=voters.is_adaptive,
        rounds=voters.queries_by_round,
    )
    labelled = release.answered if release.labelled is None else len(np.unique(release.rows))
    is_changed = voters.covers_changed_record or data.per_person
    report = Report(
        name=config.name,
        pate_version=__version__,
        config_digest=config.digest(),
        classes=data.classes,
        mechanism=dict(config.mechanism),
        description=describe_mechanism(voters),
        voters=voters.facts(data, queries, labelled),
        queries=queries,
        privacy=Privacy(
            epsilon=epsilon,
            delta=delta,
            unit=data.unit,  # type: ignore[arg-type]
            statement=privacy_statement(epsilon, delta, data.unit, changed=is_changed),
            epsilon_added_or_removed=voters.cost(data.n_classes).added_or_removed,
            sanitised=None if release.sanitised is None else Sanitised(**release.sanitised),
            together=context.together,
        ),
        anchored=context.is_anchored,
        student=measures,
        labels=released_labels(release.labels, release.labelled, data.n_classes),
        benchmark=(
            benchmark_figures(data, answers, config.report.groups, nonprivate, _label_accuracy(data, release))
            if data.benchmark
            else None
        ),
        data=data_name(config.data),
        public_examples=len(data.X_public),
        curves=_curves(voters, data.n_classes) if curves else None,
        versions=software(),
    )
    return report.model_copy(update={"warnings": warnings_of(report)})


def describe_mechanism(voters: Voters[Any]) -> Description:
    """What the mechanism says of itself, for the report to keep."""
    mechanism = voters.mechanism
    subsampled = mechanism.split(voters.n_parts).rate is not None
    return Description(title=mechanism.title, releases=mechanism.describe(), subsampled=subsampled)


def _curves(voters: Voters[Any], n_classes: int) -> EpsilonCurves | None:
    """ε against the number of queries, for every data set."""
    curves = voters.epsilon_curves(n_classes)
    if curves is None:
        return None
    finite = {
        name: tuple(value if math.isfinite(value) else None for value in curve.values())
        for name, curve in curves.items()
    }
    return EpsilonCurves(queries=tuple(next(iter(curves.values()))), epsilon=finite)


def data_name(settings: DataSettings) -> str:
    """The data set by its short name; that of the images where stored votes play the teachers."""
    return str(getattr(settings, "images", settings.source))


def software() -> dict[str, str]:
    """Versions to repeat a run with."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _label_accuracy(data: PublicData, released: Release) -> float | None:
    """The share of released labels that are right; where they have weights, the share of their weight."""
    if data.y_public is None:
        return None
    if released.labelled is not None:
        right = released.labels == data.y_public[released.rows]
        return float(np.average(right, weights=released.labelled.weights)) if len(right) else None
    answered = released.labels != UNANSWERED
    return float((released.labels[answered] == data.y_public[: len(answered)][answered]).mean())


def benchmark_figures(
    data: PublicData,
    answers: Any,
    groups: Any,
    nonprivate: Any,
    label_accuracy: float | None = None,
    **more: Any,
) -> Benchmark:
    """Figures that public data playing private may show; `answers` are the model's to test examples."""
    found: dict[str, Any] = {"nonprivate_accuracy": None}
    if nonprivate is not None and answers is not None and data.y_test is not None:
        other, n_classes = nonprivate(), len(data.classes)
        found = {
            "nonprivate_accuracy": float((other == data.y_test).mean()),
            "without_privacy": compare_without_privacy(groupings(data, groups), answers, other, data.y_test, n_classes),
        }
    note = "Public data plays private here; a run on private data would not show these figures."
    return Benchmark(note=note, label_accuracy=label_accuracy, **found, **more)
