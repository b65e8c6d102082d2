"""The door: commit before release, free repeats, refusal of whole batches."""

from __future__ import annotations

import json
import os
import sqlite3
from multiprocessing import get_context
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from support.aggregators import KEY, examples, make, unsure, vote

from pate.accounting.sanitise import PrivateCost
from pate.boundary import PartialCounts
from pate.boundary._aggregator import query_ids, votes_collected
from pate.boundary._guard import Failed
from pate.config import Sanitise
from pate.errors import BudgetExceeded, RunError
from pate.ledger import Charge, Ledger
from pate.ledger._chain import verify
from pate.mechanisms import UNANSWERED, ConfidentGNMax, GNMax, Histogram, LectureMSvec, MSvec
from pate.voters.neighbours._cells import Cells, CellVote, Space
from pate.voters.stored import StoredCount


def no_entropy(n: int) -> bytes:
    raise AssertionError("noise was drawn")


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
    aggregator = make(tmp_path, asked=4, answered=4, entropy=no_entropy)
    aggregator.collect(examples(6), vote)
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


def test_a_crash_after_the_noise_and_before_the_commit_leaves_neither_label_nor_charge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aggregator = make(tmp_path)
    aggregator.collect(examples(4), vote)

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Ledger, "charge_and_store", crash)
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


def test_a_restart_costs_as_much_before_the_first_unanswered_query(tmp_path: Path) -> None:
    make(tmp_path, SVEC, asked=40, answered=40).collect(examples(40), unsure)
    for restarts, rows in enumerate([[0, 1], [2, 4], [5]]):
        aggregator = make(tmp_path, SVEC, asked=40, answered=40)
        aggregator.label(examples(40)[rows])
        assert aggregator.spent().unstable == restarts
    assert make(tmp_path, SVEC, asked=40, answered=40).room() == 0


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


SANITISE = Sanitise(order=6.0, beta=0.04)


def test_a_sanitised_figure_is_released_once_through_the_ledger(tmp_path: Path) -> None:
    """Drawn and stored in one link; whoever asks again, by whatever settings, is told what is stored: nothing is drawn.

    A second draw would cost as much as the first, and is not in the published ε.
    """
    aggregator = make(tmp_path, GNMax(6.0))
    aggregator.collect(examples(6), vote)
    aggregator.label(examples(6))
    before = verify(tmp_path / "ledger.db", KEY, tmp_path / "ledger.head")
    first = aggregator.sanitise(examples(6), SANITISE, 1e-5)
    assert first is not None
    assert first["epsilon"] > 0
    assert verify(tmp_path / "ledger.db", KEY, tmp_path / "ledger.head") == before + 1
    again = make(tmp_path, GNMax(6.0), entropy=no_entropy)
    for asked in (examples(6), examples(3)):
        for settings in (SANITISE, Sanitise(order=8.0, beta=0.05)):
            assert aggregator.sanitise(asked, settings, 1e-5) == again.sanitise(asked, settings, 1e-6) == first
    assert verify(tmp_path / "ledger.db", KEY, tmp_path / "ledger.head") == before + 1
    rows = sqlite3.connect(tmp_path / "ledger.db").execute("SELECT content FROM sanitised").fetchall()
    assert [json.loads(content) for (content,) in rows] == [first]


def test_a_figure_that_cannot_be_sanitised_is_refused_and_stores_nothing(tmp_path: Path) -> None:
    aggregator = make(tmp_path)
    aggregator.collect(examples(2), vote)
    aggregator.label(examples(2))
    with pytest.raises(RunError, match=r"^budget\.sanitise: .*too large to sanitise"):
        aggregator.sanitise(examples(2), SANITISE, 1e-5)
    assert verify(tmp_path / "ledger.db", KEY, tmp_path / "ledger.head") == 3


def test_no_figure_is_sanitised_from_votes_that_forgetting_erased(tmp_path: Path) -> None:
    before = make(tmp_path, GNMax(6.0))
    before.collect(examples(6), vote)
    before.label(examples(6))
    before.close()
    assert make(tmp_path, GNMax(6.0), ensemble=2).sanitise(examples(6), SANITISE, 1e-5) is None


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

    aggregator = make(tmp_path, GNMax(6.0), entropy=counted)
    aggregator.collect(examples(6), vote)
    aggregator.label(examples(6))
    for_labels = drawn
    aggregator.sanitise(examples(6), SANITISE, 1e-5)
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

    def fails(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Ledger, "charge_and_store", fails)
        aggregator.label(examples(5))
    assert aggregator.label(examples(5)).labels.tolist() == [0, 0, 0, UNANSWERED, 0]
    assert aggregator.spent() == Charge(5, 4, 1)


