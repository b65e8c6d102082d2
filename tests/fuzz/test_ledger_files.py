"""A run's ledger, head, key and published files, damaged in every way: one line or all well, never a wrong 'unchanged'.

`PATE_FUZZ=2000 pytest tests/fuzz/test_ledger_files.py` tries that many; the number of an example is its seed.
"""

from __future__ import annotations

import io
import os
import random
import resource
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.fuzzing import hang_guard

from pate.cli._look import show, verify
from pate.config import load_config
from pate.errors import PateError
from pate.ledger import Charge, Ledger
from pate.ledger._chain import read_head
from pate.runs._files import LABELS, STUDENT, STUDENT_CARD
from pate.runs._run_ledger import Labels, ledger_opener, pin_to_json, write_labels
from pate.runs.run import Run
from pate.voters import voters_of

EXAMPLES = int(os.environ.get("PATE_FUZZ", "45"))
DB, HEAD, KEY = "ledger.db", "private/ledger.head", "private/key"
CARD = f"{STUDENT}/{STUDENT_CARD}"
FILES = (DB, HEAD, KEY, LABELS, CARD)
TABLES = ("budget", "runs", "charges", "answers", "sanitised", "owners", "chain")
QUERIES = [b"%016d" % i for i in range(60)]
MEGABYTES = 300


def make_run(out: Path) -> None:
    """A run that paid for sixty answers in twenty batches and published them."""
    config = load_config()
    with Run.create(out, config, resume=False) as directory:
        ledger = opened(directory)
        for start in range(0, len(QUERIES), 3):
            with ledger.batch(3):
                ledger.charge_and_store(QUERIES[start : start + 3], [start % 10] * 3, Charge(3, 3))
        ledger.release_once(lambda: {"epsilon": 1.5})
        head = ledger.head()
        ledger.close()
    labels = np.arange(60, dtype=np.int64)
    write_labels(out / LABELS, Labels(labels, labels, head), ("a", "b"))
    (out / CARD).parent.mkdir()
    (out / CARD).write_text(f'{{"student": "x", "ledger": {pin_to_json(head)}}}'.replace("'", '"'))


def opened(directory: Run) -> Ledger:
    return ledger_opener(voters_of(load_config()), directory)()


