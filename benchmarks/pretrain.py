"""Weights from public images alone, for DP-SGD to begin with: a small network learns to see what a large one sees.

    python benchmarks/pretrain.py CONFIG FEATURES DATA_DIR OUT.safetensors [EPOCHS [TIMES]]

The features may be anything that `preprocessing` takes: those of a large network with public weights, whose knowledge
goes over into a small one (distillation), or patches of the public images themselves, which needs nobody's weights.
No label is used, and no private record, so it costs no privacy.

CONFIG names data and network, FEATURES is a config whose `preprocessing` is what to learn: for CIFAR-10
configs/cifar10_pretrained.yaml and configs/cifar10_dp_probe.yaml. It learns from TIMES as many images, the others
blends of pairs, and takes the steps of EPOCHS over the public images by themselves.
Without arguments a tiny network learns from made-up images.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from pate.accounting import _parameters as parameters
from pate.baselines._inputs import transforms_of
from pate.baselines._per_example import build_network
from pate.config import load_baseline_config
from pate.data._sources import load
from pate.errors import DataError
from pate.networks._architectures import example_tensor, resolve_device
from pate.networks._training import Strength, augmentation, cosine_rate

_LARGEST_GRADIENT = 1.0  # a large first step kills rectified units for good
_WARM_UP = 0.05  # of the steps
_JITTER = Strength(rotate=0, shear=0, zoom=0, elastic=0, shift=0.125, flip=True)


def pretrained_weights(
    X_public: NDArray,
    seen: NDArray,
    *,
    model: str,
    model_params: Mapping[str, Any] | None = None,
    n_classes: int,
    directions: int = 64,
    epochs: float = 30,
    batch_size: int = 64,
    learning_rate: float = 5e-4,
    random_state: int = 0,
    device: str = "auto",
    progress: Callable[[int, int, float], None] = lambda step, steps, loss: None,
) -> dict[str, torch.Tensor]:
    """A state of `model`, for `checkpoint`, that has learned to tell `seen` (a row per example) from the example.

    What it is taught are the leading `directions` of `seen`, from images that are shifted and mirrored at random. The
    last layer, which names classes, is as the seed makes it. `progress` is told step, steps and the mean squared error,
    of which 1 would be no knowledge at all.
    """
    epochs, batch_size = parameters.positive(epochs, "epochs"), parameters.queries(batch_size, "batch_size", least=1)
    X_public, seen = np.asarray(X_public, dtype=np.float32), np.asarray(seen, dtype=np.float64).reshape(len(seen), -1)
    if len(X_public) != len(seen) or len(seen) < 2:
        raise DataError(f"{len(X_public)} public examples with features of {len(seen)}: they must be as many, above 1")
    chosen, place = resolve_device(device), torch.Generator().manual_seed(random_state)
    examples, targets = example_tensor(X_public, chosen), _targets(seen, directions).to(chosen)
    shape = tuple(examples.shape[1:])
    network = build_network(model, dict(model_params or {}), shape, targets.shape[1], random_state).to(chosen).train()
    augment = augmentation(_JITTER, examples.ndim == 4, place)
    optimiser = torch.optim.AdamW(network.parameters(), lr=learning_rate, weight_decay=0.0, fused=True)
    steps, told = max(1, math.ceil(epochs * len(examples) / batch_size)), 0.0
    for step in range(steps):
        cosine_rate(optimiser, learning_rate * min(1.0, (step + 1) / (_WARM_UP * steps)), step, steps)
        rows = torch.randint(len(examples), (batch_size,), generator=place)
        loss = (network(augment(examples[rows])) - targets[rows]).square().mean()
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), _LARGEST_GRADIENT)
        optimiser.step()
        now = float(loss.detach())
        told = now if step == 0 else 0.99 * told + 0.01 * now
        progress(step + 1, steps, told)
    fresh = build_network(model, dict(model_params or {}), shape, n_classes, random_state).state_dict()
    last = list(fresh)[-2:]  # weight and bias of what names the classes
    return {name: fresh[name] if name in last else value.cpu() for name, value in network.state_dict().items()}


def blended(X: NDArray, times: int, random_state: int = 0) -> NDArray[np.float32]:
    """`times` as many examples: those given, then blends of random pairs of them, the first of a pair at least half.

    What a large network sees in a blend can be learned too, so that few examples teach more (Beyer et al. 2022,
    "Knowledge distillation: a good teacher is patient and consistent").
    """
    X, times = np.asarray(X, dtype=np.float32), parameters.queries(times, "times", least=1)
    rng, parts = np.random.default_rng(random_state), [X]
    for _ in range(times - 1):
        share = rng.uniform(0.5, 1.0, size=(len(X), *[1] * (X.ndim - 1))).astype(np.float32)
        parts.append(share * X + (1 - share) * X[rng.permutation(len(X))])
    return np.concatenate(parts)


def _targets(seen: NDArray[np.float64], directions: int) -> torch.Tensor:
    """The leading principal components, together of variance 1."""
    left, strength, _ = np.linalg.svd(seen - seen.mean(0), full_matrices=False)
    kept = min(directions, int((strength > 1e-9 * strength[0]).sum()))
    if kept == 0:
        raise DataError("features of the public examples are all alike: there is nothing to learn from them")
    components = left[:, :kept] * strength[:kept]
    return torch.from_numpy((components / components.std()).astype(np.float32))


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
