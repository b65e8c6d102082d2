"""What membership inference has in common: whom it asks about, the statistic it goes by, and how success is measured.

An attack gives every example a score that should be higher where the example was a member. The figures come from the
scores of members and outsiders alone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pate.audit.bounds import epsilon_from_rates
from pate.audit.learners import Scorer
from pate.audit.results import AttackResult, Options
from pate.audit.target import Subject, TargetExamples

Scores = NDArray[np.float64]

INDEPENDENT = (
    "members and test examples come from one source and count as independent trials of one membership test, which a "
    "single trained model gives only nearly"
)
_MIN_SHARE = 1e-15
_MAX_AT_RISK = 20
_MAX_THRESHOLDS = 200
_MAX_POINTS = 400


@dataclass(frozen=True)
class Asked:
    """The examples that membership is guessed of: members first, then outsiders."""

    members: TargetExamples
    outsiders: TargetExamples

    @property
    def X(self) -> NDArray:  # noqa: N802
        return np.concatenate([self.members.X, self.outsiders.X])

    @property
    def y(self) -> NDArray[np.int64]:
        return np.concatenate([self.members.y, self.outsiders.y])

    @property
    def is_member(self) -> NDArray[np.bool_]:
        return np.arange(len(self.members) + len(self.outsiders)) < len(self.members)


def asked_about(subject: Subject, options: Options) -> Asked:
    """At most `options.examples` of each, the same for every model of an audit."""
    most, seed = options.examples, options.seed
    return Asked(subject.members.some(most, seed), subject.outsiders.some(most, seed))


def confidence(model: Scorer, X: NDArray, y: NDArray[np.int64]) -> Scores:
    """ln(p/(1 − p)) of the true class (Carlini et al. 2022): nearly normal over models, and rises as the loss falls."""
    shares = np.asarray(model.predict_proba(X), dtype=np.float64)
    own = shares[np.arange(len(y)), y]
    others = shares.sum(axis=1) - own
    rest = np.where(np.eye(shares.shape[1], dtype=bool)[y], 0.0, shares).sum(axis=1)  # exact where p is nearly 1
    return np.log(np.maximum(own, _MIN_SHARE)) - np.log(np.maximum(np.minimum(others, rest), _MIN_SHARE))


def membership_attack(
    name: str, subject: Subject, options: Options, assumes: str, scores: Callable[[Asked], Scores], note: str = ""
) -> AttackResult:
    """The finding of an attack that gives each example asked about a score."""
    started = time.perf_counter()
    asked = asked_about(subject, options)
    found = scores(asked)
    return finding_of(name, subject, options, assumes, asked, found, time.perf_counter() - started, note)


def finding_of(
    name: str,
    subject: Subject,
    options: Options,
    assumes: str,
    asked: Asked,
    scores: Scores,
    seconds: float,
    note: str = "",
) -> AttackResult:
    """AUC, true positives at few false ones, advantage and a lower bound on ε, from the scores of all asked about."""
    from sklearn.metrics import roc_auc_score, roc_curve

    inside, is_member = scores[: len(asked.members)], asked.is_member
    false, true, _ = roc_curve(is_member, scores)
    auc = float(roc_auc_score(is_member, scores))
    n_members, n_outsiders = len(asked.members), len(asked.outsiders)
    worst = np.argsort(-inside, kind="stable")[:_MAX_AT_RISK]
    return AttackResult(
        attack=name,
        model=subject.name,
        assumes=f"{assumes}; {INDEPENDENT}",
        members=n_members,
        outsiders=n_outsiders,
        auc=auc,
        auc_error=auc_error(auc, n_members, n_outsiders),
        tpr_at_0_1_percent=_true_at(false, true, 0.001),
        tpr_at_1_percent=_true_at(false, true, 0.01),
        advantage=float((true - false).max()),
        epsilon_lower=epsilon_shown(inside, scores[n_members:], subject.delta, options.confidence, options.seed),
        confidence=options.confidence,
        delta=subject.delta,
        epsilon_claimed=subject.epsilon,
        seconds=seconds,
        note=note,
        curve=_thinned(false, true),
        at_risk=tuple((int(asked.members.rows[i]), float(inside[i])) for i in worst),
    )


def epsilon_shown(members: Scores, outsiders: Scores, delta: float, confidence: float, seed: int) -> float:
    """A lower bound on ε: one half of the examples chooses the threshold, the other half, which had no say, tests it.

    Neighbouring relation: one record in or out. The bound holds with probability `confidence` if the halves that test
    are independent trials, whatever threshold was chosen.
    """
    generator = np.random.default_rng([seed, 1])
    members, outsiders = generator.permutation(members), generator.permutation(outsiders)
    if min(len(members), len(outsiders)) < 2:
        return 0.0
    (choose_in, test_in), (choose_out, test_out) = (np.array_split(scores, 2) for scores in (members, outsiders))

    def shown(inside: Scores, outside: Scores, threshold: float) -> float:
        hits, alarms = int((inside >= threshold).sum()), int((outside >= threshold).sum())
        return epsilon_from_rates(hits, len(inside), alarms, len(outside), delta, confidence)

    both = np.unique(np.concatenate([choose_in, choose_out]))
    candidates = np.unique(np.quantile(both, np.linspace(0, 1, _MAX_THRESHOLDS), method="nearest"))
    best = max(candidates, key=lambda threshold: shown(choose_in, choose_out, threshold))
    return shown(test_in, test_out, best)


def max_detectable_epsilon(outsiders: int, delta: float, confidence: float) -> float:
    """The most that membership inference can show: it is always right on as many members as outsiders.

    >>> round(max_detectable_epsilon(200, 1e-5, 0.95), 2)
    3.28
    """
    tested = outsiders // 2  # the other half chooses the threshold
    return epsilon_from_rates(tested, tested, 0, tested, delta, confidence) if tested else 0.0


def auc_error(auc: float, members: int, outsiders: int) -> float:
    """Standard error of an AUC (Hanley and McNeil 1982); at 0.5 it is that of the rank test, ties apart.

    >>> round(auc_error(0.5, 1000, 1000), 4)
    0.0129
    """
    if min(members, outsiders) == 0:
        return math.inf
    first, second = auc / (2 - auc), 2 * auc**2 / (1 + auc)
    spread = auc * (1 - auc) + (members - 1) * (first - auc**2) + (outsiders - 1) * (second - auc**2)
    return math.sqrt(max(spread, 0.0) / (members * outsiders))


def _true_at(false: NDArray[np.float64], true: NDArray[np.float64], most: float) -> float:
    """The largest true positive rate of a threshold with no more false positives than `most`."""
    return float(true[false <= most].max())


def _thinned(false: NDArray[np.float64], true: NDArray[np.float64]) -> tuple[tuple[float, float], ...]:
    """The curve with fewer points: the first, which few false positives are about, more densely."""
    if len(false) > _MAX_POINTS:
        steps = np.geomspace(1, len(false), _MAX_POINTS // 2) - 1
        even = np.linspace(0, len(false) - 1, _MAX_POINTS // 2)
        kept = np.unique(np.concatenate([steps, even]).astype(int))
        false, true = false[kept], true[kept]
    return tuple((round(float(f), 6), round(float(t), 6)) for f, t in zip(false, true, strict=True))
