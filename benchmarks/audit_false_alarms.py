"""How often audits accuse the right code: 200 mechanism and one-run audits, each at a stated confidence.

python benchmarks/audit_false_alarms.py [--confidence 0.95] [--part 1/3] [--times 1]

Every audit goes the real way and draws from the operating system. A bound may be above the claim with probability
1 − confidence; a line for each kind says how often it was, how close to the claim the bounds came, and how long it
took. The last line compares all alarms with what was stated: the probability of as many by chance alone.
`--part 2/3` does the second third of each kind, for machines that have little time in one piece; `--times` does
that many times as many. Costs about three minutes of processor time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.stats import binom

from pate.audit.mechanism import audit_mechanism
from pate.audit.one_run import (
    OneRun,
    alone,
    audit_erm,
    audit_gradients,
    audit_inputs,
    audit_pipeline,
    audit_sampling,
    spikes,
)
from pate.audit.results import OneRunAudit
from pate.baselines.dp_erm import DPLinearClassifier
from pate.baselines.dp_sgd import DPSGDClassifier
from pate.config import Config
from pate.data.private import Records
from pate.data.public import PublicData
from pate.mechanisms import GNMax, Histogram, LNMax, Mechanism, MStab, PermuteAndFlip
from pate.voters import voters_of

_DRAWS = 200_000
_RNG = np.random.default_rng(0)
_RECORDS = Records(_RNG.normal(size=(200, 5)), _RNG.integers(0, 4, 200))
_PUBLIC = PublicData(_RNG.normal(size=(200, 5)), tuple("abcd"))
_SHARED = {
    "data": {"source": "arrays"},
    "student": {"name": "supervised", "params": {"estimator": "sklearn.naive_bayes.GaussianNB"}},
}
_NEIGHBOURS = Config.model_validate(
    {
        **_SHARED,
        "voters": "neighbours",
        "neighbours": {"cells": 50},
        "mechanism": {"name": "histogram", "scale": 2},
    }
)
_TEACHERS = Config.model_validate(
    {
        **_SHARED,
        "n_teachers": 10,
        "teachers": [{"name": "sklearn.tree.DecisionTreeClassifier", "params": {"max_depth": 3}}],
        "mechanism": {"name": "gnmax", "sigma": 10},
        "budget": {"max_queries": 20},
    }
)
_IN_OR_OUT, _CHANGED = voters_of(alone(_NEIGHBOURS)).one_run_audits()
(_PERSONS,) = voters_of(alone(_TEACHERS)).one_run_audits()
_SGD = DPSGDClassifier(
    sigma=4.0, delta=1e-5, n_records=200, lot_size=100, epochs=5, classes=range(3), model="linear", accountant="rdp"
)


class Bound(NamedTuple):
    shown: float
    claimed: float


def _drawn(mechanism: Mechanism, confidence: float, single: bool = False) -> Bound:
    found = audit_mechanism(mechanism, n_teachers=20, n_classes=4, confidence=confidence, draws=_DRAWS, single=single)
    return Bound(found.epsilon_lower, found.epsilon_claimed)


def _guessed(found: OneRun) -> Bound:
    return Bound(found.epsilon_lower, found.epsilon_claimed)


def _canaries(audit: OneRunAudit, confidence: float) -> Bound:
    return _guessed(audit_pipeline(audit, _PUBLIC, _RECORDS, delta=1e-5, canaries=500, confidence=confidence))


def _inputs(confidence: float) -> Bound:
    X, y = _RNG.normal(size=(200, 60)).astype(np.float32), _RNG.integers(0, 3, 200)
    return _guessed(audit_inputs(_SGD, X, y, spikes((60,), 60), np.zeros(60, dtype=np.int64), confidence=confidence))


_KINDS: dict[str, tuple[int, Callable[[float], Bound]]] = {
    "mechanism, GNMax(2)": (18, lambda c: _drawn(GNMax(2.0), c)),
    "mechanism, LNMax(4)": (18, lambda c: _drawn(LNMax(4.0), c)),
    "mechanism, PermuteAndFlip(4)": (18, lambda c: _drawn(PermuteAndFlip(4.0), c)),
    "mechanism, MStab(1, 1e-5)": (18, lambda c: _drawn(MStab(1.0, 1e-5), c)),
    "mechanism, Histogram(2)": (18, lambda c: _drawn(Histogram(2.0), c, single=True)),
    "mechanism, GNMax(3), one count": (12, lambda c: _drawn(GNMax(3.0), c, single=True)),
    "one run, neighbours, in or out": (24, lambda c: _canaries(_IN_OR_OUT, c)),
    "one run, neighbours, changed": (18, lambda c: _canaries(_CHANGED, c)),
    "one run, teachers": (12, lambda c: _canaries(_PERSONS, c)),
    "one run, DP-SGD, gradients": (18, lambda c: _guessed(audit_gradients(_SGD, canaries=500, confidence=c))),
    "one run, DP-SGD, inputs": (12, _inputs),
    "many runs, DP-SGD, sampling": (6, lambda c: _guessed(audit_sampling(_SGD, runs=100, confidence=c))),
    "many runs, DP-ERM": (
        12,
        lambda c: _guessed(audit_erm(DPLinearClassifier(1.0, n_records=100, loss="huber"), runs=500, confidence=c)),
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--confidence", type=float, default=0.95)
    parser.add_argument("--part", default="1/1", help="which share of each kind to do")
    parser.add_argument("--times", type=int, default=1)
    asked = parser.parse_args()
    part, parts = map(int, asked.part.split("/"))
    began, alarms, total = time.perf_counter(), 0, 0
    for name, (number, audit) in _KINDS.items():
        number *= asked.times
        mine = number * part // parts - number * (part - 1) // parts
        if not mine:
            continue
        started, cpu = time.perf_counter(), time.process_time()
        bounds = [audit(asked.confidence) for _ in range(mine)]
        seconds, cpu = (time.perf_counter() - started) / mine, (time.process_time() - cpu) / mine
        accused = sum(bound.shown > bound.claimed for bound in bounds)
        alarms, total = alarms + accused, total + mine
        shown = f"ε shown {np.median([bound.shown for bound in bounds]):.3g}"
        print(
            f"{name:32} {accused:3} of {mine:3} accused; {shown:16} of {bounds[0].claimed:.3g} claimed; "
            f"{seconds:5.2f} s each, {cpu:.2f} s of processor",
            flush=True,
        )
    chance = float(binom.sf(alarms - 1, total, 1 - asked.confidence))
    print(
        f"{alarms} of {total} audits accuse the right code; stated: at most {1 - asked.confidence:.3g} of them. "
        f"As many or more by chance: {chance:.3g}. {time.perf_counter() - began:.0f} s"
    )


if __name__ == "__main__":
    main()
