"""A record of a csv file is what a csv writer writes for it; it changes how no other is read, whatever it holds."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from pate.data._csv_records import Flaw, OpenQuote, records_of_file, records_of_lines
from pate.data._settings import CsvData
from pate.data._shards import ShardReader
from pate.data._sources import load
from pate.data.private import Shards, records_of
from pate.errors import DataError
from pate.mechanisms.base import Split

DELIMITERS = [",", ";", "\t", "|", " ", ":", "\u00a6"]
QUOTING = [csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC, csv.QUOTE_NONE]
TELLING = '",;|\t\n\r \x00\x0b\x0c\x1c\x85\u2028\u2029\ufeff\ufffdaé1'
"""Signs that mean something to one reader of csv files or another."""
CELL = st.one_of(
    st.text(TELLING, max_size=6),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=4),
    st.sampled_from(['5" pipe', '"', '""', 'x\n1,2,3\n"', "\r\n", '\n",x\n', "=1", "'a'"]),
)
ROW = st.lists(CELL, min_size=3, max_size=3)
ROWS = st.lists(ROW, max_size=5)
Row = list[str]


def written(rows: list[Row], delimiter: str = ",", quoting: int = csv.QUOTE_MINIMAL, ending: str = "\r\n") -> str:
    text = io.StringIO(newline="")
    csv.writer(text, delimiter=delimiter, quoting=quoting, lineterminator=ending).writerows(rows)
    return text.getvalue()


def read(content: bytes | str, delimiter: str = ",", codec: str = "utf-8-sig") -> list[Any]:
    """The cells as they go on to mean something: without blanks around them."""
    if isinstance(content, str):
        content = content.encode(codec)
    found = records_of_file(io.BufferedReader(io.BytesIO(content)), delimiter, codec)  # type: ignore[arg-type]
    return [row if isinstance(row, Flaw) else [cell.strip() for cell in row] for row in found]


def stripped(rows: list[Row]) -> list[Row]:
    return [[cell.strip() for cell in row] for row in rows]


@given(
    ROWS,
    st.sampled_from(DELIMITERS),
    st.sampled_from(QUOTING),
    st.sampled_from(["\r\n", "\n"]),
    st.sampled_from(["utf-8-sig", "utf-16", "utf-32", "gb18030"]),
    st.booleans(),
)
@settings(max_examples=400, deadline=None, derandomize=True)
def test_what_a_csv_writer_writes_is_read_back(
    rows: list[Row], delimiter: str, quoting: int, ending: str, codec: str, ends: bool
) -> None:
    try:
        text = written(rows, delimiter, quoting, ending)
    except csv.Error:  # without quotes, some cells cannot be written
        assume(False)
    assert read(text if ends else text.removesuffix(ending), delimiter, codec) == stripped(rows)


@given(ROWS, ROWS, st.text(TELLING.replace("\x00", ""), max_size=12), st.sampled_from(QUOTING[:3]))
@example([["a", "b", "c"]], [["1", ",x\ny", "2"]], 'a,"b', csv.QUOTE_MINIMAL)
@example([], [["1", ",x", "1"]], '5","open', csv.QUOTE_MINIMAL)
@example([], [["x", "1", "2"], ["", "", ""]], 'a,"b', csv.QUOTE_ALL)
@settings(max_examples=600, deadline=None, derandomize=True)
def test_a_record_that_no_writer_can_write_costs_itself_or_the_file(
    before: list[Row], after: list[Row], wrong: str, quoting: int
) -> None:
    """Never another record: those before it and after it are read as they were, or nothing is."""
    try:
        found = read(written(before, quoting=quoting) + wrong + "\n" + written(after, quoting=quoting))
    except OpenQuote:
        return
    assert found[: len(before)] == stripped(before)
    assert found[len(found) - len(after) :] == stripped(after)


@given(ROWS, ROWS, st.binary(max_size=8), st.sampled_from(["utf-8-sig", "cp1252", "ascii", "latin-1"]))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_wrong_bytes_cost_their_own_record(before: list[Row], after: list[Row], wrong: bytes, codec: str) -> None:
    """Of an encoding in which a byte says by itself where it belongs."""
    before, after = (
        [["".join(sign for sign in cell if sign.isascii()) for cell in row] for row in rows] for rows in (before, after)
    )
    assume(b"\n" not in wrong)
    try:
        found = read(written(before).encode() + b"a,b\x81," + wrong + b"\n" + written(after).encode(), codec=codec)
    except OpenQuote:
        assert b'"' in wrong
        return
    assert len(found) == len(before) + 1 + len(after)
    assert found[: len(before)] == stripped(before)
    assert found[len(before) + 1 :] == stripped(after)
    assert (found[len(before)] is Flaw.ENCODING) == (codec != "latin-1")


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ('a,"b\r\nc\rd\ne"\r\nf,g\r\n', [["a", "b\r\nc\rd\ne"], ["f", "g"]]),
        ("a,b\rc,d\n", [["a", "b\rc", "d"]]),
        ("a,b\r\r\nc,d\r\r\n", [["a", "b"], ["c", "d"]]),
        ('a,"b"\r\r\nc,d', [["a", "b"], ["c", "d"]]),
        ("a\x0bb,c\x0c\x1c\x1d\x85d\u2028e,\x00\n", [["a\x0bb", "c\x0c\x1c\x1d\x85d\u2028e", "\x00"]]),
        ('a, "b,\nc",\ufffd\n', [["a", "b,\nc", "\ufffd"]]),
        ('a,5" pipe\nb,say "x"\n', [["a", '5" pipe'], ["b", 'say "x"']]),
        ('a,"b"c\nd,e\n', [Flaw.CELLS, ["d", "e"]]),
        ('a,"b""c"\n\n \n""\n', [["a", 'b"c'], [""], [""]]),
        ('a,"' + "x\n" * 140_000 + '",\nb,c\n', [Flaw.CELLS, ["b", "c"]]),
        ("a," + "x" * 140_000 + "\nb,c\n", [Flaw.CELLS, ["b", "c"]]),
        ("", []),
    ],
)
def test_single_cases(text: str, rows: list[Any]) -> None:
    assert list(records_of_lines(io.StringIO(text, newline="\n"), ",")) == rows


@pytest.mark.parametrize(
    ("text", "record"),
    [
        ('a,b\n1,"2\n3,4\n', 1),  # never closed
        ('a,b\n1,2\n3,"4\n"5",6\n', 2),  # closed by the next record's quote
        ('a,b\n1,"2\n3,",4"\n5,6\n', 1),
        ('a,b\n1,"2\n3,",x\ny"\n5,6\n', 2),  # a quote is left over behind a record that looks well
        ('a,b\n1,2"\n3,"x\ny"\n5,6\n', 1),
        ('"a\n', 0),
    ],
)
def test_quotes_that_do_not_balance_are_found(text: str, record: int) -> None:
    with pytest.raises(OpenQuote) as caught:
        read(text)
    assert caught.value.record == record


HEADER = ["who", "p", "note", "y"]
PEOPLE = [[f"p{i}", str(i), "plain" if i % 2 else 'two\nlines, and a "word"', "ab"[i % 2]] for i in range(12)]
SECTION = {"source": "csv", "label": "y", "id": "who", "classes": ["a", "b"], "ignore": ["note"]}


def in_files(folder: Path, rows: list[Row], n_files: int, encoding: str = "utf-8") -> CsvData:
    for i in range(n_files):
        (folder / f"shard-{i}.csv").write_bytes(written([HEADER, *rows[i::n_files]]).encode(encoding))
    (folder / "public.csv").write_bytes(written([["p"], ["0"], ["999"]]).encode(encoding))
    private = "shard-0.csv" if n_files == 1 else "shard-*.csv"
    return CsvData.model_validate(SECTION | {"private": private, "public": "public.csv", "encoding": encoding})


def by_id(about: CsvData, folder: Path, keep: bool) -> dict[str, tuple[float, int]]:
    records = records_of(load(about, None, folder, keep_missing=keep)[1])
    assert records.ids is not None
    assert len(set(records.ids)) == len(records)
    return {who: (float(x[0]), int(y)) for who, x, y in zip(records.ids, records.X, records.y, strict=True)}


def by_reader(about: CsvData, folder: Path, keep: bool) -> int:
    """How many records the readers of a cluster find."""
    left = about.model_copy(update={"read_by": "workers"})
    _, private = load(left, None, folder, by_workers=True, keep_missing=keep)
    assert isinstance(private, Shards)
    answer = ShardReader(private, b"k" * 32, Split(3)).load()
    if isinstance(answer, str):
        raise DataError(answer)
    return answer.records


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("n_files", [1, 3])
@pytest.mark.parametrize("encoding", ["utf-8", "cp1252", "utf-16"])
def test_a_quoted_cell_with_line_breaks_is_one_record(tmp_path: Path, n_files: int, keep: bool, encoding: str) -> None:
    """For teachers and where records vote themselves, read by the driver, by shards and by readers."""
    fake = ["p0", "0", "\n".join(f"fake{i},9,x,b" for i in range(200)), "a"]
    for rows in (PEOPLE, [fake, *PEOPLE[1:]]):
        about = in_files(tmp_path, rows, n_files, encoding)
        expected = {f"p{i}": (float(i), i % 2) for i in range(12)}
        assert by_id(about, tmp_path, keep) == expected
        assert by_reader(about, tmp_path, keep) == 12


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("n_files", [1, 3])
@pytest.mark.parametrize("place", [1, 5, 40])
def test_an_odd_byte_in_utf_16_loses_nobody_unsaid(tmp_path: Path, n_files: int, keep: bool, place: int) -> None:
    """It shifts all that follow, so the file is refused whole."""
    people = [[f"p{i}", str(i), "", "a"] for i in range(600)]
    about = in_files(tmp_path, people, n_files, "utf-16")
    assert len(by_id(about, tmp_path, keep)) == 600
    content = (tmp_path / "shard-0.csv").read_bytes()
    place += content.index("\n".encode("utf-16-le"))
    (tmp_path / "shard-0.csv").write_bytes(content[:place] + b"x" + content[place:])
    for reading in (by_id, by_reader):
        with pytest.raises(DataError, match="not utf-16 text"):
            reading(about, tmp_path, keep)


@pytest.mark.parametrize("n_files", [1, 3])
def test_where_a_quote_is_open_is_for_the_operator_alone(tmp_path: Path, n_files: int) -> None:
    """For teachers the row is named, as for whatever else is wrong; where records vote, at a terminal only."""
    about = in_files(tmp_path, PEOPLE, n_files)
    path = tmp_path / "shard-0.csv"
    path.write_bytes(path.read_bytes() + b'x77,1,"77,a\r\ny,1,,a\r\n')
    for reading in (by_id, by_reader):
        with pytest.raises(DataError, match=r"shard-0\.csv: cannot be told apart into records") as kept:
            reading(about, tmp_path, True)
        assert "77" not in str(kept.value).replace(str(tmp_path), "")
        assert "row" not in str(kept.value).replace(str(tmp_path), "")
        with pytest.raises(DataError, match=r"row \d+ .*quote"):
            reading(about, tmp_path, False)
    with pytest.raises(DataError) as kept:
        load(about, None, tmp_path, keep_missing=True)
    assert f"row {12 // n_files} " in kept.value.private
    assert "77" not in kept.value.private.replace(str(tmp_path), "")


def test_a_header_is_no_record(tmp_path: Path) -> None:
    """It may hold line breaks in quotes; one that is not csv is refused, also where records vote."""
    about = in_files(tmp_path, PEOPLE, 1)
    path = tmp_path / "shard-0.csv"
    content = path.read_bytes()
    path.write_bytes(content.replace(b"note", b'"no\nte"', 1))
    renamed = about.model_copy(update={"ignore": ("no\nte",)})
    assert len(by_id(renamed, tmp_path, True)) == 12
    for header in (b'who,p,"no"te,y', b"who,p,n\xffte,y"):
        path.write_bytes(header + content[content.index(b"\r\n") :])
        with pytest.raises(DataError, match=r"header: not csv|not UTF-8"):
            load(about, None, tmp_path, keep_missing=True)
    path.write_bytes(content.replace(b"\r\n", b"\r").replace(b"\n", b" "))
    with pytest.raises(DataError, match="carriage returns alone"):
        load(about, None, tmp_path, keep_missing=True)
