"""How figures are written for people."""

from __future__ import annotations

import math

TOO_FEW = "too few"
"""Stands in place of a figure that too few examples cannot tell."""


def small(delta: float) -> str:
    """A probability such as δ, for people.

    >>> small(1e-5), small(2.5e-6), small(0)
    ('10⁻⁵', '2.5e-06', '0')
    """
    power = round(math.log10(delta)) if delta > 0 else 0
    if power < 0 and math.isclose(delta, 10.0**power):
        return "10" + f"{power}".translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"{delta:g}"


def percent(share: float | None) -> str:
    """A share in percent, for people.

    >>> percent(0.8651)
    '86.5 %'
    """
    return "not measured" if share is None else f"{100 * share:.1f} %"


def points(share: float, error: float) -> str:
    """A difference of shares in percentage points, with its standard error.

    >>> points(0.0321, 0.0049), points(-0.012, 0.003), points(-0.0001, 0.002)
    ('3.2 ± 0.5', '−1.2 ± 0.3', '0.0 ± 0.2')
    """
    shown = f"{100 * share:.1f}".replace("-", "−")
    return f"{'0.0' if shown == '−0.0' else shown} ± {100 * error:.1f}"


def format_change(share: float, error: float) -> str:
    """A loss in percentage points, in words.

    >>> format_change(0.0321, 0.0049), format_change(-0.012, 0.003)
    ('lost 3.2 ± 0.5', 'gained 1.2 ± 0.3')
    """
    return f"lost {points(share, error)}" if share >= 0 else f"gained {points(-share, error)}"