def test_a_refused_batch_leaves_a_stream_its_threshold(tmp_path: Path) -> None:
    aggregator = make(tmp_path, SVEC, asked=6, answered=6)
    aggregator.collect(examples(40), unsure)
    aggregator.label(examples(3))
    with pytest.raises(BudgetExceeded, match="3 would"):
        aggregator.label(examples(8))
    aggregator.label(examples(5))
    assert aggregator.spent() == Charge(5, 4, 1)  # example 3 is a tie; the refusal used up nothing


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


def test_the_exact_figure_grows_in_the_order_in_which_examples_were_asked(tmp_path: Path) -> None:
    """A tie costs more than where all agree, so ε of the first n is larger if the ties come first."""
    aggregator = make(tmp_path, GNMax(2.0), asked=40, answered=40)
    aggregator.collect(examples(36), unsure)
    aggregator.label(examples(36))
    is_tie = examples(36)[:, 0] % 4 == 3

    def after(order: np.ndarray) -> np.ndarray:
        aggregator.account(examples(36)[order], 1e-5)
        return np.array(json.loads((tmp_path / "epsilon.json").read_text())["by_rdp_after"]["epsilon"])

    sure_first, ties_first = after(np.argsort(is_tie, kind="stable")), after(np.argsort(~is_tie, kind="stable"))
    assert (sure_first[:-1] < ties_first[:-1]).all()
    assert sure_first[-1] == pytest.approx(ties_first[-1])


def test_a_stored_prefix_ends_at_the_first_example_without_an_answer(tmp_path: Path) -> None:
    aggregator = make(tmp_path)
    aggregator.collect(examples(6), vote)
    aggregator.label(examples(6)[[0, 1, 3, 4]])
    assert aggregator.stored_prefix(examples(6)) == 2
    assert aggregator.stored_prefix(examples(6)[3:5]) == 2
    assert aggregator.stored_prefix(examples(6)[::-1]) == 0


# Rounds of votes in cells.


class CountedOnce:
    """Votes of two sources in two cells of two classes; a third time nobody is there to count them."""

    sources = ("here", "there")

    def __init__(self, parts: tuple[str, ...] = sources) -> None:
        self.parts, self.left = parts, 2

    def count(self, vote: CellVote) -> list[PartialCounts]:
        self.left -= 1
        assert self.left >= 0, "records were read again"
        return [PartialCounts((part,), np.array([[20, 0], [0, 30]])) for part in self.parts]


CELLS = CellVote(lambda X: X, Cells(Space(np.zeros(1), np.ones(1)), np.array([[0.0], [9.0]])), 1, 2)


def test_a_round_is_counted_charged_and_stored_once_and_rounds_are_apart(tmp_path: Path) -> None:
    counter, noisy = CountedOnce(), Histogram(3.0)
    first = make(tmp_path, noisy, asked=2, answered=2)
    one = first.release_round("round 1", CELLS, noisy, counter)  # type: ignore[arg-type]
    assert first.spent() == Charge(1, 1)
    two = first.release_round("round 2", CELLS, GNMax(0.05), counter)  # type: ignore[arg-type]
    assert two.tolist() == [[0], [1]]
    assert np.abs(one - [[40, 0], [0, 60]]).max() < 150  # false alarm: below 1e-20
    with pytest.raises(BudgetExceeded):
        first.release_round("round 3", CELLS, noisy, CountedOnce())  # type: ignore[arg-type]
    again = make(tmp_path, noisy, asked=2, answered=2, entropy=no_entropy)
    assert again.release_round("round 1", CELLS, noisy, counter).tolist() == one.tolist()  # type: ignore[arg-type]
    assert again.release_round("round 2", CELLS, GNMax(0.05), counter).tolist() == two.tolist()  # type: ignore[arg-type]
    assert again.spent() == Charge(2, 2)
    with pytest.raises(RunError, match="was stored in part only"):
        again.release_round("round 2", CELLS, noisy, counter)  # type: ignore[arg-type]


def test_a_round_whose_sources_did_not_all_count_once_draws_nothing(tmp_path: Path) -> None:
    for parts in (("here",), ("here", "here"), ("here", "there", "there")):
        aggregator = make(tmp_path, Histogram(3.0), entropy=no_entropy)
        with pytest.raises(RunError, match="nothing was drawn"):
            aggregator.release_round("round 1", CELLS, Histogram(3.0), CountedOnce(parts))  # type: ignore[arg-type]
        assert aggregator.spent() == Charge(0, 0)


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
        aggregator.sanitise(examples(3), SANITISE, 1e-5)
    assert sorted(Watched.told) == [(10, False), (19, True), (20, True)]
