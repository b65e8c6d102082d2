"""Labels that are paid for: another student may learn from them, on resuming or beside the run's own, for nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from support.command_line import in_process

from pate import pipeline
from pate.config import Config, parse_config
from pate.data._sources import load
from pate.data.private import Votes
from pate.data.public import PublicData
from pate.errors import ConfigError, DataError, PateError, RunError
from pate.followup import Trials, _with_student, train_extra_student
from pate.mechanisms import UNANSWERED
from pate.runs._console import Quiet
from pate.runs._run_ledger import pin_to_json
from pate.runs.context import Outcome
from pate.runs.run import Run
from pate.students._posterior import Labelled
from pate.students._stage import HeldOut, held_out

TEACHERS, ASKED = 40, 90
Data = tuple[PublicData, Votes]
SVC = {"name": "supervised", "params": {"estimator": "sklearn.svm.SVC"}}
BAYES = {"name": "supervised", "params": {"estimator": "sklearn.naive_bayes.GaussianNB"}}


STORED = {"voters": "stored", "stored": {"file": "given.npy"}}
TRAINED = {"teachers": [{"name": "sklearn.naive_bayes.GaussianNB"}]}


def config_of(student: dict, voters: dict = STORED, **changes: object) -> Config:
    content = {
        "name": "further",
        "n_teachers": TEACHERS,
        "data": {"source": "digits"},
        "mechanism": {"name": "gnmax", "sigma": 3},
        "budget": {"max_queries": ASKED},
        "student": student,
        "backend": "local",
    }
    return parse_config(content | voters | changes)


@pytest.fixture(scope="module")
def digits() -> Data:
    public, _ = load(config_of(SVC).data, None, Path())
    votes = np.zeros((len(public.X_public), 10), dtype=np.int64)
    votes[np.arange(len(votes)), public.y_public] = TEACHERS
    return public, Votes(votes)


def run(config: Config, out: Path, data: Data, **options: object) -> Outcome:
    public, private = data
    return pipeline.run(config, out, public=public, private=private, pages=False, console=Quiet(), **options)


def further(out: Path, data: Data, overrides: Sequence[str] = ()) -> Trials:
    public, private = data
    return train_extra_student(out, overrides, public=public, private=private, console=Quiet())


def state(out: Path) -> dict[str, bytes]:
    """Everything that says what was released and paid for."""
    return {name: (out / name).read_bytes() for name in ("ledger.db", "labels.npz", "private/ledger.head")}


@pytest.fixture
def finished(digits: Data, tmp_path: Path) -> Path:
    run(config_of(SVC), tmp_path / "run", digits)
    return tmp_path / "run"


def test_a_run_goes_on_with_another_student_and_pays_nothing(finished: Path, digits: Data) -> None:
    before = state(finished)
    outcome = run(config_of(BAYES), finished, digits, resume=True)
    assert state(finished) == before
    with Run.load(finished) as found:
        assert isinstance(found.config, Config)
        assert found.config.student == config_of(BAYES).student
        assert found.student().estimator == "sklearn.naive_bayes.GaussianNB"
    assert outcome.report.config_digest == config_of(BAYES).digest()


def test_and_with_another_model_without_privacy_while_the_student_stays(tmp_path: Path) -> None:
    first = partial(pipeline.run, out=tmp_path / "run", pages=False, console=Quiet(), force=True)
    first(config_of(SVC, TRAINED))
    card = (tmp_path / "run" / "student" / "student.json").stat().st_mtime_ns
    nonprivate = {"name": "sklearn.naive_bayes.GaussianNB"}
    benchmark = first(config_of(SVC, TRAINED, nonprivate=nonprivate), resume=True).report.benchmark
    assert benchmark.nonprivate_accuracy is not None
    assert (tmp_path / "run" / "student" / "student.json").stat().st_mtime_ns == card


@pytest.mark.parametrize(
    "changes", [{"seed": 1}, {"mechanism": {"name": "gnmax", "sigma": 4}}, {"budget": {"max_queries": 91}}]
)
def test_what_decides_on_releases_stays(changes: dict, finished: Path, digits: Data) -> None:
    with pytest.raises(RunError, match=f"belongs to another config .{next(iter(changes))}"):
        run(config_of(SVC, **changes), finished, digits, resume=True)


@pytest.mark.parametrize(
    "changes",
    [
        {"budget": {"max_queries": ASKED, "query_selection": "uncertainty"}},
        {"teacher_rounds": [{"queries": 40}, {"queries": 50, "features": "student"}]},
    ],
    ids=["uncertainty", "seen by a student"],
)
def test_a_student_that_has_a_say_in_what_is_asked_stays(changes: dict, digits: Data, tmp_path: Path) -> None:
    first, second = (config_of({"name": name}, TRAINED, **changes) for name in ("mixmatch", "gan"))
    with Run.create(tmp_path / "run", first):
        pass
    with (
        pytest.raises(RunError, match="another student, which has a say in what is asked"),
        Run.create(tmp_path / "run", second, resume=True),
    ):
        pass


def test_nor_where_cells_are_made_by_what_it_sees() -> None:
    def near(student: str, **second: object) -> Config:
        rounds = [{"cells": 20}, {"cells": 20, **second}]
        about = {
            "voters": "neighbours",
            "neighbours": {"rounds": rounds},
            "mechanism": {"name": "histogram", "scale": 9},
        }
        content = {"data": {"source": "digits"}, "student": {"name": student}, **about}
        return parse_config(content)

    assert near("gan").release_digest() == near("mixmatch").release_digest()
    by_student = partial(near, features="student")
    assert by_student("gan").release_digest() != by_student("mixmatch").release_digest()


def test_a_mended_student_finds_the_run_again(digits: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`pate run --resume` without a place takes the newest run that differs in nothing but what releases nothing."""
    from pate.cli._run import _place

    monkeypatch.setenv("PATE_RUNS", str(tmp_path))
    for name, student in (("further-1", SVC), ("further-2", BAYES)):
        with Run.create(tmp_path / name, config_of(student)):
            pass
    assert _place(config_of(SVC), True).name == "further-1"
    assert _place(config_of({"name": "mixmatch"}), True).name == "further-2"
    with pytest.raises(RunError, match="no run of this config"):
        _place(config_of(SVC, seed=7), True)


