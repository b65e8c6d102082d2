"""A network student never ends below what the labels alone teach the same network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pate.networks._training import BatchSampler
from pate.runs._console import Quiet
from pate.runs.model_store import load_card, load_model, save_model
from pate.students import _neural, build_student
from pate.students._neural import NeuralStudent, falls_short, thirds
from pate.students._stage import _fit

SMALL = {"steps": 60, "batch_size": 24, "channels": 8, "hidden": 64, "ema": 0.9, "learning_rate": 5e-3}
RUSHED = SMALL | {"label_noise": 0.95, "ramp": 0.02}  # guesses count before there is anything to guess with
STEEP = {"mixmatch": RUSHED | {"unlabelled_weight": 200.0}, "gan": RUSHED | {"consistency_weight": 200.0}}
networks = pytest.mark.parametrize("name", STEEP)


def skewed(most: int = 60) -> tuple[tuple[np.ndarray, np.ndarray, np.ndarray], np.ndarray, np.ndarray]:
    """Four kinds alike frequent, of which the labels are mostly of one; what is given, all examples and the truth."""
    rng = np.random.default_rng(0)
    truth = np.arange(400) % 4
    blots = np.array([[1, -1, 1, 1], [1, -1, -1, -1], [1, -1, -1, 1], [1, -1, 1, -1.0]]).reshape(4, 2, 2)
    blots = blots.repeat(4, 1).repeat(4, 2)
    X = (blots[truth] + 0.3 * rng.normal(size=(400, 8, 8))).astype(np.float32)
    rows = np.concatenate([np.flatnonzero(truth == kind)[: 12 if kind else most] for kind in range(4)])
    return (X[rows], truth[rows], np.delete(X, rows, axis=0)), X, truth


@networks
def test_skewed_labels_do_not_end_in_one_answer_for_everything(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given, X, truth = skewed()
    student = build_student(name, STEEP[name], 3).fit(*given)
    labels = torch.from_numpy(given[1])
    with torch.random.fork_rng():
        alone = student._taught_by_labels(student._tensor(given[0]), labels, BatchSampler(len(labels)), student.steps)
    of_labels = (alone(student._tensor(X)).argmax(1).numpy() == truth).mean()
    assert of_labels > 0.9
    assert (student.predict(X) == truth).mean() >= of_labels
    assert student.fell_back_
    monkeypatch.setattr(NeuralStudent, "_has_collapsed", lambda *_: False)
    assert (build_student(name, STEEP[name], 3).fit(*given).predict(X) == truth).mean() < of_labels - 0.2


@networks
def test_a_student_that_learns_is_the_same_as_if_nobody_had_looked(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given, _, _ = skewed(most=12)
    watched = build_student(name, SMALL, 3)
    watched.fell_back_ = "as it did when it was fitted to other labels"
    assert watched.fit(*given).fell_back_ is None
    monkeypatch.setattr(NeuralStudent, "_has_collapsed", lambda *_: False)
    unwatched = build_student(name, SMALL, 3).fit(*given)
    for key, value in watched.weights().items():
        assert torch.equal(value, unwatched.weights()[key]), key
    assert "fell_back" not in watched.learned()


def test_interrupted_while_it_is_looked_at_it_ends_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given, _, _ = skewed()
    whole = build_student("mixmatch", STEEP["mixmatch"], 3).fit(*given)
    with monkeypatch.context() as patched:
        patched.setattr(NeuralStudent, "_taught_by_labels", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            build_student("mixmatch", STEEP["mixmatch"], 3).fit(*given, checkpoint=tmp_path)
    steps: list[int] = []
    again = build_student("mixmatch", STEEP["mixmatch"], 3)
    again.fit(*given, progress=lambda now: steps.append(now.step), checkpoint=tmp_path)
    assert steps == []
    for key, value in whole.weights().items():
        assert torch.equal(value, again.weights()[key]), key


class Told(Quiet):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, text: str) -> None:
        self.lines.append(text)


def test_one_line_says_so_and_the_card_keeps_it(tmp_path: Path) -> None:
    given, X, _ = skewed()
    student, console = build_student("mixmatch", STEEP["mixmatch"], 3), Told()
    _fit(student, (given, {}), tmp_path / "checkpoint", console)
    assert console.lines == [f"note: {student.fell_back_}"]
    assert "labels alone" in console.lines[0]
    save_model(student, tmp_path / "student", {})
    assert load_card(tmp_path / "student")["learned"]["fell_back"] == student.fell_back_
    stored = load_model(tmp_path / "student")
    np.testing.assert_array_equal(stored.predict(X), student.predict(X))
    assert stored.fell_back_ == student.fell_back_


def verdict(own: int, reference: int, n: int = 300, commonest: int = 60, **changes: Any) -> bool:
    """Agreement with `own` of `n` labels against `reference` of them, as different as can be."""
    places = np.arange(n)
    labels = np.where(places % n < commonest, 0, 1 + places % 5)
    arrays = {
        "own": places < own,
        "reference": places < reference,
        "labels": labels,
        "weights": np.ones(n),
        "example": places,
    }
    return falls_short(**(arrays | changes))


def test_the_rule_wants_more_than_chance_and_more_than_a_tenth() -> None:
    assert verdict(own=200, reference=240)
    assert not verdict(own=230, reference=240), "less than a tenth of what is beyond the commonest class"
    assert not verdict(own=240, reference=200)
    assert not verdict(own=13, reference=16, n=20, commonest=5), "three labels are chance"
    assert verdict(own=60, reference=60), "no better than the commonest class"
    assert not verdict(own=200, reference=240, weights=np.where(np.arange(300) < 200, 1.0, 0.01))
    one = np.where((np.arange(300) >= 200) & (np.arange(300) < 240), 299, np.arange(300))
    assert not verdict(own=200, reference=240, example=one), "one example with forty labels is one example"


def test_an_example_with_several_labels_is_in_one_third() -> None:
    X = np.random.default_rng(0).normal(size=(30, 8, 8)).astype(np.float32)
    third, example = thirds(np.repeat(X, 4, axis=0), seed=1)
    assert (third.reshape(30, 4) == third.reshape(30, 4)[:, :1]).all()
    assert len(np.unique(example)) == 30
    assert np.bincount(third).tolist() == [40, 40, 40]


def test_references_never_see_the_labels_that_they_are_tried_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """And each label counts by its weight, also where the student is trained on the labels alone in the end."""
    given, _, _ = skewed()
    weights = np.linspace(0.5, 1, len(given[1]))
    student = build_student("mixmatch", SMALL | {"steps": 4}, 3)
    seen: list[torch.Tensor] = []
    drawn_by: list[torch.Tensor] = []
    taught = NeuralStudent._taught_by_labels

    def noted(self: Any, labelled: torch.Tensor, labels: torch.Tensor, drawn: BatchSampler, steps: int) -> Any:
        assert drawn.weights is not None
        seen.append(labelled)
        drawn_by.append(drawn.weights)
        return taught(self, labelled, labels, drawn, steps)

    monkeypatch.setattr(NeuralStudent, "_taught_by_labels", noted)
    monkeypatch.setattr(_neural, "falls_short", lambda *_: True)
    student.fit(*given, sample_weight=weights)
    third, _ = thirds(given[0], 3)
    for number, (found, drawn) in enumerate(zip(seen, drawn_by, strict=True)):  # the last of all labels
        assert torch.equal(found, student._tensor(given[0][third != number if number < 2 else third >= 0]))
        np.testing.assert_array_equal(drawn.numpy(), weights[third != number if number < 2 else third >= 0])
    assert len(seen) == 3


def test_too_few_labels_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    given, _, _ = skewed()
    monkeypatch.setattr(NeuralStudent, "_taught_by_labels", lambda *_: 1 / 0)
    build_student("mixmatch", SMALL | {"steps": 2}, 3).fit(given[0][46:54], given[1][46:54], given[2])
