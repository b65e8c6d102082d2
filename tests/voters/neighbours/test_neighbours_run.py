"""Whole runs in which records vote themselves: what is charged and stored, resumed, refused and forgotten."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pate import pipeline
from pate.boundary import PartialCounts
from pate.boundary._aggregator import Aggregator
from pate.config import Config, parse_config
from pate.data.private import Records, records_of
from pate.data.public import PublicData
from pate.errors import BudgetExceeded, ConfigError, DataError, RunError
from pate.ledger._chain import reading
from pate.mechanisms import Histogram, Mechanism
from pate.runs._console import Quiet
from pate.runs.model_store import load_model
from pate.runs.run import Run
from pate.voters.neighbours._cells import CellVote
from pate.voters.neighbours._rounds import LocalVoteCounter

CENTRES = np.array([[0.0, 0.0], [6.0, 0.0], [0.0, 6.0]])


Data = tuple[PublicData, Records]


def data(n: int = 600, ids: list[str] | None = None) -> Data:
    """Three clusters, one per class, of private records and of public and test examples."""
    rng = np.random.default_rng(0)

    def drawn(size: int) -> tuple[np.ndarray, np.ndarray]:
        y = rng.integers(3, size=size)
        return (CENTRES[y] + rng.normal(size=(size, 2))).astype(np.float32), y.astype(np.int64)

    X, y = drawn(n)
    X_public, y_public = drawn(80)
    X_test, y_test = drawn(60)
    return PublicData(X_public, ("a", "b", "c"), y_public, X_test, y_test, benchmark=True), Records(X, y, ids)


def config(**changes: Any) -> Config:
    content: dict[str, Any] = {
        "name": "near",
        "data": {"source": "arrays"},
        "voters": "neighbours",
        "neighbours": {"cells": 6},
        "mechanism": {"name": "histogram", "scale": 2},
        "student": {"name": "supervised", "params": {"estimator": "sklearn.linear_model.LogisticRegression"}},
        "backend": "local",
    }
    return parse_config({key: value for key, value in (content | changes).items() if value is not None})


def run(place: Path, chosen: Config | None = None, given: Data | None = None, **further: Any) -> pipeline.Outcome:
    public, private = given or data()
    options = {"pages": False} | further
    return pipeline.run(chosen or config(), place, public=public, private=private, console=Quiet(), **options)


def stored(place: Path) -> tuple[int, int, int]:
    """Charges, what they count, and answers."""
    with reading(place / "ledger.db") as db:
        charges, asked = db.execute("SELECT COUNT(*), TOTAL(asked) FROM charges").fetchone()
        return charges, int(asked), db.execute("SELECT COUNT(*) FROM answers").fetchone()[0]


def test_a_run_is_good_and_its_report_says_what_was_done(tmp_path: Path) -> None:
    report = run(tmp_path / "run", pages=True).report
    assert report.privacy.epsilon == pytest.approx(1.0, rel=1e-3)
    assert report.privacy.epsilon_added_or_removed == pytest.approx(0.5, rel=1e-3)
    assert "Adding, removing or changing one record" in report.privacy.statement
    assert report.voters.kind == "neighbours"
    assert report.voters.settings["cells"] == [6]
    assert report.student.accuracy is not None
    assert report.student.accuracy > 0.9
    assert stored(tmp_path / "run") == (1, 1, 18)  # one charge for all counts of all cells
    statement = (tmp_path / "run" / "privacy.txt").read_text()
    assert "disjoint parts" not in statement
    assert "cells" in statement
    assert "0 teachers" not in (tmp_path / "run" / "report.html").read_text()


def test_refined_soft_labels_are_learned_from_and_the_released_ones_published(tmp_path: Path) -> None:
    """Three cells along a line whose left half is one class: of the middle cell, half is, and a refined student knows
    which half. Its transform sees the public examples once, not once for each student."""
    line = np.linspace(0, 1, 300, dtype=np.float32)[:, None]
    y = (line[:, 0] > 0.5).astype(np.int64)
    given = PublicData(line[::3], ("left", "right"), benchmark=False), Records(line, y)
    params = {"estimator": "sklearn.linear_model.LogisticRegression", "params": {"C": 100}}
    params["preprocessing"] = [{"name": "weighted", "params": {"columns": [0], "by": 10}}]
    sure = {}
    for times in (0, 8):
        near = {"cells": 3, "soft": True, "refine": times}
        noise, student = {"name": "histogram", "scale": 0.1}, {"name": "supervised", "params": params}
        run(tmp_path / f"{times}", config(neighbours=near, mechanism=noise, student=student), given)
        loaded = Run.load(tmp_path / f"{times}")
        assert loaded.labels is not None
        assert loaded.labels.weights is not None
        assert len(np.unique(loaded.labels.weights.round(6))) <= 6  # shares of three cells: as released, no guesses
        assert stored(tmp_path / f"{times}") == (1, 1, 6)
        guesses = load_model(loaded.student_folder).predict_proba(line[110:190])  # in the middle cell
        sure[times] = np.abs(guesses - 0.5).mean()
    assert sure[8] > 1.3 * sure[0]


@pytest.mark.parametrize("wrong", [{"soft": False}, {"soft": True, "label": "centres"}])
def test_only_soft_labels_of_whole_cells_are_refined(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="refine = 2: needs soft"):
        config(neighbours={"cells": 6, "refine": 2} | wrong)


def test_the_same_run_with_labels_only(tmp_path: Path) -> None:
    outcome = run(tmp_path / "run", config(mechanism={"name": "permute_and_flip", "scale": 2}))
    assert outcome.report.student.accuracy is not None
    assert outcome.report.student.accuracy > 0.9
    assert stored(tmp_path / "run") == (1, 1, 6)


def test_a_finished_run_is_not_held_again(tmp_path: Path) -> None:
    place = tmp_path / "run"
    first = run(place)
    labels, ledger = Run.load(place).labels, stored(place)
    again = run(place, resume=True)
    assert again.report == first.report
    assert stored(place) == ledger
    assert labels is not None
    np.testing.assert_array_equal(labels.weights, Run.load(place).labels.weights)  # type: ignore[union-attr]


def test_after_a_crash_behind_the_charge_the_stored_round_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The student fails; the round is paid for, is read again and is counted no second time."""
    place = tmp_path / "run"
    with monkeypatch.context() as broken:
        broken.setattr(pipeline, "train_student", lambda *_: 1 / 0)
        with pytest.raises(RunError, match="paid for and kept"):
            run(place)
    assert stored(place) == (1, 1, 18)

    def never(*_: object) -> None:
        raise AssertionError("votes were counted again")

    monkeypatch.setattr("pate.voters.neighbours._rounds.LocalVoteCounter.count", never)
    run(place, resume=True)
    assert stored(place) == (1, 1, 18)


