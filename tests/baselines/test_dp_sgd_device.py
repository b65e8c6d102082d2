"""DP-SGD on another device than the CPU: torch's `meta` has no data, and like a GPU it takes no tensors of others.

What needs data (does an example count? the end of training) is left out or is where it ends.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from pate.baselines import _per_example as per_example
from pate.baselines import dp_sgd
from pate.baselines._per_example import WAYS
from pate.baselines.dp_sgd import DPSGDClassifier
from pate.errors import ConfigError

RNG = np.random.default_rng(0)
X, Y = RNG.random((40, 28, 28)).astype(np.float32), np.arange(40) % 3


def classifier(**settings: object) -> DPSGDClassifier:
    usual = {"n_records": 40, "classes": range(3), "lot_size": 20, "epochs": 1, "sigma": 1.0, "accountant": "rdp"}
    return DPSGDClassifier(delta=1e-3, **(usual | settings))  # type: ignore[arg-type]


@pytest.mark.parametrize("model", ["linear", "cnn"])
@pytest.mark.parametrize("way", [way for way in WAYS if way != "auto"])
def test_all_of_a_step_is_where_the_network_is(way: str, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dp_sgd, "way_for", lambda *_: way)
    monkeypatch.setattr(per_example, "counted", lambda rows, factors: rows)
    monkeypatch.setattr(dp_sgd, "never_stopping", lambda total, *_: total)  # which would hide what fails
    steps: list[int] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):
            classifier(model=model, device="meta").fit(X, Y, progress=lambda done, _: steps.append(done))
    assert steps == [1, 2]


def test_a_state_goes_on_on_another_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(per_example, "counted", lambda rows, factors: rows)
    monkeypatch.setattr(dp_sgd, "never_stopping", lambda total, *_: total)
    state = tmp_path / "state.safetensors"
    steps: list[int] = []

    def stop(done: int, _: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        classifier(model="linear", device="cpu").fit(X, Y, state=state, progress=stop)
    with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):
        classifier(model="linear", device="meta").fit(X, Y, state=state, progress=lambda done, _: steps.append(done))
    assert steps == []  # the step itself came through; to store it needs data
    classifier(model="linear", device="cpu").fit(X, Y, state=state, progress=lambda done, _: steps.append(done))
    assert steps == [2]


def test_afterwards_the_network_is_on_the_cpu_and_predicts_where_it_was_told() -> None:
    fitted = classifier(model="linear", device="cpu").fit(X, Y)
    assert {tensor.device.type for tensor in fitted.weights().values()} == {"cpu"}
    assert np.allclose(fitted.predict_proba(X[:5]).sum(1), 1)
    assert fitted.predict(X[:0]).shape == (0,)
    assert fitted.predict_proba(X[:0]).shape == (0, 3)
    fitted.device = "meta"
    with pytest.raises(NotImplementedError):
        fitted.predict(X[:5])


def test_a_model_from_a_machine_with_a_gpu_is_usable_here() -> None:
    fitted = classifier(model="linear", device="cpu").fit(X, Y)
    weights = {name: tensor.numpy() for name, tensor in fitted.weights().items()}
    restored = classifier(model="linear", device="cuda").restore(weights, fitted.learned())
    assert restored.device == "auto"
    if not torch.cuda.is_available():
        assert (restored.predict(X) == fitted.predict(X)).all()


def test_an_unknown_device_is_refused_before_a_record_is_looked_at() -> None:
    with pytest.raises(ConfigError, match="device = 'abacus': use auto, cpu or cuda"):
        classifier(device="abacus").plan()
