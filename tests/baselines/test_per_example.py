"""Ways to the same sum of clipped gradients, held against a plain loop over the examples."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from pate.accounting import _parameters as parameters
from pate.accounting._parameters import MIN_CLIP_NORM
from pate.baselines._per_example import _factors, build_network, clipped_sum, never_stopping, quickest, trace_of
from pate.errors import ConfigError


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


class WithSignals(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Tanh(), nn.Conv1d(2, 4, 3), nn.Flatten(), nn.Linear(24, 3))

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
    "linear": ((5,), lambda: nn.Linear(5, 3), ("ghost", "torch_func")),
    "mlp": ((4, 4), lambda: build_network("mlp", {"hidden": 20}, (4, 4), 3, 0), ("ghost", "torch_func")),
    "cnn": ((1, 28, 28), lambda: build_network("cnn", {}, (1, 28, 28), 3, 0), ("ghost", "torch_func")),
    "strided": (
        (2, 9, 9),
        lambda: nn.Sequential(nn.Conv2d(2, 3, 3, stride=2, dilation=2, bias=False), nn.Flatten(), nn.Linear(27, 3)),
        ("ghost", "torch_func"),
    ),
    "few places": (
        (40, 2, 3),
        lambda: nn.Sequential(
            nn.Conv2d(40, 24, (3, 2), padding=(1, 1)),
            nn.Tanh(),
            nn.MaxPool2d((1, 2)),
            nn.Conv2d(24, 7, 2, bias=False),
            nn.Flatten(),
            nn.Linear(7, 3),
        ),
        ("ghost", "torch_func"),
    ),
    "few places, strided": (
        (40, 3, 2),
        lambda: nn.Sequential(
            nn.Conv2d(40, 23, 3, stride=(2, 1), padding=1, dilation=(2, 1)), nn.Flatten(), nn.Linear(46, 3)
        ),
        ("ghost", "torch_func"),
    ),
    "sequences": ((4, 6), Sequences, ("ghost", "torch_func")),
    "group norm": ((1, 8, 8), WithGroupNorm, ("ghost", "torch_func")),
    "layer norm": (
        (3, 4, 6),
        lambda: nn.Sequential(nn.LayerNorm((4, 6)), nn.Linear(6, 5), nn.Flatten(), nn.LayerNorm(60), nn.Linear(60, 3)),
        ("ghost", "torch_func"),
    ),
    "signals": ((2, 8), WithSignals, ("torch_func",)),
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
    for way in (*ways, "one_by_one", "auto"):
        fresh = build()
        fresh.load_state_dict(module.state_dict())
        for ours, theirs in zip(clipped_sum(way, fresh, clip)(inputs, targets), expected, strict=True):
            # where places are few, an example is made shorter by what rounding could hide
            torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4 if case.startswith("few") else 1e-5)


@pytest.mark.parametrize("way", ["ghost", "torch_func", "one_by_one"])
@pytest.mark.parametrize("clip", [MIN_CLIP_NORM, 1.0, 1 / MIN_CLIP_NORM])
def test_no_example_adds_more_than_the_clipping_norm_however_small_or_large_that_is(way: str, clip: float) -> None:
    """Gradients that are longer by any factor, with many entries of which each alone is too small to square."""
    assert parameters.clip_norm(clip) == clip
    module = nn.Linear(40_000, 2, bias=False)
    nn.init.zeros_(module.weight)
    total = clipped_sum(way, module, clip)
    for beyond in (1.0, 1.5, 30.0, 1e4):
        example = torch.full((1, 40_000), beyond * clip * math.sqrt(2) / 200)  # half of it is the gradient of a class
        norm = math.sqrt(sum(float(part.double().square().sum()) for part in total(example, torch.tensor([0]))))
        assert norm == pytest.approx(clip, rel=1e-4)


def test_convolutions_with_few_places_keep_no_gradient() -> None:
    """Which of the cases above is about which trace."""
    for case, kinds in (("cnn", ["_Stored", "_Stored"]), ("few places", ["_Convolved", "_Convolved"])):
        shape, build, _ = CASES[case]
        x, found = torch.zeros(2, *shape), []
        for layer in build():
            out = layer(x)
            if isinstance(layer, nn.Conv2d):
                found.append(type(trace_of(layer, x, out)).__name__)
            x = out
        assert found == kinds
    shape, build, _ = CASES["few places, strided"]
    layer = build()[0]
    assert type(trace_of(layer, torch.zeros(2, *shape), layer(torch.zeros(2, *shape)))).__name__ == "_Convolved"
    layer, elsewhere = layer.to("meta"), torch.zeros(2, *shape, device="meta")
    assert type(trace_of(layer, elsewhere, layer(elsewhere))).__name__ == "_Stored"


def test_the_norm_of_an_example_is_its_own() -> None:
    """Whoever else is in the batch, and however many: else one more would move what the others add."""
    torch.manual_seed(3)
    layer = nn.Conv2d(8, 8, 1, bias=False)
    inputs, gradient = torch.randn(100, 8, 1, 2), torch.randn(100, 8, 1, 2)
    gradient[..., 1], inputs[..., 1] = -gradient[..., 0], inputs[..., 0]  # all is margin
    everyone = trace_of(layer, inputs, gradient).squared_norms()
    for n in (1, 2, 7, 8, 9, 64, 65):
        alone = trace_of(layer, inputs[:n], gradient[:n]).squared_norms()
        torch.testing.assert_close(alone, everyone[:n], rtol=1e-5, atol=0)


def test_what_is_too_long_to_square_counts_for_nothing() -> None:
    trace = trace_of(nn.Conv2d(64, 64, 1), torch.full((2, 64, 1, 2), 3e38), torch.full((2, 64, 1, 2), 1.4e-45))
    assert (_factors(trace.squared_norms(), 2.7e-5) == 0).all()


def norms_of_two_places(inputs: list[torch.Tensor], gradients: list[torch.Tensor]) -> torch.Tensor:
    places = [torch.stack(parts, dim=2)[..., None] for parts in (inputs, gradients)]
    return trace_of(nn.Conv2d(8, 8, 1, bias=False), *places).squared_norms().double().sqrt()


@pytest.mark.parametrize("bits", [1, 12, 16])
def test_a_norm_is_right_where_pieces_cancel(bits: int) -> None:
    """Two places that see nearly the same, with gradients that leave a 2^-bits part of each other."""
    generator = torch.Generator().manual_seed(0)
    seen, gradient, move = (torch.randn(200, 8, generator=generator) for _ in range(3))
    inputs = [seen, seen + move * 2.0**-bits]
    gradients = [gradient, -gradient * (1 - 2.0**-bits)]
    pieces = [g.double()[:, :, None] * x.double()[:, None] for g, x in zip(gradients, inputs, strict=True)]
    exact, together = (pieces[0] + pieces[1]).norm(dim=(1, 2)), sum(piece.norm(dim=(1, 2)) for piece in pieces)
    found = norms_of_two_places(inputs, gradients)
    assert (found >= exact * (1 - 1e-6)).all()
    assert (found <= exact * (1 + 1e-6) + 200 * 2 * 1.2e-7 * together).all()


def test_a_norm_that_is_lost_in_rounding_is_not_found_too_short() -> None:
    """Nor what floats make of the sum: 1 - (1 + 2^-23)(1 - 2^-23) = 2^-46 is nothing beside 1."""
    generator = torch.Generator().manual_seed(0)
    seen, gradient = (torch.randn(200, 8, generator=generator).sign() for _ in range(2))
    found = norms_of_two_places([seen, seen * (1 + 2.0**-23)], [gradient, -gradient * (1 - 2.0**-23)])
    assert (found >= 8 * 2 * 2.0**-24 * 16).all()  # 8 examples are summed, of two places
    assert (found < 1e-3).all()


@pytest.mark.parametrize("way", ["ghost", "torch_func"])
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


def test_an_example_whose_pieces_cancel_adds_at_most_the_clipping_norm() -> None:
    """In floats, among others and whatever is summed first."""
    torch.manual_seed(2)
    layer = nn.Conv2d(8, 16, 1, bias=False)
    inputs, gradient = torch.randn(300, 8, 1, 2), torch.randn(300, 16, 1, 2)
    for place in (0, 63, 64, 200):
        inputs[place, :, :, 1] = inputs[place, :, :, 0] * 1.0004
        gradient[place] *= 1e6
        gradient[place, :, :, 1] = -gradient[place, :, :, 0] / 1.0004
        factors = _factors(trace_of(layer, inputs, gradient).squared_norms(), 0.5)
        without = factors.clone()
        without[place] = 0
        moved = [trace_of(layer, inputs, gradient).weighted_sum(f) for f in (factors, without)]
        assert (moved[0] - moved[1]).norm() <= 0.5 * (1 + 1e-5)
        pieces = gradient[place].norm(dim=0) * inputs[place].norm(dim=0)
        assert factors[place] * pieces.sum() <= 0.5 / (8 * 2 * 2.0**-24)


def test_a_product_of_a_tiny_and_a_huge_number_counts() -> None:
    """Squares of the tiny one are zero in floats."""
    layer = nn.Linear(2, 10, bias=False)
    with torch.no_grad():
        layer.weight.zero_()
        layer.weight[0, 1] = 52
    total = clipped_sum("ghost", layer, 1e-5)(torch.tensor([[1.8e19, 1.0]]), torch.tensor([0]))
    assert 0 < total[0].norm() <= 1e-5 * (1 + 1e-5)


class Logarithm(nn.Module):
    """Has no finite gradient where an example holds a negative number, nor where it holds a huge one."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(torch.log(x))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -1.0, 0.0])