# Beside the run's own.


@pytest.fixture
def tried(finished: Path, digits: Data) -> Trials:
    estimator = "student.params.estimator=sklearn.naive_bayes.GaussianNB"
    return further(finished, digits, [estimator])


def test_further_students_are_stored_and_compared(tried: Trials, finished: Path, digits: Data) -> None:
    best, other = tried.students
    assert [one.name.partition("-")[0] for one in (best, other)] == ["SVC", "GaussianNB"]
    assert (best.own, other.own) == (True, False)
    assert best.agreement is not None
    assert other.agreement is not None
    assert best.agreement.share > 0.5 > best.agreement.commonest
    assert 0 < best.agreement.error < 0.1
    assert tried.best is best
    with Run.load(finished) as found:
        assert tried.epsilon == found.report.privacy.epsilon
        predictor = found.predictor(student=other.folder.name)
        assert predictor.card["epsilon"] == tried.epsilon
        assert predictor.card["ledger"] == pin_to_json(found.labels.pin)
        assert predictor.card["params"]["estimator"] == "sklearn.naive_bayes.GaussianNB"
        assert predictor.folder.name == other.name
        with pytest.raises(RunError, match="no further student 'no'"):
            found.predictor(student="no")
    again = further(finished, digits)
    assert [one.name for one in again.students] == [best.name, other.name]


def test_each_is_scored_on_test_examples_where_there_are_any(tried: Trials, finished: Path, digits: Data) -> None:
    with Run.load(finished) as found:
        for one in tried.students:
            predictor = found.predictor(student=None if one.own else one.folder.name)
            assert one.test is not None
            assert one.test.test_examples == 200
            assert one.test.accuracy == (predictor.positions(digits[0].X_test) == digits[0].y_test).mean()
        own = next(one for one in tried.students if one.own).test
        assert own is not None
        assert own.balanced_accuracy == found.report.student.balanced_accuracy, "as in the run's own report"
    without = further(finished, (replace(digits[0], X_test=None, y_test=None), digits[1]))
    assert [one.test for one in without.students] == [None, None]
    assert [one.name for one in without.students] == [one.name for one in tried.students], "they do not choose"


