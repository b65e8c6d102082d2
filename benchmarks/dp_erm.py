"""DP-ERM on Adult and KDD'99: error against ε, against the number of records, and against the regularisation.

    python benchmarks/dp_erm.py --data-dir DIR [--repeats 5] [--most-records 70000] [--out dp_erm.png]

The sweeps of Chaudhuri, Monteleoni, Sarwate 2011 (figures 2 to 5, tables 1 and 2): output against objective
perturbation, logistic regression and Huber SVM, side by side with the same model without privacy. For every ε the
best of the given regularisations is shown for either method, as the paper does; a real choice would have to be private.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from pate.baselines.dp_erm import DPLinearClassifier
from pate.data.benchmark_tables import load_table
from pate.data.dataset import Dataset

EPSILONS = (0.05, 0.1, 0.2, 0.5, 1.0)
REGULARISATIONS = (3e-5, 1e-4, 3e-4, 1e-3, 3e-3)
METHODS = ("output", "objective")
LOSSES = ("logistic", "huber")
FOR_SIZES = 0.1, (0.1, 0.2, 0.4, 0.7, 1.0)  # ε, and shares of the records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--most-records", type=int, default=70_000, help="the paper used 70,000 of KDD'99")
    parser.add_argument("--sources", nargs="+", default=["adult", "kddcup99"])
    parser.add_argument("--out", type=Path, default=Path("dp_erm.png"))
    options = parser.parse_args()
    curves = {}
    for source in options.sources:
        started = time.perf_counter()
        data = load_table(source, [options.data_dir])
        n = min(len(data.records.X), options.most_records)
        print(f"\n# {source}: {n:,} records, {data.records.X.shape[1]} features, {options.repeats} repeats")
        for loss in LOSSES:
            grid = sweep(data, n, loss, options.repeats)
            exact = min(error(data, n, loss, "objective", 1e9, r) for r in REGULARISATIONS)
            print_tables(source, loss, grid, exact)
            by_size = sizes(data, n, loss, grid, options.repeats)
            curves[source, loss] = grid, exact, by_size
        print(f"{source}: {time.perf_counter() - started:.0f} s")
    draw(curves, options.out)
    print(f"written: {options.out}")


def error(data: Dataset, n: int, loss: str, method: str, epsilon: float, regularisation: float) -> float:
    """Share of test examples that are wrong, with fresh noise."""
    model = DPLinearClassifier(epsilon, n_records=n, loss=loss, method=method, regularisation=regularisation)
    return 1.0 - model.fit(data.records.X[:n], data.records.y[:n]).score(data.X_test, data.y_test)


def sweep(data: Dataset, n: int, loss: str, repeats: int) -> np.ndarray:
    """Errors [method, ε, regularisation, repeat]."""
    return np.array(
        [
            [[[error(data, n, loss, m, e, r) for _ in range(repeats)] for r in REGULARISATIONS] for e in EPSILONS]
            for m in METHODS
        ]
    )


def sizes(data: Dataset, n: int, loss: str, grid: np.ndarray, repeats: int) -> np.ndarray:
    """Errors [method, size] at the regularisation that was best for all records at that ε."""
    epsilon, shares = FOR_SIZES
    best = grid[:, EPSILONS.index(epsilon)].mean(-1).argmin(-1)
    table = np.array(
        [
            [
                np.mean([error(data, int(s * n), loss, m, epsilon, REGULARISATIONS[b]) for _ in range(repeats)])
                for s in shares
            ]
            for m, b in zip(METHODS, best, strict=True)
        ]
    )
    print(f"error against the number of records, ε = {epsilon:g}")
    print("records    " + "".join(f"{int(s * n):>9,}" for s in shares))
    for method, row in zip(METHODS, table, strict=True):
        print(f"{method:<11}" + "".join(f"{value:>9.3f}" for value in row))
    return table


def print_tables(source: str, loss: str, grid: np.ndarray, exact: float) -> None:
    mean = grid.mean(-1)
    print(f"\n## {source}, {loss}: error against ε (best regularisation); without privacy {exact:.3f}")
    print("ε          " + "".join(f"{e:>9g}" for e in EPSILONS))
    for method, table, spread in zip(METHODS, mean, grid.std(-1), strict=True):
        best = table.argmin(-1)
        print(f"{method:<11}" + "".join(f"{table[i, b]:>9.3f}" for i, b in enumerate(best)))
        print(f"{'  ±':<11}" + "".join(f"{spread[i, b]:>9.3f}" for i, b in enumerate(best)))
    at = EPSILONS.index(0.1)
    print("error against the regularisation, ε = 0.1")
    print("Λ          " + "".join(f"{r:>9g}" for r in REGULARISATIONS))
    for method, table in zip(METHODS, mean, strict=True):
        print(f"{method:<11}" + "".join(f"{value:>9.3f}" for value in table[at]))


def draw(curves: dict, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, all_axes = plt.subplots(2, len(curves), figsize=(4 * len(curves), 7), layout="constrained", squeeze=False)
    for (upper, lower), ((source, loss), (grid, exact, by_size)) in zip(all_axes.T, curves.items(), strict=True):
        for method, table, size_row in zip(METHODS, grid.mean(-1), by_size, strict=True):
            upper.plot(EPSILONS, table.min(-1), "o-", label=f"{method} perturbation")
            lower.plot(FOR_SIZES[1], size_row, "o-", label=f"{method} perturbation")
        for axes in (upper, lower):
            axes.axhline(exact, linestyle="--", color="grey", label="without privacy")
        upper.set(xscale="log", xlabel="ε", ylabel="error", title=f"{source}, {loss}", ylim=(0, None))
        lower.set(xlabel="share of the records", ylabel="error", title=f"ε = {FOR_SIZES[0]:g}", ylim=(0, None))
        upper.legend(fontsize=8)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
