"""How many teachers, found on labelled public data that stands in for the private records.

How much worse a teacher gets with fewer records decides it, and of private records nothing tells that without being
paid for. Labelled public examples of the same kind tell it for nothing: teachers of the very size that a number of
teachers would leave each of them are trained on those, and their votes are scaled up to that number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pate.accounting import parameters
from pate.errors import DataError
from pate.mechanisms import Mechanism
from pate.planning.plan import Workload, solve_noise

if TYPE_CHECKING:
    from pate.data.private import PrivateData
    from pate.data.public import PublicData
    from pate.voters.teachers.settings import TeachersConfig

NUMBERS = (10, 25, 50, 100, 250, 500, 1000, 2500)
_FEWEST, _MOST = 5, 25  # teachers that are trained for a number of them
_MAX_EXAMPLES = 1000  # that they are asked about


@dataclass(frozen=True)
class TriedNumber:
    """A number of teachers: how many were trained for it, and what share of public examples is right, of 1."""

    n_teachers: int
    records_each: int
    trained: int
    teacher: float
    plurality: float
    released: float


@dataclass(frozen=True)
class StandIn:
    """All numbers that were tried, under one mechanism, whose noise keeps the workload within ε; `best` among them."""

    mechanism: Mechanism
    tried: tuple[TriedNumber, ...]
    too_large: tuple[int, ...]

    @property
    def best(self) -> TriedNumber:
        """The number whose released labels are right most often; of equals the smallest."""
        return max(self.tried, key=lambda one: (one.released, -one.n_teachers))


def find_number(
    config: TeachersConfig,
    data: PublicData,
    known: PrivateData,
    records: int,
    target_epsilon: float,
    workload: Workload,
    numbers: Sequence[int] = NUMBERS,
    progress: Callable[[str], None] = lambda _: None,
) -> StandIn:
    """Try `numbers` of teachers as `config` has them, for `records` private records, by GNMax at `target_epsilon`.

    All of `data` and its `known` records are public; teachers are asked about its public examples if those have labels,
    else about its test set. Numbers for which it has too few records (five teachers' worth) or that leave a private
    teacher fewer than two are left out.
    """
    from pate.data.private import Records
    from pate.voters.teachers.local import count_votes

    records = parameters.whole(records, "records", least=2)
    X, y = (data.X_test, data.y_test) if data.y_public is None else (data.X_public, data.y_public)
    if not isinstance(known, Records) or X is None or y is None:
        text = "{stand_in}: needs records that can be read here, and a test set with labels to try them on"
        raise DataError(text, stand_in=True)
    usable = known.only(known.usable(data.n_classes))
    mechanism = solve_noise({"name": "gnmax"}, target_epsilon, workload)
    X, y = X[:_MAX_EXAMPLES], y[:_MAX_EXAMPLES]
    right = np.arange(len(y)), y
    tried, too_large = list[TriedNumber](), list[int]()
    for number in numbers:
        each = records // number
        trained = min(number, _MOST, len(usable) // max(1, each))
        if each < 2:
            continue
        if trained < min(number, _FEWEST):
            too_large.append(number)
            continue
        progress(f"{number:,} teachers of {each:,} records: training {trained} of them")
        chosen = np.random.default_rng(0).permutation(len(usable))[: trained * each]
        kept = usable.only(np.isin(np.arange(len(usable)), chosen))
        votes = count_votes(config.model_copy(update={"n_teachers": trained}), data, kept, X)
        tried.append(
            TriedNumber(
                number,
                each,
                trained,
                float(votes[right].mean() / trained),
                float((votes.argmax(1) == y).mean()),
                float(np.exp(mechanism.log_outcomes(scaled(votes, number))[right]).mean()),
            )
        )
    if not tried:
        raise DataError(
            f"{{stand_in}}: {len(usable):,} public records are too few to stand in for {records:,}; give more of them",
            stand_in=True,
        )
    return StandIn(mechanism, tuple(tried), tuple(too_large))


def scaled(votes: NDArray[np.int64], number: int) -> NDArray[np.int64]:
    """Votes scaled to `number` teachers: whole votes, the largest remainders rounded up.

    >>> scaled(np.array([[3, 1, 1]]), 12)
    array([[7, 3, 2]])
    """
    exact = votes * number / votes.sum(1, keepdims=True)
    whole = np.floor(exact + 1e-9).astype(np.int64)
    order = np.argsort(whole - exact, axis=1, kind="stable")
    rank = np.argsort(order, axis=1, kind="stable")
    return whole + (rank < number - whole.sum(1, keepdims=True))
