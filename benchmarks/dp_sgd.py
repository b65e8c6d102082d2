"""Clipped per-example gradient sums: Opacus's default against ghost clipping and torch.func, in one run.

    python benchmarks/dp_sgd.py [--batch 512] [--rounds 10]

The same network, batch and clipping norm; the sums are compared first (mean gradients to 1e-5), then timed in turn.
"Opacus default" is GradSampleModule with its DPOptimizer's clip_and_accumulate, as PrivacyEngine sets them up.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from torch.nn.functional import cross_entropy

from pate.baselines.networks import build_network
from pate.baselines.per_example import clipped_sum

CLIP = 0.1
TRAMER = {"widths": (64, 64), "reduce": "pool", "hidden": 0}
NETWORKS: dict[str, tuple[str, dict, tuple[int, ...], int]] = {  # name, parameters, shape, part of the batch
    "cnn, MNIST": ("cnn", {}, (1, 28, 28), 1),
    "PCA 60 + 1000": ("mlp", {}, (60,), 1),
    "scattering + linear": ("linear", {}, (81, 7, 7), 1),
    "scattering + CNN, CIFAR-10 (/4)": ("feature_cnn", TRAMER, (243, 8, 8), 4),
    "cropped_cnn, CIFAR-10 (/4)": ("cropped_cnn", {}, (3, 32, 32), 4),
    "deep_cnn, CIFAR-10 (/8)": ("deep_cnn", {}, (3, 32, 32), 8),
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
    print(f"batch {options.batch}, best of {options.rounds} rounds, {torch.get_num_threads()} threads; milliseconds")
    print(f"{'network':<34}{'opacus':>9}{'ghost':>9}{'torch_func':>12}{'opacus/ghost':>14}{'difference':>12}")
    for title, (name, parameters, shape, part) in NETWORKS.items():
        batch = options.batch // part
        torch.manual_seed(0)
        inputs, targets = torch.randn(batch, *shape), torch.randint(0, 10, (batch,))
        ways = {"opacus": opacus_default(build_network(name, parameters, shape, 10, 0), batch)}
        for way in ("ghost", "torch_func"):
            ways[way] = clipped_sum(way, build_network(name, parameters, shape, 10, 0), CLIP)
        sums = {way: step(inputs, targets) for way, step in ways.items()}
        difference = max(
            float((a - b).abs().max()) for way in sums for a, b in zip(sums[way], sums["opacus"], strict=True)
        )
        assert difference <= 1e-5 * max(1.0, CLIP * batch), f"{title}: sums differ by {difference:g}"
        best = dict.fromkeys(ways, float("inf"))
        for _ in range(options.rounds):
            for way, step in ways.items():  # in turn, so that a busy machine slows all of them alike
                started = time.perf_counter()
                step(inputs, targets)
                best[way] = min(best[way], time.perf_counter() - started)
        ratio = best["opacus"] / best["ghost"]
        shown = "".join(
            f"{1000 * best[way]:>{width}.1f}" for way, width in (("opacus", 9), ("ghost", 9), ("torch_func", 12))
        )
        print(f"{title:<34}{shown}{ratio:>14.2f}{difference:>12.1e}", flush=True)


if __name__ == "__main__":
    main()
