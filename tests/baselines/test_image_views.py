"""Shifted and mirrored views: what they are, whose turn it is, and that a record still adds one clipped gradient."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pate.baselines import dp_sgd
from pate.baselines._inputs import View, Views, by_turns
from pate.baselines.dp_sgd import DPSGDClassifier
from pate.errors import ConfigError

RNG = np.random.default_rng(0)
X = RNG.random((60, 10, 10, 3)).astype(np.float32)
Y = RNG.integers(2, size=60)
MANY = {"count": 4, "shift": 2, "flip": True}


def classifier(**settings: Any) -> DPSGDClassifier:
    usual: dict[str, Any] = {"n_records": 60, "classes": range(2), "lot_size": 20, "epochs": 2, "sigma": 1.0}
    usual |= {"accountant": "rdp", "model": "mlp", "model_params": {"hidden": 5}, "clip_norm": 1.0, "delta": 1e-4}
    return DPSGDClassifier(**(usual | settings))


@given(down=st.integers(-4, 4), right=st.integers(-4, 4), mirrored=st.booleans())
def test_a_view_moves_each_pixel_and_repeats_the_border(down: int, right: int, mirrored: bool) -> None:
    image = torch.arange(2 * 5 * 7.0).reshape(1, 2, 5, 7)
    seen = View(down, right, mirrored).of(image)
    assert seen.shape == image.shape
    for row in range(5):
        for column in range(7):
            there = 6 - column if mirrored else column
            wanted = image[..., min(max(row - down, 0), 4), min(max(there - right, 0), 6)]
            assert torch.equal(seen[..., row, column], wanted)


def test_views_are_the_plain_one_then_random_ones_of_the_seed() -> None:
    views = Views(count=200, shift=3, flip=True).drawn(5)
    assert views == Views(count=200, shift=3, flip=True).drawn(5)
    assert views != Views(count=200, shift=3, flip=True).drawn(6)
    assert views[0] == View()
    assert {view.down for view in views} == {view.right for view in views} == set(range(-3, 4))
    assert {view.mirrored for view in views} == {False, True}
    assert not any(view.mirrored for view in Views(count=50, shift=3).drawn(5))
    assert Views.of(None).drawn(0) == [View()]


@pytest.mark.parametrize("frozen", [False, True])
def test_views_take_turns(frozen: bool) -> None:
    images, views = torch.rand(6, 1, 8, 8), Views(count=3, shift=2, flip=True).drawn(1)
    seen = by_turns(images, views, (lambda x: x * 2) if frozen else None)
    rows = torch.tensor([4, 1])
    for step in range(7):
        wanted = views[step % 3].of(images)[rows] * (2 if frozen else 1)
        assert torch.equal(seen(step, rows), wanted), step


def test_every_record_of_a_lot_is_seen_once_through_the_view_of_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """One row of the lot is one example to clip, and the same view holds for all of them."""
    given_to = list[tuple[torch.Tensor, torch.Tensor]]()
    usual = dp_sgd.never_stopping

    def watching(total: Any, *rest: Any) -> Any:
        sums = usual(total, *rest)

        def noted(inputs: torch.Tensor, targets: torch.Tensor, draws: Any = None) -> list[torch.Tensor]:
            given_to.append((inputs, targets))
            return sums(inputs, targets, draws)

        return noted

    monkeypatch.setattr(dp_sgd, "never_stopping", watching)
    classifier(views=MANY, lot_size=60, micro_batch=60).fit(X, Y)
    images = torch.from_numpy(X).permute(0, 3, 1, 2)
    assert len(given_to) == 2
    for (inputs, targets), view in zip(given_to, Views.of(MANY).drawn(0), strict=False):
        assert torch.equal(inputs, view.of(images))
        assert torch.equal(targets, torch.from_numpy(Y))


def test_the_noise_and_epsilon_are_those_without_views() -> None:
    assert classifier(views=MANY).plan() == classifier().plan()


@pytest.mark.parametrize("frozen", [0, 1])
def test_one_view_is_training_without_views(frozen: int) -> None:
    entropy = [np.random.default_rng(3).bytes for _ in range(3)]
    plain, one, many = (
        classifier(views=views, frozen=frozen, entropy=draw).fit(X, Y).weights()
        for views, draw in zip((None, {"count": 1, "shift": 2}, MANY), entropy, strict=True)
    )
    assert all(torch.equal(plain[name], one[name]) for name in plain)
    assert not all(torch.equal(plain[name], many[name]) for name in plain)


def test_a_run_goes_on_with_the_view_whose_turn_it_is(tmp_path: Path) -> None:
    """The same draws for the steps that are left give the same weights."""

    class Stopped(Exception):
        pass

    drawn: list[bytes] = []

    def recorded(n: int) -> bytes:
        drawn.append(np.random.default_rng(len(drawn)).bytes(n))
        return drawn[-1]

    at = list[int]()

    def note(done: int, total: int) -> None:
        at.append(len(drawn))

    whole = classifier(views=MANY, entropy=recorded, epochs=3).fit(X, Y, progress=note)
    left = iter(drawn[at[4] :])

    def stop(done: int, total: int) -> None:
        if done == 5:
            raise Stopped

    state, first = tmp_path / "state", iter(drawn)
    with pytest.raises(Stopped):
        classifier(views=MANY, entropy=lambda n: next(first), epochs=3).fit(X, Y, state=state, progress=stop)
    again = classifier(views=MANY, entropy=lambda n: next(left), epochs=3).fit(X, Y, state=state)
    assert all(torch.equal(tensor, again.weights()[name]) for name, tensor in whole.weights().items())


@pytest.mark.parametrize(
    ("views", "words"),
    [
        ({"shifts": 2}, "views = {'shifts': 2}: must have the keys count, shift, flip, and no others"),
        ({"count": 0}, "views.count = 0"),
        ({"count": 2, "shift": -1}, "views.shift = -1"),
        ({"count": 2, "flip": 1}, "views.flip = 1: must be true or false"),
        ([], "views = []: must have the keys count, shift, flip"),
        (8, "views = 8: must have the keys count, shift, flip"),
        ({"count": 2, "shift": 10}, "views: are for images of more than 10 pixels"),
    ],
)
def test_mistakes_are_one_line(views: Any, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        classifier(views=views).fit(X, Y)
    assert words in str(caught.value)


def test_tables_have_no_views() -> None:
    with pytest.raises(ConfigError, match="views: are for images"):
        classifier(views=MANY).fit(X[:, 0, 0], Y)
