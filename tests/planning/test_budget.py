"""From a config's budget to what may be published about its cost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pate.config import parse_config
from pate.planning.budget import epsilon_curves, publishable_epsilon

_MECHANISMS: list[dict[str, Any]] = [
    {"name": "lnmax", "scale": 8},
    {"name": "gnmax", "sigma": 9},
    {"name": "confident_gnmax", "threshold": 30, "sigma1": 12, "sigma2": 9},
    {"name": "mstab", "epsilon": 0.1, "query_delta": 1e-8},
    {"name": "msamp", "epsilon": 0.1, "query_delta": 1e-8, "sampling_rate": 0.1},
    {"name": "msvec", "epsilon": 1, "unstable": 5, "max_queries": 60, "delta": 1e-6},
]


@pytest.mark.parametrize("settings", _MECHANISMS, ids=lambda settings: settings["name"])
def test_curves_end_at_the_publishable_epsilon(settings: dict[str, Any]) -> None:
    config = parse_config(
        {
            "n_teachers": 50,
            "data": {"source": "digits"},
            "teachers": [{"name": "sklearn.svm.SVC"}],
            "mechanism": settings,
            "budget": {"asked": 40, "answered": 30},
            "student": {"name": "supervised"},
        }
    )
    mechanism = config.build_mechanism()
    curves = epsilon_curves(config, mechanism, 10)
    epsilon = publishable_epsilon(config, mechanism, 10)
    first, *others = curves.values()
    assert next(iter(first)) == 1
    assert list(first)[-1] == 40
    assert first[40] == pytest.approx(epsilon, rel=1e-9)
    assert (np.diff(list(first.values())) >= 0).all()
    for other in others:
        assert all(first[n] <= other[n] for n in first)
