"""Attribute inference counts what a model leaks about its own records, and nothing that public examples tell."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.subjects import Memory, made_subject, random_examples

from pate.audit._target import Subject, TargetExamples
from pate.audit.membership import AttributeInference
from pate.audit.results import NotApplicable, Options

OPTIONS = Options(sensitive=("s",))
FEATURES = ("n0", "n1", "n2", "s=a", "s=b")


def _people(n: int, seed: int) -> TargetExamples:
    """Three numbers, and one of two values that the first number tells in four of five cases."""
    numbers, generator = random_examples(n, 3, 10, seed), np.random.default_rng(seed + 100)
    value = (numbers.X[:, 0] > 0) ^ (generator.random(n) < 0.2)
    X = np.concatenate([numbers.X, np.eye(2, dtype=np.float32)[value.astype(int)]], axis=1)
    return TargetExamples(X, numbers.y, numbers.rows)


def _subject(seen: TargetExamples) -> Subject:
    members, outsiders = _people(800, 1), _people(800, 2)
    subject = made_subject(members, outsiders, Memory.of(seen.X, seen.y, 10), 10)
    return replace(subject, data=replace(subject.data, X_public=_people(500, 3).X, features=FEATURES))


def test_a_memory_gives_the_values_of_its_records_away() -> None:
    """The true value makes the label likely, the other one hits it once in ten: far above what is imputed (80 %)."""
    (found,) = AttributeInference().run(_subject(_people(800, 1)), OPTIONS)
    assert found.attack == "attribute: s"
    assert found.advantage is not None
    assert 0.1 < found.advantage < 0.25
    assert "records outside" in found.note


def test_what_public_examples_tell_is_no_leak() -> None:
    """A model that never saw the records: within 5.4 standard errors of nothing (false-alarm rate below 1e-6)."""
    (found,) = AttributeInference().run(_subject(_people(800, 4)), OPTIONS)
    assert found.advantage is not None
    error = float(found.note.split("±")[1].split("points")[0]) / 100
    assert abs(found.advantage) < 5.4 * (error + 0.001)


@pytest.mark.parametrize(("wanted", "words"), [(("t",), "there are s"), ((), "name one of data.categories")])
def test_a_column_that_is_not_there_is_refused(wanted: tuple[str, ...], words: str) -> None:
    with pytest.raises(NotApplicable, match=words):
        list(AttributeInference().run(_subject(_people(800, 1)), Options(sensitive=wanted)))


def test_images_have_no_attributes() -> None:
    members = random_examples(10, 4, 2, 0)
    with pytest.raises(NotApplicable, match="named columns"):
        list(AttributeInference().run(made_subject(members, members, Memory.of(members.X, members.y, 2)), OPTIONS))
