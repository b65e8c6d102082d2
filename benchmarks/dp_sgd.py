"""Clipped per-example gradient sums: Opacus's default against ghost clipping and torch.func, in one run.

    pip install -e '.[benchmarks]'; python benchmarks/dp_sgd.py [--batch 512] [--rounds 10]

The same network, batch and clipping norm; the sums are compared first (mean gradients to 1e-5), then timed in turn.
"Opacus default" is GradSampleModule with its DPOptimizer's clip_and_accumulate, as PrivacyEngine sets them up.
"auto" is what DP-SGD takes: ghost clipping, or torch.func where a layer is none that ghost clipping knows.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from torch import nn
from torch.nn.functional import cross_entropy

from pate.baselines._per_example import build_network, clipped_sum, quickest

CLIP = 0.1
TRAMER = {"widths": (64, 64), "reduce": "pool", "hidden": 0}


def grouped() -> nn.Sequential:
    """The CNN for MNIST with group normalisation."""
    first = nn.Conv2d(1, 16, 8, 2, padding=3), nn.GroupNorm(4, 16), nn.Tanh(), nn.MaxPool2d(2, 1)
    second = nn.Conv2d(16, 32, 4, 2), nn.GroupNorm(4, 32), nn.Tanh(), nn.MaxPool2d(2, 1), nn.Flatten()
    return nn.Sequential(*first, *second, nn.Linear(512, 32), nn.Tanh(), nn.Linear(32, 10))


def layered() -> nn.Sequential:
    """A perceptron with layer normalisation."""
    return nn.Sequential(nn.Linear(60, 1000), nn.LayerNorm(1000), nn.Tanh(), nn.Linear(1000, 10))


def signals() -> nn.Sequential:
    """Convolutions over time."""
    return nn.Sequential(nn.Conv1d(4, 32, 8, 2), nn.Tanh(), nn.Conv1d(32, 32, 8, 2), nn.Flatten(), nn.Linear(864, 10))


def ours(name: str, shape: tuple[int, ...], **parameters: Any) -> Callable[[], nn.Module]:
    """One of this package's networks."""
    return lambda: build_network(name, parameters, shape, 10, 0)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {  # network, shape, part of the batch
    "cnn, MNIST": (ours("cnn", (1, 28, 28)), (1, 28, 28), 1),
    "PCA 60 + 1000": (ours("mlp", (60,)), (60,), 1),
    "scattering + linear": (ours("linear", (81, 7, 7)), (81, 7, 7), 1),
    "scattering + CNN, CIFAR-10 (/4)": (ours("feature_cnn", (243, 8, 8), **TRAMER), (243, 8, 8), 4),
    "cropped_cnn, CIFAR-10 (/4)": (ours("cropped_cnn", (3, 32, 32)), (3, 32, 32), 4),
    "deep_cnn, CIFAR-10 (/8)": (ours("deep_cnn", (3, 32, 32)), (3, 32, 32), 8),
    "cnn with GroupNorm, MNIST": (grouped, (1, 28, 28), 1),
    "PCA 60 + 1000 with LayerNorm": (layered, (60,), 1),
    "CNN of one dimension": (signals, (4, 128), 1),
}


def opacus_default(network: torch.nn.Module, batch: int) -> Callable[[torch.Tensor, torch.Tensor], list[torch.Tensor]]:
    wrapped = GradSampleModule(network)
    plain = torch.optim.SGD(network.parameters(), lr=1.0)
    optimiser = DPOptimizer(plain, noise_multiplier=0.0, max_grad_norm=CLIP, expected_batch_size=batch)

    def step(inputs: torch.Tensor, targets: torch.Tensor) -> list[torch.Tensor]:
        optimiser.zero_grad()
        cross_entropy(wrapped(inputs), targets).backward()
        optimiser.clip_and_accumulate()
        return [parameter.summed_grad for parameter in network.parameters()]

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    threads = torch.get_num_threads()
    print(f"batch {options.batch}, best of {options.rounds} rounds, {threads} threads; milliseconds of processor time")
    print(f"{'network':<34}{'opacus':>9}{'ghost':>9}{'torch_func':>12}{'opacus/auto':>14}{'difference':>12}")
    for title, (build, shape, part) in NETWORKS.items():
        batch = options.batch // part
        torch.manual_seed(0)
        inputs, targets = torch.randn(batch, *shape), torch.randint(0, 10, (batch,))
        network = build()
        weights, auto = network.state_dict(), quickest(network)
        ways = {"opacus": opacus_default(network, batch)}
        for way in {auto, "torch_func"}:
            network = build()
            network.load_state_dict(weights)
            ways[way] = clipped_sum(way, network, CLIP)
        sums = {way: step(inputs, targets) for way, step in ways.items()}
        difference = max(
            float((a - b).abs().max()) for way in sums for a, b in zip(sums[way], sums["opacus"], strict=True)
        )
        assert difference <= 1e-5 * max(1.0, CLIP * batch), f"{title}: sums differ by {difference:g}"
        best = dict.fromkeys(ways, float("inf"))
        for _ in range(options.rounds):
            for way, step in ways.items():  # in turn, so that a busy machine slows all of them alike
                started = time.process_time()
                step(inputs, targets)
                best[way] = min(best[way], time.process_time() - started)
        ratio = best["opacus"] / best[auto]
        shown = "".join(
            f"{1000 * best[way]:>{width}.1f}" if way in best else f"{'–':>{width}}"
            for way, width in (("opacus", 9), ("ghost", 9), ("torch_func", 12))
        )
        print(f"{title:<34}{shown}{ratio:>14.2f}{difference:>12.1e}", flush=True)


if __name__ == "__main__":
    main()
