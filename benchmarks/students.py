"""Students on the PATE authors' own votes: accuracy, and how it grows with time.

    python benchmarks/students.py ROW [--students gan,mixmatch,supervised] [--seeds 3] [--labels N] [--steps N]

ROW is mnist (LNMax, scale 20, 100 queries), mnist-confident (ConfidentGNMax 200/150/40, 640 queries), svhn (LNMax,
scale 10, 1,000 queries). Data and votes
are found below $PATE_DATA. Labels come from the aggregator's own code, with noise from the operating system; every seed
asks anew, and all students of a seed learn from the same labels. Nothing is chosen by what is printed here.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.boundary._aggregator import Aggregator
from pate.config import load_config
from pate.data.private import Votes
from pate.data.public import PublicData
from pate.ledger import Ledger, Limits
from pate.mechanisms import UNANSWERED, ConfidentGNMax, LNMax, Mechanism
from pate.networks._training import Progress
from pate.students import build_student
from pate.voters import voters_of
from pate.voters.stored import StoredCount

ROWS: dict[str, tuple[str, Mechanism, int]] = {
    "mnist": ("mnist", LNMax(20.0), 100),
    "mnist-confident": ("mnist", ConfidentGNMax(200.0, 150.0, 40.0), 640),
    "svhn": ("svhn", LNMax(10.0), 1000),
}
NETWORKS = ("gan", "mixmatch")  # a gan with the parameters of configs/IMAGES_votes.yaml
MIXMATCH: dict[str, dict[str, Any]] = {
    "mnist": {"class_prior": "even", "steps": 2000},
    "svhn": {"class_prior": "labels", "channels": 32, "hidden": 256, "steps": 4000},
}
OTHERS: dict[str, dict[str, Any]] = {
    "supervised": {"estimator": "sklearn.svm.SVC", "params": {"C": 10}},
    "spreading": {
        "estimator": "sklearn.semi_supervised.LabelSpreading",
        "params": {"kernel": "knn", "n_neighbors": 10, "alpha": 0.5, "max_iter": 200},
        "unlabelled": "mark",
    },
}


def released(data: PublicData, votes: Votes, mechanism: Mechanism, asked: int) -> NDArray[np.int64]:
    """Labels of the first public images, through aggregator and ledger as in a run, without Ray."""
    n_teachers = int(votes.counts[0].sum())
    queries = data.X_public[:asked]
    with tempfile.TemporaryDirectory() as folder:
        private, key = Path(folder), secrets.token_bytes(32)
        limits = Limits(asked, asked, repr(mechanism))
        ledger = partial(Ledger, private / "ledger.db", key, private / "ledger.head", "run", limits)
        aggregator = Aggregator(mechanism, ledger, private, key, n_teachers)
        aggregator.collect(queries, StoredCount(votes.counts[:asked], n_teachers))
        labels = aggregator.label(queries).labels
        aggregator.close()
    return labels


def trained(
    name: str, params: dict[str, Any], data: PublicData, labels: NDArray[np.int64], seed: int
) -> dict[str, Any]:
    """Train one student; its test accuracy, seconds, and the curve at ten moments on the way."""
    student = build_student(name if name in NETWORKS else "supervised", OTHERS.get(name, params), seed)
    clock, cores, looking = time.perf_counter(), time.process_time(), 0.0
    curve: list[tuple[int, float]] = []

    def look(now: Progress) -> None:
        nonlocal looking
        if now.step * 10 // now.steps > len(curve):
            before = time.perf_counter()
            curve.append((round(before - clock - looking), accuracy(student, data)))
            looking += time.perf_counter() - before

    further: dict[str, Any] = {"progress": look} if name in NETWORKS else {}
    student.fit(data.X_public[: len(labels)], labels, data.X_public[len(labels) :], **further)
    return {
        "accuracy": accuracy(student, data),
        "seconds": round(time.perf_counter() - clock - looking, 1),
        "seconds_of_cores": round(time.process_time() - cores, 1),
        "curve": curve,
    }


def accuracy(student: Any, data: PublicData) -> float:
    assert data.X_test is not None
    return float((student.predict(data.X_test[:5000]) == data.y_test[:5000]).mean())  # type: ignore[index]


def main() -> None:
    parser = argparse.ArgumentParser(description="Students on the authors' votes.")
    parser.add_argument("row", choices=ROWS)
    parser.add_argument("--students", default="supervised,spreading,mixmatch,gan")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--labels", type=int)
    parser.add_argument("--steps", type=int)
    options = parser.parse_args()
    images, mechanism, asked = ROWS[options.row]
    asked = options.labels or asked
    config = load_config(Path(__file__).parents[1] / "configs" / f"{images}_votes.yaml")
    params, further = dict(config.student.params), {"steps": options.steps} if options.steps else {}
    data, votes = voters_of(config).load(None, Path(), by_workers=False)
    assert isinstance(votes, Votes)
    found: dict[str, list[float]] = {}
    print(f"{options.row}: {mechanism}, {asked} queries; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for seed in map(int, options.seeds.split(",")):
        labels = released(data, votes, mechanism, asked)
        answered = labels != UNANSWERED
        right = (labels == data.y_public[:asked])[answered].mean()  # type: ignore[index]
        print(f"seed {seed}: {answered.sum()} labels, {100 * right:.1f} % right", flush=True)
        for name in options.students.split(","):
            own = params if name == "gan" else MIXMATCH[images] | {"augmentation": params.get("augmentation")}
            result = trained(name, own | further, data, labels, seed)
            found.setdefault(name, []).append(result["accuracy"])
            print("  " + json.dumps({"student": name, **result}), flush=True)
    for name, figures in found.items():
        each = ", ".join(f"{100 * figure:.1f}" for figure in figures)
        print(f"{name}: {100 * np.mean(figures):.2f} % on average ({each})")


if __name__ == "__main__":
    main()
