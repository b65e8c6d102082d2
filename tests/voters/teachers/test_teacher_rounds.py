"""Rounds of teachers: one partition, one budget, and later ones that see what the student has learned to see."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from pate import pipeline
from pate.cli import app
from pate.config import Config, parse_config
from pate.data.partition import parts_of
from pate.data.private import Records, clip_to_public_range, records_of
from pate.data.public import PublicData
from pate.errors import ConfigError
from pate.followup import forget
from pate.report.schema import LEFT_OUT, published_config
from pate.runs.model_store import save_model
from pate.runs.run import Run
from pate.students import build_student
from pate.students._stage import StudentFeatures
from pate.teachers import recipes, unpack
from pate.voters import voters_of
from pate.voters.teachers import Teachers
from pate.voters.teachers._checkpoints import InMemory, TeacherFiles
from pate.voters.teachers._worker import Teaching
from pate.voters.teachers.ensemble import Ensemble

NETWORK = {"name": "mixmatch", "params": {"steps": 20, "hidden": 8, "batch_size": 8, "ema": 0.9}}
BY_STUDENT = {
    "queries": 12,
    "features": "student",
    "teachers": [{"name": "sklearn.linear_model.LogisticRegression"}],
}
HOG = {"name": "sklearn.naive_bayes.GaussianNB", "features": "hog"}
CONTENT: dict[str, Any] = {
    "n_teachers": 8,
    "data": {"source": "arrays"},
    "teachers": [{"name": "sklearn.naive_bayes.GaussianNB"}],
    "mechanism": {"name": "gnmax", "sigma": 1},
    "teacher_rounds": [{"queries": 9}, BY_STUDENT],
    "student": NETWORK,
    "backend": "local",
}


def config(**changes: Any) -> Config:
    return parse_config({key: value for key, value in (CONTENT | changes).items() if value is not None})


def data() -> tuple[PublicData, Records]:
    rng = np.random.default_rng(0)
    truth = np.arange(160) % 2
    X = (truth[:, None] * 3 + rng.normal(size=(160, 4))).astype(np.float32)
    public = PublicData(X[120:], ("a", "b"), X_test=X[:20], y_test=truth[:20])
    return public, Records(X[:120], truth[:120])


def student_features(folder: Path) -> StudentFeatures:
    public, _ = data()
    student = build_student("mixmatch", NETWORK["params"], 0)
    student.fit(public.X_public[:9], np.arange(9) % 2, public.X_public[9:])
    save_model(student, folder / "student", {})
    return StudentFeatures.of(folder / "student")


def test_a_run_in_rounds_costs_what_all_its_queries_cost_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    public, private = clip_to_public_range(*data())
    records, trained, seen = records_of(private), list[int](), list[Any]()
    original = Teachers._train_and_vote

    def noted(
        self: Teachers, context: Any, private: Any, aggregator: Any, round_: Any, queries: Any, first: Any = None
    ) -> None:
        trained.append(round_.number)
        seen.append(first)
        if round_.number == 2 and len(trained) == 2:
            raise KeyboardInterrupt
        original(self, context, private, aggregator, round_, queries, first)

    monkeypatch.setattr(Teachers, "_train_and_vote", noted)
    with pytest.raises(KeyboardInterrupt):
        pipeline.run(config(), tmp_path / "run", public=public, private=records, pages=False)
    student = (tmp_path / "run/private/round-1/student/model.safetensors").read_bytes()
    outcome = pipeline.run(config(), tmp_path / "run", public=public, private=records, resume=True)
    assert trained == [1, 2, 2]
    assert (seen[0], seen[1].files["model.safetensors"], seen[2].files["model.safetensors"]) == (None, student, student)
    labels = Run.load(tmp_path / "run").labels
    assert labels is not None
    by_hand = build_student("mixmatch", NETWORK["params"], config().seed)
    by_hand.fit(public.X_public[:9], labels.labels[:9], public.X_public[9:])
    np.testing.assert_array_equal(seen[1].transform(public.X_public), by_hand.features(public.X_public))
    flat = {key: value for key, value in CONTENT.items() if key != "teacher_rounds"} | {"budget": {"max_queries": 21}}
    alone = parse_config(flat)
    assert outcome.report.privacy.epsilon == voters_of(alone).publishable_epsilon(2)
    queries = outcome.report.queries
    assert (queries.asked, queries.max_queries, queries.rounds, queries.adaptive) == (21, 21, (9, 12), True)
    assert [kind.features for kind in outcome.report.voters.teachers] == [(), ("student",)]
    private = json.loads((tmp_path / "run/private/epsilon.json").read_text())
    assert private["epsilon_data_dependent"] is None
    with Run.create(tmp_path / "run", config(), resume=True) as run:
        for number, width in ((1, 4), (2, 8)):  # columns of an example, and what the student's last layer sees
            stored = TeacherFiles(run.teachers_of_round(number), run.key, number, trusted=True).load(3)
            assert stored is not None
            (recipe,) = recipes(config().rounds[number - 1].config.teachers)
            assert unpack(stored, recipe).estimator.n_features_in_ == width
        assert TeacherFiles(run.teachers_of_round(2), run.key, trusted=True).load(3) is None, (
            "sealed as one of the second round"
        )
        gone = parts_of(records.X, records.y, None, run.key, config().split)[3][0]
        assert forget(config(), public, records, run, [], [int(gone)]) == 1
        assert TeacherFiles(run.teachers_of_round(1), run.key, 1, trusted=True).load(3) is not None
        assert TeacherFiles(run.teachers_of_round(2), run.key, 2, trusted=True).load(3) is None


def test_a_record_touches_the_same_single_part_in_every_round(tmp_path: Path) -> None:
    (_, given), key, first = data(), b"k" * 32, student_features(tmp_path)
    changed = Records(given.X.copy(), given.y.copy(), ids=tuple(map(str, range(len(given.y)))))
    before = Records(given.X, given.y, ids=changed.ids)
    changed.X[7] += 5
    differ = []
    for round_ in config().rounds:
        stores = []
        for records in (before, changed):
            members = parts_of(records.X, records.y, records.ids, key, round_.config.split)
            teaching = Teaching.of(round_.config, 2, first=first if round_.by_student else None)
            stores.append(InMemory())
            with Ensemble(teaching, Parts(records, members), stores[-1]) as ensemble:
                ensemble.train()
        differ.append([part for part in range(8) if stores[0].load(part) != stores[1].load(part)])
    assert differ[0] == differ[1]
    assert len(differ[0]) == 1


class Parts:
    def __init__(self, records: Records, members: list[np.ndarray]) -> None:
        self._records, self._members, self.n_records = records, members, len(records.y)

    def of_part(self, part: int) -> tuple[np.ndarray, np.ndarray]:
        return self._records.X[self._members[part]], self._records.y[self._members[part]]

    def close(self) -> None:
        pass


def test_a_student_travels_as_its_files(tmp_path: Path) -> None:
    X, first = data()[0].X_public, student_features(tmp_path)
    seen = first.transform(X)
    sent = pickle.dumps(first)
    for file in first.files.values():
        sent = sent.replace(file, b"")
    assert b"torch" not in sent
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(first)).transform(X), seen)
    assert seen.shape == (len(X), 8)


def test_teachers_see_by_the_student_and_nothing_else(tmp_path: Path) -> None:
    """Votes of a linear head on the features are those of the same head fitted by hand."""
    from sklearn.linear_model import LogisticRegression

    (public, records), first = data(), student_features(tmp_path)
    X = public.X_public
    members = list(np.arange(120).reshape(8, 15))
    teaching = Teaching.of(config().rounds[1].config, 2, first=first)
    with Ensemble(teaching, Parts(records, members)) as ensemble:
        ensemble.train()
        counts = ensemble.count(X)
    heads = [LogisticRegression().fit(first.transform(records.X[rows]), records.y[rows]) for rows in members]
    votes = np.stack([head.predict(first.transform(X)) for head in heads])
    np.testing.assert_array_equal(counts[:, 1], votes.sum(0))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"teacher_rounds": [BY_STUDENT]}, r"teacher_rounds\.0\.features = 'student': there is no student"),
        ({"budget": {"max_queries": 20}}, r"budget\.max_queries = 20: the rounds ask 21"),
        ({"budget": {"query_selection": "uncertainty"}}, "has rounds of its own"),
        ({"budget": {"sanitise": {"order": 5, "beta": 0.1}}}, r"budget\.sanitise"),
        ({"voters": "stored", "stored": {"file": "x.npy"}, "teachers": None}, "teacher_rounds: "),
        ({"teacher_rounds": [{"queries": 0}]}, r"teacher_rounds\.0\.queries"),
    ],
)
def test_rounds_that_cannot_be_held_are_one_line(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told) as caught:
        config(**changes)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"student": {"name": "supervised"}}, "learns no features"),
        (
            {"teacher_rounds": [{"queries": 9}, BY_STUDENT | {"queries": 40}]},
            "there are only 40 public examples",
        ),
        ({"teacher_rounds": [{"queries": 9}, BY_STUDENT | {"teachers": [{"name": "sklearn.svm.SVX"}]}]}, "SVX"),
        (
            {"teacher_rounds": [{"queries": 9}, BY_STUDENT | {"teachers": [HOG]}]},
            r"teacher_rounds\.1\.teachers = .*GaussianNB.*hog needs images",
        ),
    ],
)
def test_what_later_rounds_need_is_tried_before_anything_is_charged(
    changes: dict[str, Any], told: str, tmp_path: Path
) -> None:
    public, private = data()
    with pytest.raises(ConfigError, match=told):
        pipeline.run(config(**changes), tmp_path / "run", public=public, private=private, pages=False)
    assert not (tmp_path / "run").exists()


def test_a_config_without_rounds_is_the_one_it_always_was() -> None:
    plain = parse_config({key: value for key, value in CONTENT.items() if key != "teacher_rounds"})
    assert "teacher_rounds:" not in plain.to_yaml().partition("budget:")[2].partition("student:")[2]
    assert config().budget.max_queries == 21
    assert parse_config(CONTENT | {"budget": {"max_queries": 21}}).digest() == config().digest() != plain.digest()


def test_what_is_published_of_rounds_names_teachers_and_no_file() -> None:
    own = {"name": "sklearn.svm.SVC", "params": {"C": 1, "table": "hiv.csv"}}
    shown = published_config(
        config(teacher_rounds=[{"queries": 9, "teachers": [own]}, BY_STUDENT]).model_dump(mode="json")
    )
    assert [(one["queries"], one["features"]) for one in shown["teacher_rounds"]] == [(9, None), (12, "student")]
    assert shown["teacher_rounds"][0]["teachers"][0]["params"] == {"C": 1, "table": LEFT_OUT}


def test_the_plan_says_the_rounds(tmp_path: Path) -> None:
    content = CONTENT | {"data": {"source": "digits"}}
    (tmp_path / "c.yaml").write_text(json.dumps(content))
    assert "round 2            12 queries" in CliRunner().invoke(app, ["plan", str(tmp_path / "c.yaml")]).stdout
    told = CliRunner().invoke(app, ["plan", str(tmp_path / "c.yaml"), "--json"]).stdout
    assert json.loads(told)["rounds"] == [
        {"queries": 9, "features": "public"},
        {"queries": 12, "features": "student"},
    ]
