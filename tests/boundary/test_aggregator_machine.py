"""A state machine drives aggregator and ledger (ask again, crash, reopen, exceed) against a dictionary and a count."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support.aggregators import KEY, examples, make, unsure

from pate.boundary._guard import Failed
from pate.errors import BudgetExceeded
from pate.ledger import Charge, SharedBudget, SharedLedger
from pate.ledger._chain import verify
from pate.mechanisms import UNANSWERED, ConfidentGNMax, LectureMSvec, Mechanism, MSvec

ASKED, ANSWERED, EXAMPLES = 40, 30, 61
BUDGET = SharedBudget(order=8.0, epsilon=3.0, delta=1e-5)
ROWS = st.lists(st.integers(0, EXAMPLES - 1), min_size=1, max_size=12)


@dataclass(frozen=True)
class Kind:
    """A mechanism; how many ⊥ end its stream, if any, and whether a restart uses up one of them."""

    mechanism: Mechanism
    shared: bool = False
    most_unstable: int | None = None
    has_secret: bool = False


KINDS = {
    "limits of its own": Kind(ConfidentGNMax(threshold=14, sigma1=3.0, sigma2=3.0)),
    "a shared budget": Kind(ConfidentGNMax(threshold=14, sigma1=12.0, sigma2=12.0), shared=True),
    "a fixed threshold": Kind(MSvec(500.0, 0.01, unstable=6, max_queries=ASKED), most_unstable=6),
    "a secret threshold": Kind(LectureMSvec(500.0, 0.01, unstable=5, max_queries=ASKED), False, 5, True),
}


class Breakable:
    """The operating system's entropy, which may break after so many calls."""

    left: float = float("inf")

    def __call__(self, n: int) -> bytes:
        self.left -= 1
        if self.left < 0:
            raise ConnectionError
        return os.urandom(n)


class AggregatorMachine(RuleBasedStateMachine):
    @initialize(name=st.sampled_from(sorted(KINDS)))
    def begin(self, name: str) -> None:
        self.kind, self.folder = KINDS[name], Path(tempfile.mkdtemp(prefix="pate-aggregator-"))
        self.shared = SharedLedger.create(self.folder / "shared", BUDGET) if self.kind.shared else None
        self.prices = self.kind.mechanism.rdp_per_query(BUDGET.order) if self.kind.shared else (0.0, 0.0)
        self.told: dict[int, int] = {}
        self.unstable = 0
        self.entropy = Breakable()
        self.reopen()
        self.aggregator.collect(examples(EXAMPLES), unsure)

    @rule()
    def reopen(self) -> None:
        """As after a crash: the old connection is simply dropped, and a secret threshold with it."""
        self.aggregator = make(
            self.folder, self.kind.mechanism, ASKED, ANSWERED, entropy=self.entropy, shared=self.shared
        )
        self.is_live = False

    @property
    def answered(self) -> int:
        return sum(label != UNANSWERED for label in self.told.values())

    @property
    def resumed_unstable(self) -> int:
        """What the ledger holds, and one more where a threshold that was asked about is lost."""
        return self.unstable + (self.kind.has_secret and not self.is_live and bool(self.told))

    @property
    def has_ended(self) -> bool:
        return self.kind.most_unstable is not None and self.resumed_unstable >= self.kind.most_unstable

    def fits(self, n: int) -> bool:
        """Whether n more are sure to fit, even if every one of them is answered."""
        asked, answered = self.prices
        spent = len(self.told) * asked + self.answered * answered
        in_budget = not self.kind.shared or spent + n * (asked + answered) <= BUDGET.rdp
        return len(self.told) + n <= ASKED and self.answered + n <= ANSWERED and in_budget and not self.has_ended

    def tell(self, rows: list[int]) -> None:
        new = [row for row in dict.fromkeys(rows) if row not in self.told]
        labels, room = self.aggregator.label(np.array(rows, dtype=np.float32)[:, None])
        given = dict(zip(rows, labels.tolist(), strict=True))
        if new:
            assert self.fits(len(new))
            self.unstable, self.is_live = self.resumed_unstable, True
        for row in new:
            if self.has_ended:
                assert given[row] == UNANSWERED
                continue
            self.told[row] = given[row]
            self.unstable += self.kind.most_unstable is not None and given[row] == UNANSWERED
        assert given.items() >= {row: self.told[row] for row in rows if row in self.told}.items()
        assert labels.tolist() == [given[row] for row in rows]
        assert room == self.aggregator.room()

    @rule(rows=ROWS)
    def ask(self, rows: list[int]) -> None:
        new = {row for row in rows if row not in self.told}
        try:
            self.tell(rows)
        except BudgetExceeded:
            assert not self.fits(len(new))

    @rule(rows=ROWS, after=st.integers(0, 2))
    def crash_while_noise_is_drawn(self, rows: list[int], after: int) -> None:
        if not self.fits(len({row for row in rows if row not in self.told})):
            return
        self.entropy.left = after
        try:
            self.tell(rows)  # it may need fewer draws than that
        except Failed:
            self.is_live = False
        finally:
            self.entropy.left = float("inf")

    @invariant()
    def ledger_agrees_with_what_was_told(self) -> None:
        assert self.aggregator.spent() == Charge(len(self.told), self.answered, self.unstable)
        room = self.aggregator.room()
        assert not self.fits(room + 1)
        assert not room or self.fits(room)

    def teardown(self) -> None:
        if not hasattr(self, "folder"):
            return
        if self.shared is None:
            verify(self.folder / "ledger.db", KEY, self.folder / "ledger.head")
        else:
            verify(self.shared.db, self.shared.key, self.shared.head)
        shutil.rmtree(self.folder)


AggregatorMachine.TestCase.settings = settings(
    max_examples=24,
    stateful_step_count=12,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # a dozen steps need no shrinking, which takes minutes
)
TestAggregatorMachine = pytest.mark.filterwarnings("ignore")(AggregatorMachine.TestCase)
