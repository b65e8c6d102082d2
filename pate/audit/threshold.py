"""Loss threshold: a record that the model is surer of than of most was probably learned from.

Yeom, Giacomelli, Fredrikson, Jha 2018, "Privacy Risk in Machine Learning: Analyzing the Connection to Overfitting";
Salem et al. 2019. Nothing but the model's confidence in the true class is used.
"""

from __future__ import annotations

from pate.audit.membership import Asked, Scores, confidence, membership_attack
from pate.audit.results import AttackResult, Options
from pate.audit.target import Subject

ASSUMES = "the attacker has the model's probabilities, and a record with its true label"


def attack(subject: Subject, options: Options) -> list[AttackResult]:
    """Score: the model's confidence in the true class."""

    def scores(asked: Asked) -> Scores:
        return confidence(subject.model, asked.X, asked.y)

    return [membership_attack("loss threshold", subject, options, ASSUMES, scores)]
