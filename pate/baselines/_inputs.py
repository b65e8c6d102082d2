"""What DP-SGD's network sees of each example, by itself: prepared, in one of several views, and through frozen layers.

Views are shifted and mirrored images, as random crops are elsewhere. Every step looks at all records of its lot through
one view. Which one depends on the number of the step and the seed alone, and a view changes each example by itself, so
a record still adds one clipped gradient to a step: neighbours, sensitivity and guarantee are those of DP-SGD without
views, at the same noise.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import pad

from pate.accounting import _parameters as parameters
from pate.baselines.sampling import KEY_BYTES, ForwardDraws, drawing
from pate.boundary._guard import raised_by_pate
from pate.errors import ConfigError, DataError, first_line
from pate.features import Features, build_features
from pate.networks._architectures import example_tensor
from pate.noise import Entropy, gaussians


def public_components(X_public: NDArray, n_components: int) -> NDArray[np.float32]:
    """The leading directions of public examples, each scaled to norm 1 first: (features, n_components)."""
    rows = _unit_rows(X_public)
    return _leading(rows.T @ rows, n_components)


def private_components(
    X: NDArray, n_components: int, sigma: float, entropy: Entropy = os.urandom
) -> NDArray[np.float32]:
    """The leading directions of ΣxxT plus noise (Dwork, Talwar, Thakurta, Zhang 2014, "Analyze Gauss").

    Neighbouring data sets differ in one record added or removed. Sensitivity: a row has norm 1, so xxT has
    Frobenius norm 1, and its upper triangle at most that. Every entry there gets N(0, σ²).
    Guarantee: one Gaussian mechanism of noise multiplier `sigma`, to be counted with whatever else is released.
    """
    rows = _unit_rows(X)
    covariance = rows.T @ rows
    upper = np.triu_indices(len(covariance))
    noisy = np.zeros_like(covariance)
    noisy[upper] = covariance[upper] + sigma * gaussians(len(upper[0]), entropy)
    return _leading(noisy + np.triu(noisy, 1).T, n_components)


def project(X: NDArray, components: NDArray) -> NDArray[np.float32]:
    """Examples in the components' coordinates: rows of norm 1, times a fixed factor so that coordinates are about 1."""
    return (_unit_rows(X) @ components * np.sqrt(components.shape[1])).astype(np.float32)


def _unit_rows(X: NDArray) -> NDArray[np.float64]:
    rows = np.asarray(X, dtype=np.float64).reshape(len(X), math.prod(np.shape(X)[1:]))
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    # a row that is not finite, or too long to be squared, counts as zero
    usable = np.isfinite(norms)
    return np.where(usable, rows, 0.0) / np.where(usable & (norms > 0), norms, 1.0)


def _leading(symmetric: NDArray[np.float64], n_components: int) -> NDArray[np.float32]:
    if not 1 <= n_components <= len(symmetric):
        raise ValueError(f"{n_components} components of {len(symmetric)} features: there cannot be more than features")
    _, vectors = np.linalg.eigh(symmetric)
    return np.ascontiguousarray(vectors[:, ::-1][:, :n_components]).astype(np.float32)


_CONSTANT = 1e-6
_SAME = 1e-4  # far above rounding
BLOCK = 1024
"""Examples that go through a network at once."""

Watched = Mapping[str, tuple[torch.Tensor, torch.Tensor]]
"""Inputs and targets by name."""


def transforms_of(preprocessing: str | Sequence[str | dict[str, Any]]) -> Features:
    """Public features, fitted to nothing."""
    given = [preprocessing] if isinstance(preprocessing, str) else preprocessing
    steps = [{"name": step} if isinstance(step, str) else step for step in given]
    if any("name" not in step for step in steps):
        raise ConfigError("preprocessing: each of its features is a name, or has `name` and `params`")
    return build_features(steps, "preprocessing")