def test_a_student_that_the_run_did_not_write_is_listed_and_not_loaded(
    tried: Trials, finished: Path, digits: Data
) -> None:
    (other,) = (one for one in tried.students if not one.own)
    card = other.folder / "student.json"
    card.write_text(card.read_text().replace('"supervised"', '"os.system"', 1))
    found = {one.own: one.test for one in further(finished, digits).students}
    assert found[True] is not None
    assert found[False] is None


def test_and_nothing_is_charged_for_them(finished: Path, digits: Data) -> None:
    before = state(finished)
    further(finished, digits, ["student.name=supervised", "student.params.threshold=0.5"])
    assert state(finished) == before


def test_other_data_than_the_runs_own_is_refused(finished: Path, digits: Data) -> None:
    public, private = digits
    others = (replace(public, X_public=1 - public.X_public), private), (public, Votes(private.counts[:, ::-1]))
    for other in others:
        with pytest.raises(DataError, match="was begun with other data"):
            further(finished, other)


def test_no_student_is_taught_the_labels_it_is_tried_on(digits: Data, tmp_path: Path) -> None:
    """A nearest neighbour agrees with all labels that it knows; with those of pure chance, with a tenth of others."""
    rng = np.random.default_rng(0)
    public, _ = digits
    votes = np.zeros((len(public.X_public), 10), dtype=np.int64)
    votes[np.arange(len(votes)), rng.integers(0, 10, len(votes))] = TEACHERS
    nearest = {"name": "supervised", "params": {"estimator": "sklearn.neighbors.KNeighborsClassifier"}}
    nearest["params"]["params"] = {"n_neighbors": 1}  # type: ignore[index]
    config = config_of(nearest, budget={"max_queries": 300}, mechanism={"name": "gnmax", "sigma": 6})
    run(config, tmp_path / "run", (public, Votes(votes)))
    (one,) = further(tmp_path / "run", (public, Votes(votes))).students
    assert one.agreement is not None
    assert len(one.agreement.labels) == 300
    assert one.agreement.share < 0.25  # of 300 at a chance of a tenth: beyond that once in 10¹²


