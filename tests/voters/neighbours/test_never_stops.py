"""Nothing that a private record holds stops a run in which records vote: it casts its votes, or none."""

from __future__ import annotations

import csv
import io
import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from voters.neighbours.test_cell_vote import CENTRES, KEY, counted
from voters.neighbours.test_neighbours_run import Data, config, data, run, stored

from pate import PATEClassifier, pipeline
from pate.config import parse_config
from pate.data._csv_records import csv_tables
from pate.data._formats import Wanted
from pate.data._settings import CsvData, NpzData, ParquetData
from pate.data._sources import load
from pate.data.partition import ranks
from pate.data.private import Records, check_private, records_of
from pate.errors import DataError
from pate.runs._console import Quiet
from pate.voters.neighbours._cells import Cells, CellVote, RecordFeatures, Space
from pate.voters.neighbours._rounds import LocalVoteCounter

KINDS: dict[str, Any] = {"csv": CsvData, "npz": NpzData, "parquet": ParquetData}
CASES = ["one label unknown", "all labels unknown", "no record", "no valid id"]
Row = tuple[str, float, float, str]  # who, two features, label


def rows_of(case: str) -> list[Row]:
    """Twelve records of six persons; of the first case, one of p0's two records has another label."""
    rng = np.random.default_rng(5)
    rows = [(f"p{i // 2}", *rng.normal(size=2).round(3).tolist(), "ab"[i % 2]) for i in range(12)]
    if case == "one label unknown":
        rows[1] = (*rows[1][:3], "z")
    elif case == "all labels unknown":
        rows = [(*row[:3], "") for row in rows]
    elif case == "no valid id":
        rows = [(" ", *row[1:]) for row in rows]
    return [] if case == "no record" else rows


def save(path: Path, rows: list[Row]) -> None:
    who, p, q, y = ([row[i] for row in rows] for i in range(4))
    if path.suffix == ".csv":
        path.write_text("who,p,q,y\n" + "".join(",".join(map(str, row)) + "\n" for row in rows))
    elif path.suffix == ".parquet":
        pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
        parquet = pytest.importorskip("pyarrow.parquet")
        text, real = pyarrow.string(), pyarrow.float64()
        columns = {"who": (who, text), "p": (p, real), "q": (q, real), "y": (y, text)}
        parquet.write_table(
            pyarrow.table({name: pyarrow.array(values, type=kind) for name, (values, kind) in columns.items()}), path
        )
    else:
        X = np.array([p, q], dtype=np.float64).reshape(2, -1).T
        np.savez(path, X=X, y=np.array(y, dtype="U1"), id=np.array(who, dtype="U3"))


def section(folder: Path, source: str, case: str, n_files: int) -> dict[str, Any]:
    """The data section of a config for records in one file or in several."""
    rows = rows_of(case)
    for i in range(n_files):
        save(folder / f"shard-{i}.{source}", rows[i::n_files])
    public = np.random.default_rng(6).normal(size=(30, 2))
    if source == "npz":
        np.savez(folder / "public.npz", X=public)
    elif source == "csv":
        (folder / "public.csv").write_text("p,q\n" + "".join(f"{p},{q}\n" for p, q in public))
    else:
        pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.table({"p": public[:, 0], "q": public[:, 1]}), folder / "public.parquet")
    one = n_files == 1 and source != "parquet"
    about = {"source": source, "private": f"shard-0.{source}" if one else f"shard-*.{source}"}
    named = {"ids": True} if source == "npz" else {"label": "y", "id": "who"}
    return {**about, "public": f"public.{source}", "classes": ["a", "b"], **named}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("n_files", [1, 3])
@pytest.mark.parametrize("source", ["csv", "npz", "parquet"])
def test_what_records_hold_decides_only_their_own_votes(tmp_path: Path, source: str, n_files: int, case: str) -> None:
    """One vote for each person who has a usable record; teachers refuse the same files."""
    about = KINDS[source].model_validate(section(tmp_path, source, case, n_files))
    public, private = load(about, None, tmp_path, keep_missing=True)
    records = records_of(private)
    seen = RecordFeatures(())(public.X_public)
    cell_vote = CellVote(RecordFeatures(()), Cells.of(Space.of(seen, None), seen, 7, seed=0), 1, 2)
    (votes,) = LocalVoteCounter(records, KEY).count(cell_vote)
    assert votes.counts.sum() == (6 if case == "one label unknown" else 0)
    if case == "one label unknown":
        _, usual = load(KINDS[source].model_validate(section(tmp_path, source, "", n_files)), None, tmp_path)
        without = records_of(usual).only(np.array([i != list(records.y).index(-1) for i in range(12)]))
        np.testing.assert_array_equal(votes.counts, LocalVoteCounter(without, KEY).count(cell_vote)[0].counts)
        section(tmp_path, source, case, n_files)
    with pytest.raises(DataError):
        check_private(*load(about, None, tmp_path), keep_missing=False)


