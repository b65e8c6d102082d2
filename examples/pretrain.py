"""Weights from public images alone, for DP-SGD to begin with: a small network learns to see what a large one sees.

    python examples/pretrain.py CONFIG FEATURES DATA_DIR OUT.safetensors [EPOCHS]

CONFIG names data and network, FEATURES is a config whose `prepare` are the public features to learn: for CIFAR-10
configs/cifar10_pretrained.yaml and configs/cifar10_dp_probe.yaml.
Without arguments a tiny network learns from made-up images.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from safetensors.torch import save_file

from pate.baselines.pretraining import pretrained_weights
from pate.baselines.seen import transforms_of
from pate.config import load_baseline_config
from pate.data.sources import load


def told(step: int, steps: int, error: float) -> None:
    if step % max(1, steps // 20) == 0:
        print(f"step {step} of {steps}, error {error:.3f}", flush=True)


def main(config: str, features: str, data_dir: str, out: str, epochs: str = "30") -> None:
    wanted, seer = (load_baseline_config(Path(name)) for name in (config, features))
    data = load(wanted.data, Path(data_dir), Path(config).parent)
    transform = transforms_of(seer.baseline.params["prepare"]).transform
    seen = transform(data.X_public)
    network = {key: wanted.baseline.params.get(key) for key in ("model", "model_params")}
    weights = pretrained_weights(
        data.X_public, seen, **network, n_classes=len(data.classes), epochs=float(epochs), progress=told
    )
    save_file(weights, out)
    print(f"{len(weights)} tensors from {len(seen)} public images, in {out}")


def try_it() -> None:
    rng = np.random.default_rng(0)
    tint = rng.normal(size=(64, 3))
    X = (tint[:, None, None, :] + rng.normal(size=(64, 24, 24, 3)) / 4).astype(np.float32)
    weights = pretrained_weights(
        X, X.std((1, 2)), model="cropped_cnn", model_params={"channels": 4}, n_classes=2, epochs=5
    )
    print(f"{len(weights)} tensors of a tiny network")


if __name__ == "__main__":
    main(*sys.argv[1:]) if len(sys.argv) > 1 else try_it()
