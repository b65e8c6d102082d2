"""pate predict takes tables as people have them: encoded by the student's card, answered with names."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.command_line import in_process

import pate
from pate import pipeline
from pate.config import parse_config
from pate.data._sources import load
from pate.errors import DataError, PateError
from pate.runs._console import Quiet
from pate.runs.model_store import load_model
from pate.runs.run import Run

WARDS = ("surgery", "heart", "other")


def rows(n: int, seed: int, with_label: bool = True) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    found = []
    for number in range(n):
        ward, age = rng.integers(0, 3), rng.normal(60, 10)
        back = "yes" if age + 10 * (ward == 1) > 64 else "no"
        row = {
            "patient": f"P{seed}-{number}",
            "born": f"{rng.integers(1, 29):02d}.{rng.integers(1, 13):02d}.{2020 - int(age)}",
            "ward": WARDS[ward] if rng.random() > 0.1 else "",
            "age": f"{age:.1f}".replace(".", ",") if rng.random() > 0.2 else "",
        }
        found.append(row | ({"back": back} if with_label else {}))
    return found


def write(path: Path, content: list[dict[str, Any]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, content[0], delimiter=";")
        writer.writeheader()
        writer.writerows(content)
    return path


@pytest.fixture(scope="module")
def hospital(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files, and a run on them, with ids, categories, dates, gaps, semicolons and decimal commas."""
    folder = tmp_path_factory.mktemp("hospital")
    write(folder / "private.csv", rows(300, 0))
    write(folder / "public.csv", rows(120, 1, with_label=False))
    write(folder / "test.csv", rows(50, 2))
    data = {
        "source": "csv",
        "private": "private.csv",
        "public": "public.csv",
        "test": "test.csv",
        "label": "back",
        "id": "patient",
        "classes": ["no", "yes"],
        "categories": {"ward": list(WARDS[:2])},
        "dates": {"born": "%d.%m.%Y"},
        "delimiter": ";",
        "decimal": ",",
        "missing_values": {"markers": ["k.A."], "treatment": "indicator"},
    }
    content = {
        "name": "hospital",
        "n_teachers": 10,
        "data": data,
        "teachers": [{"name": "sklearn.naive_bayes.GaussianNB"}],
        "mechanism": {"name": "gnmax", "sigma": 3},
        "budget": {"max_queries": 100},
        "student": {"name": "supervised", "params": {"estimator": "sklearn.linear_model.LogisticRegression"}},
        "backend": "local",
    }
    config = parse_config(content)
    pipeline.run(config, folder / "run", config_dir=folder, force=True, pages=False, console=Quiet())
    return folder