@pytest.mark.parametrize("way", ["ghost", "torch_func", "one_by_one"])
def test_an_example_without_a_finite_gradient_adds_zero(way: str, bad: float) -> None:
    """And all others what they add without it."""
    torch.manual_seed(3)
    inputs, targets = torch.rand(7, 5) + 0.5, torch.randint(0, 3, (7,))
    inputs[4, 2] = bad
    others = torch.arange(7) != 4
    module = Logarithm()
    total = clipped_sum(way, module, 0.3)
    expected = one_by_one(module, inputs[others], targets[others], 0.3)
    for ours, theirs in zip(total(inputs, targets), expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)
    for ours in total(inputs[4:5], targets[4:5]):
        assert (ours == 0).all()


@pytest.mark.parametrize("way", ["ghost", "torch_func", "one_by_one"])
def test_a_gradient_too_long_to_be_squared_adds_zero_or_the_clipping_norm(way: str) -> None:
    inputs = torch.rand(3, 5)
    inputs[1] = 1e30
    sums = clipped_sum(way, nn.Linear(5, 3), 1.0)(inputs, torch.tensor([0, 1, 2]))
    assert all(bool(part.isfinite().all()) for part in sums)
    assert torch.sqrt(sum(part.square().sum() for part in sums)) <= 3 * (1 + 1e-5)


