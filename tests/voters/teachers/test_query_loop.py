"""Asking in batches: what is stored is free, the last batch shrinks to what is sure to fit, each label is its own."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.aggregators import examples, make, vote

from pate.config import parse_config
from pate.ledger import Charge
from pate.mechanisms import UNANSWERED, ConfidentGNMax
from pate.runs._console import Quiet
from pate.runs.run import Run
from pate.voters import queries
from pate.voters.queries import ask, ask_actively

CONFIDENT = ConfidentGNMax(threshold=10, sigma1=0.05, sigma2=0.05)  # answers whatever fifteen of twenty agree on


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "_BATCH", 4)


def asked(folder: Path, n: int, limit_asked: int, limit_answered: int) -> tuple[list[int], Charge]:
    aggregator = make(folder, CONFIDENT, asked=limit_asked, answered=limit_answered)
    aggregator.collect(examples(n), vote)
    labels = ask(aggregator, examples(n), Quiet())
    return labels.tolist(), aggregator.spent()


def test_every_example_gets_its_own_label(tmp_path: Path) -> None:
    labels, spent = asked(tmp_path, 10, 10, 10)
    assert labels == [0, 1, 2, 0, 1, 2, 0, 1, 2, 0]
    assert spent == Charge(10, 10)


def test_the_last_batch_shrinks_to_what_fits(tmp_path: Path) -> None:
    labels, spent = asked(tmp_path, 10, 10, 6)
    assert labels == [0, 1, 2, 0, 1, 2] + [UNANSWERED] * 4
    assert spent == Charge(6, 6)


def test_what_is_stored_is_told_again_where_nothing_fits_any_more(tmp_path: Path) -> None:
    first = asked(tmp_path, 10, 10, 6)
    assert asked(tmp_path, 10, 10, 6) == first


def test_a_rounds_rows_are_stored_before_it_is_asked_and_asked_as_stored(tmp_path: Path) -> None:
    """Cut off in the second round; the rows of the first are then others than would be chosen anew."""
    content = {
        "n_teachers": 20,
        "data": {"source": "digits"},
        "teachers": [{"name": "sklearn.svm.SVC"}],
        "mechanism": {"name": "gnmax", "sigma": 5},
        "budget": {"max_queries": 12, "query_selection": "uncertainty", "active_rounds": 3},
        "student": {"name": "supervised", "params": {"estimator": "sklearn.naive_bayes.GaussianNB"}},
    }
    config = parse_config(content)
    X = np.random.default_rng(0).normal(size=(40, 2))
    seen: list[list[float]] = []

    def answer(queries: np.ndarray) -> np.ndarray:
        seen.append(queries[:, 0].tolist())
        if len(seen) == 2:
            raise KeyboardInterrupt
        return (queries[:, 0] > 0).astype(np.int64)

    with Run.create(tmp_path / "run", config) as directory:
        with pytest.raises(KeyboardInterrupt):
            ask_actively(X, config, answer, directory, Quiet())
        chosen = json.loads(directory.rounds_file.read_text())
        assert [X[rows, 0].tolist() for rows in chosen] == seen
        chosen[0] = sorted(set(range(40)) - set(chosen[0]) - set(chosen[1]))[:4]
        directory.note(directory.rounds_file.name, chosen)
        rows, labels = ask_actively(X, config, answer, directory, Quiet())
    assert rows.tolist()[:8] == chosen[0] + chosen[1]
    assert len(set(rows.tolist())) == len(labels) == 12


def test_for_balance_as_many_of_each_class_are_asked_about_as_a_student_can_tell(tmp_path: Path) -> None:
    """One public example in twenty is of the rare class: of those asked about after the first round, about half."""
    content = {
        "n_teachers": 20,
        "data": {"source": "digits"},
        "teachers": [{"name": "sklearn.svm.SVC"}],
        "mechanism": {"name": "gnmax", "sigma": 5},
        "budget": {"max_queries": 60, "query_selection": "class_balance", "active_rounds": 3},
        "student": {"name": "supervised", "params": {"estimator": "sklearn.linear_model.LogisticRegression"}},
    }
    config = parse_config(content)
    assert config.adaptive
    rare = np.arange(800) % 20 == 0
    X = np.random.default_rng(0).normal(size=(800, 2)) + 6 * rare[:, None]

    def answer(queries: np.ndarray) -> np.ndarray:
        return (queries.sum(axis=1) > 6).astype(np.int64)

    with Run.create(tmp_path / "run", config) as directory:
        rows, labels = ask_actively(X, config, answer, directory, Quiet())
    assert len(set(rows.tolist())) == len(labels) == 60
    assert 15 <= labels[20:].sum() <= 25
    assert labels[20:].mean() > 5 * rare.mean()
