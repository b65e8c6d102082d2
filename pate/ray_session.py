"""One place that starts, joins and leaves Ray."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pate.config import RaySettings
from pate.errors import RunError, first_line

NAMESPACE = "pate"
_ATTEMPTS_TO_START = 4


@contextmanager
def ray_session(address: str | None, settings: RaySettings) -> Iterator[None]:
    """Join the cluster at `address` (or $RAY_ADDRESS, as in a submitted job), else start a local one and stop it.
    Inside another session of this process, that one is used.

    A local Ray keeps its session, spill and token files in a directory that only the user can read, and which is
    removed afterwards.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    address = address or os.environ.get("RAY_ADDRESS")
    if "ray" in sys.modules and sys.modules["ray"].is_initialized():
        yield
    elif address:
        with _joined(address):
            _make_room(settings)
            yield
    else:
        with _local(settings):
            yield


def use_token() -> None:
    """Show the cluster's token where there is one; to be called before Ray is first imported."""
    if "RAY_AUTH_TOKEN_PATH" in os.environ or (Path.home() / ".ray" / "auth_token").exists():
        os.environ.setdefault("RAY_AUTH_MODE", "token")


@contextmanager
def _joined(address: str) -> Iterator[None]:
    if address.startswith(("http://", "https://")):
        raise RunError(f"--address {address}: is a jobs address; use `pate submit`, or the head's own HOST:6379")
    use_token()
    import ray

    _check_reachable(address)
    try:
        ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        raise RunError(
            f"--address {address}: cannot join that Ray cluster ({first_line(error)}); if it takes a token, name "
            "its file in RAY_AUTH_TOKEN_PATH"
        ) from None
    try:
        yield
    finally:
        ray.shutdown()


def _make_room(settings: RaySettings) -> None:
    """Ask an autoscaling cluster for room for all workers, and wait a while; a run begins with those it gets."""
    if not settings.workers or not settings.wait_for_workers:
        return
    import ray
    from ray.autoscaler.sdk import request_resources

    each = {"CPU": settings.cpus_per_worker, "GPU": settings.gpus_per_worker}
    bundle = {name: amount for name, amount in each.items() if amount}
    request_resources(bundles=[bundle] * settings.workers)
    try:
        deadline = time.monotonic() + settings.wait_for_workers
        while time.monotonic() < deadline:
            there = ray.cluster_resources()
            if all(there.get(name, 0) >= amount * settings.workers for name, amount in bundle.items()):
                break
            time.sleep(1)
    finally:
        request_resources(bundles=[])  # else the cluster would never shrink again


@contextmanager
def _local(settings: RaySettings) -> Iterator[None]:
    folder = Path(tempfile.mkdtemp(prefix="pate-ray-"))  # mode 0700
    before = {name: os.environ.get(name) for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH")}
    if "ray" not in sys.modules:  # Ray reads these when it is first imported, and only then
        token = folder / "token"
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32))
        os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=str(token))
    import ray

    try:
        cpus = settings.workers * settings.cpus_per_worker if settings.workers else os.cpu_count()
        _start(max(1, int(cpus or 1)), folder)
        yield
    finally:
        ray.shutdown()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        shutil.rmtree(folder, ignore_errors=True)


def _start(cpus: int, folder: Path) -> None:
    """Ray waits half a minute for its own processes, too little for a machine that is busy: so more than once."""
    import ray

    for attempt in range(_ATTEMPTS_TO_START):
        try:
            ray.init(
                num_cpus=cpus,
                include_dashboard=False,
                namespace=NAMESPACE,
                log_to_driver=False,
                logging_level=logging.ERROR,
                _temp_dir=str(folder),
            )
            return
        except Exception as error:
            ray.shutdown()
            if "timed out during startup" in str(error) and attempt + 1 < _ATTEMPTS_TO_START:
                continue
            raise RunError(
                f"Ray did not start on this machine ({first_line(error)}); where it is busy or short of memory or "
                "disk, make room and try again"
            ) from None


def _check_reachable(address: str) -> None:
    """Ray waits for minutes where nothing listens; a plain connection tells at once."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return  # "auto", "local" and the like
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except OSError as error:
        raise RunError(f"--address {address}: cannot join that Ray cluster ({error.strerror or error})") from None
