"""Attribute inference: guess a sensitive column of a record from the model, the record's label and its other columns.

Fredrikson et al. 2014; Yeom et al. 2018. What other columns tell about the sensitive one is no leak of the model: so
the guess is compared with imputation from public examples alone. Nor is what the model tells about people in general
(income depends on it): so what it adds is measured on records outside too, and only the difference counts.

Guess: the value v with the largest P(v | other columns) · p(label | record with v), the first from public
examples, the second from the model.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pate.audit.membership import asked_about
from pate.audit.results import AttackResult, NotApplicable, Options
from pate.audit.target import Subject, TargetExamples

ASSUMES = (
    "the attacker has the model's probabilities, all other columns of a record and its label, and public examples to "
    "learn from which values go with which"
)
_KNOWN = {"adult": ("sex", "marital-status")}
_LEAST = 1e-12


@dataclass(frozen=True)
class _Column:
    """A listed category: its places among the features, one for each value."""

    name: str
    places: NDArray[np.int64]

    def known(self, X: NDArray) -> NDArray[np.bool_]:
        return X[:, self.places].sum(axis=1) == 1

    def values(self, X: NDArray) -> NDArray[np.int64]:
        return X[:, self.places].argmax(axis=1)

    def without(self, X: NDArray) -> NDArray:
        return np.delete(X, self.places, axis=1)

    def replaced(self, X: NDArray, value: int) -> NDArray:
        changed = X.copy()
        changed[:, self.places] = 0
        changed[:, self.places[value]] = 1
        return changed


def attack(subject: Subject, options: Options) -> list[AttackResult]:
    """A finding for each sensitive column; `advantage`: what the model adds on members less what it adds on others."""
    return [_guessed(subject, column, options) for column in _columns(subject, options)]


def check_columns(features: Sequence[str] | None, sensitive: Sequence[str]) -> None:
    """Raise where a column that people name as sensitive is none of categories, before anything is trained."""
    known = sorted({feature.partition("=")[0] for feature in features or () if "=" in feature})
    for name in sensitive:
        if name not in known:
            raise NotApplicable(
                f"{{sensitive}}: no column of categories is called that; there are {', '.join(known) or 'none'}",
                sensitive=name,
            )


def _columns(subject: Subject, options: Options) -> list[_Column]:
    source, features = subject.config.data.source, subject.data.features
    wanted = options.sensitive or _KNOWN.get(source, ())
    if features is None:
        raise NotApplicable("attribute: is for tables with named columns")
    if not wanted:
        raise NotApplicable("attribute: which column is sensitive is not said; name one of data.categories")
    check_columns(features, wanted)
    found = []
    for name in wanted:
        places = np.flatnonzero([feature.startswith(f"{name}=") for feature in features])
        found.append(_Column(name, places))
    return found


def _guessed(subject: Subject, column: _Column, options: Options) -> AttackResult:
    started = time.perf_counter()
    impute = _imputation(subject.data.X_public, column)
    asked = asked_about(subject, options)
    with_model, without = {}, {}
    for name, group in (("members", asked.members), ("outsiders", asked.outsiders)):
        known = column.known(group.X)
        group = TargetExamples(group.X[known], group.y[known], group.rows[known])
        truth, public = column.values(group.X), impute(group.X)
        without[name] = (public.argmax(axis=1) == truth).astype(float)
        with_model[name] = ((public * _likelihood(subject, column, group)).argmax(axis=1) == truth).astype(float)
    gains = {name: with_model[name] - without[name] for name in with_model}
    leak = gains["members"].mean() - gains["outsiders"].mean()
    error = math.sqrt(sum(gain.var() / max(1, len(gain)) for gain in gains.values()))

    def told(name: str) -> str:
        return f"{100 * with_model[name].mean():.1f} % with the model, {100 * without[name].mean():.1f} % without"

    return AttackResult(
        attack=f"attribute: {column.name}",
        model=subject.name,
        assumes=ASSUMES,
        members=len(gains["members"]),
        outsiders=len(gains["outsiders"]),
        advantage=float(leak),
        epsilon_claimed=subject.epsilon,
        delta=subject.delta,
        seconds=time.perf_counter() - started,
        note=(
            f"guessed rightly: members {told('members')}; records outside {told('outsiders')}. The model's own leak "
            f"about its records: {100 * leak:.1f} ± {100 * error:.1f} points (one standard error)"
        ),
    )


def _imputation(X_public: NDArray, column: _Column) -> Callable[[NDArray], NDArray[np.float64]]:
    """P(value | other columns), learned from public examples alone."""
    from sklearn.linear_model import LogisticRegression

    known = column.known(X_public)
    values = column.values(X_public)[known]
    if len(np.unique(values)) < 2:
        raise NotApplicable(f"attribute: public examples have one value of {column.name} only")
    model = LogisticRegression(max_iter=300).fit(column.without(X_public)[known], values)

    def shares(X: NDArray) -> NDArray[np.float64]:
        spread = np.full((len(X), len(column.places)), _LEAST)
        spread[:, model.classes_] = model.predict_proba(column.without(X))
        return spread

    return shares


def _likelihood(subject: Subject, column: _Column, group: TargetExamples) -> NDArray[np.float64]:
    """How likely the model makes each record's label, for each value that the column could have."""
    rows = np.arange(len(group))
    shares = [
        subject.predict_proba(column.replaced(group.X, value))[rows, group.y] for value in range(len(column.places))
    ]
    return np.maximum(np.stack(shares, axis=1), _LEAST)
