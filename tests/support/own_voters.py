"""A kind of voters that nobody in the package knows: parts that vote by their class means, in one file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.boundary import PartialCounts
from pate.config import QueryConfig
from pate.data._settings import Settings
from pate.data.partition import parts_of
from pate.data.private import records_of
from pate.mechanisms import GNMax
from pate.report.schema import VotersFacts
from pate.voters.queries import QueryVoters


class MeansSettings(Settings):
    """`power`: which power of the differences is summed for the distance to a mean."""

    power: int = 2


class MeansConfig(QueryConfig):
    """A run whose voters are class means."""

    means: MeansSettings


class Means(QueryVoters[MeansConfig]):
    """Each part votes for the class whose mean, over the part's records, is nearest to the query.

    Neighbouring relation: one record is added, removed, or changed under its id. Sensitivity: it is in one part, so one
    vote moves in every query.
    """

    name = "support.own_voters.Means"
    config_class = MeansConfig
    classifier_parameters = ("n_teachers",)

    @classmethod
    def for_classifier(
        cls, given: Mapping[str, Any], choice: Any, n_public: int, n_classes: int
    ) -> tuple[dict[str, Any], GNMax]:
        budget = {"max_queries": given["max_queries"] or n_public}
        sections = {"means": {"power": 2}, "n_teachers": given["n_teachers"], "budget": budget}
        return sections, given["mechanism"]

    def announcement(self, public: Any) -> str:
        return f"{self.config.n_teachers} parts of class means, {self.config.budget.max_queries} queries"

    def collect_votes(self, context: Any, private: Any, aggregator: Any, queries: NDArray, is_done: bool) -> None:
        if is_done:
            return
        records, n_classes = records_of(private), context.public.n_classes
        rows = parts_of(
            records.X, records.y, records.ids, context.run.key, self.mechanism.split(self.config.n_teachers)
        )

        def count(X: NDArray) -> list[PartialCounts]:
            counts = np.zeros((len(X), n_classes), dtype=np.int64)
            for part in rows:
                counts[np.arange(len(X)), self._votes(records.X[part], records.y[part], X)] += 1
            return [PartialCounts(tuple(range(len(rows))), counts)]

        aggregator.collect(queries, count)

    def _votes(self, X: NDArray, y: NDArray, queries: NDArray) -> NDArray[np.int64]:
        known = np.unique(y)
        if not len(known):
            return np.zeros(len(queries), dtype=np.int64)
        means = np.array([X[y == label].mean(axis=0) for label in known])
        away = (np.abs(queries[:, None] - means) ** self.config.means.power).sum(axis=tuple(range(2, queries.ndim + 1)))
        return known[away.argmin(axis=1)]

    def facts(self, public: Any, queries: Any, labelled: int) -> VotersFacts:
        n = self.config.n_teachers
        return VotersFacts(
            kind="class means",
            method=f"PATE, {n} class means",
            labelled=labelled,
            figures=(("class means", f"{n}"),),
            counts=(("class means", f"{n}"),),
            steps=(("Private records", "each is in one part"), (f"{n} class means", "votes and noise")),
            summary=f"{n} parts voted by their class means.",
            sensitivity="A record is in one part and moves one vote.",
            limits=(f"At most {queries.max_queries} queries.",),
            labels="labels.npz: labels of public examples",
        )

    @property
    def described(self) -> str:
        return "PATE, class means"
