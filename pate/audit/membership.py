"""Inference by a model's answers alone: of membership, and of a sensitive column. And what every membership attack
shares: whom it asks about, the statistic it goes by, and how success is measured.

An attack on membership gives every example a score that should be higher where the example was a member. The figures
come from the scores of members and outsiders alone.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pate.audit._target import Scorer, Subject, TargetExamples
from pate.audit.confidence_bounds import epsilon_from_rates
from pate.audit.results import Attack, AttackResult, NotApplicable, Options

Scores = NDArray[np.float64]

_INDEPENDENT = (
    "members and test examples come from one source and count as independent trials of one membership test, which a "
    "single trained model gives only nearly"
)
_MIN_SHARE = 1e-15
_MAX_AT_RISK = 20
_MAX_THRESHOLDS = 200
_MAX_POINTS = 400
_NOISE = (0.1, 0.2, 0.4, 0.8, 1.6)  # of each feature's spread among public examples
_COPIES, _COPIES_QUICK = 10, 3
_SENSITIVE = {"adult": ("sex", "marital-status")}
_MIN_LIKELIHOOD = 1e-12


class LossThreshold(Attack):
    """A record that the model is surer of than of most was probably learned from: its confidence in the true class.

    Yeom, Giacomelli, Fredrikson, Jha 2018, "Privacy Risk in Machine Learning: Analyzing the Connection to Overfitting";
    Salem et al. 2019.
    """

    name, title = "threshold", "loss threshold"
    explanation = "Says 'member' of records that the model is surest of. The simplest attack."

    def run(self, subject: Subject, options: Options) -> Iterable[AttackResult]:
        asked = asked_about(subject, options)
        assumes = "the attacker has the model's probabilities, and a record with its true label"
        scores = confidence(subject.model, asked.X, asked.y)
        yield membership_result(self.title, subject, options, assumes, asked, scores)


class CorrectnessGap(Attack):
    """Who is classified rightly was probably learned from (Yeom et al. 2018; the "gap attack").

    It needs labels only, and gains exactly the difference between accuracy on members and on others: the part of any
    attack that overfitting alone explains.
    """

    name, title = "correctness", "correctness gap"
    explanation = (
        "Says 'member' of records that the model gets right. It gains exactly what the model is better on its own "
        "records than on others: overfitting."
    )

    def run(self, subject: Subject, options: Options) -> Iterable[AttackResult]:
        asked = asked_about(subject, options)
        assumes = "the attacker has the model's labels, and a record with its true label"
        scores = (subject.model.predict(asked.X) == asked.y).astype(float)
        yield membership_result(self.title, subject, options, assumes, asked, scores)


class LabelOnly(Attack):
    """A record stays rightly classified under larger changes if the model has learned from it: how many changed copies
    are classified rightly; by noise and, of images, by small shifts.

    Choquette-Choo, Tramèr, Carlini, Papernot 2021, "Label-Only Membership Inference Attacks": robustness to noise, a
    sample of the distance to the boundary, and to augmentations. Only labels are used, so hiding probabilities is no
    help.
    """

    name = title = "label-only"
    explanation = (
        "Changes a record a little, by noise or by shifting an image, and watches when the model's answer changes. It "
        "works where a model shows labels only."
    )

    def run(self, subject: Subject, options: Options) -> Iterable[AttackResult]:
        asked = asked_about(subject, options)
        X, y, X_public = asked.X, asked.y, subject.data.X_public
        assumes = "the attacker may ask for labels of changed records, as often as he likes, and knows the true label"
        right = (subject.model.predict(X) == y).astype(float)
        ways = {"noise": _noisy(X, X_public, options)}
        if X_public.ndim > 2:
            ways["augmentation"] = _shifted(X, options)
        for way, copies in ways.items():  # the unchanged record counts most: whoever errs on it says the least
            scores = right + np.mean([subject.model.predict(copy) == y for copy in copies], axis=0)
            yield membership_result(f"{self.title}, {way}", subject, options, assumes, asked, scores)


def _noisy(X: NDArray, X_public: NDArray, options: Options) -> Iterator[NDArray]:
    """Copies with Gaussian noise, from little to much, in proportion to what public examples spread."""
    generator = np.random.default_rng([options.seed, 2])
    spread = X_public.std(axis=0, dtype=np.float64)
    for level in _NOISE:
        for _ in range(_COPIES_QUICK if options.quick else _COPIES):
            yield (X + level * spread * generator.standard_normal(X.shape)).astype(X.dtype)


def _shifted(X: NDArray, options: Options) -> Iterator[NDArray]:
    """Copies moved by up to two pixels (one if quick) in every direction; what leaves on one side is filled up by the
    edge."""
    most = 1 if options.quick else 2
    padded = np.pad(X, [(0, 0), (most, most), (most, most), *[(0, 0)] * (X.ndim - 3)], mode="edge")
    height, width = X.shape[1:3]
    for down, across in itertools.product(range(2 * most + 1), repeat=2):
        if (down, across) != (most, most):
            yield padded[:, down : down + height, across : across + width]


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


def membership_result(
    name: str, subject: Subject, options: Options, assumes: str, asked: Asked, scores: Scores, note: str = ""
) -> AttackResult:
    """AUC, true positives at few false ones, advantage and a lower bound on ε, from the scores of all asked about."""
    from sklearn.metrics import roc_auc_score, roc_curve

    n_members, n_outsiders = len(asked.members), len(asked.outsiders)
    is_member, inside = np.arange(n_members + n_outsiders) < n_members, scores[:n_members]
    false, true, _ = roc_curve(is_member, scores)
    auc = float(roc_auc_score(is_member, scores))
    worst = np.argsort(-inside, kind="stable")[:_MAX_AT_RISK]
    return AttackResult(
        attack=name,
        model=subject.name,
        assumes=f"{assumes}; {_INDEPENDENT}",
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


# Attribute inference


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
    """Guess a sensitive column of a record from the model, the record's label and its other columns.

    Fredrikson et al. 2014; Yeom et al. 2018. What other columns tell about the sensitive one is no leak of the model:
    so the guess is compared with imputation from public examples alone. Nor is what the model tells about people in
    general (income depends on it): so what it adds is measured on records outside too, and only the difference, the
    `advantage` of the finding, counts.

    Guess: the value v with the largest P(v | other columns) · p(label | record with v), the first from public
    examples, the second from the model.
    """

    name = title = "attribute"
    explanation = (
        "Knows all columns of a record but one, and lets the model help to guess that one. Only what the model adds "
        "for its own records, beyond public knowledge, counts."
    )

    def run(self, subject: Subject, options: Options) -> Iterable[AttackResult]:
        features, wanted = subject.data.features, options.sensitive or _SENSITIVE.get(subject.config.data.source, ())
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
        spread = np.full((len(X), len(column.places)), _MIN_LIKELIHOOD)
        spread[:, model.classes_] = model.predict_proba(column.without(X))
        return spread

    return shares


def _likelihood(subject: Subject, column: _Column, X: NDArray, y: NDArray[np.int64]) -> NDArray[np.float64]:
    """How likely the model makes each record's label, for each value that the column could have."""
    values, rows = range(len(column.places)), np.arange(len(X))
    shares = [subject.model.predict_proba(column.replaced(X, value))[rows, y] for value in values]
    return np.maximum(np.stack(shares, axis=1), _MIN_LIKELIHOOD)
