"""When a student that also learns from its own guesses has lost what the labels alone would have taught it.

Constant answers are a resting place of every loss on unlabelled examples: a network that gives them agrees with itself.
Where its guesses count before it has learned enough, or labels are skewed, it drifts there, and `label_noise`, which
replaces labels by its guesses, takes away what would lead it back. Its own losses look like success; labels tell.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

REFERENCE_STEPS = (
    0.2  # of the student's own, on labelled batches alone, each of two: together about an eighth of its time
)
MIN_EXAMPLES = 9  # with fewer, no difference is more than chance
_STANDARD_ERRORS = 2.0
_MIN_LOSS = 0.1


def thirds(X: NDArray, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The third (0, 1 or 2) that each row belongs to, at random, and the number of the example that it is.

    An example that comes several times, with one label each, is in one third with all of them.
    """
    digests = [blake2b(row.tobytes(), digest_size=16).digest() for row in np.ascontiguousarray(X)]
    found, example = np.unique(np.array(digests, dtype="V16"), return_inverse=True)
    example = example.reshape(-1).astype(np.int64)
    return (np.random.default_rng(seed).permutation(len(found)) % 3)[example], example


def falls_short(
    own: NDArray[np.bool_],
    reference: NDArray[np.bool_],
    labels: NDArray[np.int64],
    weights: NDArray[np.float64],
    example: NDArray[np.int64],
) -> bool:
    """Whether the student agrees with labels less than references do that never saw them (they saw others).

    `own` and `reference` say where each agrees. It falls short if the difference, in weight of labels, is more than
    two standard errors, example by example, and more than a tenth of what the reference has beyond always saying the
    commonest class: labels may be wrong alike for examples that are alike, and to see through that is no loss. It also
    does if it agrees with no more labels than the commonest class would: there is nothing to lose then.
    """
    commonest = np.bincount(labels, weights).max()
    if (weights * own).sum() <= commonest:
        return True
    lost = np.bincount(example, weights * (reference.astype(np.float64) - own))
    beyond = float((weights * reference).sum() - commonest)
    return bool(lost.sum() > max(_STANDARD_ERRORS * np.sqrt((lost**2).sum()), _MIN_LOSS * beyond))
