"""A real run on the digits with teachers, votes, ledger and student, all in this process: no Ray, seconds."""

from __future__ import annotations

from pathlib import Path

from pate import pipeline
from pate.config import parse_config

CONFIG = {
    "name": "digits",
    "n_teachers": 40,
    "data": {"source": "digits"},
    "teachers": [
        {"name": "sklearn.neighbors.KNeighborsClassifier", "params": {"n_neighbors": 1}, "weight": 2},
        {"name": "sklearn.svm.SVC", "grid": {"C": [1, 10]}, "features": "hog"},
    ],
    "mechanism": {"name": "confident_gnmax", "threshold": 25, "sigma1": 8, "sigma2": 6},
    "budget": {"max_queries": 120, "max_answers": 110, "delta": 1e-5, "sanitise": {"order": 6, "beta": 0.05}},
    "student": {"name": "supervised", "params": {"estimator": "sklearn.svm.SVC", "params": {"C": 10}}},
    "nonprivate": {"name": "sklearn.svm.SVC"},
    "backend": "local",
}


def make_run(out: Path) -> None:
    """Run it in the directory `out`, with every private figure that there can be."""
    pipeline.run(parse_config(CONFIG), out, evaluate_teachers=True)
