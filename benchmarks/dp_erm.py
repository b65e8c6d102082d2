"""DP-ERM on Adult and KDD'99: error against ε and against the number of records, linear, kernel and privately tuned.

    python benchmarks/dp_erm.py --data-dir DIR --results dp_erm.jsonl [--out dp_erm.png] [--repeats 10]

Output and objective perturbation, logistic regression and Huber SVM, beside the same models without privacy, as in
figures 2 to 5 of Chaudhuri, Monteleoni, Sarwate 2011. No test label is looked at before the end: regularisation, and
the kernel's width and size, are chosen in rehearsals on labelled public rows, which no private record takes part in. A
rehearsal has fewer records, and its ε is larger in proportion, so that noise weighs as much as it will. Without
such rows the choice has to be paid for: `tuned` is `dp_erm_tuned`, which chooses within its ε.

What is finished is a line of the results file and is not done again; noise is fresh. One thread.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from dp_erm_tables import draw, print_tables
from threadpoolctl import threadpool_limits

from pate.accounting._parameters import MAX_EPSILON
from pate.baselines.dp_erm import DPLinearClassifier, PrivatelyTuned
from pate.data._benchmarks import load_table
from pate.data.private import Records
from pate.data.public import PublicData

SOURCES = ("adult", "kddcup99")
METHODS = ("output", "objective")
LOSSES = ("logistic", "huber")
EPSILONS = (0.01, 0.05, 0.1, 0.2, 0.5, 1.0)
EPSILONS_BESIDE = (0.1, 1.0)  # of the kernel, and of private tuning
FOR_SIZES = 0.05, (0.1, 0.2, 0.4, 0.7)  # ε, and shares of the records

REGULARISATIONS = {
    "linear": (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0),
    "kernel": (1e-4, 1e-3, 1e-2, 0.1),
    "without privacy": (1e-6, 1e-5, 1e-4, 1e-3),
}
KERNELS = [{"gamma": g, "fourier_features": f} for g in (0.03, 0.1, 0.3, 1.0) for f in (30, 100)]
REHEARSALS = {"linear": 20, "kernel": 5}  # of each candidate
REHEARSED = 4_000  # public rows to learn from; others are for counting errors
CANDIDATES = ({"regularisation": 1e-3}, {"regularisation": 1e-2}, {"regularisation": 0.1})  # of private tuning


@dataclass(frozen=True)
class Cell:
    """One entry of the tables."""

    source: str
    records: int
    model: str
    loss: str
    method: str
    epsilon: float
    repeats: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--results", type=Path, default=Path("dp_erm.jsonl"), help="kept, and not done again")
    parser.add_argument("--out", type=Path, default=Path("dp_erm.png"))
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--most-records", type=int, default=70_000, help="the paper used 70,000 of KDD'99")
    parser.add_argument("--sources", nargs="+", choices=SOURCES, default=list(SOURCES))
    options = parser.parse_args()
    finished = read_results(options.results)
    with threadpool_limits(1):
        wanted = [cell for source in options.sources for cell in cells(source, options)]
        for number, cell in enumerate(wanted, 1):
            if cell in finished:
                continue
            finished[cell] = result = measure(cell, options.data_dir)
            with options.results.open("a", encoding="utf-8") as file:
                file.write(json.dumps({**asdict(cell), **result}) + "\n")
            print(f"{number}/{len(wanted)} {told(cell, result)}", file=sys.stderr, flush=True)
    results = {cell: finished[cell] for cell in wanted}
    print_tables(results)
    draw(results, options.out)
    print(f"written: {options.out}")


def cells(source: str, options: argparse.Namespace) -> list[Cell]:
    """Everything that is measured on a data set."""
    _, records = data_set(source, options.data_dir)
    n = min(len(records), options.most_records)
    found = []
    for loss in LOSSES:
        plain = Cell(source, n, "linear", loss, "none", MAX_EPSILON, 1)
        found += [plain, replace(plain, model="kernel")]
        for method in METHODS:
            private = replace(plain, method=method, repeats=options.repeats)
            found += [replace(private, epsilon=e) for e in EPSILONS]
            found += [replace(private, model=m, epsilon=e) for m in ("kernel", "tuned") for e in EPSILONS_BESIDE]
            found += [replace(private, records=int(share * n), epsilon=FOR_SIZES[0]) for share in FOR_SIZES[1]]
    return found


def read_results(path: Path) -> dict[Cell, dict[str, Any]]:
    """What earlier runs measured; a last line that was cut off is as if it were not there."""
    finished = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            found = json.loads(line)
        except json.JSONDecodeError:
            continue
        cell = Cell(**{name: found.pop(name) for name in Cell.__dataclass_fields__})
        finished[cell] = found
    return finished


@functools.cache
def data_set(source: str, data_dir: Path) -> tuple[PublicData, Records]:
    return load_table(source, [data_dir])


def measure(cell: Cell, data_dir: Path) -> dict[str, Any]:
    """Share of wrong test answers in each repeat, what was chosen beforehand, and processor time."""
    (data, records), started = data_set(cell.source, data_dir), time.process_time()
    settings = {} if cell.model == "tuned" else rehearsed(cell, data)
    X, y = records.X[: cell.records], records.y[: cell.records]
    errors = [wrong(cell, settings, X, y, data.X_test, data.y_test) for _ in range(cell.repeats)]
    return {"errors": errors, "settings": settings, "cpu_seconds": round(time.process_time() - started, 2)}


def rehearsed(cell: Cell, data: PublicData) -> dict[str, Any]:
    """The candidate with the fewest errors in rehearsals on public rows alone."""
    assert data.y_public is not None
    learned, counted = slice(0, REHEARSED), slice(REHEARSED, 2 * REHEARSED)
    epsilon = min(cell.epsilon * cell.records / REHEARSED, MAX_EPSILON)
    rehearsal = replace(cell, records=REHEARSED, epsilon=epsilon)
    repeats = 1 if cell.method == "none" else REHEARSALS[cell.model]
    X, y = data.X_public, data.y_public

    def errors(settings: dict[str, Any]) -> float:
        once = (wrong(rehearsal, settings, X[learned], y[learned], X[counted], y[counted]) for _ in range(repeats))
        return float(np.mean(list(once)))

    regularisations = REGULARISATIONS["without privacy" if cell.method == "none" else cell.model]
    kernels = KERNELS if cell.model == "kernel" else [{}]
    return min(({"regularisation": r, **kernel} for r in regularisations for kernel in kernels), key=errors)


def wrong(
    cell: Cell, settings: dict[str, Any], X: np.ndarray, y: np.ndarray, X_other: np.ndarray, y_other: np.ndarray
) -> float:
    """Share of other examples that a model of such records gets wrong, with fresh noise."""
    method = "output" if cell.method == "none" else cell.method  # of which, at that ε, nothing is to be seen
    model: DPLinearClassifier | PrivatelyTuned
    if cell.model == "tuned":
        params = {"loss": cell.loss, "method": method}
        model = PrivatelyTuned(cell.epsilon, n_records=cell.records, candidates=CANDIDATES, params=params)
    else:
        model = DPLinearClassifier(cell.epsilon, n_records=cell.records, loss=cell.loss, method=method, **settings)
    return 1.0 - float(model.fit(X, y).score(X_other, y_other))


def told(cell: Cell, result: dict[str, Any]) -> str:
    chosen = " ".join(f"{name}={value:g}" for name, value in result["settings"].items())
    return (
        f"{cell.source} {cell.records:,} {cell.model} {cell.loss} {cell.method} ε={cell.epsilon:g} {chosen}: "
        f"{np.mean(result['errors']):.4f}, {result['cpu_seconds']:.1f} s"
    )


if __name__ == "__main__":
    main()
