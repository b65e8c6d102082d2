"""A student on disk: `student.json`, its model card, and its weights as safetensors (networks) or skops (the rest).

Neither format runs code when it is read, and nothing that a file names is imported unless it is a class of this
package's or scikit-learn's, or the person who loads says so by name (`trust`).
"""

from __future__ import annotations

import json
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pate.components.registry import importing_only, make_importable, nearest, require_trusted, untrusted_error
from pate.errors import NotTrusted, RunError, first_line
from pate.mechanisms import UNANSWERED
from pate.runs.files import OBJECT, STUDENT_CARD, TENSORS
from pate.runs.signatures import is_own, is_signed, read_student
from pate.storage.files import make_folder, read_model_card, regular_file, sizes, write_atomically
from pate.students import own_students
from pate.students._neural import NeuralStudent
from pate.students.supervised import Supervised
from pate.teachers import build_estimator
from pate.teachers.network import Network
from pate.teachers.part import PartClassifier

if TYPE_CHECKING:
    from pate.runs.run import Run

_WRAPPER_OF_TORCH = "sklearn.externals.array_api_compat.torch"
_HARMLESS = frozenset({"pate.teachers.balanced.Balanced"}) | frozenset(
    f"sklearn.{name}"
    for name in (
        "calibration._CalibratedClassifier",
        "calibration._SigmoidCalibration",
        "gaussian_process._gpc._BinaryGaussianProcessClassifierLaplace",
        "gaussian_process.kernels.ConstantKernel",
        "gaussian_process.kernels.Product",
        "gaussian_process.kernels.RBF",
        "neural_network._stochastic_optimizers.AdamOptimizer",
        "neural_network._stochastic_optimizers.SGDOptimizer",
    )
)
"""Plain Python classes, ours and scikit-learn's, that classifiers hold and skops does not list as known. Trees are not
among them: their compiled code does not check a file's node numbers, and may crash on crafted ones."""


def save_student(student: Any, folder: Path, card: dict[str, Any]) -> None:
    """Write the student; `card` says what it is and what it cost (classes, ε, δ, mechanism). Replaces an older one."""
    make_folder(folder)
    content = {"student": _name(student), "params": student.get_params(), **_write_weights(student, folder), **card}
    text = json.dumps(content, indent=2, default=str) + "\n"
    write_atomically(folder / STUDENT_CARD, lambda path: path.write_text(text), mode=0o644)


def load_student(folder: Path | str, trust: Iterable[str] = ()) -> Any:
    """A saved student, ready to predict.

    The folder may come from anybody: students, networks and scikit-learn classifiers of a known kind are read, and
    sizes are checked before memory is taken. `trust` names what else may be imported ("module.Class"): a student,
    network or estimator class of somebody's own, or a further type in a skops file.
    """
    return _loaded(Path(folder), frozenset(trust))


def load_own_student(run: Run, folder: Path) -> Any:
    """The student in `folder`, whatever it is made of, if it is the one that this run wrote; else None.

    Classes of the user's own may be in files beside the config that the run was begun with.
    """
    content = read_student(folder)
    if not is_signed(run, folder, content):
        return None
    if is_own(run):
        make_importable(run.places[1])
    with tempfile.TemporaryDirectory(prefix="pate-") as copy:  # the very bytes that were checked
        for name, data in content.items():
            (Path(copy) / name).write_bytes(data)
        return _loaded(Path(copy), None, folder)


def _loaded(place: Path, trusted: frozenset[str] | None, folder: Path | None = None) -> Any:
    """The student in `place`, of which errors say that it is in `folder`.

    `trusted` is None for what a run has written itself: then whatever it names is imported.
    """
    card, folder = load_card(place), folder or place
    try:
        with importing_only(trusted) if trusted is not None else nullcontext():
            student = _restored(card, place, trusted)
            _check_labels(student, card)
            return student
    except NotTrusted as error:
        raise NotTrusted(f"{folder}: {error.text()}", **error.arguments) from None
    except FileNotFoundError as error:
        raise RunError(f"{error.filename or folder}: missing; copy the whole student folder") from None
    except ImportError as error:  # of what was trusted
        raise RunError(f"{folder}: {first_line(error)}; is the folder of that module on PYTHONPATH?") from None
    except Exception as error:  # whatever somebody wrote there
        raise RunError(f"{folder}: damaged ({type(error).__name__}: {first_line(error)[:200]})") from None


def load_card(folder: Path) -> dict[str, Any]:
    """What `student.json` says: classes, how the input is written, ε, δ, mechanism."""
    try:
        return read_model_card(folder / STUDENT_CARD, "student", object)
    except FileNotFoundError:
        raise RunError(f"{folder}: there is no student; name the folder of a finished run, or its student/") from None
    except (OSError, ValueError) as error:
        raise RunError(f"{folder}: no readable student there ({first_line(error)})") from None


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
    if student.decision == "balanced":
        learned = {"present": present, "class_shares": student.class_shares_.tolist()}
    else:
        learned = {"present": present}
    if isinstance(adapter.estimator, Network):
        _save_tensors(adapter.estimator.weights(), folder)
        network = {"classes": adapter.estimator.classes_.tolist(), "shape": adapter.estimator.shape_}
        return learned | {"network": network}
    _save_object(adapter.estimator, folder)
    return learned


