"""`labels.npz` and the student's card: what they pin, and that nothing else is taken for them."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pate.data.public import PublicData
from pate.errors import RunError
from pate.ledger import Pin
from pate.runs._run_ledger import Labels, pin_to_json, published_pins, read_labels, write_labels

FIRST, LATER = Pin(4, bytes(range(32))), Pin(7, bytes(range(32, 64)))
X = np.arange(12, dtype=np.float32).reshape(6, 2)
DATA = PublicData(X, ("a", "b"), public_rows=np.array([5, 0, 3, 1, 2, 4]))
LABELS = Labels(np.array([1, 0, 1]), np.array([3, 5, 1]), FIRST)


def test_labels_come_back_with_their_rows_and_their_pin(tmp_path: Path) -> None:
    write_labels(tmp_path / "labels.npz", LABELS, ("a", "b"))
    found = read_labels(tmp_path / "labels.npz")
    assert found is not None
    assert (found.labels.tolist(), found.rows.tolist(), found.pin) == ([1, 0, 1], [3, 5, 1], FIRST)
    np.testing.assert_array_equal(found.examples(DATA), X[[2, 0, 3]])  # where rows 3, 5 and 1 of the source are now
    assert read_labels(tmp_path / "none.npz") is None


def test_labels_of_examples_that_are_not_there_are_refused() -> None:
    fewer = replace(DATA, X_public=X[:3], public_rows=np.array([5, 0, 3]))
    with pytest.raises(RunError, match="names public examples that are not there"):
        LABELS.examples(fewer)


def test_both_files_pin_the_ledger(tmp_path: Path) -> None:
    assert published_pins(tmp_path) == {}
    write_labels(tmp_path / "labels.npz", LABELS, ("a", "b"))
    assert published_pins(tmp_path) == {"labels.npz": FIRST}
    (tmp_path / "student").mkdir()
    (tmp_path / "student" / "student.json").write_text(json.dumps({"ledger": pin_to_json(LATER)}))
    assert published_pins(tmp_path) == {"labels.npz": FIRST, "student/student.json": LATER}


@pytest.mark.parametrize("content", [b"", b"not an archive", b"PK\x03\x04"])
def test_damaged_labels_were_published_all_the_same(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "labels.npz").write_bytes(content)
    with pytest.raises(RunError, match="is damaged, or of another pate"):
        published_pins(tmp_path)


class Runs:
    """Code, where a pickle is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


def test_labels_are_never_unpickled(tmp_path: Path) -> None:
    assert pickle.loads(pickle.dumps(Runs(tmp_path / "ran"))) is None
    (tmp_path / "ran").unlink()  # so would it be
    np.savez(tmp_path / "labels.npz", labels=np.array([Runs(tmp_path / "ran")], dtype=object), rows=np.arange(1))
    with pytest.raises(RunError, match="is damaged"):
        read_labels(tmp_path / "labels.npz")
    assert not (tmp_path / "ran").exists()