def test_a_crash_between_noise_and_commit_leaves_no_charge_and_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "run"
    with monkeypatch.context() as broken:
        broken.setattr("pate.ledger.ledger.Ledger._link", lambda *_: 1 / 0)
        with pytest.raises(RunError):
            run(place)
    run(place, resume=True)
    assert stored(place) == (1, 1, 18)


def test_every_round_releases_the_votes_and_by_the_noise_that_epsilon_is_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a round that is to see by the student of the one before does; resumed, all is read again."""
    held: list[tuple[CellVote, Mechanism, np.ndarray]] = []
    release = Aggregator.release_round

    def noted(self: Aggregator, name: str, cell_vote: CellVote, by: Mechanism, counter: LocalVoteCounter) -> np.ndarray:
        held.append((cell_vote, by, counter.count(cell_vote)[0].counts))
        return release(self, name, cell_vote, by, counter)

    monkeypatch.setattr(Aggregator, "release_round", noted)
    rounds = [{"cells": 4, "scale": 4}, {"cells": 8, "scale": 2, "features": "student"}]
    near = {"rounds": rounds, "votes_per_record": 2}
    student = {"name": "mixmatch", "params": {"steps": 20, "hidden": 8, "batch_size": 16}}
    chosen, given = config(neighbours=near, student=student), data(60)
    first = run(tmp_path / "run", chosen, given)
    assert [by for _, by, _ in held] == [Histogram(4), Histogram(2)]
    assert [(votes.shape, votes.sum()) for _, _, votes in held] == [((4, 3), 120), ((8, 3), 120)]
    seen = [cell_vote.features(given[0].X_public[:5]) for cell_vote, _, _ in held]
    np.testing.assert_array_equal(seen[0], given[0].X_public[:5])
    assert seen[1].shape == (5, 8)
    # a record added or removed changes two counts in each round by 1, and changed four: one costs 1 / scale
    assert first.report.privacy.epsilon_added_or_removed == pytest.approx(2 / 4 + 2 / 2, rel=2e-3)
    assert first.report.privacy.epsilon == pytest.approx(4 / 4 + 4 / 2, rel=2e-3)
    assert stored(tmp_path / "run") == (2, 2, 36)  # a charge for each round
    assert run(tmp_path / "run", chosen, given, resume=True).report == first.report
    with pytest.raises(ConfigError, match="learns no features"):
        run(tmp_path / "other", config(neighbours=near))
    assert not (tmp_path / "other").exists()


def test_other_cells_are_another_release_which_the_limits_refuse(tmp_path: Path) -> None:
    """Somebody exchanges the stored cells: the answers of the old ones are not taken for theirs."""
    place = tmp_path / "run"
    run(place)
    cells = place / "private" / "cells" / "cells-1.npz"
    with np.load(cells) as file:
        content = dict(file)
    content["centres"] = content["centres"] + 1
    np.savez(cells, **content)
    with pytest.raises(BudgetExceeded):
        run(place, resume=True)
    assert stored(place) == (1, 1, 18)


def test_published_labels_that_differ_are_refused(tmp_path: Path) -> None:
    place = tmp_path / "run"
    run(place)
    with np.load(place / "labels.npz") as file:
        content = dict(file)
    content["labels"] = (content["labels"] + 1) % 3
    np.savez(place / "labels.npz", **content)
    with pytest.raises(RunError, match=r"labels\.npz: differs"):
        run(place, resume=True)


def test_a_person_with_many_records_has_one_vote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everybody is one of five persons, so there are five votes."""
    seen: list[np.ndarray] = []
    count = LocalVoteCounter.count

    def spied(self: LocalVoteCounter, cell_vote: CellVote) -> list[PartialCounts]:
        seen.append(count(self, cell_vote)[0].counts)
        return count(self, cell_vote)

    monkeypatch.setattr(LocalVoteCounter, "count", spied)
    run(tmp_path / "run", given=data(ids=[f"p{i % 5}" for i in range(600)]))
    assert [votes.sum() for votes in seen] == [5]
    assert json.loads((tmp_path / "run" / "report.json").read_text())["privacy"]["unit"] == "id"


