"""What tests share that is no fixture: `from support.ledgers import opened`; pytest puts `tests` on the path."""

from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
