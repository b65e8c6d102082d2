"""What a student has learned to see, as public features that come before teachers."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from pate.runs.files import STUDENT_CARD, TENSORS


@dataclass(frozen=True)
class StudentFeatures:
    """A transform: what the last layer of a stored network student sees of each example.

    It goes to workers as the student's files, card and safetensors, and is loaded where it is first used: no live
    network is pickled. The student has learned from released labels and public examples alone: so these features are
    public.
    """

    card: bytes
    tensors: bytes

    @classmethod
    def of(cls, folder: Path) -> StudentFeatures:
        """The features of the student that was saved in `folder`."""
        return cls((folder / STUDENT_CARD).read_bytes(), (folder / TENSORS).read_bytes())

    def transform(self, X: NDArray) -> NDArray:
        """The features of each example, from that example alone."""
        return self._student.features(X)

    @cached_property
    def _student(self) -> Any:
        from pate.students.saving import load_student

        with tempfile.TemporaryDirectory(prefix="pate-") as folder:
            (Path(folder) / STUDENT_CARD).write_bytes(self.card)
            (Path(folder) / TENSORS).write_bytes(self.tensors)
            return load_student(folder)

    def __getstate__(self) -> dict[str, bytes]:
        return {"card": self.card, "tensors": self.tensors}
