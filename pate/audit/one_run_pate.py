"""Canaries through the whole of PATE: records, partition, voters, aggregator, student; in one run.

`pate.pipeline.run` itself runs, in a scratch folder with a key and a ledger of its own, on the run's data and the
canaries whose coins say in. The attacker knows the data, the config and the run's key: everything but the coins and
the noise. Where canaries stand and what scores they get is the voters' part (`pate/voters/*/audit.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pate.audit.canaries import Guessed, guess
from pate.audit.interface import OneRunAudit
from pate.config import Config
from pate.data.private import Records
from pate.data.public import PublicData


@dataclass(frozen=True)
class OneRun:
    """What one run with canaries showed."""

    guessed: Guessed
    epsilon_claimed: float
    delta: float
    confidence: float
    relation: str

    @property
    def refutes(self) -> bool:
        return self.guessed.epsilon_lower > self.epsilon_claimed


def audit_pipeline(
    audit: OneRunAudit,
    public: PublicData,
    records: Records,
    *,
    delta: float,
    canaries: int,
    confidence: float,
    config_dir: Path = Path(),
    seed: int = 0,
) -> OneRun:
    """Run the pipeline once with canaries and once without, and bound its ε.

    `seed` chooses where canaries stand, never their coins.
    """
    claimed = audit.claimed(public.n_classes)
    scores, coins = audit.find_scores(public, records, canaries, config_dir, seed)
    return OneRun(guess(scores, coins, delta, confidence), claimed, delta, confidence, audit.relation)


def alone(config: Config) -> Config:
    """The config without what would reach outside the scratch folder, or is not part of what is audited."""
    left_out: dict[str, Any] = {
        name: None for name in ("ledger", "sanitise") if name in type(config.budget).model_fields
    }
    budget = config.budget.model_copy(update=left_out)
    return config.model_copy(update={"backend": "local", "nonprivate": None, "budget": budget})
