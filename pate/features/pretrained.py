"""A frozen network, whose last layer but one gives the features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pate.components._registry import found_file, import_dotted
from pate.errors import ConfigError, DataError, first_line

if TYPE_CHECKING:
    import torch
    from torch import nn

_CLOSE = 1e-3  # relative to the largest feature
_BLOCK = 4  # a CPU is half as quick with 128, whose activations are in no cache any more
_LAST_LAYERS = ("fc", "_fc", "classifier", "head", "heads")  # what networks call the layer that names classes


@dataclass(eq=False)
class Pretrained:
    """Features of a frozen network: what its last layer but one gives.

    Images are resized, and grey ones repeated to three planes.

    Parameters
    ----------
    weights : str
        A safetensors file of the network's state, trained on public data; looked for beside the config, then in
        the working directory.
    network : str, default 'resnet18'
        A torchvision model, or the dotted path of an nn.Module class or of a function that makes one.
    size : int, default 64
        Side in pixels to which images are resized.
    network_params : dict, optional
        Keyword arguments of `network`.
    layer : str, optional
        Name of the module whose input is taken; by default `fc`, `_fc`, or the last layer of `classifier`,
        `head` or `heads`.
    mean : float or three of them
        Subtracted from pixels, which are from 0 to 1; ImageNet's by default.
    deviation : float or three of them
        What they are divided by; ImageNet's by default.
    """

    weights: str
    network: str = "resnet18"
    size: int = 64
    network_params: Mapping[str, Any] | None = None
    layer: str | None = None
    mean: float | Sequence[float] = (0.485, 0.456, 0.406)
    deviation: float | Sequence[float] = (0.229, 0.224, 0.225)

    def __post_init__(self) -> None:
        if not 1 <= self.size <= 4096:
            raise ValueError(f"size = {self.size}: must be 1 to 4096 pixels")
        self._mean, self._deviation = _channels(self.mean, "mean"), _channels(self.deviation, "deviation")
        if not (self._deviation > 0).all():
            raise ValueError(f"deviation = {self.deviation}: must be above 0")
        self._file = found_file(self.weights)
        if self._file is None:
            raise ConfigError(
                f"features: weights = {self.weights!r}: no such file beside the config, nor in the working directory; "
                f"give a safetensors file of {self.network}"
            )
        self._maker()  # a class that is missing, or not trusted, is told at once
        self._model: Any = None

    def transform(self, X: NDArray) -> NDArray[np.float32]:
        import torch
        from torch.nn.functional import interpolate

        X = np.asarray(X, dtype=np.float32)
        if X.ndim not in (3, 4) or X.shape[3:] not in ((), (1,), (3,)):
            raise DataError(f"pretrained needs images, grey or of three planes, not examples of shape {X.shape[1:]}")
        model = self._loaded()
        mean, deviation = (torch.from_numpy(v).view(1, 3, 1, 1) for v in (self._mean, self._deviation))
        blocks = []
        with torch.inference_mode():
            for start in range(0, max(len(X), 1), _BLOCK):
                block = torch.from_numpy(np.array(X[start : start + _BLOCK]))
                planes = block.unsqueeze(1) if block.ndim == 3 else block.permute(0, 3, 1, 2)
                large = interpolate(planes, size=(self.size, self.size), mode="bilinear", antialias=True)
                seen = ((large - mean) / deviation).contiguous(memory_format=torch.channels_last)
                blocks.append(model(seen).flatten(1).numpy())
        return np.concatenate(blocks)

    def _maker(self) -> Any:
        if "." not in self.network:
            return None
        maker = import_dotted(self.network, "features: network")
        if not callable(maker):
            raise ConfigError(f"features: network = {self.network!r}: no class, and no function that makes a network")
        return maker

    def _loaded(self) -> Any:
        if self._model is None:
            import torch

            example = torch.linspace(-1, 1, 3 * self.size**2).view(1, 3, self.size, self.size)
            try:
                model = folded(self._without_last_layer(self._with_weights()), example)
                with torch.inference_mode():
                    shape = model(example).flatten(1).shape
            except ConfigError:
                raise
            except Exception as error:  # somebody else's network may fail in any way
                problem = f"{type(error).__name__}: {first_line(error)}"
                text = f"features: {self.network}: cannot take images of {self.size} pixels ({problem})"
                raise ConfigError(text) from None
            if len(shape) != 2 or shape[0] != 1:
                raise ConfigError(f"features: {self.network}: does not give one row of features per image")
            self._model = model
        return self._model

    def _with_weights(self) -> Any:
        from safetensors.torch import load_file
        from torch import nn

        maker = self._maker()
        try:
            if maker is None:
                import torchvision

                model = torchvision.models.get_model(self.network, weights=None, **(self.network_params or {}))
            else:
                model = maker(**(self.network_params or {}))
        except Exception as error:
            raise ConfigError(f"features: {self.network}: cannot be made ({first_line(error)})") from None
        if not isinstance(model, nn.Module):
            raise ConfigError(f"features: {self.network}: makes a {type(model).__name__}, not an nn.Module")
        try:
            model.load_state_dict(load_file(self._file))
        except Exception as error:
            raise ConfigError(f"features: {self.weights}: does not fit {self.network} ({_shortly(error)})") from None
        return model

    def _without_last_layer(self, model: Any) -> Any:
        from torch import nn

        name = self.layer or next((name for name in _LAST_LAYERS if name in dict(model.named_children())), None)
        if name is None or name not in dict(model.named_modules()):
            raise ConfigError(
                f"features: layer = {self.layer!r}: {self.network} has no such module; name the one to leave out, "
                f"among its last are {', '.join([name for name, _ in model.named_modules() if name][-3:])}"
            )
        found = model.get_submodule(name)
        if self.layer is None and isinstance(found, nn.Sequential):
            name = f"{name}.{list(dict(found.named_children()))[-1]}"
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, nn.Identity())
        return model


def _channels(value: float | Sequence[float], key: str) -> NDArray[np.float32]:
    """One number for each of three planes."""
    try:
        numbers = np.broadcast_to(np.asarray(value, dtype=np.float32), (3,)).copy()
    except (TypeError, ValueError):
        raise ValueError(f"{key} = {value!r}: must be a number, or three") from None
    if not np.isfinite(numbers).all():
        raise ValueError(f"{key} = {value!r}: must be finite")
    return numbers


def _shortly(error: Exception) -> str:
    """The first thing that does not fit: torch lists every tensor, one in a line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[1] if len(lines) > 1 else lines[0] if lines else type(error).__name__)[:200]


