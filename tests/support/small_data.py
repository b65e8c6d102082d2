"""Data for runs of seconds."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pate.data._settings import BenchmarkData
from pate.data._sources import load
from pate.data.private import Votes
from pate.data.public import PublicData

CSV_CONFIG = """# pate run own.yaml
name: own
n_teachers: 10
data: {source: csv, private: private.csv, public: public.csv, test: test.csv, label: kind, id: who, classes: [cat, dog]}
teachers: [{name: sklearn.naive_bayes.GaussianNB}]
mechanism: {name: lnmax, scale: 3}
budget: {max_queries: 30}
student: {name: supervised, params: {estimator: sklearn.linear_model.LogisticRegression}}
"""
STORED_VOTES = {"voters": "stored", "stored": {"file": "given.npy"}, "data": {"source": "mnist"}}
"""Sections of a config for votes that were counted before, such as those of `digits_with_votes`."""
LOGISTIC = {"name": "supervised", "params": {"estimator": "sklearn.linear_model.LogisticRegression"}}


def own_data(folder: Path, n_private: int = 300) -> None:
    """A table of cats and dogs, in three files, and `own.yaml` for it."""
    rng = np.random.default_rng(0)
    for name, n in (("private", n_private), ("public", 40), ("test", 50)):
        kinds = rng.integers(2, size=n)
        lines = ["length,weight,kind,who"]
        lines += [
            f"{k + rng.normal(0, 0.3):.4f},{k + rng.normal(0, 0.3):.4f},{['cat', 'dog'][k]},p{i}"
            for i, k in enumerate(kinds)
        ]
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
    (folder / "own.yaml").write_text(CSV_CONFIG)


def digits_with_votes(n_teachers: int) -> tuple[PublicData, Votes]:
    """Votes that were counted before, so that no run has to train teachers: all teachers are right."""
    public, _ = load(BenchmarkData(source="digits"), None, Path())
    assert public.y_public is not None
    return public, Votes(n_teachers * np.eye(10, dtype=np.int64)[public.y_public])
