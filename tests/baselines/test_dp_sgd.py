"""DP-SGD: noise, sampling, accounting, resuming, public and private preparation, and clear mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, pld
from dp_accounting.pld import privacy_loss_distribution
from safetensors.torch import save_file
from scipy import stats
from torch import nn

from pate.accounting.calculators import moments_epsilon
from pate.baselines import _sgd_accounting as sgd_accounting
from pate.baselines._inputs import private_components
from pate.baselines._per_example import clipped_sum
from pate.baselines._sgd_accounting import epsilon_of, noise_for, steps_within
from pate.baselines.dp_sgd import DPSGDClassifier
from pate.errors import ConfigError, RunError
from pate.features.basic import Upright
from pate.noise import bernoulli, seeded_entropy

FALSE_ALARM = 1e-6


def blobs(n: int = 600, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, n)
    X = rng.normal(size=(n, 4, 4)).astype(np.float32) * 0.3
    X[np.arange(n), y, y] += 2
    return X, y


def classifier(**settings: Any) -> DPSGDClassifier:
    usual: dict[str, Any] = {
        "sigma": 1.0, "n_records": 600, "classes": (0, 1, 2), "model": "linear", "lot_size": 60, "epochs": 5,
        "learning_rate": 1.0, "clip_norm": 1.0, "entropy": seeded_entropy(0), "accountant": "rdp",
    }  # fmt: skip
    return DPSGDClassifier(**(usual | settings))


def test_it_learns_and_reports_what_it_planned() -> None:
    X, y = blobs()
    model = classifier()
    *_, planned = model.plan()
    assert model.fit(X, y).score(X, y) > 0.9
    assert model.epsilon_ == planned
    assert model.history_ == [(1.0, 0.1, 50)]
    assert model.network_[1].weight.dtype == torch.float32


def test_noise_is_added_once_a_lot_at_the_stated_scale() -> None:
    """With no records a step is noise alone: −learning_rate·N(0, (σC)²)/lot_size; false-alarm rate 1e-6."""
    empty = np.zeros((0, 40, 40), dtype=np.float32)
    model = classifier(sigma=2.0, clip_norm=0.5, epochs=0.1, learning_rate=3.0).fit(empty, np.zeros(0, dtype=int))
    assert model.history_ == [(2.0, 0.1, 1)]
    weights = torch.cat([p.flatten() for p in model.network_.parameters()]).detach().numpy()
    assert stats.kstest(weights, stats.norm(scale=3.0 * 2.0 * 0.5 / 60).cdf).pvalue > FALSE_ALARM


def test_the_learning_rate_goes_down_in_a_straight_line() -> None:
    """Of four steps of noise alone, begun at rate 3 and meant to end at 1, the sum has that much spread; 1e-6."""
    empty = np.zeros((0, 40, 40), dtype=np.float32)
    settings = {"epochs": 0.4, "learning_rate": 3.0, "learning_rate_end": 1.0, "momentum": 0.0}
    model = classifier(**settings).fit(empty, np.zeros(0, dtype=int))
    weights = torch.cat([p.flatten() for p in model.network_.parameters()]).detach().numpy()
    spread = np.sqrt(3.0**2 + 2.5**2 + 2.0**2 + 1.5**2) / 60
    assert stats.kstest(weights, stats.norm(scale=spread).cdf).pvalue > FALSE_ALARM


def test_public_features_come_first() -> None:
    rng = np.random.default_rng(0)
    X, y, public = rng.random((60, 12, 12)), rng.integers(0, 3, 60), rng.random((30, 12, 12))
    settings: dict[str, Any] = {"n_records": 60, "lot_size": 30, "epochs": 1, "features": "pca", "components": 4}
    model = classifier(preprocessing="upright", **settings).fit(X, y, public)
    by_hand = classifier(**settings).fit(Upright().transform(X), y, Upright().transform(public))
    np.testing.assert_allclose(model.predict_proba(X), by_hand.predict_proba(Upright().transform(X)))


def test_micro_batches_change_nothing() -> None:
    X, y = blobs()
    whole, pieces = (classifier(epochs=2, micro_batch=size).fit(X, y) for size in (1000, 7))
    for a, b in zip(whole.network_.parameters(), pieces.network_.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


def test_lots_are_poisson_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes are binomial and members differ from lot to lot; false-alarm rate 1e-6."""
    sizes: list[int] = []

    def counting(way: str, module: nn.Module, clip: float) -> Any:
        def total(inputs: torch.Tensor, targets: torch.Tensor, draws: Any = None) -> list[torch.Tensor]:
            sizes.append(len(inputs))
            return [torch.zeros_like(p) for p in module.parameters()]

        return total

    monkeypatch.setattr("pate.baselines.dp_sgd.clipped_sum", counting)
    X, y = blobs()
    classifier(epochs=100, micro_batch=1000).fit(X, y)
    assert len(sizes) == 1000
    assert stats.binomtest(sum(sizes), 600 * 1000, 0.1).pvalue > FALSE_ALARM
    spread = float(np.var(sizes)) / (600 * 0.1 * 0.9)
    assert abs(spread - 1) < 0.25  # five standard deviations


