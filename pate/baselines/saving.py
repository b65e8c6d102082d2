"""A baseline's released model on disk: `model.safetensors` and `model.json`; neither runs code when it is read.

Nothing that they name is imported unless it is ours, or the person who loads trusts it by name.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from pate.baselines import build_baseline
from pate.errors import NotTrusted, RunError, first_line
from pate.naming import importing_only
from pate.runs.files import MODEL_CARD, TENSORS
from pate.storage.files import make_folder, read_card, read_model_card, regular_file, write_atomically


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
    make_folder(folder)
    write_atomically(folder / TENSORS, lambda path: save_file(weights, path), mode=0o644)
    write_atomically(folder / MODEL_CARD, lambda path: path.write_text(json.dumps(card, indent=2) + "\n"), mode=0o644)


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
