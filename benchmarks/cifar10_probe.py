"""A DP linear probe on ImageNet features of CIFAR-10 beside the same probe without privacy.

    python benchmarks/cifar10_probe.py --data-dir DIR --results FILE.jsonl [--size 192] [--seeds 3] [--choose]

Takes configs/cifar10_dp_probe.yaml; docs/neighbours.md tells how to get the weights that it names. Features are worked
out once and kept beside the results (half an hour beside other work), finished rows are not run again. `--choose`
compares settings on 5,000 training images kept out, which is how those below were found; no test label takes part.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from pate.baselines.dp_sgd import DPSGDClassifier
from pate.components._registry import make_importable
from pate.config import load_baseline_config
from pate.data._sources import load
from pate.data.private import records_of
from pate.voters.neighbours._cells import FeatureCache, RecordFeatures

CONFIG = Path(__file__).parents[1] / "configs" / "cifar10_dp_probe.yaml"
HELD_OUT = 5_000
AT_ONCE = 2_000
FEW = {"components": 200, "epochs": 10, "learning_rate": 4.0}  # as the config has it
MORE = {"components": 800, "epochs": 20, "learning_rate": 4.0}
ROWS: dict[float, dict[str, Any]] = {0.5: FEW, 1: MORE, 2: MORE, 8: MORE}
CHOICES = [
    {"components": components, "epochs": epochs, "learning_rate": rate}
    for components, epochs, rate in (
        (200, 10, 4.0),
        (800, 20, 4.0),
        (800, 40, 4.0),
        (800, 20, 2.0),
        (800, 20, 8.0),
        (1280, 20, 4.0),
    )
]
PENALTIES = (0.001, 0.01)

Split = tuple[NDArray, NDArray]


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--data-dir", type=Path, required=True)
    options.add_argument("--results", type=Path, required=True)
    options.add_argument("--size", type=int, default=192)
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--choose", action="store_true")
    given = options.parse_args()
    config = load_baseline_config(CONFIG)
    make_importable(CONFIG.parent)
    data, records = load(config.data, given.data_dir, CONFIG.parent)
    steps = [dict(step) for step in config.baseline.params["preprocessing"]]
    steps[0]["params"] = {**steps[0]["params"], "size": given.size}
    kept = FeatureCache(RecordFeatures(steps), given.results.with_suffix(".features"))
    assert data.X_test is not None
    public, private, test = (_features(kept, X) for X in (data.X_public, records_of(records).X, data.X_test))
    y_public, y, y_test = data.y_public, records_of(records).y, data.y_test
    assert y_public is not None
    assert y_test is not None
    if given.choose:
        choose(config.baseline.params, public, (private, y), given.size)
        return
    tested = np.concatenate([public, test]), np.concatenate([y_public, y_test])
    table(config.baseline.params, public, (private, y), tested, given)


def _features(kept: FeatureCache, X: NDArray) -> NDArray[np.float32]:
    found, started = [], time.perf_counter()
    for start in range(0, len(X), AT_ONCE):
        found.append(kept(X[start : start + AT_ONCE]).astype(np.float32))
        print(
            f"features of {start + len(found[-1]):,} of {len(X):,}, {time.perf_counter() - started:.0f} s", flush=True
        )
    return np.concatenate(found)


def private_probe(
    params: dict[str, Any], epsilon: float, settings: dict[str, Any], public: NDArray, train: Split, seed: int
) -> DPSGDClassifier:
    own = {key: value for key, value in params.items() if key != "preprocessing"} | settings
    given = {"epsilon": epsilon, "delta": 1e-5, "n_records": 50_000, "classes": range(10), "random_state": seed}
    return DPSGDClassifier(**given, **own).fit(*train, X_public=public)


def plain_probe(public: NDArray, train: Split, penalty: float) -> Any:
    """Logistic regression on all features, scaled by the public images."""
    mean, scale = public.mean(0), public.std(0) + 1e-6
    model = LogisticRegression(C=penalty, max_iter=100).fit((train[0] - mean) / scale, train[1])
    return lambda X: model.predict((X - mean) / scale)


def right(predict: Any, split: Split) -> float:
    return float((predict(split[0]) == split[1]).mean())


def choose(params: dict[str, Any], public: NDArray, private: Split, size: int) -> None:
    """Settings by the share of 5,000 training images that is right, of a probe that did not see them."""
    order = np.random.default_rng(0).permutation(len(private[1]))
    held, rest = ((private[0][rows], private[1][rows]) for rows in (order[:HELD_OUT], order[HELD_OUT:]))
    for penalty in PENALTIES:
        print(f"{size} pixels, without privacy, C {penalty}: {right(plain_probe(public, rest, penalty), held):.4f}")
    for settings in CHOICES:
        found = right(private_probe(params, 2, settings, public, rest, 0).predict, held)
        print(f"{size} pixels, ε = 2, {settings}: {found:.4f}", flush=True)


def table(params: dict[str, Any], public: NDArray, private: Split, tested: Split, given: argparse.Namespace) -> None:
    known = {}
    if given.results.exists():
        known = {entry["row"]: entry["right"] for entry in map(json.loads, given.results.read_text().splitlines())}
    with given.results.open("a") as file:

        def measured(row: str, run: Any) -> float:
            if row not in known:
                known[row] = run()
                file.write(json.dumps({"row": row, "right": known[row]}) + "\n")
                file.flush()
            return known[row]

        at = f"{given.size} pixels"
        plain = measured(f"{at}, without privacy", lambda: right(plain_probe(public, private, 0.01), tested))
        print(f"{at}, {len(tested[1]):,} test images. Without privacy: {100 * plain:.2f} % right")
        for epsilon, settings in ROWS.items():
            each = [
                measured(
                    f"{at}, ε = {epsilon:g}, {settings}, seed {seed}",
                    lambda e=epsilon, s=settings, n=seed: right(
                        private_probe(params, e, s, public, private, n).predict, tested
                    ),
                )
                for seed in range(given.seeds)
            ]
            spread = f" ± {100 * statistics.stdev(each):.2f}" if len(each) > 1 else ""
            mean = statistics.fmean(each)
            print(f"ε = {epsilon:<4g} {100 * mean:.2f}{spread} %, {100 * (plain - mean):.2f} points less")


if __name__ == "__main__":
    main()
