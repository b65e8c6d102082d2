"""A student on disk: `student.json`, and its weights as safetensors (networks) or skops (scikit-learn).

Neither format runs code when it is read.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from pate.errors import RunError
from pate.students.supervised import Supervised
from pate.teachers import build_estimator
from pate.teachers.network import Network
from pate.teachers.part import PartClassifier


def save_student(student: Supervised, folder: Path, card: dict[str, Any]) -> None:
    """Write the student; `card` says what it is and what it cost (classes, ε, δ, mechanism). Replaces an older one."""
    folder.mkdir(exist_ok=True)
    adapter = student.classifier_
    content = {
        "student": "supervised",
        "params": student.get_params(),
        "present": adapter.present_.tolist(),
        **card,
    }
    inner = adapter.estimator
    if len(adapter.present_) >= 2 and isinstance(inner, Network):
        from safetensors.torch import save_file

        content |= {"network": {"classes": inner.classes_.tolist(), "shape": inner.shape_}}
        save_file(inner.weights(), folder / "model.safetensors")
    elif len(adapter.present_) >= 2:
        import skops.io

        skops.io.dump(inner, folder / "model.skops")
    temporary = folder / "student.json.partial"
    temporary.write_text(json.dumps(content, indent=2) + "\n")
    temporary.rename(folder / "student.json")


def load_student(folder: Path | str, trusted: list[str] | None = None) -> Supervised:
    """A saved student, ready to predict. `trusted` lists further types that a skops file may hold."""
    folder = Path(folder)
    try:
        content = json.loads((folder / "student.json").read_text())
    except (OSError, ValueError) as error:
        raise RunError(f"{folder}: no readable student there ({error})") from None
    student = Supervised(**content["params"])
    adapter = PartClassifier(_inner(student, folder, content, trusted or []))
    adapter.present_ = np.asarray(content["present"], dtype=np.int64)
    student.classifier_ = adapter
    return student


def _inner(student: Supervised, folder: Path, content: dict[str, Any], trusted: list[str]) -> BaseEstimator | None:
    if len(content["present"]) < 2:
        return None
    if "network" in content:
        from safetensors.torch import load_file

        network = build_estimator(student.estimator, student.params or {}, student.random_state, "student")
        assert isinstance(network, Network)
        return network.restore(load_file(folder / "model.safetensors"), **content["network"])
    import skops.io

    unknown = set(skops.io.get_untrusted_types(file=folder / "model.skops")) - set(trusted)
    if unknown:
        raise RunError(f"{folder}: holds types that are not known to be safe: {', '.join(sorted(unknown))}")
    return skops.io.load(folder / "model.skops", trusted=trusted)
