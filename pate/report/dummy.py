"""A report before there is anything to report: whether it can be stored and drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pate.data.public import groupings
from pate.report.builder import described_report
from pate.report.fairness import group_figures, without_privacy
from pate.report.schema import Agreement, Benchmark, Calibration, EpsilonCurves, ReleasedLabels, Report, Student

if TYPE_CHECKING:
    from pate.data.public import PublicData
    from pate.voters.base import Voters


def dummy_report(voters: Voters[Any], data: PublicData, epsilon: float) -> Report:
    """A report with the names that the real one will have, and figures that mean nothing."""
    config = voters.config
    n, groups = len(data.classes), groupings(data, config.report.groups)
    n_queries, n_answers = voters.query_limits
    curves = EpsilonCurves(queries=(1, n_queries), epsilon={"for every data set": (epsilon / 2, epsilon)})
    confusion = tuple(tuple(3 if i == j else int(j == (i + 1) % n) for j in range(n)) for i in range(n))
    y = np.arange(n) if data.y_test is None or not len(data.y_test) else data.y_test
    benchmark = Benchmark(
        note="made up",
        label_accuracy=0.5,
        nonprivate_accuracy=0.5,
        without_privacy=without_privacy(groups, y, y, y, n),
    )
    return described_report(
        voters,
        data,
        epsilon,
        asked=n_queries,
        answered=n_answers,
        student=Student(
            name=config.student.name,
            test_examples=4 * n,
            accuracy=0.75,
            confusion=confusion,
            balanced_accuracy=0.75,
            recall=(0.75,) * n,
            groups=group_figures(groups, y, y, n),
            commonest_share=1 / n,
            auc=0.5,
            calibration=Calibration(error=0.1, bins=((0.5, 0.6, 4 * n),)),
            public_predictions=(1,) * n,
            agreement=Agreement(share=0.5, error=0.1, mean_over_classes=0.5, commonest=0.5, labels=n),
        ),
        labels=ReleasedLabels(by_class=(1,) * n, commonest_share=1 / n, expected_shares=(1 / n,) * n),
        benchmark=benchmark if data.benchmark else None,
        curves=curves,
    )
