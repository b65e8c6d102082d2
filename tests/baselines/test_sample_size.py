"""How many records are enough: the bound against simulations, its parts against brute force, and which way it moves."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import minimize

from pate.accounting._parameters import ParameterError
from pate.baselines.dp_erm import DPLinearClassifier, build_loss
from pate.baselines.sample_size import ExcessLoss
from pate.errors import ConfigError
from pate.noise import seeded_entropy

FALSE_ALARM = 1e-6
PLACES = np.array([[1.0, 0.0], [0.6, 0.8], [-0.6, 0.8], [0.0, -1.0]])
"""Where records can be, equally likely: the expected loss is then a sum of eight terms."""

CHANCES = 1.0 / (1.0 + np.exp(-PLACES @ [1.5, -1.0]))
"""Of the second class, at each place."""

CASES = [(loss, method, epsilon) for loss in ("logistic", "huber") for method in ("output", "objective")
         for epsilon in (0.02, 1.0)]  # fmt: skip


def draw(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    place = rng.integers(0, len(PLACES), n)
    return PLACES[place], (rng.random(n) < CHANCES[place]).astype(int)


def expected_loss(loss: str, w: np.ndarray) -> float:
    margins, kind = PLACES @ w, build_loss(loss, 0.5)
    return float(np.mean(CHANCES * kind.value(margins) + (1 - CHANCES) * kind.value(-margins)))


def min_loss(loss: str, norm: float) -> float:
    within = {"type": "ineq", "fun": lambda w: norm - np.linalg.norm(w)}
    return float(minimize(lambda w: expected_loss(loss, w), np.zeros(2), constraints=within).fun)


def failures(bound: ExcessLoss, excess: float, n: int, regularisation: float, runs: int) -> int:
    """How many of so many private classifiers lose more than `excess` against the best of that norm."""
    rng, best, found = np.random.default_rng(n), min_loss(bound.loss, bound.norm), 0
    for run in range(runs):
        model = DPLinearClassifier(
            bound.epsilon,
            n_records=n,
            loss=bound.loss,
            method=bound.method,
            regularisation=regularisation,
            intercept=0,
            entropy=seeded_entropy(run),
        ).fit(*draw(rng, n))
        found += expected_loss(bound.loss, model.coef_[0]) > best + excess
    return found


@pytest.mark.parametrize(
    ("loss", "method", "epsilon"),
    [pytest.param(*case, marks=[pytest.mark.slow] if case[1:] == ("output", 0.02) else []) for case in CASES],
)
def test_so_many_records_are_enough(loss: str, method: str, epsilon: float) -> None:
    """No more failures than the stated share allows; false-alarm rate 1e-6, and seeds are fixed."""
    bound = ExcessLoss(epsilon, dimension=2, norm=2.0, failure=0.2, method=method, loss=loss)
    n, regularisation = bound.sufficient_records(0.25)
    assert bound.bound(n, regularisation) <= 0.25
    assert failures(bound, 0.25, n, regularisation, 100) <= stats.binom.isf(FALSE_ALARM, 100, 0.2)


@pytest.mark.parametrize(("loss", "method"), [(loss, method) for loss, method, epsilon in CASES if epsilon == 1.0])
def test_far_fewer_would_not_be(loss: str, method: str) -> None:
    """Where noise is most of it: a twentieth of the records fails more often than was promised for all of them."""
    bound = ExcessLoss(0.02, dimension=2, norm=2.0, method=method, loss=loss)
    n, regularisation = bound.sufficient_records(0.25)
    assert failures(bound, 0.25, n // 20, regularisation, 100) > stats.binom.isf(FALSE_ALARM, 100, 0.05)


@pytest.mark.parametrize("loss", ["logistic", "huber"])
def test_records_spread_no_further_than_stated(loss: str) -> None:
    """Brute force over a ball: (L − L̂)(w) − (L − L̂)(w*) ≤ r·s in nearly all draws, and it is no empty statement."""
    bound, kind, rng = ExcessLoss(1.0, 2, 1.0, failure=0.4, loss=loss), build_loss(loss, 0.5), np.random.default_rng(1)
    centre, radius, n, runs = np.array([0.4, -0.3]), 1.5, 60, 400
    angles = np.linspace(0, 2 * np.pi, 48, endpoint=False)
    around = np.stack([np.cos(angles), np.sin(angles)], 1)
    ball = np.concatenate([centre + radius * share * around for share in (0.25, 0.5, 0.75, 1.0)])
    truth = np.array([expected_loss(loss, w) for w in ball]) - expected_loss(loss, centre)
    most = []
    for _ in range(runs):
        X, y = draw(rng, n)
        signed = X * np.where(y == 1, 1.0, -1.0)[:, None]
        seen = kind.value(ball @ signed.T).mean(1) - kind.value(signed @ centre).mean()
        most.append(float((truth - seen).max()) / (radius * bound._spread(n)))
    assert sum(value > 1 for value in most) <= stats.binom.isf(FALSE_ALARM, runs, 0.2)
    assert max(most) > 0.15


def test_noise_exceeds_its_stated_length_as_often_as_stated() -> None:
    for dimension in (1, 7, 300):
        length = ExcessLoss(1.0, dimension, 1.0, failure=0.1)._noise(0.5)
        assert stats.gamma(dimension).sf(length) == pytest.approx(0.05, rel=1e-9)


@pytest.mark.parametrize(("loss", "method", "epsilon"), CASES)
def test_it_moves_the_right_way(loss: str, method: str, epsilon: float) -> None:
    bound = ExcessLoss(epsilon, dimension=20, norm=3.0, method=method, loss=loss)
    n = bound.sufficient_records(0.1).records
    for easier in (
        replace(bound, epsilon=2 * epsilon),
        replace(bound, dimension=10),
        replace(bound, norm=1.5),
        replace(bound, failure=0.2),
    ):
        assert easier.sufficient_records(0.1).records < n
    assert bound.sufficient_records(0.2).records < n
    if method == "output":
        assert replace(bound, method="objective").sufficient_records(0.1).records < n


@pytest.mark.parametrize(("loss", "method", "epsilon"), CASES)
def test_at_one_regularisation_more_records_never_lose_more(loss: str, method: str, epsilon: float) -> None:
    bound = ExcessLoss(epsilon, dimension=20, norm=3.0, method=method, loss=loss)
    for regularisation in (1e-3, 1.0):
        values = [bound.bound(n, regularisation) for n in np.geomspace(10, 1e12, 60)]
        assert all(later <= earlier * (1 + 1e-12) for earlier, later in itertools.pairwise(values))


def test_without_noise_it_is_the_closed_form() -> None:
    """n = 2·norm²·(2 + √(2·ln(2/failure)))²/excess², from the best Λ by hand."""
    for method in ("output", "objective"):
        n, _ = ExcessLoss(1e6, dimension=3, norm=2.0, method=method).sufficient_records(0.05)
        assert n == pytest.approx(8 * (2 + math.sqrt(2 * math.log(40))) ** 2 / 0.05**2, rel=2e-3)


def test_the_cost_of_noise_grows_as_stated() -> None:
    """Noise in charge: objective as norm/excess, output as norm²·√c/excess^1.5, both as dimension/ε."""
    for method, power in (("objective", 1.0), ("output", 1.5)):
        small = ExcessLoss(0.01, dimension=400, norm=1.0, method=method)
        n = small.sufficient_records(0.1).records
        assert small.sufficient_records(0.05).records / n == pytest.approx(2**power, rel=0.1)
        assert replace(small, epsilon=0.005).sufficient_records(0.1).records / n == pytest.approx(2, rel=0.1)


def test_settings_that_the_classifier_refuses_promise_nothing() -> None:
    assert math.isinf(ExcessLoss(1.0, 3, 1.0, method="output").bound(1e6, 1e-9))
    with pytest.raises(ConfigError, match="would need more than"):
        ExcessLoss(1.0, 3, 1.0).sufficient_records(1e-9)


@pytest.mark.parametrize(
    "settings",
    [
        {"epsilon": 0.0},
        {"dimension": 0},
        {"dimension": 1.5},
        {"norm": 0.0},
        {"norm": math.nan},
        {"failure": 0.0},
        {"failure": 1.0},
    ],
)
def test_nonsense_is_refused(settings: dict) -> None:
    with pytest.raises(ParameterError, match=next(iter(settings))):
        ExcessLoss(**{"epsilon": 1.0, "dimension": 2, "norm": 1.0, **settings})


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ConfigError, match="method = 'input'"):
        ExcessLoss(1.0, 2, 1.0, method="input")
    with pytest.raises(ConfigError, match="loss = 'hinge'"):
        ExcessLoss(1.0, 2, 1.0, loss="hinge")
    for excess in (0.0, -1.0, math.nan):
        with pytest.raises(ParameterError, match="excess"):
            ExcessLoss(1.0, 2, 1.0).sufficient_records(excess)
