"""The one-run audit (Steinke, Nasr, Jagielski 2023): many canaries, each in or out by a fair coin, in one training.

Somebody who sees what was released says of the canaries which are in. If too many of the guesses are right, no ε
below a bound can hold. One training is enough, since every canary is a trial of its own. What is attacked is not the
finished run but a new one, of the same config, in a scratch folder with a ledger of its own. Voters say themselves what
their canaries and scores are; those of baselines are here.

Assumes: the attacker chose the canaries and knows all other records. Holds for any data, as ε does. It does not prove
that there is no better attack; `confidence_bounds.plan` says what a number of canaries could show at best.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pate.audit._target import Baseline, Fitted, Subject
from pate.audit.confidence_bounds import epsilon_from_rates, one_run_epsilon
from pate.audit.membership import auc_error
from pate.audit.results import Attack, AttackResult, NotApplicable, OneRunAudit, Options, fair_coins
from pate.baselines._sgd_accounting import epsilon_of
from pate.baselines.dp_erm import DPLinearClassifier
from pate.baselines.dp_sgd import DPSGDClassifier
from pate.config import BaselineConfig, Config
from pate.data.private import Records
from pate.data.public import PublicData

_QUICK_STEPS = 500  # of DP-SGD; the claim is then that of so many steps
_SHORT_RUNS, _FEW_SHORT_RUNS = 1_000, 300
_ASSUMES = {
    "everything": "the attacker chose the canaries and knows all but their coins and the noise",
    "published": "the attacker chose the canaries, knows the other records and sees what is published at the end",
    "many": "one canary in each of many short runs; the attacker knows all but its coin and the noise",
}
_EXACT = 1e-3  # of a clipped gradient: noise comes that near to it by chance once in a thousand steps
_LOUD = 1000.0  # a feature this large makes any gradient as long as it may be, and all of it the feature's own
_NO_NOISE = 1e-6
_STILL = 1e-9  # a learning rate at which the network stays as it is; it has no part in the promise

_Step = tuple[str, str, Callable[[], "OneRun"]]
"""What kind of canaries, what the attacker knows, and the run."""


@dataclass(frozen=True)
class OneRun:
    """What a run with canaries showed, by the best of several ways to guess, all fixed beforehand.

    `epsilon_lower` pays for having tried them all.
    """

    canaries: int
    guesses: int
    correct: int
    epsilon_lower: float
    score: str
    """What the best guesses went by."""
    auc: float
    """The area under the ROC curve of that score."""
    epsilon_claimed: float
    delta: float
    confidence: float
    relation: str = "a record added or removed"

    @property
    def refutes(self) -> bool:
        return self.epsilon_lower > self.epsilon_claimed


_WAYS = (("sign", 1.0), ("both", 1 / 2), ("both", 1 / 8), ("both", 1 / 32), ("in", 1 / 8), ("in", 1 / 32))
"""How many guesses are made, fixed beforehand: this share of the canaries with the highest scores is said to be in
and, for "both", as many with the lowest to be out. For "sign", all with a score above 0 are in and all others out."""


def guess(
    scores: Mapping[str, NDArray[np.float64]],
    coins: NDArray[np.bool_],
    claimed: float,
    delta: float,
    confidence: float,
    relation: str = "a record added or removed",
) -> OneRun:
    """What the scores show about the coins: the higher a canary's score, the likelier it is said to be in.

    Each score is tried in a few ways, and 1 − confidence is shared equally by all tries. Ties are broken at random.
    """
    from sklearn.metrics import roc_auc_score

    best: OneRun | None = None
    each = (1 - confidence) / (len(scores) * len(_WAYS))
    n = len(coins)
    for name, score in scores.items():
        shuffled = np.argsort(np.frombuffer(os.urandom(8 * n), dtype=np.uint64), kind="stable")
        order = shuffled[np.argsort(-np.nan_to_num(score[shuffled]), kind="stable")]
        for sides, share in _WAYS:
            few = max(1, int(share * n))
            correct, guesses = int(coins[order[:few]].sum()), few
            if sides == "sign":
                correct, guesses = int(((score > 0) == coins).sum()), n
            elif sides == "both" and n >= 2 * few:
                correct, guesses = correct + int((~coins[order[n - few :]]).sum()), 2 * few
            shown = one_run_epsilon(n, guesses, correct, delta, 1 - each)
            if best is None or shown > best.epsilon_lower:
                auc = float(roc_auc_score(coins, score)) if 0 < coins.sum() < n else 0.5
                best = OneRun(n, guesses, correct, shown, name, auc, claimed, delta, confidence, relation)
    assert best is not None  # there is a score
    return best


class OneRunCanaries(Attack):
    """One finding for each kind of canary."""

    name, title = "one-run", "one run"
    explanation = (
        "Puts records of its own making ('canaries') into the data, each by the toss of a coin, runs everything once "
        "and guesses how each coin fell. It tests the whole way from records to student."
    )

    def run(self, subject: Subject, options: Options) -> Iterable[AttackResult]:
        if subject.kind == "without privacy":
            raise NotApplicable("one-run: a model without privacy promises nothing")
        pate = isinstance(subject.config, Config)
        for kind, knows, work in _of_pate(subject, options) if pate else _of_baseline(subject, options):
            with options.console.working(f"one run with canaries: {kind}"):
                shown = work()
            yield _result(subject, f"{self.title}: {kind}", knows, shown)


def _of_pate(subject: Subject, options: Options) -> list[_Step]:
    from pate.preflight._features import with_learned_features
    from pate.voters import voters_of

    assert isinstance(subject.config, Config)
    config = with_learned_features(alone(subject.config), subject.data.X_public)
    audits = voters_of(config).one_run_audits()
    if not audits:
        raise NotApplicable("one-run: these voters take no canaries among the records")

    given = {"canaries": options.canaries, "confidence": options.confidence, "seed": options.seed}
    work = partial(audit_pipeline, public=subject.data, records=subject.records, config_dir=subject.config_dir)
    return [(audit.kind, "everything", partial(work, audit, delta=config.budget.delta, **given)) for audit in audits]


def _of_baseline(subject: Subject, options: Options) -> list[_Step]:
    from pate.preflight._features import with_learned_preparation

    assert isinstance(subject.config, BaselineConfig)
    config = with_learned_preparation(subject.config, subject.data.X_public)
    trainer = Baseline.of(config, subject.data, len(subject.records), subject.config_dir)
    model = trainer.build(trainer.n_records, config.seed)
    sure, runs = options.confidence, _FEW_SHORT_RUNS if options.quick else _SHORT_RUNS
    members = subject.members.some(options.records, options.seed)
    others = subject.outsiders.some(options.canaries, options.seed)
    strange = spikes(members.X.shape[1:], options.canaries)
    public = subject.data.X_public if isinstance(model, DPSGDClassifier) else None

    def inputs(X: NDArray, y: NDArray[np.int64]) -> OneRun:
        flat = not getattr(model, "accepts_images", False)
        rows, canaries = (x.reshape(len(x), -1) if flat else x for x in (members.X, X.astype(members.X.dtype)))
        return audit_inputs(model, rows, members.y, canaries, y, confidence=sure, X_public=public)

    steps: list[_Step] = [
        ("mislabelled inputs", "published", partial(inputs, others.X, (others.y + 1) % subject.data.n_classes)),
        ("inputs like no other", "published", partial(inputs, strange, np.zeros(len(strange), dtype=np.int64))),
    ]
    if isinstance(model, DPLinearClassifier):
        return [*steps, ("one record's label", "many", partial(audit_erm, model, runs=runs, confidence=sure))]
    if not isinstance(model, DPSGDClassifier):
        return steps
    most = _QUICK_STEPS if options.quick else None
    gradients = partial(audit_gradients, model, canaries=options.canaries, confidence=sure, max_steps=most)
    return [
        ("gradients", "everything", gradients),
        *steps,
        ("clipping", "everything", partial(audit_clipping, model)),
        ("sampling", "many", partial(audit_sampling, model, runs=runs, confidence=sure)),
    ]


def _result(subject: Subject, name: str, knows: str, shown: OneRun) -> AttackResult:
    without_chance, n = shown.confidence == 1, shown.canaries
    by_scores = knows != "many" and not without_chance
    told = f"{shown.correct} of {shown.guesses} guesses right, by: {shown.score}"
    return AttackResult(
        attack=name,
        model=subject.name,
        assumes=_ASSUMES[knows],
        relation=shown.relation,
        canaries=n,
        auc=shown.auc if by_scores else None,
        auc_error=auc_error(shown.auc, n // 2, -(-n // 2)) if by_scores else None,
        epsilon_lower=None if without_chance and not shown.refutes else shown.epsilon_lower,
        confidence=shown.confidence,
        delta=shown.delta,
        epsilon_claimed=shown.epsilon_claimed,
        note=shown.score if without_chance else told,
    )


def audit_pipeline(
    audit: OneRunAudit,
    public: PublicData,
    records: Records,
    *,
    delta: float,
    canaries: int,
    confidence: float,
    config_dir: Path = Path(),
    seed: int = 0,
) -> OneRun:
    """Run the pipeline once with canaries and once without, and bound its ε.

    `seed` chooses where canaries stand, never their coins.
    """
    scores, coins = audit.find_scores(public, records, canaries, config_dir, seed)
    return guess(scores, coins, audit.claimed(public.n_classes), delta, confidence, audit.relation)


def alone(config: Config) -> Config:
    """The config without what would reach outside the scratch folder, or is not part of what is audited."""
    names = type(config.budget).model_fields
    budget = config.budget.model_copy(update={str(name): None for name in ("ledger", "sanitise") if name in names})
    return config.model_copy(update={"backend": "local", "nonprivate": None, "budget": budget})


def _watched(model: DPSGDClassifier, watch: Callable[[NDArray[np.float64]], None], **changed: Any) -> Any:
    """A model of the same class, linear and without preparation, with other parameters.

    It tells `watch` what each step released: the noisy sum of gradients.
    """
    simple: dict[str, Any] = {
        "epsilon": None,
        "classes": (0, 1),
        "model": "linear",
        "model_params": None,
        "preprocessing": (),
        "features": "none",
        "pca_sigma": None,
        "checkpoint": None,
        "frozen": 0,
        "optimiser": "momentum",
        "learning_rate": _STILL,
        "learning_rate_end": None,
    }

    def with_noise(self: Any, gradients: Any, draws: Any) -> list[torch.Tensor]:
        released: list[torch.Tensor] = super(cls, self)._with_noise(gradients, draws)
        whole = torch.cat([part.reshape(-1) for part in released]) * self.lot_size
        watch(whole.cpu().numpy().astype(np.float64))
        return released

    cls: Any = type("Watched", (type(model),), {"_with_noise": with_noise})
    return cls(**{**model.get_params(deep=False), **simple, **changed})


def audit_gradients(
    model: DPSGDClassifier, *, canaries: int, confidence: float, max_steps: int | None = None
) -> OneRun:
    """One run of the model's steps with gradient canaries; every noisy gradient is seen.

    Neighbouring relation: a record added or removed. Scores: the likelihood ratio of all steps under Poisson sampling,
    and how often a canary's gradient came out exactly, as it does in a step without noise.
    """
    with warnings.catch_warnings(action="ignore"):  # small data and a large δ deserve them
        sigma, rate, steps, _ = model.plan()
    steps = steps if max_steps is None else min(steps, max_steps)
    coins = fair_coins(canaries)
    ratios, exact = np.zeros(canaries), np.zeros(canaries)

    def watch(released: NDArray[np.float64]) -> None:
        along = _along(released, canaries, model.clip_norm)
        ratios[:] += _log_ratio(along, sigma, rate)
        exact[:] += np.abs(along - 1) < _EXACT

    watched = _watched(model, watch, sigma=sigma, epochs=steps * rate)
    loud = _LOUD * max(1.0, model.clip_norm)
    X = (loud * np.eye(canaries))[coins].astype(np.float32)
    with warnings.catch_warnings(action="ignore"):
        watched.fit(X, np.zeros(len(X), dtype=np.int64))
    claimed = epsilon_of([(sigma, rate, steps)], model.delta, model.accountant)
    return guess({"gradients": ratios, "exact gradients": exact}, coins, claimed, model.delta, confidence)


def audit_inputs(
    model: Any,
    X: NDArray,
    y: NDArray[np.int64],
    canary_X: NDArray,
    canary_y: NDArray[np.int64],
    *,
    confidence: float,
    X_public: NDArray | None = None,
) -> OneRun:
    """One training of the model as it is, DP-SGD or DP-ERM, on its records and the canaries that are in.

    Scores: how probable the published model finds a canary's label; and of every published tensor with an entry for
    each input, the entry of the input in which a canary is largest.
    """
    coins = fair_coins(len(canary_X))
    fitted = type(model)(**model.get_params(deep=False))
    given = {} if X_public is None else {"X_public": X_public}
    with warnings.catch_warnings(action="ignore"):
        fitted.fit(np.concatenate([X, canary_X[coins]]), np.concatenate([y, canary_y[coins]]), **given)
    flat = canary_X.reshape(len(canary_X), -1)
    largest = np.abs(flat).argmax(axis=1)
    probable = Fitted.of_baseline(fitted, len(fitted.classes_)).predict_proba(canary_X)
    scores = {"loss": np.log(np.maximum(probable[np.arange(len(canary_y)), canary_y], 1e-300))}
    for name, tensor in fitted.weights().items():
        array = np.asarray(tensor, dtype=np.float64)
        for axis in (i for i, size in enumerate(array.shape) if size == flat.shape[1]):
            entries = np.abs(np.moveaxis(array, axis, 0).reshape(flat.shape[1], -1)).sum(axis=1)
            scores[f"{name}, axis {axis}"] = entries[largest]
    return guess(scores, coins, fitted.epsilon_, fitted.delta_, confidence)


def spikes(shape: Sequence[int], n: int, height: float = 100.0) -> NDArray[np.float32]:
    """At most n examples like nothing else: each is 0 but for one feature of its own."""
    size = math.prod(shape)
    chosen = np.random.default_rng(0).permutation(size)[:n]
    return (height * np.eye(size, dtype=np.float32)[chosen]).reshape(-1, *shape)


def audit_clipping(model: DPSGDClassifier, *, confidence: float = 1.0) -> OneRun:
    """One step on all records with hardly any noise, with and without a record: how far it moves the sum of gradients.

    It may move it by one clipping norm. The record's gradient is far longer than that, and others pull along with it,
    against it, or not at all. If it moves the sum by k norms, then the noise is k times too small: `epsilon_lower` is
    the ε of the model's own steps with noise σ/k. No chance is in it, so no false alarms.
    """
    loud, moved = _LOUD * max(1.0, model.clip_norm), 0.0
    for others in ((), (0,), (1,), (1, 1)):
        sums: list[NDArray[np.float64]] = []
        for inside in (False, True):
            watched = _watched(model, sums.append, sigma=_NO_NOISE, lot_size=1, n_records=1, epochs=1, accountant="rdp")
            X = np.array([loud] * len(others) + [1000 * loud] * inside, dtype=np.float32).reshape(-1, 1)
            with warnings.catch_warnings(action="ignore"):
                watched.fit(X, np.array([*others, *[0] * inside], dtype=np.int64))
        moved = max(moved, float(np.linalg.norm(sums[1] - sums[0])) / model.clip_norm)
    with warnings.catch_warnings(action="ignore"):
        sigma, rate, steps, _ = model.plan()
    beyond = max(1.0, round(moved, 3))
    shown, claimed = (epsilon_of([(s, rate, steps)], model.delta, model.accountant) for s in (sigma / beyond, sigma))
    told = f"a record moved the sum by {moved:.3f} clipping norms"
    return OneRun(1, 1, 1, shown, told, 1.0, claimed, model.delta, confidence)


def audit_sampling(model: DPSGDClassifier, *, runs: int, confidence: float) -> OneRun:
    """Short runs with hardly any noise: ten steps at rate 1/10. Poisson sampling leaves a record out of all of them
    with probability 0.9¹⁰, and then nothing is released about it: at δ = 1 − 0.9¹⁰ = 0.65 the claim is ε = 0, whatever
    the noise. A record that is shuffled is in one of the ten lots for sure.
    """
    sigma, lots = 0.1, 10
    delta = 1 - (1 - 1 / lots) ** lots
    seen: list[float] = []

    def watch(released: NDArray[np.float64]) -> None:
        seen.append(float(_log_ratio(_along(released, 1, model.clip_norm), sigma, 1 / lots)[0]))

    watched = _watched(model, watch, sigma=sigma, lot_size=1, n_records=lots, epochs=1, delta=delta, accountant="rdp")
    loud, coins = _LOUD * max(1.0, model.clip_norm), fair_coins(runs)
    said = np.zeros(runs, dtype=bool)
    for i, inside in enumerate(coins):
        seen.clear()
        with warnings.catch_warnings(action="ignore"):
            watched.fit(np.full((int(inside), 1), loud, dtype=np.float32), np.zeros(int(inside), dtype=np.int64))
        said[i] = sum(seen) > 0
    return _of_many(said, coins, 0.0, delta, confidence, "a record added or removed")


def _of_many(
    said: NDArray[np.bool_], coins: NDArray[np.bool_], claimed: float, delta: float, confidence: float, relation: str
) -> OneRun:
    """What many independent runs show, with a coin and a guess each; the guess was fixed beforehand."""
    n, right, inside, shown = len(coins), int((said == coins).sum()), int(coins.sum()), 0.0
    if 0 < inside < n:
        hits, alarms = int((said & coins).sum()), int((said & ~coins).sum())
        shown = epsilon_from_rates(hits, inside, alarms, n - inside, delta, confidence)
    told = "one canary in each of many runs"
    return OneRun(n, n, right, shown, told, right / n, claimed, delta, confidence, relation)


def audit_erm(model: DPLinearClassifier, *, runs: int, confidence: float) -> OneRun:
    """Many trainings on one record, whose class is the coin's: what the published coefficient tells about it.

    Neighbouring relation: a record changed. The model's own ε, loss, method and regularisation, for two classes.
    """
    made = type(model)(**{**model.get_params(deep=False), "classes": (0, 1), "intercept": 0.0, "fourier_features": 0})
    coins = fair_coins(runs)
    said = np.array([made.fit(np.ones((1, 1)), np.array([int(coin)])).coef_[0, 0] > 0 for coin in coins])
    return _of_many(said, coins, float(made.epsilon), 0.0, confidence, "a record changed")


def _along(released: NDArray[np.float64], canaries: int, clip_norm: float) -> NDArray[np.float64]:
    """The released sum along each canary's gradient, in clipping norms: a linear network's weights [2, canaries] come
    first, and a canary of class 0 pulls down its feature's first weight and pushes up its second."""
    first, second = released[: 2 * canaries].reshape(2, canaries)
    return np.asarray((second - first) / (math.sqrt(2) * clip_norm))


def _log_ratio(along: NDArray[np.float64], sigma: float, rate: float) -> NDArray[np.float64]:
    """ln of the density of a step's release with the canary over that without: N(1, σ²) with probability `rate`."""
    with np.errstate(over="ignore"):
        gain = (2 * along - 1) / (2 * sigma**2)
    absent = math.log1p(-rate) if rate < 1 else -np.inf
    return np.logaddexp(absent, math.log(rate) + gain)
