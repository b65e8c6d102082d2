"""What a student has learned to see, as public features that come before teachers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from pate.runs.model_store import model_from_files
from pate.runs.signatures import read_model_files


@dataclass(frozen=True)
class StudentFeatures:
    """A transform: what the last layer of a stored network student sees of each example.

    It goes to workers as the student's files, card and safetensors, and is loaded where it is first used: no live
    network is pickled. The student has learned from released labels and public examples alone: so these features are
    public.
    """

    files: dict[str, bytes]

    @classmethod
    def of(cls, folder: Path) -> StudentFeatures:
        """The features of the student that was saved in `folder`."""
        return cls(read_model_files(folder))

    def transform(self, X: NDArray) -> NDArray:
        """The features of each example, from that example alone."""
        return self._student.features(X)

    @cached_property
    def _student(self) -> Any:
        return model_from_files(self.files, "the student between rounds", frozenset())

    def __getstate__(self) -> dict[str, Any]:
        return {"files": self.files}
