"""Which figures leave, by name, and that each is counted from what it says: every array here gives another figure."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score
from sklearn.svm import SVC
from support.reports import FIELDS_OF_A_BASELINE, FIELDS_OF_A_RUN, FIELDS_OF_BOTH, full_baseline, full_report

from pate import __version__, pipeline
from pate.config import Config, parse_config
from pate.data._sources import load
from pate.data.private import Records, records_of
from pate.data.public import PublicData
from pate.report._builder import compare_without_privacy, measure
from pate.report._comparison import compare_runs, comparison_object, table_rows
from pate.report._files import render_statement, run_page, summary_rows, tracked_figures
from pate.report._pages import Page, PageBlock, PageTable, Plot
from pate.report.schema import BaselineReport, Report
from pate.report.sections._privacy import privacy_statement
from pate.runs._console import Quiet
from pate.runs.run import Run
from pate.voters import voters_of


def leaves(value: Any, path: str = "") -> dict[str, Any]:
    """Every value at any depth by its dotted place."""
    if isinstance(value, dict):
        return {k: v for name, item in value.items() for k, v in leaves(item, f"{path}.{name}").items()}
    if isinstance(value, (list, tuple)) and value:
        return {k: v for place, item in enumerate(value) for k, v in leaves(item, f"{path}.{place}").items()}
    return {path: value}


def test_every_figure_is_counted_again(finished_run: Path) -> None:
    """All of report.json, from the released labels, the released student and the data, without the report's code."""
    with Run.load(finished_run) as run:
        config, released, student, found = run.config, run.labels, run.student(), run.report
        public, private = load(run.config.data, None, Path())
    assert isinstance(config, Config)
    assert released is not None
    records, test, truth = records_of(private), public.X_test, public.y_test
    assert test is not None
    assert truth is not None
    assert public.y_public is not None
    predicted, shares = student.predict(test), np.zeros((len(test), 10))
    shares[:, student.classes_] = student.predict_proba(test)  # by chance no label of a class may be released
    nonprivate = SVC().fit(records.X.reshape(len(records), -1), records.y).predict(test.reshape(len(test), -1))
    answered = released.labels >= 0
    assert 0 < answered.sum() < len(released.labels) <= 120, "some are answered and some are not"
    asked = 120 if answered.sum() < 110 else int(np.flatnonzero(answered)[-1]) + 1  # up to the last answer there may be
    sizes = np.bincount(truth, minlength=10)
    sure, right = shares[np.arange(len(truth)), predicted], predicted == truth
    of_class = [int((released.labels == label).sum()) for label in range(10)]
    recall = [float(right[truth == label].mean()) for label in range(10)]
    recall_without = [float((nonprivate == truth)[truth == label].mean()) for label in range(10)]
    lost = compare_without_privacy([], predicted, nonprivate, truth, 10)
    epsilon = voters_of(config).publishable_epsilon(10)
    expected = {
        "schema_version": 1,
        "name": "digits",
        "pate_version": __version__,
        "config_digest": config.digest(),
        "classes": list("0123456789"),
        "data": "digits",
        "anchored": ANY,
        "versions": ANY,
        "warnings": [],
        "public_examples": len(public.X_public),
        "mechanism": dict(config.mechanism),
        "description": {"title": "Confident-GNMax", "releases": ANY, "subsampled": False},
        "voters": dict.fromkeys(("figures", "counts", "steps", "limits", "labels", "summary", "sensitivity"), ANY)
        | {"kind": "teachers", "method": "PATE, confident_gnmax, 40 teachers", "n_teachers": 40, "settings": ANY}
        | {"teachers": ANY, "labelled": int(answered.sum())},
        "queries": {
            "asked": asked,
            "answered": int(answered.sum()),
            "max_queries": 120,
            "max_answers": 110,
            "adaptive": False,
            "rounds": [],
        },
        "privacy": {
            "epsilon": epsilon,
            "delta": 1e-5,
            "unit": "record",
            "statement": privacy_statement(epsilon, 1e-5, "record"),
            "sanitised": {"epsilon": ANY, "delta": 1e-5, "order": 6.0, "rdp_bound": ANY, "release_rdp": ANY},
            "epsilon_added_or_removed": None,
            "together": None,
        },
        "student": {
            "name": "supervised",
            "test_examples": 200,
            "accuracy": right.mean(),
            "test_digest": public.test_digest(),
            "confusion": [[int(((truth == a) & (predicted == b)).sum()) for b in range(10)] for a in range(10)],
            "balanced_accuracy": np.mean(recall),
            "recall": recall,
            "groups": [],
            "commonest_share": sizes.max() / 200,
            "auc": np.mean([roc_auc_score(truth == label, shares[:, label]) for label in range(10)]),
            "calibration": {"error": calibration_error(sure, right), "bins": ANY},
            "public_predictions": np.bincount(student.predict(public.X_public), minlength=10).tolist(),
            "agreement": None,
        },
        "labels": {"by_class": of_class, "commonest_share": max(of_class) / sum(of_class), "expected_shares": None},
        "curves": ANY,
        "benchmark": {
            "note": ANY,
            "label_accuracy": (released.labels == public.y_public[released.rows])[answered].mean(),
            "nonprivate_accuracy": (nonprivate == truth).mean(),
            "without_privacy": {
                "balanced_accuracy": np.mean(recall_without),
                "recall": recall_without,
                "groups": [],
                "lost": {"share": (nonprivate == truth).mean() - right.mean(), "error": lost.lost.error},
                "lost_by_class": [
                    {"share": b - a, "error": one.error}
                    for a, b, one in zip(recall, recall_without, lost.lost_by_class, strict=True)
                    if one is not None
                ],
                "lost_by_group": [],
            },
            "public_accuracy": None,
            "public_examples": None,
            "curve": None,
        },
    }
    with np.load(finished_run / "plots" / "examples.npz") as examples:
        shown = released.rows[:24]
        np.testing.assert_array_equal(examples["rows"], shown)
        np.testing.assert_array_equal(examples["labels"], released.labels[:24])
        np.testing.assert_array_equal(examples["truth"], public.y_public[shown])
        assert np.abs(examples["images"] / 255 - public.X_public[shown]).max() < 0.01
    stored = json.loads((finished_run / "report.json").read_text())
    assert stored == json.loads(found.model_dump_json())
    wanted = leaves(expected)
    free = [path for path, value in wanted.items() if value is ANY]
    own = {path: value for path, value in leaves(stored).items() if not path.startswith(tuple(free))}
    assert stored.keys() == expected.keys()
    assert own.keys() == wanted.keys() - set(free)
    unlike = {path: (value, wanted[path]) for path, value in own.items() if value != pytest.approx(wanted[path])}
    assert not unlike
    for section in ("voters", "privacy", "student", "benchmark"):
        assert stored[section].keys() == expected[section].keys()  # type: ignore[index,attr-defined]


