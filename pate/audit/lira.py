"""LiRA: likelihood ratios against shadow models (Carlini, Chien, Nasr, Song, Terzis, Tramèr 2022, "Membership Inference
Attacks From First Principles").

For each example, shadow models that learned from it and those that did not give two normal distributions of confidence;
online, the score is the ratio of their densities at the model's confidence; offline only the models without it are
used, and the score is how far above them the model is. With fewer than 64 shadow models the spread is pooled over
examples, as the paper does.
"""

from __future__ import annotations

import numpy as np

from pate.audit.membership import Asked, Scores, asked_about, confidence, finding_of
from pate.audit.results import AttackResult, Options
from pate.audit.shadows import Shadows, shadows_for
from pate.audit.target import Subject

ASSUMES = (
    "the attacker has the model's probabilities, records with true labels, and trains {} on data of the same source"
)
_ENOUGH_FOR_A_SPREAD_EACH = 64
_MIN_SPREAD = 1e-3


def attack(subject: Subject, options: Options) -> list[AttackResult]:
    """Two findings, online and offline, by the same shadow models."""
    import time

    started = time.perf_counter()
    asked = asked_about(subject, options)
    shadows = shadows_for(subject, asked, options)
    observed = observed_confidence(subject, asked, shadows)
    assumes = ASSUMES.format(f"{options.shadows} shadow models ({shadows.description})")
    note = "" if shadows.own_kind else OTHER_KIND
    found = []
    for name, scores in (("LiRA, online", online(observed, shadows)), ("LiRA, offline", offline(observed, shadows))):
        seconds, started = time.perf_counter() - started, time.perf_counter()
        found.append(finding_of(name, subject, options, assumes, asked, scores, seconds, note))
    return found


OTHER_KIND = (
    "shadow models are of the kind without privacy: the attacker calibrates how hard each record is, and does not "
    "imitate the whole pipeline"
)


def observed_confidence(subject: Subject, asked: Asked, shadows: Shadows) -> Scores:
    """The model's confidence in each example; of another kind than the shadows', with their mean and spread."""
    observed = confidence(subject.model, asked.X, asked.y)
    if shadows.own_kind:
        return observed
    spread = max(float(observed.std()), _MIN_SPREAD)
    return (observed - observed.mean()) / spread * shadows.confidence.std() + shadows.confidence.mean()


def online(observed: Scores, shadows: Shadows) -> Scores:
    """ln of the density with the example in, over that with it out."""
    mean_in, spread_in = _normal(shadows.confidence, shadows.inside)
    mean_out, spread_out = _normal(shadows.confidence, ~shadows.inside)
    return _log_density(observed, mean_in, spread_in) - _log_density(observed, mean_out, spread_out)


def offline(observed: Scores, shadows: Shadows) -> Scores:
    """How many standard deviations the model's confidence is above that of models that never saw the example."""
    mean, spread = _normal(shadows.confidence, ~shadows.inside)
    return (observed - mean) / spread


def _normal(values: Scores, which: np.ndarray) -> tuple[Scores, Scores]:
    """Mean and standard deviation of each column over the rows that `which` selects in it."""
    chosen = np.ma.masked_array(values, ~which)
    mean = chosen.mean(axis=0).filled(0.0)
    if len(values) >= _ENOUGH_FOR_A_SPREAD_EACH:
        spread = chosen.std(axis=0).filled(1.0)
    else:
        spread = np.full(values.shape[1], float((chosen - mean).std()))
    return np.asarray(mean), np.maximum(np.asarray(spread), _MIN_SPREAD)


def _log_density(x: Scores, mean: Scores, spread: Scores) -> Scores:
    return -0.5 * ((x - mean) / spread) ** 2 - np.log(spread)
