"""What a run has learned, ready to predict: a student, or a baseline's model."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pate.errors import RunError
from pate.naming import nearest
from pate.runs.files import MODEL_CARD, STUDENT_CARD, RunFiles

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pate.runs.run import Run


class Predictor(NamedTuple):
    """A student or model, its card, and the folder they were read from."""

    model: Any
    card: dict[str, Any]
    folder: Path

    def predict(self, X: NDArray) -> NDArray:
        """Positions in the card's `classes`."""
        return self.model.predict(self._shaped(X))

    def predict_proba(self, X: NDArray) -> NDArray | None:
        """The probability of each class; None where the model gives none."""
        return self.model.predict_proba(self._shaped(X)) if hasattr(self.model, "predict_proba") else None

    def _shaped(self, X: NDArray) -> NDArray:
        """Examples as the model takes them: some baselines take no images, so those are flattened."""
        flat = "baseline" in self.card and not getattr(self.model, "accepts_images", False)
        return X.reshape(len(X), -1) if flat else X


def load_card(run: RunFiles, student: str | None = None) -> tuple[dict[str, Any], Path]:
    """The card of the student or model in a run, or in a folder taken from one; and that folder.

    With `student`, of the further one of that name.
    """
    if student is not None:
        from pate.students.saving import load_card as load

        folder = run.students_folder / student
        if not (folder / STUDENT_CARD).exists():
            known = sorted(path.parent.name for path in run.students_folder.glob(f"*/{STUDENT_CARD}"))
            raise RunError(f"{run.path}: has no further student {student!r}; {nearest(student, known)}")
    elif (run.path / MODEL_CARD).exists() or (run.model_folder / MODEL_CARD).exists():
        from pate.baselines.saving import load_card as load

        folder = run.path if (run.path / MODEL_CARD).exists() else run.model_folder
    else:
        from pate.students.saving import load_card as load

        folder = run.path if (run.path / STUDENT_CARD).exists() else run.student_folder
    card = load(folder)
    if "classes" not in card:
        raise RunError(f"{folder}: its card has no classes, so that there is no name for a label")
    return card, folder


def load_predictor(run: Run, trust: Iterable[str] = (), student: str | None = None) -> Predictor:
    """What a run has learned; the folder may come from anybody, `trust` names what its files may import."""
    card, folder = load_card(run, student)
    if "baseline" in card:
        from pate.baselines.saving import load_model

        return Predictor(load_model(folder, trust), card, folder)
    return Predictor(run.student_in(folder, trust), card, folder)
