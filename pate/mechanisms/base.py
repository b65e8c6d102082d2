"""What every mechanism promises, and the words they share."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from pate.accounting.composition import Guarantee
from pate.noise.integer import Entropy

UNANSWERED = -1
"""⊥: the mechanism declined to answer. It is released, stored and charged like any answer."""

Counts = NDArray[np.integer]
"""Vote histograms, int[queries, classes]; each row sums to the number of teachers."""


class Mechanism(ABC):
    """A distribution over answers for each vote histogram; subclasses are frozen dataclasses of public parameters.

    Neighbouring histograms: one record is in one part, so it changes at most one teacher's vote; one vote moves
    from one class to another (L1 ≤ 2, L2 ≤ √2, every count by at most 1).
    """

    name: ClassVar[str]
    may_decline: ClassVar[bool] = False
    """Whether ⊥ is a possible answer."""
    charged_as_stream: ClassVar[bool] = False
    """Whether the queries share secret noise: then `worst_case` prices the whole stream, and the costs of
    single queries, read off `log_outcomes`, must not be composed."""

    @property
    def votes_per_record(self) -> int:
        """The most votes of one histogram that a record can move; the exact accountant takes 1 only."""
        return 1

    @abstractmethod
    def release(self, counts: Counts, entropy: Entropy = os.urandom) -> NDArray[np.int64]:
        """One noisy answer a histogram: a class index, or `UNANSWERED`."""

    @abstractmethod
    def log_outcomes(self, counts: Counts) -> NDArray[np.float64]:
        """Exact log-probability of each answer, float[queries, classes + 1]; ⊥ is the last column."""

    @abstractmethod
    def worst_case(self, asked: int, answered: int) -> Guarantee:
        """What `asked` queries of which at most `answered` get a label cost, whatever the votes are."""

    @abstractmethod
    def noise_draws(self, n_classes: int) -> int:
        """The most random draws one query takes; the accountant charges their sampling error to δ."""
