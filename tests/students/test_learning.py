"""Students by their definition: networks against plain training, self-training by what an estimator is given."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax, one_hot, softplus

from pate.networks import _training as training
from pate.networks._architectures import Classifier, Generator, seeded
from pate.networks._training import ClassPrior
from pate.students import build_student, mixmatch
from pate.students._stage import fit_remotely
from pate.students.supervised import Supervised

STEPS, WIDTH, SEED = 8, 6, 3
TWICE = [0, 1, 2, 3] * 2
QUIET = {"steps": STEPS, "batch_size": 8, "hidden": WIDTH, "ema": 0.9, "ramp": 0.5, "random_state": SEED}
QUIET |= {
    "augmentation": {"noise": 0.0, "dropout": 0.0},
    "label_smoothing": 0.2,
    "label_noise": 0.6,
    "learning_rate": 0.02,
}


def fixed_noise(*size: Any, **_: Any) -> Tensor:
    """As many numbers as were to be drawn, always the same."""
    shape = size[0] if size and not isinstance(size[0], int) else size
    return (torch.arange(float(np.prod(tuple(shape)))) * 1.7).sin().reshape(tuple(shape))


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches are the first rows, in turn, and noise is fixed: what is left of training is its formulas."""
    monkeypatch.setattr(training, "draw_batch", lambda n, size, _: torch.arange(size) % n)
    monkeypatch.setattr(torch, "randn", fixed_noise)
    monkeypatch.setattr(mixmatch, "mixed_up", lambda examples, answers, *_: (examples, answers))
    monkeypatch.setattr(mixmatch.MixMatch, "normed", "weight")  # a bias before a batch norm is moved by rounding alone


def examples() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(4, 5)).astype(np.float32), np.array([0, 1, 2, 1]), rng.normal(size=(9, 5)).astype("f4")


def sharper(guess: Tensor) -> Tensor:
    return guess**2 / (guess**2).sum(1, keepdim=True)  # at the usual temperature of a half


def plain_mixmatch(s: Any, network: nn.Module, average: nn.Module, few: Tensor, many: Tensor) -> Any:
    """Berthelot et al. 2019, over two views that are the same here."""
    optimiser = torch.optim.AdamW(network.parameters(), lr=s.learning_rate, weight_decay=s.weight_decay)

    def step(given: Tensor, rise: float) -> None:
        with torch.no_grad():
            guess = sharper(network(torch.cat([many, many])).softmax(1)[: len(many)])
            given = given + s.label_noise * rise * (average(few).softmax(1) - given)
        scores = network(torch.cat([few, many, many]))
        labelled = -(given * log_softmax(scores[:8], 1)).sum(1).mean()
        unlabelled = (scores[8:].softmax(1) - torch.cat([guess, guess])).square().mean()
        optimiser.zero_grad()
        (labelled + s.unlabelled_weight * rise * unlabelled).backward()
        optimiser.step()

    return step, [optimiser]


def plain_gan(s: Any, network: Any, average: nn.Module, few: Tensor, many: Tensor, pool: Tensor) -> Any:
    """Salimans et al. 2016, drawn towards the averaged network's guesses."""
    maker = seeded(lambda: Generator((5,), s.noise, 8, WIDTH, float(pool.min()), float(pool.max())), SEED).train()
    optimisers = [
        torch.optim.Adam(module.parameters(), lr=s.learning_rate, betas=(0.5, 0.999)) for module in (network, maker)
    ]

    def step(given: Tensor, rise: float) -> None:
        made = maker(fixed_noise(8, s.noise))
        with torch.no_grad():
            guess = sharper(average(many).softmax(1))
            given = given + s.label_noise * rise * (average(few).softmax(1) - given)
        on_few, on_real, on_made = network(few), network(many), network(made.detach())
        loss = -(given * log_softmax(on_few, 1)).sum(1).mean()
        tell = softplus(-on_real.logsumexp(1)).mean() + softplus(on_made.logsumexp(1)).mean()
        pull = (on_real.softmax(1) - guess).square().mean()
        total = loss + s.unlabelled_weight * tell + rise * s.consistency_weight * pull
        unlike = network.features(made).mean(0) - network.features(many).mean(0).detach()
        of_network = torch.autograd.grad(total, list(network.parameters()))
        of_maker = torch.autograd.grad(unlike.square().mean(), list(maker.parameters()))
        for optimiser, gradients in zip(optimisers, (of_network, of_maker), strict=True):
            for parameter, gradient in zip(optimiser.param_groups[0]["params"], gradients, strict=True):
                parameter.grad = gradient
            optimiser.step()

    return step, optimisers


