"""PATE: learn from private records, publish only a student and its ε.

Public names load on first use, so `import pate` brings in neither ray nor torch.

>>> import pate
>>> round(pate.worst_case_epsilon(pate.GNMax(40), max_queries=100, delta=1e-5), 2)
1.09
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pate.accounting.exact import exact_epsilon
    from pate.classifier import PATEClassifier
    from pate.config import load_config
    from pate.errors import BudgetExceeded, PateError
    from pate.ledger import Charge, Ledger, Limits
    from pate.mechanisms import (
        UNANSWERED,
        ConfidentGNMax,
        GaussianMSamp,
        GaussianMStab,
        GNMax,
        Histogram,
        LectureMSvec,
        LNMax,
        MSamp,
        MStab,
        MSvec,
        PermuteAndFlip,
    )
    from pate.pipeline import run
    from pate.planning.costs import worst_case_epsilon
    from pate.runs.model_store import load, load_model
    from pate.runs.run import Run

__version__ = "0.1.0"

_HOMES = {
    "BudgetExceeded": "pate.errors",
    "Charge": "pate.ledger",
    "ConfidentGNMax": "pate.mechanisms",
    "GNMax": "pate.mechanisms",
    "GaussianMSamp": "pate.mechanisms",
    "GaussianMStab": "pate.mechanisms",
    "Histogram": "pate.mechanisms",
    "LNMax": "pate.mechanisms",
    "LectureMSvec": "pate.mechanisms",
    "Ledger": "pate.ledger",
    "Limits": "pate.ledger",
    "MSamp": "pate.mechanisms",
    "MStab": "pate.mechanisms",
    "MSvec": "pate.mechanisms",
    "PATEClassifier": "pate.classifier",
    "PateError": "pate.errors",
    "PermuteAndFlip": "pate.mechanisms",
    "Run": "pate.runs.run",
    "UNANSWERED": "pate.mechanisms",
    "exact_epsilon": "pate.accounting.exact",
    "load": "pate.runs.model_store",
    "load_config": "pate.config",
    "load_model": "pate.runs.model_store",
    "run": "pate.pipeline",
    "worst_case_epsilon": "pate.planning.costs",
}

__all__ = [
    "UNANSWERED",
    "BudgetExceeded",
    "Charge",
    "ConfidentGNMax",
    "GNMax",
    "GaussianMSamp",
    "GaussianMStab",
    "Histogram",
    "LNMax",
    "LectureMSvec",
    "Ledger",
    "Limits",
    "MSamp",
    "MStab",
    "MSvec",
    "PATEClassifier",
    "PateError",
    "PermuteAndFlip",
    "Run",
    "__version__",
    "exact_epsilon",
    "load",
    "load_config",
    "load_model",
    "run",
    "worst_case_epsilon",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'pate' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