def test_forgetting_leaves_what_was_released_and_votes_no_more(tmp_path: Path) -> None:
    from pate.followup import drop_forgotten, forget

    place, chosen, (public, records) = tmp_path / "run", config(), data()
    run(place, chosen, (public, records))
    before = (place / "labels.npz").read_bytes()
    with Run.create(place, chosen, resume=True) as directory:
        assert forget(chosen, public, records, directory, ids=(), rows=[3]) == 0
        left = records_of(drop_forgotten(public, records, directory))
        assert len(left) == len(records) - 1
        assert not (records.X[3] == left.X).all(axis=1).any()
    run(place, chosen, (public, records), resume=True)
    assert (place / "labels.npz").read_bytes() == before
    assert stored(place) == (1, 1, 18)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"neighbours": {"cells": 81}}, "only 80 public examples"),
        ({"neighbours": {"cells": 3, "votes_per_record": 3}}, "must be fewer than the cells, 3"),
        ({"neighbours": {"cells": 1, "votes_per_record": 2}}, "must be fewer than the cells, 1"),
        ({"neighbours": {"rounds": [{"cells": 3, "features": "student"}]}}, "no student before the first"),
        ({"neighbours": {"cells": 3, "rounds": [{"cells": 3}]}}, "each of the rounds says its own"),
        ({"neighbours": None}, "neighbours: missing"),
        ({"n_teachers": 10}, "n_teachers: is for voters: stored or teachers"),
        ({"budget": {"max_queries": 10}}, "budget.max_queries: is for voters: stored or teachers"),
        ({"mechanism": {"name": "mstab", "epsilon": 1, "query_delta": 1e-6}}, "is for teachers"),
        ({"mechanism": {"name": "confident_gnmax", "threshold": 3, "sigma1": 5, "sigma2": 5}}, "is for teachers"),
        ({"mechanism": {"name": "msamp", "epsilon": 1, "query_delta": 1e-7}}, "is for teachers"),
        ({"budget": {"epsilon": 0.5}}, "budget.epsilon = 0.5: the rounds cost 1"),
        ({"neighbours": {"cells": 5, "features": ["hog"]}}, "hog needs images"),
        (
            {"student": {"name": "supervised", "params": {"estimator": "sklearn.neighbors.KNeighborsClassifier"}}},
            "weights",
        ),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_charged(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises((ConfigError, DataError)) as error:
        run(tmp_path / "run", config(**changes))
    assert words in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_teachers_do_not_take_the_section(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="neighbours: is for voters: neighbours"):
        config(voters="teachers", n_teachers=5, teachers=[{"name": "sklearn.svm.SVC"}])


def test_cells_without_votes_and_labels_that_nobody_trusts(tmp_path: Path) -> None:
    """Few records, much noise: the run ends in a line that says what to do, and what was released is kept."""
    place = tmp_path / "run"
    chosen = config(mechanism={"name": "histogram", "scale": 200}, neighbours={"cells": 40, "min_vote_share": 1.0})
    with pytest.raises(RunError, match="no cell has a majority"):
        run(place, chosen, data(5))
    assert stored(place)[0] == 1