def test_a_step_is_a_poisson_samples_sum_over_the_planned_size_of_a_lot() -> None:
    """With half of the records there might be, and next to no noise: rate and divisor are the planned ones."""
    X, y = blobs(300)
    model = classifier(sigma=1e-9, epochs=0.1, momentum=0.0).fit(X, y)
    chosen = np.flatnonzero(bernoulli(300, 0.1, seeded_entropy(0)))
    assert 10 < len(chosen) < 50
    summed = clipped_sum("torch_func", model._build_network(), 1.0)
    expected = summed(torch.from_numpy(X[chosen][:, None]), torch.from_numpy(y[chosen]))
    for parameter, gradient in zip(model.network_.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.detach(), -gradient / 60, atol=1e-6, rtol=1e-5)


def test_noise_is_fresh_unless_a_test_says_otherwise() -> None:
    X, y = blobs()
    first, second = (DPSGDClassifier(**classifier(epochs=1).get_params() | {"entropy": e}) for e in (None, None))
    first.entropy = second.entropy = DPSGDClassifier(n_records=1, classes=(0, 1)).entropy
    assert (first.fit(X, y).network_[1].weight != second.fit(X, y).network_[1].weight).all()
    again = [classifier(epochs=1).fit(X, y).network_[1].weight for _ in range(2)]
    assert (again[0] == again[1]).all()


@pytest.mark.parametrize(("rate", "sigma", "steps"), [(0.01, 1.1, 2000), (0.068, 3.4, 586), (0.01, 4.0, 10_000)])
def test_both_accountants_are_upper_bounds_and_near(rate: float, sigma: float, steps: int) -> None:
    """Against a PLD on a finer grid, rounded down for what it must not fall below."""
    low, high = (
        privacy_loss_distribution.from_gaussian_mechanism(
            sigma, pessimistic_estimate=up, value_discretization_interval=3e-5, sampling_prob=rate
        )
        .self_compose(steps)
        .get_epsilon_for_delta(1e-5)
        for up in (False, True)
    )
    exact, rdp = (epsilon_of([(sigma, rate, steps)], 1e-5, name) for name in ("pld", "rdp"))
    assert low <= exact <= 1.005 * high
    assert exact <= rdp <= 1.25 * high
    assert rdp <= moments_epsilon(rate, sigma, steps, 1e-5) * (1 + 1e-9)


def test_noise_for_a_target_is_the_least_that_reaches_it() -> None:
    for accountant in ("pld", "rdp"):
        sigma = noise_for(2.0, 1e-5, 0.01, 500, [], accountant)
        assert epsilon_of([(sigma, 0.01, 500)], 1e-5, accountant) <= 2.0
        assert epsilon_of([(sigma * 0.99, 0.01, 500)], 1e-5, accountant) > 2.0
    most = steps_within(2.0, 1e-5, 0.01, 1.0, [], "rdp")
    assert epsilon_of([(1.0, 0.01, most)], 1e-5, "rdp") <= 2.0 < epsilon_of([(1.0, 0.01, most + 20)], 1e-5, "rdp")


def test_a_search_that_was_done_is_not_done_again() -> None:
    first = noise_for(3.0, 1e-5, 0.02, 40, [], "rdp")
    searched = sgd_accounting._counted.cache_info().misses
    assert noise_for(3.0, 1e-5, 0.02, 40, [], "rdp") == first
    assert sgd_accounting._counted.cache_info().misses == searched
    assert noise_for(3.0, 1e-6, 0.02, 40, [], "rdp") > first


