"""Correctness gap: who is classified rightly was probably learned from (Yeom et al. 2018; the "gap attack").

It needs labels only, and gains exactly the difference between accuracy on members and on others: the part of any attack
that overfitting alone explains.
"""

from __future__ import annotations

from pate.audit.membership import Asked, Scores, membership_attack
from pate.audit.results import AttackResult, Options
from pate.audit.target import Subject

ASSUMES = "the attacker has the model's labels, and a record with its true label"


def attack(subject: Subject, options: Options) -> list[AttackResult]:
    """Score: 1 where the predicted class is the true one."""

    def scores(asked: Asked) -> Scores:
        return (subject.predict(asked.X) == asked.y).astype(float)

    return [membership_attack("correctness gap", subject, options, ASSUMES, scores)]