BAD_LINES = [
    b'p0,"1"x,2,a\n',
    b'p0,1,2",a\n',
    b'p0,1,2,"a\nb"\n',
    b"p0,1,2\n",
    b"p0,1,2,a,9\n",
    b"p\xff,1,2,a\n",
    b"p0,1,2,a" + b"x" * 200_000 + b"\n",
    b"\x00,,,\n",
    b"p0,nan,1e999,a\n",
]


@pytest.mark.parametrize("n_files", [1, 3])
@pytest.mark.parametrize("line", BAD_LINES)
def test_a_line_that_is_not_csv_is_one_record_that_casts_no_vote(tmp_path: Path, line: bytes, n_files: int) -> None:
    """And all other lines are the records that they were."""
    about = CsvData.model_validate(section(tmp_path, "csv", "", n_files))
    before = records_of(load(about, None, tmp_path)[1])
    path = tmp_path / "shard-0.csv"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], line, *lines[2:]]))
    after = records_of(load(about, None, tmp_path, keep_missing=True)[1])
    valid = np.isfinite(after.X).all(axis=1) & (after.y >= 0)
    np.testing.assert_array_equal(after.X[valid], before.X)
    np.testing.assert_array_equal(after.y[valid], before.y)
    assert [i for i, keep in zip(after.ids or (), valid, strict=True) if keep] == before.ids
    with pytest.raises(DataError):
        load(about, None, tmp_path)


@pytest.mark.parametrize("n_files", [1, 3])
@pytest.mark.parametrize("line", [b'p0,"1,2,a\n', b'p0,1,2,"a', b'p0,1,"2\np1,2,",3"\n'])
def test_a_file_with_an_open_quote_is_refused_before_anything_is_charged(
    tmp_path: Path, line: bytes, n_files: int
) -> None:
    """A quote that nobody closes would take the records behind it with it."""
    about = section(tmp_path, "csv", "", n_files)
    path = tmp_path / "shard-0.csv"
    path.write_bytes(path.read_bytes() + line)
    content = config().model_dump(mode="json", exclude_defaults=True) | {"data": about, "neighbours": {"cells": 4}}
    with pytest.raises(DataError, match="cannot be told apart into records"):
        pipeline.run(parse_config(content), tmp_path / "run", data_dir=tmp_path, console=Quiet())
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("start", ["", "\ufeff"])
def test_valid_csv_is_read_the_same_either_way(ending: str, start: str) -> None:
    cells = ["a", ' "b, c"', '"d ""e"""', "", " f ", "\u2028g", "'h", "1e5", "\x0b", '"i\nj"', "k\rl"]
    lines = ["x,y", *(f"{one},{other}" for one in cells for other in cells), "", "last,"]
    content = (start + ending.join(lines) + ending).encode()
    strict, kept = (
        next(csv_tables(io.BytesIO(content), "f", Wanted({}, keep_bad=keep))).columns for keep in (False, True)
    )
    assert {name: column.values for name, column in strict.items()} == {n: c.values for n, c in kept.items()}
    assert len(kept["x"].values) == 122


SIGNS = st.text('",\n\r ;1.ab\x00\u2028\ufffd\ufeff', max_size=12)


