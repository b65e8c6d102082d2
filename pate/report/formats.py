"""How figures are written for people."""

from __future__ import annotations

import math


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
