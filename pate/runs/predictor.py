"""What a run has learned, ready to predict: a student, or a baseline's model."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pate.errors import RunError
from pate.runs.files import MODEL_CARD, STUDENT_CARD, RunFiles

if TYPE_CHECKING:
    from numpy.typing import NDArray


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


def load_card(run: RunFiles) -> tuple[dict[str, Any], Path]:
    """The card of the student or model in a run, or in a folder taken from one; and that folder."""
    if (run.path / MODEL_CARD).exists() or (run.model_folder / MODEL_CARD).exists():
        from pate.baselines.saving import load_card as load

        folder = run.path if (run.path / MODEL_CARD).exists() else run.model_folder
    else:
        from pate.students.saving import load_card as load

        folder = run.path if (run.path / STUDENT_CARD).exists() else run.student_folder
    card = load(folder)
    if "classes" not in card:
        raise RunError(f"{folder}: its card has no classes, so that there is no name for a label")
    return card, folder


def load_predictor(run: RunFiles, trust: Iterable[str] = ()) -> Predictor:
    """What a run has learned; the folder may come from anybody, `trust` names what its files may import."""
    card, folder = load_card(run)
    if "baseline" in card:
        from pate.baselines.saving import load_model as load
    else:
        from pate.students.saving import load_student as load
    return Predictor(load(folder, trust), card, folder)
