"""Canaries, coins and guesses; and the attacks on whole runs, which leave the run that is audited alone."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binomtest

from pate.audit.confidence_bounds import plan
from pate.audit.mechanism import audit_sensitivity
from pate.audit.one_run import alone, audit_erm, audit_gradients, guess, spikes
from pate.audit.results import Canaries, Options, fair_coins
from pate.audit.runner import audit
from pate.baselines.dp_erm import DPLinearClassifier
from pate.baselines.dp_sgd import DPSGDClassifier
from pate.config import Config, parse_config
from pate.data.private import Records
from pate.data.public import PublicData
from pate.pipeline import run
from pate.runs._console import Quiet

RNG = np.random.default_rng(0)


def dataset(ids=None) -> tuple[PublicData, Records]:
    X, y = RNG.normal(size=(120, 4)), RNG.integers(0, 3, 120)
    X_public, test = RNG.normal(size=(80, 4)), RNG.normal(size=(40, 4))
    given = {"X_test": test, "y_test": RNG.integers(0, 3, 40)}
    return PublicData(X_public, tuple("abc"), **given), Records(X, y, ids)


def config(**changed) -> Config:
    shared = {
        "data": {"source": "arrays"},
        "student": {"name": "supervised", "params": {"estimator": "sklearn.naive_bayes.GaussianNB"}},
        "backend": "local",
    }
    return parse_config({**shared, **changed})


NEIGHBOURS = config(voters="neighbours", neighbours={"cells": 10}, mechanism={"name": "histogram", "scale": 2})
TEACHERS = config(
    n_teachers=6,
    teachers=[{"name": "sklearn.tree.DecisionTreeClassifier", "params": {"max_depth": 2}}],
    mechanism={"name": "gnmax", "sigma": 4},
    budget={"max_queries": 20},
)


def test_coins_are_fair_and_the_operating_systems():
    """False alarm: 1e-6."""
    coins = fair_coins(100_001)
    assert len(coins) == 100_001
    assert binomtest(int(coins.sum()), len(coins)).pvalue > 1e-6
    assert (fair_coins(8, lambda n: b"\xf0" * n) == [True] * 4 + [False] * 4).all()


def randomised_response(coins, epsilon, rng):
    told = np.where(rng.random(len(coins)) < 1 / (1 + math.exp(-epsilon)), coins, ~coins)
    return 2.0 * told - 1


def test_guesses_show_most_of_what_leaks_and_pay_for_every_try():
    """Randomised response leaks all of its ε. False alarm of this test: 1e-6."""
    rng = np.random.default_rng(1)
    epsilon, confidence, trials = 1.0, 0.9, 25
    found = []
    for _ in range(trials):
        coins = rng.random(1000) < 0.5
        scores = {"told": randomised_response(coins, epsilon, rng), "nothing": rng.random(1000)}
        found.append(guess(scores, coins, 1.0, 0.0, confidence))
    assert all(one.score == "told" for one in found)
    shown = np.array([one.epsilon_lower for one in found])
    assert binomtest(int((shown > epsilon).sum()), trials, 1 - confidence, alternative="greater").pvalue > 1e-6
    assert 0.75 * epsilon < np.median(shown) < epsilon


def test_nothing_is_shown_by_scores_that_know_nothing_and_all_by_those_that_know():
    """False alarm: 1e-6."""
    coins = fair_coins(200)
    nothing = guess({"noise": np.random.default_rng(2).random(200)}, coins, 1.0, 0.0, 1 - 1e-6)
    assert nothing.epsilon_lower == 0
    known = guess({"coin": coins.astype(float)}, coins, 1.0, 0.0, 0.95)
    assert known.correct == known.guesses == 200
    assert known.epsilon_lower == pytest.approx(math.log(1 / ((6 / 0.05) ** (1 / 200) - 1)), rel=1e-6)


def test_canaries_are_added_or_relabelled_by_their_coins_alone():
    _, honest = dataset()
    X, owner = np.arange(12.0).reshape(3, 4), np.array([0, 1, 1])
    canaries, coins = Canaries(X, np.array([0, 1, 2]), owner), np.array([False, True])
    with_some = canaries.among(honest, coins, ids=True)
    np.testing.assert_array_equal(with_some.X[120:], X[1:])
    assert with_some.ids is not None
    assert list(with_some.ids[-3:]) == ["record 119", "canary 1", "canary 1"]
    assert canaries.among(honest, coins, ids=False).ids is None
    relabelled = Canaries(X, np.array([0, 1, 2]), owner, np.array([2, 0, 0]))
    assert relabelled.among(honest, coins, ids=False).y[120:].tolist() == [2, 1, 2]
    assert len(canaries) == 2


def test_a_plan_grows_with_canaries_and_stays_below_the_claim():
    planned = plan([10, 100, 1000, 10_000], 1e-7, claimed=1.0)
    best, expected = [one.at_best for one in planned], [one.expected for one in planned]
    assert best == sorted(best)
    assert expected == sorted(expected)
    assert expected[-1] < 1.0
    assert plan([10], 1e-5)[0].expected is None


@pytest.mark.parametrize("chosen", [NEIGHBOURS, TEACHERS], ids=["neighbours", "teachers"])
def test_a_run_is_audited_by_runs_of_its_own(chosen: Config, tmp_path: Path):
    """The ledger of the run that is audited is not touched, and nothing that may leave tells what was found."""
    public, private = dataset()
    run(chosen, tmp_path / "run", public=public, private=private, pages=False, force=True, console=Quiet())
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir() if path.is_file()}
    options = Options.of(quick=True, canaries=40)
    found = audit(tmp_path / "run", (), ["one-run", "sensitivity"], options, public=public, private=private)
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir() if path.is_file()} == before
    kinds = {"one run: records in or out", "one run: records with one label or another"}
    kinds = kinds if chosen is NEIGHBOURS else {"one run: persons in or out"}
    assert {finding.attack for finding in found.findings} == kinds | {"sensitivity"}
    for finding in found.findings:
        assert finding.epsilon_claimed is not None
        if finding.attack != "sensitivity":
            assert finding.epsilon_lower is not None
            assert "guesses right" in finding.note
        else:
            assert "it may move" in finding.note
    assert any("promises nothing" in note for note in found.left_out)


def test_an_audit_has_no_part_in_a_shared_ledger():
    ledger = {"path": "shared", "id": "a" * 32}
    shared = TEACHERS.model_copy(update={"budget": TEACHERS.budget.model_copy(update={"ledger": ledger})})
    audited = alone(shared)
    assert audited.budget.ledger is None
    assert audited.model_copy(update={"budget": TEACHERS.budget}) == TEACHERS


def test_persons_and_subsamples_move_no_more_votes_than_they_may():
    persons = [f"person {i // 3}" for i in range(120)]
    of_persons = audit_sensitivity(TEACHERS, *dataset(persons), tries=2)
    assert (of_persons.allowed, of_persons.refutes) == (1.0, False)
    assert not audit_sensitivity(NEIGHBOURS, *dataset(persons), tries=1).refutes
    mechanism = {"name": "msamp", "epsilon": 1.0, "query_delta": 1e-5, "sampling_rate": 0.3}
    subsampled = audit_sensitivity(TEACHERS.model_copy(update={"mechanism": mechanism}), *dataset(), tries=1)
    assert subsampled.allowed in (3.0, 6.0)
    assert not subsampled.refutes


def test_the_gradients_of_all_steps_tell_who_was_in():
    """False alarm: 1e-6; and as probable that too little is seen."""
    given = {"sigma": 1.0, "delta": 1e-9, "n_records": 20, "lot_size": 20, "epochs": 4, "clip_norm": 1.0}
    model = DPSGDClassifier(classes=range(2), model="linear", accountant="rdp", **given)
    found = audit_gradients(model, canaries=400, confidence=1 - 1e-6)
    assert 0.8 < found.epsilon_lower < found.epsilon_claimed


def test_a_coefficient_tells_about_its_only_record():
    """False alarm: 1e-6; and as probable that too little is seen."""
    found = audit_erm(DPLinearClassifier(4.0, n_records=10, loss="huber"), runs=400, confidence=1 - 1e-6)
    assert 0.1 < found.epsilon_lower < found.epsilon_claimed


def test_spikes_have_a_feature_each():
    found = spikes((2, 3), 10)
    assert found.shape == (6, 2, 3)
    assert (found.reshape(6, -1).argmax(1)).tolist() != list(range(6))
    assert (found.sum(axis=0) == 100).all()
