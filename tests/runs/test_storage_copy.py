"""The local copy of a run in storage: private, made anew, and brought back in an order that no crash turns round."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pate.config import parse_config
from pate.errors import RunError
from pate.runs import run as runs
from pate.runs.run import Run
from pate.storage import Storage, _FileStorage, open_storage

CONFIG = parse_config(
    {
        "n_teachers": 20,
        "data": {"source": "digits"},
        "teachers": [{"name": "sklearn.svm.SVC"}],
        "mechanism": {"name": "gnmax", "sigma": 5},
        "student": {"name": "supervised"},
    }
)
PUBLISHED = {"config.yaml", "report.json", "labels.npz", "student/student.json", "plots/classes.svg"}
INSIDE = {"private/votes.npz", "private/key", "private/epsilon.json", "ledger.db", "notes.txt", "student/records.csv"}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "pate" / "work"


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_storage(f"file://{tmp_path}/store")


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_who_reads_what_was_published_gets_nothing_else(storage: Storage) -> None:
    storage.write(dict.fromkeys(PUBLISHED | INSIDE, b"x"))
    with Run.load(storage.url, inside=False) as run:
        assert names(run.path) == PUBLISHED
    with Run.load(storage.url) as run:
        assert names(run.path) == PUBLISHED | INSIDE
        assert all(path.stat().st_mode & 0o077 == 0 for path in (run.path, *run.path.rglob("*")))


def test_the_copy_is_private_and_goes(storage: Storage, cache: Path) -> None:
    umask = os.umask(0o022)
    try:
        with Run.create(storage.url, CONFIG) as run:
            assert cache.stat().st_mode & 0o077 == 0
            assert run.path.parent == cache
            copy = run.path
    finally:
        os.umask(umask)
    assert not copy.exists()


def test_what_a_killed_run_left_is_not_mixed_in(storage: Storage) -> None:
    with Run.create(storage.url, CONFIG) as run:
        copy = run.path
    (copy / "private").mkdir(parents=True)
    (copy / "private" / "votes.npz").write_bytes(b"of another ensemble")
    with Run.create(storage.url, CONFIG, resume=True) as run:
        assert run.path == copy
        assert not run.votes_file.exists()


def test_a_name_that_leads_out_of_the_copy_is_refused(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    storage.write({"config.yaml": b"x"})
    monkeypatch.setattr(_FileStorage, "names", lambda self, folder="": ["student/../../outside"])
    monkeypatch.setattr(_FileStorage, "read_all", lambda self, wanted: iter([(name, b"x") for name in wanted]))
    with pytest.raises(RunError, match="holds an object with the name"):
        Run.load(storage.url)


# What is brought back.


class Watched:
    """A store that notes what was written and removed, in order."""

    def __init__(self, storage: Storage) -> None:
        self._storage, self.changes = storage, []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def write(self, contents: Mapping[str, bytes]) -> None:
        self.changes.append(("write", *sorted(contents)))
        self._storage.write(contents)

    def remove(self, name: str) -> None:
        self.changes.append(("remove", name))
        self._storage.remove(name)


def test_removals_come_first_and_signals_last(storage: Storage) -> None:
    with Run.create(storage.url, CONFIG) as run:
        run.replace("votes.npz", "votes")
        run.sync()
        assert storage.read("private/votes.npz") == b"votes"
        run.storage = watched = Watched(storage)
        run.votes_file.unlink()
        run.student_folder.mkdir()
        (run.student_folder / "model.skops").write_text("weights")
        for name in ("labels.npz", "report.json", "ledger.db"):
            (run.path / name).write_text(name)
        run.student_card.write_text("card")
        run.sync()
    assert watched.changes == [
        ("remove", "private/votes.npz"),
        ("write", "labels.npz", "student/model.skops"),
        ("write", "report.json", "student/student.json"),
    ]
    assert storage.read("private/votes.npz") is None


def test_who_did_not_hear_of_a_forgetting_stops(storage: Storage) -> None:
    with Run.create(storage.url, CONFIG) as run:
        storage.write({"private/ensemble.json": b"{}"})
        run.replace("votes.npz", "of the old teachers")
        with pytest.raises(RunError, match="records were forgotten there meanwhile"):
            run.sync()
    assert storage.read("private/votes.npz") is None


def test_one_result_is_released(storage: Storage) -> None:
    with Run.create(storage.url, CONFIG) as run:
        run.release_once(b"a model")
        run.release_once(b"a model")
        with pytest.raises(RunError, match="another pate has released"):
            run.release_once(b"another model")


# Who begins.


def test_a_store_that_overwrites_is_refused_at_once(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    def overwrites(self: _FileStorage, name: str, content: bytes) -> bool:
        self.write({name: content})
        return True

    monkeypatch.setattr(_FileStorage, "create", overwrites)
    with pytest.raises(RunError, match="overwrites objects"), Run.create(storage.url, CONFIG):
        pass


def test_of_two_that_begin_at_once_one_goes_on(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "check_exclusive", lambda storage: storage.create("private/key", b"k" * 32))
    with pytest.raises(RunError, match="another run was begun there this moment"), Run.create(storage.url, CONFIG):
        pass
    assert storage.read("private/key") == b"k" * 32
