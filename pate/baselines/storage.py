"""A baseline's released model on disk: `model.safetensors` and `model.json`; neither runs code when it is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from pate.baselines import build_baseline
from pate.errors import RunError
from pate.files import write_atomically


def save_model(model: Any, folder: Path, name: str, params: dict[str, Any], card: dict[str, Any]) -> None:
    """Weights, and a card that says what they are, how inputs are written and what they cost."""
    weights = {key: np.ascontiguousarray(tensor) for key, tensor in model.weights().items()}
    card = card | {
        "baseline": {"name": name, "params": params},
        "n_records": model.n_records,
        "random_state": model.random_state,
        "restore": model.describe(),
        "epsilon": model.epsilon_,
        "delta": model.delta_,
    }
    folder.mkdir(exist_ok=True)
    write_atomically(folder / "model.safetensors", lambda path: save_file(weights, path), mode=0o644)
    write_atomically(folder / "model.json", lambda path: path.write_text(json.dumps(card, indent=2) + "\n"), mode=0o644)


def load_model(folder: Path | str) -> Any:
    """The released model, ready to predict positions in its card's `classes`."""
    folder = Path(folder)
    try:
        card = json.loads((folder / "model.json").read_text())
        weights = load_file(folder / "model.safetensors")
        given = {key: card[key] for key in ("epsilon", "delta", "n_records", "random_state")}
        given["classes"] = range(len(card["classes"]))
        model = build_baseline(card["baseline"]["name"], card["baseline"]["params"], given)
        return model.restore(weights, card["restore"])
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise RunError(f"{folder}: no readable model there ({error})") from None
