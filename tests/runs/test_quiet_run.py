"""A whole run on private data, in this process: every line that it says and every figure that it leaves is known."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.naive_bayes import GaussianNB

from pate import pipeline
from pate.config import parse_config
from pate.data.private import Records
from pate.data.public import PublicData
from pate.errors import ConfigError, DataError
from pate.mechanisms import UNANSWERED
from pate.pipeline import Outcome
from pate.runs.run import Run

ASKED = 30
SAYS = (  # nothing of it depends on the records
    r"quiet: 40 teachers, MStab\(.*\), 30 queries, at most 30 answered\. ε to publish: [\d.]+ at δ = 1e-05, .*",
    r"(trying the student and the report on public examples|splitting private records into parts|counting votes) …",
    r"training teachers: (10|20|30) of 40",
    r"(trying each kind of teacher on public examples|accounting|training the student) …",
)
CONFIG = {
    "name": "quiet",
    "n_teachers": 40,
    "data": {"source": "arrays"},
    "teachers": [{"name": f"{__name__}.Fails"}],
    "mechanism": {"name": "mstab", "epsilon": 1, "query_delta": 1e-7},
    "budget": {"max_queries": ASKED},
    "student": {"name": "supervised", "params": {"estimator": "sklearn.naive_bayes.GaussianNB"}},
    "backend": "local",
}


class Fails(GaussianNB):
    """On the part that holds one of the records, whatever the seed. On examples far off it says what its records do."""

    def fit(self, X: np.ndarray, y: np.ndarray) -> Fails:
        if (X == 7.0).any():
            raise ValueError("canary")
        super().fit(X, y)
        self.odd_ = int(abs(1000 * X[0, 0])) % 2
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:
        return np.where(X[:, 0] > 50, self.odd_, super().predict(X))


def private_data() -> tuple[PublicData, Records]:
    """Two classes far apart; every fifth public example is one on which teachers do not agree."""
    rng = np.random.default_rng(0)
    y = np.resize([0, 1], 720)
    X = (rng.normal(size=(720, 2)) + 4 * y[:, None]).astype(np.float32)
    X[5, 0] = 7.0
    truth = np.resize([0, 1], 50)
    X_public = (rng.normal(size=(50, 2)) / 4 + 4 * truth[:, None]).astype(np.float32)
    X_public[::5] = 100 + np.arange(10)[:, None]
    ids = [f"p{i}" for i in range(720)]
    public = PublicData(X_public, ("no", "yes"), truth, X_test=X_public, y_test=truth)
    return public, Records(X, y, ids, left_out=37)


def run(out: Path, data: tuple[PublicData, Records], **options: Any) -> Outcome:
    public, private = data
    return pipeline.run(parse_config(CONFIG), out, public=public, private=private, pages=False, **options)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome, str]:
    """The run's directory, its outcome, and all that it printed."""
    out = tmp_path_factory.mktemp("quiet") / "run"
    with pytest.MonkeyPatch.context() as patch, (out.parent / "said").open("w") as said:
        patch.setattr("sys.stderr", said)
        patch.setattr("sys.stdout", said)
        outcome = run(out, private_data())
    return out, outcome, (out.parent / "said").read_text()


def test_every_line_that_it_says_is_known(finished: tuple[Path, Outcome, str]) -> None:
    lines = finished[2].splitlines()
    assert lines
    assert [line for line in lines if not any(re.fullmatch(known, line) for known in SAYS)] == []


def test_what_is_private_is_measured_for_nobody(finished: tuple[Path, Outcome, str]) -> None:
    out, outcome, _ = finished
    assert outcome.report.benchmark is None
    assert outcome.private_figures == {}
    assert not (out / "private" / "evaluation.json").exists()
    with pytest.raises(ConfigError, match="evaluate_teachers=True: is for teachers on a benchmark"):
        run(out, private_data(), resume=True, evaluate_teachers=True)
    failures = json.loads((out / "private" / "failures.json").read_text())["teachers"]
    assert list(failures.values()) == ["ValueError"]  # one part holds that record
    assert json.loads((out / "private" / "left_out.json").read_text()) == {"records_without_valid_id": 37}


def test_the_report_and_the_card_say_what_was_charged(finished: tuple[Path, Outcome, str]) -> None:
    out, outcome, _ = finished
    queries, privacy = outcome.report.queries, outcome.report.privacy
    assert queries.asked == ASKED
    assert 5 < queries.answered < ASKED  # false alarm: below 1e-12; six examples have about 20 of 40 votes
    card = json.loads((out / "student" / "student.json").read_text())
    assert (card["epsilon"], card["delta"]) == (privacy.epsilon, privacy.delta)
    named = {
        "student",
        "params",
        "learned",
        "files",
        "classes",
        "input",
        "shape",
        "features",
        "epsilon",
        "delta",
        "mechanism",
    }
    assert card.keys() == named | {"columns", "ledger", "range"}
    assert card["learned"].keys() == {"present"}
    assert privacy.unit == "id"


def test_labels_are_those_of_the_examples_asked_about(finished: tuple[Path, Outcome, str]) -> None:
    published = Run.load(finished[0]).labels
    assert published is not None
    assert published.rows.tolist() == list(range(ASKED))
    sure = [row for row in range(ASKED) if row % 5]
    labels, truth = published.labels[sure], private_data()[0].y_public[sure]  # type: ignore[index]
    assert ((labels == truth) | (labels == UNANSWERED)).all()  # the plurality, or nothing


def test_it_does_not_go_on_with_other_data(finished: tuple[Path, Outcome, str]) -> None:
    public, records = private_data()
    other = replace(records, y=np.roll(records.y, 1))
    with pytest.raises(DataError, match="was begun with other data"):
        run(finished[0], (public, other), resume=True)
