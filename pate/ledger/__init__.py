"""Durable budget and answers: label and charge are stored together, before anyone sees the label."""

from pate.ledger.chain import Pin, connect
from pate.ledger.ledger import Charge, Ledger, Limits, SharedBudget, SharedLedger
from pate.ledger.stored import Fenced, History, StoredLedger

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
]
