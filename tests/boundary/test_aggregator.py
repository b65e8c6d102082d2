"""The door: commit before release, free repeats, refusal of whole batches."""

from __future__ import annotations

import json
import os
from multiprocessing import get_context
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from support.aggregators import KEY, examples, make, vote

from pate.accounting.sanitise import PrivateCost
from pate.boundary import PartialCounts
from pate.boundary._aggregator import query_ids, votes_collected
from pate.boundary._guard import Failed
from pate.config import Sanitise
from pate.errors import BudgetExceeded, RunError
from pate.ledger import Charge
from pate.ledger._chain import verify
from pate.mechanisms import UNANSWERED, ConfidentGNMax, GNMax, LectureMSvec, MSvec
from pate.voters.stored import StoredCount


def test_labels_are_stored_and_free_the_second_time(tmp_path: Path) -> None:
    aggregator = make(tmp_path)
    aggregator.collect(examples(10), vote)
    first, room = aggregator.label(examples(6))
    assert room == 4
    assert first.tolist() == [0, 1, 2, 0, 1, 2]
    assert aggregator.spent() == Charge(6, 6)
    np.testing.assert_array_equal(aggregator.label(examples(6)[::-1]).labels, first[::-1])
    assert aggregator.spent() == Charge(6, 6)
    again = make(tmp_path)  # as after a crash: votes and answers come from disk
    np.testing.assert_array_equal(again.label(examples(8)).labels[:6], first)
    assert again.spent() == Charge(8, 8)


def test_an_example_given_twice_is_charged_once(tmp_path: Path) -> None:
    aggregator = make(tmp_path)
    aggregator.collect(examples(3), vote)
    assert aggregator.label(np.concatenate([examples(3), examples(3)])).labels.tolist() == [0, 1, 2, 0, 1, 2]
    assert aggregator.spent() == Charge(3, 3)


def test_a_batch_that_does_not_fit_draws_nothing(tmp_path: Path) -> None:
    aggregator = make(tmp_path, asked=4, answered=4)

    def no_entropy(n: int) -> bytes:
        raise AssertionError("noise was drawn")

    aggregator.collect(examples(6), vote)
    aggregator._entropy = no_entropy
    with pytest.raises(BudgetExceeded, match="4 would"):
        aggregator.label(examples(5))
    assert aggregator.spent() == Charge(0, 0)


def test_unanswered_is_stored_and_charged(tmp_path: Path) -> None:
    aggregator = make(tmp_path, ConfidentGNMax(threshold=16, sigma1=0.05, sigma2=0.05))
    aggregator.collect(examples(4), vote)
    assert aggregator.label(examples(4)).labels.tolist() == [UNANSWERED] * 4
    assert aggregator.spent() == Charge(4, 0)
    assert aggregator.label(examples(4)).labels.tolist() == [UNANSWERED] * 4
    assert aggregator.spent() == Charge(4, 0)


