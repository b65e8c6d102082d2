"""What a kind of voters offers to an audit: a way to count votes again, and runs with canaries."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pate.audit._target import Fitted
from pate.audit.confidence_bounds import one_run_epsilon
from pate.components._registry import dotted_names
from pate.config import Config
from pate.data.private import Records
from pate.data.public import PublicData
from pate.noise.integer import Entropy
from pate.runs._console import Quiet
from pate.runs.run import Run

if TYPE_CHECKING:
    from collections.abc import Iterator

_WAYS = (("sign", 1.0), ("both", 1 / 2), ("both", 1 / 8), ("both", 1 / 32), ("in", 1 / 8), ("in", 1 / 32))
"""How many guesses are made, fixed beforehand: this share of the canaries with the highest scores is said to be in
and, for "both", as many with the lowest to be out. For "sign", all with a score above 0 are in and all others out."""


def fair_coins(n: int, entropy: Entropy = os.urandom) -> NDArray[np.bool_]:
    """n fair coins, the operating system's."""
    return np.unpackbits(np.frombuffer(entropy(-(-n // 8)), dtype=np.uint8))[:n].astype(bool)


@dataclass(frozen=True)
class Guessed:
    """The best of several ways to guess, all fixed beforehand; `epsilon_lower` pays for having tried them all."""

    canaries: int
    guesses: int
    correct: int
    epsilon_lower: float
    score: str
    """What the best guesses went by."""
    auc: float
    """The area under the ROC curve of that score."""


def guess(
    scores: Mapping[str, NDArray[np.float64]], coins: NDArray[np.bool_], delta: float, confidence: float
) -> Guessed:
    """What the scores show about the coins: the higher a canary's score, the likelier it is said to be in.

    Each score is tried in a few ways, and 1 − confidence is shared equally by all tries. Ties are broken at random.
    """
    from sklearn.metrics import roc_auc_score

    best: Guessed | None = None
    each = (1 - confidence) / (len(scores) * len(_WAYS))
    n = len(coins)
    for name, score in scores.items():
        shuffled = np.argsort(np.frombuffer(os.urandom(8 * n), dtype=np.uint64), kind="stable")
        order = shuffled[np.argsort(-np.nan_to_num(score[shuffled]), kind="stable")]
        for sides, share in _WAYS:
            few = max(1, int(share * n))
            correct, guesses = int(coins[order[:few]].sum()), few
            if sides == "sign":
                correct, guesses = int(((score > 0) == coins).sum()), n
            elif sides == "both" and n >= 2 * few:
                correct, guesses = correct + int((~coins[order[n - few :]]).sum()), 2 * few
            shown = one_run_epsilon(n, guesses, correct, delta, 1 - each)
            if best is None or shown > best.epsilon_lower:
                auc = float(roc_auc_score(coins, score)) if 0 < coins.sum() < n else 0.5
                best = Guessed(n, guesses, correct, shown, name, auc)
    assert best is not None  # there is a score
    return best


@dataclass(frozen=True)
class Canaries:
    """The records of each canary if its coin says in; if it says out, it is absent or, where `y_out` is given, has the
    same records with these labels instead. `owner` says whose record a row is; a canary may have several."""

    X: NDArray
    y: NDArray[np.int64]
    owner: NDArray[np.int64]
    y_out: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return int(self.owner.max(initial=-1)) + 1

    def among(self, honest: Records, coins: NDArray[np.bool_], ids: bool) -> Records:
        """The records with the canaries that are in; `ids`: every canary is a person, and every other record too."""
        inside = coins[self.owner]
        if self.y_out is None:
            X, y, owner = self.X[inside], self.y[inside], self.owner[inside]
        else:
            X, y, owner = self.X, np.where(inside, self.y, self.y_out), self.owner
        named = None
        if ids or honest.ids is not None:
            others = [f"record {i}" for i in range(len(honest))] if honest.ids is None else list(honest.ids)
            named = [*others, *(f"canary {i}" for i in owner.tolist())]
        return Records(np.concatenate([honest.X, X]), np.concatenate([honest.y, y]), named)


Scores = dict[str, NDArray[np.float64]]
"""For each way to look at what was released, how much speaks for each canary being in."""


class RecordVotes(Protocol):
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
def scratch_folder() -> Iterator[Path]:
    """A private folder for as long as it is needed."""
    with TemporaryDirectory(prefix="pate-audit-") as folder:  # mode 0700
        yield Path(folder)


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
