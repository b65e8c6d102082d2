"""DP-SGD (Abadi et al., "Deep Learning with Differential Privacy", CCS 2016) as a scikit-learn estimator."""

from __future__ import annotations

import json
import math
import os
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from sklearn.base import BaseEstimator, ClassifierMixin

from pate.accounting import _parameters as parameters
from pate.baselines._inputs import (
    BLOCK,
    Seen,
    Views,
    Watched,
    by_turns,
    features_of_nobody,
    held,
    inputs_of,
    private_components,
    public_channels,
    public_components,
    refuse_memory_of_frozen,
    shares_right,
    through_frozen,
    trained_part,
    transforms_of,
)
from pate.baselines._per_example import Buffers, build_network, clipped_sum, made_up, never_stopping, way_for
from pate.baselines._sgd_accounting import History, append_step, epsilon_of, noise_for, steps_within
from pate.baselines.dp_erm import usable_records
from pate.baselines.sampling import KEY_BYTES, ForwardDraws, LotSampler, draws_for, record_marks
from pate.boundary._guard import raised_by_pate
from pate.components._registry import counted, found_file
from pate.errors import ConfigError, RunError
from pate.networks._architectures import device_anew, resolve_device
from pate.noise import Entropy
from pate.storage._files import check_weights, sizes, tensors_from_bytes, tensors_to_bytes, write_atomically

FEATURES = ("none", "pca", "scattering")
OPTIMISERS: dict[str, Callable[[torch.nn.Module, float], torch.optim.Optimizer]] = {  # of noisy gradients: no cost
    "momentum": lambda network, momentum: torch.optim.SGD(network.parameters(), momentum=momentum),
    "adam": lambda network, momentum: torch.optim.Adam(network.parameters(), betas=(momentum, 0.999)),
}
FIXED = ("pca", "channels")  # tensors of preparation
_SAVES = 20  # how often the state of a run is stored
_Noted = tuple[int, dict[str, float]]  # after how many steps which share of which examples was right
_ANYWAY = ("entropy", "per_example", "device", "draws")  # a run may go on with others


