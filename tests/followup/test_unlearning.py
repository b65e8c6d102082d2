"""Forgetting, by itself: which data a run goes on with, what is erased, and who is trained again."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import ANY

import numpy as np
import pytest
from support.command_line import in_process

from pate import pipeline
from pate.config import Config, parse_config
from pate.data.private import PrivateData, Records, Votes, records_of
from pate.data.public import PublicData
from pate.errors import DataError
from pate.followup import drop_forgotten, forget
from pate.runs import _files as files
from pate.runs._console import Quiet
from pate.runs.run import Run, Version
from pate.voters.teachers._checkpoints import TeacherFiles
from pate.voters.teachers._worker import Teaching
from pate.voters.teachers.ensemble import Ensemble, private_records

TEACHERS = 4
CONFIG = {
    "n_teachers": TEACHERS,
    "data": {"source": "arrays"},
    "teachers": [{"name": "sklearn.naive_bayes.GaussianNB"}],
    "mechanism": {"name": "gnmax", "sigma": 2},
    "budget": {"max_queries": 10},
    "student": {"name": "supervised"},
    "backend": "local",
}
Data = tuple[PublicData, Records]
MADE = [
    *(files.VOTES, files.EVALUATION, files.EPSILON, files.FAILURES, files.PAGE, files.AUDIT, files.AUDIT_PAGE),
    *(f"{files.FEATURES}/records.npy", f"{files.ATTACKS}/shadow/1.npz"),
]
MADE += [f"{name}.partial" for name in MADE]  # as a crash leaves them


def arrays(ids: bool = False) -> Data:
    rng = np.random.default_rng(0)
    y = np.resize([0, 1], 60)
    X = (rng.normal(size=(60, 2)) + 3 * y[:, None]).astype(np.float32)
    persons = [f"p{i // 3}" for i in range(60)] if ids else None
    public = PublicData(rng.normal(size=(20, 2)).astype(np.float32), ("a", "b"), per_person=ids)
    return public, Records(X, y.astype(np.int64), persons)


def train(config: Config, private: PrivateData, run: Run) -> None:
    teaching, store = Teaching.of(config, 2), TeacherFiles(run.private, run.key, trusted=True)
    with Ensemble(teaching, private_records(config, private, run), store) as ensemble:
        ensemble.train()
    for name in MADE:
        (run.private / name).parent.mkdir(parents=True, exist_ok=True)
        (run.private / name).write_text("made from all teachers")


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """A run whose teachers are trained, on records without ids.

    With a key under which both classes are in every part: a teacher of one class would not change with a record less.
    """
    config = parse_config(CONFIG)
    (tmp_path / "run" / "private").mkdir(parents=True, mode=0o700)
    (tmp_path / "run" / "private" / "key").write_bytes(b"k" * 32)
    with Run.create(tmp_path / "run", config, "auto") as run:
        train(config, drop_forgotten(*arrays(), run), run)
        yield run


def payloads(run: Run, round_number: int = 1) -> list[bytes | None]:
    files_of_round = TeacherFiles(run.teachers_of_round(round_number), run.key, trusted=True)
    return [files_of_round.load(part) for part in range(TEACHERS)]


# Which data a run goes on with.


def changed(name: str) -> Data:
    public, records = arrays(ids=True)
    X, y = records.X.copy(), records.y.copy()
    X[7, 0] += 1
    y[7] = 1 - y[7]
    X_public = public.X_public.copy()
    X_public[3, 0] += 1
    ids = [*records.ids[:7], "somebody else", *records.ids[8:]]  # type: ignore[index]
    return {
        "a record": (public, replace(records, X=X)),
        "a label": (public, replace(records, y=y)),
        "an id": (public, replace(records, ids=ids)),
        "a record less": (public, records.only(np.arange(60) != 7)),
        "a public example": (replace(public, X_public=X_public), records),
    }[name]


@pytest.mark.parametrize("what", ["a record", "a label", "an id", "a record less", "a public example"])
def test_a_run_goes_on_with_the_data_it_began_with(what: str, tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", parse_config(CONFIG)) as run:
        drop_forgotten(*arrays(ids=True), run)
        drop_forgotten(*arrays(ids=True), run)
        with pytest.raises(DataError, match="was begun with other data"):
            drop_forgotten(*changed(what), run)


def test_and_with_the_votes_it_began_with(tmp_path: Path) -> None:
    counts = np.tile([4, 2], (20, 1))
    public, _ = arrays()
    with Run.create(tmp_path / "run", parse_config(CONFIG)) as run:
        drop_forgotten(public, Votes(counts), run)
        with pytest.raises(DataError, match="was begun with other data"):
            drop_forgotten(public, Votes(counts[:, ::-1]), run)


# What goes.


def test_the_record_its_teacher_and_what_was_made_from_it_go(run: Run) -> None:
    before = payloads(run)
    shutil.copytree(run.private / files.TEACHERS, run.teachers_of_round(2) / files.TEACHERS)  # of a second round
    assert forget(parse_config(CONFIG), *arrays(), run, [], [7]) == 1
    after = payloads(run)
    assert None not in after
    touched = [part for part in range(TEACHERS) if before[part] != after[part]]
    assert len(touched) == 1
    assert [part for part, left in enumerate(payloads(run, 2)) if left is None] == touched  # nobody needs it yet
    assert not [name for name in MADE if (run.private / name).exists()]
    assert Version.of(run).version == 2
    left = records_of(drop_forgotten(*arrays(), run))
    assert (Version.of(run).pending, payloads(run)) == (None, after)  # whoever goes on erases nothing again
    np.testing.assert_array_equal(left.X, np.delete(arrays()[1].X, 7, axis=0))
    np.testing.assert_array_equal(left.X, records_of(drop_forgotten(*changed_source(7), run)).X)


def changed_source(row: int) -> Data:
    """The source without the record: a run that forgot it goes on all the same."""
    public, records = arrays()
    return public, records.only(np.arange(60) != row)


def test_what_was_forgotten_stays_forgotten(run: Run) -> None:
    config = parse_config(CONFIG)
    forget(config, *arrays(), run, [], [7])
    forget(config, *arrays(), run, [], [8])
    assert Version.of(run).version == 3
    assert len(records_of(drop_forgotten(*arrays(), run))) == 58
    for row in (7, 8):
        with pytest.raises(DataError, match="forgotten already"):
            forget(config, *arrays(), run, [], [row])
    with pytest.raises(DataError, match="was begun with other data"):
        drop_forgotten(*changed_source(9), run)


def test_forgetting_brings_in_no_other_data(run: Run) -> None:
    """Cut off before anything was erased, and gone on with another record changed."""
    Version(version=2, pending=(0,), data_digest="of the rest").store(run)
    with pytest.raises(DataError, match="was begun with other data"):
        drop_forgotten(*arrays(), run)
    assert None not in payloads(run)


def test_a_persons_records_go_together(tmp_path: Path) -> None:
    config, (public, records) = parse_config(CONFIG), arrays(ids=True)
    with Run.create(tmp_path / "run", config) as run:
        train(config, drop_forgotten(public, records, run), run)
        forget(config, public, records, run, ["p4"], [])
        left = records_of(drop_forgotten(public, records, run))
    assert left.ids == [who for who in records.ids or () if who != "p4"]


def test_digests_of_what_was_forgotten_are_the_runs_own(run: Run, tmp_path: Path) -> None:
    """Else whoever guesses a record could look it up."""
    config = parse_config(CONFIG)
    forget(config, *arrays(), run, [], [7])
    with Run.create(tmp_path / "other", config) as other:
        train(config, drop_forgotten(*arrays(), other), other)
        forget(config, *arrays(), other, [], [7])
        assert not set(Version.of(run).forgotten) & set(Version.of(other).forgotten)


# Through the command line, whatever order queries have and wherever records come from.


def write_source(folder: Path, source: str) -> tuple[dict, list[str]]:
    """Files with 60 records, of persons where there can be ids, and what names the one to forget."""
    (given, records), names = arrays(ids=True), ("no", "yes")
    ids = [who[1:] for who in records.ids or ()]
    if source == "npz":
        np.savez(folder / "private.npz", X=records.X, y=records.y)
        np.savez(folder / "public.npz", X=given.X_public)
        return {"source": "npz", "private": "private.npz", "public": "public.npz", "classes": [0, 1]}, ["--rows", "7"]
    rows = [f"{i},{a},{b},{names[k]}\n" for i, (a, b), k in zip(ids, records.X, records.y, strict=True)]
    public = [f"{a},{b}\n" for a, b in given.X_public]
    settings = {"label": "back", "id": "patient", "classes": list(names), "public": "public.csv"}
    if source == "parquet":
        import pyarrow
        import pyarrow.csv
        import pyarrow.parquet

        for name, header, lines in (("private", "patient,a,b,back\n", rows), ("public", "a,b\n", public)):
            content = (header + "".join(lines)).encode()
            table = pyarrow.csv.read_csv(pyarrow.BufferReader(content))
            pyarrow.parquet.write_table(table, folder / f"{name}.parquet")
        settings |= {"public": "public.parquet", "id_type": "integer", "private": "private.parquet"}
        return settings | {"source": "parquet"}, ["--id", "4"]
    (folder / "public.csv").write_text("a,b\n" + "".join(public))
    half = 30 if source == "shards" else 60
    (folder / "private-0.csv").write_text("patient,a,b,back\n" + "".join(rows[:half]))
    if source == "shards":
        (folder / "private-1.csv").write_text("patient,a,b,back\n" + "".join(rows[half:]))
    private = "private-*.csv" if source == "shards" else "private-0.csv"
    return settings | {"source": "csv", "private": private}, ["--id", "4"]


@pytest.mark.parametrize(
    ("source", "order"),
    [
        ("csv", "given"),
        ("csv", "uncertainty"),
        *((source, "clusters") for source in ("csv", "npz", "shards", "parquet")),
    ],
)
def test_every_source_and_order_can_be_forgotten_from(source: str, order: str, tmp_path: Path) -> None:
    if source == "parquet":
        pytest.importorskip("pyarrow")
    data, named = write_source(tmp_path, source)
    student = {"name": "supervised", "params": {"estimator": "sklearn.naive_bayes.GaussianNB"}}
    budget = {"max_queries": 10, "query_selection": order, **({"active_rounds": 2} if order == "uncertainty" else {})}
    config = CONFIG | {"data": data, "budget": budget, "student": student}
    run = partial(pipeline.run, parse_config(config), tmp_path / "run", config_dir=tmp_path, pages=False, force=True)
    run(console=Quiet())
    before = np.load(tmp_path / "run" / "labels.npz")["labels"]
    assert in_process("forget", tmp_path / "run", *named) == (0, ANY, "")
    run(console=Quiet(), resume=True)
    np.testing.assert_array_equal(np.load(tmp_path / "run" / "labels.npz")["labels"], before)
    with Run.load(tmp_path / "run") as found:
        assert Version.of(found).version == 2
