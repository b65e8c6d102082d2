"""Networks that somebody else wrote, tried on made-up examples: refused, or clipped the slow and right way."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_dp_sgd import blobs, classifier
from torch import nn

from pate.baselines._per_example import Buffers, clipped_sum, difference, made_up, way_for
from pate.errors import ConfigError

CLIP = 0.1


class Tracking(nn.Module):
    """Running statistics of every example it ever saw, in buffers that are released with the weights."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.InstanceNorm1d(4, track_running_stats=True)
        self.out = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.norm(x.flatten(1).reshape(len(x), 4, 4)).flatten(1))


class OwnBuffer(nn.Module):
    """A buffer of one's own; not even stored with the weights, but later examples' gradients depend on it."""

    def __init__(self, persistent: bool = True, when: float = -1.0) -> None:
        super().__init__()
        self.out, self.when = nn.Linear(16, 3), when
        self.register_buffer("largest", torch.zeros(()), persistent=persistent)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if float(x.detach().abs().max()) > self.when:
            self.largest = torch.maximum(self.largest, x.detach().abs().max())
        return self.out(x.flatten(1))


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(16, 3)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return self.out(x.flatten(1))


class Remembering(nn.Module):
    """Centres examples by what it saw before, in an attribute that is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.out, self.middle = nn.Linear(16, 3), torch.zeros(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.flatten(1)
        self.middle = 0.9 * self.middle + 0.1 * x.detach().mean(0)
        return self.out(x - self.middle)


class Rescaling(nn.Module):
    """Changes its weights in a forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.out.bias += 0.01 * x.flatten(1).mean()
        return self.out(x.flatten(1))


class Frozen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fixed, self.out = nn.Linear(16, 8), nn.Linear(8, 3)
        self.fixed.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.fixed(x.flatten(1)))


class Squeezing(nn.Module):
    """Loses the batch axis where there is one example."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(x.flatten(1)).squeeze()[..., None].squeeze(-1).squeeze()


class Patches(nn.Module):
    """Folds an example's four rows into the batch axis: a linear layer sees four times as many examples."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 12), nn.Linear(12, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        patches = torch.tanh(self.inner(x.reshape(-1, 4)))
        return self.outer(patches.reshape(-1, 4, 12).mean(1))


class Borrowing(nn.Module):
    """Uses the weights of a layer once more, beside the layer; what comes after it begins with zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(16, 12), nn.Linear(12, 3)
        nn.init.zeros_(self.outer.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.flatten(1)
        return self.outer(torch.tanh(self.inner(x)) + torch.tanh(nn.functional.linear(x, self.inner.weight)))


class SequenceFirst(nn.Module):
    """Places first, then examples: as many of either where a lot has four."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 12), nn.Linear(12, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = x.reshape(-1, 4, 4).transpose(0, 1)
        return self.outer(torch.tanh(self.inner(places)).mean(0))


class Mixing(nn.Module):
    """Subtracts the batch's mean: an example's output depends on the others."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.flatten(1)
        return self.out(x - 0.5 * x.mean(0))


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.out = nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.layer(torch.tanh(self.layer(x.flatten(1)))))


class Branching(nn.Module):
    """Takes another way for some examples, which torch.func cannot follow, and has a weight that is in no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(16, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.flatten(1)
        return torch.stack([one @ self.weight * (2.0 if float(one[0]) > 0 else 1.0) for one in x])


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(16, 12), nn.Dropout(0.5), nn.Linear(12, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("Tracking", "norm.running_mean changes in a forward pass"),
        ("OwnBuffer", "largest changes in a forward pass"),
        ("Counting", "seen changes in a forward pass"),
        ("Remembering", "depends on examples that it saw before"),
        ("Rescaling", "out.bias changes in a forward pass"),
        ("Frozen", "fixed.weight does not require gradients"),
        ("Squeezing", "cannot take one example by itself"),
    ],
)
def test_a_network_that_remembers_is_refused_before_a_record_is_looked_at(model: str, words: str) -> None:
    """By fit, and by what `pate baseline` calls before it."""
    X, y = blobs(60)
    settings: dict[str, Any] = {"model": f"test_clipping_selfcheck.{model}"}
    with pytest.raises(ConfigError, match=words) as caught:
        classifier(**settings).rehearse((4, 4))
    assert "\n" not in str(caught.value)
    model_ = classifier(**settings, entropy=None)  # nothing was drawn
    with pytest.raises(ConfigError, match=words):
        model_.fit(X, y)
    assert not hasattr(model_, "network_")


