"""A model on disk, a student or a baseline's: a card (JSON), and beside it its weights; and how it predicts.

Weights are safetensors (networks and matrices) or skops (scikit-learn's classifiers, and students of somebody's own).

Formal guarantee: neither format runs code when it is read, and nothing that a file names is imported unless it is a
class of this package or scikit-learn's, or the person who loads says so by name (`trust`), or this user signed these
very bytes in the run that they are in (`pate.runs._signatures`).

A model has `weights()`, tensors by name; `learned()`, all else that prediction needs, as plain values; and
`restore(weights, learned)`, which checks that the two belong together. A student whose classifier is scikit-learn's has
it as `stored_estimator`, and takes it as a third argument of `restore`.
"""

from __future__ import annotations

import io
import json
import math
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pate.components._registry import importing_only, make_importable, nearest, require_trusted, untrusted_error
from pate.data._model_input import is_frame
from pate.data.public import PublicRange
from pate.errors import DataError, NotTrusted, PateError, RunError, first_line
from pate.runs._files import MODEL_CARD, OBJECT, STUDENT_CARD, TENSORS
from pate.runs._signatures import is_own, is_signed, read_model_files, sign
from pate.runs.run import Run
from pate.storage._files import check_values, make_folder, sizes, tensors_from_bytes, tensors_to_bytes, write_atomically

if TYPE_CHECKING:
    from pate.data._records import Format
    from pate.data.public import PublicData

_KINDS = {STUDENT_CARD: "student", MODEL_CARD: "baseline"}
"""Under which key each card says what the model is."""

_MAX_CARD_BYTES = 2**26
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


def save_model(model: Any, folder: Path, card: Mapping[str, Any], run: Run | None = None) -> None:
    """Write a fitted model in place of whatever model is there, its card last; in a `run`, signed as this user's.

    `card` says what users need to know: classes, how input is written, ε, δ. That of a baseline also names it, under
    `baseline`, with its `params`.
    """
    files = model_to_files(model, card)
    make_folder(folder)
    for name in {*_KINDS, TENSORS, OBJECT} - files.keys():  # somebody may have left a card of theirs, to be signed
        (folder / name).unlink(missing_ok=True)
    for name, content in files.items():
        write_atomically(folder / name, content, mode=0o644)
    if run is not None:
        sign(run, folder, content=files)


def load_model(folder: Path | str, trust: Iterable[str] = (), run: Run | None = None) -> Any:
    """Load a stored student or baseline, ready to predict: the bare model, whose classes are numbers.

    The folder may come from anybody: students, networks, baselines and scikit-learn's classifiers of a known kind are
    read, and sizes are checked before memory is taken.

    Parameters
    ----------
    folder : path
        A run's `student` or `model`, or a copy of it.
    trust : iterable of str, default=()
        What else may be imported ("module.Class"): a student, network, transform or estimator class of somebody's own,
        or a further type in a skops file.
    run : Run, optional
        The run that the folder is in. What this user has signed there is loaded whatever it is made of; classes of
        the user's own may be in files beside the config that the run was begun with.
    """
    folder = Path(folder)
    content, trusted = _read(folder), frozenset(trust)
    if run is None or not is_signed(run, folder, content):
        return model_from_files(content, folder, trusted)
    if is_own(run):
        make_importable(run.places[1])
    return model_from_files(content, folder, None)


def load_card(folder: Path) -> dict[str, Any]:
    """What the card of a stored model says: classes, how the input is written, ε, δ, mechanism."""
    return _card_in(_read(folder), folder)[0]


def model_to_files(model: Any, card: Mapping[str, Any]) -> dict[str, bytes]:
    """The files of a fitted model by name, the card last."""
    from pate.students import STUDENTS

    files: dict[str, bytes] = {}
    estimator, weights = None, {}
    if "baseline" in card:
        name, weights, about = MODEL_CARD, model.weights(), baseline_card(model)
    else:
        cls, name = type(model), STUDENT_CARD
        own = next((short for short, known in STUDENTS.classes().items() if known is cls), None)
        about = {"student": own or f"{cls.__module__}.{cls.__qualname__}", "params": model.get_params()}
        if own is None:
            estimator = model
        else:
            weights, estimator = model.weights(), getattr(model, "stored_estimator", None)
            about["learned"] = model.learned()
    if weights:
        files[TENSORS] = tensors_to_bytes(weights)
    if estimator is not None:
        files[OBJECT] = _imported_skops().dumps(estimator)
    content = {**about, "files": list(files), **card}
    return files | {name: (json.dumps(content, indent=2, default=str) + "\n").encode()}