def test_where_records_vote_labels_are_counted_by_their_weights(tmp_path: Path) -> None:
    """Several labels of an example, in other rows than the first: each is right by the truth of its own row."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(300, 2)).astype(np.float32), rng.integers(0, 3, 300)
    X[:, 0] += 4 * y
    data = PublicData(X[:80], tuple("abc"), y_public=y[:80], X_test=X[80:120], y_test=y[80:120], benchmark=True)
    content = {"data": {"source": "arrays"}, "voters": "neighbours", "neighbours": {"cells": 7, "soft": True}}
    student = {"name": "supervised", "params": {"estimator": "sklearn.naive_bayes.GaussianNB"}}
    config = parse_config(content | {"mechanism": {"name": "histogram", "scale": 2}, "student": student})
    private = Records(X[120:], y[120:])
    found = pipeline.run(config, tmp_path / "run", public=data, private=private, console=Quiet(), pages=False).report
    with Run.load(tmp_path / "run") as run:
        released = run.labels
    assert released is not None
    labels, rows, weights = released.labels, released.rows, released.weights
    assert weights is not None
    assert rows.tolist() != list(range(len(rows))), "some have several labels"
    assert found.benchmark is not None
    assert found.benchmark.label_accuracy == pytest.approx(np.average(labels == y[rows], weights=weights))
    likeliest = {row: max(zip(weights[rows == row], labels[rows == row], strict=True))[1] for row in set(rows.tolist())}
    assert found.labels is not None
    assert found.labels.by_class == tuple(list(likeliest.values()).count(label) for label in range(3))
    assert found.labels.expected_shares == pytest.approx([weights[labels == a].sum() / weights.sum() for a in range(3)])
    assert (found.voters.labelled, found.public_examples) == (len(likeliest), 80)
    assert (found.queries.asked, found.queries.answered, found.queries.max_queries) == (7, 7, 7)
    assert found.privacy.epsilon == pytest.approx(1.0, abs=1e-3), "a record moves two counts by one, at scale 2"
    assert found.privacy.epsilon_added_or_removed == pytest.approx(0.5, abs=1e-3)
    assert found.privacy.statement.startswith("Adding, removing or changing one record changes")


def calibration_error(sure: np.ndarray, right: np.ndarray) -> float:
    """Mean distance of sureness and rightness over tenths of sureness."""
    tenth = np.clip(np.ceil(10 * sure).astype(int) - 1, 0, 9)
    parts = [(np.flatnonzero(tenth == place)) for place in range(10)]
    return sum(len(rows) * abs(sure[rows].mean() - right[rows].mean()) for rows in parts if len(rows)) / len(sure)


SURE = [0.11, 0.23, 0.37, 0.52, 0.66, 0.89]  # no tenths, nor their halves or rests


@given(st.lists(st.tuples(*[st.integers(0, 2)] * 2, st.sampled_from(SURE)), min_size=1, max_size=30), st.integers(1, 9))
@settings(max_examples=40, deadline=None)
def test_a_model_is_measured_on_test_examples_and_their_truth(drawn: list[Any], n_public: int) -> None:
    """What it says is not what is true, of public examples it says something else, and its answer need not be what
    it finds likeliest."""
    truth, said, sure = (np.array(column) for column in zip(*drawn, strict=True))

    class Model:
        def predict(self, X: np.ndarray) -> np.ndarray:
            return said if X[0, 0] else np.full(len(X), 2)

        def predict_proba(self, X: np.ndarray) -> np.ndarray:
            return np.column_stack([sure / 2, sure / 2, 1 - sure])

    data = PublicData(np.zeros((n_public, 1)), tuple("abc"), X_test=np.ones((len(truth), 1)), y_test=truth)
    found, answers = measure("m", Model(), data)
    assert answers is not None
    assert answers.tolist() == said.tolist()
    right = [a == b for a, b, _ in drawn]
    recall = [
        np.mean([b == label for a, b, _ in drawn if a == label]) if label in truth else None for label in (0, 1, 2)
    ]
    own = np.where(said == 2, 1 - sure, sure / 2)
    assert found.test_examples == len(drawn)
    assert found.accuracy == pytest.approx(np.mean(right))
    assert found.commonest_share == max(truth.tolist().count(label) for label in (0, 1, 2)) / len(drawn)
    assert found.recall == pytest.approx(tuple(recall))
    assert found.balanced_accuracy == pytest.approx(np.mean([share for share in recall if share is not None]))
    assert found.confusion == tuple(
        tuple(sum((a, b) == (i, j) for a, b, _ in drawn) for j in range(3)) for i in range(3)
    )
    assert found.public_predictions == (0, 0, n_public)
    assert found.test_digest == data.test_digest()
    assert found.calibration is not None
    assert found.calibration.error == pytest.approx(calibration_error(own, np.array(right)))
    assert sum(n for *_, n in found.calibration.bins) == len(drawn)


# Names: whoever publishes one more figure, or one less, says so here.


def fields_of(model: type[Any]) -> set[str]:
    """The dotted names of all fields."""
    schema = model.model_json_schema()

    def walk(part: dict[str, Any], path: str) -> set[str]:
        part = schema["$defs"][part["$ref"].rpartition("/")[2]] if "$ref" in part else part
        found = {f"{path}{name}" for name in part.get("properties", ())}
        for name, inner in part.get("properties", {}).items():
            found |= walk(inner, f"{path}{name}.")
        for inner in [*part.get("anyOf", ()), *part.get("prefixItems", ()), *filter(None, [part.get("items")])]:
            found |= walk(inner, path)
        return found

    return walk(schema, "")


def test_these_fields_are_published_and_no_others() -> None:
    assert fields_of(Report) == set((FIELDS_OF_BOTH + FIELDS_OF_A_RUN).split())
    assert fields_of(BaselineReport) == set((FIELDS_OF_BOTH + FIELDS_OF_A_BASELINE).split())


def numbers(text: str) -> str:
    """The numbers in a text, one after the other."""
    return " ".join(re.findall(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?:e-\d+)?", text))


def texts(value: Any) -> list[str]:
    """What a part of a page says, piece by piece."""
    if isinstance(value, PageTable):
        return [cell for row in (value.header, *value.rows) for cell in row]
    if isinstance(value, PageBlock):
        return [*texts(value.content), *texts(value.title)]
    if isinstance(value, Plot):
        return [value.alternative, value.caption, *texts(value.table)]
    if isinstance(value, (list, tuple)):
        return [text for item in value for text in texts(item)]
    return [str(value)] if isinstance(value, (str, int)) and not isinstance(value, bool) else []


def told(facts: Any) -> dict[str, str]:
    return {name: numbers(text) for name, text in facts}


IN_THE_TERMINAL = {
    "voters": "12",
    "student": "82.5 200 83.1 85.2",
    "released labels": "37, 29 56.1",
    "mean over classes": "83.1 0.913 69.5",
    "how sure it is": "4.3",
    "labels (benchmark)": "93.6",
    "without privacy (benchmark)": "97.2",
    "recognised": "81.3 16.8 3.1 85.2 10.1 3.2",
    "right by sex": "84.7 11.4 3.3 80.6 17.7 3.4",
    "who pays (benchmark)": "117 80.6 98.3 17.7 3.4 82 78.9 97.4 18.5 4.3 14.7 2.2",
    "ε to publish": "2.34 1e-05",
    "ε of all runs": "3 5.67 3e-05 4",
    "ε otherwise": "1.17",
    "what it means": "",
    "ε sanitised": "1.56 2e-05",
}
ON_THE_PAGE = {
    "The guarantee": "91.3 1e-05 3 5.67 3e-05 4 1.56 2e-05",
    "From records to a model": "15 16 379 82.5 200",
    "Teachers": "21 100",
    "Is it any good?": "82.5 200 83.1 85.2 37, 29 56.1 83.1 0.913 69.5 4.3 93.6 97.2"  # in words
    " 37 56.1 72.2 29 43.9 27.8"  # of each class: labels, their share, what the student says
    " 56.0 52.0 44 94.0 91.0 156",  # how sure, how often right, of how many
    "The student, class by class": "85.2 81.3 95 85.2 81.3 95 95"
    " 81.3 74.0 86.9 139 85.2 74.3 92.0 61"  # of each class: right, from, to, test examples
    " 113 26 9 52",
    "Who pays for privacy": IN_THE_TERMINAL["who pays (benchmark)"]
    + " 139 81.3 3.3 98.1 16.8 3.1 61 85.2 4.6 95.3 10.1 3.2"  # examples, right ±, without privacy, lost ±
    " 83 84.7 2.1 96.1 11.4 3.3 82.0 117 80.6 2.1 98.3 17.7 3.4 82.7"  # and the mean over classes
    " 48 86.1 5.1 99.2 13.1 4.1 35 77.8 7.1 93.4 15.6 4.2 82 78.9 4.5 97.4 18.5 4.3 35 86.4 6.0 95.7 9.3 4.4",
    "Privacy cost by number of queries": "2.34 99 10 1 0.310 99 2.340",
    "Beside the papers": "82.5 2.34",
    "To repeat it": "1 1 2.0",
}
IN_THE_STATEMENT = {
    "What is published": "20",
    "Who is protected": "",
    "The guarantee": "2.34 1e-05 91.3 1e-05 1.56 2e-05",
    "The mechanism": "17",
    "Limits": "19 3 5.67 3e-05 4",
    "What is not covered": "",
    "How to check it": "",
}
TRACKED = {
    "epsilon": 2.34,
    "delta": 1e-05,
    "accuracy": 0.825,
    "balanced_accuracy": 0.831,
    "auc": 0.913,
    "commonest_share": 0.695,
    "calibration_error": 0.043,
    "epsilon_sanitised": 1.56,
    "recall/no": 113 / 139,
    "recall/yes": 52 / 61,
    "groups/sex=f": 0.847,
    "groups/sex=m": 0.806,
    "benchmark/lost/class=no": 0.168,
    "benchmark/lost/class=yes": 0.101,
    "benchmark/lost/sex=f": 0.114,
    "benchmark/lost/sex=m": 0.177,
    "benchmark/label_accuracy": 0.936,
    "benchmark/nonprivate_accuracy": 0.972,
    "queries_asked": 88,
    "queries_answered": 66,
    "labels/no": 37,
    "labels/yes": 29,
}


def page_of(report: Report | BaselineReport) -> tuple[Page, dict[str, str]]:
    page = run_page(report, "seed: 1")
    shown = {one.title: numbers(" | ".join(texts(one.content))) for one in page.sections if one.content}
    return page, {name: text[:9] if name == "Beside the papers" else text for name, text in shown.items()}


def statement_of(report: Report | BaselineReport) -> dict[str, str]:
    _, *parts = re.split(r"(?m)^\d\. (.*)$", render_statement(report))
    return dict(zip(parts[::2], map(numbers, parts[1::2]), strict=True))


def test_every_figure_of_a_run_stands_under_its_own_name() -> None:
    report = full_report()
    assert told(summary_rows(report)) == IN_THE_TERMINAL
    assert statement_of(report) == IN_THE_STATEMENT
    assert tracked_figures(report) == pytest.approx(TRACKED)
    page, shown = page_of(report)
    assert shown == ON_THE_PAGE
    assert numbers(page.heading) == "82.5 83.1 85.2 2.34"
    right = {"right on 200 test examples": "82.5 %", "right on average over classes": "83.1 %"}
    assert dict(page.tiles) == right | {"ε to publish, at δ = 10⁻⁵": "2.34", "voters": "14"}
    matrix, papers = (
        next(part for one in page.sections if one.title == title for part in one.content if is_it(part))
        for title, is_it in (
            ("The student, class by class", lambda part: getattr(part, "kind", "") == "confusion"),
            ("Beside the papers", lambda part: isinstance(part, Plot)),
        )
    )
    assert [(name, tuple(row)) for name, row in matrix.content] == [("no", (113, 26)), ("yes", (9, 52))]
    first, second, *_, last = [tuple(row) for row in papers.table.rows]
    assert first == ("this run", "2.34", "82.5 %", "worst-case", "10⁻⁵")
    assert second == ("this run", "1.56", "82.5 %", "sanitised", "2e-05")
    assert last[2] == "97.2 %"


def test_every_figure_of_a_baseline_stands_under_its_own_name() -> None:
    report, of_labels = full_baseline(), {"voters", "student", "released labels", "labels (benchmark)"}
    expected = {name: text for name, text in IN_THE_TERMINAL.items() if name not in of_labels}
    own = {"method": "64", "planned": "3.3 321", "model": "82.5 200 83.1 85.2", "public examples (benchmark)": "79.0"}
    assert told(summary_rows(report)) == expected | own
    assert statement_of(report) == IN_THE_STATEMENT | {
        "What is published": "",
        "The mechanism": "64 3.3 321",
        "Limits": "3 5.67 3e-05 4",
    }
    of_labels = {"labels/no", "labels/yes", "queries_asked", "queries_answered", "benchmark/label_accuracy"}
    assert tracked_figures(report) == pytest.approx({k: v for k, v in TRACKED.items() if k not in of_labels})
    page, shown = page_of(report)
    same = ("The guarantee", "Who pays for privacy")
    assert {name: shown[name] for name in same} == {name: ON_THE_PAGE[name] for name in same}
    assert list(shown) == [
        *("The guarantee", "From records to a model", "Is it any good?", "The model, class by class"),
        *("Who pays for privacy", "To repeat it"),
    ]
    assert numbers(page.heading) == "82.5 83.1 85.2 2.34"
    assert len(page.tiles) == 3


def test_runs_side_by_side_have_their_own_figures(tmp_path: Path) -> None:
    for name, report in (("run", full_report()), ("baseline", full_baseline())):
        (tmp_path / name).mkdir()
        (tmp_path / name / "report.json").write_text(report.model_dump_json())
        (tmp_path / name / "config.yaml").write_text(f"seed: 1\nname: {name}\nmechanism: {name}\n")
    found = compare_runs([tmp_path / "run", tmp_path / "baseline"])
    header, *rows = table_rows(found)
    columns = ("method", "ε", "per", "right", "mean over classes", "AUC", "rarest class", "worst by sex (gap)")
    assert header == (*columns, "which ε", "δ", "runs")
    shown = ("82.5 %", "83.1 %", "0.913", "85.2 %", "m 80.6 % (4.1)")
    run, baseline = "PATE, gnmax, 9 teachers", "dp_sgd"
    assert sorted(rows[:4]) == sorted(
        (method, epsilon, "record", *shown, kind, delta, "1")
        for method in (run, baseline)
        for epsilon, kind, delta in (("2.34 (1.17)", "worst case", "10⁻⁵"), ("1.56", "sanitised", "2e-05"))
    )
    assert rows[4][3:8] == ("97.2 %", "96.7 %", "–", "95.3 %", "f 96.1 % (2.2)")
    assert rows[5][3:8] == ("69.5 %", "50.0 %", "0.500", "0.0 %", "–")
    assert set(comparison_object(found)) == {
        *("entries", "nonprivate", "test_examples", "notes", "data", "commonest_share", "n_classes"),
        *("nonprivate_parts", "comparable"),
    }
    assert set(comparison_object(found)["entries"][0]) == {
        *("method", "epsilon", "epsilon_kind", "delta", "accuracy", "deviation", "runs", "names", "added_or_removed"),
        *("unit", "balanced_accuracy", "auc", "parts"),
    }


def test_without_test_labels_the_agreement_is_told_and_nothing_else() -> None:
    agreement = {"share": 0.84, "error": 0.034, "mean_over_classes": 0.81, "commonest": 0.66, "labels": 58}
    report = full_report(student={"name": "gan", "test_examples": 0, "accuracy": None, "agreement": agreement})
    facts = told(summary_rows(report))
    assert facts["student"] == "84.0 3.4 58 66.0"
    assert facts["agreement by class"] == "81.0"
    assert tracked_figures(report)["agreement"] == 0.84
    assert tracked_figures(report)["agreement_error"] == 0.034
    assert not facts.keys() & {"mean over classes", "how sure it is", "recognised"}
