"""A baseline's release on disk: first stored inside the boundary with its charge, then published from there.

What is published is `model.safetensors` and `model.json`; neither runs code when it is read, and nothing that they name
is imported unless it is ours, or the person who loads trusts it by name.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save, save_file

from pate.baselines import build_baseline
from pate.components.registry import importing_only
from pate.errors import NotTrusted, RunError, first_line
from pate.runs.files import MODEL_CARD, TENSORS
from pate.storage.files import make_folder, read_card, read_model_card, regular_file, write_atomically

_ABOUT = "release"


@dataclass(frozen=True)
class ModelRelease:
    """What one training releases: weights, and a card that says what they are, how inputs are written, what they cost.

    `curve` is what a benchmark's training noted on its way.
    """

    weights: dict[str, NDArray]
    card: dict[str, Any]
    curve: list[Any]

    @classmethod
    def of(cls, model: Any, name: str, params: dict[str, Any], card: dict[str, Any]) -> ModelRelease:
        """The release of a fitted baseline that is known by `name` and `params`; `card` is what else users need."""
        weights = {key: np.ascontiguousarray(tensor) for key, tensor in model.weights().items()}
        card = card | {
            "baseline": {"name": name, "params": params},
            "n_records": model.n_records,
            "random_state": model.random_state,
            "restore": model.describe(),
            "epsilon": model.epsilon_,
            "delta": model.delta_,
        }
        return cls(weights, card, list(getattr(model, "curve_", ())))

    def to_bytes(self) -> bytes:
        """Weights and charge as one file, so that neither is ever stored without the other."""
        about = json.dumps({"card": self.card, "curve": self.curve})
        content: bytes = save(self.weights, {_ABOUT: about})
        return content

    @classmethod
    def read(cls, path: Path) -> ModelRelease:
        """What was stored; RunError if the file is damaged."""
        try:
            with safe_open(path, framework="np") as file:
                about = json.loads(file.metadata()[_ABOUT])
                weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return cls(weights, dict(about["card"]), list(about["curve"]))
        except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
            raise RunError(
                f"{path}: what was paid for cannot be read ({type(error).__name__}); begin a new run"
            ) from None

    def restore(self, model: Any) -> Any:
        """`model`, built with the same settings, as it was when it had been trained."""
        model.restore(self.weights, self.card["restore"])
        model.epsilon_, model.delta_ = self.card["epsilon"], self.card["delta"]
        model.curve_ = self.curve
        return model

    def publish(self, folder: Path) -> None:
        """Write the files that may leave."""
        card = json.dumps(self.card, indent=2) + "\n"
        make_folder(folder)
        write_atomically(folder / TENSORS, lambda path: save_file(self.weights, path), mode=0o644)
        write_atomically(folder / MODEL_CARD, lambda path: path.write_text(card), mode=0o644)


def load_card(folder: Path) -> dict[str, Any]:
    """What `model.json` says: classes, how the input is written, ε, δ."""
    try:
        return read_model_card(folder / MODEL_CARD, "baseline", dict)
    except (OSError, ValueError) as error:
        raise RunError(f"{folder}: no readable model there ({first_line(error)})") from None


def load_model(folder: Path | str, trust: Iterable[str] = ()) -> Any:
    """The released model, ready to predict positions in its card's `classes`.

    The folder may come from anybody; `trust` names what it may import beside our own classes ("module.Class").
    """
    folder = Path(folder)
    try:
        card = read_card(folder / MODEL_CARD)
        weights = load_file(regular_file(folder / TENSORS))
        given = {key: card[key] for key in ("epsilon", "delta", "n_records", "random_state")}
        given["classes"] = range(len(card["classes"]))
        with importing_only(trust):
            model = build_baseline(card["baseline"]["name"], card["baseline"]["params"], given)
            return model.restore(weights, card["restore"])
    except NotTrusted as error:
        raise NotTrusted(f"{folder}: {error.text()}", **error.arguments) from None
    except Exception as error:  # whatever somebody wrote there
        raise RunError(
            f"{folder}: no readable model there ({type(error).__name__}: {first_line(error)[:200]})"
        ) from None
