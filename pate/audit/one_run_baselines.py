"""Canaries in one training of DP-SGD or DP-ERM, and many short trainings with one canary each.

DP-SGD promises ε for everything it does in every step, so a white-box attacker may see every noisy gradient. The
gradient canaries of an audit are records with one feature of their own each, in a linear network: their gradients are
orthogonal, clipped to the full norm, and what a step releases along one of them tells of that canary alone. Input
canaries go through the network of the config, and the attacker sees what is published at the end.

One run hides what many canaries do to each other. So short runs with a single canary and hardly any noise follow: how
far does a record move the sum of gradients (is every gradient clipped by itself?), and is it left out of all lots as
often as Poisson sampling leaves it out?
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pate.audit.bounds import epsilon_from_rates
from pate.audit.canaries import Guessed, fair_coins, guess
from pate.audit.one_run_pate import OneRun
from pate.baselines.dp_erm import DPLinearClassifier
from pate.baselines.dp_sgd import DPSGDClassifier
from pate.baselines.sgd_accounting import epsilon_of

_EXACT = 1e-3  # of a clipped gradient: noise comes that near to it by chance once in a thousand steps
_LOUD = 1000.0  # a feature this large makes any gradient as long as it may be, and all of it the feature's own
_NO_NOISE = 1e-6
_STILL = 1e-9  # a learning rate at which the network stays as it is; it has no part in the promise

Params = dict[str, Any]


class _Watching:
    """Tells `watch` what each step released: the noisy sum of gradients."""

    watch: Callable[[NDArray[np.float64]], None]
    lot_size: int

    def _with_noise(self, gradients: Any, draws: Any) -> list[torch.Tensor]:
        released: list[torch.Tensor] = super()._with_noise(gradients, draws)  # type: ignore[misc]
        whole = torch.cat([part.reshape(-1) for part in released]) * self.lot_size
        self.watch(whole.cpu().numpy().astype(np.float64))
        return released


def _watched(model: DPSGDClassifier, watch: Callable[[NDArray[np.float64]], None], **changed: Any) -> Any:
    """A model of the same class that can be watched, linear and without preparation, with other parameters."""
    simple: Params = {
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
    cls: Any = type("Watched", (_Watching, type(model)), {})
    made = cls(**{**model.get_params(deep=False), **simple, **changed})
    made.watch = watch
    return made


def audit_gradients(
    model: DPSGDClassifier, *, canaries: int, confidence: float, max_steps: int | None = None
) -> OneRun:
    """One run of the model's steps with gradient canaries; every noisy gradient is seen.

    Neighbouring relation: a record added or removed. Scores: the likelihood ratio of all steps under Poisson sampling,
    and how often a canary's gradient came out exactly, as it does in a step without noise.
    """
    with _quiet():
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
    with _quiet():
        watched.fit(X, np.zeros(len(X), dtype=np.int64))
    claimed = epsilon_of([(sigma, rate, steps)], model.delta, model.accountant)
    guessed = guess({"gradients": ratios, "exact gradients": exact}, coins, model.delta, confidence)
    return OneRun(guessed, claimed, model.delta, confidence, "a record added or removed")


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
    with _quiet():
        fitted.fit(np.concatenate([X, canary_X[coins]]), np.concatenate([y, canary_y[coins]]), **given)
    flat = canary_X.reshape(len(canary_X), -1)
    largest = np.abs(flat).argmax(axis=1)
    scores = {"loss": _log_probable(fitted, canary_X, canary_y)}
    for name, tensor in fitted.weights().items():
        array = np.asarray(tensor, dtype=np.float64)
        for axis in (i for i, size in enumerate(array.shape) if size == flat.shape[1]):
            entries = np.abs(np.moveaxis(array, axis, 0).reshape(flat.shape[1], -1)).sum(axis=1)
            scores[f"{name}, axis {axis}"] = entries[largest]
    guessed = guess(scores, coins, fitted.delta_, confidence)
    return OneRun(guessed, fitted.epsilon_, fitted.delta_, confidence, "a record added or removed")


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
            with _quiet():
                watched.fit(X, np.array([*others, *[0] * inside], dtype=np.int64))
        moved = max(moved, float(np.linalg.norm(sums[1] - sums[0])) / model.clip_norm)
    with _quiet():
        sigma, rate, steps, _ = model.plan()
    beyond = max(1.0, round(moved, 3))
    shown, claimed = (epsilon_of([(s, rate, steps)], model.delta, model.accountant) for s in (sigma / beyond, sigma))
    guessed = Guessed(1, 1, 1, shown, f"a record moved the sum by {moved:.3f} clipping norms", 1.0)
    return OneRun(guessed, claimed, model.delta, confidence, "a record added or removed")


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
        with _quiet():
            watched.fit(np.full((int(inside), 1), loud, dtype=np.float32), np.zeros(int(inside), dtype=np.int64))
        said[i] = sum(seen) > 0
    return _of_many(said, coins, 0.0, delta, confidence, "a record added or removed")


def _of_many(
    said: NDArray[np.bool_],
    coins: NDArray[np.bool_],
    claimed: float,
    delta: float,
    confidence: float,
    relation: str,
) -> OneRun:
    """What many independent runs show, with a coin and a guess each; the guess was fixed beforehand."""
    right, inside = int((said == coins).sum()), int(coins.sum())
    shown = 0.0
    if 0 < inside < len(coins):
        hits, alarms = int((said & coins).sum()), int((said & ~coins).sum())
        shown = epsilon_from_rates(hits, inside, alarms, len(coins) - inside, delta, confidence)
    n = len(coins)
    guessed = Guessed(n, n, right, shown, "one canary in each of many runs", right / n)
    return OneRun(guessed, claimed, delta, confidence, relation)


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
    result: NDArray[np.float64] = (second - first) / (math.sqrt(2) * clip_norm)
    return result


def _log_ratio(along: NDArray[np.float64], sigma: float, rate: float) -> NDArray[np.float64]:
    """ln of the density of a step's release with the canary over that without: N(1, σ²) with probability `rate`."""
    with np.errstate(over="ignore"):
        gain = (2 * along - 1) / (2 * sigma**2)
    absent = math.log1p(-rate) if rate < 1 else -np.inf
    return np.logaddexp(absent, math.log(rate) + gain)


def _log_probable(model: Any, X: NDArray, y: NDArray[np.int64]) -> NDArray[np.float64]:
    from pate.audit.learners import Fitted

    flat = not getattr(model, "accepts_images", False)
    shares = Fitted(model, len(model.classes_), flat).predict_proba(X)[np.arange(len(y)), y]
    return np.log(np.maximum(shares, 1e-300))


class _quiet(warnings.catch_warnings):  # noqa: N801 - a context manager
    """Without the warnings that small data and a large δ deserve."""

    def __enter__(self) -> None:
        super().__enter__()
        warnings.simplefilter("ignore")
