"""Which records a run has forgotten, and so which version of its ensemble answers."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from pate.runs import files
from pate.runs.run import Run


class Version(BaseModel):
    """`private/ensemble.json`: which version of the ensemble this is, and how it came to be.

    `pending` are parts that still have to be erased, and `data_digest` that of the records that are left once they are.
    """

    model_config = ConfigDict(frozen=True)

    version: int = 1
    forgotten: tuple[str, ...] = ()
    pending: tuple[int, ...] | None = None
    data_digest: str | None = None

    @classmethod
    def of(cls, run: Run) -> Version:
        """The version that a run is at; the first where nothing was forgotten."""
        path = run.ensemble_file
        return cls.model_validate_json(path.read_text()) if path.exists() else cls()

    def store(self, run: Run) -> None:
        """Make this the version of the run, in storage too."""
        run.note(files.ENSEMBLE, self.model_dump(mode="json"))
        run.sync()  # whatever happens next, the run knows what is to be forgotten
