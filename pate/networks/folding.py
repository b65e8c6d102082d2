"""Trained networks made quicker for one image at a time: what is fixed once training is over is worked out beforehand.

Every image goes through the same operations in the same order, the first as well as the thousandth: nothing here
profiles a few calls and then changes its mind, as torch's just-in-time compiler may.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

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
