"""Whether δ is a promise: at most one over the number of records, as far as that is public."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pate.errors import ConfigError

if TYPE_CHECKING:
    from pate.data.settings import DataSettings

MAX_DELTA = 1e-3
RECORDS_OF = {
    "digits": 1_197,
    "mnist": 60_000,
    "fashion_mnist": 60_000,
    "svhn": 73_257,
    "cifar10": 50_000,
    "adult": 32_561,
    "kddcup99": 394_021,
}
"""How many records of a benchmark play private: anybody may know."""


def public_record_count(data: DataSettings) -> int | None:
    """How many private records there are, as anybody may know: configured, or a benchmark's. Never counted."""
    return RECORDS_OF.get(data.source, getattr(data, "public_record_count", None))


def check_delta(
    delta: float, public_record_count: int | None, allowed: bool = False, key: str = "budget.delta"
) -> None:
    """Raise ConfigError where δ is so large that publishing a few records whole would keep to it.

    A mechanism that picks one record in n at random and publishes it is (0, 1/n)-DP. So δ is at most one over the
    number of records, which must be a public figure, and at most 0.001 where none is known.

    >>> check_delta(1e-5, 50_000)
    >>> check_delta(1e-4, 50_000)
    Traceback (most recent call last):
    pate.errors.ConfigError: budget.delta = 0.0001: more than one over the about 50,000 private records, so that ...
    """
    most = MAX_DELTA if public_record_count is None else min(MAX_DELTA, 1 / public_record_count)
    if delta <= most or allowed:
        return
    why = f"more than {MAX_DELTA:g}"
    if most < MAX_DELTA:
        why = f"more than one over the about {public_record_count:,} private records"
    raise ConfigError(
        f"{key} = {delta:g}: {why}, so that a record published whole now and then would keep to it; write "
        f"{_rounded_down(most / 10)} or less, or budget.allow_large_delta: true if you know why"
    )


def _rounded_down(delta: float) -> str:
    """A power of ten."""
    from math import floor, log10

    return f"1e{floor(log10(delta) + 1e-9)}"
