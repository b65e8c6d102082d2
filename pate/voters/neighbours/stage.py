"""The rounds of a run: cells, votes, what is released about them, and the labels that public examples get from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.components.registry import found_file
from pate.mechanisms import Mechanism
from pate.mechanisms.cell_costs import Round
from pate.storage.files import make_folder, write_atomically
from pate.students import posterior
from pate.students.posterior import Labelled
from pate.voters.neighbours.cells import Cells, CellVote, Space
from pate.voters.neighbours.features import FeatureCache, RecordFeatures
from pate.voters.neighbours.settings import NeighbourSettings

Release = Callable[[str, CellVote, Mechanism], NDArray[np.int64]]
"""What a round released, by its name: drawn and paid for once, stored ever after."""

Teach = Callable[[int, Labelled], Any]
"""A student of the labels so far, for the cells of the next round."""


@dataclass(frozen=True)
class Rounds:
    """All rounds of a run. Cells are stored below `folder` before anybody votes in them: a resumed run has the same.

    Public features of examples are kept below `kept`, if that is a folder, and not worked out again.
    """

    settings: NeighbourSettings
    rounds: tuple[Round, ...]
    seed: int
    folder: Path
    kept: Path | None = None

    def run(self, X_public: NDArray, n_classes: int, release: Release, teach: Teach) -> Labelled:
        """Labels of public examples after the last round."""
        labelled, student = None, None
        for number, round in enumerate(self.rounds, start=1):
            if round.by_student:
                assert labelled is not None  # the config has no student before the first round
                student = teach(number - 1, labelled)
            features = self.features(student if round.by_student else None)
            seen = features(X_public)
            cells = self.make_cells(number, round, seen)
            name = f"round {number} of {len(self.rounds)}, cells {digest(cells)}"
            cell_vote = CellVote(features, cells, self.settings.votes_per_record, n_classes, X_public[:1])
            released = release(name, cell_vote, round.mechanism)
            labelled = labels_of(self.settings, round.mechanism, released, cells, seen, n_classes)
        assert labelled is not None  # there is at least one round
        return labelled

    def features(self, student: Any) -> RecordFeatures | FeatureCache:
        """The features that cells are made in: public ones, cached, or those of a student, which are of one round."""
        steps = [_by_full_path(step.model_dump()) for step in self.settings.features]
        features = RecordFeatures(steps, student)
        return features if student is not None or self.kept is None or not steps else FeatureCache(features, self.kept)

    def make_cells(self, number: int, round: Round, seen: NDArray) -> Cells:
        """The cells of the round of that number, stored before anybody votes in them."""
        path = self.folder / f"cells-{number}.npz"
        if path.exists():
            return Cells.read(path)
        space = Space.of(seen, self.settings.components, self.settings.standardise or round.by_student)
        cells = Cells.of(space, seen, round.cells, self.seed)

        def write(partial: Path) -> None:
            with partial.open("wb") as file:
                np.savez(file, **cells.arrays())

        make_folder(self.folder, 0o700)
        write_atomically(path, write)
        return cells


def _by_full_path(step: dict[str, Any]) -> dict[str, Any]:
    """The step with its weights by their full path: whoever counts elsewhere does not know the config's folder."""
    weights = step["params"].get("weights")
    file = found_file(weights) if isinstance(weights, str) else None
    return step if file is None else step | {"params": {**step["params"], "weights": str(file)}}


def labels_of(
    settings: NeighbourSettings,
    mechanism: Mechanism,
    released: NDArray[np.int64],
    cells: Cells,
    seen: NDArray,
    n_classes: int,
) -> Labelled:
    """What a round says about public examples, from what it released alone."""
    if mechanism.releases_counts:
        shares = posterior.shares(released, mechanism.noise)  # type: ignore[attr-defined]
    else:
        shares = np.eye(n_classes)[released[:, 0]]
    if settings.label == "centres":
        rows = cells.nearest_examples(seen)
        found = posterior.label_members(shares, np.arange(len(cells)), settings.min_vote_share, settings.soft)
        return Labelled(rows[found.rows], found.labels, found.weights)
    return posterior.label_members(shares, cells.nearest(seen)[:, 0], settings.min_vote_share, settings.soft)


def digest(cells: Cells) -> str:
    """Equal for equal cells."""
    content = blake2b(digest_size=8)
    for name, array in sorted(cells.arrays().items()):
        content.update(name.encode() + np.ascontiguousarray(array).tobytes())
    return content.hexdigest()