@given(
    st.lists(st.tuples(SIGNS, SIGNS), min_size=1, max_size=6),
    st.tuples(SIGNS, SIGNS, SIGNS, SIGNS),
    st.sampled_from([1, 2]),
    st.booleans(),
)
@settings(max_examples=30, deadline=None, derandomize=True, phases=[Phase.generate])  # to shrink takes minutes
def test_a_record_of_any_signs_moves_its_own_votes_alone(
    notes: list[tuple[str, str]], odd: tuple[str, ...], n_votes: int, with_ids: bool
) -> None:
    """Added, removed or changed: m votes, or 2m, whatever anybody's cells hold, if a csv writer wrote the file."""
    rows = [(f"p{i}", f"{i}.5", note, "ab"[i % 2], more) for i, (note, more) in enumerate(notes)]
    fake = "\n".join(f"fake{i},9,x,b,9" for i in range(50))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "public.csv").write_text("p\n" + "".join(f"{i}\n" for i in range(9)))
        about = {"source": "csv", "private": "private.csv", "public": "public.csv", "label": "y", "classes": ["a", "b"]}
        about |= {"id": "who", "ignore": ["note", "more"]} if with_ids else {"ignore": ["who", "note", "more"]}

        def votes(content: Sequence[tuple[str, ...]]) -> NDArray:
            with (folder / "private.csv").open("w", newline="", encoding="utf-8") as file:
                csv.writer(file).writerows([("who", "p", "note", "y", "more"), *content])
            public, private = load(CsvData.model_validate(about), None, folder, keep_missing=True)
            seen = RecordFeatures(())(public.X_public)
            cell_vote = CellVote(RecordFeatures(()), Cells.of(Space.of(seen, None), seen, 4, seed=0), n_votes, 2)
            (found,) = LocalVoteCounter(records_of(private), KEY).count(cell_vote)
            return found.counts

        before = votes(rows)
        assert before.sum() == n_votes * len(rows)
        for one in [(*odd, odd[0]), ("p99", "1.5", fake, "a", odd[0]), ("p98", odd[1], fake, odd[2], '"')]:
            for place in (0, len(rows)):
                added = votes([*rows[:place], one, *rows[place:]])
                assert np.abs(added - before).sum() <= n_votes
            changed = votes([*rows[:-1], (rows[-1][0], *one[1:])])
            assert np.abs(changed - before).sum() <= 2 * n_votes


def test_a_row_that_says_not_where_it_belongs_is_left_out(tmp_path: Path) -> None:
    rows = ["1,2,a,private", "1,2,a,privat", "3,4,,public", "5,6,,public", '"7"x,8,,public', "7,8,,"]
    (tmp_path / "all.csv").write_text("p,q,y,part\n" + "\n".join(rows) + "\n")
    split = {"source": "csv", "private": "all.csv", "split": "part", "label": "y", "classes": ["a", "b"]}
    public, private = load(CsvData.model_validate(split), None, tmp_path, keep_missing=True)
    assert (len(records_of(private)), len(public.X_public)) == (1, 2)


def emptied(given: Data) -> Data:
    public, records = given
    return public, records.only(np.zeros(len(records), dtype=bool))


def unlabelled(given: Data) -> Data:
    """No label is a class: too large, and below zero."""
    public, records = given
    y = np.where(np.arange(len(records)) % 2 == 0, 3, -7).astype(np.int64)
    return public, Records(records.X, y, records.ids)


@pytest.mark.parametrize(
    ("make", "mechanism"),
    [(emptied, {"name": "histogram", "scale": 2}), (unlabelled, {"name": "gnmax", "sigma": 3})],
)
def test_a_whole_run_without_a_single_vote(tmp_path: Path, make: Any, mechanism: dict[str, Any]) -> None:
    """From arrays: charged and released as ever, since whether there is a record is private."""
    outcome = run(tmp_path / "run", config(mechanism=mechanism), make(data()))
    assert stored(tmp_path / "run")[0] == 1
    assert outcome.report.privacy.epsilon > 0
    persons = make(data(40, ids=[f"p{i // 4}" for i in range(40)]))
    run(tmp_path / "persons", config(mechanism=mechanism, neighbours={"cells": 6, "votes_per_record": 2}), persons)


def test_the_operator_alone_is_told_who_casts_no_vote(tmp_path: Path) -> None:
    class Told(Quiet):
        def __init__(self) -> None:
            self.privately: list[str] = []
            self.said: list[str] = []

        def info_private(self, text: str) -> None:
            self.privately.append(text)

        def info(self, text: str) -> None:
            self.said.append(text)

    console, (public, records) = Told(), unlabelled(data())
    pipeline.run(config(), tmp_path / "none", public=public, private=records, console=console)
    n = len(records)
    assert console.privately[0].startswith(f"{n} of {n} private records cast no vote: 0 have no valid id, {n} no label")
    assert console.privately[1].startswith("labels would be noise alone")
    assert any(text.startswith("warning: what was released is no more than noise") for text in console.said)
    assert not any(str(n) in text for text in console.said)
    console, (public, records) = Told(), data()
    y = records.y.copy()
    y[:3] = -1
    some = replace(records, y=y, left_out=2)
    pipeline.run(config(), tmp_path / "some", public=public, private=some, console=console)
    assert console.privately == [
        f"5 of {n + 2} private records cast no vote: 2 have no valid id, 3 no label or no numbers"
    ]
    noted = json.loads((tmp_path / "some" / "private" / "left_out.json").read_text())
    assert noted == {"records_without_valid_id": 2, "records_without_label_or_numbers": 3}


