"""Lots and noise on the device: the stated law, a fresh key for every draw, and nothing from elsewhere."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from pate.baselines import sampling as module
from pate.baselines.dp_sgd import DPSGDClassifier
from pate.baselines.sampling import FromSystem, OnDevice, draws_for
from pate.errors import ConfigError
from pate.noise import seeded_entropy

CPU = torch.device("cpu")
X, Y = np.random.default_rng(0).random((200, 6)).astype(np.float32), np.arange(200) % 2


@pytest.mark.parametrize("kind", [FromSystem, OnDevice])
def test_draws_follow_the_stated_law(kind: Any) -> None:
    """From fixed entropy, so it fails always or never; p-values below 1e-4 would be chance once in 5,000 seeds."""
    drawn = kind(CPU, seeded_entropy(3))
    assert stats.kstest(drawn.gaussians(20_000).numpy(), "norm").pvalue > 1e-4
    lots = [len(drawn.lot(1000, 0.3)) for _ in range(200)]
    assert abs(np.mean(lots) - 300) < 4 * np.sqrt(210 / 200)
    assert 0.6 < np.var(lots) / 210 < 1.5
    rows = drawn.lot(1000, 0.3)
    assert rows.dtype == torch.int64
    assert (rows[1:] > rows[:-1]).all()
    assert len(drawn.lot(10, 0.0)) == 0
    assert len(drawn.lot(10, 1.0)) == 10


def test_every_draw_on_a_device_has_a_key_of_its_own() -> None:
    asked: list[int] = []

    def entropy(n: int) -> bytes:
        asked.append(n)
        return os.urandom(n)

    drawn = OnDevice(CPU, entropy)
    first, second = drawn.gaussians(50), drawn.gaussians(50)
    assert asked == [8, 8]
    assert not torch.equal(first, second)
    assert not torch.equal(OnDevice(CPU, os.urandom).gaussians(50), OnDevice(CPU, os.urandom).gaussians(50))
    same = [OnDevice(CPU, lambda n: bytes(range(n))).gaussians(50) for _ in range(2)]
    assert torch.equal(*same)  # the key is all there is


def test_a_gpu_draws_for_itself_unless_it_is_told_not_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "Generator", lambda device: None)  # no GPU is needed
    made = {
        (where, device): type(draws_for(where, torch.device(device), os.urandom))
        for where in ("auto", "os", "device")
        for device in ("cpu", "cuda")
    }
    on_device = {key for key, kind in made.items() if kind is OnDevice}
    assert on_device == {("auto", "cuda"), ("device", "cpu"), ("device", "cuda")}
    with pytest.raises(ConfigError, match="draws = 'here': must be one of auto, os, device"):
        draws_for("here", CPU, os.urandom)


def test_with_the_cpu_as_a_device_a_network_is_trained_with_draws_made_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tensor of noise and every lot is recorded where it was made; the operating system gives keys alone."""
    made: list[tuple[str, torch.device]] = []
    for name in ("rand", "randn"):
        plain = getattr(torch, name)

        def recorded(*shape: int, name: str = name, plain: Any = plain, **settings: Any) -> torch.Tensor:
            found = plain(*shape, **settings)
            if "generator" in settings:
                made.append((name, found.device))
            return found

        monkeypatch.setattr(torch, name, recorded)
    monkeypatch.setattr(module, "gaussians", lambda *_: pytest.fail("noise from elsewhere"))
    monkeypatch.setattr(module, "bernoulli", lambda *_: pytest.fail("a lot from elsewhere"))
    settings: dict[str, Any] = {"n_records": 200, "classes": range(2), "model": "linear", "accountant": "rdp"}
    DPSGDClassifier(sigma=1.0, delta=1e-4, lot_size=50, epochs=1, draws="device", device="cpu", **settings).fit(X, Y)
    drawn = [entry for entry in made if entry[1] == CPU]
    assert [name for name, _ in drawn].count("rand") == 4  # a lot a step
    assert [name for name, _ in drawn].count("randn") >= 4  # and its noise
