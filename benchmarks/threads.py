"""How many threads networks and linear models should use: one, all that wait asleep, or all that spin while they wait.

    python benchmarks/threads.py [--parts student,dp_sgd,…] [--ways one,waiting] [--busy 2] [--rounds 3] [--threads N]

Each part is a training as runs have it, on made-up examples, in a process of its own. The ways take turns, first on the
cores as they are and then beside `--busy` processes that compute all the time, and the median of the seconds is shown
with the ratio to one thread: above 1, all cores are quicker. Threads that spin can take hundreds of times as long
beside other work. The load says how quiet the machine was; on one that others use as well, what is called quiet here is
not. `pate.networks._process` follows from these figures.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from busy import busy

WAYS = ("one", "waiting", "spinning")


def student() -> Callable[[], Any]:
    """MNIST's MixMatch, 60 steps."""
    return _mixmatch((28, 28), channels=16, hidden=128, steps=60)


def wide_student() -> Callable[[], Any]:
    """SVHN's MixMatch, 20 steps."""
    return _mixmatch((32, 32, 3), channels=32, hidden=256, steps=20)


def table_student() -> Callable[[], Any]:
    """MixMatch on a table of 100 columns, 400 steps."""
    return _mixmatch((100,), hidden=128, steps=400)


def _mixmatch(shape: tuple[int, ...], **params: Any) -> Callable[[], Any]:
    from pate.students import build_student

    X, y = _examples(2000, shape)
    return lambda: build_student("mixmatch", params, 0).fit(X[:500], y[:500], X[500:])


def dp_sgd() -> Callable[[], Any]:
    """DP-SGD on images, lots of 512, 10 steps."""
    from pate.baselines.dp_sgd import DPSGDClassifier

    X, y = _examples(5120, (28, 28))
    given: dict[str, Any] = {"n_records": len(X), "classes": range(10), "lot_size": 512, "epochs": 1}
    return lambda: DPSGDClassifier(sigma=2.0, **given).fit(X, y)


def network() -> Callable[[], Any]:
    """MNIST's model without privacy, 40 steps."""
    from pate.teachers.network import Network

    X, y = _examples(5000, (28, 28))
    chosen: dict[str, Any] = {"channels": 16, "hidden": 128, "batch_norm": True, "shift": 2, "turn": 10}
    return lambda: Network("cnn", steps=40, batch_size=128, **chosen).fit(X, y)


def linear() -> Callable[[], Any]:
    """Logistic regression on 20,000 rows of 600 columns, 30 iterations."""
    from sklearn.linear_model import LogisticRegression

    X, y = _examples(20_000, (600,))
    return lambda: LogisticRegression(max_iter=30, tol=1e-12).fit(X, y)


def small_linear() -> Callable[[], Any]:
    """200 logistic regressions on 200 rows of 20 columns: students and teachers of tables."""
    from sklearn.linear_model import LogisticRegression

    X, y = _examples(200, (20,))
    return lambda: [LogisticRegression().fit(X, y) for _ in range(200)]


PARTS = (student, wide_student, table_student, dp_sgd, network, linear, small_linear)


def _examples(n: int, shape: tuple[int, ...]) -> tuple[Any, Any]:
    import numpy as np

    rng = np.random.default_rng(0)
    return rng.normal(size=(n, *shape)).astype(np.float32), rng.integers(10, size=n)


def _train(name: str) -> None:
    """In the child: train twice, and print the seconds and the processor's seconds of the second time."""
    import warnings

    warnings.simplefilter("ignore")
    work = next(part for part in PARTS if part.__name__ == name)()
    work()
    started, cores = time.perf_counter(), time.process_time()
    work()
    print(time.perf_counter() - started, time.process_time() - cores)


def measured(name: str, way: str, threads: int) -> tuple[float, float]:
    environment = {key: value for key, value in os.environ.items() if key != "OMP_WAIT_POLICY"}
    environment["OMP_NUM_THREADS"] = "1" if way == "one" else str(threads)
    if way == "waiting":
        environment["OMP_WAIT_POLICY"] = "PASSIVE"
    shown = subprocess.run(
        [sys.executable, __file__, "--train", name], check=True, stdout=subprocess.PIPE, text=True, env=environment
    ).stdout
    seconds, cores = map(float, shown.split())
    return seconds, cores


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(part.__name__ for part in PARTS))
    parser.add_argument("--ways", default=",".join(WAYS), help="the first is what the others are compared with")
    parser.add_argument("--busy", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--train", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        _train(options.train)
        return
    ways = options.ways.split(",")
    for name in options.parts.split(","):
        for processes in (0, options.busy):
            found: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
            load = os.getloadavg()[0]
            with busy(processes):
                for _ in range(options.rounds):
                    for way in ways:  # in turn, so that what others do slows all of them alike
                        found[way].append(measured(name, way, options.threads))
            seconds = {way: statistics.median(each[0] for each in found[way]) for way in ways}
            cores = {way: statistics.median(each[1] for each in found[way]) for way in ways}
            shown = ", ".join(
                f"{way} {seconds[way]:.2f} s ({cores[way]:.2f} of cores; {seconds[ways[0]] / seconds[way]:.2f})"
                for way in ways
            )
            where = f"beside {processes}" if processes else "as they are"
            print(f"{name}, {options.threads} cores {where}, load before {load:.1f}: {shown}", flush=True)


if __name__ == "__main__":
    main()
