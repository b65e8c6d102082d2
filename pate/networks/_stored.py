"""Tensors as bytes in the safetensors format, which holds no code; and checks of those that came from elsewhere."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pate.storage._files import write_atomically

if TYPE_CHECKING:
    from torch import Tensor, nn

_ABOUT = "pate"


def tensors_to_bytes(tensors: Mapping[str, Any], about: Any = None) -> bytes:
    """Tensors of torch and arrays of numpy by name, with a note that JSON can hold, as one file."""
    metadata = None if about is None else {_ABOUT: json.dumps(about)}
    if all(isinstance(tensor, np.ndarray) for tensor in tensors.values()):
        from safetensors.numpy import save

        return bytes(save({name: np.require(array, requirements="C") for name, array in tensors.items()}, metadata))
    import torch
    from safetensors.torch import save as save_torch

    # copies: safetensors refuses tensors that share memory, as tied weights do
    whole = {name: torch.as_tensor(tensor).detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    return bytes(save_torch(whole, metadata))


def tensors_from_bytes(content: bytes, framework: Literal["pt", "np"] = "pt") -> tuple[dict[str, Any], Any]:
    """What `tensors_to_bytes` was given, as tensors of torch or arrays of numpy; and the note, None if there is none.

    Raises SafetensorError, or ValueError, for anything else.
    """
    if framework == "pt":
        from safetensors.torch import load
    else:
        from safetensors.numpy import load
    tensors: dict[str, Any] = load(content)
    length = int.from_bytes(content[:8], "little")
    about = json.loads(content[8 : 8 + length]).get("__metadata__", {}).get(_ABOUT)
    return tensors, None if about is None else json.loads(about)


def write_tensors(path: Path, tensors: Mapping[str, Any], about: Any) -> None:
    """Write tensors and note to a private file, whole or not at all."""
    write_atomically(path, tensors_to_bytes(tensors, about))


def check_weights(build: Callable[[], nn.Module], weights: Mapping[str, Tensor]) -> None:
    """Raise ValueError unless `weights` are just what the module that `build` makes would hold.

    Sizes come from a file that anybody may have written. So the module is built without memory behind it: a layer
    of 10⁹ units is refused because the file does not hold it, not because memory ran out.
    """
    import torch

    def shapes(tensors: Mapping[str, Tensor]) -> dict[str, str]:
        return {name: f"{tuple(tensor.shape)} of {tensor.dtype}" for name, tensor in tensors.items()}

    with torch.device("meta"):
        expected = shapes(build().state_dict())
    found = shapes(weights)
    if found != expected:
        name = sorted(dict(found.items() ^ expected.items()))[0]
        raise ValueError(f"tensor {name!r} is {found.get(name)}; by the parameters it would be {expected.get(name)}")


def check_values(weights: Mapping[str, Any]) -> None:
    """Raise ValueError for a tensor without elements (its sizes would cost a file nothing), or with NaN or infinity."""
    for name, tensor in weights.items():
        if 0 in tensor.shape:
            raise ValueError(f"tensor {name!r} is empty")
        finite = np.isfinite(tensor) if isinstance(tensor, np.ndarray) else tensor.isfinite()
        if not finite.all():
            raise ValueError(f"tensor {name!r} holds NaN or infinity")
