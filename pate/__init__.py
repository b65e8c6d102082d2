"""PATE: learn from private records, publish only a student and its ε.

Public names load on first use, so `import pate` brings in neither ray nor torch.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "BudgetExceeded": "pate.errors",
    "ConfidentGNMax": "pate.mechanisms",
    "GNMax": "pate.mechanisms",
    "LNMax": "pate.mechanisms",
    "Ledger": "pate.ledger",
    "PateError": "pate.errors",
    "Run": "pate.runs.run",
    "UNANSWERED": "pate.mechanisms",
    "PATEClassifier": "pate.classifier",
    "load_config": "pate.config",
    "load_student": "pate.students.saving",
    "run": "pate.pipeline",
}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'pate' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