@pytest.mark.parametrize("name", ["mixmatch", "gan"])
def test_a_network_student_takes_the_steps_of_its_definition(name: str, undrawn: None) -> None:
    """Weights after a few steps, against a loop with plain optimisers; only the labelled and unlabelled rows enter."""
    X, y, more = examples()
    student: Any = build_student(name, QUIET, 0)
    student.fit(X, y, more)
    pool = np.concatenate([X, more]).astype(np.float64)
    few, many, all_rows = (
        torch.from_numpy(((rows - pool.mean(0)) / pool.std(0)).astype(np.float32))
        for rows in (X[TWICE], pool[:8], pool)
    )
    network = seeded(lambda: Classifier((5,), 3, 16, WIDTH, student.normed), SEED).train()
    average = copy.deepcopy(network).eval()
    smooth = 0.8 * one_hot(torch.from_numpy(y[TWICE]), 3).float() + 0.2 / 3
    plain = plain_mixmatch if name == "mixmatch" else plain_gan
    step, optimisers = plain(student, network, average, few, many, *([all_rows] if name == "gan" else []))
    for number in range(STEPS):
        for optimiser in optimisers:
            optimiser.param_groups[0]["lr"] = student.learning_rate * (
                0.01 + 0.99 * (1 + np.cos(np.pi * number / STEPS)) / 2
            )
        step(smooth, min(1.0, number / (0.5 * STEPS)))
        keep = min(0.9, (1 + number) / (10 + number))
        with torch.no_grad():
            for old, new in zip(average.parameters(), network.parameters(), strict=True):
                old.mul_(keep).add_(new, alpha=1 - keep)
            for old, new in zip(average.buffers(), network.buffers(), strict=True):
                old.copy_(new)
    for key, expected in average.state_dict().items():
        torch.testing.assert_close(student.weights()[key], expected, atol=1e-5, rtol=1e-4, msg=f"{key}: {{}}".format)


@pytest.mark.parametrize("name", ["mixmatch", "gan"])
def test_a_label_counts_by_its_own_weight_wherever_it_is_learned(name: str, tmp_path: Path) -> None:
    """Every example comes with both labels, one of them light; some that are not answered come first."""
    rng = np.random.default_rng(1)
    truth = np.arange(24) % 2
    X = (rng.normal(size=(24, 4)) * 0.2 + 2 * truth[:, None] - 1).astype(np.float32)
    rows = np.repeat(np.arange(24), 2)
    y = np.tile([0, 1], 24)
    weights = np.where(y == truth[rows], 0.97, 0.03)
    y[:7], y[-2:] = -1, -1
    student = build_student(name, {"steps": 60, "hidden": 16, "ema": 0.9, "learning_rate": 1e-2, "label_noise": 0.0}, 0)
    student.fit(X[rows], y, X, sample_weight=weights)
    np.testing.assert_array_equal(student.predict(X), truth)
    apart: Any = {"kept": tmp_path / "state", "progress": None}
    there: Any = build_student(name, student.get_params(), 0)
    there.restore(*fit_remotely(copy.deepcopy(there), ((X[rows], y, X), {"sample_weight": weights}), **apart))
    np.testing.assert_array_equal(there.predict_proba(X), student.predict_proba(X))


