"""Stores: exclusive creation, one line for every failure, nothing private that others can read."""

from __future__ import annotations

import os
import secrets
import stat
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.stored_ledgers import machine, pay

from pate.config import load_config
from pate.errors import RunError
from pate.runs.run import Run
from pate.storage import Storage, _ObjectStorage, check_exclusive, open_storage, pull


@pytest.fixture(scope="module")
def s3_server() -> Iterator[str]:
    """A small S3 in this process; skips where it is not installed (pip install s3fs 'moto[server]')."""
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    server = pytest.importorskip("moto.server", reason="moto[server] is not installed")
    threaded = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    threaded.start()
    host, port = threaded.get_host_and_port()
    yield f"http://{host}:{port}"
    threaded.stop()


def in_memory() -> Storage:
    """Objects through fsspec as in a real store, but in this process: no place for a run."""
    return _ObjectStorage(f"memory://{secrets.token_hex(4)}/run")


@pytest.fixture(params=["file", "objects", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Storage:
    if request.param == "file":
        return open_storage(f"file://{tmp_path}/run")
    if request.param == "objects":
        return in_memory()
    endpoint = request.getfixturevalue("s3_server")
    for name, value in {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    import s3fs

    bucket = f"bucket-{secrets.token_hex(4)}"
    s3fs.S3FileSystem(endpoint_url=endpoint).mkdir(bucket)
    return open_storage(f"s3://{bucket}/run")


def test_objects_come_back_as_they_were(storage: Storage, tmp_path: Path) -> None:
    assert storage.names() == []
    assert storage.read("private/x") is None
    storage.write({"private/deep/er/x": b"1", "labels.npz": b"2", "private/ledger/1": b"3"})
    storage.write({"labels.npz": b"22"})
    assert storage.names() == ["labels.npz", "private/deep/er/x", "private/ledger/1"]
    assert storage.names("private/ledger") == ["private/ledger/1"]
    assert dict(storage.read_all(storage.names())) == {
        "labels.npz": b"22",
        "private/deep/er/x": b"1",
        "private/ledger/1": b"3",
    }
    pull(storage, tmp_path / "copy", lambda name: not name.startswith("private/ledger"))
    assert (tmp_path / "copy" / "private" / "deep" / "er" / "x").read_bytes() == b"1"
    assert not (tmp_path / "copy" / "private" / "ledger").exists()
    storage.remove("labels.npz")
    assert storage.read("labels.npz") is None


def test_of_many_that_create_one_succeeds(storage: Storage) -> None:
    check_exclusive(storage)
    assert storage.create("private/once", b"a")
    assert storage.create("private/once", b"a")  # an answer that was lost, and the call repeated
    assert not storage.create("private/once", b"b")
    assert storage.read("private/once") == b"a"
    if storage.url.startswith("memory"):  # looks and then makes: between threads that is no store
        return
    start = threading.Barrier(6)

    def race(number: int) -> bool:
        start.wait()
        return storage.create("private/raced", b"%d" % number)

    with ThreadPoolExecutor(6) as threads:
        won = list(threads.map(race, range(6)))
    assert won.count(True) == 1
    assert storage.read("private/raced") == b"%d" % won.index(True)
    assert storage.names() == ["private/once", "private/raced"]


def test_a_ledger_and_a_run_directory_in_every_store(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = machine(storage, tmp_path / "a")
    assert pay(first, 4, 1, 2) == {1: 4, 2: 4}
    second = machine(storage, tmp_path / "b")
    assert pay(second, 5, 2, 3) == {2: 4, 3: 5}
    with pytest.raises(RunError, match="has taken this run over"):
        pay(first, 6, 4)
    if storage.url.startswith("memory"):
        return
    config = load_config()
    for number, resume in enumerate([False, True]):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / f"machine-{number}"))
        place = storage.url + "-directory"
        with Run.create(place, config, resume) as run:
            assert run.same_as_before("note", "the same")
            (run.path / "ledger.db").write_bytes(b"stays here")
            run.sync()
        assert not run.path.exists()
    stored = open_storage(place)
    assert stored.names() == ["config.yaml", "private/key", "private/note"]
    with pytest.raises(RunError, match="is not empty"), Run.create(place, config, resume=False):
        pass
    with pytest.raises(RunError, match="no run to resume"), Run.create(place + "2", config, resume=True):
        pass


def test_a_store_that_overwrites_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from fsspec.implementations.memory import MemoryFileSystem

    plain = MemoryFileSystem.pipe_file
    monkeypatch.setattr(MemoryFileSystem, "pipe_file", lambda self, path, content, mode: plain(self, path, content))
    with pytest.raises(RunError, match="overwrites objects"):
        check_exclusive(in_memory())


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("ftp://host/run", "cannot create objects exclusively"),
        ("memory://run", "cannot create objects exclusively"),
        ("http://host/run", "use s3://, gs:// or file://"),
        ("file://relative/run", "an absolute path"),
    ],
)
def test_stores_that_cannot_serve_are_refused_in_one_line(url: str, says: str) -> None:
    with pytest.raises(RunError, match=says) as caught:
        open_storage(url)
    assert "\n" not in str(caught.value)


def test_private_files_are_for_their_owner_only(tmp_path: Path) -> None:
    storage = open_storage(f"file://{tmp_path}/run")
    storage.write({"private/teachers/1": b"x", "student/student.json": b"y"})
    storage.create("private/ledger/1", b"z")
    modes = {
        path.relative_to(tmp_path / "run").as_posix(): stat.S_IMODE(path.stat().st_mode)
        for path in (tmp_path / "run").rglob("*")
    }
    assert {mode for name, mode in modes.items() if name.startswith("private")} == {0o700, 0o600}
    assert modes["private"] == 0o700
    assert modes["student/student.json"] == 0o644


@pytest.mark.parametrize("what", ["full", "forbidden"])
def test_a_disk_that_is_full_or_forbidden_gives_one_line(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import errno

    storage = open_storage(f"file://{tmp_path}/run")
    number = errno.ENOSPC if what == "full" else errno.EACCES

    def fails(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("pate.storage.os.fsync", fails)
    for action in (lambda: storage.create("private/x", b"1"), lambda: storage.write({"private/y": b"1"})):
        with pytest.raises(RunError, match=os.strerror(number)):
            action()
    assert storage.names() == []
    assert not list((tmp_path / "run" / "private").iterdir())


def test_names_that_would_leave_the_folder_are_refused(tmp_path: Path) -> None:
    storage = in_memory()
    storage.write({"private/../../../x": b"1"})
    if any(".." in name for name in storage.names()):
        with pytest.raises(RunError, match="not a run directory"):
            pull(storage, tmp_path / "copy", lambda name: not name.startswith("private/ledger"))
    assert not (tmp_path / "x").exists()
