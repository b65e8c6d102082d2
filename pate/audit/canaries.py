"""Canaries: records that an audit puts into the data or leaves out, each by a fair coin, and guesses about the coins.

The bound is that of Steinke, Nasr and Jagielski (`pate.audit.bounds.one_run_epsilon`). It holds for every attack and
every data set, so canaries may be mislabelled or like nothing else (poisoning), and the attacker may know everything
but the coins.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pate.audit.bounds import one_run_epsilon
from pate.data.private import Records
from pate.noise.integer import Entropy

_WAYS = (("sign", 1.0), ("both", 1 / 2), ("both", 1 / 8), ("both", 1 / 32), ("in", 1 / 8), ("in", 1 / 32))
"""How many guesses are made, fixed beforehand: this share of the canaries with the highest scores is said to be in
and, for "both", as many with the lowest to be out. For "sign", all with a score above 0 are in and all others out."""


def fair_coins(n: int, entropy: Entropy = os.urandom) -> NDArray[np.bool_]:
    """n fair coins, the operating system's."""
    return np.unpackbits(np.frombuffer(entropy(-(-n // 8)), dtype=np.uint8))[:n].astype(bool)


@dataclass(frozen=True)
class Guessed:
    """The best of several ways to guess, all fixed beforehand; `epsilon_lower` pays for having tried them all."""

    canaries: int
    guesses: int
    correct: int
    epsilon_lower: float
    score: str
    """What the best guesses went by."""
    auc: float
    """Of that score."""


def guess(
    scores: Mapping[str, NDArray[np.float64]], coins: NDArray[np.bool_], delta: float, confidence: float
) -> Guessed:
    """What the scores show about the coins: the higher a canary's score, the likelier it is said to be in.

    Each score is tried in a few ways, and 1 − confidence is shared equally by all tries. Ties are broken at random.
    """
    from sklearn.metrics import roc_auc_score

    best: Guessed | None = None
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
                best = Guessed(n, guesses, correct, shown, name, auc)
    assert best is not None  # there is a score
    return best


@dataclass(frozen=True)
class Canaries:
    """The records of each canary if its coin says in; if it says out, it is absent or, where `y_out` is given, has the
    same records with these labels instead. `owner` says whose record a row is; a canary may have several."""

    X: NDArray
    y: NDArray[np.int64]
    owner: NDArray[np.int64]
    y_out: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return int(self.owner.max(initial=-1)) + 1

    def among(self, honest: Records, coins: NDArray[np.bool_], ids: bool) -> Records:
        """The records with the canaries that are in; `ids`: every canary is a person, and every other record too."""
        inside = coins[self.owner]
        if self.y_out is None:
            X, y, owner = self.X[inside], self.y[inside], self.owner[inside]
        else:
            X, y, owner = self.X, np.where(inside, self.y, self.y_out), self.owner
        named = None
        if ids or honest.ids is not None:
            others = [f"record {i}" for i in range(len(honest))] if honest.ids is None else list(honest.ids)
            named = [*others, *(f"canary {i}" for i in owner.tolist())]
        return Records(np.concatenate([honest.X, X]), np.concatenate([honest.y, y]), named)
