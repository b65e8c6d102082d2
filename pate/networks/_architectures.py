"""Small networks for images and for tables, sized for a CPU: those of teachers, of students and of DP-SGD. And what
all of them need: examples as tensors, and a device to compute on.

`shape` is that of an example as data has it, height × width (× channels). Networks for DP-SGD take `input_shape`, with
the channels of an image first. Order and names of layers are fixed: seeds and stored weights depend on them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from pate.errors import ConfigError

Shape = tuple[int, ...]
Module = TypeVar("Module", bound=nn.Module)
_SMALLEST_IMAGE = 8  # pixels per side: below that there is nothing to convolve
_SLOPE = 0.1
_FLAT = 1e-3  # an image of one colour stays one


def seeded(build: Callable[[], Module], seed: int) -> Module:
    """What `build` makes, its random initial weights from `seed`; the global generators are left as they were."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        return build()


def mlp(
    shape: Sequence[int],
    n_classes: int,
    hidden: int,
    depth: int = 1,
    batch_norm: bool = False,
    activation: Callable[[], nn.Module] = nn.ReLU,
) -> nn.Sequential:
    """`depth` hidden layers, each `hidden` wide."""
    layers: list[nn.Module] = [nn.Flatten()]
    width = math.prod(shape)
    for _ in range(depth):
        layers.append(nn.Linear(width, hidden))
        layers += [nn.BatchNorm1d(hidden)] if batch_norm else []
        layers.append(activation())
        width = hidden
    return nn.Sequential(*layers, nn.Linear(width, n_classes))


def cnn(
    shape: Sequence[int], n_classes: int, channels: int, hidden: int, depth: int = 2, batch_norm: bool = False
) -> nn.Sequential:
    """`depth` convolutions, each followed by pooling, `channels` doubled each time; then one layer `hidden` wide."""
    if len(shape) not in (2, 3):
        raise ValueError(f"a cnn needs images, not examples of shape {tuple(shape)}; use architecture: mlp")
    height, width = shape[:2]
    planes = _planes(shape)
    layers: list[nn.Module] = []
    for level in range(depth):
        wide = channels * 2**level
        layers.append(nn.Conv2d(planes, wide, 3, padding=1))
        layers += [nn.BatchNorm2d(wide)] if batch_norm else []
        layers += [nn.ReLU(), nn.MaxPool2d(2)]
        planes, height, width = wide, height // 2, width // 2
    if height < 1 or width < 1:
        raise ValueError(f"depth {depth} is too much for images of {tuple(shape[:2])} pixels")
    flat = planes * height * width
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(flat, hidden), nn.ReLU(), nn.Linear(hidden, n_classes))


def looks_like_images(shape: Sequence[int]) -> bool:
    """Whether examples of this shape go through convolutions: height × width (× channels), each side ≥ 8."""
    return len(shape) in (2, 3) and min(shape[:2]) >= _SMALLEST_IMAGE


class Classifier(nn.Module):
    """Features, then one linear layer of logits. `normed` is how layers are normalised: "batch" or "weight"."""

    def __init__(
        self, shape: Sequence[int], n_classes: int, channels: int, hidden: int, normed: str, depth: int = 3
    ) -> None:
        super().__init__()
        if normed not in ("batch", "weight"):
            raise ConfigError(f"student.params.normed = {normed!r}: must be 'batch' or 'weight'")
        if looks_like_images(shape):
            self.features = _convolutions(shape, channels, hidden, normed, depth)
        else:
            self.features = _dense(math.prod(shape), hidden, normed)
        last = nn.Linear(hidden, n_classes)
        self.logits = weight_norm(last) if normed == "weight" else last

    def forward(self, x: Tensor) -> Tensor:
        return self.logits(self.features(x))


