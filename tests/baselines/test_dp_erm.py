"""DP-ERM: the guarantee against brute force on small cases, the solver against scikit-learn, and clear mistakes."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression

from pate.baselines.dp_erm import (
    SOLVER_SHARE,
    TOLERANCE,
    DPLinearClassifier,
    Huber,
    Logistic,
    Loss,
    PrivatelyTuned,
    clip_rows,
    min_strength,
    minimise,
    objective_parameters,
    tolerance_of,
)
from pate.data.partition import split_into_parts
from pate.errors import ConfigError, DataError
from pate.noise import Entropy, seeded_entropy, spherical_laplace

LOSSES = [Logistic(), Huber(0.5), Huber(0.1)]
FALSE_ALARM = 1e-6


def neighbours(rng: np.random.Generator, size: int, dimension: int) -> list[np.ndarray]:
    """A small data set of signed rows and, in turn, one record removed and one changed."""
    rows = clip_rows(rng.normal(size=(size, dimension)) * 2)
    changed = rows.copy()
    changed[0] = -rows[0] if rng.random() < 0.5 else clip_rows(rng.normal(size=(1, dimension)))[0]
    return [rows, rows[1:], changed]


@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_losses_have_the_derivatives_and_bounds_they_state(loss: Loss) -> None:
    z = np.linspace(-4, 4, 4001)
    h = 1e-6
    np.testing.assert_allclose(loss.slope(z), (loss.value(z + h) - loss.value(z - h)) / (2 * h), atol=1e-5)
    smooth = np.ones_like(z, dtype=bool)
    if isinstance(loss, Huber):
        smooth = np.abs(np.abs(1 - z) - loss.width) > 1e-3
    np.testing.assert_allclose(
        loss.second(z)[smooth], ((loss.slope(z + h) - loss.slope(z - h)) / (2 * h))[smooth], atol=1e-4
    )
    assert np.abs(loss.slope(z)).max() <= 1
    assert loss.second(z).max() <= loss.curvature


@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_the_minimum_moves_by_at_most_the_stated_sensitivity(loss: Loss) -> None:
    """Brute force over random neighbours: within 2/λ, within 1/λ when a record is removed, and the bound is met."""
    rng, largest = np.random.default_rng(0), 0.0
    for _ in range(300):
        dimension, strength = int(rng.integers(1, 4)), 10 ** rng.uniform(-2, 2)
        rows, removed, changed = neighbours(rng, int(rng.integers(1, 6)), dimension)
        zero = np.zeros(dimension)
        w, w_removed, w_changed = (minimise(loss, data, strength, zero, 1e-10) for data in (rows, removed, changed))
        slack = 1 + 1e-6
        assert np.linalg.norm(w - w_removed) <= slack / strength
        assert np.linalg.norm(w - w_changed) <= 2 * slack / strength
        largest = max(largest, float(np.linalg.norm(w - w_changed)) * strength / 2)
    assert largest > (0.45 if isinstance(loss, Logistic) else 0.9)


def log_density(loss: Loss, rows: np.ndarray, w: np.ndarray, strength: float, tilt_epsilon: float) -> float:
    """Log density of the exact minimiser of the tilted objective at w, up to a constant, by change of variables."""
    margins = rows @ w
    tilt = -(rows.T @ loss.slope(margins) + strength * w)
    hessian = (rows * loss.second(margins)[:, None]).T @ rows + strength * np.eye(len(w))
    return -tilt_epsilon / 2 * np.linalg.norm(tilt) + np.linalg.slogdet(hessian)[1]


@pytest.mark.parametrize("loss", LOSSES, ids=str)
@pytest.mark.parametrize("dimension", [1, 2])
def test_objective_perturbation_keeps_the_density_ratio(loss: Loss, dimension: int) -> None:
    """|ln p(w | D) − ln p(w | D')| ≤ ε at every w, for neighbours of each kind, and it comes near ε somewhere."""
    rng, largest = np.random.default_rng(1), 0.0
    for _ in range(40):
        epsilon = 10 ** rng.uniform(-1.5, 0.5)
        strength, tilt_epsilon = objective_parameters(epsilon, 10 ** rng.uniform(-2, 1), loss.curvature)
        rows, removed, changed = neighbours(rng, int(rng.integers(1, 5)), dimension)
        points = rng.normal(size=(150, dimension)) * 3 / strength
        for w in points:
            here = log_density(loss, rows, w, strength, tilt_epsilon)
            for other in (removed, changed):
                ratio = abs(here - log_density(loss, other, w, strength, tilt_epsilon))
                assert ratio <= epsilon * (1 + 1e-9)
                largest = max(largest, ratio / epsilon)
    assert largest > 0.6


@pytest.mark.parametrize(("loss_name", "loss"), [("logistic", Logistic()), ("huber", Huber(0.5))])
def test_released_weights_follow_the_density_that_was_checked(loss_name: str, loss: Loss) -> None:
    """In one dimension, against the integral of the density; false-alarm rate 1e-6."""
    X, y = np.array([[0.9], [-0.4], [0.7]]), np.array([1, 0, 0])
    epsilon, regularisation, entropy = 2.0, 0.5, seeded_entropy(7)
    model = DPLinearClassifier(
        epsilon, n_records=3, loss=loss_name, regularisation=regularisation, intercept=0, entropy=entropy
    )
    draws = np.array([model.fit(X, y).coef_[0, 0] for _ in range(2000)])
    strength, tilt_epsilon = objective_parameters(epsilon * (1 - SOLVER_SHARE), regularisation * 3, loss.curvature)
    rows = X * np.where(y == 1, 1.0, -1.0)[:, None]

    def density(w: float) -> float:
        return math.exp(log_density(loss, rows, np.array([w]), strength, tilt_epsilon))

    grid = np.linspace(-25, 25, 1001)
    mass = np.concatenate([[0.0], np.cumsum([quad(density, a, b)[0] for a, b in itertools.pairwise(grid)])])
    assert stats.kstest(draws, lambda w: np.interp(w, grid, mass / mass[-1])).pvalue > FALSE_ALARM


def test_output_noise_has_the_stated_scale() -> None:
    """|released − minimum| is Gamma(d) with mean d·2/(λε); false-alarm rate 1e-6."""
    rng = np.random.default_rng(3)
    X, y = rng.normal(size=(50, 3)), rng.integers(0, 2, 50)
    model = DPLinearClassifier(0.7, n_records=50, method="output", regularisation=0.1, entropy=seeded_entropy(1))
    minimum = minimise(Logistic(), model._rows(X) * np.where(y == 1, 1.0, -1.0)[:, None], 5.0, np.zeros(4), TOLERANCE)
    norms = [np.linalg.norm(model.fit(X, y).coef_[0] - minimum) for _ in range(1500)]
    assert stats.kstest(norms, stats.gamma(4, scale=2 / (5.0 * 0.7)).cdf).pvalue > FALSE_ALARM


@pytest.mark.parametrize("method", ["output", "objective"])
def test_noise_comes_from_public_figures_alone(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rates of all noise, by the formulas, whatever the number of records; and ε is spent once.

    Also where there may be so many records that the solver's tolerance goes by their public number.
    """
    rates: list[float] = []

    def noted(dimension: int, rate: float, entropy: Entropy) -> np.ndarray:
        rates.append(rate)
        return spherical_laplace(dimension, rate, entropy)

    monkeypatch.setattr("pate.baselines.dp_erm.spherical_laplace", noted)
    rng = np.random.default_rng(12)
    X, y = rng.normal(size=(40, 2)), rng.integers(0, 2, 40)
    for n_records in (30, 40_000):
        strength = 0.1 * n_records
        tilt = 0.8 * (1 - SOLVER_SHARE) - math.log1p(0.25 / strength)
        mean_tilt = 0.0 if method == "output" else 2 * 3 / tilt
        tolerance = max(TOLERANCE, 1e-11 * (n_records + mean_tilt))
        expected = {
            "output": [0.8 * strength / (2 * (1 + tolerance))],
            "objective": [tilt / 2, 0.8 * SOLVER_SHARE * strength / (2 * tolerance)],
        }[method]
        rates.clear()
        for n in (40, 10):
            DPLinearClassifier(0.8, n_records=n_records, method=method, regularisation=0.1).fit(X[:n], y[:n])
        np.testing.assert_allclose(rates, 2 * expected, rtol=1e-12)


def test_what_is_released_lies_on_a_grid() -> None:
    X, y = np.random.default_rng(13).normal(size=(30, 3)), np.arange(30) % 2
    for method in ("output", "objective"):
        steps = DPLinearClassifier(1.0, n_records=30, method=method).fit(X, y).coef_ * 2.0**30
        np.testing.assert_array_equal(steps, np.round(steps))


def nasty_rows(rng: np.random.Generator, kind: str, n: int, dimension: int) -> np.ndarray:
    """Signed rows that a solver may stumble over."""
    X = rng.normal(size=(n, dimension))
    if kind == "collinear":
        X = np.repeat(X[:, :1], dimension, axis=1)
    elif kind == "separable":
        X = np.abs(X) + 0.1
    elif kind == "one direction":
        X = np.repeat(X[:1], n, axis=0)
    elif kind == "scales":
        X *= 10.0 ** rng.uniform(-8, 2, size=(n, 1))
    elif kind == "one-hot":
        X = np.eye(dimension)[rng.integers(0, dimension, n)]
    return clip_rows(X) * (1.0 if kind == "separable" else rng.choice([-1.0, 1.0], size=(n, 1)))


@pytest.mark.parametrize("condition", [1e3, 1e5, 1e7])
@pytest.mark.parametrize("loss", [*LOSSES, Huber(1e-3), Huber(1e-6)], ids=str)
def test_the_solver_gets_there_for_every_data_set(loss: Loss, condition: float) -> None:
    """Within the settings that are allowed. It gave up on some of these, by an error that told of the data."""
    rng = np.random.default_rng(17)
    for kind in ("normal", "collinear", "separable", "one direction", "scales", "one-hot"):
        for n in (0, 1, 50, 500):
            for length in (0.0, 1.0, 1e3, 1e6):
                dimension = int(rng.choice([1, 3, 12]))
                rows = nasty_rows(rng, kind, max(n, 1), dimension)[:n]
                tilt = rng.normal(size=dimension) * length
                strength = min_strength(loss.curvature, 500) * 1e7 / condition
                tolerance = tolerance_of(500, length * dimension)
                w = minimise(loss, rows, strength, tilt, tolerance)
                gradient = rows.T @ loss.slope(rows @ w) + strength * w + tilt
                assert np.linalg.norm(gradient) <= tolerance


def test_a_hessian_that_cannot_be_factored_stops_nothing() -> None:
    """Below what settings allow; without the last record it could be factored, so an error told that it is there."""
    rng = np.random.default_rng(3)
    for strength in (1e-17, 1e-300):
        rows = nasty_rows(rng, "one direction", 500, 4)
        assert np.isfinite(minimise(Logistic(), rows, strength, np.zeros(4), TOLERANCE)).all()


def test_what_could_not_be_solved_is_refused_by_its_settings() -> None:
    """Whatever the records: none at all, here."""
    empty = np.zeros((0, 3)), np.zeros(0, dtype=int)
    with pytest.raises(ConfigError, match=r"regularisation = 1e-09: must be at least 2.5e-08"):
        DPLinearClassifier(1.0, n_records=1e6, method="output", regularisation=1e-9).fit(*empty)
    with pytest.raises(ConfigError, match=r"at least 0.05"):
        DPLinearClassifier(1.0, n_records=100, method="output", loss="huber", huber_width=1e-6).fit(*empty)
    assert DPLinearClassifier(1.0, n_records=100, regularisation=1e-12).fit(*empty).coef_.shape == (1, 4)  # is raised


@pytest.mark.parametrize("settings", [{}, {"method": "output"}, {"fourier_features": 8}, {"classes": (0, 1, 2)}])
def test_no_record_stops_it_and_an_unusable_one_counts_as_zero(settings: dict) -> None:
    rng = np.random.default_rng(15)
    X, y = rng.normal(size=(40, 3)), rng.integers(0, 2, 40)

    def fitted(X: np.ndarray, y: np.ndarray) -> DPLinearClassifier:
        return DPLinearClassifier(2.0, n_records=40, entropy=seeded_entropy(1), **settings).fit(X, y)

    without = fitted(X, y)
    assert without.left_out_ == 0
    for value, label in ((np.nan, 0), (np.inf, 1), (0.5, 9), (0.5, "x"), (0.5, None)):
        labels = np.array([*y.tolist(), label], dtype=object)
        found = fitted(np.concatenate([X, np.full((1, 3), value)]), labels)
        np.testing.assert_allclose(found.coef_, without.coef_, atol=1e-6)
        assert found.left_out_ == 1
    with np.errstate(over="ignore", invalid="ignore"):
        for huge in (1e160, 1e308):
            assert np.isfinite(fitted(np.concatenate([X, np.full((1, 3), huge)]), np.append(y, 1)).coef_).all()


def test_private_tuning_leaves_unusable_records_out() -> None:
    rng = np.random.default_rng(16)
    X, y = rng.normal(size=(60, 2)), rng.integers(0, 2, 60)
    ids = [str(i) for i in range(62)]
    candidates = [{"regularisation": 0.1}, {"regularisation": 1.0}]
    X_bad = np.concatenate([X, [[np.nan, 0.0]], [[0.0, 0.0]]])
    found = []
    for data, labels, names in ((X, y, ids[:60]), (X_bad[::-1], np.append(y, [0, 5])[::-1], ids[::-1])):
        tuned = PrivatelyTuned(5.0, n_records=60, candidates=candidates, entropy=seeded_entropy(2))
        found.append(tuned.fit(data, labels, names).best_.coef_)
    np.testing.assert_allclose(found[0], found[1], atol=1e-6)


def test_the_correction_for_curvature_follows_its_rule() -> None:
    for epsilon in (0.01, 0.1, 1.0, 5.0):
        for strength in (1e-4, 0.1, 10.0, 1e4):
            raised, tilt = objective_parameters(epsilon, strength, 0.25)
            assert raised >= strength
            assert tilt + math.log1p(0.25 / raised) <= epsilon * (1 + 1e-12)
            assert tilt >= epsilon / 2


def test_without_noise_to_speak_of_it_is_scikit_learns() -> None:
    rng = np.random.default_rng(4)
    X = clip_rows(rng.normal(size=(400, 5)))
    y = (X @ rng.normal(size=5) + 0.3 * rng.normal(size=400) > 0).astype(int)
    for method in ("output", "objective"):
        ours = DPLinearClassifier(1e6, n_records=400, method=method, regularisation=1 / 400, intercept=0).fit(X, y)
        theirs = LogisticRegression(C=1.0, fit_intercept=False, tol=1e-10).fit(X, y)
        np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-4)


def test_rows_never_exceed_one_and_depend_on_themselves_only() -> None:
    rng = np.random.default_rng(6)
    X = rng.normal(size=(300, 7)) * 10 ** rng.uniform(-3, 6, size=(300, 1))
    for settings in ({"intercept": 1.0}, {"intercept": 0}, {"fourier_features": 20}):
        model = DPLinearClassifier(1.0, n_records=300, **settings)
        rows = model._rows(X)
        assert np.linalg.norm(rows, axis=1).max() <= 1 + 4e-16
        np.testing.assert_allclose(model._rows(X[17:18])[0], rows[17], atol=1e-9)  # matrix products round by shape


def test_several_classes_split_the_budget() -> None:
    rng = np.random.default_rng(7)
    centres = np.array([[1, 0], [-0.5, 0.9], [-0.5, -0.9]])
    y = rng.integers(0, 3, 3000)
    X = 0.8 * centres[y] + 0.1 * rng.normal(size=(3000, 2))
    names = np.array(["a", "b", "c"])
    model = DPLinearClassifier(3.0, n_records=3000, classes=("a", "b", "c"), entropy=seeded_entropy(0))
    assert model.fit(X, names[y]).score(X, names[y]) > 0.9
    assert model.coef_.shape == (3, 3)
    assert model.epsilon_ == 3.0
    single = DPLinearClassifier(1.0, n_records=3000, classes=(0, 1), entropy=seeded_entropy(0))
    np.testing.assert_array_equal(single.fit(X, (y == 0).astype(int)).coef_[0], model.coef_[0])


def test_a_kernel_by_fourier_features_learns_what_a_line_cannot() -> None:
    rng = np.random.default_rng(8)
    X = rng.uniform(-1, 1, size=(4000, 2))
    y = (X[:, 0] * X[:, 1] > 0).astype(int)
    linear = DPLinearClassifier(5.0, n_records=4000, entropy=seeded_entropy(0)).fit(X, y)
    kernel = DPLinearClassifier(
        5.0, n_records=4000, fourier_features=50, gamma=2.0, regularisation=1e-3, entropy=seeded_entropy(0)
    ).fit(X, y)
    assert linear.score(X, y) < 0.65
    assert kernel.score(X, y) > 0.85


def test_noise_is_fresh_unless_a_test_says_otherwise() -> None:
    rng = np.random.default_rng(9)
    X, y = rng.normal(size=(50, 2)), rng.integers(0, 2, 50)
    model = DPLinearClassifier(1.0, n_records=50)
    assert (model.fit(X, y).coef_ != clone(model).fit(X, y).coef_).all()
    first, second = (DPLinearClassifier(1.0, n_records=50, entropy=seeded_entropy(3)).fit(X, y) for _ in range(2))
    np.testing.assert_array_equal(first.coef_, second.coef_)


def test_private_tuning_finds_the_better_candidate() -> None:
    rng = np.random.default_rng(10)
    X = rng.normal(size=(6000, 3))
    y = (X[:, 0] > 0).astype(int)
    tuned = PrivatelyTuned(
        2.0,
        n_records=6000,
        candidates=[{"regularisation": 1e6, "fourier_features": 3}, {"regularisation": 1e-2}],
        params={"method": "objective"},
        entropy=seeded_entropy(0),
    ).fit(X, y)
    assert tuned.best_params_ == {"regularisation": 1e-2}
    assert tuned.score(X, y) > 0.9
    assert tuned.best_.n_records == 2000
    stored = clone(tuned).restore(tuned.weights(), tuned.learned())
    np.testing.assert_array_equal(stored.predict(X), tuned.predict(X))


@pytest.mark.parametrize("records_each", [1, 10])
def test_in_private_tuning_a_person_touches_one_part(records_each: int) -> None:
    """With all their records: who goes changes one candidate, or none and the counts of errors."""
    rng = np.random.default_rng(11)
    X, y = rng.normal(size=(200, 2)), rng.integers(0, 2, 200)
    owner = np.arange(200) % (200 // records_each)
    candidates = [{"regularisation": 0.1}, {"regularisation": 0.2}, {"regularisation": 0.3}]

    def coefficients(keep: np.ndarray) -> list[np.ndarray]:
        fitted: list[np.ndarray] = []

        class Recording(PrivatelyTuned):
            def _candidate(self, candidate: dict) -> DPLinearClassifier:
                model = super()._candidate(candidate)
                model.entropy = seeded_entropy(1)
                fitted.append(model)  # type: ignore[arg-type]
                return model

        ids = None if records_each == 1 else [f"p{i}" for i in owner[keep]]
        tuned = Recording(1.0, n_records=200, candidates=candidates, entropy=lambda n: b"\x07" * n)
        tuned.fit(X[keep], y[keep], ids)
        return [model.coef_ for model in fitted]  # type: ignore[attr-defined]

    everyone = coefficients(np.arange(200))
    moved = []
    for gone in range(0, 20):
        others = coefficients(np.flatnonzero(owner != gone))
        moved.append(sum(not np.array_equal(a, b) for a, b in zip(everyone, others, strict=True)))
    assert max(moved) == 1


def test_a_candidate_is_chosen_privately_by_its_errors_on_the_last_part(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[np.ndarray, float]] = []

    def noted(scores: np.ndarray, epsilon: float, entropy: Entropy) -> int:
        given.append((scores, epsilon))
        return 1

    monkeypatch.setattr("pate.baselines.dp_erm.exponential_choice", noted)
    rng = np.random.default_rng(15)
    X, y = rng.normal(size=(90, 2)), rng.integers(0, 2, 90)
    candidates = [{"regularisation": 0.1}, {"regularisation": 10.0}]
    tuned = PrivatelyTuned(0.7, n_records=90, candidates=candidates, entropy=lambda n: b"\x07" * n).fit(X, y)
    assert tuned.best_params_ == candidates[1]
    held_out = split_into_parts(X, y, None, b"\x07" * 32, 3)[-1]
    ((scores, epsilon),) = given
    assert epsilon == 0.7
    assert -scores[1] == (tuned.best_.predict(X[held_out]) != y[held_out]).sum()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"epsilon": 0}, "epsilon = 0"),
        ({"epsilon": -1.0}, "epsilon = -1"),
        ({"epsilon": math.nan}, "epsilon = nan"),
        ({"regularisation": 0}, "regularisation = 0"),
        ({"n_records": 0}, "n_records = 0"),
        ({"method": "input"}, "method = 'input'"),
        ({"loss": "hinge"}, "loss = 'hinge'"),
        ({"loss": "huber", "huber_width": 0}, "huber_width"),
        ({"classes": (1,)}, "classes"),
    ],
)
def test_mistakes_are_one_clear_line(settings: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        DPLinearClassifier(**{"n_records": 4, **settings}).fit(np.eye(4), np.array([0, 1, 0, 1]))


def test_bad_data_is_refused() -> None:
    model = DPLinearClassifier(1.0, n_records=2)
    with pytest.raises(DataError, match=r"shape \(2, 2\)"):
        model.fit(np.zeros((3, 2, 2)), np.array([0, 1, 1]))
    with pytest.raises(DataError, match="NaN"):
        model.fit(np.eye(2), np.array([0, 1])).predict(np.array([[np.nan, 1.0]]))
    with pytest.raises(ConfigError, match="candidates"):
        PrivatelyTuned(1.0, n_records=2, candidates=[{"no_such": 1}]).fit(np.eye(2), np.array([0, 1]))
