"""Runs side by side: kinds of ε stay apart, and what is private is shown on request only and marked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.reports import store_run
from typer.testing import CliRunner

from pate.cli import app
from pate.config import parse_config
from pate.data.public import PublicData
from pate.errors import RunError
from pate.report._comparison import compare_runs, comparison_object, draw_comparison, render_comparison, table_rows
from pate.report.schema import Queries
from pate.voters import voters_of


def neighbours() -> dict[str, Any]:
    """What such voters say of themselves in a report."""
    voters = {"voters": "neighbours", "neighbours": {"rounds": [{"cells": 60}, {"cells": 40}]}}
    content = {"data": {"source": "arrays"}, "student": {"name": "supervised"}}
    config = parse_config(content | {"mechanism": {"name": "gnmax", "sigma": 4}} | voters)
    queries = Queries(asked=10, answered=10, max_queries=10, max_answers=10)
    found = voters_of(config).facts(PublicData(np.zeros((200, 2)), ("a", "b")), queries, 10)
    return found.model_dump(mode="json")


NEIGHBOURS = neighbours()


def finished(folder: Path, config: str = "student: {name: supervised}", **student: Any) -> Path:
    """What `pate compare` reads of a run."""
    return store_run(folder, config, student={"test_digest": "same"} | student)


def test_each_kind_of_epsilon_is_called_what_it_is(tmp_path: Path) -> None:
    run = finished(tmp_path / "a")
    public, private = (compare_runs([run], with_private) for with_private in (False, True))
    assert {entry.epsilon_kind: entry.epsilon for entry in public.entries} == {"worst case": 3.0, "sanitised": 1.5}
    assert {e.epsilon_kind: e.epsilon for e in private.entries if e not in public.entries} == {"data-dependent": 0.7}
    assert "0.7" not in json.dumps(comparison_object(public))


def test_what_is_private_is_for_its_owner_and_says_so(tmp_path: Path) -> None:
    run, words = finished(tmp_path / "a"), "private: do not publish"
    for with_private, mode in ((False, 0o644), (True, 0o600)):
        compared = compare_runs([run], with_private)
        assert (draw_comparison(compared).axes[0].get_title() == words) == with_private
        assert (
            words in render_comparison(compared, "<svg viewBox='0 0 1 1'></svg>".replace("'", '"')).lower()
        ) == with_private
        out = tmp_path / str(with_private)
        options = ["--with-private"] if with_private else []
        shown = CliRunner().invoke(app, ["compare", str(run), "--out", str(out), *options], catch_exceptions=False)
        assert (words in shown.stdout) == with_private
        assert {path.stat().st_mode & 0o777 for path in out.iterdir()} == {mode}


def test_seeds_are_put_together_and_methods_are_not(tmp_path: Path) -> None:
    gan = "student: {name: gan}"
    runs = [finished(tmp_path / str(n), f"name: n{n}\n{gan}", accuracy=n / 10, auc=n / 20) for n in (6, 9)]
    for entry in compare_runs(runs).entries:
        assert (entry.runs, entry.accuracy, entry.auc) == (2, pytest.approx(0.75), pytest.approx(0.375))
        assert entry.deviation == pytest.approx(0.3 / 2**0.5)
    other = finished(tmp_path / "other")
    assert sorted(entry.runs for entry in compare_runs([*runs, other]).entries) == [1, 1, 2, 2]


@pytest.mark.parametrize("change", [{"test_digest": "other"}, {"test_examples": 199}])
def test_runs_on_other_test_sets_are_not_compared(change: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(RunError, match="tested on other examples"):
        compare_runs([finished(tmp_path / "a"), finished(tmp_path / "b", **change)])
    compare_runs([finished(tmp_path / "c"), finished(tmp_path / "d", test_digest=None)])


def of_other_kind(folder: Path, config: str, epsilon: float, half: float | None = None, **changes: Any) -> Path:
    """The same where there were no teachers."""
    privacy = {"epsilon": epsilon, "epsilon_added_or_removed": half, "sanitised": None}
    return store_run(folder, config, privacy=privacy, **changes)


def test_a_linear_probe_and_neighbours_are_told_apart_and_so_is_whom_epsilon_protects(tmp_path: Path) -> None:
    """A record that votes itself has twice the ε where it may be changed: both are shown, in table, notes and plot."""
    near = of_other_kind(tmp_path / "near", "a: 1", 0.1, 0.05, voters=NEIGHBOURS)
    steps = {"name": "dp_sgd", "model": "linear", "preprocessing": ["upright", "hog"], "features": "pca"}
    probe = of_other_kind(tmp_path / "probe", "a: 2", 0.1, baseline=steps)
    network = of_other_kind(tmp_path / "network", "a: 3", 8, baseline=steps | {"model": "mlp"})
    compared = compare_runs([finished(tmp_path / "teachers"), near, probe, network])
    rows = {row[0]: row[1] for row in table_rows(compared)}
    assert rows["neighbours, gnmax, 100 cells"] == "0.1 (0.05)"
    assert rows["DP linear probe, upright + hog, pca"] == "0.1"
    assert rows["dp_sgd, upright + hog, pca, mlp"] == "8"
    assert any("added, removed or changed" in note for note in compared.notes)
    assert not any("changed" in note for note in compare_runs([probe, network]).notes)
    axes = draw_comparison(compared).axes[0]
    low, high = axes.get_xlim()
    assert axes.get_xscale() == "log"
    assert low < 0.05
    assert high > 8
    assert {"0.05", "0.1", "1", "5"} <= {label.get_text() for label in axes.get_xticklabels()}


def test_runs_with_rounds_are_compared_by_them(tmp_path: Path) -> None:
    def near(name: str, second: int) -> Path:
        rounds = f"[{{cells: 60, scale: 4, features: null}}, {{cells: {second}, scale: 4, features: student}}]"
        config = f"neighbours: {{rounds: {rounds}}}"
        return of_other_kind(tmp_path / name, config, 0.1, 0.05, voters=NEIGHBOURS)

    first, second = (row[0] for row in table_rows(compare_runs([near("a", 40), near("b", 70)]))[1:3])
    assert "cells 60 scale 4 + cells 40 scale 4 features student" in first
    assert "cells 70" in second


def per(folder: Path, unit: str, config: str = "student: {name: supervised}") -> Path:
    return store_run(folder, config, privacy={"unit": unit, "sanitised": None})


def test_per_visit_and_per_patient_stay_apart(tmp_path: Path) -> None:
    """The same config on data with and without ids: one row each, and no ranking of one against the other."""
    both = compare_runs([per(tmp_path / "visit", "record"), per(tmp_path / "patient", "id")])
    assert [(entry.unit, entry.runs) for entry in both.entries] == [("id", 1), ("record", 1)]
    assert not comparison_object(both)["comparable"]
    assert any("all records of one id" in note for note in both.notes)
    assert {row[2] for row in table_rows(both)} == {"per", "id", "record"}
    alike = compare_runs([per(tmp_path / "a", "id"), per(tmp_path / "b", "id")])
    assert comparison_object(alike)["comparable"]
    assert not any("one id" in note for note in alike.notes)


def test_rows_are_told_apart_by_what_differs(tmp_path: Path) -> None:
    runs = [
        per(tmp_path / "a", "record", "student: {name: gan}\nn_teachers: 9"),
        per(tmp_path / "b", "record", "student: {name: mixmatch}\nn_teachers: 9"),
    ]
    methods = [entry.method for entry in compare_runs(runs).entries]
    assert methods == ["PATE, gnmax, 9 teachers, student.name gan", "PATE, gnmax, 9 teachers, student.name mixmatch"]
    longer = [
        per(
            tmp_path / f"epochs{n}",
            "record",
            f"student: {{name: gan, params: {{epochs: {n}}}}}\nbudget: {{epsilon: {n}}}",
        )
        for n in (2, 8)
    ]
    methods = [entry.method for entry in compare_runs(longer).entries]
    assert methods == ["PATE, gnmax, 9 teachers, epochs 2", "PATE, gnmax, 9 teachers, epochs 8"]  # ε has a column
    hidden = [
        per(tmp_path / name, "record", f"data: {{source: csv, private: {name}.csv}}") for name in ("anna", "berta")
    ]
    methods = [entry.method for entry in compare_runs(hidden).entries]
    assert methods == ["PATE, gnmax, 9 teachers, anna", "PATE, gnmax, 9 teachers, berta"]
    assert ".csv" not in "".join(methods)


def test_where_classes_are_skewed_it_tells_more_than_the_share_that_is_right(tmp_path: Path) -> None:
    even = compare_runs([finished(tmp_path / "even", commonest_share=0.51, balanced_accuracy=0.8, auc=0.9)])
    assert "AUC" not in table_rows(even)[0]
    runs = [
        finished(tmp_path / str(seed), f"name: n{seed}", commonest_share=0.85, balanced_accuracy=share, auc=0.9)
        for seed, share in enumerate((0.6, 0.7))
    ]
    compared = compare_runs([*runs, finished(tmp_path / "unknown", "student: {name: gan}", commonest_share=0.85)])
    header, *rows = table_rows(compared)
    assert header[3:6] == ("right", "mean over classes", "AUC")
    assert {row[4:6] for row in rows[:-1]} == {("65.0 %", "0.900"), ("–", "–")}
    assert rows[-1][:6] == ("always the commonest class", "0", "", "85.0 %", "50.0 %", "0.500")
    assert "mean over classes" in render_comparison(compared, '<svg viewBox="0 0 1 1"></svg>')


def group(column: str, value: str, examples: int, accuracy: float) -> dict[str, Any]:
    about = {"column": column, "value": value, "examples": examples, "accuracy": accuracy, "too_few": examples < 30}
    return about | {
        "error": 0.01,
        "balanced_accuracy": accuracy,
        "recall": [0.9, accuracy / 2],
        "class_examples": [max(0, examples - 40), min(examples, 40)],
    }


def grouped(folder: Path, rights: list[float], config: str = "a: 1", recall: float = 0.4, epsilon: float = 1.0) -> Path:
    """A run whose test examples were counted by sex (f, m) and ward (one of them has few), in a benchmark."""
    sizes = [("sex", "f", 80), ("sex", "m", 120), ("ward", "a", 171), ("ward", "b", 29)]
    groups = [group(*size, right) for size, right in zip(sizes, rights, strict=True)]
    beside = [group(*size, 0.9) for size in sizes]
    lost = [
        {"share": 0.9 - right, "error": 0.02, "by_class": [None, {"share": 0.45 - right / 2, "error": 0.05}]}
        for right in rights
    ]
    student = {
        "accuracy": 0.8,
        "test_examples": 200,
        "commonest_share": 0.85,
        "confusion": [[160, 10], [round(30 * (1 - recall)), round(30 * recall)]],
        "groups": groups,
    }
    benchmark = {
        "note": "n",
        "label_accuracy": None,
        "nonprivate_accuracy": 0.9,
        "without_privacy": {
            "balanced_accuracy": 0.8,
            "lost": {"share": 0.1, "error": 0.01},
            "recall": [0.95, 0.7],
            "groups": beside,
            "lost_by_class": [{"share": 0.01, "error": 0.01}, {"share": 0.7 - recall, "error": 0.06}],
            "lost_by_group": lost,
        },
    }
    return of_other_kind(folder, config, epsilon, student=student, benchmark=benchmark)


def test_worst_group_gap_and_rarest_class_stand_side_by_side(tmp_path: Path) -> None:
    """Of means over seeds; a group of too few test examples is never the worst."""
    first = grouped(tmp_path / "1", [0.9, 0.7, 0.8, 0.1], "name: n1", recall=0.4)
    second = grouped(tmp_path / "2", [0.8, 0.6, 0.9, 0.1], "name: n2\nreport: {groups: [sex]}", recall=0.6)
    plain = of_other_kind(tmp_path / "plain", "a: 2", 1.0)  # of an earlier version
    compared = compare_runs([first, second, plain])
    header, *rows = table_rows(compared)
    shown = header.index("rarest class")
    assert header[shown : shown + 3] == ("rarest class", "worst by sex (gap)", "worst by ward (gap)")
    by_method = {row[0]: row[shown : shown + 3] for row in rows}
    assert ("50.0 %", "m 65.0 % (20.0)", "a 85.0 % (0.0)") in by_method.values()
    assert ("–", "–", "–") in by_method.values()
    assert by_method["without privacy (benchmark)"] == ("70.0 %", "f 90.0 % (0.0)", "a 90.0 % (0.0)")
    assert by_method["always the commonest class"] == ("0.0 %", "–", "–")
    assert {len(row) for row in rows} == {len(header)}
    assert any("of those with 30 test examples or more" in note for note in compared.notes)
    entry = next(one for one in comparison_object(compared)["entries"] if one["runs"] == 2)
    assert (entry["parts"]["rarest_class"], entry["parts"]["rarest"]) == ("b", pytest.approx(0.5))
    sex, ward = entry["parts"]["spreads"]
    assert (sex["worst"], sex["best"], sex["gap"]) == ("m", "f", pytest.approx(0.2))
    assert ward["worst"] == "a"
    lost = {(one["column"], one["value"]): one["lost"] for one in entry["parts"]["groups"]}
    assert lost["sex", "m"] == pytest.approx(0.25)
    within = {(one["column"], one["value"]): one for one in entry["parts"]["rarest_within"]}
    assert within["sex", "m"]["right"] == pytest.approx(0.325)
    assert within["sex", "m"]["lost"] == pytest.approx(0.125)
    page = render_comparison(compared, '<svg viewBox="0 0 1 1"></svg>')
    assert "By sex: recognised of class b, the rarest" in page
    assert "32.5 %, lost 12.5 ± 5.0" in page
    assert "<h2>Who pays for privacy</h2>" in page
    assert "65.0 %, lost 25.0 ± 2.0" in page
    assert "<td>too few</td>" in page or 'number">too few</td>' in page


def test_groups_are_in_the_table_only_where_they_are_known_and_in_the_object_always(tmp_path: Path) -> None:
    compared = compare_runs([finished(tmp_path / "a")])
    assert not any("worst" in name or "rarest" in name for name in table_rows(compared)[0])
    assert comparison_object(compared)["entries"][0]["parts"]["spreads"] == ()
    assert json.loads(json.dumps(comparison_object(compared)))["nonprivate_parts"] is None
    assert "Who pays" not in render_comparison(compared, '<svg viewBox="0 0 1 1"></svg>')


def test_one_method_at_two_epsilons_has_two_columns_of_groups(tmp_path: Path) -> None:
    low, high = (grouped(tmp_path / str(e), [0.9, e / 10, 0.8, 0.1], f"b: {e}", epsilon=e) for e in (2, 8))
    page = render_comparison(compare_runs([low, high]), '<svg viewBox="0 0 1 1"></svg>')
    assert "ε = 2</th>" in page
    assert "ε = 8</th>" in page
    assert "20.0 %, lost 70.0 ± 2.0" in page
