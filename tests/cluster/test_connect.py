"""What listens at an address is found out before Ray is asked to join, which would try for minutes."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import grpc
import pytest
from support import REPOSITORY
from support.command_line import TINY, in_process

from pate.cluster import _session as connect
from pate.cluster._session import _uses_tls, check_address
from pate.errors import RunError


@pytest.fixture(scope="module")
def certificates() -> Iterator[Path]:
    """An authority and a node's certificate, as a cluster has them."""
    with tempfile.TemporaryDirectory() as folder:
        for what in ("ca", "node"):
            subprocess.run([str(REPOSITORY / "cluster" / "tls.sh"), what, folder], check=True, timeout=120)
        yield Path(folder)


@contextmanager
def grpc_server(credentials: grpc.ServerCredentials | None) -> Iterator[int]:
    """What a head listens with."""
    server = grpc.server(ThreadPoolExecutor(1))
    if credentials is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    try:
        yield port
    finally:
        server.stop(None)


@contextmanager
def answering(answer: Callable[[socket.socket], object]) -> Iterator[int]:
    """A listener that does with its first connection what it is told."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with suppress(OSError):
                connection, _ = listener.accept()
                with connection:
                    answer(connection)

        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]


def mutual(folder: Path) -> grpc.ServerCredentials:
    """Both sides show a certificate, as Ray wants it."""
    key, own, authority = ((folder / name).read_bytes() for name in ("node.key", "node.crt", "ca.crt"))
    return grpc.ssl_server_credentials([(key, own)], authority, require_client_auth=True)


def test_tls_on_one_side_only_is_one_line(certificates: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with grpc_server(None) as plain, grpc_server(mutual(certificates)) as encrypted:
        assert (_uses_tls("127.0.0.1", plain), _uses_tls("127.0.0.1", encrypted)) == (False, True)
        monkeypatch.delenv("RAY_USE_TLS", raising=False)
        check_address(f"127.0.0.1:{plain}")
        with pytest.raises(RunError, match="the cluster encrypts with TLS, and this machine does not") as told:
            check_address(f"127.0.0.1:{encrypted}")
        assert "cluster/tls.sh" in str(told.value)
        monkeypatch.setenv("RAY_USE_TLS", "1")
        check_address(f"ray://127.0.0.1:{encrypted}")
        with pytest.raises(RunError, match=r"this machine encrypts with TLS \(RAY_USE_TLS\), and the cluster does not"):
            check_address(f"ray://127.0.0.1:{plain}")


def test_who_hangs_up_speaks_no_tls_and_of_the_silent_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "_SECONDS_TO_ANSWER", 60.0)  # of a machine however busy
    with answering(lambda connection: connection.recv(1)) as port:
        assert _uses_tls("127.0.0.1", port) is False
    with answering(lambda connection: connection.sendall(ssl.OPENSSL_VERSION.encode())) as port:
        assert _uses_tls("127.0.0.1", port) is False
    monkeypatch.setattr(connect, "_SECONDS_TO_ANSWER", 0.3)
    over = threading.Event()
    with answering(lambda connection: over.wait(60)) as port:
        assert _uses_tls("127.0.0.1", port) is None
        over.set()


BASE = """{name: base, data: {source: digits}, budget: {epsilon: 5},
baseline: {name: dp_sgd, params: {model: linear, epochs: 1, accountant: rdp}}}"""


@pytest.mark.parametrize(
    ("words", "by"),
    [
        (["run", *TINY], "variable"),
        (["run", *TINY], "option"),
        (["baseline", "base.yaml"], "option"),
        (["reproduce", "digits", "--quick"], "option"),
        (["audit", "runs/one"], "option"),
        (["audit", "runs/one"], "variable"),
    ],
)
def test_the_cluster_that_is_named_is_joined(
    words: list[str], by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By --address or, as where a submitted job runs, by $RAY_ADDRESS; an audit joins one by its option alone."""
    import ray

    def join(address: str, _: object) -> None:
        raise RunError(f"joined {address}")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(connect, "_uses_tls", lambda host, port: None)
    monkeypatch.setattr(connect, "join", join)
    monkeypatch.chdir(tmp_path)
    Path("base.yaml").write_text(BASE)
    if by == "variable":
        monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    ended = in_process(*words, *(["--address", "10.0.0.1:6379"] if by == "option" else []))
    assert ended.returncode == 2
    assert "starting Ray" not in ended.stderr, "joined for the teachers alone, and not for the whole run"
    assert ("joined 10.0.0.1:6379" in ended.stderr) == (words[0] != "audit" or by == "option"), ended.stderr


@pytest.mark.slow
def test_a_real_cluster_with_tls_says_so_to_a_client_without(tmp_path: Path) -> None:
    """Ray itself tries for 200 s."""
    folder = Path(tempfile.mkdtemp(prefix="pate-", dir="/tmp"))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    environment |= {"HOME": str(tmp_path), "PATE_TLS": "1"}
    log = folder / "log"
    with log.open("w") as stream:
        command = [str(REPOSITORY / "cluster" / "one_machine.sh"), str(folder / "ray")]
        process = subprocess.Popen(command, stdout=stream, stderr=stream, env=environment, start_new_session=True)
    try:
        deadline = time.monotonic() + 180
        while "pate run" not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        address = log.read_text().split("--address ")[-1].split()[0]
        environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(folder / "ray" / "auth_token")}
        pate = [sys.executable, "-m", "pate.cli", "doctor", "--address", address]
        shown = subprocess.run(pate, capture_output=True, text=True, timeout=60, env=environment, cwd=REPOSITORY)
        assert shown.returncode == 2
        assert "the cluster encrypts with TLS, and this machine does not" in shown.stderr
        tls = {f"RAY_TLS_{name}": str(folder / "ray" / "tls" / file) for name, file in _FILES.items()}
        shown = subprocess.run(
            pate,
            capture_output=True,
            text=True,
            timeout=300,
            env=environment | tls | {"RAY_USE_TLS": "1"},
            cwd=REPOSITORY,
        )
        assert "TLS: between all nodes" in shown.stdout, shown.stdout + shown.stderr
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)
        shutil.rmtree(folder, ignore_errors=True)


_FILES = {"CA_CERT": "ca.crt", "SERVER_CERT": "node.crt", "SERVER_KEY": "node.key"}