def test_label_and_charge_are_on_disk_before_the_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash after the noise and before the commit leaves neither label nor charge."""
    aggregator = make(tmp_path)
    aggregator.collect(examples(4), vote)

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(aggregator._ledger, "charge_and_store", crash)
    with pytest.raises(KeyboardInterrupt):
        aggregator.label(examples(4))
    assert make(tmp_path).spent() == Charge(0, 0)


def test_votes_of_a_part_too_few_or_too_many_are_refused(tmp_path: Path) -> None:
    aggregator = make(tmp_path)
    with pytest.raises(RunError, match="nothing was drawn"):
        aggregator.collect(examples(2), lambda X: [PartialCounts(tuple(range(19)), np.zeros((2, 3), dtype=np.int64))])
    assert not (tmp_path / "votes.npz").exists()
    assert not votes_collected(examples(2), tmp_path, KEY)


def test_votes_collected_looks_at_every_example(tmp_path: Path) -> None:
    make(tmp_path).collect(examples(5), vote)
    assert votes_collected(examples(5), tmp_path, KEY)
    assert not votes_collected(examples(6), tmp_path, KEY)
    assert (tmp_path / "votes.npz").stat().st_mode & 0o077 == 0


def test_examples_without_votes_are_refused(tmp_path: Path) -> None:
    aggregator = make(tmp_path)
    aggregator.collect(examples(2), vote)
    with pytest.raises(RunError, match="1 of 3 examples have no votes"):
        aggregator.label(examples(3))
    assert aggregator.spent() == Charge(0, 0)


SVEC = LectureMSvec(epsilon=500.0, delta=0.01, unstable=3, max_queries=40)  # so much ε that 20 teachers can be answered


def unsure(X: np.ndarray) -> list[PartialCounts]:
    """Every fourth example is a tie: ⊥, as good as surely."""
    counts = np.where((X[:, :1] % 4 == 3), [[10, 10, 0]], [[20, 0, 0]])
    return [PartialCounts(tuple(range(20)), counts)]


def test_msvec_is_one_stream_through_the_ledger(tmp_path: Path) -> None:
    aggregator = make(tmp_path, SVEC, asked=40, answered=40)
    aggregator.collect(examples(40), unsure)
    first = aggregator.label(examples(5)).labels
    assert first.tolist() == [0, 0, 0, UNANSWERED, 0]
    assert aggregator.spent() == Charge(5, 4, 1)
    assert aggregator.label(examples(8)).labels.tolist()[5:] == [0, 0, UNANSWERED]
    rest = aggregator.label(examples(20))
    assert rest.labels.tolist()[8:] == [0, 0, 0] + [UNANSWERED] * 9  # the third ⊥ ends it; the rest is not asked
    assert rest.room == 0
    assert aggregator.spent() == Charge(12, 9, 3)


def test_a_restart_costs_msvec_one_unstable_answer_and_stores_no_threshold(tmp_path: Path) -> None:
    aggregator = make(tmp_path, SVEC, asked=40, answered=40)
    aggregator.collect(examples(40), unsure)
    aggregator.label(examples(5))
    again = make(tmp_path, SVEC, asked=40, answered=40)
    again.label(examples(6))
    assert again.spent() == Charge(6, 5, 2)  # one ⊥ was answered; the lost threshold is the other
    third = make(tmp_path, SVEC, asked=40, answered=40)
    assert third.room() == 0
    assert b"threshold" not in (tmp_path / "ledger.db").read_bytes().lower()


def test_a_restart_of_msvec_with_a_fixed_threshold_is_free_and_its_limit_holds_over_all_of_them(tmp_path: Path) -> None:
    steady = MSvec(epsilon=500.0, delta=0.01, unstable=8, max_queries=40)
    assert steady.design.threshold_noise is None
    for first in range(0, 32, 8):  # two ties in each eight
        aggregator = make(tmp_path, steady, asked=40, answered=40)
        if first == 0:
            aggregator.collect(examples(40), unsure)
        aggregator.label(examples(first + 8))
    assert aggregator.spent() == Charge(32, 24, 8)
    assert aggregator.room() == 0


def test_the_data_dependent_figure_stays_under_private(tmp_path: Path) -> None:
    aggregator = make(tmp_path, GNMax(4.0))
    aggregator.collect(examples(6), vote)
    aggregator.label(examples(6))
    assert aggregator.account(examples(6), 1e-5) is None
    content = json.loads((tmp_path / "epsilon.json").read_text())
    assert content["private"] == "do not publish"
    assert 0 < content["epsilon_data_dependent"] < GNMax(4.0).worst_case(6, 6).epsilon(1e-5)
    assert (tmp_path / "epsilon.json").stat().st_mode & 0o077 == 0


def test_a_sanitised_figure_is_released_once_through_the_ledger(tmp_path: Path) -> None:
    settings = Sanitise(order=6.0, beta=0.04)
    aggregator = make(tmp_path, GNMax(6.0))
    aggregator.collect(examples(6), vote)
    aggregator.label(examples(6))
    first = aggregator.sanitise(examples(6), settings, 1e-5)
    assert aggregator.sanitise(examples(6), settings, 1e-5) == first
    assert make(tmp_path, GNMax(6.0)).sanitise(examples(6), settings, 1e-5) == first
    assert first["epsilon"] > 0
    assert verify(tmp_path / "ledger.db", KEY, tmp_path / "ledger.head") == 4
    narrow = tmp_path / "narrow"
    narrow.mkdir()
    other = make(narrow, GNMax(0.05))
    other.collect(examples(2), vote)
    other.label(examples(2))
    with pytest.raises(RunError, match="too large to sanitise"):
        other.sanitise(examples(2), settings, 1e-5)
    assert verify(narrow / "ledger.db", KEY, narrow / "ledger.head") == 3


def test_no_figure_is_sanitised_from_votes_that_forgetting_erased(tmp_path: Path) -> None:
    before = make(tmp_path, GNMax(6.0))
    before.collect(examples(6), vote)
    before.label(examples(6))
    before.close()
    assert make(tmp_path, GNMax(6.0), ensemble=2).sanitise(examples(6), Sanitise(order=6.0, beta=0.04), 1e-5) is None


def test_confident_answers_are_sanitised_by_what_was_answered(tmp_path: Path) -> None:
    aggregator = make(tmp_path, ConfidentGNMax(threshold=14, sigma1=5.0, sigma2=5.0))
    aggregator.collect(examples(10), vote)
    aggregator.label(examples(10))
    assert aggregator.sanitise(examples(10), Sanitise(order=6.0, beta=0.04), 1e-5)["epsilon"] > 0


# Noise that nobody can compute.


def labels_of_a_process_of_its_own(folder: Path) -> list[int]:
    """What an aggregator says of votes that are all but a draw."""
    aggregator = make(folder, GNMax(30.0), asked=200, answered=200)
    aggregator.collect(examples(200), vote)
    return aggregator.label(examples(200)).labels.tolist()


def test_two_processes_that_are_alike_release_different_labels(tmp_path: Path) -> None:
    """Forked from one state, so that any generator they inherit is the same.

    False alarm: 200 labels that agree with probability 0.6 each at most (σ = 30 against a lead of 10 votes) do so with
    less than 1e-40.
    """
    told = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        with get_context("fork").Pool(1) as process:
            told.append(process.apply(labels_of_a_process_of_its_own, (tmp_path / name,)))
    assert told[0] != told[1]


def test_the_sanitised_figures_noise_comes_from_where_all_noise_does(tmp_path: Path) -> None:
    drawn = 0

    def counted(n: int) -> bytes:
        nonlocal drawn
        drawn += n
        return os.urandom(n)

    aggregator = make(tmp_path, GNMax(6.0))
    aggregator._entropy = counted
    aggregator.collect(examples(6), vote)
    aggregator.label(examples(6))
    for_labels = drawn
    aggregator.sanitise(examples(6), Sanitise(order=6.0, beta=0.04), 1e-5)
    assert drawn > for_labels > 0


# Which votes belong to which query, and what figures are made from.


def test_queries_are_known_by_the_runs_key_and_every_byte() -> None:
    X = np.array([[0.2], [0.7], [1.0]], dtype=np.float32)
    ids = query_ids(X, KEY)
    assert len(set(ids)) == 3
    assert not set(ids) & set(query_ids(X, b"r" * 32))
    assert query_ids(X[::-1], KEY) == ids[::-1]


def test_what_was_published_must_be_what_is_stored(tmp_path: Path) -> None:
    aggregator = make(tmp_path)
    aggregator.collect(examples(3), vote)
    aggregator.label(examples(3))
    aggregator.verify_published_labels(examples(3)[::-1], np.array([2, 1, 0]))
    for labels in ([2, 1, 1], [2, 1, UNANSWERED]):
        with pytest.raises(RunError, match="differs from the answers in the ledger"):
            aggregator.verify_published_labels(examples(3)[::-1], np.array(labels))


def test_votes_that_are_collected_later_are_kept_beside_the_others(tmp_path: Path) -> None:
    aggregator = make(tmp_path)
    aggregator.collect(examples(3), vote)
    aggregator.collect(examples(6)[3:], vote)
    assert aggregator.label(examples(6)).labels.tolist() == [0, 1, 2, 0, 1, 2]
    assert votes_collected(examples(6), tmp_path, KEY)


def test_teachers_are_measured_by_the_votes_that_were_collected(tmp_path: Path) -> None:
    """No teacher is asked for it, so that it takes no time and works in a run that goes on without them."""
    truth = np.array([0, 1, 0, 0, 2, 2], dtype=np.int64)
    make(tmp_path).evaluate(examples(6), truth)
    assert not (tmp_path / "evaluation.json").exists()
    make(tmp_path).collect(examples(4), vote)
    make(tmp_path).evaluate(examples(6)[::-1], truth[::-1])
    figures = json.loads((tmp_path / "evaluation.json").read_text())
    assert figures["mean_teacher_accuracy"] == pytest.approx((15 + 15 + 5 + 15) / 80)
    assert figures["plurality_accuracy"] == 0.75
    assert figures["examples"] == 4


def test_stored_votes_are_those_of_their_own_examples_alone() -> None:
    counts = vote(examples(3))[0].counts
    for n in (2, 4):
        with pytest.raises(RunError, match=f"votes on 3 examples are stored, {n} were asked for"):
            StoredCount(counts, 20)(examples(n))


def test_a_stream_whose_batch_failed_goes_on_from_what_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aggregator = make(tmp_path, SVEC, asked=40, answered=40)
    aggregator.collect(examples(40), unsure)
    store = aggregator._ledger.charge_and_store

    def fails_once(*given: object) -> None:
        monkeypatch.setattr(aggregator._ledger, "charge_and_store", store)
        raise KeyboardInterrupt

    monkeypatch.setattr(aggregator._ledger, "charge_and_store", fails_once)
    with pytest.raises(KeyboardInterrupt):
        aggregator.label(examples(5))
    assert aggregator.label(examples(5)).labels.tolist() == [0, 0, 0, UNANSWERED, 0]
    assert aggregator.spent() == Charge(5, 4, 1)


@pytest.mark.parametrize(("adaptive", "ensemble"), [(True, 1), (False, 2)])
def test_there_is_no_exact_figure_of_adaptive_queries_or_erased_votes(
    adaptive: bool, ensemble: int, tmp_path: Path
) -> None:
    before = make(tmp_path, GNMax(4.0))
    before.collect(examples(6), vote)
    before.label(examples(6))
    before.close()
    make(tmp_path, GNMax(4.0), ensemble=ensemble).account(examples(6), 1e-5, adaptive)
    figures = json.loads((tmp_path / "epsilon.json").read_text())
    assert figures["epsilon_data_dependent"] is None
    assert figures["why"]
    assert "by_rdp" not in figures


class Watched(ConfidentGNMax):
    """Notes which queries it was told were answered, and goes no farther."""

    told: ClassVar[list[tuple[int, bool]]] = []

    def sanitised_cost(self, counts: np.ndarray, answered: np.ndarray, order: float) -> PrivateCost:
        self.told.extend(zip(counts.max(axis=1).tolist(), answered.tolist(), strict=True))
        raise NotImplementedError


def test_the_sanitised_figure_is_of_what_was_answered(tmp_path: Path) -> None:
    aggregator = make(tmp_path, Watched(threshold=16, sigma1=0.05, sigma2=0.05))
    agreed = np.array([[20, 0, 0], [10, 10, 0], [19, 1, 0]])
    aggregator.collect(examples(3), lambda X: [PartialCounts(tuple(range(20)), agreed)])
    aggregator.label(examples(3))
    with pytest.raises(Failed, match="NotImplementedError"):
        aggregator.sanitise(examples(3), Sanitise(order=6.0, beta=0.04), 1e-5)
    assert sorted(Watched.told) == [(10, False), (19, True), (20, True)]
