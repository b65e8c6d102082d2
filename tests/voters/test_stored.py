"""Stored votes in place of teachers, and the order of asking."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.small_data import LOGISTIC, STORED_VOTES, digits_with_votes

from pate import pipeline
from pate.cluster import _session as ray_session
from pate.config import parse_config
from pate.data import _benchmarks as benchmarks
from pate.data.private import Records, Votes, records_of
from pate.data.public import PublicData
from pate.errors import ConfigError, DataError, RunError
from pate.runs._console import Console
from pate.runs.run import Run
from pate.voters import voters_of
from pate.voters.queries import _by_clusters, ask_actively
from pate.voters.stored import StoredCount, _stored_votes

CONTENT = {
    "name": "stored",
    "n_teachers": 30,
    "voters": "stored",
    "stored": {"file": "votes.npy"},
    "data": {"source": "mnist"},
    "mechanism": {"name": "lnmax", "scale": 2},
    "budget": {"max_queries": 60},
    "student": {"name": "supervised", "params": {"estimator": "sklearn.neighbors.KNeighborsClassifier"}},
}


def benchmark_images() -> tuple[PublicData, Records]:
    """A stand-in for MNIST: ten kinds of 8×8 images."""
    rng = np.random.default_rng(0)
    patterns = rng.random((10, 8, 8))

    def some(n: int) -> tuple[np.ndarray, np.ndarray]:
        y = rng.integers(10, size=n)
        return (patterns[y] + 0.1 * rng.random((n, 8, 8))).astype(np.float32), y

    (X, y), (X_public, y_public), (X_test, y_test) = some(20), some(200), some(50)
    names = tuple(str(digit) for digit in range(10))
    return PublicData(X_public, names, y_public, X_test, y_test, benchmark=True), Records(X, y)


def stored(data: PublicData, folder: Path, n_teachers: int = 30, rows: int = 250) -> None:
    votes = np.zeros((rows, 10), dtype=np.int64)
    votes[np.arange(rows), np.resize(data.y_public, rows)] = n_teachers  # type: ignore[arg-type]
    np.save(folder / "votes.npy", votes)


def test_a_whole_run_on_stored_votes_needs_no_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both = data, _ = benchmark_images()
    stored(data, tmp_path)
    monkeypatch.setattr(benchmarks, "load_images", lambda source, folders: both)
    monkeypatch.setattr(ray_session, "ray_session", None)
    for order in ("clusters", "uncertainty"):
        config = parse_config(CONTENT | {"budget": {"max_queries": 60, "query_selection": order}})
        out = tmp_path / order
        outcome = pipeline.run(config, out, data_dir=tmp_path)
        assert outcome.report.queries.answered == 60
        assert outcome.report.benchmark is not None
        assert outcome.report.benchmark.label_accuracy == 1.0
        assert outcome.report.student.accuracy is not None
        assert outcome.report.student.accuracy > 0.9
        with np.load(out / "labels.npz") as released:
            assert data.y_public is not None
            np.testing.assert_array_equal(released["labels"], data.y_public[released["rows"]])
        assert not (out / "private" / "failures.json").exists()
        figures = json.loads((out / "private" / "epsilon.json").read_text())
        assert (
            (figures["epsilon_data_dependent"] is None) == outcome.report.queries.adaptive == (order == "uncertainty")
        )


def test_votes_go_with_the_examples_they_were_counted_on(tmp_path: Path) -> None:
    """False alarm: noise of ten standard deviations."""
    content = {"n_teachers": 60, "mechanism": {"name": "gnmax", "sigma": 4}}
    public, private = digits_with_votes(60)
    assert public.y_public is not None
    for order in ("given", "clusters"):
        budget = {"max_queries": 40, "query_selection": order}
        config = parse_config(content | STORED_VOTES | {"budget": budget, "student": LOGISTIC})
        pipeline.run(config, tmp_path / order, public=public, private=private, pages=False)
        published = Run.load(tmp_path / order).labels
        assert published is not None
        assert (published.rows.tolist() == list(range(40))) == (order == "given")
        assert published.labels.tolist() == public.y_public[published.rows].tolist()


def test_rounds_ask_what_a_student_doubts_and_a_resumed_run_asks_the_same(tmp_path: Path) -> None:
    """Two blobs and a few examples between them: those come in the second round, once each."""
    rng = np.random.default_rng(1)
    X = np.concatenate([rng.normal(-3, 0.1, (40, 2)), rng.normal(3, 0.1, (40, 2)), rng.normal(0, 0.1, (20, 2))])
    student = {"name": "supervised", "params": {"estimator": "sklearn.linear_model.LogisticRegression"}}
    budget = {"max_queries": 12, "query_selection": "uncertainty", "active_rounds": 2}
    config = parse_config(CONTENT | {"budget": budget, "student": student})
    asked: list[np.ndarray] = []

    def ask_about(queries: np.ndarray) -> np.ndarray:
        asked.append(queries)
        return (queries[:, 0] > 0).astype(np.int64)

    with Run.create(tmp_path / "run", config, resume=False) as directory:
        rows, labels = ask_actively(X, config, ask_about, directory, Console())
        again = ask_actively(X, config, ask_about, directory, Console())
    assert len(set(rows)) == len(labels) == 12
    assert [len(queries) for queries in asked] == [6, 6, 6, 6]
    assert (
        np.abs(asked[1][:, 0]) < 1
    ).sum() >= 5  # with no uncertainty to lead it, a round would hold about one in five of these
    np.testing.assert_array_equal(again[0], rows)


def test_rounds_without_any_answer_go_on_by_clusters(tmp_path: Path) -> None:
    X = np.random.default_rng(2).random((50, 3))
    config = parse_config(
        CONTENT | {"budget": {"max_queries": 10, "query_selection": "uncertainty", "active_rounds": 5}}
    )
    with Run.create(tmp_path / "run", config, resume=False) as directory:
        rows, labels = ask_actively(X, config, lambda queries: np.full(len(queries), -1), directory, Console())
    assert len(set(rows)) == 10
    assert (labels == -1).all()


def test_rows_beyond_the_public_images_are_left_out_and_there_are_no_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = data, _ = benchmark_images()
    stored(data, tmp_path)
    monkeypatch.setattr(benchmarks, "load_images", lambda source, folders: both)
    public, private = voters_of(parse_config(CONTENT)).load(tmp_path, Path(), by_workers=False)
    assert public is data
    assert isinstance(private, Votes)
    assert private.counts.shape == (200, 10)
    with pytest.raises(DataError, match="not here"):
        records_of(private)


@pytest.mark.parametrize(
    ("votes", "words"),
    [
        (np.ones((100, 10), dtype=int), "100 rows"),
        (np.ones((200, 3), dtype=int), "3 columns"),
        (None, "no such file"),
    ],
    ids=["rows", "columns", "missing"],
)
def test_votes_that_do_not_fit_the_images(votes: np.ndarray | None, words: str, tmp_path: Path) -> None:
    if votes is not None:
        np.save(tmp_path / "votes.npy", votes)
    with pytest.raises(DataError, match=words):
        _stored_votes("votes.npy", tmp_path, benchmark_images()[0])


def test_the_number_of_teachers_must_be_the_votes_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both = data, _ = benchmark_images()
    stored(data, tmp_path)
    monkeypatch.setattr(benchmarks, "load_images", lambda source, folders: both)
    for n in (20, 40):
        with pytest.raises(ConfigError, match=f"n_teachers = {n}: the stored votes are those of 30"):
            pipeline.run(parse_config(CONTENT | {"n_teachers": n}), tmp_path / "run", data_dir=tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"teachers": [{"name": "network"}]}, "teachers: is for voters: teachers"),
        ({"nonprivate": {"name": "network"}}, "nonprivate: stored votes come without private records; leave it out"),
        ({"voters": "teachers"}, "teachers: missing"),
        ({"voters": "storde"}, "voters = 'storde': no such kind of voters; did you mean 'stored'"),
        ({"data": {"source": "mnits"}}, "data.source = 'mnits'"),
        ({"stored": {}}, "stored.file: missing"),
        (
            {"budget": {"query_selection": "uncertainty", "sanitise": {"order": 5, "beta": 0.04}}},
            "query_selection 'uncertainty'",
        ),
        ({"budget": {"max_queries": 3, "query_selection": "uncertainty"}}, "rounds = 4"),
        ({"budget": {"query_selection": "random"}}, "budget.query_selection = 'random'"),
    ],
)
def test_config_mistakes(change: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        parse_config(CONTENT | change)
    assert "\n" not in str(caught.value)


def test_stored_votes_are_for_the_examples_they_were_counted_on() -> None:
    with pytest.raises(RunError, match="3 examples"):
        StoredCount(np.ones((3, 2), dtype=np.int64), 2)(np.zeros((4, 1)))


def test_clusters_come_first_and_every_row_once() -> None:
    rng = np.random.default_rng(0)
    kind = rng.integers(5, size=300)
    X = (10 * np.eye(5)[kind] + rng.normal(size=(300, 5)) / 10).astype(np.float32)
    order = _by_clusters(X, 5, seed=0)
    assert sorted(order) == list(range(300))
    assert set(kind[order[:5]]) == set(range(5))
    np.testing.assert_array_equal(order, _by_clusters(X, 5, seed=0))


def test_authors_votes_follow_the_images(real_data: Path) -> None:
    config = parse_config(CONTENT | {"stored": {"file": "votes/mnist_250_teachers.npy"}})
    public, private = voters_of(config).load(real_data, Path(), by_workers=False)
    assert isinstance(private, Votes)
    assert public.y_public is not None
    assert abs((private.counts.argmax(1) == public.y_public).mean() - 0.9437) < 0.001