def data_card(data: PublicData) -> dict[str, Any]:
    """What a card says of examples and classes: how users write what they ask a model, and what it answers."""
    return {
        "classes": list(data.classes),
        "input": data.input,
        "shape": list(data.X_public.shape[1:]),
        "features": list(data.features) if data.features is not None else None,
        "columns": None if data.columns is None else dict(data.columns),
        "range": None if data.range is None else data.range.on_card(),
    }


def baseline_card(model: Any) -> dict[str, Any]:
    """What the card of a fitted baseline says of how it was made and what it cost."""
    about = {"n_records": model.n_records, "random_state": model.random_state, "learned": model.learned()}
    return about | {"epsilon": model.epsilon_, "delta": model.delta_}


def model_from_files(content: Mapping[str, bytes], where: Path | str, trusted: frozenset[str] | None) -> Any:
    """The model that these files hold; errors say that they are of `where`.

    `trusted` is None for what this user's own run has written: then whatever it names is imported.
    """
    card, kind = _card_in(content, where)
    listed = card.get("files")
    for name in listed if isinstance(listed, list) else ():
        if name in (TENSORS, OBJECT) and name not in content:
            raise RunError(f"{where}/{name}: missing; copy the whole folder")
    try:
        with importing_only(trusted) if trusted is not None else nullcontext():
            model = _restored(card, kind, content, trusted)
            _check_labels(model, card)
            return model
    except NotTrusted as error:
        raise NotTrusted(f"{where}: {error.text()}", **error.arguments) from None
    except ImportError as error:  # of what was trusted
        raise RunError(f"{where}: {first_line(error)}; is the folder of that module on PYTHONPATH?") from None
    except Exception as error:  # whatever somebody wrote there
        raise RunError(f"{where}: damaged ({type(error).__name__}: {first_line(error)[:200]})") from None


def _restored(card: dict[str, Any], kind: str, content: Mapping[str, bytes], trusted: frozenset[str] | None) -> Any:
    from pate.students import STUDENTS

    name, model = card[kind], None
    if kind == "baseline":
        from pate.baselines import build_baseline

        given = {key: card[key] for key in ("epsilon", "delta", "n_records", "random_state")}
        model = build_baseline(name, card["params"], given | {"classes": range(len(card["classes"]))})
    elif name in STUDENTS.classes():
        model = STUDENTS.classes()[name](**card["params"])
    elif "." in name:
        require_trusted(name, kind)
    else:
        raise ValueError(f"student = {name[:50]!r}: no such student; {nearest(name[:50], STUDENTS.classes())}")
    weights: dict[str, Any] = {}
    further = []
    for file in card["files"]:
        if file == TENSORS:
            weights, _ = tensors_from_bytes(content[TENSORS], "np" if kind == "baseline" else "pt")
            check_values(weights)
        elif file == OBJECT:
            further.append(_load_object(content[OBJECT], trusted))
    if model is None:
        return further[0]
    return model.restore(weights, card["learned"], *further)


def _read(folder: Path) -> dict[str, bytes]:
    try:
        return read_model_files(folder)
    except OSError as error:
        raise RunError(f"{folder}: no readable model there ({first_line(error)})") from None


