"""Weights from public examples alone: what they teach a network, and that DP-SGD can begin with them."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from pate.baselines._per_example import build_network
from pate.baselines.dp_sgd import DPSGDClassifier
from pate.errors import ConfigError, DataError

pretrain = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "pretrain.py"))
blended, pretrained_weights = pretrain["blended"], pretrain["pretrained_weights"]

SMALL = {"model": "cropped_cnn", "model_params": {"crop": 8, "channels": 4, "hidden": 16}}


def striped(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Images of stripes that lie or stand, in noise, and which of the two."""
    rng = np.random.default_rng(seed)
    y = rng.integers(2, size=n)
    wave = np.where(np.arange(12) // 2 % 2, 1.0, -1.0)
    stripes = np.stack([np.tile(wave, (12, 1)), np.tile(wave, (12, 1)).T])[y]
    return (stripes[..., None] + 0.5 * rng.normal(size=(n, 12, 12, 3))).astype(np.float32), y.astype(np.int64)


def seen(X: np.ndarray) -> np.ndarray:
    """Features that tell the two apart, and that shifting does not change: as many as there are no classes."""
    steps = [np.abs(np.diff(X, axis=axis)).mean((1, 2, 3)) for axis in (1, 2)]
    return np.stack([*steps, np.abs(X).mean((1, 2, 3))], axis=1)


def test_a_network_learns_to_see_what_the_features_see() -> None:
    X, _ = striped(200, 0)
    errors: list[float] = []
    given = {"n_classes": 2, "epochs": 20, "batch_size": 32, "learning_rate": 5e-3}
    weights = pretrained_weights(X, seen(X), **SMALL, **given, progress=lambda step, steps, error: errors.append(error))
    assert len(errors) == 125
    assert errors[-1] < 0.5 * errors[0]
    again = pretrained_weights(X, seen(X), **SMALL, **given)
    for name, tensor in weights.items():
        assert torch.equal(tensor, again[name]), name


def test_dp_sgd_begins_with_them_and_keeps_the_frozen_ones(tmp_path: Path) -> None:
    public, private = striped(200, 0), striped(300, 1)
    weights = pretrained_weights(public[0], seen(public[0]), **SMALL, n_classes=2, epochs=20, learning_rate=5e-3)
    network = build_network(SMALL["model"], SMALL["model_params"], (3, 12, 12), 2, 0)
    assert {name: tensor.shape for name, tensor in weights.items()} == {
        name: tensor.shape for name, tensor in network.state_dict().items()
    }
    save_file(weights, tmp_path / "public.safetensors")
    model = DPSGDClassifier(
        epsilon=8, delta=1e-4, n_records=300, classes=range(2), **SMALL, lot_size=100, epochs=5, learning_rate=1.0,
        clip_norm=1.0, momentum=0.0, accountant="rdp", checkpoint=str(tmp_path / "public.safetensors"), frozen=8,
    ).fit(*private)  # fmt: skip
    after = model.network_.state_dict()
    assert all(torch.equal(weights[name], after[name]) == (int(name.split(".")[0]) < 8) for name in weights)
    assert (model.predict(private[0]) == private[1]).mean() > 0.9


def test_blends_are_mostly_one_example_and_somewhat_another() -> None:
    X = np.eye(40, dtype=np.float32).reshape(40, 5, 8, 1)  # a blend tells by itself what is in it
    more = blended(X, 3)
    assert more.shape == (120, 5, 8, 1)
    np.testing.assert_array_equal(more[:40], X)
    shares = np.sort(more[40:].reshape(80, 40), axis=1)
    np.testing.assert_allclose(shares.sum(1), 1, rtol=1e-6)
    assert (shares[:, :-2] == 0).all()  # of two at most
    assert (shares[:, -1] >= 0.5).all()
    assert (shares[:, -2] > 0).mean() > 0.9  # few are paired with themselves
    np.testing.assert_array_equal(more[40:].reshape(80, 40).argmax(1), np.tile(np.arange(40), 2))
    np.testing.assert_array_equal(more, blended(X, 3))
    assert (more != blended(X, 3, random_state=1)).any()
    np.testing.assert_array_equal(blended(X, 1), X)
    with pytest.raises(ConfigError, match="times"):
        blended(X, 0)


@pytest.mark.parametrize(
    ("rows", "features", "message"),
    [
        (20, np.zeros((19, 3)), "20 public examples with features of 19"),
        (20, np.ones((20, 3)), "all alike"),
        (1, np.ones((1, 3)), "must be as many, above 1"),
    ],
)
def test_features_must_belong_to_the_examples_and_differ(rows: int, features: np.ndarray, message: str) -> None:
    with pytest.raises(DataError, match=message):
        pretrained_weights(striped(rows, 0)[0], features, **SMALL, n_classes=2, epochs=1)


def test_each_image_is_cropped_and_standardised_by_itself() -> None:
    network = build_network("cropped_cnn", {}, (3, 32, 32), 10, 0)
    assert isinstance(network, nn.Sequential)
    assert sum(parameter.numel() for parameter in network.parameters()) == 1_144_138
    images = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    middle = network[0](images)
    assert middle.shape == (4, 3, 24, 24)
    torch.testing.assert_close(middle.flatten(1).mean(1), torch.zeros(4), atol=1e-5, rtol=0)
    torch.testing.assert_close(middle.flatten(1).std(1, correction=0), torch.ones(4))
    torch.testing.assert_close(network[0](3 * images[1:2] + 5)[0], middle[1], atol=1e-4, rtol=1e-4)
    brighter = images.clone()
    brighter[0] += 1
    brighter[0, :, :4] = 9  # outside of the middle
    torch.testing.assert_close(network[0](brighter), middle, atol=1e-4, rtol=1e-4)
    assert torch.isfinite(network(torch.zeros(1, 3, 32, 32))).all()


def test_images_that_are_too_small_for_the_crop_are_refused() -> None:
    with pytest.raises(ConfigError, match="needs images of 24 pixels or more"):
        build_network("cropped_cnn", {}, (3, 20, 32), 10, 0)
