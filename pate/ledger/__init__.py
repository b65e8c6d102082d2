"""Durable budget and answers: label and charge are stored together, before anyone sees the label."""

from pate.ledger._chain import Pin, connect, verify
from pate.ledger._stored import Fenced, History, StoredLedger
from pate.ledger.ledger import Charge, Ledger, Limits, SharedBudget, SharedLedger

__all__ = [
    "Charge",
    "Fenced",
    "History",
    "Ledger",
    "Limits",
    "Pin",
    "SharedBudget",
    "SharedLedger",
    "StoredLedger",
    "connect",
    "verify",
]
