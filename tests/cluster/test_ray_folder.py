"""The folder of a local Ray without Ray: who can look in, and who removes it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from pate.cluster._session import private_folder, ray_processes

_OWNER = """import subprocess, sys, time
from pathlib import Path
from pate.cluster._session import private_folder, ray_processes
with private_folder(Path(sys.argv[1])) as folder:
    ray_processes(folder).mkdir(mode=0o777)
    (ray_processes(folder) / "spilled").write_bytes(b"private")
    with open(ray_processes(folder) / "log", "w") as log:
        writer = subprocess.Popen(["sleep", "600"], stdout=log, start_new_session=True)
    print(folder, writer.pid, flush=True)
    sys.stdin.read()
"""


def owner(place: Path) -> tuple[subprocess.Popen[str], Path, int]:
    """A process that owns a folder in `place`, the folder, and a process that writes into it."""
    command = [sys.executable, "-c", _OWNER, str(place)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    folder, writer = process.stdout.readline().split()
    return process, Path(folder), int(writer)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_nobody_else_may_enter_and_nothing_is_left(tmp_path: Path) -> None:
    with private_folder(tmp_path) as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        assert ray_processes(folder).parent == folder
        (folder / "file").touch()
    assert list(tmp_path.iterdir()) == []


def test_an_owner_that_ends_takes_its_writers_along(tmp_path: Path) -> None:
    process, folder, writer = owner(tmp_path)
    assert alive(writer)
    process.communicate(timeout=30)
    assert not folder.exists()
    assert not alive(writer)


def test_what_a_killed_owner_left_goes_with_the_next_start(tmp_path: Path) -> None:
    living, kept, _ = owner(tmp_path)
    killed, left, writer = owner(tmp_path)
    killed.kill()
    killed.communicate(timeout=30)
    assert left.exists()
    with private_folder(tmp_path):
        assert not left.exists()
        assert not alive(writer)
        assert (ray_processes(kept) / "spilled").exists()
    living.communicate(timeout=30)
    assert list(tmp_path.iterdir()) == []


def test_others_things_are_left_alone(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").touch()
    place = tmp_path / "place"
    place.mkdir()
    (place / "pate-local-link").symlink_to(elsewhere)
    (place / "pate-local-file").touch()
    if os.getuid() == 0:
        (place / "pate-local-theirs").mkdir()
        os.chown(place / "pate-local-theirs", 65534, 65534)
    before = set(place.iterdir())
    with private_folder(place):
        pass
    assert set(place.iterdir()) == before
    assert (elsewhere / "file").exists()


def test_many_that_start_at_once_do_not_take_each_others_folder(tmp_path: Path) -> None:
    """Each new owner looks for abandoned folders while others are being made."""
    code = """import sys, time
from pathlib import Path
from pate.cluster._session import private_folder
until = time.monotonic() + 1.5
while time.monotonic() < until:
    with private_folder(Path(sys.argv[1])) as folder:
        (folder / "file").touch()
        time.sleep(0.002)
        assert (folder / "file").exists()
"""
    command = [sys.executable, "-c", code, str(tmp_path)]
    started = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    for process in started:
        _, error = process.communicate(timeout=60)
        assert process.returncode == 0, error
    time.sleep(0.1)
    assert list(tmp_path.iterdir()) == []
