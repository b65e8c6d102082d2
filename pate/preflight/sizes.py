"""Whether there are enough public examples to ask about, and enough private records to learn from."""

from __future__ import annotations

from collections.abc import Callable

from pate.components.registry import about
from pate.config import Config
from pate.data.dataset import Dataset, Records, Votes
from pate.errors import ConfigError
from pate.planning.neighbours import check_cells

Tell = Callable[[str], None]
"""Says what only people may read who may know the private data."""

_RECORDS_TO_LEARN_FROM = 10
_MIN_RECORDS = 5


def check_sizes(config: Config, data: Dataset, force: bool, tell: Tell) -> None:
    """Raise ConfigError where there are too few public examples, or parts would be too small unless `force`."""
    if config.voters == "neighbours":
        check_cells(config.build_rounds(), len(data.X_public))
        return
    if config.budget.max_queries > len(data.X_public):
        raise ConfigError(
            f"budget.max_queries = {config.budget.max_queries}: there are only {len(data.X_public)} public examples"
        )
    if isinstance(data.private, Votes):
        voters = int(data.private.counts[0].sum())
        if voters != config.n_teachers:
            raise ConfigError(f"n_teachers = {config.n_teachers}: the stored votes are those of {voters} teachers")
        return
    if isinstance(data.private, Records):
        check_records(config, len(data.private), len(data.classes), force, tell)


def check_records(config: Config, n_records: int, n_classes: int, force: bool, tell: Tell) -> None:
    """Refuse parts that are too small. How many records there are is told to those who may know, not in the error."""
    each = config.build_mechanism().split(config.n_teachers).share * n_records
    if each < _MIN_RECORDS and not force:
        enough = n_records / 4 / _MIN_RECORDS
        for_whom = f"{about(enough)} teachers would have enough" if enough >= 2 else "too few for any two teachers"
        tell(f"{about(each)} private records per teacher; {for_whom}")
        raise ConfigError(
            f"n_teachers = {config.n_teachers}: parts of the private records would be too small to learn from; use "
            "fewer teachers, or add {force}",
            force=True,
        )
    if each < max(_RECORDS_TO_LEARN_FROM, n_classes):
        tell(f"parts of {about(each, 2)} records are small for {n_classes} classes")
