"""A local Ray, looked at from outside while it runs: who can read it, who can reach it, and what it leaves."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support import REPOSITORY
from support.processes import pids_of

_NOBODY = 65534
_CANARY = "canary of a private record"
_SESSION = """import json, os, sys, time
import ray  # first: it reads its settings now
import numpy as np
from pate.config import RaySettings
from pate.cluster._session import ray_session

class Worker:
    def speak(self, text):
        print(text, flush=True)
        return os.nice(0)

with ray_session(None, RaySettings(workers=1)):
    worker = ray.remote(Worker).remote()
    niceness = ray.get(worker.speak.remote(sys.argv[1]))
    kept = [ray.put(np.full(30_000_000, i, dtype=np.uint8)) for i in range(8)]
    token = os.environ.get("RAY_AUTH_TOKEN_PATH")
    address = ray.get_runtime_context().gcs_address
    cpus = ray.cluster_resources()["CPU"]
    print(json.dumps({"niceness": niceness, "token": token, "address": address, "cpus": cpus}), flush=True)
    sys.stdin.readline()
with ray_session(None, RaySettings(workers=1)):  # a second one, of the same process
    again = os.environ.get("RAY_AUTH_TOKEN_PATH")
    print(json.dumps({"token": again, "text": open(again).read()}), flush=True)
print(json.dumps({name: value for name, value in os.environ.items() if name.startswith("RAY_AUTH")}))
"""


@dataclass(frozen=True)
class Session:
    """A process with a local Ray in it, and what it said at first."""

    process: subprocess.Popen[str]
    home: Path
    place: Path
    said: dict[str, Any]

    def with_token(self) -> dict[str, str]:
        return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": self.said["token"]}

    def files(self) -> list[Path]:
        return [self.place, *self.place.rglob("*")]


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """It spills: its object store is smaller than what it holds. The names of sockets must be short."""
    home = tmp_path_factory.mktemp("home")
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as place:
        os.chmod(place, 0o777)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        environment |= {"HOME": str(home), "TMPDIR": place, "PYTHONPATH": str(REPOSITORY)}
        environment |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES": "90000000"}
        process = subprocess.Popen(
            [sys.executable, "-c", _SESSION, _CANARY],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )
        try:
            assert process.stdout is not None
            yield Session(process, home, Path(place), json.loads(process.stdout.readline()))
        finally:
            process.kill()
            process.wait()


def listening(pids: list[int]) -> dict[str, str]:
    """Addresses, as the kernel writes them, at which the processes listen, by inode."""
    sockets = set()
    for pid in pids:
        for path in Path(f"/proc/{pid}/fd").iterdir():
            try:
                sockets.add(os.readlink(path))
            except FileNotFoundError:
                continue
    found = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                found[fields[9]] = fields[1].partition(":")[0]
    return found


def test_another_user_can_list_read_and_rename_nothing(session: Session) -> None:
    deadline = time.monotonic() + 30
    while not any("spilled" in str(path) and path.is_file() for path in session.files()):
        assert time.monotonic() < deadline, "nothing was spilled"
        time.sleep(0.2)
    files = session.files()
    assert any(_CANARY in path.read_text() for path in files if path.suffix == ".out")
    tops = list(session.place.iterdir())
    assert tops
    for top in tops:
        assert top.stat().st_mode & 0o777 == 0o700
        assert top.stat().st_uid == os.getuid()
    if os.getuid() != 0:
        pytest.skip("only root can look as another user; the mode of the folder above it all is right")
    script = 'while IFS= read -r path; do ls -A "$path"; cat "$path"; : >> "$path"; mv "$path/token" "$path/x"; done'
    paths = "\n".join(str(path) for path in files if path != session.place)
    looked = subprocess.run(
        ["/bin/sh", "-c", script], input=paths, capture_output=True, text=True, user=_NOBODY, group=_NOBODY
    )
    assert looked.stdout == ""
    assert {*files} <= {*session.files()} | {path for path in files if path.name.startswith("tmp")}


def test_the_token_is_its_own_and_nobody_elses(session: Session) -> None:
    token = Path(session.said["token"])
    assert token.stat().st_mode & 0o777 == 0o600
    assert len(token.read_text()) == 64
    assert not (session.home / ".ray").exists()
    asks = "import sys, ray._raylet as r; r.GcsClient(sys.argv[1]).internal_kv_keys(b'', b'session', timeout=20)"
    for settings, allowed in (({"RAY_AUTH_MODE": "disabled"}, False), (session.with_token(), True)):
        asked = subprocess.run(
            [sys.executable, "-c", asks, session.said["address"]],
            env=os.environ | {"HOME": str(session.home)} | settings,
            capture_output=True,
            text=True,
            timeout=90,
        )
        assert (asked.returncode == 0) == allowed, asked.stderr
        assert allowed or "token" in asked.stderr


def test_it_listens_on_this_machine_only(session: Session) -> None:
    addresses = listening(pids_of(session.process.pid))
    assert len(addresses) >= 5  # the control store, the node, its agents, workers and the driver
    loopback = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
    assert set(addresses.values()) <= loopback


def test_only_needed_processes_run(session: Session) -> None:
    """Nobody asks an autoscaler, a reader of logs or a dashboard here, and they take as long to start as the rest."""
    commands = b"".join(Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids_of(session.process.pid))
    assert b"gcs_server" in commands
    assert not re.findall(rb"[^\0]*monitor\.py|[^\0]*dashboard\.py", commands)


def test_it_has_the_cpus_that_the_config_gives_and_workers_as_urgent_as_other_work(session: Session) -> None:
    assert session.said["cpus"] == 1
    assert session.said["niceness"] == os.nice(0)  # that of whoever started it


def test_it_leaves_nothing(session: Session) -> None:
    """Last in this file: it ends the session, and a second one follows in the same process."""
    out, _ = session.process.communicate("go on\n", timeout=120)
    second, environment = (json.loads(line) for line in out.splitlines())
    assert second["token"] != session.said["token"]
    assert len(second["text"]) == 64
    assert environment == {}
    assert session.process.returncode == 0
    assert pids_of(session.process.pid) == []
    assert list(session.place.iterdir()) == []
    assert not (session.home / ".ray").exists()