def folded(network: nn.Module, example: torch.Tensor) -> nn.Module:
    """A copy of the network in evaluation, with each batch norm folded into the convolution before it and weights laid
    out channels last: it gives the same up to rounding, in up to half of the time. The network itself where the copy
    gives anything else for `example`."""
    import torch
    from torch import nn
    from torch.nn.utils.fusion import fuse_conv_bn_weights

    network = network.eval()
    made: dict[int, tuple[Any, torch.Tensor]] = {}  # outputs are kept, or their ids could be another's
    before: dict[Any, Any] = {}  # the convolution before each batch norm

    def note_output(layer: Any, inputs: Any, output: torch.Tensor) -> None:
        made[id(output)] = layer, output

    def note_input(layer: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        if id(inputs[0]) in made:
            before[layer] = made[id(inputs[0])][0]

    try:
        quicker = deepcopy(network)
        hooks = [part.register_forward_hook(note_output) for part in quicker.modules() if isinstance(part, nn.Conv2d)]
        norms = [part for part in quicker.modules() if type(part) is nn.BatchNorm2d]
        hooks += [norm.register_forward_pre_hook(note_input) for norm in norms]
        with torch.inference_mode():
            expected = quicker(example)
        for hook in hooks:
            hook.remove()
        for norm, conv in before.items():
            conv.weight, conv.bias = fuse_conv_bn_weights(
                conv.weight, conv.bias, norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias
            )
        for parent in list(quicker.modules()):
            for name, part in list(parent.named_children()):
                if part in before:
                    setattr(parent, name, nn.Identity())
        quicker = quicker.to(memory_format=torch.channels_last)
        with torch.inference_mode():
            found = quicker(example.contiguous(memory_format=torch.channels_last))
            right = bool((found - expected).abs().max() <= _CLOSE * expected.abs().max())
    except Exception:  # somebody else's forward may do anything, and then stays as it is
        return network
    return quicker if right else network