def test_a_buffer_that_is_not_stored_is_refused_too() -> None:
    with pytest.raises(ConfigError, match="largest"):
        classifier(model="test_clipping_selfcheck.OwnBuffer", model_params={"persistent": False}).rehearse((4, 4))


def test_a_buffer_that_only_a_record_changes_is_put_back() -> None:
    """Made-up examples never reach a million."""
    X, y = blobs(60)
    X[7] = 1e7
    settings: dict[str, Any] = {"model": "test_clipping_selfcheck.OwnBuffer", "model_params": {"when": 1e6}}
    fitted = classifier(**settings, n_records=60, lot_size=60, epochs=2).fit(X, y)
    assert fitted.weights()["w.largest"] == 0.0
    network = OwnBuffer(when=0.0)
    kept = Buffers(network)
    network(torch.ones(2, 16))
    assert network.largest == 1.0
    kept.put_back()
    assert network.largest == 0.0


UNLIKE_GHOST = {
    "patches": (Patches, "torch_func"),
    "behind zeros": (Borrowing, "torch_func"),
    "sequence first": (SequenceFirst, "torch_func"),
    "mixing": (Mixing, "torch_func"),
    "twice": (Twice, "torch_func"),
    "branching": (Branching, "one_by_one"),
}


@pytest.mark.parametrize("case", UNLIKE_GHOST)
def test_where_ghost_clipping_is_wrong_another_way_is_taken(case: str) -> None:
    """And says so once; whatever is taken, a record moves the sum by at most the clipping norm."""
    build, way = UNLIKE_GHOST[case]
    torch.manual_seed(0)
    with pytest.warns(UserWarning, match=f"takes {way}, which is slower") as caught:
        assert way_for("auto", build, (4, 4), 3) == way
    assert len(caught) == 1
    network = build()
    total = clipped_sum(way, network, CLIP)
    for n in (1, 2, 4, 5):
        inputs, targets = torch.randn(n, 4, 4) * 30, torch.arange(n) % 3
        everyone = total(inputs, targets)
        without = total(inputs[1:], targets[1:]) if n > 1 else [torch.zeros_like(part) for part in everyone]
        moved = torch.sqrt(sum((a - b).square().sum() for a, b in zip(everyone, without, strict=True)))
        assert moved <= CLIP * (1 + 1e-4)


@pytest.mark.parametrize("n", [1, 3])
def test_pieces_in_the_batch_axis_do_not_pass_as_examples(n: int) -> None:
    """One example's four pieces would each have been clipped by themselves: together 3.5 times the norm and more."""
    for build in (Patches, SequenceFirst):
        with pytest.raises(ConfigError, match="not one row per example"):
            clipped_sum("ghost", build(), CLIP)(torch.randn(n, 4, 4), torch.zeros(n, dtype=torch.int64))


def test_as_many_places_as_examples_are_told_from_a_loop() -> None:
    """Of four examples with four places each, the number of rows gives nothing away."""
    inputs, targets = made_up((4, 4), 3)
    clipped_sum("ghost", SequenceFirst(), CLIP)(inputs, targets)
    assert difference("ghost", SequenceFirst, inputs, targets) is not None


def test_a_layer_that_begins_with_zeros_hides_nothing() -> None:
    """Layers before it have no gradient at first: the comparison is made elsewhere."""
    inputs, targets = made_up((4, 4), 3)
    assert difference("ghost", Borrowing, inputs, targets) is not None