def _restored(card: dict[str, Any], folder: Path, trusted: frozenset[str] | None) -> Any:
    name = card["student"]
    if name not in own_students():
        if not isinstance(name, str) or "." not in name:
            raise ValueError(
                f"student = {str(name)[:50]!r}: no such student; {nearest(str(name)[:50], own_students())}"
            )
        require_trusted(name, "student")
        return _load_object(folder, trusted)
    student = own_students()[name](**card["params"])
    if isinstance(student, NeuralStudent):
        from pate.networks.tensors import device_anew

        student.device = device_anew(student.device)
        learned = card["learned"]
        _whole_numbers(learned["classes"], "classes")
        sizes(learned["shape"], "shape")
        return student.restore(_load_tensors(folder) if len(learned["classes"]) >= 2 else {}, learned)
    assert isinstance(student, Supervised)
    present = _whole_numbers(card["present"], "present")
    student.prepared_ = student.transforms()
    student.classifier_ = PartClassifier(_restored_estimator(student, card, folder, trusted))
    student.classes_ = student.classifier_.present_ = np.asarray(present, dtype=np.int64)
    if student.decision not in ("likeliest", "balanced"):
        raise ValueError("decision: must be 'likeliest' or 'balanced'")
    if student.decision == "balanced" and len(present) >= 2:
        student.class_shares_ = _class_shares(card.get("class_shares"), len(present))
    return student


def _class_shares(values: Any, number: int) -> NDArray[np.float64]:
    if not isinstance(values, list) or len(values) != number:
        raise ValueError("class_shares: must have one number for each class that is present")
    if not all(type(value) in (int, float) and 0 < value <= 1 for value in values):
        raise ValueError("class_shares: must be numbers above 0 and at most 1")
    return np.asarray(values, dtype=np.float64)


def _restored_estimator(student: Supervised, card: dict[str, Any], folder: Path, trusted: frozenset[str] | None) -> Any:
    """The classifier within a supervised student; None where it saw one class only."""
    fresh: Any = build_estimator(student.estimator, student.params or {}, student.random_state, "params.estimator")
    if len(card["present"]) < 2:
        return None
    if not isinstance(fresh, Network):
        return _load_object(folder, trusted)
    from pate.networks.tensors import device_anew

    fresh.device = device_anew(fresh.device)
    classes, shape = card["network"]["classes"], card["network"]["shape"]
    if not all(UNANSWERED <= label < len(card["present"]) for label in _whole_numbers(classes, "network.classes")):
        raise ValueError("network.classes: more of them than are present")
    return fresh.restore(_load_tensors(folder), classes, sizes(shape, "network.shape"))


def _check_labels(student: Any, card: dict[str, Any]) -> None:
    """Raise ValueError unless the student can predict and its card names every class that it knows."""
    if not callable(getattr(student, "predict", None)):
        raise ValueError(f"a {type(student).__name__} cannot predict")
    if "classes" in card and not all(0 <= label < len(card["classes"]) for label in getattr(student, "classes_", ())):
        raise ValueError("it answers with classes that its card does not name")


def _whole_numbers(values: Any, key: str) -> list[int]:
    if not isinstance(values, list) or any(type(value) is not int or abs(value) >= 2**62 for value in values):
        raise ValueError(f"{key}: must be a list of whole numbers")
    if not values or len(set(values)) < len(values):
        raise ValueError(f"{key}: must hold at least one number, and none twice")
    return values


def _save_tensors(tensors: dict[str, Any], folder: Path) -> None:
    from safetensors.torch import save_file

    save_file(tensors, folder / TENSORS)
    (folder / TENSORS).chmod(0o644)  # like the card beside it


def _load_tensors(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    from pate.networks.stored import check_values

    tensors: dict[str, Any] = load_file(regular_file(folder / TENSORS))
    check_values(tensors)
    return tensors


def imported_skops() -> Any:
    """`skops.io` without torch: it has scikit-learn look through all its packages, and one is a wrapper of torch, which
    takes seconds to import."""
    blocked = _WRAPPER_OF_TORCH not in sys.modules and "torch" not in sys.modules
    if blocked:
        sys.modules[_WRAPPER_OF_TORCH] = None  # type: ignore[assignment]  # an import of it fails
    try:
        import skops.io

        return skops.io
    finally:
        if blocked:
            del sys.modules[_WRAPPER_OF_TORCH]


def _save_object(thing: Any, folder: Path) -> None:
    imported_skops().dump(thing, folder / OBJECT)
    (folder / OBJECT).chmod(0o644)


def _load_object(folder: Path, trusted: frozenset[str] | None) -> Any:
    skops = imported_skops()
    path = regular_file(folder / OBJECT)
    _refuse_archive_bombs(path)
    unknown = set(skops.get_untrusted_types(file=path)) - _HARMLESS
    if trusted is not None and unknown - trusted:
        raise untrusted_error(unknown - trusted, OBJECT)
    return skops.load(path, trusted=sorted(unknown | _HARMLESS))


def _refuse_archive_bombs(path: Path) -> None:
    """Archives are written uncompressed here, so that what is read cannot be much larger than the file."""
    with zipfile.ZipFile(path) as archive:
        if sum(entry.file_size for entry in archive.infolist()) > path.stat().st_size:
            raise ValueError(f"{path.name} is compressed, or its parts overlap")
