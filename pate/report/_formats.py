"""How figures and settings are written for people."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

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


def short_name(name: str) -> str:
    """The last part of a dotted path.

    >>> short_name("sklearn.svm.SVC")
    'SVC'
    """
    return name.rpartition(".")[2]


def describe_settings(settings: Mapping[str, Any]) -> str:
    """Parameters beside a name, short ones only.

    >>> describe_settings({"C": 10, "name": "x", "steps": [{"deep": 1}]})
    'C 10'
    """
    shown = []
    for key, value in settings.items():
        text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        if key != "name" and "{" not in text and len(text) <= 40:
            shown.append(f"{key.replace('_', ' ')} {text}")
    return ", ".join(shown)


def describe_planned(planned: Mapping[str, Any]) -> str:
    """What was computed before training; numbers of steps are whole, however many.

    >>> describe_planned({"sigma": 1.23456, "steps": 12_345})
    'sigma 1.235, steps 12345'
    """
    return ", ".join(f"{key} {f'{value:.4g}' if isinstance(value, float) else value}" for key, value in planned.items())
