"""RMIA: robust membership inference (Zarifzadeh, Liu, Shokri 2024, "Low-Cost High-Power Membership Inference Attacks").

How much likelier the model makes an example than models at large do, p(x | model)/p(x), is compared with the same
ratio of records outside: the score is the share of those that it exceeds by a factor. It gains most where there are few
shadow models.
"""

from __future__ import annotations

import time

import numpy as np

from pate.audit.lira import ASSUMES, OTHER_KIND, observed_confidence
from pate.audit.membership import Asked, Scores, asked_about, finding_of
from pate.audit.results import AttackResult, Options
from pate.audit.shadows import Shadows, shadows_for
from pate.audit.target import Subject

_FACTOR = 1.0  # γ of the paper


def attack(subject: Subject, options: Options) -> list[AttackResult]:
    """One finding, with p(x) from shadow models with and without the example."""
    started = time.perf_counter()
    asked = asked_about(subject, options)
    shadows = shadows_for(subject, asked, options)
    scores = rmia(observed_confidence(subject, asked, shadows), shadows, asked)
    assumes = ASSUMES.format(f"{options.shadows} shadow models ({shadows.description})")
    note = "" if shadows.own_kind else OTHER_KIND
    return [finding_of("RMIA", subject, options, assumes, asked, scores, time.perf_counter() - started, note)]


def rmia(observed: Scores, shadows: Shadows, asked: Asked) -> Scores:
    """The share of outsiders z whose ratio times the factor is below the example's; ties by the ratio itself."""
    at_large = 0.5 * (_mean(shadows, shadows.inside) + _mean(shadows, ~shadows.inside))
    ratio = _probability(observed) / np.maximum(at_large, 1e-12)
    population = np.sort(ratio[len(asked.members) :])
    share = np.searchsorted(population, ratio / _FACTOR, side="right") / len(population)
    return share + 1e-6 * ratio / max(float(ratio.max()), 1e-12)


def _mean(shadows: Shadows, which: np.ndarray) -> Scores:
    """The mean probability of each example over the shadow models that `which` selects."""
    shares = np.ma.masked_array(_probability(shadows.confidence), ~which)
    return np.asarray(shares.mean(axis=0).filled(0.5))


def _probability(confidence: Scores) -> Scores:
    return 1 / (1 + np.exp(-np.clip(confidence, -40, 40)))
