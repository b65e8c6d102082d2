"""What a run has learned, ready to predict: a student, or a baseline's model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pate.components._registry import nearest
from pate.data._model_input import is_frame
from pate.data.public import PublicRange
from pate.errors import DataError, PateError, RunError, first_line
from pate.runs._files import MODEL_CARD, STUDENT_CARD
from pate.runs.model_store import load_card, load_model

if TYPE_CHECKING:
    from pate.data._records import Format
    from pate.runs.run import Run


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
        from pate.data._model_input import format_from_card

        try:
            return format_from_card(self.card)
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
    from pate.runs.run import Run

    with Run.load(place, inside=False) as run:
        return run.predictor(trust, student)
