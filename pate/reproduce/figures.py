"""The 2017 paper's figures 2 and 3: how much noise the vote tolerates, and how far ahead the plurality is.

Both are computed from private votes and are themselves private.
"""

from __future__ import annotations

import io
from itertools import cycle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.mechanisms import LNMax

GAMMAS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""The paper's γ, the inverse of the Laplace scale; a label costs ε = 2γ at most."""


def vote_figures(votes: NDArray[np.int64], y: NDArray[np.int64]) -> dict[str, Any]:
    """Figures of one ensemble: mean accuracy of teachers, plurality and noisy vote, and the plurality's lead."""
    rows, n_teachers = np.arange(len(votes)), int(votes[0].sum())
    ordered = np.sort(votes, axis=1)
    return {
        "teachers": n_teachers,
        "examples": len(votes),
        "mean_teacher_accuracy": float(votes[rows, y].mean() / n_teachers),
        "plurality_accuracy": float((votes.argmax(1) == y).mean()),
        "gap": float((ordered[:, -1] - ordered[:, -2]).mean() / n_teachers),
        "noisy_vote": [
            {"epsilon_per_query": 2 * gamma, "accuracy": noisy_accuracy(votes, y, 1 / gamma)} for gamma in GAMMAS
        ],
    }


def noisy_accuracy(votes: NDArray[np.int64], y: NDArray[np.int64], scale: float) -> float:
    """How often LNMax answers right, exactly, on average over its noise."""
    return float(np.exp(LNMax(scale).log_outcomes(votes)[np.arange(len(votes)), y]).mean())


def draw(figures: list[dict[str, Any]], data: str) -> bytes:
    """Both figures side by side, as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for ensemble, style in zip(figures, cycle(("o-", "s--", "^:", "d-.", "v-")), strict=False):
        at = [point["epsilon_per_query"] for point in ensemble["noisy_vote"]]
        accuracy = [100 * point["accuracy"] for point in ensemble["noisy_vote"]]
        left.plot(at, accuracy, style, label=f"{ensemble['teachers']} teachers")
    left.set(xscale="log", xlabel="ε per query", ylabel="noisy vote right, %", ylim=(0, 101))
    left.legend()
    sizes = [ensemble["teachers"] for ensemble in figures]
    right.bar([str(n) for n in sizes], [100 * ensemble["gap"] for ensemble in figures], color="C0")
    right.set(xlabel="teachers", ylabel="lead of the plurality, % of the teachers", ylim=(0, 100))
    figure.suptitle(f"{data}: figures 2 and 3 of Papernot et al. 2017 (private: do not publish)")
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=150, format="png")
    plt.close(figure)
    return buffer.getvalue()
