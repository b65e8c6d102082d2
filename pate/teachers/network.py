"""A torch network as a scikit-learn classifier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from torch import nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn.functional import affine_grid, cross_entropy, grid_sample

from pate.components._registry import import_dotted
from pate.networks._architectures import cnn, device_anew, example_tensor, mlp, resolve_device, seeded
from pate.storage._files import check_weights, sizes, whole_numbers

_CONTEXT = 800_000_000  # what CUDA and its libraries take in every process
_RECORDS = 1_000_000_000  # for the records of a stack, whose number is not asked for: it is private
_COPIES_OF_WEIGHTS = 5  # weights, gradients, Adam's two moments, and one at work
_COPIES_OF_OUTPUTS = 3  # kept for the way back, their gradients, and room for the convolutions
_BYTES = 4


class Diverged(ValueError):
    """Training ended in weights that are NaN or infinite."""


def fit_stack(networks: Sequence[Network], data: Sequence[tuple[NDArray, NDArray[np.int64]]], n_classes: int) -> None:
    """Train networks that differ in their seed only, each on its own records, labels 0 … n_classes−1.

    Each then predicts positions in the sorted labels it has seen, as after `fit` on labels coded so.
    """
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
        network.restore(own, {"classes": list(range(len(present))), "shape": list(shape)})


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
        while len(self._left) < self._size:
            self._left = np.concatenate([self._left, self._random.permutation(self._n)])
        rows, self._left = self._left[: self._size], self._left[self._size :]
        return torch.from_numpy(rows)

    def moves(self, inputs: torch.Tensor) -> torch.Tensor | None:
        """An affine map for each image of a batch, or None where images are left as they are."""
        if inputs.ndim != 4 or not (self._shift or self._turn):
            return None
        height, width = inputs.shape[2:]
        angle = self._random.uniform(-self._turn, self._turn, self._size)
        right, down = self._random.uniform(-2 * self._shift, 2 * self._shift, (2, self._size))
        rows = [[np.cos(angle), -np.sin(angle), right / width], [np.sin(angle), np.cos(angle), down / height]]
        return torch.from_numpy(np.array(rows).transpose(2, 0, 1).astype(np.float32)).to(inputs.device)


def _move(images: torch.Tensor, moves: torch.Tensor | None) -> torch.Tensor:
    if moves is None:
        return images
    return grid_sample(images, affine_grid(moves, list(images.shape), align_corners=False), align_corners=False)


def _optimiser(network: Network, weights: Any) -> Any:
    return torch.optim.Adam(list(weights), lr=network.learning_rate, weight_decay=network.weight_decay, fused=True)


def _set_rate(optimiser: Any, network: Network, step: int) -> None:
    for group in optimiser.param_groups:
        group["lr"] = network.learning_rate * (1 - step / network.steps)


_OWN = ("mlp", "cnn")


class Network(ClassifierMixin, BaseEstimator):
    """A torch network as a scikit-learn classifier.

    Trained by Adam for a fixed number of steps, with a rate that falls to zero: nothing is stopped or tuned by
    looking at data. Deterministic for given data and seed.

    Parameters
    ----------
    architecture : str, default 'cnn'
        'mlp', 'cnn' (for images), or the dotted path of an nn.Module class, which is called with the shape of
        an example, the number of classes and `module_params`.
    hidden : int, default 64
        Width of hidden layers.
    depth : int, optional
        Number of hidden layers (mlp), or of convolutions, each followed by pooling (cnn).
    channels : int, default 16
        Channels of the first convolution, doubled by each further one (cnn).
    batch_norm : bool, default False
        Whether layers are followed by batch normalisation.
    shift : int, default 0
        Images are shifted by up to so many pixels, anew each step.
    turn : float, default 0.0
        Images are turned by up to so many degrees, anew each step.
    steps : int, default 160
        Number of training steps.
    batch_size : int, default 32
        Examples in each step.
    learning_rate : float, default 3e-3
        Learning rate at the beginning.
    weight_decay : float, default 1e-4
        Weight decay of Adam.
    device : {'auto', 'cpu', 'cuda'}, default 'auto'
        Where to train; 'auto' takes a GPU where there is one.
    module_params : dict, optional
        Keyword arguments of a class named by `architecture`.
    random_state : int, optional
        Seed of weights, batches and image changes.
    """

    accepts_images = True

    def __init__(
        self,
        architecture: str = "cnn",
        hidden: int = 64,
        depth: int | None = None,
        channels: int = 16,
        batch_norm: bool = False,
        shift: int = 0,
        turn: float = 0.0,
        steps: int = 160,
        batch_size: int = 32,
        learning_rate: float = 3e-3,
        weight_decay: float = 1e-4,
        device: str = "auto",
        module_params: dict[str, Any] | None = None,
        random_state: int | None = None,
    ) -> None:
        self.architecture = architecture
        self.hidden = hidden
        self.depth = depth
        self.channels = channels
        self.batch_norm = batch_norm
        self.shift = shift
        self.turn = turn
        self.steps = steps
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.device = device
        self.module_params = module_params
        self.random_state = random_state

    @property
    def uses_gpu(self) -> bool:
        """Whether it is trained on the GPU of its worker, where it has one."""
        return self.device != "cpu"

    def gpu_bytes(self, shape: Sequence[int], n_classes: int, stack: int) -> int:
        """About how much of a GPU's memory it takes to train `stack` of these at once, on examples of this shape.

        More than it will be, for Adam and records of which nobody may know how many there are.
        """
        self.shape_, self.classes_ = list(shape), np.arange(n_classes)
        with torch.device("meta"):
            network = self._layers()
            weights = sum(weight.numel() for weight in network.parameters())
            outputs = [0]

            def count(_module: nn.Module, _given: Any, made: Any) -> None:
                outputs[0] += made.numel() if isinstance(made, torch.Tensor) else 0

            for module in network.modules():
                module.register_forward_hook(count)
            blank = np.zeros((self.batch_size, *shape), dtype=np.float32)
            network.eval()(example_tensor(blank, torch.device("meta")))
        each = _COPIES_OF_WEIGHTS * weights + _COPIES_OF_OUTPUTS * outputs[0]
        return _CONTEXT + _RECORDS + stack * _BYTES * each

    @property
    def stackable(self) -> bool:
        """Whether `stacked.fit_stack` can train it: no state but weights."""
        return self.architecture in _OWN and not self.batch_norm

    @property
    def stacks_well(self) -> bool:
        """Whether a stack is faster than one by one on a CPU: matrix products are, convolutions are not."""
        return self.stackable and self.architecture == "mlp"

    def fit(self, X: NDArray, y: NDArray) -> Network:
        """Train a fresh network."""
        self.classes_, coded = np.unique(np.asarray(y), return_inverse=True)
        X = np.asarray(X)
        inputs, targets = self.tensor(X), torch.from_numpy(coded.reshape(-1)).to(self.target_device())
        self.shape_ = list(X.shape[1:])
        self.network_ = self.build()
        batches, optimiser = _Batches(self, len(X)), _optimiser(self, self.network_.parameters())
        self.network_.train()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.random_state or 0)  # for layers that draw, such as dropout
            for step in range(self.steps):
                _set_rate(optimiser, self, step)
                rows = batches.rows()
                moved = _move(inputs[rows], batches.moves(inputs))
                optimiser.zero_grad(set_to_none=True)
                cross_entropy(self.network_(moved), targets[rows]).backward()
                optimiser.step()
        if diverged(self):
            raise Diverged
        return self

    def predict_proba(self, X: NDArray) -> NDArray[np.float32]:
        """Probabilities, a column for each of `classes_`."""
        self.network_.eval()
        with torch.no_grad():
            blocks = [self.network_(block).softmax(1).cpu().numpy() for block in self.tensor(X).split(1024)]
        return np.concatenate(blocks) if blocks else np.zeros((0, len(self.classes_)), dtype=np.float32)

    def predict(self, X: NDArray) -> NDArray:
        """The likeliest class of each example."""
        return self.classes_[self.predict_proba(X).argmax(1)]

    def weights(self) -> dict[str, torch.Tensor]:
        """The learned tensors, by name."""
        return {name: tensor.contiguous().cpu() for name, tensor in self.network_.state_dict().items()}

    def learned(self) -> dict[str, Any]:
        """All else that prediction needs, as plain values."""
        return {"classes": self.classes_.tolist(), "shape": self.shape_}

    def restore(self, weights: dict[str, torch.Tensor], learned: dict[str, Any]) -> Network:
        """The fitted network again, from `weights()` and `learned()`; ValueError if those do not belong together."""
        self.device = device_anew(self.device)
        self.classes_ = np.asarray(whole_numbers(learned["classes"], "classes"))
        self.shape_ = sizes(learned["shape"], "shape")
        if self.architecture in _OWN:
            if self.depth is not None and self.depth > len(weights):
                raise ValueError(f"depth {self.depth} where there are {len(weights)} tensors")
            check_weights(self._layers, weights)
        self.network_ = self.build()
        self.network_.load_state_dict(weights)
        return self

    def target_device(self) -> torch.device:
        """Where this process computes: on the GPU that Ray gave it, if any."""
        return resolve_device(self.device)

    def build(self) -> Any:
        """Fresh weights for `shape_` and `classes_`, from the seed alone."""
        network: Any = seeded(self._layers, self.random_state or 0)
        return network.to(self.target_device(), memory_format=torch.channels_last)

    def tensor(self, X: NDArray) -> torch.Tensor:
        """Examples as the network takes them: images as planes."""
        return example_tensor(X, self.target_device())

    def _layers(self) -> Any:
        given = self.shape_, len(self.classes_)
        if self.architecture == "mlp":
            depth = 1 if self.depth is None else self.depth
            return mlp(*given, self.hidden, depth, self.batch_norm)
        if self.architecture == "cnn":
            depth = 2 if self.depth is None else self.depth
            return cnn(*given, self.channels, self.hidden, depth, self.batch_norm)
        if "." not in self.architecture:
            raise ValueError(f"architecture must be 'mlp', 'cnn' or a dotted path, not {self.architecture!r}")
        module: Any = import_dotted(self.architecture, "architecture")
        return module(tuple(self.shape_), len(self.classes_), **(self.module_params or {}))