def test_a_small_epsilon_can_be_reached_and_is_not_given_away() -> None:
    """Rényi orders go far enough up, and the grid of losses is finer where ε is small."""
    sigma = noise_for(0.1, 1e-5, 0.1, 10, [], "pld")
    told = epsilon_of([(sigma, 0.1, 10)], 1e-5)
    exact = (
        pld.PLDAccountant(value_discretization_interval=1e-5)
        .compose(PoissonSampledDpEvent(0.1, GaussianDpEvent(sigma)), 10)
        .get_epsilon(1e-5)
    )
    assert exact <= told <= 0.1
    assert exact > 0.095
    assert 0.1 < epsilon_of([(sigma, 0.1, 10)], 1e-5, "rdp") < 0.15


def test_a_resumed_run_keeps_the_accountants_state(tmp_path: Path) -> None:
    X, y = blobs()
    state = tmp_path / "state.safetensors"

    def stop(done: int, total: int) -> None:
        if done == 33:
            raise KeyboardInterrupt

    settings = {"features": "pca", "pca_sigma": 3.0, "components": 5}
    model = classifier(**settings)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, y, state=state, progress=stop)
    begun: list[int] = []
    resumed = classifier(**settings, per_example="torch_func").fit(
        X, y, state=state, progress=lambda done, total: begun.append(done)
    )
    assert begun[0] > 25  # went on, not from the beginning
    np.testing.assert_array_equal(
        resumed.fixed_["pca"], model.fixed_["pca"]
    )  # a second PCA would have been a second charge
    assert resumed.history_ == [(3.0, 1.0, 1), (1.0, 0.1, 50)]
    assert resumed.epsilon_ == model.plan()[3]
    others: dict[str, Any] = {"learning_rate": 0.1, "sigma": 2.0, "clip_norm": 0.5, "lot_size": 30, "epochs": 6}
    others |= {"n_records": 700, "pca_sigma": 4.0, "delta": 1e-6, "random_state": 1, "momentum": 0.5, "components": 4}
    for name, value in others.items():
        with pytest.raises(RunError, match="other settings"):
            classifier(**settings | {name: value}).fit(X, y, state=state)


def test_public_components_owe_nothing_to_private_records() -> None:
    X, y = blobs()
    public = blobs(50, seed=5)[0]
    first = classifier(features="pca", components=6, epochs=1).fit(X, y, public)
    second = classifier(features="pca", components=6, epochs=1).fit(X * np.linspace(0, 9, 16).reshape(4, 4), y, public)
    np.testing.assert_array_equal(first.fixed_["pca"], second.fixed_["pca"])
    assert first.history_ == [(1.0, 0.1, 10)]
    with pytest.raises(ConfigError, match="needs public examples"):
        classifier(features="pca").fit(X, y)


def test_private_components_are_noisy_and_near() -> None:
    X, _ = blobs(5000)
    exact = private_components(X, 3, 1e-9, seeded_entropy(0))
    noisy = private_components(X, 3, 2.0, seeded_entropy(0))
    captured = np.linalg.norm(exact.T @ noisy, ord="fro") ** 2 / 3
    assert 0.9 < captured < 1 - 1e-9


