"""A small report, as a run stores it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pate.report.schema import BaselineReport, Report

FACTS = {
    "kind": "teachers",
    "method": "PATE, gnmax, 9 teachers",
    "labelled": 10,
    "figures": [],
    "counts": [],
    "steps": [],
    "summary": "s",
    "sensitivity": "s",
    "limits": [],
    "labels": "l",
}
QUERIES = {"asked": 10, "answered": 10, "max_queries": 10, "max_answers": 10}
_OF_A_RUN = {
    "voters": FACTS,
    "mechanism": {"name": "gnmax"},
    "description": {"title": "t", "releases": "r"},
    "queries": QUERIES,
}
SANITISED = {"epsilon": 1.5, "delta": 1e-5, "order": 8.0, "rdp_bound": 0.1, "release_rdp": 0.01}


def report_content(baseline: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """The report of a run with these fields; that of a baseline, if `baseline` is its method."""
    own = _OF_A_RUN if baseline is None else {"kind": "baseline", "method": baseline, "planned": {}}
    privacy = {"epsilon": 3.0, "delta": 1e-5, "unit": "record", "statement": "s", "sanitised": SANITISED}
    common = {"name": "p", "pate_version": "1", "config_digest": "d", "classes": ["a", "b"], "benchmark": None}
    content = common | own | {"student": {}} | changes
    student = {"name": "s", "accuracy": 0.8, "test_examples": 200} | content["student"]
    return content | {"privacy": privacy | changes.get("privacy", {}), "student": student}


def store_run(folder: Path, config: str = "student: {name: supervised}", **changes: Any) -> Path:
    """A folder with such a report, a config, and a data-dependent ε."""
    (folder / "private").mkdir(parents=True)
    (folder / "report.json").write_text(json.dumps(report_content(**changes)))
    (folder / "config.yaml").write_text(f"seed: 1\n{config}\n")
    (folder / "private" / "epsilon.json").write_text('{"epsilon_data_dependent": 0.7, "delta": 1e-5}')
    return folder


FIELDS_OF_BOTH = """
benchmark benchmark.curve benchmark.label_accuracy benchmark.nonprivate_accuracy benchmark.note
benchmark.public_accuracy benchmark.public_examples benchmark.without_privacy
benchmark.without_privacy.balanced_accuracy benchmark.without_privacy.groups benchmark.without_privacy.groups.accuracy
benchmark.without_privacy.groups.balanced_accuracy benchmark.without_privacy.groups.class_examples
benchmark.without_privacy.groups.column benchmark.without_privacy.groups.error
benchmark.without_privacy.groups.examples benchmark.without_privacy.groups.recall
benchmark.without_privacy.groups.too_few benchmark.without_privacy.groups.value benchmark.without_privacy.lost
benchmark.without_privacy.lost.error benchmark.without_privacy.lost.share benchmark.without_privacy.lost_by_class
benchmark.without_privacy.lost_by_class.error benchmark.without_privacy.lost_by_class.share
benchmark.without_privacy.lost_by_group benchmark.without_privacy.lost_by_group.by_class
benchmark.without_privacy.lost_by_group.by_class.error benchmark.without_privacy.lost_by_group.by_class.share
benchmark.without_privacy.lost_by_group.error benchmark.without_privacy.lost_by_group.share
benchmark.without_privacy.recall classes config_digest data name pate_version privacy privacy.delta privacy.epsilon
privacy.epsilon_added_or_removed privacy.sanitised privacy.sanitised.delta privacy.sanitised.epsilon
privacy.sanitised.order privacy.sanitised.rdp_bound privacy.sanitised.release_rdp privacy.statement privacy.together
privacy.together.delta privacy.together.epsilon privacy.together.others privacy.together.shared_ledger
privacy.together.uncounted privacy.together.unit privacy.unit schema_version student student.accuracy
student.agreement student.agreement.commonest student.agreement.error student.agreement.labels
student.agreement.mean_over_classes student.agreement.share student.auc student.balanced_accuracy student.calibration
student.calibration.bins student.calibration.error student.commonest_share student.confusion student.groups
student.groups.accuracy student.groups.balanced_accuracy student.groups.class_examples student.groups.column
student.groups.error student.groups.examples student.groups.recall student.groups.too_few student.groups.value
student.name student.public_predictions student.recall student.test_digest student.test_examples versions warnings
"""
"""Of report.json, every field that may be published: of a run and a baseline alike."""
FIELDS_OF_A_RUN = """
anchored curves curves.epsilon curves.queries description description.releases description.subsampled
description.title labels labels.by_class labels.commonest_share labels.expected_shares mechanism public_examples
queries queries.adaptive queries.answered queries.asked queries.max_answers queries.max_queries queries.rounds voters
voters.counts voters.figures voters.kind voters.labelled voters.labels voters.limits voters.method voters.n_teachers
voters.sensitivity voters.settings voters.steps voters.summary voters.teachers voters.teachers.features
voters.teachers.name voters.teachers.params voters.teachers.teachers
"""
"""And of a run alone."""
FIELDS_OF_A_BASELINE = """
kind method planned
"""
"""And of a baseline alone."""


def full_report(**changes: Any) -> Report:
    """A run's report that has all there can be, each figure another one."""
    return Report.model_validate(report_content(**{**_FULL, "student": STUDENT, "privacy": PRIVACY} | changes))