def content(path: Path) -> list[Any]:
    """All that a ledger file says, and what it does when it is written to."""
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as db:
        schema = db.execute("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name").fetchall()
        return [schema, *(sorted(db.execute(f"SELECT * FROM {table}").fetchall()) for table in TABLES)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run, and another of the same config to swap files with."""
    folder = tmp_path_factory.mktemp("fuzz")
    for name in ("run", "other"):
        make_run(folder / name)
    return folder / "run", folder / "other"


# Ways to damage a file.


def truncated(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data))]


def flipped(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 10, 100])):
        changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def flipped_header(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    changed[rng.randrange(min(100, len(data)))] = rng.randrange(256)
    return bytes(changed)


def overwritten(data: bytes, rng: random.Random) -> bytes:
    start, n = rng.randrange(len(data)), rng.choice([4, 100, 5000])
    with_what = bytes(n) if rng.random() < 0.5 else rng.randbytes(n)
    return (data[:start] + with_what + data[start + n :])[: len(data)]


def pages_mixed(data: bytes, rng: random.Random) -> bytes:
    """A page in another's place, so that trees meet themselves again."""
    size = 4096 if len(data) > 8192 else max(1, len(data) // 4)
    a, b = (rng.randrange(max(1, len(data) // size)) * size for _ in range(2))
    return data[:a] + data[b : b + size] + data[a + size :]


def random_bytes(data: bytes, rng: random.Random) -> bytes:
    return rng.randbytes(rng.choice([0, 1, 32, 5000]))


def grown(data: bytes, rng: random.Random) -> bytes:
    return data + rng.choice([b"\0", b"\n", b"{", b"[" * 100_000, bytes(3_000_000)])


def text(data: bytes, rng: random.Random) -> bytes:
    return rng.choice(
        [
            b"{}",
            b"[]",
            b"null",
            b"[" * 100_000,
            b'{"link": 1e999, "mac": ""}',
            b'{"link": ' + b"9" * 3000 + b', "mac": "00"}',
            b'{"link": -1, "mac": "' + b"00" * 32 + b'"}',
            b'{"link": 1, "mac": "' + b"zz" * 32 + b'"}',
            b'{"link": true, "mac": null}',
            b'{"ledger": {"link": 1, "code": 5}}',
            b"\xff\xfe\x00",
        ]
    )


BYTES: list[Callable[[bytes, random.Random], bytes]] = [
    truncated,
    flipped,
    flipped,
    flipped_header,
    overwritten,
    pages_mixed,
    random_bytes,
    grown,
    text,
]
VALUES = ["NULL", "'text'", "''", "CAST(x'fffe' AS TEXT)", "x'00ff'", "zeroblob(2000000)", "9223372036854775807", "-1"]
VALUES += ["0", "1.5", "9e999", "-9e999", "'1'", "printf('%.*c', 1500000, 'x')", "x'61'", "char(0)", "'\U0001f600'"]


def by_sql(path: Path, rng: random.Random) -> None:
    """Rows changed by somebody who lifts every restriction first and puts it back afterwards."""
    db = sqlite3.connect(path, isolation_level=None)
    schema = db.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    for name, sql in schema:
        if sql.startswith("CREATE TRIGGER"):
            db.execute(f"DROP TRIGGER {name}")
    _rewrite(db, [(name, sql.replace(" NOT NULL", "")) for name, sql in schema if sql.startswith("CREATE TABLE")])
    db.close()
    db = sqlite3.connect(path, isolation_level=None)
    for _ in range(rng.choice([1, 1, 3])):
        table = rng.choice(TABLES)
        columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
        column, value = rng.choice(columns), rng.choice(VALUES)
        some = rng.choice(["", "", f"WHERE {columns[0]} = {rng.randrange(1, 25)}"])
        statements = [f"UPDATE {table} SET {column} = {value} {some}", f"DELETE FROM {table} {some}"]
        statements.append(
            f"INSERT INTO {table} SELECT {', '.join(rng.choice([c, value]) for c in columns)} FROM {table}"
        )
        try:
            db.execute(rng.choices(statements, [4, 1, 1])[0])
        except sqlite3.Error:
            continue
    _rewrite(db, [(name, sql) for name, sql in schema if sql.startswith("CREATE TABLE")])
    db.close()
    db = sqlite3.connect(path, isolation_level=None)
    for _, sql in schema:
        if sql.startswith("CREATE TRIGGER") and rng.random() < 0.999:
            db.execute(sql)
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()


def _rewrite(db: sqlite3.Connection, tables: list[tuple[str, str]]) -> None:
    db.execute("PRAGMA writable_schema = ON")
    for name, sql in tables:
        db.execute("UPDATE sqlite_master SET sql = ? WHERE name = ? AND type = 'table'", (sql, name))
    db.execute("PRAGMA writable_schema = OFF")


def damage(run: Path, other: Path, rng: random.Random) -> set[str]:
    """Damage one file, or two; returns which."""
    chosen = {rng.choices(FILES, [6, 2, 1, 1, 1])[0] for _ in range(rng.choice([1, 1, 2]))}
    for name in sorted(chosen):
        path = run / name
        way = rng.random()
        if name == DB and way < 0.35:
            by_sql(path, rng)
        elif way < 0.4:
            path.unlink()
            if rng.random() < 0.2:
                path.mkdir()
        elif way < 0.5:
            shutil.copy(other / name, path)
        else:
            path.write_bytes(rng.choice(BYTES)(path.read_bytes(), rng))
    return chosen


def found_out(look: Callable[..., None], run: Path, as_json: bool) -> bool:
    """Whether the command refuses, in words fit for its one line; whatever else it raises would be a traceback."""
    try:
        with redirect_stdout(io.StringIO()):
            look(str(run), as_json=as_json)
    except PateError as error:
        words = str(error)
    else:
        return False
    assert 0 < len(words) < 1000
    return True


def try_one(runs: tuple[Path, Path], folder: Path, number: int, whole: list[Any]) -> int:
    """One damaged run: whether it was found out."""
    rng = random.Random(number)
    shutil.copytree(runs[0], folder)
    changed = damage(folder, runs[1], rng)
    verdicts = {found_out(look, folder, as_json) for look in (verify, show) for as_json in (False, True)}
    assert len(verdicts) == 1, number
    found = verdicts.pop()
    if not found:
        assert content(folder / DB) == whole, (number, changed)
        assert read_head(folder / HEAD) == read_head(runs[0] / HEAD), (number, changed)
        assert (folder / KEY).read_bytes() == (runs[0] / KEY).read_bytes(), (number, changed)
    try:
        ledger = opened(Run(folder))
    except PateError:
        assert found, number
    else:
        assert not found, number
        assert ledger.spent() == Charge(60, 60), number
        assert ledger.stored(QUERIES) == {query: i // 3 * 3 % 10 for i, query in enumerate(QUERIES)}, number
        ledger.close()
    return found


def test_damaged_files_are_found_or_do_not_matter(runs: tuple[Path, Path], tmp_path: Path) -> None:
    whole, found = content(runs[0] / DB), 0
    assert not found_out(verify, runs[0], as_json=False)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(EXAMPLES):
        with hang_guard():
            found += try_one(runs, tmp_path / "run", number, whole)
        shutil.rmtree(tmp_path / "run")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1024 * MEGABYTES
    print(f"{EXAMPLES} damaged runs, {found} found out, in the others nothing that matters was changed")
    assert found > EXAMPLES // 2
