"""Dropout and whatever else a network draws: no record changes another's draws, no seed predicts or changes them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.clipped_sums import clipped_sum_of
from support.fuzzing import fuzz
from torch import nn

from pate.baselines._per_example import build_network, clipped_sum, difference, made_up
from pate.baselines.sampling import KEY_BYTES, ForwardDraws, NotByRecord, record_marks
from pate.networks._architectures import FOR_DP_SGD

KEY = bytes(range(KEY_BYTES))


class Stochastic(nn.Module):
    """A branch of the network that each example takes or not, as stochastic depth has it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (torch.rand(len(x), *[1] * (x.ndim - 1)) < 0.7)


class OfTheBatch(nn.Module):
    """Draws once for everything that it is given."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (0.5 + torch.rand(()))


class OfFeatures(nn.Module):
    """Draws a mask whose first axis is not that of the examples."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (torch.rand(x.shape[1], 1) < 0.5).float().T


class FromElsewhere(nn.Module):
    """Draws from numpy's and Python's global generators, as far as it is told by nobody."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * float(np.random.rand() + random.random())  # noqa: NPY002


class OwnGenerator(nn.Module):
    """Draws from a generator that is seeded anew in every pass."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rand(x.shape, generator=torch.Generator().manual_seed(5))


class Reseeding(nn.Module):
    """Seeds torch in a forward pass."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(3)
        return nn.functional.dropout(x)


def chain(middle: Callable[[], nn.Module], wide: int = 12) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, wide), middle(), nn.Linear(wide, 2))


def of_maps(middle: Callable[[], nn.Module], maps: int = 27) -> nn.Sequential:
    images = nn.Sequential(nn.Flatten(), nn.Unflatten(1, (1, 4, 4)), nn.Conv2d(1, 3, 2))
    return nn.Sequential(*images, middle(), nn.Flatten(), nn.Linear(maps, 2))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "dropout": lambda: chain(nn.Dropout),
    "alpha": lambda: chain(nn.AlphaDropout),
    "rrelu": lambda: chain(nn.RReLU),
    "maps": lambda: of_maps(nn.Dropout2d),
    "alpha maps": lambda: of_maps(nn.FeatureAlphaDropout),
    "pooling": lambda: of_maps(lambda: nn.FractionalMaxPool2d(2, output_size=2), 12),
    "stochastic": lambda: chain(Stochastic),
    "batch": lambda: chain(OfTheBatch),
    "features": lambda: chain(OfFeatures),
    "elsewhere": lambda: chain(FromElsewhere),
    "own generator": lambda: chain(OwnGenerator),
    "reseeding": lambda: chain(Reseeding),
}


def network(kind: str) -> nn.Module:
    return NETWORKS[kind]()


def records(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 4, 4)).astype(np.float32), rng.integers(0, 2, n)


def sum_of(kind: str, X: np.ndarray, y: np.ndarray, **settings: Any) -> np.ndarray:
    return clipped_sum_of(X, y, model=f"{__name__}.network", model_params={"kind": kind}, **settings)


@pytest.mark.filterwarnings("ignore:model:UserWarning")
@pytest.mark.parametrize("kind", NETWORKS)
def test_a_record_moves_the_sum_by_one_norm_whatever_the_network_draws(kind: str) -> None:
    """Added or removed, wherever it stands; changed, by two. All keys are the same."""
    X, y = records(13)
    whole = sum_of(kind, X, y)
    for place in (0, 7):
        without = sum_of(kind, np.delete(X, place, axis=0), np.delete(y, place))
        assert np.linalg.norm(whole - without) <= 1 + 1e-3
        other = X.copy()
        other[place] = 5 * X[place] + 1
        assert np.linalg.norm(whole - sum_of(kind, other, y)) <= 2 + 1e-3


@given(
    kind=st.sampled_from(["dropout", "rrelu", "stochastic", "batch"]),
    n=st.integers(0, 9),
    place=st.integers(0, 9),
    value=st.sampled_from([0.0, 1.0, -40.0, float("nan"), 3e38]),
    micro_batch=st.sampled_from([1, 4, 100]),
)
@fuzz(8)
@pytest.mark.filterwarnings("ignore:model:UserWarning")
def test_any_record_in_any_company(kind: str, n: int, place: int, value: float, micro_batch: int) -> None:
    X, y = records(n, seed=n)
    place = min(place, n)
    more = np.insert(X, place, np.full((4, 4), value, dtype=np.float32), axis=0), np.insert(y, place, 1)
    moved = sum_of(kind, *more, micro_batch=micro_batch) - sum_of(kind, X, y, micro_batch=micro_batch)
    assert np.linalg.norm(moved) <= 1 + 1e-3


def test_seeds_change_nothing_and_keys_change_everything() -> None:
    X, y = records(9)
    found = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        found.append(sum_of("dropout", X, y))
    np.testing.assert_array_equal(found[0], found[1])
    torch.manual_seed(0)
    other = sum_of("dropout", X, y, entropy=lambda n: b"\x08" * n)
    assert not np.allclose(found[0], other)


def test_the_global_generator_does_not_tell_how_many_records_there_are() -> None:
    states = []
    for n in (9, 4):
        torch.manual_seed(0)
        sum_of("dropout", *records(n))
        states.append(torch.random.get_rng_state())
    assert torch.equal(*states)


def test_every_step_draws_by_a_key_of_its_own() -> None:
    """Of steps that change nothing (noise and rate are as good as zero), each has other masks."""
    X, y = records(9)
    steps: list[np.ndarray] = []
    for epochs in (1, 2):
        keys = iter(range(10**6))

        def counted(n: int, keys: Any = keys) -> bytes:
            return next(keys).to_bytes(2, "little") * (n // 2) + b"\x01" * (n % 2)

        steps.append(sum_of("dropout", X, y, epochs=epochs, learning_rate=1e-9, sigma=1e-6, entropy=counted))
    assert not np.allclose(steps[0], steps[1], atol=1e-3)


@pytest.mark.parametrize("way", ["ghost", "torch_func"])
@pytest.mark.parametrize("kind", ["dropout", "alpha", "maps", "alpha maps", "pooling", "stochastic", "own generator"])
def test_a_batch_draws_what_each_example_would_alone(kind: str, way: str) -> None:
    """Else the quicker ways would not be those of the loop, and be refused."""
    torch.manual_seed(0)
    weights = network(kind).state_dict()

    def build() -> nn.Module:
        built = network(kind)
        built.load_state_dict(weights)
        return built

    assert difference(way, build, *made_up((4, 4), 2)) is None


@pytest.mark.parametrize("kind", ["batch", "features", "elsewhere"])
def test_what_is_drawn_for_a_batch_goes_one_by_one(kind: str) -> None:
    assert difference("ghost", lambda: network(kind), *made_up((4, 4), 2)) is not None


def test_draws_of_a_batch_that_are_not_its_examples_are_refused() -> None:
    draws = ForwardDraws(KEY, [b"a", b"b", b"c"])
    with draws.active():
        assert len(torch.rand(3, 2)) == 3
        for shape in ((2, 3), (), (4,)):
            with pytest.raises(NotByRecord):
                torch.rand(shape)
    with ForwardDraws(KEY, [b"a", b"b", b"c"], by_row=False).active(), pytest.raises(NotByRecord):
        torch.rand(3, 2)


def test_a_draw_depends_on_its_record_and_its_number_alone() -> None:
    def drawn(*marks: bytes, key: bytes = KEY) -> list[list[float]]:
        with ForwardDraws(key, marks).active():
            return torch.cat([torch.rand(len(marks), 2), torch.empty(len(marks), 2).normal_()], dim=1).tolist()

    together = drawn(b"a", b"b", b"c")
    assert [together[2], together[0]] == drawn(b"c", b"a")
    assert together[1] == drawn(b"b")[0]
    assert together[1] != drawn(b"b", key=KEY[::-1])[0]
    assert len({tuple(one) for one in together}) == 3


def test_records_are_known_by_their_content() -> None:
    X, y = records(5)
    marks = record_marks(X, y)
    assert len(set(marks)) == 5
    assert record_marks(X[::-1], y[::-1]) == marks[::-1]
    assert record_marks(X, 1 - y)[0] != marks[0]


@pytest.mark.parametrize("name", FOR_DP_SGD)
def test_networks_of_this_package_draw_nothing(name: str) -> None:
    """So nothing has to be keyed for them."""
    shape = (32, 3, 3) if name == "feature_cnn" else (3, 32, 32)
    built = build_network(name, {}, shape, 3, 0).train()
    with ForwardDraws(KEY, [b"a", b"b"], by_row=False).active():
        built(torch.ones(2, *shape))


@pytest.mark.parametrize("way", ["ghost", "torch_func", "one_by_one"])
def test_the_sum_is_that_of_the_examples_alone(way: str) -> None:
    torch.manual_seed(0)
    module, (X, y) = network("dropout").train(), records(7)
    inputs, targets = torch.from_numpy(X), torch.from_numpy(y)
    draws = ForwardDraws(KEY, record_marks(X, y))
    total = clipped_sum(way, module, 0.3)
    found = total(inputs, targets, draws)
    alone = [total(inputs[i : i + 1], targets[i : i + 1], draws.only(i)) for i in range(7)]
    for ours, *parts in zip(found, *alone, strict=True):
        torch.testing.assert_close(ours, sum(parts), atol=1e-5, rtol=1e-4)


class _RareNumpyDraw(torch.nn.Module):
    """Leaves a row out once in ten times, by numpy's global generator: what four made-up examples seldom show."""

    def __init__(self, input_shape: tuple[int, ...], n_classes: int) -> None:
        super().__init__()
        self.out = torch.nn.Linear(math.prod(input_shape), n_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = torch.as_tensor(np.random.rand(len(x)) >= 0.1, dtype=x.dtype)  # noqa: NPY002
        return self.out(x.flatten(1)) * kept[:, None]


def test_numpys_draws_for_a_batch_are_refused_however_rare_they_are() -> None:
    network = _RareNumpyDraw((3,), 2)
    draws = ForwardDraws(b"k" * KEY_BYTES, [bytes([i]) * 16 for i in range(4)])
    with pytest.raises(NotByRecord), draws.active():
        network(torch.zeros(4, 3))
    with draws.only(2).active():
        network(torch.zeros(1, 3))
