"""How long a run waits for workers, and what it says meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable

from pate.errors import RunError

_FIRST_SAID, _SAID_EVERY = 5.0, 30.0  # seconds

Say = Callable[[str], None]


class Patience:
    """How long a run has been without the workers it needs: says so now and then, and ends it when it is too long."""

    def __init__(self, wait: float, say: Say) -> None:
        self._wait, self._say = wait, say
        self._since: float | None = None
        self._told = 0.0

    def has_all(self) -> None:
        """It has what it needs: the time begins anew."""
        self._since = None

    def lacks(self, what: Callable[[], str]) -> None:
        """It has not; `what` tells what it waits for."""
        now = time.monotonic()
        if self._since is None:
            self._since, self._told = now, now - _SAID_EVERY + _FIRST_SAID
        left = self._since + self._wait - now
        if left <= 0:
            text = f"{self._wait:g} s (ray.worker_timeout_seconds) were not enough for {what()}; "
            text += "go on with {resume} when there is room"
            raise RunError(text, resume=True)
        if now - self._told >= _SAID_EVERY:
            self._told = now
            self._say(f"waiting for {what()}; {left:.0f} s more (ray.worker_timeout_seconds)")