def features_of_nobody(transforms: Features, examples: NDArray) -> NDArray:
    """The features of examples that are made up; ConfigError where those of one depend on what came before it."""
    try:
        first = transforms.transform_each(examples)
        transforms.transform_each(1 - examples)
        again = transforms.transform_each(examples)
    except (ConfigError, DataError):
        raise
    except Exception as error:  # somebody else's class may fail in any way
        raise ConfigError(f"preprocessing: fails for made-up examples ({first_line(error)})") from None
    if first.shape != again.shape or not np.allclose(first, again, rtol=_SAME, atol=_SAME, equal_nan=True):
        raise ConfigError("preprocessing: what it gives for an example depends on examples that it saw before")
    return first


def inputs_of(X: NDArray, features: str, groups: int, fixed: Mapping[str, NDArray]) -> torch.Tensor:
    """Prepared examples as tensors: projected, scattered or as they are; `fixed` is what was found beforehand."""
    if features == "pca":
        return torch.from_numpy(project(X, fixed["pca"]))
    if features == "scattering":
        from pate.features.scattering import Scattering, group_normalise

        try:
            scattered = Scattering().transform(X)
            if "channels" not in fixed:
                return torch.from_numpy(group_normalise(scattered, groups))
            mean, scale = fixed["channels"]
            return torch.from_numpy((scattered - mean[:, None, None]) / scale[:, None, None])
        except (ValueError, RuntimeError) as error:
            if not raised_by_pate(error):
                raise
            raise ConfigError(f"features = 'scattering': {error}") from None
    return example_tensor(X, memory_format=torch.contiguous_format)


def public_channels(X_public: NDArray) -> NDArray[np.float32]:
    """Mean and standard deviation of each channel of the scattered public examples; 1 where a channel is constant."""
    from pate.features.scattering import Scattering

    scattered = Scattering().transform(X_public)
    mean, scale = scattered.mean(axis=(0, 2, 3)), scattered.std(axis=(0, 2, 3))
    return np.stack([mean, np.where(scale > _CONSTANT, scale, 1)]).astype(np.float32)


def trained_part(network: torch.nn.Module, frozen: int) -> torch.nn.Module:
    """The network, or what comes after its frozen layers."""
    if not frozen:
        return network
    if not isinstance(network, torch.nn.Sequential) or next(network[frozen:].parameters(), None) is None:
        raise ConfigError(
            f"frozen = {frozen}: is for a chain of layers (torch.nn.Sequential), and some with weights must be left"
        )
    return network[frozen:]


def through_frozen(
    network: torch.nn.Module, frozen: int, inputs: torch.Tensor, draws: ForwardDraws | None = None
) -> torch.Tensor:
    """What the layers that are trained see; the frozen ones take no gradient any more, and each example goes through
    them once. One that they fail for becomes no numbers: its gradient counts as zero, and it stops nothing. Of private
    examples `draws` are whatever these layers draw."""
    trained_part(network, frozen)
    if not frozen:
        return inputs
    assert isinstance(network, torch.nn.Sequential)
    body = network[:frozen].eval().requires_grad_(False)
    device = next(network.parameters()).device
    with torch.no_grad():
        like = body(torch.zeros(1, *inputs.shape[1:], device=device))
        blocks = [
            _block_through(body, block.to(device), like, draws and draws.some(slice(i * BLOCK, (i + 1) * BLOCK))).cpu()
            for i, block in enumerate(inputs.split(BLOCK))
        ]
    return torch.cat(blocks)


def _block_through(
    body: torch.nn.Module, block: torch.Tensor, like: torch.Tensor, draws: ForwardDraws | None
) -> torch.Tensor:
    try:
        with drawing(draws):
            found: torch.Tensor = body(block)
            return found
    except Exception:
        found = like.new_full((len(block), *like.shape[1:]), math.nan)
        for place in range(len(block)):
            with suppress(Exception), drawing(draws and draws.only(place)):
                found[place] = body(block[place : place + 1])[0]
        return found


def refuse_memory_of_frozen(network: torch.nn.Module, frozen: int, inputs: torch.Tensor) -> None:
    """ConfigError where frozen layers keep anything of what went through them, as it would be released without noise,
    or give something else for an example in the company of others."""
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    draws = ForwardDraws(bytes(KEY_BYTES), [bytes([i]) for i in range(len(inputs))], by_row=False)
    together = through_frozen(network, frozen, inputs, draws)
    alone = [through_frozen(network, frozen, inputs[i : i + 1], draws.only(i)) for i in range(len(inputs))]
    for name, tensor in network.state_dict().items():
        if name not in before or not torch.equal(tensor, before[name]):
            raise ConfigError(f"model: {name} changes in a forward pass, though its layer is frozen; use another layer")
    if not torch.allclose(together, torch.cat(alone), rtol=_SAME, atol=_SAME, equal_nan=True):
        raise ConfigError("model: what its frozen layers give for an example depends on the others; use other layers")


