"""Three ways to the same sum of clipped gradients, held against a plain loop over the examples."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from pate.baselines.networks import build_network
from pate.baselines.per_example import clipped_sum, quickest
from pate.errors import ConfigError, RunError


class Sequences(nn.Module):
    """A linear layer that meets four places of each example."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(6, 5), nn.Linear(5, 3, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(torch.tanh(self.inner(x)).mean(1))


class WithGroupNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(3))
        self.net(torch.zeros(1, 1, 8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)


class Unused(nn.Module):
    """A layer that has no part in the output gets a gradient of zero."""

    def __init__(self) -> None:
        super().__init__()
        self.idle, self.used = nn.Linear(4, 4), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)


CASES = {
    "linear": ((5,), lambda: nn.Linear(5, 3), ("ghost", "opacus", "torch_func")),
    "mlp": ((4, 4), lambda: build_network("mlp", {"hidden": 20}, (4, 4), 3, 0), ("ghost", "opacus", "torch_func")),
    "cnn": ((1, 28, 28), lambda: build_network("cnn", {}, (1, 28, 28), 3, 0), ("ghost", "opacus", "torch_func")),
    "strided": (
        (2, 9, 9),
        lambda: nn.Sequential(nn.Conv2d(2, 3, 3, stride=2, dilation=2, bias=False), nn.Flatten(), nn.Linear(27, 3)),
        ("ghost", "opacus", "torch_func"),
    ),
    "sequences": ((4, 6), Sequences, ("ghost", "opacus", "torch_func")),
    "group norm": ((1, 8, 8), WithGroupNorm, ("opacus", "torch_func")),
    "unused": ((6,), Unused, ("ghost", "torch_func")),
}


def one_by_one(module: nn.Module, inputs: torch.Tensor, targets: torch.Tensor, clip: float) -> list[torch.Tensor]:
    """The obvious oracle."""
    sums = [torch.zeros_like(parameter) for parameter in module.parameters()]
    for example, target in zip(inputs, targets, strict=True):
        loss = cross_entropy(module(example[None]), target[None])
        gradients = torch.autograd.grad(loss, list(module.parameters()), allow_unused=True, materialize_grads=True)
        norm = torch.sqrt(sum(g.square().sum() for g in gradients))
        for total, gradient in zip(sums, gradients, strict=True):
            total += gradient * min(1.0, clip / float(norm))
    return sums


@pytest.mark.parametrize("clip", [1e-2, 1.0, 1e6])
@pytest.mark.parametrize("case", CASES)
def test_every_way_gives_the_sum_of_the_plain_loop(case: str, clip: float) -> None:
    shape, build, ways = CASES[case]
    torch.manual_seed(0)
    inputs, targets = torch.randn(9, *shape), torch.randint(0, 3, (9,))
    module = build()
    expected = one_by_one(module, inputs, targets, clip)
    for way in (*ways, "auto"):
        fresh = build()
        fresh.load_state_dict(module.state_dict())
        for ours, theirs in zip(clipped_sum(way, fresh, clip)(inputs, targets), expected, strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("way", ["ghost", "opacus", "torch_func"])
def test_one_example_moves_the_sum_by_at_most_the_clipping_norm(way: str) -> None:
    """Also an example with an enormous gradient."""
    torch.manual_seed(1)
    inputs, targets = torch.randn(6, 5), torch.randint(0, 3, (6,))
    inputs[2] *= 1e4
    total = clipped_sum(way, nn.Linear(5, 3), 0.3)
    everyone = total(inputs, targets)
    for gone in range(6):
        keep = torch.arange(6) != gone
        without = total(inputs[keep], targets[keep])
        moved = torch.sqrt(sum((a - b).square().sum() for a, b in zip(everyone, without, strict=True)))
        assert moved <= 0.3 * (1 + 1e-5)


@pytest.mark.parametrize("way", ["ghost", "opacus", "torch_func"])
def test_nan_gradients_are_a_clear_line(way: str) -> None:
    inputs = torch.randn(3, 5)
    inputs[1, 1] = torch.nan
    with pytest.raises(RunError, match="NaN or infinite gradients"):
        clipped_sum(way, nn.Linear(5, 3), 1.0)(inputs, torch.tensor([0, 1, 2]))


def test_auto_takes_the_quickest_that_suits() -> None:
    """As measured by `benchmarks/dp_sgd.py`: ghost but for large convolutions."""
    cases = (("mlp", (60,), "ghost"), ("cnn", (1, 28, 28), "ghost"), ("deep_cnn", (3, 32, 32), "torch_func"))
    for name, shape, way in cases:
        assert quickest(build_network(name, {}, shape, 10, 0)) == way
    assert quickest(WithGroupNorm()) == "opacus"


def test_ghost_says_what_it_cannot_take() -> None:
    with pytest.raises(ConfigError, match=r"net\.1 \(GroupNorm\)"):
        clipped_sum("ghost", WithGroupNorm(), 1.0)
    with pytest.raises(ConfigError, match="per_example = 'fast'"):
        clipped_sum("fast", nn.Linear(2, 2), 1.0)

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(self.layer(x))

    with pytest.raises(ConfigError, match="used twice"):
        clipped_sum("ghost", Twice(), 1.0)(torch.randn(2, 4), torch.tensor([0, 1]))
