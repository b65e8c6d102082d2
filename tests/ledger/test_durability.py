"""What is released is on disk: commits, heads, anchors and keys are there whole before anybody goes on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.ledgers import KEY, LIMITS, opened, pay

from pate.ledger import Ledger, connect
from pate.ledger._chain import json_pin
from pate.storage._files import KEY_BYTES, create_key, read_key, write_atomically

FULL = 2  # SQLite's number for "a commit is on disk when it returns, whatever happens to the machine"


def test_every_commit_is_on_disk_when_it_returns(tmp_path: Path) -> None:
    db = connect(tmp_path / "ledger.db")
    assert db.execute("PRAGMA synchronous").fetchone() == (FULL,)
    assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    db.close()


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files and folders that were brought to disk since, in order; a file that was renamed by its old name."""
    names: list[str] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        names.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    return names


def test_a_file_is_on_disk_before_it_has_its_name_and_the_name_is_too(tmp_path: Path, synced: list[str]) -> None:
    write_atomically(tmp_path / "head", lambda path: path.write_text("x"))
    assert synced == ["head.partial", tmp_path.name]


def test_head_and_anchor_are_on_disk_before_a_batch_ends(tmp_path: Path, synced: list[str]) -> None:
    places = (tmp_path / "ledger.db", KEY, tmp_path / "ledger.head")
    ledger = Ledger(*places, "run", LIMITS, anchor=str(tmp_path / "anchor"))
    synced.clear()
    pay(ledger, [b"a"], [1])
    assert synced == ["ledger.head.partial", tmp_path.name, "anchor"]
    assert (tmp_path / "ledger.head").read_text() == json_pin(ledger.head())


def test_the_head_moves_with_a_sanitised_figure_too(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    before = ledger.head()
    ledger.release_once(lambda: {"epsilon": 1.0})
    assert ledger.head() != before
    assert (tmp_path / "ledger.head").read_text() == json_pin(ledger.head())


def test_a_sanitised_figure_is_drawn_once(tmp_path: Path) -> None:
    drawn = iter([1.0, 2.0])
    for _ in range(2):
        assert opened(tmp_path).release_once(lambda: {"epsilon": next(drawn)}) == {"epsilon": 1.0}


def test_a_file_that_cannot_be_written_whole_stays_as_it_was(tmp_path: Path) -> None:
    def fails(path: Path) -> None:
        path.write_text("half")
        raise OSError

    write_atomically(tmp_path / "head", lambda path: path.write_text("whole"))
    with pytest.raises(OSError):
        write_atomically(tmp_path / "head", fails)
    assert (tmp_path / "head").read_text() == "whole"


def test_a_key_is_drawn_once_and_for_its_owner(tmp_path: Path) -> None:
    create_key(tmp_path / "key")
    first = read_key(tmp_path / "key")
    create_key(tmp_path / "key")
    assert read_key(tmp_path / "key") == first
    assert len(first) == KEY_BYTES
    assert (tmp_path / "key").stat().st_mode & 0o077 == 0
    assert [path.name for path in tmp_path.iterdir()] == ["key"]
