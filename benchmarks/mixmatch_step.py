"""A MixMatch step with whole-batch augmentation, beside one that puts each image through torchvision transforms.

    python benchmarks/mixmatch_step.py

Both train the same network on the same random images with the same batch and number of views, one thread. The
straightforward way puts every image through `RandomAffine` and `ElasticTransform` by itself, as a data set class does.
Prints milliseconds per step, of the augmentation alone and of the whole, and the ratios.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from torchvision.transforms import v2

from pate.networks import _training as augment
from pate.networks._training import Strength, augmentation
from pate.students.mixmatch import MixMatch

STEPS = 20


def one_by_one(strength: Strength, images: bool, generator: torch.Generator) -> Callable[[torch.Tensor], torch.Tensor]:
    """The same family of warps by torchvision's own transforms, an image at a time."""
    each = v2.Compose(
        [
            v2.RandomAffine(
                strength.rotate,
                translate=(strength.shift, strength.shift),
                scale=(1 - strength.zoom, 1 + strength.zoom),
                shear=strength.shear,
                interpolation=v2.InterpolationMode.BILINEAR,
            ),
            v2.ElasticTransform(alpha=20.0, sigma=4.0),
        ]
    )
    return lambda batch: torch.stack([each(image) for image in batch])


def seconds(X: np.ndarray, y: np.ndarray, steps: int) -> float:
    started = time.process_time()
    MixMatch(steps=steps, device="cpu").fit(X[:100], y[:100], X[100:])
    return time.process_time() - started


def step_milliseconds(X: np.ndarray, y: np.ndarray) -> float:
    """Processor time of one step: a long training less a short one."""
    seconds(X, y, 2)
    return 1000 * min((seconds(X, y, STEPS + 2) - seconds(X, y, 2)) / STEPS for _ in range(3))


def warp_milliseconds(warp: Callable[[torch.Tensor], torch.Tensor], batch: torch.Tensor) -> float:
    warp(batch)
    times = []
    for _ in range(5):
        started = time.process_time()
        warp(batch)
        times.append(1000 * (time.process_time() - started))
    return min(times)


def main() -> None:
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    generator = torch.Generator().manual_seed(0)
    for shape in ((28, 28), (32, 32, 3)):
        X, y = rng.random((1000, *shape), dtype=np.float32), np.arange(1000) % 10
        planes = shape[2] if len(shape) == 3 else 1
        batch = torch.rand(96, planes, *shape[:2], generator=generator)
        whole, each = (make(Strength(), True, generator) for make in (augmentation, one_by_one))
        warps = warp_milliseconds(whole, batch), warp_milliseconds(each, batch)
        ours = step_milliseconds(X, y)
        augment.augmentation = one_by_one  # type: ignore[assignment]
        plain = step_milliseconds(X, y)
        augment.augmentation = augmentation
        print(f"images of {shape}, 32 labelled and 2 × 32 unlabelled per step, processor time")
        print(f"  augmentation  {warps[0]:7.1f} ms, one by one {warps[1]:7.1f} ms, ratio {warps[1] / warps[0]:5.1f}")
        print(f"  whole step    {ours:7.1f} ms, one by one {plain:7.1f} ms, ratio {plain / ours:5.1f}")


if __name__ == "__main__":
    main()
