"""What an attack is, what it finds, and what a kind of voters offers to it.

The contract between attacks, voters, the command and the page.
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, computed_field
from pydantic.dataclasses import dataclass as pydantic_dataclass

from pate import __version__
from pate.audit._target import Fitted, Subject
from pate.components._registry import Registry, dotted_names, nearest
from pate.config import Config
from pate.data.private import Records
from pate.data.public import PublicData
from pate.errors import ConfigError, PateError
from pate.noise import Entropy
from pate.report._pages import percent
from pate.runs._console import Console, Quiet
from pate.runs.run import Run

_ORDER = ("threshold", "correctness", "label-only", "lira", "rmia", "attribute", "one-run", "mechanism", "sensitivity")


HEADER = ("model", "attack", "AUC", "found at 0.1 %", "at 1 %", "advantage", "ε shown", "ε claimed")
"""The header of a table of findings. "Found" is the share of members accused where that share of others is accused."""


class NotApplicable(PateError):
    """The attack is for other models or data than these; the text says for which."""


@dataclass(frozen=True)
class Options:
    """How thoroughly to attack.

    Parameters
    ----------
    quick : bool, default=False
        Whether shadow models of a baseline are without privacy, which is faster, and draws and copies fewer.
    seed : int, default=0
        Chooses who is asked about, and what shadow models learn from. Never coins of canaries.
    confidence : float, default=0.95
        Of every lower bound on ε: wrong with probability 1 − confidence at most, under what the finding assumes.
    examples : int, default=5000
        Most members, and most others, that are attacked.
    records : int, default=5000
        Most examples that the model without privacy and the control learn from.
    shadows : int, default=64
        Number of shadow models.
    canaries : int, default=1000
        Most canaries in a run.
    processes : int, default=0
        Processes that train shadow models; 0: as many as there are cores.
    work : Path, default=None
        A private folder where what takes long is kept, so that an audit can go on; None is the run's own.
    sensitive : tuple of str, default=()
        Columns that attribute inference guesses; none: those that are known to be sensitive in a benchmark.
    console : Console, default=Quiet()
        Where progress goes.
    """

    quick: bool = False
    seed: int = 0
    confidence: float = 0.95
    examples: int = 5_000
    records: int = 5_000
    shadows: int = 64
    canaries: int = 1_000
    processes: int = 0
    work: Path | None = None
    sensitive: tuple[str, ...] = ()
    console: Console = field(default_factory=Quiet)

    @classmethod
    def of(cls, quick: bool, **others: Any) -> Options:
        """The usual options: `quick` is for two minutes on two cores."""
        few = {"examples": 1_000, "records": 1_500, "shadows": 16, "canaries": 300} if quick else {}
        return cls(**{"quick": quick, **few, **others})


class Attack(ABC):
    """An attack on a model: a class in a file of this folder.

    Its constructor takes no arguments. Every finding's `attack` begins with its `title`.
    """

    name: ClassVar[str]
    """What `pate audit --attacks` calls it."""
    title: ClassVar[str]
    """What tables and the page call it."""
    explanation: ClassVar[str]
    """What the page says of it, to people who decide about data."""

    @abstractmethod
    def run(self, subject: Subject, options: Options) -> Iterable[AttackResult]:
        """The findings, each as soon as it is there; `NotApplicable` where the attack is for other models."""


def attack_classes(names: Sequence[str] = ()) -> dict[str, type[Attack]]:
    """The named attacks, or all: classes of this folder that have a `name`. ConfigError where there is none such."""
    found = Registry("pate.audit", "attack", Attack).classes()
    order = sorted(found, key=lambda name: (_ORDER.index(name) if name in _ORDER else len(_ORDER), name))
    if unknown := [name for name in names if name not in found]:
        raise ConfigError(f"{{attacks}}: no such attack; {nearest(unknown[0], order)}", attacks=",".join(unknown))
    return {name: found[name] for name in names or order}


class _AsJson:
    """A result that is kept as JSON."""

    def to_json(self) -> dict[str, Any]:
        """Plain values; what JSON cannot hold, as an infinite ε, is None."""
        content: dict[str, Any] = json.loads(TypeAdapter(type(self)).dump_json(self))
        return content

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """The result that `to_json` wrote."""
        return TypeAdapter(cls).validate_python(content)


@pydantic_dataclass(frozen=True)
class AttackResult(_AsJson):
    """What one attack gained against one model. None stands where a figure does not apply.

    `epsilon_lower` holds with probability `confidence` under what `assumes` says; `epsilon_claimed` is None where the
    model promises nothing. `curve` are points (false positives, true positives) of the ROC curve, and `at_risk`
    are private: rows of private records, the likeliest members first, each with its score.
    """

    attack: str
    model: str
    assumes: str
    """In words: what the attacker knows, and under what the bound holds."""
    relation: str = "a record added or removed"
    """The neighbouring relation that the bound is about, and that the claim is for."""
    members: int | None = None
    outsiders: int | None = None
    canaries: int | None = None
    auc: float | None = None
    auc_error: float | None = None
    """Standard error of the AUC; 0.5 within a few of these is no better than guessing."""
    tpr_at_0_1_percent: float | None = None
    tpr_at_1_percent: float | None = None
    advantage: float | None = None
    """Largest true positive rate less false positive rate; of an attribute, what the model adds to imputation."""
    epsilon_lower: float | None = None
    confidence: float | None = None
    delta: float | None = None
    epsilon_claimed: float | None = None
    epsilon_of_groups: float | None = None
    """What the same attack shows of the control, which saw no record: by so much the two groups differ anyway."""
    seconds: float = 0.0
    note: str = ""
    curve: tuple[tuple[float, float], ...] = ()
    at_risk: tuple[tuple[int, float], ...] = ()

    @computed_field  # type: ignore[prop-decorator]
    @property
    def refutes(self) -> bool:
        """Whether the finding contradicts the claimed ε, beyond what the difference between the groups explains.

        A claim of ε bounds TPR/FPR by e^ε for members and others of one kind. Where other records of the members' kind
        are found e^g times as often as those outside, it is e^(ε + g).
        """
        claimed = self.epsilon_claimed
        return claimed is not None and self._above(claimed + (self.epsilon_of_groups or 0.0))

    @property
    def explained_by_groups(self) -> bool:
        """Whether the bound is above the claim, but not by more than the groups differ."""
        return self.epsilon_claimed is not None and self._above(self.epsilon_claimed) and not self.refutes

    def _above(self, epsilon: float) -> bool:
        return self.epsilon_lower is not None and self.epsilon_lower > epsilon

    def cells(self) -> tuple[str, ...]:
        """The finding as a row under `HEADER`."""
        error = "" if self.auc_error is None else f" ± {self.auc_error:.3f}"
        rates = (self.tpr_at_0_1_percent, self.tpr_at_1_percent, self.advantage)
        return (
            self.model,
            self.attack,
            "–" if self.auc is None else f"{self.auc:.3f}{error}",
            *("–" if share is None else percent(share) for share in rates),
            *("–" if epsilon is None else f"{epsilon:.3g}" for epsilon in (self.epsilon_lower, self.epsilon_claimed)),
        )


@pydantic_dataclass(frozen=True)
class Audited:
    """A model that was attacked: what it is, what it claims, and how often it is right on members and on others."""

    name: str
    kind: str
    method: str
    epsilon: float | None
    delta: float
    right_on_members: float
    right_on_outsiders: float


@pydantic_dataclass(frozen=True)
class Audit(_AsJson):
    """All that was found. The first model is the run's own. `left_out` says which attacks do not apply, and why."""

    name: str
    data: str
    benchmark: bool
    quick: bool
    models: tuple[Audited, ...]
    findings: tuple[AttackResult, ...]
    left_out: tuple[str, ...] = ()
    seconds: float = 0.0
    pate_version: str = __version__

    def without_records(self) -> Audit:
        """A copy of the results without anything about single records."""
        return replace(self, findings=tuple(replace(finding, at_risk=()) for finding in self.findings))


# What a kind of voters offers: a way to count votes again, and runs with canaries


def fair_coins(n: int, entropy: Entropy = os.urandom) -> NDArray[np.bool_]:
    """n fair coins, the operating system's."""
    return np.unpackbits(np.frombuffer(entropy(-(-n // 8)), dtype=np.uint8))[:n].astype(bool)


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
