"""A torch network as a scikit-learn classifier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin

from pate.components.registry import import_dotted

if TYPE_CHECKING:
    import torch

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
        """About how much of a GPU's memory it takes to train `stack` of these at once, on examples of this shape."""
        from pate.networks.memory import bytes_to_train

        self.shape_, self.classes_ = list(shape), np.arange(n_classes)
        return bytes_to_train(self._layers, shape, self.batch_size, stack)

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
        from pate.teachers.stacked import fit_alone

        self.classes_, coded = np.unique(np.asarray(y), return_inverse=True)
        fit_alone(self, np.asarray(X), coded.reshape(-1))
        return self

    def predict_proba(self, X: NDArray) -> NDArray[np.float32]:
        """Probabilities, a column for each of `classes_`."""
        import torch

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

    def restore(self, weights: dict[str, torch.Tensor], classes: list[int], shape: list[int]) -> Network:
        """The fitted network again, from `weights()`, `classes_` and `shape_`; ValueError if they do not fit."""
        from pate.networks.stored import check_weights

        self.classes_, self.shape_ = np.asarray(classes), shape
        if self.architecture in _OWN:
            if self.depth is not None and self.depth > len(weights):
                raise ValueError(f"depth {self.depth} where there are {len(weights)} tensors")
            check_weights(self._layers, weights)
        self.network_ = self.build()
        self.network_.load_state_dict(weights)
        return self

    def target_device(self) -> torch.device:
        """Where this process computes: on the GPU that Ray gave it, if any."""
        from pate.networks.tensors import resolve_device

        return resolve_device(self.device)

    def build(self) -> Any:
        """Fresh weights for `shape_` and `classes_`, from the seed alone."""
        import torch

        from pate.networks.architectures import seeded

        network: Any = seeded(self._layers, self.random_state or 0)
        return network.to(self.target_device(), memory_format=torch.channels_last)

    def tensor(self, X: NDArray) -> torch.Tensor:
        """Examples as the network takes them: images as planes."""
        from pate.networks.tensors import example_tensor

        return example_tensor(X, self.target_device())

    def _layers(self) -> Any:
        from pate.networks.architectures import cnn, mlp

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
