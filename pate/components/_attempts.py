"""Trying what a config names on made-up labels: short trainings, and failures that say in one line what went wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.errors import ConfigError, DataError, first_line, own_line

STEPS = 2
"""Steps of training a network in an attempt: enough for every line of its loop."""

SHOWN = 5
"""Examples whose predictions are looked at."""

_LABELS_PER_CLASS, _MIN_LABELS = 6, 60


class AttemptFailed(Exception):
    """What was tried does not work; the text says how."""


@contextmanager
def attempt(what: str, how: str) -> Iterator[None]:
    """Turn any error into one line; a ConfigError or DataError, which says what to do, passes as it is."""
    try:
        yield
    except (ConfigError, DataError):
        raise
    except Exception as error:  # somebody else's class may fail in any way
        place = own_line(error)
        raise AttemptFailed(
            f"{what}: cannot be {how}, as tried on public examples with made-up labels before anything was charged: "
            f"{f'{place}: ' if place else ''}{type(error).__name__}: {first_line(error)}"
        ) from None


@contextmanager
def as_config_error() -> Iterator[None]:
    """Raise a failed attempt as a ConfigError."""
    try:
        yield
    except AttemptFailed as error:
        raise ConfigError(str(error)) from None


def few_labels(n_classes: int) -> int:
    """How many labels an attempt begins with."""
    return max(_MIN_LABELS, _LABELS_PER_CLASS * n_classes)


def dummy_labels(size: int, n_classes: int, may_decline: bool = False) -> NDArray[np.int64]:
    """Every class in turn, and ⊥ (-1) at the end where the mechanism may decline to answer."""
    labels = np.arange(size) % n_classes
    if may_decline and size > 2 * n_classes:
        labels[-1] = -1
    return labels


def shorten_training(estimator: Any) -> Any:
    """The estimator, set to a few steps of training where it counts its steps."""
    from pate.students.supervised import Supervised

    if not hasattr(estimator, "get_params"):
        return estimator
    counted = [
        name
        for name, value in estimator.get_params().items()
        if name.split("__")[-1] == "steps" and isinstance(value, int) and value > STEPS
    ]
    estimator.set_params(**dict.fromkeys(counted, STEPS))
    if isinstance(estimator, Supervised) and isinstance(getattr(estimator.build(), "steps", None), int):
        estimator.set_params(params={**(estimator.params or {}), "steps": STEPS})
    return estimator