class Picky(nn.Module):
    """Fails altogether where an example is too large."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool((x > 100).any()):
            raise ValueError("too large")
        return self.layer(x)


@pytest.mark.parametrize("way", ["ghost", "torch_func", "one_by_one"])
def test_an_example_that_a_module_fails_for_adds_zero(way: str) -> None:
    torch.manual_seed(3)
    inputs, targets = torch.rand(7, 5), torch.randint(0, 3, (7,))
    inputs[4] = 1000.0
    module = Picky()
    total = never_stopping(clipped_sum(way, module, 0.3), module, 0.3)
    others = torch.arange(7) != 4
    for summed in (total(inputs, targets), total(inputs, targets)):
        for ours, theirs in zip(summed, one_by_one(module, inputs[others], targets[others], 0.3), strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)
    for ours, theirs in zip(
        total(inputs[:3], targets[:3]), one_by_one(module, inputs[:3], targets[:3], 0.3), strict=True
    ):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)


def test_auto_takes_the_quickest_that_suits() -> None:
    """As measured by `benchmarks/dp_sgd.py`."""
    for name, shape in (("mlp", (60,)), ("cnn", (1, 28, 28)), ("deep_cnn", (3, 32, 32))):
        assert quickest(build_network(name, {}, shape, 10, 0)) == "ghost"
    assert quickest(WithGroupNorm()) == "ghost"
    assert quickest(WithSignals()) == "torch_func"


def test_ghost_says_what_it_cannot_take() -> None:
    with pytest.raises(ConfigError, match=r"net\.1 \(Conv1d\)"):
        clipped_sum("ghost", WithSignals(), 1.0)
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