def held(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """On the device if it has room for all of it; else it stays where it is, and lots are moved there."""
    try:
        return tensor.to(device)
    except torch.OutOfMemoryError:
        return tensor


def shares_right(network: torch.nn.Module, watched: Watched, device: torch.device) -> dict[str, float]:
    """Accuracy on the examples of each name; the network is put back into training mode afterwards."""
    network.eval()
    with torch.no_grad():
        right = {
            name: torch.cat([network(block.to(device)).argmax(1).cpu() for block in inputs.split(BLOCK)]) == targets
            for name, (inputs, targets) in watched.items()
        }
    network.train()
    return {name: float(found.double().mean()) for name, found in right.items()}


@dataclass(frozen=True)
class View:
    """An image moved by whole pixels, its border repeated, and perhaps mirrored."""

    down: int = 0
    right: int = 0
    mirrored: bool = False

    def of(self, images: torch.Tensor) -> torch.Tensor:
        """The images (count × channels × height × width), seen so."""
        if self.down or self.right:
            height, width = images.shape[-2:]
            most = max(abs(self.down), abs(self.right))
            top, left = most - self.down, most - self.right
            images = pad(images, (most,) * 4, mode="replicate")[..., top : top + height, left : left + width]
        return images.flip(-1) if self.mirrored else images


@dataclass(frozen=True)
class Views:
    """`count` views that take turns: the image as it is, then random ones, moved by up to `shift` pixels and, with
    `flip`, half of them mirrored."""

    count: int = 1
    shift: int = 0
    flip: bool = False

    @classmethod
    def of(cls, settings: Mapping[str, Any] | None) -> Views:
        """Views by the settings of a config; without settings, each example as it is."""
        try:
            found = cls() if settings is None else cls(**settings)
        except TypeError:
            raise ConfigError(f"views = {settings!r}: must have the keys count, shift, flip, and no others") from None
        parameters.queries(found.count, "views.count", least=1)
        parameters.queries(found.shift, "views.shift", least=0)
        if not isinstance(found.flip, bool):
            raise ConfigError(f"views.flip = {found.flip!r}: must be true or false")
        return found

    def check(self, example_shape: tuple[int, ...]) -> None:
        """ConfigError where examples of this shape are no images that could be moved so far."""
        if self.count > 1 and (len(example_shape) != 3 or self.shift >= min(example_shape[1:])):
            raise ConfigError(f"views: are for images of more than {self.shift} pixels, not for inputs {example_shape}")

    def drawn(self, seed: int) -> list[View]:
        """The views, in the order of their turns; the same for the same seed."""
        rng = np.random.default_rng(seed)
        moved = rng.integers(-self.shift, self.shift, size=(self.count - 1, 2), endpoint=True).tolist()
        mirrored = rng.integers(2, size=self.count - 1) * self.flip
        return [View(), *(View(down, right, bool(side)) for (down, right), side in zip(moved, mirrored, strict=True))]


Seen = Callable[[int, torch.Tensor], torch.Tensor]
"""(step, rows) → what the trained layers see of those rows at that step."""


def by_turns(
    inputs: torch.Tensor, views: list[View], frozen: Callable[[torch.Tensor], torch.Tensor] | None = None
) -> Seen:
    """A view a step. With `frozen` layers before those that are trained, all records go through them once for each
    view, and are kept; else a view is taken when it is its turn."""
    if frozen is None:
        return lambda step, rows: views[step % len(views)].of(inputs[rows.to(inputs.device)])
    kept = [frozen(view.of(inputs)) for view in views]

    def seen(step: int, rows: torch.Tensor) -> torch.Tensor:
        turn = kept[step % len(kept)]
        return turn[rows.to(turn.device)]

    return seen
