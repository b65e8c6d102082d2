"""Persons with several records: one of them counts, chosen by that person's records alone, and nobody is told."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clipped_sums import clipped_sum_of
from support.fuzzing import fuzz

from pate.baselines._run import run_baseline
from pate.baselines.dp_erm import DPLinearClassifier
from pate.config import BaselineConfig
from pate.data.partition import one_record_per_person
from pate.data.private import Records

KEY = b"k" * 32
PERSONS = st.lists(
    st.lists(st.tuples(st.sampled_from([-1.0, 0.0, 2.5, float("nan")]), st.integers(-1, 1)), max_size=4), max_size=6
)


def records_of(persons: list[list[tuple[float, int]]], order: int) -> Records:
    """All records of the persons, in some order."""
    rows = [(value, label, f"p{i}") for i, own in enumerate(persons) for value, label in own]
    rows = [rows[i] for i in np.random.default_rng(order).permutation(len(rows))]
    X = np.array([[value, 1.0] for value, *_ in rows], dtype=np.float32).reshape(-1, 2)
    return Records(X, np.array([label for _, label, _ in rows], dtype=np.int64), [person for *_, person in rows])


def counted(records: Records) -> list[tuple[str, bytes, int]]:
    kept = records.only(one_record_per_person(records, 2, KEY))
    assert kept.ids is not None
    return sorted((i, x.tobytes(), int(label)) for i, x, label in zip(kept.ids, kept.X, kept.y, strict=True))


@given(persons=PERSONS, others=PERSONS, order=st.integers(0, 99))
@fuzz(100)
def test_which_record_counts_depends_on_that_persons_records_alone(
    persons: list[list[tuple[float, int]]], others: list[list[tuple[float, int]]], order: int
) -> None:
    """Not on their order, nor on who else is there: two persons' places are taken by others."""
    changed = [*persons[:-2], *others[:2]]
    before, after = counted(records_of(persons, order)), counted(records_of(changed, order + 1))
    kept = {f"p{i}" for i in range(max(0, len(persons) - 2))}
    assert [one for one in before if one[0] in kept] == [one for one in after if one[0] in kept]
    assert len({person for person, *_ in before}) == len(before)
    usable = {f"p{i}" for i, own in enumerate(persons) if any(x == x and label >= 0 for x, label in own)}
    assert {person for person, *_ in before} == usable


@given(
    persons=st.lists(st.lists(st.tuples(st.sampled_from([-9.0, 0.5, 9.0]), st.integers(0, 1)), max_size=5), max_size=5),
    other=st.lists(st.tuples(st.sampled_from([-9.0, 0.5, 9.0]), st.integers(0, 1)), max_size=5),
    order=st.integers(0, 99),
)
@fuzz(8)
def test_a_person_moves_the_clipped_sum_by_one_norm_and_a_changed_one_by_two(
    persons: list[list[tuple[float, int]]], other: list[tuple[float, int]], order: int
) -> None:
    sums = []
    for own in ([], [(3.0, 0), (9.0, 1), (9.0, 1)], other):
        records = records_of([*persons, own], order)
        kept = records.only(one_record_per_person(records, 2, KEY))
        sums.append(clipped_sum_of(kept.X, kept.y))
    without, with_one, changed = sums
    assert np.linalg.norm(with_one - without) <= 1 + 1e-4
    assert np.linalg.norm(with_one - changed) <= 2 + 1e-4


def test_without_ids_every_record_counts() -> None:
    records = Records(np.zeros((3, 2)), np.array([0, -1, 1]))
    assert one_record_per_person(records, 2, KEY).all()


@pytest.mark.parametrize("name", ["dp_erm", "dp_erm_tuned", "dp_sgd"])
def test_nobody_is_told_of_a_person_with_two_records(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """In shards, too: with a person whose records are in both of them, a run says and does what it does without."""
    params = {
        "dp_erm": {},
        "dp_erm_tuned": {"candidates": [{"regularisation": 0.1}, {"regularisation": 0.01}]},
        "dp_sgd": {"model": "linear", "lot_size": 10, "epochs": 1, "accountant": "rdp"},
    }[name]
    (tmp_path / "public.csv").write_text("p,q\n1,2\n3,4\n")
    said = []
    for place, again in (("once", 9), ("twice", 5)):
        folder = tmp_path / place
        folder.mkdir()
        for shard, numbers in (("one", range(6)), ("two", (*range(6, 9), again))):
            lines = [f"{i % 7},{i % 3},{'ab'[i % 2]},p{i}" for i in numbers]
            (folder / f"{shard}.csv").write_text("\n".join(["p,q,y,who", *lines]) + "\n")
        data = {"source": "csv", "private": f"{place}/*.csv", "public": "public.csv", "label": "y", "id": "who"}
        content = {
            "name": "persons",
            "data": data | {"classes": ["a", "b"]},
            "records": 10,
            "baseline": {"name": name, "params": params},
            "budget": {"epsilon": 3} | ({"delta": 1e-5} if name == "dp_sgd" else {}),
        }
        outcome = run_baseline(BaselineConfig.model_validate(content), tmp_path / f"run-{place}", data_dir=tmp_path)
        assert outcome.report.privacy.unit == "id"
        assert outcome.report.privacy.statement.startswith("Adding or removing all records of one id")
        shown = capfd.readouterr()
        said.append((shown.out + shown.err).replace(place, "").split("note:")[0])
    assert said[0] == said[1]
    assert "record does" not in said[1]
    assert "one does" not in said[1]


class Seeing(DPLinearClassifier):
    """Somebody's own learner, which notes whose records it was given."""

    seen: ClassVar[list[str]] = []

    def __init__(
        self, epsilon: float = 1.0, *, n_records: float, classes: Sequence[int] = (0, 1), random_state: int = 0
    ) -> None:
        super().__init__(epsilon, n_records=n_records, classes=classes, random_state=random_state)

    def fit(self, X: np.ndarray, y: np.ndarray, ids: Sequence[str] = ()) -> DPLinearClassifier:
        type(self).seen[:] = ids
        assert len(X) == len(y) == len(ids)
        return super().fit(X, y)


def test_a_learner_is_given_one_record_of_each_person(tmp_path: Path) -> None:
    who = np.array(["a", "b", "a", "c", "b", "a", "d"])
    X, y = np.arange(14.0).reshape(7, 2), np.array([0, 1, 0, 1, 0, 1, 7])
    np.savez(tmp_path / "data.npz", X_private=X, y_private=y, id_private=who, X_public=X[:2])
    content = {
        "name": "persons",
        "data": {"source": "npz", "file": "data.npz", "classes": ["0", "1"], "ids": True},
        "records": 4,
        "baseline": {"name": f"{__name__}.Seeing"},
        "budget": {"epsilon": 1},
    }
    run_baseline(BaselineConfig.model_validate(content), tmp_path / "run", data_dir=tmp_path)
    assert sorted(Seeing.seen) == ["a", "b", "c"]
