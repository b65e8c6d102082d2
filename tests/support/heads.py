"""A Ray head of its own on loopback, with the port that Prometheus asks; it listens to no other machine."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

from support.processes import pids_of

_HOST = "127.0.0.2"  # Ray would turn 127.0.0.1 into an address that others can reach


@dataclass(frozen=True)
class Head:
    """A head that runs: all its processes are in one session."""

    address: str
    metrics: str
    environment: dict[str, str]
    session: int

    def scraped(self) -> str:
        """What Prometheus would get now."""
        with urlopen(self.metrics, timeout=30) as answer:
            return str(answer.read().decode())

    def kill_gcs(self) -> None:
        """kill -9 of the process that holds the cluster's state."""
        found = [pid for pid in pids_of(self.session) if "gcs_server" in _program(pid)]
        assert len(found) == 1
        os.kill(found[0], signal.SIGKILL)


@contextmanager
def head(cpus: int = 2, **settings: str) -> Iterator[Head]:
    """A head without dashboard and token; `settings` are in its environment and in that of its clients."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"} | settings
    gcs, agent, client, metrics = _free_ports(4)
    command = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", f"--node-ip-address={_HOST}"]
    command += [f"--port={gcs}", f"--num-cpus={cpus}", "--include-dashboard=false", f"--metrics-export-port={metrics}"]
    command += [f"--dashboard-agent-listen-port={agent}", f"--ray-client-server-port={client}"]
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp", ignore_cleanup_errors=True) as folder:  # a short path
        log = Path(folder) / "log"
        with log.open("w") as stream:
            process = subprocess.Popen(
                [*command, f"--temp-dir={folder}/ray"],
                stdout=stream,
                stderr=stream,
                env=environment,
                start_new_session=True,
            )
        try:
            deadline = time.monotonic() + 180
            while "Ray runtime started" not in log.read_text():
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.05)
            yield Head(f"{_HOST}:{gcs}", f"http://{_HOST}:{metrics}/metrics", environment, process.pid)
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=30)
            for pid in pids_of(process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()


def _free_ports(number: int) -> list[int]:
    sockets = [socket.socket() for _ in range(number)]
    for one in sockets:
        one.bind((_HOST, 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def _program(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode()
    except FileNotFoundError:
        return ""