def test_a_whole_run_on_empty_files_with_pages(tmp_path: Path) -> None:
    about = section(tmp_path, "csv", "no record", 1)
    content = config().model_dump(mode="json", exclude_defaults=True) | {"data": about, "neighbours": {"cells": 4}}
    pipeline.run(parse_config(content), tmp_path / "run", data_dir=tmp_path, console=Quiet())
    assert (tmp_path / "run" / "report.html").exists()
    rows = "".join(f"{p},{q},,{part}\n" for p, q, part in [(0.5, 1, "public"), (1, 1, "public"), (2, 3, "public")])
    (tmp_path / "all.csv").write_text("p,q,y,part\n" + rows)
    split = {"source": "csv", "private": "all.csv", "split": "part", "label": "y", "classes": ["a", "b"]}
    _, found = load(CsvData.model_validate(split), None, tmp_path, keep_missing=True)
    assert len(records_of(found)) == 0
    with pytest.raises(DataError, match=r"data\.private: no rows"):
        load(CsvData.model_validate(split), None, tmp_path)


class Fails:
    """A transform of one's own that cannot take some examples, or gives more features for them."""

    def transform(self, X: NDArray) -> NDArray:
        if (X > 1e6).any():
            raise ValueError("too large")
        return np.concatenate([X, X], axis=1) if (X < -1e6).any() else X


class Broken:
    def transform(self, X: NDArray) -> NDArray:
        raise OSError("no weights here")


@pytest.mark.parametrize("value", [1e7, -1e7])
def test_a_record_whose_features_cannot_be_worked_out_casts_no_vote(value: float) -> None:
    X = np.array([[1.0], [11.0], [value], [29.0]])
    y = np.array([0, 1, 1, 0])
    cells = Cells(Space(np.zeros(1), np.ones(1)), CENTRES)
    cell_vote = CellVote(RecordFeatures([{"name": f"{__name__}.Fails"}]), cells, 1, 2, X[:1])
    others = np.array([0, 1, 3])
    expected = cell_vote.count(X[others], y[others])
    assert expected.sum() == 3
    np.testing.assert_array_equal(cell_vote.count(X, y), expected)
    assert cell_vote.count(X[2:3], y[2:3]).sum() == 0
    ids = ["a", "b", "c", "d"]
    np.testing.assert_array_equal(cell_vote.count_persons(X, y, ids, ranks(X, y, KEY)), expected)


def test_features_that_cannot_even_be_worked_out_for_a_public_example_are_an_error() -> None:
    """Else a worker without its weights would count nobody, and nobody would notice."""
    X = np.array([[1.0], [11.0]])
    cells = Cells(Space(np.zeros(1), np.ones(1)), CENTRES)
    cell_vote = CellVote(RecordFeatures([{"name": f"{__name__}.Broken"}]), cells, 1, 2, X[:1])
    with pytest.raises(OSError, match="weights"):
        cell_vote.count(X, np.array([0, 1]))


@pytest.mark.parametrize("votes", [1, 2, 3])
def test_a_record_with_an_unknown_label_is_as_if_it_were_not_there(votes: int) -> None:
    """Also beside other records of its person."""
    usable = [("a", 1.0, 0), ("a", 19.0, 1), ("b", 11.0, 1)]
    for label in (-1, 2, 99, -(2**40)):
        with_it = counted([*usable, ("a", 1.0, label), ("c", 29.0, label)], votes)
        np.testing.assert_array_equal(with_it, counted(usable, votes))


def test_the_classifier_takes_labels_that_are_no_class() -> None:
    rng = np.random.default_rng(0)
    X, public = rng.normal(size=(60, 2)), rng.normal(size=(30, 2))
    y = np.array(["left", "right"] * 29 + ["other", "left"], dtype=object)
    settings: dict[str, Any] = {"classes": ["left", "right"], "max_queries": 5, "epsilon": 5.0}
    PATEClassifier(voters="neighbours", **settings).fit(X, y, X_public=public)
    with pytest.raises(ValueError, match="not among classes"):
        PATEClassifier(n_teachers=5, **settings).fit(X, y, X_public=public)
