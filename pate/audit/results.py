"""What an attack found: the contract between attacks, the command and the page.

An attack is a file of this folder with one function `attack(subject, options) -> list[AttackResult]`; the file's name,
with hyphens for underscores, is what `--attacks` calls it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from pate.errors import PateError
from pate.runs.console import Console, Quiet


class NotApplicable(PateError):
    """The attack is for other models or data than these; the text says for which."""


@dataclass(frozen=True)
class Options:
    """How thoroughly to attack. `work` is a private folder where what takes long is kept, so that it can go on."""

    quick: bool = False
    seed: int = 0
    confidence: float = 0.95
    """Of every lower bound on ε: wrong with probability 1 − confidence at most, under what the finding assumes."""
    examples: int = 5_000
    """Most members, and most others, that are attacked."""
    records: int = 5_000
    """Most examples that a shadow model, or the model without privacy, learns from."""
    shadows: int = 64
    canaries: int = 1_000
    processes: int = 0
    """Processes that train shadow models; 0: as many as there are cores."""
    work: Path | None = None
    sensitive: tuple[str, ...] = ()
    """Columns that attribute inference guesses; none: those that are known to be sensitive in a benchmark."""
    console: Console = field(default_factory=Quiet)

    @classmethod
    def of(cls, quick: bool, **others: Any) -> Options:
        """The usual options: `quick` is for two minutes on two cores."""
        few = {"examples": 1_000, "records": 1_500, "shadows": 16, "canaries": 300} if quick else {}
        return cls(**{"quick": quick, **few, **others})


@dataclass(frozen=True)
class AttackResult:
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

    @property
    def describe_auc(self) -> str:
        """The AUC with its standard error, where that is known."""
        if self.auc is None:
            return "–"
        return f"{self.auc:.3f}" if self.auc_error is None else f"{self.auc:.3f} ± {self.auc_error:.3f}"

    def to_json(self) -> dict[str, Any]:
        """Plain values; what JSON cannot hold, as an infinite ε, is None. `refutes` is there for who reads the file."""
        return {name: _plain(value) for name, value in asdict(self).items()} | {"refutes": self.refutes}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> AttackResult:
        """The finding that `to_json` wrote."""
        known = {item.name for item in fields(cls)}
        values = {name: value for name, value in content.items() if name in known}
        for name in ("curve", "at_risk"):
            values[name] = tuple(tuple(point) for point in values.get(name, ()))
        return cls(**values)


def _plain(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value