def _card_in(content: Mapping[str, bytes], where: Path | str) -> tuple[dict[str, Any], str]:
    """The card among these files, and the key under which it says what the model is.

    Numbers that JSON cannot hold (NaN, infinity) become None, so that they can be passed on as JSON.
    """
    name = next((name for name in _KINDS if name in content), None)
    if name is None:
        raise RunError(f"{where}: there is no model; name the folder of a finished run, or its student/ or model/")
    try:
        if len(content[name]) > _MAX_CARD_BYTES:
            raise ValueError(f"{name} has more than {_MAX_CARD_BYTES >> 20} MiB")
        card = json.loads(content[name].decode(), parse_float=_finite, parse_constant=_finite)
        if not isinstance(card, dict) or not isinstance(card.get(_KINDS[name]), str):
            raise ValueError(f"{name} is not the card of a {_KINDS[name]}")
        classes = card.get("classes", [])
        if not isinstance(classes, list) or not all(isinstance(label, (str, int)) for label in classes):
            raise ValueError("classes: must be a list of names")
        if card.get("shape") is not None:
            sizes(card["shape"], "shape")
    except (ValueError, RecursionError) as error:
        raise RunError(f"{where}: no readable model there ({first_line(error)})") from None
    return card, _KINDS[name]


def _finite(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None


def _check_labels(model: Any, card: dict[str, Any]) -> None:
    """Raise ValueError unless the model can predict and its card names every class that it knows."""
    if not callable(getattr(model, "predict", None)):
        raise ValueError(f"a {type(model).__name__} cannot predict")
    if "classes" in card and not all(0 <= label < len(card["classes"]) for label in getattr(model, "classes_", ())):
        raise ValueError("it answers with classes that its card does not name")


def _imported_skops() -> Any:
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


def _load_object(content: bytes, trusted: frozenset[str] | None) -> Any:
    """What a skops file holds. It is written uncompressed, so that what is read cannot be much larger than the file."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        if sum(entry.file_size for entry in archive.infolist()) > len(content):
            raise ValueError(f"{OBJECT} is compressed, or its parts overlap")
    skops = _imported_skops()
    unknown = set(skops.get_untrusted_types(data=content)) - _HARMLESS
    if trusted is not None and unknown - trusted:
        raise untrusted_error(unknown - trusted, OBJECT)
    return skops.loads(content, trusted=sorted(unknown | _HARMLESS))


class Predictor(NamedTuple):
    """A student or model, its card, and the folder they were read from. It answers with names of classes."""

    model: Any
    card: dict[str, Any]
    folder: Path

    @property
    def classes(self) -> list[str]:
        """The names of the classes."""
        return [str(name) for name in self.card["classes"]]

    def predict(self, X: Any) -> NDArray[np.str_]:
        """The name of the class of each example: rows of an array, or of a data frame with the columns of the data."""
        return np.array(self.classes)[self.positions(self.examples(X))]

    def predict_proba(self, X: Any) -> NDArray[np.float64] | None:
        """The probability of each of `classes`, one column each; None where the model gives none."""
        return self.shares(self.examples(X))

    def examples(self, X: Any) -> NDArray[np.float32]:
        """What the model takes, from an array or a data frame; DataError where it is something else."""
        if not is_frame(X):
            return checked_array(np.asarray(X), self.card, "the examples")
        from pate.data._model_input import examples_of, table_of

        return examples_of(table_of(X), self.format)

    @property
    def format(self) -> Format:
        """How columns become features."""
        from pate.data._records import Format

        try:
            return Format.of_card(self.card)
        except ValueError as error:
            raise RunError(f"{self.folder}: its card {error}") from None

    def positions(self, X: NDArray) -> NDArray[np.int64]:
        """Positions in `classes`, one for each example that the model takes; a file from elsewhere may fail anyhow."""
        with self._failures():
            found = np.asarray(self.model.predict(self._shaped(X)))
            if found.shape != (len(X),) or not np.isin(found, np.arange(len(self.classes))).all():
                raise ValueError(f"it did not give one class for each of {len(X)} examples")
        return found.astype(np.int64)

    def shares(self, X: NDArray) -> NDArray[np.float64] | None:
        """A column for each of `classes`."""
        if not hasattr(self.model, "predict_proba"):
            return None
        with self._failures():
            found = np.asarray(self.model.predict_proba(self._shaped(X)), dtype=np.float64)
            known = np.asarray(getattr(self.model, "classes_", range(len(self.classes))), dtype=np.int64)
            if found.shape != (len(X), len(known)) or not np.isfinite(found).all():
                raise ValueError("its probabilities are not numbers, one for each class")
            whole = np.zeros((len(X), len(self.classes)))
            whole[:, known] = found
        return whole

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except PateError:
            raise
        except Exception as error:  # classes of anybody's making
            what = f"{type(error).__name__}: {first_line(error)[:200]}"
            raise RunError(f"{self.folder}: cannot predict ({what})") from None

    def _shaped(self, X: NDArray) -> NDArray:
        """Examples as the model takes them: none beyond what is public, and flat where a baseline takes no images."""
        try:
            public = PublicRange.of_card(self.card.get("range"), X.shape[1:])
        except ValueError as error:
            raise RunError(f"{self.folder}: its card {error}") from None
        X = X if public is None else public.clip(X)
        flat = "baseline" in self.card and not getattr(self.model, "accepts_images", False)
        return X.reshape(len(X), -1) if flat else X


def checked_array(X: NDArray, card: dict[str, Any], where: str) -> NDArray[np.float32]:
    """An array as the student of this card takes it; DataError where it is another."""
    if X.dtype.kind not in "fiub":
        raise DataError(f"{where}: holds {X.dtype.name}, not numbers")
    shape = tuple(card.get("shape") or X.shape[1:])
    if X.shape == shape:
        raise DataError(f"{where}: has shape {X.shape}, a single example; give {(1, *shape)}")
    if X.ndim < 2 or X.shape[1:] != shape:
        raise DataError(f"{where}: has shape {X.shape}; this student takes (examples, {', '.join(map(str, shape))})")
    if len(X) == 0:
        raise DataError(f"{where}: holds no examples")
    if len(shape) > 1 and X.dtype.kind in "iu":
        raise DataError(f"{where}: holds whole numbers ({X.dtype}); this student takes {card.get('input', 'floats')}")
    with np.errstate(over="ignore"):
        examples = X.astype(np.float32)  # where large numbers become infinite
    columns = card.get("columns")
    missing = columns.get("missing_values") if isinstance(columns, dict) else None
    gaps = isinstance(missing, dict) and missing.get("treatment") == "keep"
    wrong = np.isinf(examples) if gaps else ~np.isfinite(examples)
    if wrong.any():
        row = int(np.argwhere(wrong)[0][0])
        raise DataError(f"{where}: NaN, infinity or a number too large for a float in row {row} (counted from 0)")
    return examples


def load_predictor(run: Run, trust: Iterable[str] = (), student: str | None = None) -> Predictor:
    """What is in a run, or in a folder taken from one: its student or model, or the further `student` of that name.

    The folder may come from anybody; `trust` names what its files may import.
    """
    if student is not None:
        folder = run.students_folder / student
        if not (folder / STUDENT_CARD).exists():
            known = sorted(path.parent.name for path in run.students_folder.glob(f"*/{STUDENT_CARD}"))
            raise RunError(f"{run.path}: has no further student {student!r}; {nearest(student, known)}")
    elif (run.path / MODEL_CARD).exists() or (run.model_folder / MODEL_CARD).exists():
        folder = run.path if (run.path / MODEL_CARD).exists() else run.model_folder
    else:
        folder = run.path if (run.path / STUDENT_CARD).exists() else run.student_folder
    card = load_card(folder)
    if "classes" not in card:
        raise RunError(f"{folder}: its card has no classes, so that there is no name for a label")
    return Predictor(load_model(folder, trust, run), card, folder)


def load(place: Path | str, trust: Iterable[str] = (), student: str | None = None) -> Predictor:
    """Load what predicts in a run, or in a folder taken from one: `pate.load("runs/…").predict(frame)` names classes.

    Parameters
    ----------
    place : Path or str
        A run directory, its URL, or a copy of its `student` or `model` folder.
    trust : iterable of str, default=()
        Classes of anybody's own ("module.Class") that may be imported because the model names them.
    student : str, optional
        The name of a further student of the run; None is the run's own student, or its baseline.
    """
    with Run.load(place, inside=False) as run:
        return run.predictor(trust, student)