def answers(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """What the run's own student says of the test file as the run has read it."""
    with Run.load(folder / "run") as run:
        data, _ = load(run.config.data, None, folder)
    student = load_model(folder / "run" / "student")
    names = np.array(data.classes)
    return names[student.predict(data.X_test)], student.predict_proba(data.X_test)


def test_a_csv_file_is_encoded_as_the_run_did(hospital: Path) -> None:
    names, shares = answers(hospital)
    assert 5 < (names == "yes").sum() < 45
    arguments = ["predict", hospital / "run", "--input", hospital / "test.csv"]
    assert in_process(*arguments).stdout.split() == names.tolist()
    shown = in_process(*arguments, "--out", "-", "--keep", "patient", "--keep", "back")
    assert shown.returncode == 0, shown.stderr
    table = list(csv.DictReader(io.StringIO(shown.stdout), delimiter=";"))  # as the run's own files
    assert list(table[0]) == ["patient", "back", "predicted back", "p(no)", "p(yes)"]
    assert [row["predicted back"] for row in table] == names.tolist()
    assert [row["patient"] for row in table] == [f"P2-{i}" for i in range(50)]
    np.testing.assert_allclose([float(row["p(yes)"].replace(",", ".")) for row in table], shares[:, 1], atol=1e-6)


@pytest.mark.parametrize("source", ["csv", "parquet", "frame"])
def test_what_marks_missing_values_is_on_the_card(hospital: Path, tmp_path: Path, source: str) -> None:
    """A cell of a new file that a marker stands in is answered as an empty one."""
    content = [{key: cell or "k.A." for key, cell in row.items()} for row in rows(50, 2)]
    names, _ = answers(hospital)
    path = write(tmp_path / "new.csv", content)
    if source != "csv":
        pandas = pytest.importorskip("pandas")
        frame = pandas.DataFrame(content)
        frame["age"] = frame["age"].str.replace(",", ".", regex=False)  # the decimal comma is one of csv files
        path = tmp_path / "new.parquet"
        pytest.importorskip("pyarrow")
        frame.to_parquet(path)
    if source == "frame":
        np.testing.assert_array_equal(pate.load(hospital / "run").predict(frame), names)
    else:
        assert in_process("predict", hospital / "run", "--input", path).stdout.split() == names.tolist()


def test_it_can_be_written_to_a_file_without_labels_and_from_the_student_alone(hospital: Path, tmp_path: Path) -> None:
    shutil.copytree(hospital / "run" / "student", tmp_path / "taken")
    unlabelled = write(tmp_path / "new.csv", [{k: v for k, v in row.items() if k != "back"} for row in rows(50, 2)])
    shown = in_process("predict", tmp_path / "taken", "--input", unlabelled, "--out", tmp_path / "out.csv")
    assert (shown.returncode, shown.stdout) == (0, "")
    table = list(csv.DictReader((tmp_path / "out.csv").open(), delimiter=";"))
    assert list(table[0]) == ["row", "back", "p(no)", "p(yes)"]
    assert [row["back"] for row in table] == answers(hospital)[0].tolist()


def test_parquet_and_data_frames_say_the_same(hospital: Path, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = pandas.read_csv(hospital / "test.csv", sep=";", decimal=",")
    frame["born"] = pandas.to_datetime(frame["born"], format="%d.%m.%Y")
    frame.to_parquet(tmp_path / "test.parquet")
    names, shares = answers(hospital)
    shown = in_process("predict", hospital / "run", "--input", tmp_path / "test.parquet")
    assert shown.stdout.split() == names.tolist()
    model = pate.load(hospital / "run")
    np.testing.assert_array_equal(model.predict(frame), names)
    found = model.predict_proba(frame)
    assert found is not None
    np.testing.assert_allclose(found, shares, atol=1e-6)
    as_words = frame.assign(ward=frame["ward"].astype("category"), age=frame["age"].astype("Float64"))
    np.testing.assert_array_equal(model.predict(as_words), names)


def test_neither_ids_nor_ignored_columns_are_on_the_card(hospital: Path) -> None:
    text = (hospital / "run" / "student" / "student.json").read_text()
    assert "patient" not in text
    assert json.loads(text)["columns"]["categories"] == {"ward": ["surgery", "heart"]}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda row: {k: v for k, v in row.items() if k != "age"}, "lacks the columns 'age'"),
        (lambda row: row | {"age": "old"}, "column 'age', row 0"),
        (lambda row: row | {"born": "1970-01-01"}, "not a date of the form"),
    ],
    ids=["a column less", "a word", "another date"],
)
def test_a_bad_table_is_one_clear_line(change: Any, words: str, hospital: Path, tmp_path: Path) -> None:
    write(tmp_path / "bad.csv", [change(row) for row in rows(5, 3)])
    shown = in_process("predict", hospital / "run", "--input", tmp_path / "bad.csv")
    assert (shown.returncode, shown.stdout) == (2, "")
    assert len(shown.stderr.splitlines()) == 1
    assert words in shown.stderr


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: text.replace(";", "\t"), "it seems to be separated by '\\t'"),
        (lambda text: text.replace(",", ".").replace(";", ","), "it seems to be separated by ','"),
        (lambda text: text.replace(",", "."), "not a finite number; write it as in the files of the student's run"),
        (lambda text: text.replace("born", "Born"), "it has 'Born': write 'born'"),
        (lambda text: text.partition("\n")[2], "is there a header line?"),
    ],
    ids=["tabs", "commas", "decimal points", "capitals", "no header"],
)
def test_a_table_that_is_written_otherwise_is_told_how_the_runs_was(
    change: Any, words: str, hospital: Path, tmp_path: Path
) -> None:
    (tmp_path / "other.csv").write_text(change((hospital / "test.csv").read_text()))
    shown = in_process("predict", hospital / "run", "--input", tmp_path / "other.csv")
    assert (shown.returncode, shown.stdout) == (2, "")
    assert len(shown.stderr.splitlines()) == 1
    assert words in shown.stderr
    assert "takes csv files separated by ';', decimals by ',', in utf-8" in shown.stderr


