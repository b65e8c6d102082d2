"""The least noise that keeps to a target, by few looks at what noise costs: each may take seconds."""

from __future__ import annotations

import math
from collections.abc import Callable

_STEP = 0.3  # of ln(noise), from the guess to where the search begins on its other side
_FAR = 5.0  # of ln(cost / target): beyond, the search need not know how far
_NEAR = 1e-12  # never 0, where the search would end: less noise may cost the same


def min_noise(
    cost: Callable[[float], float],
    target: float,
    guess: float,
    bounds: tuple[float, float],
    tolerance: float,
) -> float | None:
    """Noise within `bounds` that costs at most `target`; None where none does.

    Less noise, by more than a share `tolerance`, costs more than `target` or is out of bounds, if `cost` falls with
    noise. The noise that is returned was itself looked at, so it keeps to the target in any case. The closer the
    `guess`, the fewer looks.
    """
    from scipy.optimize import brentq  # costs 0.1 s: import where used

    least, most = map(math.log, bounds)
    excesses: dict[float, float] = {}  # ln(cost / target) by ln(noise); above 0 where noise is too little

    def excess(x: float) -> float:
        if x not in excesses:
            found = cost(min(max(math.exp(x), bounds[0]), bounds[1]))
            far = math.log(found) - math.log(target) if 0 < found < math.inf else math.copysign(_FAR, found - target)
            far = min(max(far, -_FAR), _FAR)
            excesses[x] = min(far, -_NEAR) if found <= target else max(far, _NEAR)
        return excesses[x]

    low = high = min(max(math.log(guess), least), most)
    step = _STEP
    while excess(high) > 0:
        if high >= most:
            return None
        low, high, step = high, min(high + step, most), 2 * step
    while excess(low) <= 0 and low > least:
        low, high, step = max(low - step, least), low, 2 * step
    if excess(low) > 0:
        brentq(excess, low, high, xtol=tolerance)
    enough = min(x for x, found in excesses.items() if found <= 0)
    return min(max(math.exp(enough), bounds[0]), bounds[1])
