"""Figures for Prometheus, through Ray's own exporter. Only what may be published: no votes, no failures.

`pate_teachers_trained`, `pate_queries_asked`, `pate_queries_answered` and `pate_epsilon`, the ε of the limits, which
holds for every data set; each with the run's name as the tag `run`.
"""

from __future__ import annotations

from typing import Any

_FIGURES = {
    "pate_teachers_trained": "teachers that a live worker holds",
    "pate_queries_asked": "queries asked so far, stored and paid for",
    "pate_queries_answered": "queries answered so far, stored and paid for",
    "pate_epsilon": "epsilon of the limits: what may be spent at most, true for every data set",
}


class Metrics:
    """Gauges of one run. Nothing is shown before `begin`, so nothing at all by a run without Ray."""

    def __init__(self, run: str, epsilon: float) -> None:
        self._gauges: dict[str, Any] = {}
        self._tags, self._epsilon = {"run": run}, epsilon

    def begin(self) -> None:
        """To be called once Ray has been joined."""
        from ray.util.metrics import Gauge

        for name, text in _FIGURES.items():
            self._gauges[name] = Gauge(name, description=text, tag_keys=("run",))
        self.show(epsilon=self._epsilon)

    def show(self, **figures: float) -> None:
        """Set some of them, by name without the prefix."""
        for name, value in figures.items() if self._gauges else ():
            self._gauges[f"pate_{name}"].set(float(value), tags=self._tags)
