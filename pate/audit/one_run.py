"""The one-run audit (Steinke, Nasr, Jagielski 2023): many canaries, each in or out by a fair coin, in one training.

Somebody who sees what was released says of the canaries which are in. If too many of the guesses are right, no ε
below a bound can hold. One training is enough, since every canary is a trial of its own. What is attacked is not the
finished run but a new one, of the same config, in a scratch folder with a ledger of its own: see
`pate.audit.one_run_pate` and `pate.audit.one_run_baselines` for the canaries and scores of each kind.

Assumes: the attacker chose the canaries and knows all other records. Holds for any data, as ε does. It does not prove
that there is no better attack; `plan` says what a number of canaries could show at best.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pate.audit.bounds import best_one_run_epsilon, expected_one_run_epsilon
from pate.audit.membership import auc_error
from pate.audit.results import AttackResult, NotApplicable
from pate.config import BaselineConfig, Config

if TYPE_CHECKING:
    from pate.audit.interface import OneRunAudit
    from pate.audit.one_run_pate import OneRun
    from pate.audit.results import Options
    from pate.audit.target import Subject

_QUICK_STEPS = 500  # of DP-SGD; the claim is then that of so many steps
_SHORT_RUNS, _FEW_SHORT_RUNS = 1_000, 300
_ASSUMES = {
    "everything": "the attacker chose the canaries and knows all but their coins and the noise",
    "published": "the attacker chose the canaries, knows the other records and sees what is published at the end",
    "many": "one canary in each of many short runs; the attacker knows all but its coin and the noise",
}

Step = tuple[str, str, Callable[[], "OneRun"]]
"""What kind of canaries, what the attacker knows, and the run."""


@dataclass(frozen=True)
class Planned:
    """What so many canaries can show: all guesses right, and the best to be expected where the claim is true."""

    canaries: int
    at_best: float
    expected: float | None


def plan(
    canaries: Sequence[int], delta: float, confidence: float = 0.95, claimed: float | None = None
) -> list[Planned]:
    """For `pate audit --plan`: no attack with so many canaries shows more than `at_best`; the strongest attack on
    something that leaks all of `claimed` shows about `expected`.

    >>> [(p.canaries, round(p.at_best, 2), round(p.expected, 2)) for p in plan([100, 1000], 1e-5, claimed=1.0)]
    [(100, 3.49, 0.61), (1000, 5.78, 0.88)]
    """
    return [
        Planned(
            n,
            best_one_run_epsilon(n, delta, confidence),
            None if claimed is None else expected_one_run_epsilon(n, claimed, delta, confidence),
        )
        for n in canaries
    ]


def attack(subject: Subject, options: Options) -> list[AttackResult]:
    """One finding for each kind of canary."""
    if subject.kind == "without privacy":
        raise NotApplicable("one-run: a model without privacy promises nothing")
    config = subject.config
    steps = _of_pate(subject, config, options) if isinstance(config, Config) else _of_baseline(subject, config, options)
    found = []
    for kind, knows, work in steps:
        started = time.perf_counter()
        with options.console.working(f"one run with canaries: {kind}"):
            shown = work()
        found.append(_finding(subject.name, kind, knows, shown, time.perf_counter() - started))
    return found


def _of_pate(subject: Subject, config: Config, options: Options) -> list[Step]:
    from pate.audit.one_run_pate import alone, audit_pipeline
    from pate.preflight.features import with_learned_features
    from pate.voters import voters_of

    config = with_learned_features(alone(config), subject.data.X_public)

    def work(audit: OneRunAudit) -> Callable[[], OneRun]:
        return lambda: audit_pipeline(
            audit,
            subject.data,
            subject.records,
            delta=config.budget.delta,
            canaries=options.canaries,
            confidence=options.confidence,
            config_dir=subject.config_dir,
            seed=options.seed,
        )

    audits = voters_of(config).one_run_audits()
    if not audits:
        raise NotApplicable("one-run: these voters take no canaries among the records")
    return [(audit.kind, "everything", work(audit)) for audit in audits]


def _of_baseline(subject: Subject, config: BaselineConfig, options: Options) -> list[Step]:
    from pate.audit import one_run_baselines as of
    from pate.baselines.dp_erm import DPLinearClassifier
    from pate.baselines.dp_sgd import DPSGDClassifier
    from pate.preflight.features import with_learned_preparation

    model = _model(with_learned_preparation(config, subject.data.X_public), subject)
    sure, runs = options.confidence, _FEW_SHORT_RUNS if options.quick else _SHORT_RUNS
    members = subject.members.some(options.records, options.seed)
    others = subject.outsiders.some(options.canaries, options.seed)
    wrong = (others.y + 1) % subject.n_classes
    strange = of.spikes(members.X.shape[1:], options.canaries)
    public = subject.data.X_public if isinstance(model, DPSGDClassifier) else None

    def inputs(X: Any, y: Any) -> Callable[[], OneRun]:
        flat = not getattr(model, "accepts_images", False)
        rows, canaries = (x.reshape(len(x), -1) if flat else x for x in (members.X, X.astype(members.X.dtype)))
        return lambda: of.audit_inputs(model, rows, members.y, canaries, y, confidence=sure, X_public=public)

    steps = [
        ("mislabelled inputs", "published", inputs(others.X, wrong)),
        ("inputs like no other", "published", inputs(strange, np.zeros(len(strange), dtype=np.int64))),
    ]
    if isinstance(model, DPLinearClassifier):
        return [*steps, ("one record's label", "many", lambda: of.audit_erm(model, runs=runs, confidence=sure))]
    if not isinstance(model, DPSGDClassifier):
        return steps
    most = _QUICK_STEPS if options.quick else None
    return [
        (
            "gradients",
            "everything",
            lambda: of.audit_gradients(model, canaries=options.canaries, confidence=sure, max_steps=most),
        ),
        *steps,
        ("clipping", "everything", lambda: of.audit_clipping(model)),
        ("sampling", "many", lambda: of.audit_sampling(model, runs=runs, confidence=sure)),
    ]


def _model(config: BaselineConfig, subject: Subject) -> Any:
    """The baseline, not fitted, as its own run makes it."""
    from pate.baselines import build_baseline

    n_records = config.records if config.records is not None else len(subject.records)
    given = {
        "epsilon": config.budget.epsilon,
        "delta": config.budget.delta,
        "n_records": n_records,
        "classes": range(subject.n_classes),
        "random_state": config.seed,
    }
    return build_baseline(config.baseline.name, dict(config.baseline.params), given)


def _finding(model: str, kind: str, knows: str, shown: OneRun, seconds: float) -> AttackResult:
    guessed = shown.guessed
    by_scores = knows != "many" and shown.confidence < 1
    return AttackResult(
        attack=f"one run: {kind}",
        model=model,
        assumes=_ASSUMES[knows],
        relation=shown.relation,
        canaries=guessed.canaries,
        auc=guessed.auc if by_scores else None,
        auc_error=auc_error(guessed.auc, guessed.canaries // 2, -(-guessed.canaries // 2)) if by_scores else None,
        epsilon_lower=None if shown.confidence == 1 and not shown.refutes else guessed.epsilon_lower,
        confidence=shown.confidence,
        delta=shown.delta,
        epsilon_claimed=shown.epsilon_claimed,
        seconds=seconds,
        note=guessed.score
        if shown.confidence == 1
        else f"{guessed.correct} of {guessed.guesses} guesses right, by: {guessed.score}",
    )