@pytest.mark.parametrize("build", [Dropping, lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 3))])
def test_what_suits_is_taken_without_a_word(build: Callable[[], nn.Module]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert way_for("auto", build, (4, 4), 3) == "ghost"
        assert way_for("torch_func", build, (4, 4), 3) == "torch_func"


def test_a_way_that_was_named_is_refused_where_it_is_wrong() -> None:
    for way, model in (("ghost", "Patches"), ("torch_func", "Branching"), ("ghost", "Mixing")):
        with pytest.raises(ConfigError, match=f"per_example = '{way}': not for this network"):
            classifier(model=f"test_clipping_selfcheck.{model}", per_example=way).rehearse((4, 4))


def test_training_takes_the_way_that_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str] = []

    def noting(way: str, module: nn.Module, clip: float) -> Any:
        taken.append(way)
        return clipped_sum(way, module, clip)

    monkeypatch.setattr("pate.baselines.dp_sgd.clipped_sum", noting)
    X, y = blobs(60)
    with pytest.warns(UserWarning, match="slower"):
        classifier(model="test_clipping_selfcheck.Patches", n_records=60, epochs=1).fit(X, y)
    assert taken == ["torch_func"]


def test_no_record_stops_training_and_an_unusable_one_counts_for_nothing() -> None:
    """NaN, infinity, a label that is no class: as if it were not there; a huge one, within the clipping norm."""
    X, y = blobs(60)
    settings: dict[str, Any] = {"n_records": 60, "lot_size": 60, "epochs": 3, "sigma": 1e-6, "model": "mlp"}
    without = classifier(**settings).fit(X, y)
    assert without.left_out_ == 0
    for value, label in ((np.nan, 0), (np.inf, 0), (0.0, 7), (0.0, "x")):
        bad = np.full((1, 4, 4), value, dtype=np.float32)
        labels = [*y.tolist(), label] if isinstance(label, str) else np.append(y, label)
        fitted = classifier(**settings).fit(np.concatenate([X, bad]), np.array(labels, dtype=object))
        assert fitted.left_out_ == 1
        for ours, theirs in zip(fitted.network_.parameters(), without.network_.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)
    huge = np.full((1, 4, 4), 3e38, dtype=np.float32)
    for features in ({}, {"features": "pca", "pca_sigma": 1.0, "components": 3}):
        fitted = classifier(**settings, **features).fit(np.concatenate([X, huge]), np.append(y, 0))
        assert all(bool(part.isfinite().all()) for part in fitted.network_.parameters())


class Picky(nn.Module):
    """Fails altogether where an example is too large."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool((x > 1e6).any()):
            raise ValueError("too large")
        return self.out(x.flatten(1))


def test_a_record_that_the_network_fails_for_does_not_stop_training() -> None:
    X, y = blobs(60)
    settings: dict[str, Any] = {"n_records": 60, "lot_size": 60, "epochs": 3, "sigma": 1e-6}
    without = classifier(**settings, model="test_clipping_selfcheck.Picky").fit(X, y)
    X_bad = np.concatenate([X, np.full((1, 4, 4), 1e7, dtype=np.float32)])
    fitted = classifier(**settings, model="test_clipping_selfcheck.Picky").fit(X_bad, np.append(y, 0))
    for ours, theirs in zip(fitted.network_.parameters(), without.network_.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


def test_norms_are_compared_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A way that is right where nothing is clipped, and leaves biases out of the norm."""

    def forgetful(self: Any) -> torch.Tensor:
        return self.left.square().sum(1) * self.right.square().sum(1)

    monkeypatch.setattr("pate.baselines._per_example._Outer.squared_norms", forgetful)
    inputs, targets = made_up((4, 4), 3)
    assert difference("ghost", lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 3)), inputs, targets) is not None


def test_a_record_that_is_not_finite_adds_nothing_to_the_private_pca() -> None:
    from pate.baselines._inputs import private_components
    from pate.noise import seeded_entropy

    X = blobs(50)[0].reshape(50, -1)
    expected = private_components(X, 3, 0.1, seeded_entropy(0))
    for value in (np.nan, np.inf):
        found = private_components(np.concatenate([X, np.full((1, 16), value)]), 3, 0.1, seeded_entropy(0))
        np.testing.assert_allclose(found, expected, atol=1e-6)


class Tied(nn.Module):
    """One weight by two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.out = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 3)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.second(self.first(x.flatten(1))))


def test_tied_weights_are_kept_on_the_way(tmp_path: Path) -> None:
    X, y = blobs()
    model = classifier(model=f"{__name__}.Tied", epochs=1)
    model.fit(X, y, state=tmp_path / "state.safetensors")
    assert (tmp_path / "state.safetensors").exists()