class Generator(nn.Module):
    """Noise to examples: transposed convolutions up to the image's size, or a dense net for a table.

    Values of images are kept between `low` and `high`, the range of the real ones.
    """

    def __init__(self, shape: Sequence[int], noise: int, channels: int, hidden: int, low: float, high: float) -> None:
        super().__init__()
        self.noise = noise
        self.size: Sequence[int] | None = None
        if not looks_like_images(shape):
            layers = [nn.Linear(noise, hidden), nn.BatchNorm1d(hidden), nn.ReLU()]
            layers += [nn.Linear(hidden, hidden), nn.BatchNorm1d(hidden), nn.ReLU()]
            self.body = nn.Sequential(*layers, nn.Linear(hidden, math.prod(shape)), nn.Unflatten(1, tuple(shape)))
            return
        self.size, self.low, self.high = shape[:2], low, high
        rows, columns = (-(-side // 4) for side in shape[:2])
        self.body = nn.Sequential(
            nn.Linear(noise, 4 * channels * rows * columns), nn.Unflatten(1, (4 * channels, rows, columns)),
            nn.BatchNorm2d(4 * channels), nn.ReLU(),
            nn.ConvTranspose2d(4 * channels, 2 * channels, 4, 2, 1), nn.BatchNorm2d(2 * channels), nn.ReLU(),
            nn.ConvTranspose2d(2 * channels, _planes(shape), 4, 2, 1), nn.Sigmoid(),
        )  # fmt: skip

    def forward(self, z: Tensor) -> Tensor:
        made = self.body(z)
        if self.size is None:
            return made
        return self.low + (self.high - self.low) * made[:, :, : self.size[0], : self.size[1]]


def _planes(shape: Sequence[int]) -> int:
    return shape[2] if len(shape) == 3 else 1


def _convolutions(shape: Sequence[int], channels: int, hidden: int, normed: str, depth: int) -> nn.Sequential:
    """Three convolutions or, with `depth` 4, one more between the first two, which have stride 2 (pooling costs a CPU
    more); then a dense layer."""
    if depth not in (3, 4):
        raise ConfigError(f"student.params.depth = {depth}: must be 3 or 4, the number of convolutions")
    one, two = channels, 2 * channels
    between = [(one, two, 3, 1)] if depth == 4 else []
    kinds = [(_planes(shape), one, 5, 2), *between, (two if between else one, two, 3, 2), (two, 2 * two, 3, 1)]
    layers: list[nn.Module] = []
    for before, after, size, stride in kinds:
        layers += _normed(nn.Conv2d(before, after, size, stride, size // 2), nn.BatchNorm2d(after), normed)
        layers += [nn.LeakyReLU(_SLOPE)]
    flat = 4 * channels * math.prod(-(-side // 4) for side in shape[:2])
    layers += [nn.Flatten(), *_normed(nn.Linear(flat, hidden), nn.BatchNorm1d(hidden), normed), nn.LeakyReLU(_SLOPE)]
    return nn.Sequential(*layers)


def _dense(width: int, hidden: int, normed: str) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Flatten()]
    for before in (width, hidden):
        layers += _normed(nn.Linear(before, hidden), nn.BatchNorm1d(hidden), normed)
        layers += [nn.LeakyReLU(_SLOPE)]
    return nn.Sequential(*layers)


def _normed(layer: nn.Module, batch_norm: nn.Module, normed: str) -> list[nn.Module]:
    return [layer, batch_norm] if normed == "batch" else [weight_norm(layer)]


def _activation(name: str, temperature: float = 1.0) -> nn.Module:
    """relu, or a tempered sigmoid 2/(1 + e^−2Tx) − 1 = tanh(Tx) (Papernot et al. 2021); T = 1 is tanh."""
    if name == "relu":
        return nn.ReLU()
    if name != "tanh":
        raise ConfigError(f"model_params.activation = {name!r}: must be 'relu' or 'tanh'")
    return _TemperedTanh(temperature)


class _TemperedTanh(nn.Module):
    """tanh(temperature·x): bounded activations keep gradients small, so that clipping takes less away."""

    def __init__(self, temperature: float) -> None:
        super().__init__()
        self.temperature = temperature

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x if self.temperature == 1.0 else self.temperature * x)


def _dp_linear(input_shape: Shape, n_classes: int) -> nn.Module:
    """One layer, beginning at zero: the loss is convex, so no seed is needed."""
    layer = nn.Linear(math.prod(input_shape), n_classes)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return nn.Sequential(nn.Flatten(), layer)


def _dp_mlp(
    input_shape: Shape, n_classes: int, hidden: int = 1000, activation: str = "relu", temperature: float = 1.0
) -> nn.Module:
    """One hidden layer: with PCA to 60 components before it, the network of Abadi et al. 2016 for MNIST."""
    return mlp(input_shape, n_classes, hidden, activation=partial(_activation, activation, temperature))


def _dp_cnn(
    input_shape: Shape,
    n_classes: int,
    channels: int = 16,
    hidden: int = 32,
    activation: str = "tanh",
    temperature: float = 1.0,
) -> nn.Module:
    """Two convolutions and a hidden layer: 26,010 parameters on MNIST (Papernot et al. 2021)."""
    if len(input_shape) != 3:
        raise ConfigError(f"model = 'cnn': needs images, not inputs of shape {input_shape}")
    act = partial(_activation, activation, temperature)
    body = nn.Sequential(
        nn.Conv2d(input_shape[0], channels, 8, stride=2, padding=3), act(), nn.MaxPool2d(2, 1),
        nn.Conv2d(channels, 2 * channels, 4, stride=2), act(), nn.MaxPool2d(2, 1), nn.Flatten(),
    )  # fmt: skip
    return _with_head(body, input_shape, [hidden], n_classes, act)


def _dp_feature_cnn(
    input_shape: Shape,
    n_classes: int,
    widths: Sequence[int] = (16, 32),
    reduce: str = "stride",
    hidden: int = 32,
    activation: str = "tanh",
) -> nn.Module:
    """Two 3×3 convolutions on maps of features, as scattering gives them (Tramèr and Boneh 2021): the first, or a
    pooling after it, halves their sides; then a hidden layer, unless `hidden` is 0. Theirs for MNIST are the defaults;
    for CIFAR-10 widths 64 and 64, `reduce: pool` and no hidden layer."""
    if len(input_shape) != 3:
        raise ConfigError(f"model = 'feature_cnn': needs maps of features, not inputs of shape {input_shape}")
    if reduce not in ("stride", "pool") or len(widths) != 2:
        raise ConfigError("model_params: reduce must be 'stride' or 'pool', and there are two widths")
    act = partial(_activation, activation)
    first, second = widths
    layers = [nn.Conv2d(input_shape[0], first, 3, stride=2 if reduce == "stride" else 1, padding=1), act()]
    layers += [nn.MaxPool2d(2)] if reduce == "pool" else []
    layers += [nn.Conv2d(first, second, 3, padding=1), act(), nn.Flatten()]
    return _with_head(nn.Sequential(*layers), input_shape, [hidden] if hidden else [], n_classes, act)


class OneByOne(nn.Module):
    """The middle `size` × `size` pixels of each image, less its own mean and divided by its own deviation."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        top, left = ((side - self.size) // 2 for side in x.shape[-2:])
        middle = x[..., top : top + self.size, left : left + self.size]
        pixels = middle.flatten(1)
        mean, deviation = (value[:, None, None, None] for value in (pixels.mean(1), pixels.std(1, correction=0)))
        return (middle - mean) / deviation.clamp(min=_FLAT)


def _dp_cropped_cnn(
    input_shape: Shape, n_classes: int, crop: int = 24, channels: int = 64, hidden: int = 384
) -> nn.Module:
    """Two 5×5 convolutions, each with pooling, and two hidden layers, on the middle of an image: the network of Abadi
    et al. 2016 for CIFAR-10. With `frozen: 8` the dense layers alone are trained, as there."""
    if len(input_shape) != 3 or min(input_shape[1:]) < crop:
        raise ConfigError(f"model = 'cropped_cnn': needs images of {crop} pixels or more, not {input_shape}")
    layers: list[nn.Module] = [OneByOne(crop)]
    for planes in (input_shape[0], channels):
        layers += [nn.Conv2d(planes, channels, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
    body = nn.Sequential(*layers, nn.Flatten())
    return _with_head(body, input_shape, [hidden, hidden], n_classes)


def _dp_deep_cnn(
    input_shape: Shape, n_classes: int, channels: int = 32, hidden: int = 128, activation: str = "tanh"
) -> nn.Module:
    """Three pairs of 3×3 convolutions: 550,570 parameters on CIFAR-10 (Papernot et al. 2021)."""
    if len(input_shape) != 3:
        raise ConfigError(f"model = 'deep_cnn': needs images, not inputs of shape {input_shape}")
    act = partial(_activation, activation)
    layers: list[nn.Module] = []
    planes = input_shape[0]
    for width in (channels, 2 * channels, 4 * channels):
        layers += [nn.Conv2d(planes, width, 3, padding=1), act(), nn.Conv2d(width, width, 3, padding=1), act()]
        layers.append(nn.MaxPool2d(2))
        planes = width
    return _with_head(nn.Sequential(*layers, nn.Flatten()), input_shape, [hidden], n_classes, act)


def _with_head(
    body: nn.Sequential,
    input_shape: Shape,
    hidden: Sequence[int],
    n_classes: int,
    act: Callable[[], nn.Module] = nn.ReLU,
) -> nn.Module:
    with torch.no_grad():
        width = body(torch.zeros(1, *input_shape)).shape[1]
    layers = list(body)
    for size in hidden:
        layers += [nn.Linear(width, size), act()]
        width = size
    return nn.Sequential(*layers, nn.Linear(width, n_classes))


FOR_DP_SGD: dict[str, Callable[..., nn.Module]] = {
    "linear": _dp_linear,
    "mlp": _dp_mlp,
    "cnn": _dp_cnn,
    "feature_cnn": _dp_feature_cnn,
    "cropped_cnn": _dp_cropped_cnn,
    "deep_cnn": _dp_deep_cnn,
}
"""Networks that DP-SGD can train, by the name that a config gives them."""


def resolve_device(device: str, key: str = "device") -> torch.device:
    """'auto' is CUDA where there is one: in a worker, the GPU that Ray gave it. `key` is where the config names it."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.device(device)
    except RuntimeError:
        raise ConfigError(f"{key} = {device!r}: use auto, cpu or cuda") from None


def device_anew(device: str) -> str:
    """The device of something that was trained elsewhere, and may not be here: unless it is the CPU, 'auto'."""
    return "cpu" if device == "cpu" else "auto"


def example_tensor(
    X: ArrayLike,
    device: torch.device | str = "cpu",
    *,
    standard: tuple[NDArray[np.float32], NDArray[np.float32]] | None = None,
    images: bool = True,
    memory_format: torch.memory_format = torch.channels_last,
) -> Tensor:
    """Examples as float32 on `device`, with `standard` (mean, scale) less the mean and divided by the scale.

    `images` says that three or four dimensions are images (count × height × width, or × channels): they become planes,
    count × channels × height × width. In memory their channels come last, which is fastest on a CPU.
    """
    X = np.require(X, np.float32, ["C", "W"])  # arrays from Ray are read-only: copied
    tensor = torch.from_numpy(
        X.copy() if min(X.strides, default=0) < 0 else X
    )  # torch takes no row of a reversed array
    if standard is not None:
        mean, scale = map(torch.from_numpy, standard)
        tensor = (tensor - mean) / scale
    if images and tensor.ndim in (3, 4):
        tensor = tensor.unsqueeze(1) if tensor.ndim == 3 else tensor.permute(0, 3, 1, 2)
        tensor = tensor.contiguous(memory_format=memory_format)
    return tensor.to(device)