def test_labels_that_were_given_together_are_held_out_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No student is taught a label of a cell, or of an equal example, that it is tried on; each is tried on once."""
    X = np.arange(60, dtype=np.float32)[:, None]
    twins = np.concatenate([X[:30], X[:30]])
    of_cells = Labelled(np.arange(60), np.arange(60) % 2, np.ones(60), np.arange(60) // 5)
    lessons: list[tuple[set[float], set[float]]] = []

    class Notes:
        def fit(self, X: np.ndarray, y: np.ndarray, *_: object, **further: object) -> Notes:
            self.taught = set(X[y != UNANSWERED, 0].tolist())
            return self

        def predict(self, X: np.ndarray) -> np.ndarray:
            lessons.append((self.taught, set(X[:, 0].tolist())))
            return np.zeros(len(X), dtype=np.int64)

    monkeypatch.setattr("pate.students._stage.new_student", lambda config: Notes())
    for number, (X_public, labelled) in enumerate([(X, of_cells), (twins, None)]):
        lessons.clear()
        with Run.create(tmp_path / str(number), config_of(SVC)) as directory:
            public = PublicData(X_public, ("a", "b"))
            found = held_out(config_of(SVC), public, np.arange(60) % 2, labelled, directory, Quiet())
        assert found is not None
        assert len(found.labels) == 60
        assert len(np.unique(found.groups)) == (12 if labelled else 30)
        for taught, tried in lessons:
            together = 5 if labelled else 1
            assert not {x // together for x in taught} & {x // together for x in tried}
            assert taught | tried == set(X_public[:, 0].tolist())
        assert sum(len(tried) for _, tried in lessons) == (60 if labelled else 30)


def test_the_error_counts_groups_not_labels() -> None:
    labels, predicted = np.array([0] * 40 + [1] * 40), np.zeros(80, dtype=np.int64)
    apart = HeldOut(predicted, labels, np.ones(80), np.arange(80))
    together = HeldOut(predicted, labels, np.ones(80), np.arange(80) // 40)
    assert apart.share == together.share == apart.balanced == 0.5
    assert apart.error == pytest.approx(np.sqrt(0.25 / 80))
    assert together.error == pytest.approx(np.sqrt(0.25 / 2))


def test_a_lead_within_chance_is_no_lead() -> None:
    labels = np.zeros(100, dtype=np.int64)

    def right(number: int) -> HeldOut:
        return HeldOut(np.where(np.arange(100) < number, 0, 1), labels, np.ones(100), np.arange(100))

    assert right(80).is_better_than(right(60))
    assert not right(62).is_better_than(right(60))


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("budget.max_queries=3", "only the student may differ"),
        ("student.params.estimator=sklearn.svm.SVCC", "has no SVCC"),
    ],
)
def test_only_the_student_may_differ(override: str, words: str, finished: Path, digits: Data) -> None:
    with pytest.raises(ConfigError, match=words):
        further(finished, digits, [override])


def test_another_kind_has_parameters_of_its_own() -> None:
    changed = _with_student(config_of(SVC), ["student.name=mixmatch", "student.params.steps=5"])
    assert changed.student.params == {"steps": 5}


def test_a_run_without_labels_has_nothing_to_learn_from(digits: Data, tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", config_of(SVC)):
        pass
    with pytest.raises(PateError, match="has released no labels yet"):
        further(tmp_path / "run", digits)


def test_on_the_command_line(tmp_path: Path) -> None:
    pipeline.run(config_of(BAYES, TRAINED), tmp_path / "run", pages=False, console=Quiet(), force=True)
    (tmp_path / "other.yaml").write_text("student: {name: supervised, params: {estimator: sklearn.svm.SVC}}\n")
    shown = in_process("student", tmp_path / "run", "--config", tmp_path / "other.yaml", "--json")
    assert shown.returncode == 0, shown.stderr
    content = json.loads(shown.stdout)
    assert {one["own"] for one in content["students"]} == {True, False}
    assert {one["test"]["examples"] for one in content["students"]} == {200}
    text = in_process("student", tmp_path / "run").stdout
    assert "right on test examples" in text
    assert f"{100 * content['students'][0]['test']['accuracy']:.1f} %" in text
    assert f"best by the mean over classes: {content['best']}" in text
    assert "no label was asked for" in text
    (tmp_path / "none.yaml").write_text("name: x\n")
    refused = in_process("student", tmp_path / "run", "--config", tmp_path / "none.yaml")
    assert (refused.returncode, refused.stdout) == (2, "")


def test_in_storage_too(digits: Data, tmp_path: Path) -> None:
    place = f"file://{tmp_path}/store"
    run(config_of(SVC), place, digits)  # type: ignore[arg-type]
    run(config_of(BAYES), place, digits, resume=True)  # type: ignore[arg-type]
    with Run.load(place) as found:
        assert isinstance(found.config, Config)
        assert found.config.student == config_of(BAYES).student
        assert found.student().estimator == "sklearn.naive_bayes.GaussianNB"


def test_a_student_that_never_names_a_rare_class_is_not_the_best() -> None:
    """85 labels of one class, 15 of another: always saying the first agrees with more, and is no better."""
    labels, each = np.array([0] * 85 + [1] * 15), np.ones(100)
    always = HeldOut(np.zeros(100, dtype=np.int64), labels, each, np.arange(100))
    fair = HeldOut(np.array([0] * 62 + [1] * 23 + [1] * 12 + [0] * 3), labels, each, np.arange(100))
    assert always.share > fair.share
    assert fair.balanced > always.balanced
    assert fair.is_better_than(always)
    assert not always.is_better_than(fair)


def test_another_estimator_does_not_inherit_parameters() -> None:
    before = {"estimator": "sklearn.linear_model.LogisticRegression", "params": {"C": 2.0}, "active_rounds": 2}
    config = config_of({"name": "supervised", "params": before})
    changed = _with_student(config, ["student.params.estimator=sklearn.naive_bayes.GaussianNB"])
    assert changed.student.params == {"estimator": "sklearn.naive_bayes.GaussianNB", "active_rounds": 2}
    same = _with_student(config, ["student.params.params={C: 3}"])
    assert same.student.params["params"] == {"C": 3}
