"""A state machine drives aggregator and ledger (ask again, crash, reopen, exceed) against a dictionary."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support.aggregators import KEY, make, vote

from pate.boundary._guard import Failed
from pate.errors import BudgetExceeded
from pate.ledger import Charge
from pate.ledger._chain import verify
from pate.mechanisms import UNANSWERED, ConfidentGNMax

EXAMPLES = st.lists(st.integers(0, 60), min_size=1, max_size=12)
MECHANISM = ConfidentGNMax(threshold=14, sigma1=3.0, sigma2=3.0)
ASKED, ANSWERED = 40, 30


def failing_entropy(after: int) -> Callable[[int], bytes]:
    """The operating system's, that breaks at call number `after`."""
    calls = itertools.count()

    def entropy(n: int) -> bytes:
        if next(calls) >= after:
            raise ConnectionError
        return os.urandom(n)

    return entropy


class AggregatorMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="pate-aggregator-"))
        self.told: dict[int, int] = {}
        self.reopen()
        self.aggregator.collect(np.arange(61, dtype=np.float32)[:, None], vote)

    @rule()
    def reopen(self) -> None:
        self.aggregator = make(self.folder, MECHANISM, ASKED, ANSWERED)

    @rule(examples=EXAMPLES)
    def ask(self, examples: list[int]) -> None:
        new = {example for example in examples if example not in self.told}
        answered = sum(label != UNANSWERED for label in self.told.values())
        fits = len(self.told) + len(new) <= ASKED and answered + len(new) <= ANSWERED
        try:
            labels, room = self.aggregator.label(np.array(examples, dtype=np.float32)[:, None])
        except BudgetExceeded:
            assert new
            assert not fits
            return
        assert fits or not new
        for example, label in zip(examples, labels.tolist(), strict=True):
            assert self.told.setdefault(example, label) == label
        assert room == self.aggregator.room()

    @rule(examples=EXAMPLES, after=st.integers(0, 2))
    def crash_while_noise_is_drawn(self, examples: list[int], after: int) -> None:
        new = {example for example in examples if example not in self.told}
        if not new or len(new) > self.aggregator.room():
            return
        self.aggregator._entropy = failing_entropy(after)
        X = np.array(examples, dtype=np.float32)[:, None]
        try:
            labels = self.aggregator.label(X).labels
        except Failed:
            labels = None
        self.aggregator._entropy = os.urandom
        if labels is not None:  # it needed fewer draws than that
            self.told |= dict(zip(examples, labels.tolist(), strict=True))

    @invariant()
    def ledger_agrees_with_what_was_told(self) -> None:
        answered = sum(label != UNANSWERED for label in self.told.values())
        assert self.aggregator.spent() == Charge(len(self.told), answered)
        verify(self.folder / "ledger.db", KEY, self.folder / "ledger.head")

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)


AggregatorMachine.TestCase.settings = settings(max_examples=15, stateful_step_count=15, deadline=None)
TestAggregatorMachine = pytest.mark.filterwarnings("ignore")(AggregatorMachine.TestCase)