@pytest.mark.parametrize("written", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
@pytest.mark.parametrize("encoding", ["utf-8", "cp1252", "utf-16"])
def test_a_table_in_unicode_is_read_whatever_the_files_of_the_run_were_in(
    encoding: str, written: str, hospital: Path, tmp_path: Path
) -> None:
    shutil.copytree(hospital / "run" / "student", tmp_path / "taken")
    card = json.loads((tmp_path / "taken" / "student.json").read_text())
    card["columns"]["csv"]["encoding"] = encoding
    (tmp_path / "taken" / "student.json").write_text(json.dumps(card))
    text = (hospital / "test.csv").read_text().replace(";;", ";größer;", 1)  # a ward that nobody listed
    (tmp_path / "table.csv").write_text(text, encoding=written)
    told = in_process("predict", tmp_path / "taken", "--input", tmp_path / "table.csv")
    if written == "cp1252" and encoding != "cp1252":
        assert (told.returncode, len(told.stderr.splitlines())) == (2, 1)
        return
    assert told.stdout.split() == answers(hospital)[0].tolist(), told.stderr


def test_nothing_to_predict_and_nothing_to_keep(hospital: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.csv").write_text("born;ward;age\n")
    for arguments, words in (
        (["--input", tmp_path / "empty.csv"], "holds no examples"),
        (["--input", hospital / "test.csv", "--keep", "name", "--out", "-"], "no column 'name' to keep"),
        (["--input", hospital / "test.csv", "--keep", "patient"], "columns are kept in a file; name one with --out"),
        (["--input", hospital / "test.csv", "--out", hospital / "test.csv"], "is the input itself"),
        (["--input", tmp_path / "empty.xlsx"], "is a workbook; save it as csv"),
        (["--input", hospital / "test.csv", "--student", "other"], "has no further student 'other'; there is none"),
    ):
        shown = in_process("predict", hospital / "run", *arguments)
        assert (shown.returncode, words in shown.stderr) == (2, True)


@pytest.mark.parametrize(
    "change",
    [
        {"features": ["born", "ward", "age", "more"]},
        {"features": ["born", "born", "age"]},
        {"features": "born"},
        {"categories": {"ward": "surgery"}},
        {"categories": {"street": ["a"]}},
        {"medians": {"age": True}},
        {"medians": {"age": "60"}},
        {"missing_values": {"treatment": "guess"}},
        {"missing_values": {"treatment": "indicator", "markers": ["-", "-"]}},
        {"missing_values": "indicator"},
        {"csv": {"delimiter": ";;", "decimal": ",", "encoding": "utf-8"}},
        {"csv": {"delimiter": '"', "decimal": ",", "encoding": "utf-8"}},
        {"csv": {"delimiter": ";", "decimal": ",", "encoding": "no-such"}},
        {"csv": {"delimiter": ";", "quote": "'"}},
        {"date_features": {"born": ["days since never"]}},
        {"date_features": {"born": ["years", "month"]}},
        {"date_features": {"age": ["month"]}},
    ],
    ids=str,
)
def test_a_card_that_makes_no_sense_is_refused(change: dict[str, Any], hospital: Path, tmp_path: Path) -> None:
    shutil.copytree(hospital / "run" / "student", tmp_path / "taken")
    card = json.loads((tmp_path / "taken" / "student.json").read_text())
    card["columns"] |= change
    (tmp_path / "taken" / "student.json").write_text(json.dumps(card))
    shown = in_process("predict", tmp_path / "taken", "--input", hospital / "test.csv")
    assert (shown.returncode, shown.stdout) == (2, "")
    assert "its card" in shown.stderr


@pytest.mark.parametrize(
    "range", [[], {}, {"low": [0], "high": [1]}, {"low": [9] * 5, "high": [1] * 5}, {"low": [0] * 5, "high": ["1"] * 5}]
)
def test_a_range_that_makes_no_sense_is_refused(range: Any, hospital: Path, tmp_path: Path) -> None:
    shutil.copytree(hospital / "run" / "student", tmp_path / "taken")
    card = json.loads((tmp_path / "taken" / "student.json").read_text()) | {"range": range}
    (tmp_path / "taken" / "student.json").write_text(json.dumps(card))
    shown = in_process("predict", tmp_path / "taken", "--input", hospital / "test.csv")
    assert (shown.returncode, shown.stdout) == (2, "")
    assert "its card has a range" in shown.stderr


def test_arrays_are_taken_in_python_too(hospital: Path) -> None:
    names, _ = answers(hospital)
    with Run.load(hospital / "run") as run:
        X = load(run.config.data, None, hospital)[0].X_test
    model = pate.load(hospital / "run")
    assert model.predict(X).tolist() == names.tolist()
    with pytest.raises(DataError, match="this student takes"):
        model.predict(np.zeros((3, 2)))
    with pytest.raises(PateError, match="no further student"):
        pate.load(hospital / "run", student="none")
