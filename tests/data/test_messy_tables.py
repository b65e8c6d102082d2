"""Files as people have them: other signs, encodings, dates, gaps, misspelt words. Read by rule, or refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pate.config import parse_config
from pate.data._settings import CsvData, ParquetData
from pate.data._sources import load
from pate.data.private import Records, records_of
from pate.data.public import PublicData
from pate.errors import ConfigError, DataError

HEADER = "who,born,age,sex,sick"
PRIVATE = [HEADER, "ann,1990-02-28,30,f,no", "bob,1985-12-31,41.5,m,yes", "cy,2000-01-01,52,f,no"]
PUBLIC = ["born,age,sex", "1990-01-01,10,m", "1980-01-01,20,f", "1970-01-01,60,f"]
SETTINGS: dict[str, Any] = {
    "source": "csv",
    "private": "private.csv",
    "public": "public.csv",
    "label": "sick",
    "id": "who",
    "classes": ["no", "yes"],
    "categories": {"sex": ["f", "m"]},
    "dates": {"born": "%Y-%m-%d"},
}


def loaded(
    folder: Path, private: list[str] = PRIVATE, public: list[str] = PUBLIC, **changes: Any
) -> tuple[PublicData, Records]:
    encoding = changes.get("encoding", "utf-8")
    (folder / "private.csv").write_text("\n".join(private) + "\n", encoding=encoding)
    (folder / "public.csv").write_text("\n".join(public) + "\n", encoding=encoding)
    return of_files(CsvData.model_validate(SETTINGS | changes), folder)


def of_files(settings: Any, folder: Path, keep_missing: bool = False) -> tuple[PublicData, Records]:
    public, private = load(settings, None, folder, keep_missing=keep_missing)
    return public, records_of(private)


def refused(folder: Path, *arguments: Any, **changes: Any) -> str:
    with pytest.raises(DataError) as caught:
        loaded(folder, *arguments, **changes)
    said = str(caught.value)
    assert said.isprintable()
    return said


def as_parquet(folder: Path, typed_dates: bool) -> tuple[PublicData, Records]:
    """The same files as parquet: numbers as numbers, dates as dates or as text."""
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    from pyarrow import csv

    text = {name: pyarrow.string() for name in ("who", "sex", "sick")}
    types = text | {"age": pyarrow.float64(), "born": pyarrow.date32() if typed_dates else pyarrow.string()}
    options = csv.ConvertOptions(column_types=types, strings_can_be_null=True, null_values=["", "NA"])
    for name in ("private", "public"):
        table = csv.read_csv(folder / f"{name}.csv", convert_options=options)
        parquet.write_table(table, folder / f"{name}.parquet")
    files = {"source": "parquet", "private": "private.parquet", "public": "public.parquet"}
    return of_files(
        ParquetData.model_validate(SETTINGS | files | {"missing_values": {"treatment": "indicator"}}), folder
    )


def test_dates_are_years_since_2000(tmp_path: Path) -> None:
    data, records = loaded(tmp_path, public=[*PUBLIC, "2001-01-01,60,f"])
    assert data.features == ("born", "age", "sex=f", "sex=m")
    np.testing.assert_allclose(records.X[:, 0], [-9.840, -14.001, 0], atol=1e-3)
    german = [*PRIVATE[:1], "ann,28.02.1990,30,f,no", "bob,31.12.1985,41.5,m,yes", "cy,01.01.2000,52,f,no"]
    public = ["born,age,sex", "01.01.1990,10,m", "01.01.1980,20,f", "01.01.2001,60,f"]
    _, again = loaded(tmp_path, german, public, dates={"born": "%d.%m.%Y"})
    np.testing.assert_array_equal(again.X, records.X)


def test_semicolons_decimal_commas_and_other_encodings(tmp_path: Path) -> None:
    _, plain = loaded(tmp_path)
    other = {"delimiter": ";", "decimal": ",", "encoding": "cp1252"}
    format_rate = [[line.replace(",", ";").replace(".", ",") for line in lines] for lines in (PRIVATE, PUBLIC)]
    _, records = loaded(tmp_path, *format_rate, **other)
    np.testing.assert_array_equal(records.X, plain.X)
    umlaut = [line.replace("ann", "Zoë").replace(",", ";").replace(".", ",") for line in PRIVATE]
    _, records = loaded(tmp_path, umlaut, format_rate[1], **other)
    assert records.ids == ["Zoë", "bob", "cy"]
    assert "not a finite number" in refused(
        tmp_path, [*format_rate[0][:1], "a;1990-01-01;1.5;f;no"], format_rate[1], **other
    )


@pytest.mark.parametrize("typed_dates", [True, False])
def test_csv_and_parquet_are_alike(tmp_path: Path, typed_dates: bool) -> None:
    gaps = [*PRIVATE, "di,,NA,,yes"], [*PUBLIC, ",,m"]
    csv, of_csv = loaded(tmp_path, *gaps, missing_values={"treatment": "indicator"})
    parquet, of_parquet = as_parquet(tmp_path, typed_dates)
    np.testing.assert_array_equal(of_csv.X, of_parquet.X)
    np.testing.assert_array_equal(csv.X_public, parquet.X_public)
    assert csv.features == parquet.features == ("born", "age", "sex=f", "sex=m", "born missing", "age missing")
    assert list(of_csv.ids or ()) == list(of_parquet.ids or ())


def test_gaps_are_filled_from_public_data_alone(tmp_path: Path) -> None:
    private = [*PRIVATE, "di,1990-01-01,,f,yes", "ed,1990-01-01,1e9,f,yes"]
    _, records = loaded(tmp_path, private, missing_values={"treatment": "public_median"})
    assert records.X[3, 1] == 20  # the public median, whatever the private one is
    public = [*PUBLIC, "1990-01-01,?,f"]
    marked, records = loaded(tmp_path, private, public, missing_values={"treatment": "indicator"})
    assert marked.features is not None and marked.features[-1] == "age missing"  # noqa: PT018
    assert records.X[:, -1].tolist() == [0, 0, 0, 1, 0]
    assert marked.X_public[:, -1].tolist() == [0, 0, 0, 1]
    unmarked, _ = loaded(
        tmp_path, private, PUBLIC, missing_values={"treatment": "indicator"}
    )  # whether there is a mark is public too
    assert unmarked.features == ("born", "age", "sex=f", "sex=m")
    kept, records = loaded(tmp_path, private, public, missing_values={"treatment": "keep"})
    assert kept.has_missing_values
    assert np.isnan(records.X[3, 1]) and np.isnan(kept.X_public[3, 1])  # noqa: PT018


MARKED = {"markers": ["k.A.", "-", "-9"], "treatment": "indicator"}


def test_a_marker_means_missing_in_every_column_of_features(tmp_path: Path) -> None:
    """As an empty cell does: in numbers, dates and categories, in private and public files, in capitals or not."""
    private = [*PRIVATE, "di,{0},{0},{0},yes", "ed,1990-01-01,-9,f,yes"]
    public = [*PUBLIC, "{0},{0},{0}"]
    plain, plain_records = loaded(
        tmp_path,
        [line.format("").replace("-9,", ",") for line in private],
        [line.format("") for line in public],
        missing_values={"treatment": "indicator"},
    )
    for written in ("k.A.", "K.A.", " k.a. ", "-"):
        data, records = loaded(
            tmp_path,
            [line.format(written) for line in private],
            [line.format(written) for line in public],
            missing_values=MARKED,
        )
        np.testing.assert_array_equal(records.X, plain_records.X)
        np.testing.assert_array_equal(data.X_public, plain.X_public)
        assert data.features == plain.features
        assert data.notes == plain.notes == ()  # none of them is a category that is not listed
        assert records.notes == ()


@pytest.mark.parametrize("treatment", ["refuse", "public_median", "indicator", "keep"])
def test_markers_go_with_every_treatment(tmp_path: Path, treatment: str) -> None:
    private, public = [*PRIVATE, "di,1990-01-01,k.A.,f,yes"], [*PUBLIC, "1990-01-01,-,m"]
    missing = {"markers": ["k.A.", "-"], "treatment": treatment}
    if treatment == "refuse":
        said = refused(tmp_path, private, public, missing_values=missing)
        assert "column 'age', row 3" in said
        assert "missing, not a finite number" in said
        assert "k.A." not in said
        return
    _, records = loaded(tmp_path, private, public, missing_values=missing)
    age = records.X[3, 1]
    assert np.isnan(age) if treatment == "keep" else age == 20


@pytest.mark.parametrize("typed", [True, False])
def test_markers_in_parquet_are_those_of_csv(tmp_path: Path, typed: bool) -> None:
    """In columns of text as written, in columns of numbers by value."""
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    private, public = [*PRIVATE, "k.A.,-,-9,k.A.,yes", "ed,1990-01-01,7,f,no"], [*PUBLIC, "k.A.,-9,m"]
    csv, of_csv = loaded(tmp_path, private, public, missing_values=MARKED)
    for name, lines in (("private", private), ("public", public)):
        header, *rows = [line.split(",") for line in lines]
        columns: dict[str, Any] = {key: [row[i] for row in rows] for i, key in enumerate(header)}
        if typed:
            columns["age"] = [float(age) for age in columns["age"]]
        parquet.write_table(pyarrow.table(columns), tmp_path / f"{name}.parquet")
    files = {"source": "parquet", "private": "private.parquet", "public": "public.parquet"}
    data, records = of_files(ParquetData.model_validate(SETTINGS | files | {"missing_values": MARKED}), tmp_path)
    np.testing.assert_array_equal(records.X, of_csv.X)
    np.testing.assert_array_equal(data.X_public, csv.X_public)
    assert list(records.ids or ()) == list(of_csv.ids or ()) == ["ann", "bob", "cy", "ed"]
    assert records.left_out == of_csv.left_out == 1  # 'k.A.' is nobody's id


def test_a_number_that_marks_missing_values_may_be_somebodys_id(tmp_path: Path) -> None:
    private = [HEADER, "1,1990-02-28,30,f,no", "-9,1985-12-31,-9,m,yes"]
    _, records = loaded(tmp_path, private, [*PUBLIC, "1990-01-01,-9,f"], missing_values=MARKED, id_type="integer")
    assert records.ids == ["1", "-9"]
    assert records.X[1, 1] == 20


def test_columns_that_become_no_feature_are_named(tmp_path: Path) -> None:
    private = [f"{line},{note}" for line, note in zip(PRIVATE, ["note", "a", "b", "c"], strict=True)]
    (tmp_path / "test.csv").write_text("born,age,sex,sick,ward\n1990-01-01,10,m,no,x\n")
    _, records = loaded(tmp_path, private, PUBLIC, ignore=["note"], test="test.csv")
    ignored, extra = records.notes
    assert "'note' (data.ignore)" in ignored
    assert "'ward', which only" in extra


def test_gaps_are_refused_by_column_unless_the_config_says_more(tmp_path: Path) -> None:
    said = refused(tmp_path, [*PRIVATE, "di,1990-01-01,,f,yes"])
    assert "private.csv: column 'age', row 3" in said
    assert "data.missing_values.treatment" in said
    only_gaps = ["born,age,sex", "1990-01-01,,m", "1990-01-01,NA,f"]
    assert "column 'age' holds no number" in refused(
        tmp_path, PRIVATE, only_gaps, missing_values={"treatment": "public_median"}
    )
    for word in ("unknown", "inf", "1e39", "12 years", "1,5"):  # a word is no gap
        row = f'di,1990-01-01,"{word}",f,yes'
        said = refused(tmp_path, [*PRIVATE, row], missing_values={"treatment": "public_median"})
        assert "column 'age', row 3" in said
        assert word not in said.replace("data.decimal: ','", "")


def test_a_record_with_gaps_votes_near_itself_once_they_are_filled(tmp_path: Path) -> None:
    for missing, kept in (("refuse", [True, True, True, False]), ("public_median", [True] * 4)):
        (tmp_path / "private.csv").write_text("\n".join([*PRIVATE, "di,1990-01-01,,f,yes"]) + "\n")
        (tmp_path / "public.csv").write_text("\n".join(PUBLIC) + "\n")
        about = CsvData.model_validate(SETTINGS | {"missing_values": {"treatment": missing}})
        _, records = of_files(about, tmp_path, keep_missing=True)
        assert np.isfinite(records.X).all(axis=1).tolist() == kept


def test_all_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    private = [HEADER.replace("sex", "sex,ward"), "ann,1990-02-28,,f,x,no", "bob,31.12.1985,41,m,y,maybe"]
    public = ["born,age,sex,ward", "1990-01-01,,m,x", "1980-01-01,20,f,x"]
    said = refused(tmp_path, private, public)
    assert "6 problems" in said
    for word in (
        "public.csv: column 'age', row 0",
        "public.csv: column 'ward', row 0",
        "private.csv: column 'born', row 1",
        "private.csv: column 'age', row 0",
        "private.csv: column 'ward', row 0",
        "private.csv: column 'sick', row 1",
    ):
        assert word in said
    assert "maybe" not in said
    said = refused(tmp_path, ["name,born,age,sex", "ann,1990-02-28,1,f"], PUBLIC)
    assert "no column 'sick' (data.label)" in said
    assert "no column 'who' (data.id)" in said


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"categories": {"sex": ["F", "M"]}}, ["data.categories.sex: 'F' does not occur", "'f' does"]),
        ({"categories": {"sex": ["f", "w"]}}, None),  # it may be rare: a note, see below
        ({"categories": {"sex": ["a", "b"]}}, ["none of these values occurs", "'f', 'm'"]),
        ({"categories": {"sex": ["f", "m"], "sexx": ["a"]}}, ["data.categories.sexx", "did you mean 'sex'?"]),
        ({"dates": {"bron": "%Y-%m-%d"}}, ["data.dates.bron", "did you mean 'born'?"]),
        ({"ignore": ["gae"]}, ["data.ignore: no file has a column 'gae'", "did you mean 'age'?"]),
        ({"dates": {}}, ["column 'born', row 0", "like a date", "data.dates"]),
        ({"dates": {"born": "%d.%m.%Y"}}, ["column 'born', row 0", "not a date of the form %d.%m.%Y"]),
        ({"classes": ["No", "Yes"]}, ["column 'sick', row 0", "other capitals"]),
        ({"delimiter": ";"}, ["no column 'sick'", "separated by ','", "data.delimiter"]),
        ({"label": "Sick"}, ["no column 'Sick' (data.label); did you mean 'sick'?"]),
        ({"label": "sickk"}, ["no column 'sickk' (data.label); did you mean 'sick'?"]),
    ],
)
def test_what_would_match_nothing_is_refused_by_name(tmp_path: Path, changes: dict, words: list[str] | None) -> None:
    if words is None:
        note = "data.categories.sex: 'w' never occurs in the public file"
        data, _ = loaded(tmp_path, **changes)
        assert note in data.notes
        return
    said = refused(tmp_path, **changes)
    for word in words:
        assert word in said, said


def test_a_category_is_one_whatever_blanks_and_unicode_form_it_is_written_in(tmp_path: Path) -> None:
    public = ["born,age,sex", "1990-01-01,1, caf\u00e9 ", "1990-01-01,2,cafe\u0301"]
    data, _ = loaded(tmp_path, PRIVATE, public, categories={"sex": ["caf\u00e9", "f", "m"]})
    assert data.X_public[:, 2].tolist() == [1, 1]


def test_private_categories_that_are_not_listed_are_counted_for_the_holder(tmp_path: Path) -> None:
    data, records = loaded(tmp_path, [*PRIVATE, "di,1990-01-01,1,x,no", "ed,1990-01-01,1,,no"])
    (note,) = records.notes
    assert "column 'sex' of 1 records" in note
    assert "'x'" not in note
    assert data.notes == ()  # those are public


def test_an_index_without_a_name_is_no_feature(tmp_path: Path) -> None:
    private, public = ([f"{i if i else ''},{line}" for i, line in enumerate(lines)] for lines in (PRIVATE, PUBLIC))
    assert "column 0 (counted from 0) has no name" in refused(tmp_path, private, public)
    data, _ = loaded(tmp_path, private, public, ignore=[""])
    assert data.features == ("born", "age", "sex=f", "sex=m")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"classes": ["no"]}, "data.classes = ['no']: at least two classes"),
        ({"classes": ["no", "no"]}, "names repeat"),
        ({"classes": [1, "1"]}, "names repeat"),
        ({"classes": ["no", " yes"]}, "surrounding blanks"),
        ({"classes": [False, True]}, "put names into quotes"),
        ({"categories": {"sex": []}}, "categories.sex: lists no values"),
        ({"categories": {"sex": ["f", "f"]}}, "data.categories.sex = ['f', 'f']: names repeat"),
        ({"categories": {"sick": ["no"]}}, "column 'sick' is named under label already"),
        ({"categories": {"born": ["x"]}}, "column 'born' is named under categories already"),
        ({"ignore": ["who"]}, "column 'who' is named under id already"),
        ({"id": ""}, "id: names no column"),
        ({"dates": {"born": "%d.%m."}}, "must say day, month and year"),
        ({"dates": {"born": "YYYY-MM-DD"}}, "must say day, month and year"),
        ({"delimiter": ";;"}, "data.delimiter = ';;': must be one sign"),
        ({"decimal": "'"}, "data.decimal"),
        ({"decimal": ","}, "delimiter is, where it is not written, ',' too"),
        ({"encoding": "ansi8"}, "data.encoding = 'ansi8': no such text encoding"),
        ({"missing_values": {"treatment": "median"}}, "data.missing_values.treatment = 'median'"),
        ({"missing_values": "indicator"}, "write {treatment: 'indicator'}"),
        ({"missing": "indicator"}, "data.missing: unknown key; did you mean 'missing_values'?"),
        ({"missing_values": {"markers": ["-", " -"]}}, "surrounding blanks"),
        ({"missing_values": {"markers": ["k.A.", "K.A."]}}, "names repeat"),
        ({"missing_values": {"markers": [""]}}, "an empty cell is missing in any case"),
        ({"missing_values": {"markers": ["F"]}}, "categories.sex: 'f' is a marker of missing values"),
    ],
)
def test_settings_that_cannot_be_meant(changes: dict, words: str) -> None:
    content = CONFIG | {"data": SETTINGS | changes}
    with pytest.raises(ConfigError) as caught:
        parse_config(content)
    assert words in str(caught.value)


CONFIG: dict[str, Any] = {
    "n_teachers": 10,
    "data": SETTINGS,
    "teachers": [{"name": "sklearn.naive_bayes.GaussianNB"}],
    "mechanism": {"name": "gnmax", "sigma": 5},
    "budget": {"max_queries": 10},
    "student": {"name": "supervised"},
}


def test_settings_that_say_nothing_new_leave_a_run_the_one_it_was() -> None:
    plain = parse_config(CONFIG).digest()
    usual = {"delimiter": ",", "decimal": ".", "encoding": "utf-8", "missing_values": {}, "public_record_count": None}
    assert parse_config(CONFIG | {"data": SETTINGS | usual}).digest() == plain
    for change in (
        {"delimiter": ";"},
        {"encoding": "cp1252"},
        {"missing_values": {"treatment": "keep"}},
        {"public_record_count": 9},
        {"dates": {}},
    ):
        assert parse_config(CONFIG | {"data": SETTINGS | change}).digest() != plain
