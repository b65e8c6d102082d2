"""What a kind of voters offers to an audit: a way to count votes again, and runs with canaries."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pate.audit.learners import Fitted
from pate.audit.scratch import scratch_folder
from pate.components.registry import dotted_names
from pate.config import Config
from pate.data.private import Records
from pate.data.public import PublicData
from pate.runs.console import Quiet
from pate.runs.run import Run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pate.audit.canaries import Canaries

Scores = dict[str, NDArray[np.float64]]
"""For each way to look at what was released, how much speaks for each canary being in."""


class CountVotes(Protocol):
    """Counts the votes of records, always the same way, and says what one changed record may move."""

    max_records: int
    """More records than these are not needed."""
    what: str
    """What is counted, in words."""

    def __call__(self, records: Records) -> NDArray[np.int64]: ...

    def moved(self, difference: NDArray[np.int64], change: str) -> tuple[float, float]:
        """How much the records' histograms differ, and by how much they may after that `change`."""

    def costs(self, moved: float, change: str) -> tuple[float, float]:
        """ε of a record that moves so much, and the ε that is claimed."""


@dataclass(frozen=True)
class OneRunAudit:
    """A run with canaries: what they are, the neighbouring relation, the claimed ε, and how scores are found.

    `find_scores(public, records, n_canaries, config_dir, seed)` runs the pipeline and gives scores and coins.
    """

    kind: str
    relation: str
    claimed: Callable[[int], float]
    find_scores: Callable[[PublicData, Records, int, Path, int], tuple[Scores, NDArray[np.bool_]]]


@contextmanager
def scratch_run(config: Config, public: PublicData, records: Records, config_dir: Path) -> Iterator[Run]:
    """A run of its own on these records, in a folder that is removed afterwards."""
    from pate.pipeline import run

    with scratch_folder() as folder:
        run(
            config,
            folder / "run",
            public=replace(public, public_rows=None),
            private=records,
            console=Quiet(),
            config_dir=config_dir,
            force=True,
            anchor="none",
            pages=False,
        )
        with Run.load(folder / "run") as finished:
            yield finished


def with_quick_student(config: Config) -> Config:
    """For a run of which only labels or counts are looked at: with a student that takes no time.

    Where a student has a say in what is released, it stays.
    """
    if config.student_shapes_release:
        return config
    quick = {"name": "supervised", "params": {"estimator": "sklearn.naive_bayes.GaussianNB"}}
    return config.without_refinement().model_copy(update={"student": config.student.model_copy(update=quick)})


def student_scores(run: Run, canaries: Canaries, n_classes: int) -> NDArray[np.float64]:
    """How probable the student of the run finds the labels of each canary, on average over its records."""
    config: Any = run.config
    trusted = run.predictor(dotted_names(config.student.model_dump()))
    probable = Fitted(trusted.model, n_classes).predict_proba(canaries.X)[np.arange(len(canaries.y)), canaries.y]
    return np.bincount(canaries.owner, probable, len(canaries)) / np.bincount(canaries.owner, minlength=len(canaries))


def fewer_records(records: Records, most: int, seed: int) -> Records:
    """At most so many of the private records, chosen by the seed alone."""
    keep = np.zeros(len(records), dtype=bool)
    keep[np.random.default_rng(seed).permutation(len(keep))[:most]] = True
    return records.only(keep)
