"""Stored votes as voters: histograms that were counted elsewhere, such as those that the authors of PATE published."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pate.boundary import PartialCounts
from pate.config._settings import QueryConfig
from pate.data._settings import Settings
from pate.data.private import PrivateData, Votes
from pate.data.public import PublicData
from pate.errors import ConfigError, DataError, RunError
from pate.voters.queries import QueryVoters

if TYPE_CHECKING:
    from pate.boundary._aggregator import Aggregator
    from pate.runs.context import RunContext


class StoredSettings(Settings):
    """Where the votes are.

    Parameters
    ----------
    file : str
        A .npy file, in the data folder or beside the config, whose row i is the histogram of public example i.
    """

    file: str


class StoredConfig(QueryConfig):
    """A run on votes that were counted elsewhere.

    Parameters
    ----------
    stored : StoredSettings
        The file of votes.
    **others
        What every run on queries has.
    """

    stored: StoredSettings

    def check(self) -> None:
        super().check()
        if self.nonprivate is not None:
            raise ConfigError("nonprivate: stored votes come without private records; leave it out")


class Stored(QueryVoters[StoredConfig]):
    """Votes of `n_teachers` teachers that were trained and counted elsewhere.

    Neighbouring relation and sensitivity are those of the teachers who voted: one record is added, removed or changed,
    and one vote moves in every query. Whether that holds is up to who counted the votes.
    """

    name = "stored"
    config_class = StoredConfig

    def load(self, data_dir: Path | None, config_dir: Path, by_workers: bool) -> tuple[PublicData, PrivateData]:
        from pate.data._sources import data_root

        public, _ = super().load(data_dir, config_dir, by_workers)
        return public, _stored_votes(self.config.stored.file, data_root(data_dir) or config_dir, public)

    def check_private(self, context: RunContext, private: PrivateData) -> None:
        if not isinstance(private, Votes):
            raise ConfigError("voters = 'stored': takes votes as private data, not records")
        n = int(private.counts[0].sum())
        if n != self.config.n_teachers:
            raise ConfigError(f"n_teachers = {self.config.n_teachers}: the stored votes are those of {n} teachers")

    def announcement(self, public: PublicData) -> str:
        return f"stored votes of {super().announcement(public)}"

    def collect_votes(
        self, context: RunContext, private: PrivateData, aggregator: Aggregator, queries: NDArray, is_done: bool
    ) -> None:
        assert isinstance(private, Votes)
        if not is_done:
            rows = context.public.public_rows
            counts = private.counts if rows is None else private.counts[rows]
            aggregator.collect(queries, StoredCount(counts[: len(queries)], self.config.n_teachers))

    @property
    def described(self) -> str:
        return "PATE, stored votes"


class StoredCount:
    """Counts votes by looking them up, one row for each example that is asked about."""

    def __init__(self, counts: NDArray[np.int64], n_teachers: int) -> None:
        self._counts, self._n_teachers = counts, n_teachers

    def __call__(self, X: NDArray) -> list[PartialCounts]:
        if len(X) != len(self._counts):
            raise RunError(f"votes on {len(self._counts)} examples are stored, {len(X)} were asked for")
        return [PartialCounts(tuple(range(self._n_teachers)), self._counts)]


def _stored_votes(file: str, folder: Path, public: PublicData) -> Votes:
    """The votes in `file`, as it stands or below `folder`, on the public examples.

    Rows beyond the public examples are left out.
    """
    from pate.data._formats import load_votes
    from pate.data._sources import existing

    path = existing(file, folder)
    votes = load_votes(path)
    if votes.shape[1] != public.n_classes:
        raise DataError(f"{path}: has {votes.shape[1]} columns, but the data has {public.n_classes} classes")
    if len(votes) < len(public.X_public):
        raise DataError(f"{path}: has {len(votes)} rows, but there are {len(public.X_public)} public examples")
    return Votes(votes[: len(public.X_public)])
