"""The training loop: resuming, stopping early, telling how far it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from pate.networks import _training as training
from pate.networks._architectures import example_tensor
from pate.networks._training import ClassPrior, Progress
from pate.students import build_student

PARAMS = {"steps": 100, "batch_size": 8, "channels": 2, "hidden": 8, "class_prior": "even"}


def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    y = np.arange(40) % 3
    return (rng.normal(size=(3, 8, 8))[y] + rng.normal(size=(40, 8, 8)) / 2).astype(np.float32), y


class Killed(Exception):
    pass


@pytest.mark.parametrize("name", ["mixmatch", "gan"])
def test_resumed_equals_uninterrupted(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "_SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    X, y = data()
    whole = build_student(name, PARAMS, 5).fit(X[:20], y[:20], X[20:])

    def die(now: Progress) -> None:
        if now.step == 50:
            raise Killed

    with pytest.raises(Killed):
        build_student(name, PARAMS, 5).fit(X[:20], y[:20], X[20:], progress=die, checkpoint=tmp_path)
    seen: list[int] = []
    again = build_student(name, PARAMS, 5)
    again.fit(X[:20], y[:20], X[20:], progress=lambda now: seen.append(now.step), checkpoint=tmp_path)
    assert seen == [100]
    for key, value in whole.weights().items():
        assert torch.equal(value, again.weights()[key]), key


@pytest.mark.parametrize("damage", ["other seed", "other data", "other labels", "half a file"])
def test_a_checkpoint_of_another_training_is_left_alone(damage: str, tmp_path: Path) -> None:
    X, y = data()
    short = PARAMS | {"steps": 50}
    build_student("mixmatch", short, 5).fit(X, y, None, checkpoint=tmp_path)
    file = tmp_path / "checkpoint.safetensors"
    if damage == "half a file":
        file.write_bytes(file.read_bytes()[:100])
    seen: list[int] = []
    student = build_student("mixmatch", short, 6 if damage == "other seed" else 5)
    X, y = X + (damage == "other data"), np.roll(y, damage == "other labels")
    student.fit(X, y, None, progress=lambda now: seen.append(now.step), checkpoint=tmp_path)
    assert seen == [50]


@pytest.mark.parametrize("name", ["mixmatch", "gan"])
def test_stops_when_the_unlabelled_loss_stalls(name: str) -> None:
    X, y = data()
    student = build_student(name, PARAMS | {"steps": 600, "patience": 1, "learning_rate": 0.0}, 0)
    student.fit(X[:8], y[:8], X[8:])
    assert 300 * (name == "gan") < student.steps_done_ < 600


def test_progress_tells_loss_and_time_left() -> None:
    X, y = data()
    seen: list[Progress] = []
    build_student("mixmatch", PARAMS, 0).fit(X, y, None, progress=seen.append)
    assert [now.step for now in seen] == [50, 100]
    assert all(np.isfinite([now.loss, now.unlabelled_loss]).all() for now in seen)
    assert seen[0].seconds_left > seen[-1].seconds_left == 0


def test_training_leaves_the_global_generator_alone() -> None:
    X, y = data()
    before = torch.get_rng_state()
    for name in ("mixmatch", "gan"):
        build_student(name, PARAMS | {"steps": 3}, 0).fit(X, y, None)
    assert torch.equal(before, torch.get_rng_state())


def test_alignment_brings_guesses_to_the_wanted_mix() -> None:
    mix = ClassPrior("even", torch.tensor([0, 0, 0, 1]), 2)
    skewed = torch.tensor([[0.9, 0.1], [0.7, 0.3]])
    for _ in range(400):
        aligned = mix.align(skewed)
    np.testing.assert_allclose(aligned.sum(1).numpy(), 1, atol=1e-6)
    assert abs(float(aligned[:, 0].mean()) - 0.5) < 0.04
    assert ClassPrior("free", torch.tensor([0, 1]), 2).align(skewed) is skewed
    np.testing.assert_allclose(ClassPrior("labels", torch.tensor([0, 0, 0, 1]), 2).wanted.numpy(), [4 / 6, 2 / 6])


def test_moving_average_starts_near_the_weights_and_follows_by_its_decay() -> None:
    """By the formula: the share of step n is 1 − min(decay, (1 + n)/(10 + n)); state of batch norm is copied."""
    module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    average = training.moving_average(module, 0.5)
    expected = [parameter.detach().clone() for parameter in module.parameters()]
    for number in range(20):
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.add_(1.0)
            module(torch.full((4, 2), float(number)))
        share = 1 - min(0.5, (1 + number) / (10 + number))
        expected = [old + share * (new - old) for old, new in zip(expected, module.parameters(), strict=True)]
        average.update_parameters(module)
    for found, wanted in zip(average.module.parameters(), expected, strict=True):
        torch.testing.assert_close(found, wanted.detach())
    for found, wanted in zip(average.module.buffers(), module.buffers(), strict=True):
        assert torch.equal(found, wanted)
    assert list(average.module.state_dict()) == list(module.state_dict())  # what is stored keeps its names


@pytest.mark.parametrize("name", ["mixmatch", "gan"])
def test_students_predict_with_the_averaged_weights(name: str, tmp_path: Path) -> None:
    """Both kinds of weights are in the checkpoint at the end."""
    from safetensors.torch import load_file

    X, y = data()
    student = build_student(name, PARAMS | {"steps": 5}, 0).fit(X[:8], y[:8], X[8:], checkpoint=tmp_path)
    stored, used = load_file(tmp_path / "checkpoint.safetensors"), student.weights()
    learned = [key for key in used if key.endswith(("weight", "bias", "original0", "original1"))]
    assert all(torch.equal(used[key], stored[f"average.module.{key}"]) for key in used)
    assert not any(torch.equal(used[key], stored[f"network.{key}"]) for key in learned)


def test_examples_are_standardised_by_all_public_ones() -> None:
    X, y = data()
    student = build_student("mixmatch", PARAMS | {"steps": 1}, 0).fit(X[:20], y[:20], 5 + 2 * X[20:])
    assert student.mean_ == pytest.approx(np.concatenate([X[:20], 5 + 2 * X[20:]]).mean(), rel=1e-5)


@pytest.mark.parametrize("shape", [(5, 3), (5, 8, 9), (5, 8, 9, 3)])
def test_read_only_examples_become_tensors_with_planes(shape: tuple[int, ...]) -> None:
    X = np.random.default_rng(0).normal(size=shape)
    X.flags.writeable = False
    mean, scale = np.float32(0.5).reshape(()), np.float32(2).reshape(())
    tensor = example_tensor(X, standard=(np.asarray(mean), np.asarray(scale)))
    planes = {2: X, 3: X[:, None], 4: np.moveaxis(X, 3, 1) if X.ndim == 4 else X}[X.ndim]
    np.testing.assert_allclose(tensor.numpy(), (planes - 0.5) / 2, rtol=1e-5, atol=1e-6)
    flat = example_tensor(X, images=False)
    np.testing.assert_allclose(flat.numpy(), X, rtol=1e-6)
