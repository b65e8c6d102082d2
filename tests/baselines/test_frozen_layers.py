"""Layers that public data gave and that stay, DP-Adam, preparation from public examples, what is noted on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from support.clipped_sums import clipped_sum_of
from torch import nn

from pate.baselines.dp_sgd import DPSGDClassifier
from pate.errors import ConfigError
from pate.networks._architectures import _dp_feature_cnn

RNG = np.random.default_rng(0)
X = RNG.random((120, 6)).astype(np.float32)
Y = (X[:, 0] > 0.5).astype(np.int64)


def classifier(**settings: Any) -> DPSGDClassifier:
    usual: dict[str, Any] = {"n_records": 120, "classes": range(2), "lot_size": 40, "epochs": 2, "sigma": 1.0}
    usual |= {"accountant": "rdp", "model": "mlp", "model_params": {"hidden": 5}, "clip_norm": 1.0, "delta": 1e-4}
    return DPSGDClassifier(**(usual | settings))


def test_frozen_layers_stay_as_they_were_and_the_others_learn(tmp_path: Path) -> None:
    network = classifier().fit(X, Y).network_
    assert isinstance(network, nn.Sequential)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    save_file(before, tmp_path / "public.safetensors")
    last = [name for name in before if name.startswith(f"{len(network) - 1}.")]
    settings = {"checkpoint": str(tmp_path / "public.safetensors"), "frozen": len(network) - 1}
    model = classifier(**settings).fit(X, Y, state=tmp_path / "state")
    after = model.network_.state_dict()
    for name in before:
        assert torch.equal(before[name], after[name]) == (name not in last), name
    weights = {name: tensor.numpy() for name, tensor in model.weights().items()}
    restored = classifier(**settings).restore(weights, model.learned())
    np.testing.assert_array_equal(restored.predict(X), model.predict(X))


@pytest.mark.parametrize("frozen", [9, 4])
def test_something_with_weights_must_be_left(frozen: int) -> None:
    with pytest.raises(ConfigError, match=f"frozen = {frozen}: is for a chain of layers"):
        classifier(frozen=frozen).fit(X, Y)


class Remembers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += x.sum(0)
        return x


class Mixes(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0)


class Draws(nn.Module):
    """In every mode, as somebody's own layer may."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rand(x.shape)


class Fails(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if (x > 50).any():
            raise RuntimeError("too large")
        return x


def chain(first: str) -> nn.Sequential:
    return nn.Sequential(
        {"remembers": Remembers, "fails": Fails, "mixes": Mixes, "draws": Draws}[first](), nn.Linear(6, 2)
    )


def test_frozen_layers_that_remember_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"0\.seen changes in a forward pass, though its layer is frozen"):
        classifier(model=f"{__name__}.chain", model_params={"first": "remembers"}, frozen=1).rehearse((6,))


def test_frozen_layers_that_mix_examples_are_refused() -> None:
    with pytest.raises(ConfigError, match="frozen layers give for an example depends on the others"):
        classifier(model=f"{__name__}.chain", model_params={"first": "mixes"}, frozen=1).rehearse((6,))


def test_frozen_layers_draw_for_each_record_by_itself() -> None:
    settings = {"model": f"{__name__}.chain", "model_params": {"first": "draws"}, "frozen": 1}
    whole, without = clipped_sum_of(X, Y, **settings), clipped_sum_of(X[1:], Y[1:], **settings)
    assert np.linalg.norm(whole - without) <= 1 + 1e-4


def test_a_record_that_frozen_layers_fail_for_counts_as_zero() -> None:
    odd = X.copy()
    odd[7] = 100
    model = classifier(model=f"{__name__}.chain", model_params={"first": "fails"}, frozen=1, sigma=0.01)
    model.fit(odd, Y)
    assert all(torch.isfinite(tensor).all() for tensor in model.weights().values())


def test_an_optimiser_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="optimiser = 'sgd': must be one of momentum, adam"):
        classifier(optimiser="sgd").plan()
    with pytest.raises(ConfigError, match=r"optimiser = \['adam'\]: must be one of momentum, adam"):
        classifier(optimiser=["adam"]).plan()


