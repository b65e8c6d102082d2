"""Networks of anybody's with weights from a file: what is taken from them, trusted, refused and made quicker."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from pate.components._registry import _BESIDE, found_file, importing_only, make_importable
from pate.errors import ConfigError, NotTrusted
from pate.features import build_features
from pate.features.pretrained import Pretrained, folded
from pate.voters.neighbours import NeighbourSettings
from pate.voters.neighbours._cells import FeatureCache, _digest
from pate.voters.neighbours._rounds import Rounds

MODULE = "somebodys_small_network"
NETWORK = '''
import torch
from torch import nn


class Padded(nn.Conv2d):
    """Has its margin of zeros outside, as ports of TensorFlow's networks do."""

    def __init__(self, *args, margin, **more):
        super().__init__(*args, **more)
        self.margin = nn.ZeroPad2d(margin)

    def forward(self, x):
        x = self.margin(x)
        return nn.functional.conv2d(x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = Padded(3, width, 3, stride=2, bias=False, margin=(0, 1, 0, 1))
        self.norm1 = nn.BatchNorm2d(width)
        self.second = Padded(width, width, 3, groups=width, bias=False, margin=1)
        self.norm2 = nn.BatchNorm2d(width)
        self.act = nn.ReLU6()
        self._dropout = nn.Dropout(0.5)
        self._fc = nn.Linear(width, 7)

    def forward(self, x):
        x = self.act(self.norm1(self.first(x)))
        x = x + self.norm2(self.second(x))
        return self._fc(self._dropout(x.mean((2, 3))))

    @classmethod
    def from_name(cls, size):
        return cls({"small": 4, "large": 8}[size])


class Forked(Net):
    """What the first convolution gives is read twice, so a batch norm is not to be folded into it."""

    def forward(self, x):
        first = self.first(x)
        return self._fc(self._dropout((self.norm1(first) + first).mean((2, 3))))


def no_network():
    return 3
'''


@pytest.fixture
def network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module, importable, with weights of a small network in `weights.safetensors` beside it."""
    (tmp_path / f"{MODULE}.py").write_text(NETWORK)
    monkeypatch.syspath_prepend(tmp_path)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = __import__(MODULE)
        net = module.Net(4)
        for _ in range(3):
            net(torch.randn(8, 3, 12, 12) * 3)  # batch norms have seen something
    save_file(net.state_dict(), tmp_path / "weights.safetensors")
    yield net.eval()
    sys.modules.pop(MODULE, None)


def step(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    given = {
        "weights": str(tmp_path / "weights.safetensors"),
        "network": f"{MODULE}.Net.from_name",
        "network_params": {"size": "small"},
        "size": 12,
    }
    return {"name": "pretrained", "params": given | changes}


def images(n: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(n).random((n, *shape), dtype=np.float32)


def test_features_are_what_the_last_layer_would_get(network: nn.Module, tmp_path: Path) -> None:
    X = images(3, 12, 12, 3)
    chain = build_features([step(tmp_path, mean=0.5, deviation=[0.1, 0.2, 0.4])], "k")
    inputs = (torch.from_numpy(X).permute(0, 3, 1, 2) - 0.5) / torch.tensor([0.1, 0.2, 0.4]).view(1, 3, 1, 1)
    with torch.no_grad():
        network._fc = nn.Identity()
        expected = network(inputs).numpy()
    np.testing.assert_allclose(chain.transform(X), expected, rtol=1e-4, atol=1e-5)
    by_class = step(tmp_path, network=f"{MODULE}.Net", network_params={"width": 4}, layer="_fc")
    assert build_features([by_class], "k").transform(images(2, 9, 9)).shape == (2, 4)


def test_folding_leaves_no_batch_norm_and_the_network_as_it_was(network: nn.Module) -> None:
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    example = torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(1))
    quick = folded(network, example)
    kinds = [type(part).__name__ for part in quick.modules()]
    assert kinds.count("BatchNorm2d") == 0
    assert kinds.count("Padded") == 2
    with torch.no_grad():
        torch.testing.assert_close(quick(example), network(example), rtol=1e-4, atol=1e-5)
    for name, tensor in network.state_dict().items():
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=0)


def test_a_network_that_folding_would_change_stays_as_it_is(network: nn.Module, tmp_path: Path) -> None:
    chain = build_features([step(tmp_path, network=f"{MODULE}.Forked", network_params={"width": 4})], "k")
    assert chain.transform(images(2, 12, 12, 3)).shape == (2, 4)
    forked = sys.modules[MODULE].Forked(4)
    forked.norm1.running_mean += 1
    assert folded(forked, torch.ones(1, 3, 12, 12)) is forked


def test_a_network_of_somebody_elses_needs_trust(network: nn.Module, tmp_path: Path) -> None:
    name = f"{MODULE}.Net.from_name"
    del sys.modules[MODULE]
    with importing_only([]) as guard, pytest.raises(NotTrusted, match="network: would import somebodys_small_network"):
        build_features([step(tmp_path)], "preprocessing")
    assert guard.refused == [name]
    assert MODULE not in sys.modules
    with importing_only([name]):
        build_features([step(tmp_path)], "preprocessing")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"network": "no_such_package.Net"}, "cannot import 'no_such_package': ModuleNotFoundError"),
        ({"network": f"{MODULE}.Net.from_nam"}, "class somebodys_small_network.Net has no from_nam"),
        ({"network": f"{MODULE}.Nett.from_name"}, "cannot import 'somebodys_small_network.Nett'"),
        ({"network": f"{MODULE}.no_network", "network_params": {}}, "makes a int, not an nn.Module"),
        ({"network_params": {"size": "large"}}, r"does not fit .*from_name \(size mismatch for first.weight"),
        ({"network_params": {"width": 4}}, r"cannot be made \(.*unexpected keyword"),
        ({"layer": "fc"}, "layer = 'fc': .* has no such module; .* among its last are"),
        ({"layer": "norm1"}, None),
        ({"mean": [1, 2]}, "mean = .* a number, or three"),
        ({"deviation": 0}, "deviation = 0: must be above 0"),
        ({"mean": float("nan")}, "must be finite"),
    ],
)
def test_what_does_not_fit_is_one_clear_line(
    changes: dict[str, Any], words: str | None, network: nn.Module, tmp_path: Path
) -> None:
    if words is None:  # any layer may be left out
        assert build_features([step(tmp_path, **changes)], "k").transform(images(1, 12, 12)).shape == (1, 7)
        return
    with pytest.raises(ConfigError, match=words) as error:
        build_features([step(tmp_path, **changes)], "k").transform(images(1, 12, 12))
    assert "\n" not in str(error.value)


def test_grey_images_are_three_equal_planes(network: nn.Module, tmp_path: Path) -> None:
    X, chain = images(4, 12, 12), build_features([step(tmp_path)], "k")
    colour = np.repeat(X[..., None], 3, axis=3)
    np.testing.assert_allclose(chain.transform(X), chain.transform(colour), rtol=1e-5, atol=1e-6)
    assert Pretrained(**step(tmp_path)["params"]).mean == (0.485, 0.456, 0.406)


@pytest.mark.usefixtures("network")
def test_weights_are_looked_for_beside_the_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As data and classes are, wherever the command is given; then in the working directory."""
    elsewhere, other = tmp_path / "elsewhere", tmp_path / "other"
    elsewhere.mkdir()
    other.mkdir()
    monkeypatch.chdir(elsewhere)
    _BESIDE.use(None)
    relative = step(tmp_path, weights="weights.safetensors")
    with pytest.raises(ConfigError, match="no such file beside the config, nor in the working directory"):
        build_features([relative], "k")
    make_importable(tmp_path)
    expected = build_features([step(tmp_path)], "k").transform(images(2, 12, 12, 3))
    np.testing.assert_array_equal(build_features([relative], "k").transform(images(2, 12, 12, 3)), expected)
    (other / "weights.safetensors").write_bytes(b"of another config")
    make_importable(other)
    make_importable(tmp_path)  # the config that is used now
    np.testing.assert_array_equal(build_features([relative], "k").transform(images(2, 12, 12, 3)), expected)
    assert found_file("weights.safetensors") == tmp_path / "weights.safetensors"
    make_importable(other)
    assert found_file("weights.safetensors") == other / "weights.safetensors"
    _BESIDE.use(None)
    monkeypatch.chdir(tmp_path)
    assert found_file("weights.safetensors") == tmp_path / "weights.safetensors"
    assert found_file("none.safetensors") is None


@pytest.mark.usefixtures("network")
def test_who_counts_elsewhere_is_told_the_full_path(tmp_path: Path) -> None:
    """And what is kept of features knows the weights' content, so that other weights are not taken for them."""
    make_importable(tmp_path)
    relative = step(tmp_path, weights="weights.safetensors")
    settings = NeighbourSettings.model_validate({"cells": 3, "features": [relative]})
    rounds = Rounds(settings, (), 0, tmp_path, tmp_path / "kept")
    found = rounds.features(None)
    assert isinstance(found, FeatureCache)
    assert found.features.steps[0]["params"]["weights"] == str(tmp_path / "weights.safetensors")
    before = _digest([relative], images(2, 12, 12, 3))
    (tmp_path / "weights.safetensors").write_bytes(b"others")
    assert _digest([relative], images(2, 12, 12, 3)) != before
