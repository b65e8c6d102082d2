"""Training of networks: one alone, or many of one shape at once.

In a stack every network has its own weights, examples, order of batches and random moves. Nothing is summed over
networks but the losses, whose gradients stay apart: what a network becomes depends on its own records and on the
shape of the stack, which is fixed by the configuration. A slot without records does its steps on a blank example.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

    from pate.teachers.network import Network


class Diverged(ValueError):
    """Training ended in weights that are NaN or infinite."""


def fit_alone(network: Network, X: NDArray, coded: NDArray[np.int64]) -> None:
    """Train one network; `coded` are positions in its `classes_`."""
    import torch
    from torch.nn.functional import cross_entropy

    network.shape_ = list(X.shape[1:])
    network.network_ = network.build()
    inputs, targets = network.tensor(X), torch.from_numpy(coded).to(network.target_device())
    batches, optimiser = _Batches(network, len(X)), _optimiser(network, network.network_.parameters())
    network.network_.train()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(network.random_state or 0)  # for layers that draw, such as dropout
        for step in range(network.steps):
            _set_rate(optimiser, network, step)
            rows = batches.rows()
            moved = _move(inputs[rows], batches.moves(inputs))
            optimiser.zero_grad(set_to_none=True)
            cross_entropy(network.network_(moved), targets[rows]).backward()
            optimiser.step()
    if diverged(network):
        raise Diverged


def fit_stack(networks: Sequence[Network], data: Sequence[tuple[NDArray, NDArray[np.int64]]], n_classes: int) -> None:
    """Train networks that differ in their seed only, each on its own records, labels 0 … n_classes−1.

    Each then predicts positions in the sorted labels it has seen, as after `fit` on labels coded so.
    """
    import torch
    from torch.func import functional_call, stack_module_state, vmap
    from torch.nn.functional import cross_entropy

    first, shape = networks[0], data[0][0].shape[1:]
    for network in networks:
        network.classes_, network.shape_ = np.arange(n_classes), list(shape)
    modules = [network.build() for network in networks]
    weights, _ = stack_module_state(modules)
    skeleton = networks[0].build().to("meta")

    def loss(weights: dict[str, Any], inputs: Any, targets: Any) -> Any:
        return cross_entropy(functional_call(skeleton, weights, (inputs,)), targets)

    filled = [(X, y) if len(X) else (np.zeros((1, *shape), dtype=np.float32), np.zeros(1, dtype=int)) for X, y in data]
    inputs = [first.tensor(X) for X, _ in filled]
    targets = [torch.from_numpy(np.array(y)).to(first.target_device()) for _, y in filled]
    batches = [_Batches(network, len(X)) for network, X in zip(networks, inputs, strict=True)]
    optimiser = _optimiser(first, weights.values())
    for step in range(first.steps):
        _set_rate(optimiser, first, step)
        rows = [batch.rows() for batch in batches]
        chosen = torch.cat([X[r] for X, r in zip(inputs, rows, strict=True)])
        moves = [batch.moves(X) for batch, X in zip(batches, inputs, strict=True)]
        moved = _move(chosen, None if moves[0] is None else torch.cat([m for m in moves if m is not None]))
        labels = torch.stack([y[r] for y, r in zip(targets, rows, strict=True)])
        optimiser.zero_grad(set_to_none=True)
        vmap(loss)(weights, moved.view(len(networks), -1, *moved.shape[1:]), labels).sum().backward()
        optimiser.step()
    *_, last_weight, last_bias = weights
    for slot, (network, (_, y)) in enumerate(zip(networks, filled, strict=True)):
        present = np.unique(y)  # what a part lacks its network does not say
        own = {name: tensor[slot].detach().clone() for name, tensor in weights.items()}
        own |= {name: own[name][torch.from_numpy(present)] for name in (last_weight, last_bias)}
        network.restore(own, list(range(len(present))), list(shape))


def diverged(network: Network) -> bool:
    """Whether some weights of a trained network are NaN or infinite."""
    return not all(bool(tensor.isfinite().all()) for tensor in network.network_.state_dict().values())


class _Batches:
    """What a network sees at each step: from its seed and the number of its own records alone.

    Every batch is full: the records come in one random order after another, and a batch may span two of them.
    """

    def __init__(self, network: Network, n_records: int) -> None:
        self._random = np.random.default_rng(network.random_state or 0)
        self._n, self._size = n_records, network.batch_size
        self._shift, self._turn = network.shift, np.deg2rad(network.turn)
        self._left = np.zeros(0, dtype=np.int64)

    def rows(self) -> torch.Tensor:
        import torch

        while len(self._left) < self._size:
            self._left = np.concatenate([self._left, self._random.permutation(self._n)])
        rows, self._left = self._left[: self._size], self._left[self._size :]
        return torch.from_numpy(rows)

    def moves(self, inputs: torch.Tensor) -> torch.Tensor | None:
        """An affine map for each image of a batch, or None where images are left as they are."""
        import torch

        if inputs.ndim != 4 or not (self._shift or self._turn):
            return None
        height, width = inputs.shape[2:]
        angle = self._random.uniform(-self._turn, self._turn, self._size)
        right, down = self._random.uniform(-2 * self._shift, 2 * self._shift, (2, self._size))
        rows = [[np.cos(angle), -np.sin(angle), right / width], [np.sin(angle), np.cos(angle), down / height]]
        return torch.from_numpy(np.array(rows).transpose(2, 0, 1).astype(np.float32)).to(inputs.device)


def _move(images: torch.Tensor, moves: torch.Tensor | None) -> torch.Tensor:
    from torch.nn.functional import affine_grid, grid_sample

    if moves is None:
        return images
    return grid_sample(images, affine_grid(moves, list(images.shape), align_corners=False), align_corners=False)


def _optimiser(network: Network, weights: Any) -> Any:
    import torch

    return torch.optim.Adam(list(weights), lr=network.learning_rate, weight_decay=network.weight_decay, fused=True)


def _set_rate(optimiser: Any, network: Network, step: int) -> None:
    for group in optimiser.param_groups:
        group["lr"] = network.learning_rate * (1 - step / network.steps)
