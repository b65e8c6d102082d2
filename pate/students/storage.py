"""A student on disk: `student.json`, its model card, and its weights as safetensors (networks) or skops (the rest).

Neither format runs code when it is read, and nothing that the JSON names is imported.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from pate.errors import RunError
from pate.students import own_students
from pate.students._neural import NeuralStudent
from pate.students.supervised import Supervised
from pate.teachers.network import Network
from pate.teachers.part import PartClassifier

_TENSORS, _OBJECT = "model.safetensors", "model.skops"


def save_student(student: Any, folder: Path, card: dict[str, Any]) -> None:
    """Write the student; `card` says what it is and what it cost (classes, ε, δ, mechanism). Replaces an older one."""
    folder.mkdir(exist_ok=True)
    content = {"student": _name(student), "params": student.get_params(), **_write_weights(student, folder), **card}
    temporary = folder / "student.json.partial"
    temporary.write_text(json.dumps(content, indent=2, default=str) + "\n")
    temporary.rename(folder / "student.json")


def load_student(folder: Path | str, trusted: list[str] | None = None) -> Any:
    """A saved student, ready to predict. `trusted` lists further types that a skops file may hold."""
    folder = Path(folder)
    content = load_card(folder)
    try:
        return _restored(content, folder, trusted or [])
    except FileNotFoundError as error:
        raise RunError(f"{error.filename or folder}: missing; copy the whole student folder") from None
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, OSError, EOFError) as error:
        raise RunError(f"{folder}: damaged ({type(error).__name__}: {str(error).splitlines()[0][:100]})") from None


def load_card(folder: Path) -> dict[str, Any]:
    """What `student.json` says: classes, how the input is written, ε, δ, mechanism."""
    try:
        content = json.loads((folder / "student.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"{folder}: no readable student there ({error})") from None
    if not isinstance(content, dict) or "student" not in content:
        raise RunError(f"{folder}: no readable student there (student.json is not a model card)")
    return content


def _name(student: Any) -> str:
    cls = type(student)
    return next((name for name, own in own_students().items() if own is cls), f"{cls.__module__}.{cls.__qualname__}")


def _write_weights(student: Any, folder: Path) -> dict[str, Any]:
    """Store what was learned; returns what of it goes into the JSON."""
    if isinstance(student, NeuralStudent):
        _save_tensors(student.weights(), folder)
        return {"learned": student.learned()}
    if not isinstance(student, Supervised):
        _save_object(student, folder)
        return {}
    adapter = student.classifier_
    present = adapter.present_.tolist()
    if len(present) < 2:
        return {"present": present}
    if isinstance(adapter.estimator, Network):
        _save_tensors(adapter.estimator.weights(), folder)
        network = {"classes": adapter.estimator.classes_.tolist(), "shape": adapter.estimator.shape_}
        return {"present": present, "network": network}
    _save_object(adapter.estimator, folder)
    return {"present": present}


def _restored(content: dict[str, Any], folder: Path, trusted: list[str]) -> Any:
    cls = own_students().get(content["student"])
    if cls is None:
        return _load_object(folder, trusted)
    student = cls(**content["params"])
    if isinstance(student, NeuralStudent):
        return student.restore(_load_tensors(folder), content["learned"])
    assert isinstance(student, Supervised)
    inner: Any = None
    if "network" in content:
        inner = Network(**(student.params or {})).restore(_load_tensors(folder), **content["network"])
    elif len(content["present"]) >= 2:
        inner = _load_object(folder, trusted)
    student.classifier_ = PartClassifier(inner)
    student.classifier_.present_ = np.asarray(content["present"], dtype=np.int64)
    student.classes_ = student.classifier_.present_
    return student


def _save_tensors(tensors: dict[str, Any], folder: Path) -> None:
    from safetensors.torch import save_file

    save_file(tensors, folder / _TENSORS)


def _load_tensors(folder: Path) -> dict[str, Any]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(folder / _TENSORS)
    except SafetensorError as error:
        raise ValueError(str(error)) from None


def _save_object(thing: Any, folder: Path) -> None:
    import skops.io

    skops.io.dump(thing, folder / _OBJECT)


def _load_object(folder: Path, trusted: list[str]) -> Any:
    import zipfile

    import skops.io

    try:
        unknown = set(skops.io.get_untrusted_types(file=folder / _OBJECT)) - set(trusted)
    except zipfile.BadZipFile as error:
        raise ValueError(str(error)) from None
    if unknown:
        raise RunError(f"{folder}: holds types that are not known to be safe: {', '.join(sorted(unknown))}")
    return skops.io.load(folder / _OBJECT, trusted=trusted)
