"""The whole histogram with noise on every count: for records that vote near themselves."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from pate.accounting import parameters
from pate.accounting.composition import PureGuarantee
from pate.mechanisms.base import Counts, parameter
from pate.mechanisms.noisy_max import LNMax
from pate.noise.integer import Entropy


@dataclass(frozen=True)
class Histogram(LNMax):
    """counts + Lap(scale), all of them, zeros too.

    Neighbouring relation: one vote moves (teachers), or one count changes by 1 (a record that votes near itself).
    Sensitivity: two counts by 1, or one.
    Guarantee: each changed count costs 1/scale, pure: its noisy value's privacy loss is exactly ±1/scale, and the
    other values do not depend on the record. A moved vote is two changed counts, 2/scale. Anything that is made
    of the noisy counts, the label with most of them or a posterior, costs nothing more.

    Parameters
    ----------
    scale : float
        Laplace scale in votes.
    """

    name: ClassVar[str] = "histogram"
    releases_counts: ClassVar[bool] = True
    has_sanitised_cost: ClassVar[bool] = False  # that of LNMax is for the argmax alone
    scale: float = parameter("Laplace scale in votes")

    def release_counts(self, counts: Counts, entropy: Entropy = os.urandom) -> NDArray[np.int64]:
        """All noisy counts, [cells, classes]."""
        votes = parameters.histograms(counts)
        return votes + self.noise.sample(votes.shape, entropy)

    def worst_case(self, max_queries: int, max_answers: int) -> PureGuarantee:  # type: ignore[override]
        max_queries, _ = parameters.limits(max_queries, max_answers)
        return PureGuarantee.of(2 / self.scale, max_queries)

    def describe(self) -> str:
        return f"all counts of votes, each with integer Laplace noise of scale {self.scale:g} votes"