@pytest.mark.parametrize("sigma", [0.5, 2.0])
def test_every_entry_of_the_private_pca_has_the_stated_noise(sigma: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one long record, the same above and below the diagonal; false-alarm rate 1e-6."""
    noisy: list[np.ndarray] = []
    monkeypatch.setattr("pate.baselines._inputs._leading", lambda matrix, n: noisy.append(matrix))
    row = np.linspace(1.0, 50.0, 60)
    private_components(row[None], 3, sigma, seeded_entropy(0))
    noise = noisy[0] - np.outer(row, row) / (row @ row)
    np.testing.assert_array_equal(noise, noise.T)
    for entries in (noise[np.triu_indices(60, 1)], noise.diagonal()):
        assert stats.kstest(entries, stats.norm(scale=sigma).cdf).pvalue > FALSE_ALARM


def test_private_pca_is_charged_before_the_noise_is_worked_out() -> None:
    plain = classifier(sigma=None, epsilon=3.0).plan()[0]
    after_pca = classifier(sigma=None, epsilon=3.0, features="pca", pca_sigma=4.0)
    assert after_pca.plan()[0] > plain
    assert after_pca.plan()[3] <= 3.0
    with pytest.raises(ConfigError, match="private PCA alone"):
        classifier(sigma=None, epsilon=0.5, features="pca", pca_sigma=1.0).plan()


def test_scattering_and_images_of_either_shape() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 60)
    grey = rng.random((60, 8, 8)).astype(np.float32) + y[:, None, None]
    colour = np.repeat(grey[..., None], 3, axis=3)
    for X in (grey, colour):
        model = classifier(features="scattering", n_records=60, lot_size=30, epochs=2).fit(X, y)
        assert model.predict(X).shape == (60,)
    small_cnn = {"model": "cnn", "model_params": {"channels": 4, "hidden": 8}}
    shape = rng.random((20, 16, 16, 3)).astype(np.float32)
    classifier(n_records=20, lot_size=10, epochs=1, **small_cnn).fit(shape, y[:20]).predict(shape)
    with pytest.raises(ConfigError, match="multiples of 4"):
        classifier(features="scattering").fit(rng.random((9, 7, 7)), y[:9])


def test_a_public_checkpoint_is_where_training_begins(tmp_path: Path) -> None:
    X, y = blobs()
    path = tmp_path / "public.safetensors"
    save_file({"1.weight": torch.full((3, 16), 7.0), "1.bias": torch.zeros(3)}, path)
    model = classifier(checkpoint=str(path), learning_rate=1e-6).fit(X, y)
    np.testing.assert_allclose(model.network_[1].weight.detach(), 7.0, atol=1e-3)
    save_file({"1.weight": torch.zeros(2, 16)}, path)
    with pytest.raises(ConfigError, match="does not fit the network"):
        classifier(checkpoint=str(path)).fit(X, y)
    with pytest.raises(ConfigError, match="cannot be read"):
        classifier(checkpoint=str(tmp_path / "none.safetensors")).fit(X, y)


class Normalised(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(16, width), nn.BatchNorm1d(width), nn.Linear(width, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)


class Custom(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(16, width), nn.LayerNorm(width), nn.Linear(width, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)


def test_ones_own_module_by_dotted_path() -> None:
    X, y = blobs()
    model = classifier(model="test_dp_sgd.Custom", model_params={"width": 12}, per_example="auto", epochs=10)
    assert model.fit(X, y).score(X, y) > 0.6


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"model": "test_dp_sgd.Normalised"}, "net.2 is a BatchNorm1d.*GroupNorm"),
        ({"model": "test_dp_sgd.Nothing"}, "has no Nothing"),
        ({"model": "dep_cnn"}, "did you mean 'deep_cnn'"),
        ({"model_params": {"widht": 1}}, "model_params"),
        ({"model": "cnn"}, r"model = 'cnn': not for inputs of shape \(1, 4, 4\)"),
        ({"model": "torch.nn.Flatten"}, "no parameters"),
        ({"sigma": None}, "give a target"),
        ({"epsilon": 0.0}, "epsilon = 0"),
        ({"epsilon": -2.0}, "epsilon = -2"),
        ({"delta": 0.0}, "delta = 0"),
        ({"sigma": -1.0}, "sigma = -1"),
        ({"lot_size": 601}, "lot_size = 601: larger than the data set"),
        ({"epsilon": 0.5, "sigma": 1.0}, "50 steps cost .* would fit"),
        ({"epsilon": 1e-4, "sigma": None}, "no noise reaches it|epsilon"),
        ({"momentum": 1.0}, "momentum"),
        ({"features": "hog"}, "features = 'hog'"),
        ({"accountant": "gdp"}, "accountant"),
        ({"micro_batch": 0}, "micro_batch"),
        ({"clip_norm": 0.0}, "clip_norm = 0"),
        ({"clip_norm": 1e-25}, "clip_norm = 1e-25: must be a number at least 1e-12"),
        ({"clip_norm": 1e25}, r"clip_norm = 1e\+25: must be .* at most 1,000,000,000,000"),
        ({"learning_rate_end": -1.0}, "learning_rate_end = -1"),
        ({"preprocessing": ["uprigt"]}, "did you mean 'upright'"),
        ({"preprocessing": [{"params": {}}]}, "preprocessing: each"),
    ],
)
def test_mistakes_are_one_clear_line(settings: dict, words: str) -> None:
    X, y = blobs(60)
    with pytest.raises(ConfigError, match=words) as caught:
        classifier(**settings).fit(X, y)
    assert "\n" not in str(caught.value)


def test_a_large_delta_is_warned_about() -> None:
    with pytest.warns(UserWarning, match=r"at least 1/n_records"):
        classifier(delta=0.01).plan()