def test_classes_are_as_frequent_as_among_labels_by_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Soft labels name every class for every example: their number alone says nothing."""
    found: list[ClassPrior] = []

    def made(*given: Any) -> ClassPrior:
        found.append(ClassPrior(*given))
        return found[-1]

    monkeypatch.setattr(training, "ClassPrior", made)
    X = np.repeat(examples()[0], 2, axis=0)
    student = build_student("mixmatch", QUIET | {"class_prior": "labels", "steps": 1}, 0)
    student.fit(X, np.tile([0, 1], 4), X, sample_weight=np.tile([0.75, 0.25], 4))
    np.testing.assert_allclose(found[0].wanted.numpy(), [4 / 6, 2 / 6])


class Noting:
    """An estimator that keeps all that it is fitted to, and says 1 as surely as the first column is above 0."""

    given: ClassVar[list[tuple[np.ndarray, np.ndarray]]] = []

    def __init__(self, random_state: int = 0) -> None:
        self.random_state = random_state

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        return {"random_state": self.random_state}

    def fit(self, X: np.ndarray, y: np.ndarray) -> Noting:
        self.given.append((X[:, 0].copy(), y.copy()))
        return self

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        return np.stack([1 - X[:, 0], X[:, 0]], axis=1)

    def predict(self, X: np.ndarray) -> np.ndarray:
        return self.predict_proba(X).argmax(axis=1)


X_FEW, Y_FEW = np.array([[0.1], [0.9], [0.98], [0.3]]), np.array([0, 4, -1, 0])
X_MORE = np.array([[0.5], [0.02], [0.85], [0.95], [0.05]])


def noted(X: np.ndarray, y: np.ndarray, **params: Any) -> tuple[Supervised, list[dict[float, int]]]:
    """The student, and the label of each example in every fit."""
    Noting.given.clear()
    student = build_student("supervised", {"estimator": f"{__name__}.Noting", **params}, 0).fit(X, y, X_MORE)
    return student, [dict(zip(X.tolist(), y.tolist(), strict=True)) for X, y in Noting.given]


def test_self_training_adds_sure_guesses_about_unlabelled_examples_to_the_labels() -> None:
    """To the released labels, which it never changes; each guess for its own example."""
    labels = {0.1: 0, 0.9: 1, 0.3: 0}
    student, fits = noted(X_FEW, Y_FEW, self_training=2, threshold=0.9)
    assert fits == [labels, *[labels | {0.98: 1, 0.02: 0, 0.95: 1, 0.05: 0}] * 2]
    assert student.predict(np.array([[0.2], [0.8]])).tolist() == [0, 4]


def test_unlabelled_examples_are_left_out_or_marked_as_is_wanted() -> None:
    labels = {0.1: 0, 0.9: 1, 0.3: 0}
    assert noted(X_FEW, Y_FEW)[1] == [labels]
    assert noted(X_FEW, Y_FEW, unlabelled="mark")[1] == [labels | dict.fromkeys([0.98, *X_MORE[:, 0]], -1)]


def test_a_balanced_decision_goes_by_the_weight_of_labels() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 2))
    params = {"estimator": "sklearn.linear_model.LogisticRegression", "decision": "balanced"}
    y, weights = np.tile([0, 1], 40), np.tile([0.9, 0.1], 40)
    student = build_student("supervised", params, 0).fit(np.repeat(X, 2, axis=0), y, sample_weight=weights)
    np.testing.assert_allclose(student.learned()["class_shares"], [0.9, 0.1])
    shares = student.predict_proba(X) / [0.9, 0.1]
    np.testing.assert_array_equal(student.predict(X), shares.argmax(axis=1))


def test_a_checkpoint_of_labels_with_other_weights_is_left_alone(tmp_path: Path) -> None:
    X, y, more = examples()
    seen: list[int] = []
    for weights in ([1.0, 1.0, 1.0, 0.5], [1.0, 1.0, 0.5, 1.0]):
        student = build_student("mixmatch", QUIET | {"steps": 50}, 0)
        student.fit(
            X, y, more, sample_weight=np.array(weights), progress=lambda now: seen.append(now.step), checkpoint=tmp_path
        )
    assert seen == [50, 50]