def full_baseline() -> BaselineReport:
    """A baseline's, as full."""
    benchmark = _FULL["benchmark"] | {"public_accuracy": 0.79, "public_examples": 555, "label_accuracy": None}
    method = {"name": "dp_sgd", "lot_size": 64}
    content = report_content(
        baseline="dp_sgd", student=STUDENT, privacy=PRIVACY, benchmark=benchmark, classes=["no", "yes"]
    )
    return BaselineReport.model_validate(content | {"method": method, "planned": {"sigma": 3.3, "steps": 321}})


def _group(
    value: str, examples: int, right: float, recall: tuple[float, float], sizes: tuple[int, int]
) -> dict[str, Any]:
    own = {"column": "sex", "value": value, "examples": examples, "accuracy": right, "class_examples": sizes}
    return own | {"too_few": False, "error": 0.021, "balanced_accuracy": sum(recall) / 2, "recall": recall}


def _lost(share: float, error: float, **more: Any) -> dict[str, Any]:
    return {"share": share, "error": error, **more}


STUDENT = {
    "name": "gan",
    "test_examples": 200,
    "accuracy": 0.825,
    "test_digest": "t",
    "confusion": ((113, 26), (9, 52)),
    "balanced_accuracy": 0.831,
    "recall": (113 / 139, 52 / 61),
    "groups": (_group("f", 83, 0.847, (0.861, 0.778), (48, 35)), _group("m", 117, 0.806, (0.789, 0.864), (82, 35))),
    "commonest_share": 0.695,
    "auc": 0.913,
    "calibration": {"error": 0.043, "bins": ((0.56, 0.52, 44), (0.94, 0.91, 156))},
    "public_predictions": (1301, 502),
    "agreement": None,
}
PRIVACY = {
    "epsilon": 2.34,
    "delta": 1e-5,
    "epsilon_added_or_removed": 1.17,
    "sanitised": {"epsilon": 1.56, "delta": 2e-5, "order": 8.0, "rdp_bound": 0.1, "release_rdp": 0.01},
    "together": {"epsilon": 5.67, "delta": 3e-5, "others": 3, "uncounted": 4, "shared_ledger": False, "unit": "record"},
}
_FULL: dict[str, Any] = {
    "voters": FACTS
    | {"labelled": 65, "figures": [("voters", "12 votes")], "counts": [("voters", "14")]}
    | {
        "steps": [("Private records", "15 parts"), ("Labels", "16 labels")],
        "sensitivity": "17 votes",
        "summary": "18 teachers",
    }
    | {"limits": ["19 queries"], "labels": "20 labels", "teachers": [{"name": "svm", "teachers": 21}]},
    "anchored": True,
    "classes": ["no", "yes"],
    "queries": {"asked": 88, "answered": 66, "max_queries": 99, "max_answers": 77},
    "labels": {"by_class": (37, 29), "commonest_share": 0.561},
    "public_examples": 444,
    "curves": {"queries": (1, 99), "epsilon": {"tight": (0.31, 2.34)}},
    "data": "mnist",
    "versions": {"numpy": "2.0"},
    "benchmark": {
        "note": "public data",
        "label_accuracy": 0.936,
        "nonprivate_accuracy": 0.972,
        "without_privacy": {
            "balanced_accuracy": 0.967,
            "recall": (0.981, 0.953),
            "groups": (
                _group("f", 83, 0.961, (0.992, 0.934), (48, 35)),
                _group("m", 117, 0.983, (0.974, 0.957), (82, 35)),
            ),
            "lost": _lost(0.147, 0.022),
            "lost_by_class": (_lost(0.168, 0.031), _lost(0.101, 0.032)),
            "lost_by_group": (
                _lost(0.114, 0.033, by_class=(_lost(0.131, 0.041), _lost(0.156, 0.042))),
                _lost(0.177, 0.034, by_class=(_lost(0.185, 0.043), _lost(0.093, 0.044))),
            ),
        },
    },
}
