"""DP-SGD on MNIST, one parameter at a time: clipping norm, lot size, noise, learning rate, hidden units.

    python benchmarks/dp_sgd_ablations.py --data-dir DIR [--epochs 5] [--config configs/mnist_dp_sgd.yaml]

The ablations of Abadi et al. 2016 (figure 5), around the given config and shortened to a few epochs. Each row trains
once with fresh noise at the same target ε (rows "sigma" with a given σ instead: their ε is what that σ costs), side by
side with the unchanged setting.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from pate.baselines import build_baseline
from pate.config import load_baseline_config
from pate.data.dataset import Dataset
from pate.data.images import load_images
from pate.features import build_features

FACTORS = (0.25, 4.0)
HIDDEN = (200,)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--epochs", type=float, default=5)
    parser.add_argument("--config", type=Path, default=Path(__file__).parent.parent / "configs" / "mnist_dp_sgd.yaml")
    options = parser.parse_args()
    config = load_baseline_config(options.config)
    usual: dict[str, Any] = dict(config.baseline.params) | {"epochs": options.epochs, "accountant": "rdp"}
    data = prepared(load_images("mnist", [options.data_dir]), usual.pop("prepare", []))
    epsilon = config.budget.epsilon or 2.0
    print(f"{'changed':<16}{'value':>10}{'σ':>9}{'ε':>8}{'right, %':>11}{'seconds':>9}")
    row(data, usual, epsilon, "nothing", None)
    for name in ("clip_norm", "lot_size", "learning_rate"):
        for factor in FACTORS:
            row(data, usual, epsilon, name, type(usual[name])(usual[name] * factor))
    sigma = build(data, usual, epsilon).plan()[0]
    for factor in FACTORS:
        row(data, usual, None, "sigma", round(sigma * factor, 3))
    for hidden in HIDDEN:
        row(data, usual, epsilon, "model_params", {"hidden": hidden})


def prepared(data: Dataset, names: str | list[Any]) -> Dataset:
    """What the config does to each image first, done once for all rows."""
    steps = [
        {"name": step} if isinstance(step, str) else step for step in ([names] if isinstance(names, str) else names)
    ]
    transform = build_features(steps, "prepare").transform
    changed = {name: transform(getattr(data, name)) for name in ("X_private", "X_public", "X_test")}
    return replace(data, **changed)


def build(data: Dataset, params: dict[str, Any], epsilon: float | None) -> Any:
    given = {"epsilon": epsilon, "delta": 1e-5, "n_records": len(data.records.X), "classes": range(10)}
    return build_baseline("dp_sgd", params, given)


def row(data: Dataset, usual: dict[str, Any], epsilon: float | None, name: str, value: Any) -> None:
    """Train once, and score on all 10,000 test images: benchmark data, whose public part has labels too."""
    model = build(data, usual if value is None else usual | {name: value}, epsilon)
    started = time.perf_counter()
    model.fit(data.records.X, data.records.y, data.X_public)
    assert data.X_test is not None
    assert data.y_test is not None
    right = (model.predict(data.X_public) == data.y_public).sum() + (model.predict(data.X_test) == data.y_test).sum()
    share = 100 * right / (len(data.X_public) + len(data.X_test))
    shown = "" if value is None else str(value["hidden"] if isinstance(value, dict) else value)
    name = "hidden units" if name == "model_params" else name
    seconds = time.perf_counter() - started
    print(f"{name:<16}{shown:>10}{model.sigma_:>9.3f}{model.epsilon_:>8.2f}{share:>11.1f}{seconds:>9.0f}", flush=True)


if __name__ == "__main__":
    main()
