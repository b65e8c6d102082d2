"""Attribute inference: guess a sensitive column of a record from the model, the record's label and its other columns.

Fredrikson et al. 2014; Yeom et al. 2018. What other columns tell about the sensitive one is no leak of the model: so
the guess is compared with imputation from public examples alone. Nor is what the model tells about people in general
(income depends on it): so what it adds is measured on records outside too, and only the difference counts.

Guess: the value v with the largest P(v | other columns) · p(label | record with v), the first from public
examples, the second from the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pate.audit._target import Subject
from pate.audit.membership import Asked, asked_about
from pate.audit.results import Attack, AttackResult, NotApplicable, Options

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


class AttributeInference(Attack):
    """A finding for each sensitive column; `advantage`: what the model adds on members less what it adds on others."""

    name = title = "attribute"
    explanation = (
        "Knows all columns of a record but one, and lets the model help to guess that one. Only what the model adds "
        "for its own records, beyond public knowledge, counts."
    )

    def run(self, subject: Subject, options: Options) -> Iterable[AttackResult]:
        features, wanted = subject.data.features, options.sensitive or _KNOWN.get(subject.config.data.source, ())
        if features is None:
            raise NotApplicable("attribute: is for tables with named columns")
        if not wanted:
            raise NotApplicable("attribute: which column is sensitive is not said; name one of data.categories")
        check_columns(features, wanted)
        asked = asked_about(subject, options)
        for name in wanted:
            places = np.flatnonzero([feature.startswith(f"{name}=") for feature in features])
            yield self._guess(subject, _Column(name, places), asked)

    def _guess(self, subject: Subject, column: _Column, asked: Asked) -> AttackResult:
        impute = _imputation(subject.data.X_public, column)
        gains, told = [], []
        for group in (asked.members, asked.outsiders):
            known = column.known(group.X)
            X, y = group.X[known], group.y[known]
            truth, public = column.values(X), impute(X)
            without = (public.argmax(axis=1) == truth).astype(float)
            with_model = ((public * _likelihood(subject, column, X, y)).argmax(axis=1) == truth).astype(float)
            gains.append(with_model - without)
            told.append(f"{100 * with_model.mean():.1f} % with the model, {100 * without.mean():.1f} % without")
        leak = gains[0].mean() - gains[1].mean()
        error = math.sqrt(sum(gain.var() / max(1, len(gain)) for gain in gains))
        return AttackResult(
            attack=f"{self.title}: {column.name}",
            model=subject.name,
            assumes="the attacker has the model's probabilities, all other columns of a record and its label, and "
            "public examples to learn from which values go with which",
            members=len(gains[0]),
            outsiders=len(gains[1]),
            advantage=float(leak),
            epsilon_claimed=subject.epsilon,
            delta=subject.delta,
            note=(
                f"guessed rightly: members {told[0]}; records outside {told[1]}. The model's own leak about its "
                f"records: {100 * leak:.1f} ± {100 * error:.1f} points (one standard error)"
            ),
        )


def check_columns(features: Sequence[str] | None, sensitive: Sequence[str]) -> None:
    """Raise where a column that people name as sensitive is none of categories, before anything is trained."""
    known = sorted({feature.partition("=")[0] for feature in features or () if "=" in feature})
    for name in sensitive:
        if name not in known:
            raise NotApplicable(
                f"{{sensitive}}: no column of categories is called that; there are {', '.join(known) or 'none'}",
                sensitive=name,
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


def _likelihood(subject: Subject, column: _Column, X: NDArray, y: NDArray[np.int64]) -> NDArray[np.float64]:
    """How likely the model makes each record's label, for each value that the column could have."""
    values, rows = range(len(column.places)), np.arange(len(X))
    shares = [subject.predict_proba(column.replaced(X, value))[rows, y] for value in values]
    return np.maximum(np.stack(shares, axis=1), _LEAST)