@dataclass(eq=False, repr=False)
class DPSGDClassifier(ClassifierMixin, BaseEstimator):
    """A network trained by DP-SGD, (ε, δ)-differentially private.

    Neighbouring data sets differ in one record added or removed (changing one is two steps).

    Every step takes each record into the lot with probability q = `lot_size`/`n_records`, independently; clips each
    example's gradient to norm `clip_norm`; sums; adds N(0, (sigma·clip_norm)²) to every coordinate, once per lot
    whatever the micro-batches; divides by `lot_size`. `n_records` is a public, configured figure: the rate, the
    number of steps and the divisor do not depend on how many records there are.

    Sensitivity: a record changes the sum by at most `clip_norm`, so a step is a Gaussian mechanism of noise multiplier
    `sigma` on a Poisson sample of rate q. It changes it by zero where its gradient is not finite or cannot be computed,
    its features are no numbers or its label is not among `classes`: no record stops a run. What a network draws in a
    forward pass, such as dropout's masks, is keyed by record and, every step, by the operating system
    (`pate.baselines.sampling`): no seed changes it, and no record changes another's. What is done before training looks
    at one example at a time, at public examples, or is noisy and counted.

    The network is tried on made-up examples first, and refused if it remembers anything of those that it saw: a buffer
    that changes in a forward pass would be released without noise. How it is clipped is held against a plain loop.

    Guarantee: `epsilon_` at `delta`, by the accountant named, for the network and everything before it, in real
    arithmetic with the operating system's entropy. It is the cost of all planned steps.

    Parameters
    ----------
    epsilon : float, default=None
        ε for which the noise is computed; where `sigma` is given, a limit on the cost, checked before training. In a
        config it is `budget.epsilon`.
    delta : float, default=1e-5
        δ of the guarantee; in a config `budget.delta`. It should be far below 1/`n_records`.
    n_records : int
        About how many private records there are, a figure that may be published; in a config `records`.
    classes : sequence
        All labels that there can be; in a config those of the data.
    model : str, default="cnn"
        A network of this package (linear, mlp, cnn, tempered_cnn, feature_cnn, …), or the dotted path of a
        `torch.nn.Module` without batch norm.
    model_params : dict, default=None
        What the network's constructor takes beside the shape of an example and the number of classes.
    preprocessing : str or sequence of (str or dict), default=()
        Public features by name, as teachers take them, such as "upright" or {name: hog, params: {…}}; each example is
        prepared by itself.
    features : {"none", "pca", "scattering"}, default="none"
        What the network sees: the examples as prepared, their principal components, or their wavelet scattering.
    groups : int, default=27
        Groups of channels in which a scattered image is normalised by itself, where `normalise` is "groups".
    normalise : {"groups", "public"}, default="groups"
        Whether scattered channels are normalised in each image by itself, or by the public images' mean and scale.
    components : int, default=60
        The number of principal components.
    pca_sigma : float, default=None
        Noise multiplier of principal components found from private records, counted with the rest; None finds them
        from public examples.
    sigma : float, default=None
        Noise multiplier: the noise's standard deviation over `clip_norm`. None is the least for `epsilon`.
    lot_size : int, default=512
        Records in a lot on average.
    epochs : float, default=40
        Steps times `lot_size` over `n_records`.
    learning_rate : float, default=0.5
        Learning rate at the beginning.
    learning_rate_end : float, default=None
        Learning rate at the end, reached in a straight line; None leaves it as it is.
    momentum : float, default=0.9
        Share of the mean gradient that a step keeps, below 1; Adam's β₁.
    clip_norm : float, default=0.1
        The longest gradient of an example, between 1e-12 and 1e12.
    micro_batch : int, default=512
        Examples whose gradients are computed at once; it bounds memory and changes nothing else.
    per_example : {"auto", "ghost", "torch_func", "one_by_one"}, default="auto"
        How clipped gradients are summed (`pate.baselines._per_example`); auto is the quickest that is right.
    accountant : {"pld", "rdp"}, default="pld"
        How the cost is computed: by privacy loss distributions, or by the Rényi bound, which is larger.
    checkpoint : str, default=None
        A safetensors file, beside the config, of weights that public data gave.
    frozen : int, default=0
        How many layers of a `torch.nn.Sequential` stay as they are: each example goes through them once, and they get
        neither gradient nor noise.
    views : dict, default=None
        Shifted and mirrored images to train on, one view a step: {count, shift in pixels, flip}.
    optimiser : {"momentum", "adam"}, default="momentum"
        What steps the noisy gradients take; either costs the same.
    device : {"auto", "cpu", "cuda"}, default="auto"
        Where steps are computed; auto is a GPU where there is one.
    draws : {"auto", "os", "device"}, default="auto"
        Where lots and noise are drawn: by the operating system, or on the device by keys from there; auto is on the
        device where that is a GPU.
    random_state : int, default=0
        Seed of the weights at the beginning and of the views; no lot and no noise depends on it.
    entropy : callable, default=os.urandom
        entropy(n) gives n random bytes, for lots, noise and keys. Not for configs: other sources are for tests.
    """

    accepts_images = True

    epsilon: float | None = None
    delta: float = 1e-5
    _: KW_ONLY
    n_records: int
    classes: Sequence[Any]
    model: str = "cnn"
    model_params: dict[str, Any] | None = None
    preprocessing: str | Sequence[str | dict[str, Any]] = ()
    features: str = "none"
    groups: int = 27
    normalise: str = "groups"
    components: int = 60
    pca_sigma: float | None = None
    sigma: float | None = None
    lot_size: int = 512
    epochs: float = 40
    learning_rate: float = 0.5
    learning_rate_end: float | None = None
    momentum: float = 0.9
    clip_norm: float = 0.1
    micro_batch: int = 512
    per_example: str = "auto"
    accountant: str = "pld"
    checkpoint: str | None = None
    frozen: int = 0
    views: dict[str, Any] | None = None
    optimiser: str = "momentum"
    device: str = "auto"
    draws: str = "auto"
    random_state: int = 0
    entropy: Entropy = os.urandom

    def plan(self) -> tuple[float, float, int, float]:
        """(σ, sampling rate, steps, ε) of a run, computed before any record is looked at."""
        self._check()
        rate = self.lot_size / self.n_records
        steps = max(1, round(self.epochs / rate))
        before: History = [(self.pca_sigma, 1.0, 1)] if self._private_pca else []  # type: ignore[list-item]
        sigma = self.sigma
        if sigma is None:
            assert self.epsilon is not None  # checked
            sigma = noise_for(self.epsilon, self.delta, rate, steps, before, self.accountant)
        epsilon = epsilon_of([*before, (sigma, rate, steps)], self.delta, self.accountant)
        if self.epsilon is not None and epsilon > self.epsilon:
            most = steps_within(self.epsilon, self.delta, rate, sigma, before, self.accountant)
            raise ConfigError(
                f"sigma = {sigma:g}: {steps} steps cost ε = {epsilon:.3g}, above epsilon = {self.epsilon:g}; "
                f"{most} steps ({counted(most * rate)} epochs) would fit: add noise, or leave sigma out and it is "
                "computed"
            )
        return sigma, rate, steps, epsilon

    def fit(
        self,
        X: NDArray,
        y: NDArray,
        X_public: NDArray | None = None,
        state: Path | None = None,
        progress: Callable[[int, int], None] = lambda done, total: None,
        watch: Mapping[str, tuple[NDArray, NDArray]] | None = None,
    ) -> DPSGDClassifier:
        """Take all planned steps, or those that the file `state` lacks; `progress` is told how many are done.

        Of the examples and labels in `watch` the share that is right is noted in `curve_` twenty times while it trains:
        for examples that anybody may know, since no noise hides what it tells about them.
        """
        self.sigma_, rate, steps, _ = self.plan()
        way = self.rehearse(np.shape(X)[1:])
        X, y = np.asarray(X), np.asarray(y)
        usable = usable_records(X, y, self.classes)  # each by itself: the others are as if they were not there
        self.left_out_ = int((~usable).sum())  # which is private
        X, y = (X, y) if usable.all() else (X[usable], y[usable])
        position = {label: i for i, label in enumerate(self.classes_.tolist())}
        targets = torch.tensor([position[label] for label in y.tolist()], dtype=torch.int64)
        resumed = self._load_state(state) if state is not None and state.exists() else None
        X, targets = self._prepared_records(X, targets)
        self._prepare_features(X, X_public, resumed)
        device = resolve_device(self.device)
        network = self._first_network().to(device)
        may_draw = "." in self.model  # in a forward pass: none of this package's own networks does
        marks = record_marks(X, targets.numpy()) if may_draw else None
        seen, targets = self._seen(network, X, marks), held(targets, device)
        trained = trained_part(network, self.frozen)
        weights, optimiser = list(trained.parameters()), OPTIMISERS[self.optimiser](trained, self.momentum)
        begin, self.curve_ = 0, list[_Noted]()
        if resumed is not None:
            tensors, begin, self.history_, self.curve_ = resumed
            network.load_state_dict({name[2:]: t for name, t in tensors.items() if name.startswith("w.")})
            moments = defaultdict[int, dict[str, torch.Tensor]](dict)
            for _, place, name in (key.split(".", 2) for key in tensors if key.startswith("v.")):
                moments[int(place)][name] = tensors[f"v.{place}.{name}"]
            optimiser.load_state_dict(optimiser.state_dict() | {"state": moments})
        total = never_stopping(clipped_sum(way, trained, self.clip_norm), trained, self.clip_norm)
        draws = draws_for(self.draws, device, self.entropy)
        watched = self._watched(network, watch)
        buffers = Buffers(trained)
        trained.train()
        for step in range(begin, steps):
            rows = draws.lot(len(targets), rate).to(targets.device)
            gradients = [torch.zeros_like(parameter) for parameter in weights]
            step_key = self.entropy(KEY_BYTES) if marks is not None else b""
            for block in rows.split(self.micro_batch):
                if len(block):
                    drawn = None if marks is None else ForwardDraws(step_key, [marks[i] for i in block.tolist()])
                    parts = total(seen(step, block).to(device), targets[block].to(device), drawn)
                    for gradient, part in zip(gradients, parts, strict=True):
                        gradient += part
                    buffers.put_back()
            noisy = self._with_noise(gradients, draws)
            for parameter, gradient in zip(weights, noisy, strict=True):
                parameter.grad = gradient
            end = self.learning_rate if self.learning_rate_end is None else self.learning_rate_end
            optimiser.param_groups[0]["lr"] = self.learning_rate + step / steps * (end - self.learning_rate)
            optimiser.step()
            optimiser.zero_grad()
            append_step(self.history_, self.sigma_, rate)
            if (step + 1) * _SAVES // steps > step * _SAVES // steps:
                self.curve_ += [(step + 1, shares_right(trained, watched, device))] if watched else []
                if state is not None:
                    tensors = {f"w.{name}": tensor for name, tensor in network.state_dict().items()}
                    for place, kept in optimiser.state_dict()["state"].items():
                        tensors |= {f"v.{place}.{name}": each for name, each in kept.items() if each is not None}
                    about = {"digest": self._digest(), "step": step + 1, "history": self.history_, "curve": self.curve_}
                    write_atomically(state, tensors_to_bytes(tensors | self.fixed_, about))
            progress(step + 1, steps)
        self.network_ = network.cpu()
        self.epsilon_, self.delta_ = epsilon_of(self.history_, self.delta, self.accountant), self.delta
        return self

    def rehearse(self, example_shape: Sequence[int]) -> str:
        """Try network and preparation on made-up examples of this shape, before a record is looked at.

        Returns how clipped gradients are summed. ConfigError if the network is unfit; a warning if it has to be slow.
        """
        self.classes_ = np.asarray(self.classes)
        nobodys = np.random.default_rng(0).random((2, *example_shape), dtype=np.float32)
        self._like = features_of_nobody(transforms_of(self.preprocessing), nobodys)
        if self.features == "pca":
            self.input_shape_: tuple[int, ...] = (self.components,)
        else:
            self.input_shape_ = tuple(self._inputs(self._like).shape[1:])
        Views.of(self.views).check(self.input_shape_)
        network = self._first_network()
        if self.frozen:
            refuse_memory_of_frozen(network, self.frozen, made_up(self.input_shape_, len(self.classes_))[0])
        seen = tuple(through_frozen(network, self.frozen, torch.zeros(2, *self.input_shape_)).shape[1:])
        return way_for(
            self.per_example, lambda: trained_part(self._first_network(), self.frozen), seen, len(self.classes_)
        )

    def _seen(self, network: torch.nn.Module, X: NDArray, marks: Sequence[bytes] | None) -> Seen:
        """What the trained layers see of which records at which step."""
        views, device = Views.of(self.views).drawn(self.random_state), next(network.parameters()).device
        if not self.frozen:
            return by_turns(held(self._inputs(X), device), views)
        draws = None if marks is None else ForwardDraws(self.entropy(KEY_BYTES), marks, by_row=False)
        return by_turns(self._inputs(X), views, lambda x: held(through_frozen(network, self.frozen, x, draws), device))

    def _watched(self, network: torch.nn.Module, watch: Mapping[str, tuple[NDArray, NDArray]] | None) -> Watched:
        position = {label: i for i, label in enumerate(self.classes_.tolist())}
        return {
            name: (
                through_frozen(network, self.frozen, self._inputs(self._prepared(np.asarray(X)))),
                torch.tensor([position.get(label, -1) for label in np.asarray(y).tolist()]),
            )
            for name, (X, y) in (watch or {}).items()
        }

    def predict(self, X: NDArray) -> NDArray:
        """The class of each example."""
        return self.classes_[self._scores(X).argmax(1).numpy()]

    def predict_proba(self, X: NDArray) -> NDArray[np.float64]:
        """Probabilities, a column for each of `classes_`."""
        return np.asarray(self._scores(X).double().softmax(1).numpy())

    def _scores(self, X: NDArray) -> torch.Tensor:
        device, inputs = resolve_device(self.device), self._inputs(self._prepared(np.asarray(X)))
        network = self.network_.to(device).eval()
        with torch.no_grad():
            blocks = [network(block.to(device)).cpu() for block in inputs.split(BLOCK)]
        network.cpu()
        return torch.cat(blocks) if len(inputs) else torch.zeros(0, len(self.classes_))

    def weights(self) -> dict[str, torch.Tensor]:
        """What is released: the network's tensors and what was fixed before it, such as a projection."""
        tensors = {f"w.{name}": tensor.contiguous() for name, tensor in self.network_.state_dict().items()}
        return tensors | {name: torch.from_numpy(array) for name, array in self.fixed_.items()}

    def learned(self) -> dict[str, Any]:
        """What `restore` needs beside the weights."""
        return {"input_shape": list(self.input_shape_)}

    def restore(self, weights: dict[str, NDArray], about: dict[str, Any]) -> DPSGDClassifier:
        """The trained network again, from what was released; ValueError if that does not belong together."""
        self.classes_, self.input_shape_ = np.asarray(self.classes), tuple(sizes(about["input_shape"], "input_shape"))
        self.device = device_anew(self.device)
        self.fixed_ = {name: weights[name] for name in FIXED if name in weights}
        tensors = {key: torch.from_numpy(tensor) for key, tensor in weights.items()}
        transforms_of(self.preprocessing)
        pca, channels = self.fixed_.get("pca"), self.fixed_.get("channels")
        if self.features not in FEATURES or (self.features == "pca") != (pca is not None):
            raise ValueError(f"features = {self.features!r}, with{'out' if pca is None else ''} a projection")
        if pca is not None and pca.shape[1:] != self.input_shape_:
            raise ValueError(f"pca has shape {pca.shape} where the network takes {self.input_shape_}")
        if channels is not None and channels.shape != (2, self.input_shape_[0]):
            raise ValueError(f"channels has shape {channels.shape} where the network takes {self.input_shape_}")
        if type(self.groups) is not int or self.groups < 1:
            raise ValueError(f"groups = {self.groups!r}: must be a whole number above 0")
        network = {name[2:]: tensor for name, tensor in tensors.items() if name.startswith("w.")}
        if "." not in self.model:
            check_weights(self._build_network, network)
        self.network_ = self._build_network()
        self.network_.load_state_dict(network)
        self.epsilon_, self.delta_ = math.nan if self.epsilon is None else self.epsilon, self.delta
        return self

    def _build_network(self) -> torch.nn.Module:
        return build_network(
            self.model, self.model_params or {}, self.input_shape_, len(self.classes_), self.random_state
        )

    def _first_network(self) -> torch.nn.Module:
        """Where training begins."""
        network = self._build_network()
        if self.checkpoint is not None:
            key, file = f"checkpoint = {self.checkpoint!r}", found_file(self.checkpoint) or Path(self.checkpoint)
            try:
                network.load_state_dict(tensors_from_bytes(file.read_bytes())[0])
            except (OSError, SafetensorError) as error:
                raise ConfigError(f"{key}: cannot be read ({error})") from None
            except RuntimeError as error:
                raise ConfigError(f"{key}: does not fit the network: {' '.join(str(error).split())[:200]}") from None
        return network

    def _load_state(self, path: Path) -> tuple[dict[str, torch.Tensor], int, History, list[_Noted]]:
        """All tensors by name, the steps done, the accountant's history and what was noted, if settings are the same.

        Weights, momentum, preparation and history are in one file, so none of them is ever without the others.
        """
        tensors, about = tensors_from_bytes(path.read_bytes())
        if about["digest"] != self._digest():
            raise RunError(f"{path}: was begun with other settings; start a new run")
        history = [(float(sigma), float(rate), int(steps)) for sigma, rate, steps in about["history"]]
        return tensors, about["step"], history, [(step, shares) for step, shares in about["curve"]]

    @property
    def _private_pca(self) -> bool:
        return self.features == "pca" and self.pca_sigma is not None

    def _check(self) -> None:
        parameters.delta(self.delta)
        if self.epsilon is not None:
            parameters.epsilon(self.epsilon)
        if self.epsilon is None and self.sigma is None:
            raise ConfigError("epsilon, sigma: give a target ε, or the noise multiplier")
        known = {"normalise": ("groups", "public"), "features": FEATURES, "optimiser": tuple(OPTIMISERS)}
        for name, choices in known.items():
            if getattr(self, name) not in choices:
                raise ConfigError(f"{name} = {getattr(self, name)!r}: must be one of {', '.join(choices)}")
        for name in ("sigma", "pca_sigma", "epochs", "learning_rate"):
            if getattr(self, name) is not None or name not in ("sigma", "pca_sigma"):
                parameters.positive(getattr(self, name), name)
        parameters.clip_norm(self.clip_norm)
        for name in ("lot_size", "n_records", "micro_batch"):
            parameters.queries(getattr(self, name), name, least=1)
        parameters.seed(self.random_state, "random_state")
        draws_for(self.draws, torch.device("cpu"), self.entropy)
        parameters.queries(self.frozen, "frozen", least=0)
        resolve_device(self.device)
        Views.of(self.views)
        transforms_of(self.preprocessing)
        if self.learning_rate_end is not None:
            parameters.number(self.learning_rate_end, "learning_rate_end", least=0)
        parameters.number(self.momentum, "momentum", least=0, below=1)
        if self.lot_size > self.n_records:
            raise ConfigError(f"lot_size = {self.lot_size}: larger than the data set (n_records = {self.n_records})")
        if self.delta >= 1 / self.n_records:
            warnings.warn(
                f"delta = {self.delta:g} is at least 1/n_records = {1 / self.n_records:.2g}: a mechanism that "
                "publishes a random record would pass; choose a smaller delta",
                stacklevel=3,
            )

    def _prepare_features(self, X: NDArray, X_public: NDArray | None, resumed: Any) -> None:
        self.fixed_, self.history_ = dict[str, NDArray](), []
        wanted = {"pca": "pca", "scattering": "channels" if self.normalise == "public" else None}.get(self.features)
        if wanted is None:
            return
        if resumed is not None:
            self.fixed_ = {wanted: resumed[0][wanted].numpy()}
            return
        try:
            if self._private_pca:
                assert self.pca_sigma is not None
                self.fixed_ = {"pca": private_components(X, self.components, self.pca_sigma, self.entropy)}
                self.history_ = [(self.pca_sigma, 1.0, 1)]
            elif X_public is None:
                raise ConfigError(
                    f"features = {self.features!r}: needs public examples, or pca_sigma, the noise of a differentially "
                    "private PCA"
                )
            else:
                seen = self._prepared(np.asarray(X_public))
                found = public_components(seen, self.components) if wanted == "pca" else public_channels(seen)
                self.fixed_ = {wanted: found}
        except ValueError as error:
            if not raised_by_pate(error):  # could tell how many records there are
                raise
            raise ConfigError(f"components: {error}") from None

    def _prepared(self, X: NDArray) -> NDArray:
        """Public features of public examples, fitted to nothing: each example by itself."""
        return transforms_of(self.preprocessing).transform_each(X)

    def _prepared_records(self, X: NDArray, targets: torch.Tensor) -> tuple[NDArray, torch.Tensor]:
        """Features of private records; a record that has none is as if it were not there."""
        transforms = transforms_of(self.preprocessing)
        if not transforms:
            return X, targets
        X = transforms.transform_records(X, self._like)
        usable = np.isfinite(X).all(axis=tuple(range(1, X.ndim)))
        self.left_out_ += int((~usable).sum())
        return X[usable], targets[torch.from_numpy(usable)]

    def _inputs(self, X: NDArray) -> torch.Tensor:
        """What the network sees; each example is prepared by itself."""
        return inputs_of(X, self.features, self.groups, getattr(self, "fixed_", {}))

    def _with_noise(self, gradients: Sequence[torch.Tensor], draws: LotSampler) -> list[torch.Tensor]:
        """The noisy mean of a lot: noise once, whatever the micro-batches."""
        noise = draws.gaussians(sum(gradient.numel() for gradient in gradients)) * (self.sigma_ * self.clip_norm)
        parts = noise.split([gradient.numel() for gradient in gradients])
        return [
            (gradient + part.reshape(gradient.shape)).to(gradient.dtype) / self.lot_size
            for gradient, part in zip(gradients, parts, strict=True)
        ]

    def _digest(self) -> str:
        """Equal for settings that a state can go on under."""
        settings = {name: value for name, value in self.get_params().items() if name not in _ANYWAY}
        return sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()
