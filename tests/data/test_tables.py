"""People's own data: what is read, and what is refused in one line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pate.data._formats import npy_array, npz_arrays
from pate.data._settings import CsvData, NpzData
from pate.data._sources import load
from pate.data.private import Records, records_of
from pate.data.public import PublicData
from pate.errors import DataError

CSV = "age,sex,who,sick\n30,f,ann,no\n41,m,bob,yes\n52,f,cy,no\n"
SETTINGS = {
    "source": "csv",
    "private": "private.csv",
    "public": "public.csv",
    "test": "test.csv",
    "label": "sick",
    "id": "who",
    "classes": ["no", "yes"],
    "categories": {"sex": ["f", "m"]},
}


def write_csv(
    folder: Path, private: str = CSV, public: str = "age,sex\n33,m\n1,f\n99,f\n", test: str = "age,sex,sick\n1,f,no\n"
) -> None:
    (folder / "private.csv").write_text(private)
    (folder / "public.csv").write_text(public)
    (folder / "test.csv").write_text(test)


def load_csv(folder: Path, **changes: object) -> tuple[PublicData, Records]:
    public, private = load(CsvData.model_validate({**SETTINGS, **changes}), None, folder)
    return public, records_of(private)


def test_csv_with_ids_categories_and_class_names(tmp_path: Path) -> None:
    write_csv(tmp_path)
    public, private = load_csv(tmp_path)
    np.testing.assert_array_equal(private.X, [[30, 1, 0], [41, 0, 1], [52, 1, 0]])
    assert private.y.tolist() == [0, 1, 0]
    assert list(private.ids) == ["ann", "bob", "cy"]
    assert public.classes == ("no", "yes")
    assert public.y_test.tolist() == [0]
    assert public.y_public is None
    assert not public.benchmark


def test_csv_test_labels_are_optional(tmp_path: Path) -> None:
    write_csv(tmp_path, test="age,sex\n1,f\n")
    public, _ = load_csv(tmp_path)
    assert public.y_test is None


def test_csv_in_one_file_with_a_split_column(tmp_path: Path) -> None:
    text = "age,sick,part\n1,no,private\n2,yes,private\n3,,public\n1,,public\n4,yes,test\n"
    (tmp_path / "all.csv").write_text(text)
    settings = {"source": "csv", "private": "all.csv", "split": "part", "label": "sick", "classes": ["no", "yes"]}
    public, private = load(CsvData.model_validate(settings), None, tmp_path)
    assert private.X.tolist() == [[1], [2]]
    assert public.X_public.tolist() == [[3], [1]]
    assert public.X_test.tolist() == [[3]], "beyond the public range is its end"
    assert public.y_test.tolist() == [1]


@pytest.mark.parametrize(
    ("changes", "files", "words"),
    [
        ({"classes": ["no", "maybe"]}, {}, ["private.csv: column 'sick', row 1", "data.classes"]),
        ({"label": "ill"}, {}, ["private.csv: no column 'ill' (data.label)"]),
        ({"id": "name"}, {}, ["private.csv: no column 'name' (data.id)"]),
        ({"categories": {}}, {}, ["private.csv: column 'sex', row 0", "data.categories"]),
        ({"private": "gone.csv"}, {}, ["gone.csv", "no such file", "data_dir"]),
        ({}, {"private": "age,sex,who,sick\n,f,ann,no\n"}, ["private.csv: column 'age', row 0", "finite number"]),
        ({}, {"private": "age,sex,who,sick\n1,f\n"}, ["private.csv, row 0", "fields"]),
        ({}, {"private": "Age,sex,who,sick\n1,f,ann,no\n"}, ["'Age' is not in the public file", "no column 'age'"]),
        ({}, {"public": "sex\nf\n"}, ["private.csv: column 'age' is not in the public file"]),
        ({}, {"public": "age,sex\n"}, ["data.public", "no rows"]),
    ],
)
def test_csv_mistakes_are_one_clear_line(tmp_path: Path, changes: dict, files: dict, words: list[str]) -> None:
    write_csv(tmp_path, **files)
    with pytest.raises(DataError) as caught:
        load_csv(tmp_path, **changes)
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_npz_in_one_file_and_in_several(tmp_path: Path) -> None:
    X, y = np.arange(12.0).reshape(6, 2), np.array([3, 7, 3, 7, 3, 3])
    np.savez(tmp_path / "all.npz", X_private=X, y_private=y, X_public=X[:2], X_test=X[2:], y_test=y[2:])
    np.savez(tmp_path / "private.npz", X=X, y=y, id=np.array(list("abcdef")))
    np.savez(tmp_path / "public.npz", X=X[:2])
    public, private = load(
        NpzData.model_validate({"source": "npz", "file": "all.npz", "classes": [3, 7]}), None, tmp_path
    )
    settings = {"source": "npz", "private": "private.npz", "public": "public.npz", "classes": [3, 7]}
    public_of_several, private_of_several = load(NpzData.model_validate(settings), None, tmp_path)
    np.testing.assert_array_equal(private.X, private_of_several.X)
    assert private.y.tolist() == private_of_several.y.tolist() == [0, 1, 0, 1, 0, 0]
    assert public.y_test.tolist() == [0, 1, 0, 0]
    assert list(private_of_several.ids) == list("abcdef")
    assert public_of_several.X_test is None


def test_npz_is_never_unpickled(tmp_path: Path) -> None:
    np.savez(tmp_path / "all.npz", X_private=np.array([{"a": 1}], dtype=object), y_private=[0], X_public=[[1.0]])
    with pytest.raises(DataError, match=r"all\.npz.*never unpickled"):
        load(NpzData.model_validate({"source": "npz", "file": "all.npz", "classes": [0, 1]}), None, tmp_path)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"X_public": np.zeros((2, 3))}, "shape"),
        ({"X_private": np.full((4, 2), np.nan)}, "NaN"),
        ({"y_private": np.array([0, 1, 0])}, "not as many labels as records"),
        ({"y_private": np.array([0, 1, 5, 0])}, "y_private, row 2 .*data.classes"),
        ({"X_public": np.zeros((0, 2))}, "empty"),
        ({"X_private": np.array([["a", "b"]] * 4)}, "not numbers"),
    ],
)
def test_npz_mistakes_are_one_clear_line(tmp_path: Path, arrays: dict, words: str) -> None:
    good = {"X_private": np.ones((4, 2)), "y_private": np.array([0, 1, 1, 0]), "X_public": np.ones((2, 2))}
    np.savez(tmp_path / "all.npz", **{**good, **arrays})
    with pytest.raises(DataError, match=words):
        load(NpzData.model_validate({"source": "npz", "file": "all.npz", "classes": [0, 1]}), None, tmp_path)


def test_what_a_file_claims_must_be_there(tmp_path: Path) -> None:
    """Neither less nor more; and an archive is not unpacked that is far larger than its file."""
    np.save(tmp_path / "a.npy", np.arange(6.0).reshape(3, 2))
    whole = (tmp_path / "a.npy").read_bytes()
    assert npy_array(whole, "a").shape == (3, 2)
    for damaged in (whole[:-8], whole + bytes(8)):
        with pytest.raises(DataError, match="a: not a whole npy file"):
            npy_array(damaged, "a")
    np.savez_compressed(tmp_path / "b.npz", X=np.zeros(3_000_000))
    with pytest.raises(DataError, match="b: claims to hold more than 10 times its size"):
        npz_arrays((tmp_path / "b.npz").read_bytes(), "b", ["X"])
