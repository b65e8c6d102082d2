"""Accuracy by class and group, and what each lost to privacy: by counting, in files and in words."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pate import pipeline
from pate.baselines._run import run_baseline
from pate.config import BaselineConfig, Config, parse_config
from pate.data._sources import load
from pate.data.private import Records
from pate.data.public import Grouping, PublicData, groupings
from pate.errors import ConfigError, RunError
from pate.report._builder import compare_without_privacy, group_figures, measure
from pate.report._files import read_report, summary_rows, tracked_figures, write_pages
from pate.report.schema import BaselineReport, Benchmark, Report, Student
from pate.report.sections._groups import FEWEST, find_largest_loss, groups
from pate.runs._console import Quiet
from pate.runs.run import Run

N_CLASSES = 3
Examples = list[tuple[int, int, int, int]]
examples = st.lists(st.tuples(*[st.integers(0, N_CLASSES - 1)] * 3, st.integers(0, 2)), min_size=1, max_size=80)
"""Truth, private answer, answer without privacy, group."""


def arrays(drawn: Examples) -> tuple[list[Grouping], np.ndarray, np.ndarray, np.ndarray]:
    truth, private, nonprivate, members = (np.array(column) for column in zip(*drawn, strict=True))
    return [Grouping("ward", ("a", "b", "empty or not"), members)], truth, private, nonprivate


@given(examples)
@settings(max_examples=40, deadline=None)
def test_figures_are_those_of_counting(drawn: Examples) -> None:
    given, truth, private, _ = arrays(drawn)
    for number, found in enumerate(group_figures(given, private, truth, N_CLASSES)):
        own = [(y, said) for y, said, _, group in drawn if group == number]
        right = [y == said for y, said in own]
        assert (found.examples, found.too_few) == (len(own), len(own) < FEWEST)
        assert found.accuracy == (pytest.approx(sum(right) / len(own)) if own else None)
        of_classes = [[said == y for y, said in own if y == label] for label in range(N_CLASSES)]
        assert found.class_examples == tuple(map(len, of_classes))
        recall = [sum(one) / len(one) if one else None for one in of_classes]
        assert found.recall == tuple(recall)
        known = [share for share in recall if share is not None]
        assert found.balanced_accuracy == (pytest.approx(sum(known) / len(known)) if known else None)


@given(examples)
@settings(max_examples=40, deadline=None)
def test_what_was_lost_is_counted_example_by_example(drawn: Examples) -> None:
    given, truth, private, nonprivate = arrays(drawn)
    found = compare_without_privacy(given, private, nonprivate, truth, N_CLASSES)

    def check(lost: Any, own: Examples) -> None:
        if not own:
            assert lost is None
            return
        pairs = [(other == y, said == y) for y, said, other, _ in own]
        cells = {pair: pairs.count(pair) + 0.5 for pair in ((a, b) for a in (False, True) for b in (False, True))}
        n = sum(cells.values())
        mean = sum(count * (int(a) - int(b)) for (a, b), count in cells.items()) / n
        square = sum(count * (int(a) - int(b)) ** 2 for (a, b), count in cells.items()) / n
        assert lost.share == pytest.approx(sum(int(a) - int(b) for a, b in pairs) / len(pairs))
        assert lost.error == pytest.approx(math.sqrt((square - mean**2) / n))

    check(found.lost, drawn)
    for label in range(N_CLASSES):
        check(found.lost_by_class[label], [one for one in drawn if one[0] == label])
    for number, lost in enumerate(found.lost_by_group):
        check(lost, [one for one in drawn if one[3] == number])
        for label in range(N_CLASSES) if lost is not None else ():
            check(lost.by_class[label], [one for one in drawn if (one[0], one[3]) == (label, number)])  # type: ignore[union-attr]
    assert found.groups == group_figures(given, nonprivate, truth, N_CLASSES)


@given(examples)
@settings(max_examples=30, deadline=None)
def test_the_weighted_mean_of_groups_is_the_accuracy(drawn: Examples) -> None:
    given, truth, private, nonprivate = arrays(drawn)
    groups = group_figures(given, private, truth, N_CLASSES)
    right = sum(one.examples * (one.accuracy or 0.0) for one in groups)
    assert right / len(drawn) == pytest.approx((private == truth).mean())
    found = compare_without_privacy(given, private, nonprivate, truth, N_CLASSES)
    sizes = [(one.examples, lost.share) for one, lost in zip(groups, found.lost_by_group, strict=True) if lost]
    assert sum(n * share for n, share in sizes) / len(drawn) == pytest.approx(found.lost.share)


# Runs on a made-up benchmark: the label follows x, and for the few of ward b another way.

FEATURES = ("x", "z", "sex=f", "sex=m", "ward=a", "ward=b", "ward=rare")
GROUPS = ["sex", "ward"]


def table(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x, z, sex = rng.normal(size=n), rng.normal(size=n), rng.integers(0, 2, n)
    ward = rng.choice(4, n, p=[0.7, 0.2, 0.02, 0.08])  # the last is not listed
    y = ((x + 0.3 * z + 0.5 * rng.normal(size=n)) * np.where(ward == 1, -1, 1) > 0).astype(np.int64)
    X = np.column_stack([x, z, np.eye(2)[sex], np.eye(4)[ward][:, :3]])
    return X.astype(np.float32), y


def made_up(seed: int = 0, benchmark: bool = True) -> tuple[PublicData, Records]:
    """Private records by `seed`; public and test examples are always the same."""
    X_public, y_public = table(300, 1000)
    X_test, y_test = table(600, 1001)
    public = PublicData(
        X_public,
        ("no", "yes"),
        y_public=y_public,
        X_test=X_test,
        y_test=y_test,
        benchmark=benchmark,
        features=FEATURES,
    )
    return public, Records(*table(2000, seed))


def config(**changes: Any) -> Config:
    logistic = "sklearn.linear_model.LogisticRegression"
    content = {
        "name": "fair",
        "n_teachers": 40,
        "data": {"source": "arrays"},
        "report": {"groups": GROUPS},
        "teachers": [{"name": logistic}],
        "mechanism": {"name": "gnmax", "sigma": 4},
        "budget": {"max_queries": 150},
        "student": {"name": "supervised", "params": {"estimator": logistic}},
        "nonprivate": {"name": "sklearn.ensemble.RandomForestClassifier", "params": {"n_estimators": 20}},
        "backend": "local",
    }
    return parse_config(content | changes)


def run(out: Path, data: tuple[PublicData, Records], settings: Config | None = None, **options: Any) -> Report:
    public, private = data
    return pipeline.run(settings or config(), out, public=public, private=private, console=Quiet(), **options).report


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("fair") / "run"
    run(out, made_up())
    return out


def test_report_and_page_and_terminal_have_classes_and_groups(finished: Path) -> None:
    report = read_report(finished)
    assert isinstance(report, Report)
    data, _ = made_up()
    with Run.load(finished) as found:
        predicted = found.student().predict(data.X_test)
    assert report.student.groups == group_figures(groupings(data, GROUPS), predicted, data.y_test, 2)  # type: ignore[arg-type]
    assert [(one.column, one.value) for one in report.student.groups] == [
        ("sex", "f"), ("sex", "m"), ("ward", "a"), ("ward", "b"), ("ward", "rare"), ("ward", "other"),
    ]  # fmt: skip
    assert report.benchmark is not None
    beside = report.benchmark.without_privacy
    assert beside is not None
    assert beside.lost.share == pytest.approx((report.benchmark.nonprivate_accuracy or 0) - report.student.accuracy)  # type: ignore[operator]
    told = dict(summary_rows(report))
    assert told["recognised"].count("lost") + told["recognised"].count("gained") == 2
    assert told["right by sex"].startswith("f ")
    assert "rare too few (" in told["right by ward"]
    assert told["who pays (benchmark)"] == find_largest_loss(report)
    page = (finished / "report.html").read_text()
    assert "<h2>Who pays for privacy</h2>" in page
    for heading in ("By class", "By sex", "By ward"):
        assert f"<h3>{heading}</h3>" in page
    for rare in page.split('<th scope="row">rare</th>')[1:]:
        assert rare[: rare.index("</tr>")].count("too few") >= 3  # whatever would be a figure
    flat = tracked_figures(report)
    assert flat["groups/ward=b"] == next(one.accuracy for one in report.student.groups if one.value == "b")
    assert flat["benchmark/lost/ward=b"] == pytest.approx(beside.lost_by_group[3].share)  # type: ignore[union-attr]


def test_who_learns_otherwise_in_a_small_ward_pays_most(finished: Path) -> None:
    """The logistic student cannot know that ward b is the other way round; the forest without privacy does."""
    told = find_largest_loss(read_report(finished))
    assert told is not None
    assert told.startswith("The group ward = b (")
    assert "lost most to privacy" in told


def test_of_private_data_there_is_no_model_without_privacy(tmp_path: Path) -> None:
    report = run(tmp_path / "run", made_up(benchmark=False))
    assert report.benchmark is None
    assert report.student.groups
    assert find_largest_loss(report) is None
    told = dict(summary_rows(report))
    assert "lost" not in told["right by sex"]
    assert "±" in told["right by sex"]
    page = (tmp_path / "run" / "report.html").read_text()
    assert "<h2>Group by group</h2>" in page
    assert "without privacy" not in page


def test_private_records_have_no_say_but_through_the_model() -> None:
    """One model, beside two sets of private records: the same figures, of test examples alone."""

    class Model:
        def predict(self, X: np.ndarray) -> np.ndarray:
            return (X[:, 0] > 0).astype(np.int64)

    (first, records), (second, other_records) = made_up(0), made_up(1)
    assert not np.array_equal(records.X, other_records.X)
    (found, answers), (other, its_answers) = (measure("m", Model(), data, groups=GROUPS) for data in (first, second))
    assert len(found.groups) == 6
    assert other == found
    assert np.array_equal(answers, its_answers)  # type: ignore[arg-type]


def test_another_grouping_on_resuming_costs_nothing(tmp_path: Path) -> None:
    data, out = made_up(), tmp_path / "run"
    before_groups = run(out, data, config(report={"groups": []}))
    assert before_groups.student.groups == ()
    paid = {name: (out / name).read_bytes() for name in ("ledger.db", "labels.npz", "student/student.json")}
    report = run(out, data, resume=True)
    assert {name: (out / name).read_bytes() for name in paid} == paid
    assert {one.column for one in report.student.groups} == set(GROUPS)
    assert report.student.confusion == before_groups.student.confusion
    with Run.load(out) as found:
        assert found.config.report.groups == tuple(GROUPS)


def test_a_run_without_groups_is_the_one_it_was() -> None:
    plain, grouped = config(report={"groups": []}), config()
    assert "report" not in plain.to_yaml()
    assert plain.digest() != grouped.digest()
    assert plain.release_digest() == grouped.release_digest()
    with pytest.raises(ConfigError, match=r"report\.groups = .*names repeat"):
        config(report={"groups": ["sex", "sex"]})


@pytest.mark.parametrize("column", ["x", "size"])
def test_a_column_without_categories_is_refused_before_anything_is_made(tmp_path: Path, column: str) -> None:
    words = f"report.groups: '{column}' is not a column of categories; there are sex, ward"
    with pytest.raises(ConfigError, match=words):
        run(tmp_path / "run", made_up(), config(report={"groups": [column]}))
    assert not (tmp_path / "run").exists()


# The same of a baseline, on files.


def files(folder: Path, private_seed: int = 0) -> dict[str, Any]:
    """The data as csv files, and the settings of a baseline on them."""
    for name, n, seed in (("private", 800, private_seed), ("public", 60, 1000), ("test", 600, 1001)):
        X, y = table(n, seed)
        sexes, wards = np.array(["f", "m"]), np.array(["a", "b", "rare", "?"])
        ward = np.where(X[:, 4:].any(axis=1), X[:, 4:].argmax(axis=1), 3)
        rows = zip(X[:, 0], X[:, 1], sexes[X[:, 2:4].argmax(axis=1)], wards[ward], y, strict=True)
        lines = [",".join(map(str, row)) for row in rows]
        (folder / f"{name}.csv").write_text("\n".join(["x,z,sex,ward,label", *lines]) + "\n")
    return {
        "name": "fair",
        "data": {
            "source": "csv",
            **{name: f"{name}.csv" for name in ("private", "public", "test")},
            "label": "label",
            "classes": [0, 1],
            "categories": {"sex": ["f", "m"], "ward": ["a", "b", "rare"]},
        },
        "report": {"groups": GROUPS},
        "records": 800,
        "baseline": {"name": "dp_erm"},
        "budget": {"epsilon": 5},
    }


def baseline(folder: Path, content: dict[str, Any], name: str = "run", **options: Any) -> BaselineReport:
    parsed = parse_config(content, BaselineConfig)
    return run_baseline(parsed, folder / name, data_dir=folder, console=Quiet(), **options).report


def test_a_baseline_has_groups_and_may_get_others_later(tmp_path: Path) -> None:
    content = files(tmp_path)
    report = baseline(tmp_path, content | {"report": {"groups": ["sex"]}})
    assert [one.value for one in report.student.groups] == ["f", "m"]
    assert "right by sex" in dict(summary_rows(report))
    model = tmp_path / "run" / "model" / "model.safetensors"
    before = model.read_bytes(), model.stat().st_mtime_ns
    again = baseline(tmp_path, content, resume=True)
    assert (model.read_bytes(), model.stat().st_mtime_ns) == before
    assert [one.value for one in again.student.groups] == ["f", "m", "a", "b", "rare", "other"]
    assert again.student.groups[:2] == report.student.groups
    assert (again.student.confusion, again.privacy) == (report.student.confusion, report.privacy)
    assert read_report(tmp_path / "run") == again
    assert "<h3>By ward</h3>" in (tmp_path / "run" / "report.html").read_text()
    written = (tmp_path / "run" / "report.json").stat().st_mtime_ns
    assert baseline(tmp_path, content, resume=True) == again
    assert (tmp_path / "run" / "report.json").stat().st_mtime_ns == written  # nothing new was wanted
    with pytest.raises(RunError, match=r"belongs to another config .budget"):
        baseline(tmp_path, content | {"budget": {"epsilon": 6}}, resume=True)


def test_a_baseline_refuses_a_column_before_it_trains(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"report\.groups: 'z' is not a column of categories; there are sex, ward"):
        baseline(tmp_path, files(tmp_path) | {"report": {"groups": ["sex", "z"]}})
    assert not (tmp_path / "run").exists()


def test_reports_of_two_private_sets_differ_by_their_models_alone(tmp_path: Path) -> None:
    for seed in (0, 1):
        content = files(tmp_path, seed)
        report = baseline(tmp_path, content, f"run{seed}")
        data, _ = load(parse_config(content, BaselineConfig).data, tmp_path, tmp_path)
        with Run.load(tmp_path / f"run{seed}") as found:
            predicted = found.model().predict(data.X_test)
        assert report.student.groups == group_figures(groupings(data, GROUPS), predicted, data.y_test, 2)  # type: ignore[arg-type]


# Words, and earlier versions.


def report_with(classes: tuple[str, ...], sizes: list[int], lost: list[int], gained: list[int]) -> BaselineReport:
    """Of classes with so many test examples, of which so many were lost and gained."""
    truth = np.repeat(np.arange(len(sizes)), sizes)
    other = (truth + 1) % len(sizes)
    nonprivate, private = truth.copy(), truth.copy()
    for label, (less, more) in enumerate(zip(lost, gained, strict=True)):
        own = np.flatnonzero(truth == label)
        private[own[:less]] = other[own[:less]]
        nonprivate[own[less : less + more]] = other[own[less : less + more]]
    beside = compare_without_privacy([], private, nonprivate, truth, len(sizes))
    counts = np.zeros((len(sizes), len(sizes)), dtype=int)
    np.add.at(counts, (truth, private), 1)
    confusion = tuple(tuple(int(n) for n in row) for row in counts)
    return BaselineReport(
        name="r",
        pate_version="0",
        config_digest="d",
        classes=classes,
        method={"name": "dp_erm"},
        planned={},
        privacy={"epsilon": 1, "delta": 0, "unit": "record", "statement": "s"},  # type: ignore[arg-type]
        student=Student(name="s", test_examples=len(truth), accuracy=0.5, confusion=confusion),
        benchmark=Benchmark(note="n", label_accuracy=None, nonprivate_accuracy=0.9, without_privacy=beside),
    )


def test_who_lost_most_is_said_where_it_is_more_than_chance() -> None:
    clear = find_largest_loss(report_with(("a", "b"), [900, 100], [9, 20], [9, 0]))
    assert clear == (
        "The class 'b' (100 test examples) lost most to privacy: 80.0 % recognised instead of 100.0 %, 20.0 ± 4.1 "
        "points less. All test examples together lost 2.0 ± 0.6."
    )
    chance = find_largest_loss(report_with(("a", "b"), [900, 100], [9, 4], [9, 2]))
    assert chance == (
        "No class or group lost more to privacy than chance explains. The most: the class 'b', 2.0 ± 2.6 points."
    )
    assert find_largest_loss(report_with(("a", "b"), [900, 100], [0, 0], [9, 0])) == (
        "No class or group lost anything to privacy."
    )
    few = find_largest_loss(report_with(("a", "b"), [900, FEWEST - 1], [60, FEWEST - 1], [0, 0]))
    assert few is not None
    assert few.startswith("The class 'a' (900 test examples) lost most")


def test_a_clear_loss_is_told_though_chance_gives_another_a_larger_one() -> None:
    told = find_largest_loss(report_with(("a", "b"), [5000, 40], [200, 5], [20, 2]))
    assert told is not None
    assert told.startswith("The class 'a' (5,000 test examples) lost most to privacy: ")


def test_a_class_in_a_group_that_lost_more_is_told_too(finished: Path) -> None:
    """Half of the rare class is lost, and all of that in one of two groups."""
    truth = np.array(([0] * 950 + [1] * 50) * 2)
    private, nonprivate = truth.copy(), truth.copy()
    private[950:995] = 0
    members = np.repeat([0, 1], 1000)
    grouped = [Grouping("sex", ("f", "m"), members)]
    report = read_report(finished)
    assert report.benchmark is not None
    counts = np.zeros((2, 2), dtype=int)
    np.add.at(counts, (truth, private), 1)
    update = {"confusion": tuple(map(tuple, counts.tolist())), "groups": group_figures(grouped, private, truth, 2)}
    beside = {"without_privacy": compare_without_privacy(grouped, private, nonprivate, truth, 2)}
    changed = {
        "student": report.student.model_copy(update=update),
        "benchmark": report.benchmark.model_copy(update=beside),
    }
    told = find_largest_loss(report.model_copy(update=changed))
    assert told is not None
    assert told.startswith(
        "The class 'yes' (100 test examples) lost most to privacy: 55.0 % recognised instead of 100.0 %"
    )
    assert "Within groups: the class 'yes' of sex = f (50), 10.0 % recognised instead of 100.0 %, 90.0" in told


def test_of_many_classes_the_largest_loss_must_be_larger() -> None:
    """A difference of 2.3 standard errors: enough of two classes, and what chance gives of twenty."""
    two = report_with(("a", "b"), [500, 500], [10, 20], [10, 8])
    twenty = report_with(tuple(map(str, range(20))), [500] * 20, [10] * 19 + [20], [10] * 19 + [8])
    assert "lost most to privacy" in (find_largest_loss(two) or "")
    assert "than chance explains" in (find_largest_loss(twenty) or "")


def test_reports_of_earlier_versions_still_load(finished: Path, tmp_path: Path) -> None:
    content = json.loads((finished / "report.json").read_text())
    for key in ("recall", "groups"):
        del content["student"][key]
    del content["benchmark"]["without_privacy"]
    (tmp_path / "report.json").write_text(json.dumps(content))
    (tmp_path / "config.yaml").write_text((finished / "config.yaml").read_text())
    report = write_pages(tmp_path, images=False)
    assert report.student.groups == ()
    assert find_largest_loss(report) is None
    assert isinstance(report, Report)
    assert "no " in dict(summary_rows(report))["recognised"]
    page = (tmp_path / "report.html").read_text()
    assert "Who pays" not in page
    assert "Group by group" not in page


def test_where_nothing_can_be_told_nothing_is_shown() -> None:
    """Of a few test examples each: no table of "too few", but a word on what was asked for."""
    few, members = np.arange(40) % 2, np.repeat([0, 1], 20)
    report = report_with(("a", "b"), [FEWEST - 1, FEWEST - 1], [3, 0], [0, 0])
    assert not groups(report).content
    assert dict(summary_rows(report)).keys().isdisjoint({"recognised", "who pays (benchmark)"})
    asked = group_figures([Grouping("sex", ("f", "m"), members)], few, few, 2)
    student = report.student.model_copy(update={"groups": asked})
    (told,) = groups(report.model_copy(update={"student": student})).content
    assert told == "By sex: every group has fewer than 30 test examples, too few to tell anything."


def test_names_of_groups_are_text(finished: Path, tmp_path: Path) -> None:
    content = json.loads((finished / "report.json").read_text())
    for stored in (content["student"]["groups"], content["benchmark"]["without_privacy"]["groups"]):
        stored[0]["value"] = "<script>alert(1)</script>"
    (tmp_path / "report.json").write_text(json.dumps(content))
    (tmp_path / "config.yaml").write_text((finished / "config.yaml").read_text())
    write_pages(tmp_path, images=False)
    page = (tmp_path / "report.html").read_text()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
