"""Draws through the real aggregator come near the exact worst case; the search for the worst pair finds it."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest

from pate.audit import mechanism as audited
from pate.audit.confidence_bounds import log_excess
from pate.audit.mechanism import MechanismDraws, audit_mechanism, worst_pair
from pate.audit.results import Options
from pate.config import Config
from pate.mechanisms import ConfidentGNMax, GNMax, Histogram, LNMax, MSamp, MStab, MSvec, PermuteAndFlip

SURE = 1 - 1e-6


def brute_force(mechanism, votes, n_classes, delta):
    """The largest exact ε over all histograms of so many votes, all moves and all events."""
    best = 0.0
    for row in itertools.product(range(votes + 1), repeat=n_classes):
        if sum(row) != votes:
            continue
        ours = np.exp(mechanism.log_outcomes(np.array([row])))[0]
        for source, target in itertools.permutations(range(n_classes), 2):
            if row[source]:
                moved = np.array(row)
                moved[source] -= 1
                moved[target] += 1
                theirs = np.exp(mechanism.log_outcomes(moved[None]))[0]
                for event in itertools.product([False, True], repeat=n_classes + 1):
                    p, q = ours[list(event)].sum(), theirs[list(event)].sum()
                    if p > delta:
                        best = max(best, float(log_excess(np.array(p), np.array(q), delta)))
    return best


@pytest.mark.parametrize("mechanism", [GNMax(1.0), LNMax(1.0), PermuteAndFlip(1.0), MStab(1.0, 0.05)])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_no_histogram_is_told_apart_better_than_the_worst_pair(mechanism, n_classes):
    delta = 0.05
    found = worst_pair(mechanism, 8, delta)
    assert found.epsilon <= mechanism.worst_case(1, 1).epsilon(delta) + 1e-9
    worst = brute_force(mechanism, 7, n_classes, delta)
    assert worst <= found.epsilon * (1.0 + 1e-9 if n_classes == 2 else 1.02)  # LNMax: a third class adds 1 %


@pytest.mark.parametrize(
    ("mechanism", "single", "share"),
    [
        (GNMax(2.0), False, 0.05),
        (LNMax(2.0), False, 0.3),
        (PermuteAndFlip(2.0), False, 0.7),
        (ConfidentGNMax(20.0, 15.0, 4.0), False, 0.0),
        (MStab(1.0, 1e-5), False, 0.7),
        (MSamp(1.0, 1e-5, 0.01, 250), False, 0.7),
        (Histogram(2.0), True, 0.6),
        (GNMax(3.0), True, 0.0),
    ],
)
def test_the_right_code_is_not_accused_and_nearly_shown(mechanism, single, share):
    """False alarm: 1e-6 each."""
    found = audit_mechanism(mechanism, n_teachers=20, n_classes=3, confidence=SURE, draws=300_000, single=single)
    assert not found.repeats
    assert share * found.epsilon_exact <= found.epsilon_lower <= found.epsilon_claimed
    assert found.epsilon_exact <= found.epsilon_claimed * 1.001


def test_a_stream_is_not_accused():
    """False alarm: 1e-6."""
    found = audit_mechanism(MSvec(8.0, 0.3, 1, 3), n_teachers=20, confidence=SURE)
    assert not found.refutes
    assert math.isnan(found.epsilon_exact)


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", [GNMax(40.0), LNMax(20.0), PermuteAndFlip(20.0)])
def test_millions_of_draws_come_within_a_fifth_of_the_worst_pair(mechanism):
    """False alarm: 5 % each of being above the exact ε by chance, which is not asserted; 1e-6 of being above twice."""
    found = audit_mechanism(mechanism, n_teachers=250, n_classes=2, delta=1e-5, draws=audited.DRAWS)
    assert 0.8 * found.epsilon_exact <= found.epsilon_lower < 2 * found.epsilon_claimed


def test_an_attack_for_each_mechanism_of_a_run(monkeypatch):
    monkeypatch.setattr(audited, "FEW_DRAWS", 20_000)
    data = {"source": "digits"}
    student = {"name": "supervised"}
    teachers = Config.model_validate(
        {
            "data": data,
            "n_teachers": 20,
            "teachers": [{"name": "sklearn.svm.SVC"}],
            "mechanism": {"name": "gnmax", "sigma": 2},
            "student": student,
        }
    )
    rounds = [{"cells": 5, "scale": 1}, {"cells": 5, "scale": 2}, {"cells": 9, "scale": 1}]
    neighbours = Config.model_validate(
        {
            "data": data,
            "voters": "neighbours",
            "neighbours": {"rounds": rounds},
            "mechanism": {"name": "histogram", "scale": 2},
            "student": student,
        }
    )
    for config, expected, relation in (
        (teachers, ["GNMax(sigma=2.0)"], "a vote moved"),
        (neighbours, ["Histogram(scale=1.0)", "Histogram(scale=2.0)"], "a record that votes once added or removed"),
    ):
        subject = SimpleNamespace(
            config=config, kind="student", name="x", data=SimpleNamespace(n_classes=10), delta=1e-5
        )
        found = list(MechanismDraws().run(subject, Options(quick=True)))
        assert [one.relation for one in found] == [relation] * len(expected)
        assert all(name in one.note for name, one in zip(expected, found, strict=True))
        assert not any(one.refutes for one in found) or max(one.epsilon_lower for one in found) < 10
