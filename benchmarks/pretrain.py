"""Weights from public images alone, for DP-SGD to begin with: a small network learns to see what a large one sees.

    python benchmarks/pretrain.py CONFIG FEATURES DATA_DIR OUT.safetensors [EPOCHS [TIMES]]

CONFIG names data and network, FEATURES is a config whose `preprocessing` is what to learn: for CIFAR-10
configs/cifar10_pretrained.yaml and configs/cifar10_dp_probe.yaml. It learns from TIMES as many images, the others
blends of pairs, and takes the steps of EPOCHS over the public images by themselves.
Without arguments a tiny network learns from made-up images.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from safetensors.torch import save_file

from pate.baselines._inputs import transforms_of
from pate.baselines._pretraining import blended, pretrained_weights
from pate.config import load_baseline_config
from pate.data._sources import load


def show(step: int, steps: int, error: float) -> None:
    if step % max(1, steps // 20) == 0:
        print(f"step {step} of {steps}, error {error:.3f}", flush=True)


def main(config: str, features: str, data_dir: str, out: str, epochs: str = "60", times: str = "5") -> None:
    wanted, seer = (load_baseline_config(Path(name)) for name in (config, features))
    data = load(wanted.data, Path(data_dir), Path(config).parent)
    transform = transforms_of(seer.baseline.params["preprocessing"]).transform
    X = blended(data.X_public, int(times))
    seen = []
    for block in np.array_split(X, 20):
        seen.append(transform(block))
        print(f"features of {sum(map(len, seen))} of {len(X)} images", flush=True)
    given = {key: wanted.baseline.params.get(key) for key in ("model", "model_params")}
    given |= {"n_classes": len(data.classes), "epochs": float(epochs) / int(times)}
    weights = pretrained_weights(X, np.concatenate(seen), **given, progress=show)
    save_file(weights, out)
    print(f"{len(weights)} tensors from {len(data.X_public)} public images, in {out}")


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