@pytest.mark.parametrize("optimiser", ["momentum", "adam"])
def test_an_optimiser_goes_on_with_what_it_kept(optimiser: str, tmp_path: Path) -> None:
    """With every record in each lot and next to no noise, a resumed run takes the steps of one that was not stopped."""
    settings: dict[str, Any] = {
        "optimiser": optimiser,
        "learning_rate": 0.05,
        "sigma": 1e-6,
        "epochs": 30,
        "clip_norm": 0.1,
    }
    settings |= {"lot_size": 120, "n_records": 120, "micro_batch": 120, "model": "linear", "model_params": {}}

    def stop(done: int, _: int) -> None:
        if done == 17:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        classifier(**settings).fit(X, Y, state=tmp_path / "state", progress=stop)
    resumed = classifier(**settings).fit(X, Y, state=tmp_path / "state").weights()
    for name, tensor in classifier(**settings).fit(X, Y).weights().items():
        torch.testing.assert_close(resumed[name], tensor, atol=1e-4, rtol=1e-4)


def test_what_is_watched_is_noted_and_survives_a_stop(tmp_path: Path) -> None:
    state = tmp_path / "state"

    def stop(done: int, _: int) -> None:
        if done == 4:
            raise KeyboardInterrupt

    watch = {"test": (X[:50], Y[:50])}
    with pytest.raises(KeyboardInterrupt):
        classifier().fit(X, Y, state=state, progress=stop, watch=watch)
    model = classifier().fit(X, Y, state=state, watch=watch)
    assert [step for step, _ in model.curve_] == [1, 2, 3, 4, 5, 6]
    assert model.curve_[-1][1]["test"] == pytest.approx((model.predict(X[:50]) == Y[:50]).mean())
    assert classifier().fit(X, Y).curve_ == []


def test_channels_are_normalised_by_public_images_alone() -> None:
    images, public = (RNG.random((n, 8, 8)).astype(np.float32) for n in (40, 30))
    settings: dict[str, Any] = {"features": "scattering", "normalise": "public", "model": "linear", "model_params": {}}
    settings |= {"n_records": 40, "classes": range(2)}
    model = classifier(**settings).fit(images, Y[:40], public)
    other = classifier(**settings).fit(images[::-1] * 0.5, Y[:40], public)
    np.testing.assert_array_equal(model.fixed_["channels"], other.fixed_["channels"])
    seen = model._inputs(public)
    assert seen.mean(dim=(0, 2, 3)).abs().max() < 1e-4
    assert (seen.std(dim=(0, 2, 3), correction=0) - 1).abs().max() < 1e-3
    weights = {name: tensor.numpy() for name, tensor in model.weights().items()}
    restored = classifier(**settings).restore(weights, model.learned())
    np.testing.assert_array_equal(restored.predict(images), model.predict(images))
    with pytest.raises(ConfigError, match="needs public examples"):
        classifier(**settings).fit(images, Y[:40])
    with pytest.raises(ValueError, match="channels has shape"):
        classifier(**settings).restore(weights | {"channels": np.zeros((2, 5), np.float32)}, model.learned())
    with pytest.raises(ConfigError, match="normalise = 'batch': must be one of groups, public"):
        classifier(normalise="batch").plan()


def test_a_network_for_maps_of_features() -> None:
    """The sizes that the authors have: 27,946 weights on MNIST, with a hidden layer; 187,210 on CIFAR-10, without."""
    small = _dp_feature_cnn((81, 7, 7), 10)
    large = _dp_feature_cnn((243, 8, 8), 10, widths=[64, 64], reduce="pool", hidden=0)
    sizes = [sum(parameter.numel() for parameter in network.parameters()) for network in (small, large)]
    by_hand = [
        81 * 16 * 9 + 16 + 16 * 32 * 9 + 32 + 512 * 32 + 32 + 32 * 10 + 10,
        243 * 64 * 9 + 64 + 64 * 64 * 9 + 64 + 1024 * 10 + 10,
    ]
    assert sizes == by_hand
    for wrong in ({"reduce": "no"}, {"widths": [3]}):
        with pytest.raises(ConfigError, match="model_params: reduce must be"):
            _dp_feature_cnn((81, 7, 7), 10, **wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="needs maps of features"):
        _dp_feature_cnn((60,), 10)
