"""The global generators of Python, numpy and torch while somebody else's code runs, which may draw from them."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

_NUMPY_SEEDS = 2**32


def seed_globally(seed: int) -> None:
    """Set all of them; torch's only where it is loaded."""
    random.seed(seed)
    np.random.seed(seed % _NUMPY_SEEDS)  # noqa: NPY002
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)


@contextmanager
def seeded_globally(seed: int) -> Iterator[None]:
    """Seed the global generators within; afterwards they are as they were, so that nothing else depends on the seed."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    torch: Any = sys.modules.get("torch")
    kept: list[tuple[Any, Any, tuple[int, ...]]] = (
        [] if torch is None else [(torch.random, torch.random.get_rng_state(), ())]
    )
    if torch is not None and torch.cuda.is_initialized():
        devices = range(torch.cuda.device_count())
        kept += [(torch.cuda, torch.cuda.get_rng_state(device), (device,)) for device in devices]
    try:
        seed_globally(seed)
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        for module, state, device in kept:
            module.set_rng_state(state, *device)
