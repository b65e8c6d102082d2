"""A frozen network, whose last layer but one gives the features."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from pate.components._registry import found_file, import_dotted
from pate.errors import ConfigError, DataError, first_line

_CLOSE = 1e-3  # relative to the largest feature


def folded(network: nn.Module, example: torch.Tensor) -> nn.Module:
    """A network in evaluation that gives what `network` gives up to rounding, as `example` is there to check; or
    `network` itself where its code cannot be followed.

    Batch norms are folded into the convolutions before them, margins of zeros become the convolution's own, and
    activations overwrite what only they read. Weights are laid out channels last.
    """
    network = network.eval()
    with torch.inference_mode():
        expected = network(example)
    try:
        quicker = _folded(network).to(memory_format=torch.channels_last)
        with torch.inference_mode():
            found = quicker(example.contiguous(memory_format=torch.channels_last))
            right = bool((found - expected).abs().max() <= _CLOSE * expected.abs().max())
    except Exception:  # somebody else's forward may do anything, and then stays as it is
        return network
    return quicker if right else network


def _folded(network: nn.Module) -> fx.GraphModule:
    graph = fx.Tracer().trace(network)
    module = fx.GraphModule(network, graph)  # weights are shared with `network`, modules that change are new ones
    _name_convolutions(module)
    for node in list(graph.nodes):
        if _is(module, node, nn.BatchNorm2d):
            _fold_batch_norm(module, node)
        elif _is(module, node, nn.Conv2d):
            _fold_margin(module, node)
    for node in list(graph.nodes):
        if _is(module, node, nn.ReLU, nn.ReLU6) and _only_reader(node) and _is(module, node.args[0], nn.Conv2d):
            _replace(module, node, type(module.get_submodule(node.target))(inplace=True))
    graph.eliminate_dead_code()
    module.delete_all_unused_submodules()
    graph.lint()
    module.recompile()
    return module


def _name_convolutions(module: fx.GraphModule) -> None:
    """Calls of conv2d, which classes derived from Conv2d make in their forward, become modules of that class."""
    order = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
    for node in list(module.graph.nodes):
        if node.op != "call_function" or node.target is not torch.conv2d:
            continue
        given: dict[str, Any] = dict(zip(order, node.args, strict=False)) | dict(node.kwargs)
        weight, bias = (_value(module, given.get(name)) for name in ("weight", "bias"))
        if weight is None or any(isinstance(given.get(name), fx.Node) for name in order[3:]):
            continue
        settings = {name: given[name] for name in order[3:] if name in given}
        conv = _convolution(weight, bias, **settings)
        with module.graph.inserting_before(node):
            call = module.graph.call_module(_add(module, conv), (given["input"],))
        node.replace_all_uses_with(call)
        module.graph.erase_node(node)


def _fold_batch_norm(module: fx.GraphModule, node: fx.Node) -> None:
    source: Any = node.args[0]
    norm: Any = module.get_submodule(str(node.target))
    if not (_is(module, source, nn.Conv2d) and _only_reader(node)) or norm.running_mean is None:
        return
    conv: Any = module.get_submodule(source.target)
    if conv.padding_mode != "zeros":
        return
    weight, bias = fuse_conv_bn_weights(
        conv.weight, conv.bias, norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias
    )
    _replace(module, source, _convolution(weight, bias, conv.stride, conv.padding, conv.dilation, conv.groups))
    node.replace_all_uses_with(source)
    module.graph.erase_node(node)


def _fold_margin(module: fx.GraphModule, node: fx.Node) -> None:
    source: Any = node.args[0]
    conv: Any = module.get_submodule(str(node.target))
    if not (_is(module, source, nn.ZeroPad2d) and _only_reader(node)) or isinstance(conv.padding, str):
        return
    margin: Any = module.get_submodule(source.target)
    left, right, top, bottom = margin.padding
    if left != right or top != bottom or conv.padding_mode != "zeros":
        return
    padding = (conv.padding[0] + top, conv.padding[1] + left)
    _replace(module, node, _convolution(conv.weight, conv.bias, conv.stride, padding, conv.dilation, conv.groups))
    node.args = source.args
    module.graph.erase_node(source)


def _convolution(
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> nn.Conv2d:
    out, within, height, width = weight.shape
    with torch.device("meta"):
        conv = nn.Conv2d(within * groups, out, (height, width), stride, padding, dilation, groups, bias is not None)
    conv.weight = nn.Parameter(weight.detach(), requires_grad=False)
    conv.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)
    return conv.eval()


def _is(module: fx.GraphModule, node: Any, *kinds: type[nn.Module]) -> bool:
    """Whether a node calls a module of exactly one of these classes, with one argument."""
    if not isinstance(node, fx.Node) or node.op != "call_module" or len(node.args) != 1:
        return False
    return type(module.get_submodule(str(node.target))) in kinds


def _only_reader(node: fx.Node) -> bool:
    return len(node.args[0].users) == 1  # type: ignore[union-attr]


def _value(module: fx.GraphModule, node: Any) -> torch.Tensor | None:
    if not isinstance(node, fx.Node) or node.op != "get_attr":
        return None
    found: torch.Tensor = operator.attrgetter(str(node.target))(module)
    return found


def _replace(module: fx.GraphModule, node: fx.Node, by: nn.Module) -> None:
    """This call only: a module that is called in several places stays what it is in the others."""
    node.target = _add(module, by)


def _add(module: fx.GraphModule, part: nn.Module) -> str:
    name = f"folded_{sum(1 for _ in module.children())}"
    module.add_submodule(name, part)
    return name


_BLOCK = 4  # a CPU is half as quick with 128, whose activations are in no cache any more
_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's, as torchvision's networks expect
_LAST_LAYERS = ("fc", "_fc", "classifier", "head", "heads")  # what networks call the layer that names classes

Channels = float | Sequence[float]


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

    def __init__(
        self,
        weights: str,
        network: str = "resnet18",
        size: int = 64,
        network_params: Mapping[str, Any] | None = None,
        layer: str | None = None,
        mean: Channels = _MEAN,
        deviation: Channels = _DEVIATION,
    ) -> None:
        if not 1 <= size <= 4096:
            raise ValueError(f"size = {size}: must be 1 to 4096 pixels")
        self.mean, self.deviation = _channels(mean, "mean"), _channels(deviation, "deviation")
        if not (self.deviation > 0).all():
            raise ValueError(f"deviation = {deviation}: must be above 0")
        self._file = found_file(weights)
        if self._file is None:
            raise ConfigError(
                f"features: weights = {weights!r}: no such file beside the config, nor in the working directory; "
                f"give a safetensors file of {network}"
            )
        self.weights = weights
        self.network = network
        self.size = size
        self.network_params = dict(network_params or {})
        self.layer = layer
        self._maker()  # a class that is missing, or not trusted, is told at once
        self._model: Any = None

    def transform(self, X: NDArray) -> NDArray[np.float32]:
        import torch
        from torch.nn.functional import interpolate

        X = np.asarray(X, dtype=np.float32)
        if X.ndim not in (3, 4) or X.shape[3:] not in ((), (1,), (3,)):
            raise DataError(f"pretrained needs images, grey or of three planes, not examples of shape {X.shape[1:]}")
        model = self._loaded()
        mean, deviation = (torch.from_numpy(v).view(1, 3, 1, 1) for v in (self.mean, self.deviation))
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

                model = torchvision.models.get_model(self.network, weights=None, **self.network_params)
            else:
                model = maker(**self.network_params)
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


def _channels(value: Channels, key: str) -> NDArray[np.float32]:
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
