"""Augmentation: one draw for each example, from the generator alone, and none at strength zero."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pate.networks._training import Strength, augmentation
from pate.students.mixmatch import mixed_up, sharpened

NONE = Strength(rotate=0, shear=0, zoom=0, shift=0, elastic=0, noise=0, dropout=0)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("shape", [(16, 1, 28, 28), (16, 3, 32, 32), (16, 9)], ids=str)
def test_zero_strength_is_the_identity(shape: tuple[int, ...]) -> None:
    batch = torch.randn(shape, generator=generator())
    same = augmentation(NONE, len(shape) == 4, generator())(batch)
    torch.testing.assert_close(same, batch, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("shape", [(4, 1, 28, 28), (4, 3, 32, 32), (4, 9)], ids=str)
def test_each_example_has_its_own_draw(shape: tuple[int, ...]) -> None:
    batch = torch.randn(1, *shape[1:], generator=generator()).repeat(4, *[1] * (len(shape) - 1))
    strength = Strength(contrast=0.3, brightness=0.3, flip=True)
    once, twice = (augmentation(strength, len(shape) == 4, generator(1))(batch) for _ in range(2))
    assert torch.equal(once, twice)
    assert once.shape == batch.shape
    assert not any(torch.allclose(once[0], other) for other in once[1:])


def test_a_shift_moves_an_image_as_far_as_it_says() -> None:
    image = torch.zeros(200, 1, 20, 20)
    image[:, :, 10, 10] = 1
    moved = augmentation(Strength(rotate=0, shear=0, zoom=0, shift=0.1, elastic=0), True, generator())(image)
    rows = (moved.sum((1, 3)) * torch.arange(20)).sum(1) / moved.sum((1, 2, 3))
    assert 1.5 < float((rows - 10).abs().max()) <= 2.01


@pytest.mark.parametrize("also", [{}, {"flip": True}], ids=["alone", "mirrored too"])
def test_a_negative_swaps_dark_and_light_of_about_half_the_images(also: dict[str, bool]) -> None:
    images = torch.randn(400, 3, 8, 8, generator=generator())
    strength = Strength(rotate=0, shear=0, zoom=0, shift=0, elastic=0, negative=True, **also)
    seen = augmentation(strength, True, generator(1))(images)
    alike = {
        (sign, mirrored): torch.isclose(seen, sign * (images.flip(-1) if mirrored else images), atol=1e-4)
        for sign in (1, -1)
        for mirrored in (False, True)
    }
    shares = {kind: float(same.flatten(1).all(1).double().mean()) for kind, same in alike.items()}
    assert sum(shares.values()) == pytest.approx(1)
    assert 0.3 < shares[-1, False] + shares[-1, True] < 0.7  # a fixed seed
    assert (shares[1, True] > 0.1) == (shares[-1, True] > 0.1) == bool(also)


def test_mixup_keeps_the_larger_share_and_sharpening_the_order() -> None:
    examples, answers = torch.eye(8), torch.eye(8)
    blended, blended_answers = mixed_up(examples, answers, 0.75, generator())
    torch.testing.assert_close(blended, blended_answers)
    assert (blended.diagonal() >= 0.5).all()
    guess = torch.tensor([[0.5, 0.3, 0.2]])
    sharp = sharpened(guess, 0.5)
    np.testing.assert_allclose(sharp[0].numpy(), np.array([25, 9, 4]) / 38, atol=1e-6)
