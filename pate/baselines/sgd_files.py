"""Files of DP-SGD: the state of a run that is under way, and weights that public data gave. Neither holds code."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from pate.baselines.sgd_accounting import History
from pate.components.registry import found_file
from pate.errors import ConfigError, RunError
from pate.storage.files import write_atomically

Noted = tuple[int, dict[str, float]]
"""After how many steps which share of which examples was right."""


def save_state(
    path: Path,
    digest: str,
    network: torch.nn.Module,
    velocity: Sequence[torch.Tensor],
    fixed: Mapping[str, NDArray],
    step: int,
    history: History,
    curve: Sequence[Noted] = (),
) -> None:
    """Weights, momentum, preparation, the accountant's history and what was noted in one file: all of it or none."""
    tensors = {f"w.{name}": tensor.cpu().contiguous() for name, tensor in network.state_dict().items()}
    tensors |= {f"v.{i}": speed.cpu() for i, speed in enumerate(velocity)}
    tensors |= {name: torch.from_numpy(array) for name, array in fixed.items()}
    about = {"digest": digest, "step": str(step), "history": json.dumps(history), "curve": json.dumps(curve)}
    write_atomically(path, lambda partial: save_file(tensors, partial, about))


def load_state(path: Path, digest: str) -> tuple[dict[str, torch.Tensor], int, History, list[Noted]]:
    """All tensors by name, the steps done, the accountant's history and what was noted, if settings are the same."""
    with safe_open(path, framework="pt") as file:
        about = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if about["digest"] != digest:
        raise RunError(f"{path}: was begun with other settings; start a new run")
    history = [(float(sigma), float(rate), int(steps)) for sigma, rate, steps in json.loads(about["history"])]
    curve = [(int(step), shares) for step, shares in json.loads(about.get("curve", "[]"))]
    return tensors, int(about["step"]), history, curve


def load_checkpoint(network: torch.nn.Module, path: str) -> None:
    """Weights that public data gave."""
    try:
        network.load_state_dict(load_file(found_file(path) or path))
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"checkpoint = {path!r}: cannot be read ({error})") from None
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"checkpoint = {path!r}: does not fit the network: {reason[:200]}") from None
