"""One place that starts, joins and leaves Ray, and the folder of a local Ray: nobody else can look into it.

Ray opens its own directory, and what it makes in there (sockets, logs, spilled objects), to every user of the machine.
So that directory lies below a private one, which is removed when the process that made it ends. The owner holds a lock
on it for as long as it lives; folders whose owner was killed are removed by the next one.
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import shutil
import signal
import stat
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from pate.cluster.connect import NAMESPACE, head, join, joins, raise_on_head_loss
from pate.cluster.interrupts import held_back, interruptible
from pate.config import RaySettings
from pate.errors import ConfigError, RunError, first_line
from pate.networks.threads import usable_cpus

_ATTEMPTS_TO_START = 4
_NICENESS = "RAY_worker_niceness"
_PREFIX = "pate-local-"
_RAYS_OWN = "r"  # short: see below
_LONGEST_SOCKET = 107 if sys.platform == "linux" else 103
_SOCKET = f"/{_PREFIX}12345678/{_RAYS_OWN}/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store"
_SECONDS_TO_DIE = 5.0
_ATTEMPTS_TO_REMOVE = 5
_own: list[None] = []  # something, while a Ray of our own runs


@contextmanager
def ray_session(address: str | None, settings: RaySettings) -> Iterator[None]:
    """Join the cluster at `address` (or $RAY_ADDRESS, as in a submitted job), else start a local one and stop it.
    Inside another session of this process, that one is used.

    A local Ray is this user's alone: its session, spill, log and token files lie below a directory that nobody else
    can read and that is removed afterwards, its ports listen on this machine only, and it takes a token of its own.
    A signal to end raises KeyboardInterrupt within, and the loss of a cluster's head RunError.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    address = address or os.environ.get("RAY_ADDRESS")
    if "ray" in sys.modules and sys.modules["ray"].is_initialized():
        yield
        return
    to_undo = ExitStack()
    with interruptible():
        try:
            if address:
                join(address, to_undo)
                with raise_on_head_loss(address, head(address)):
                    yield
            else:
                _start_local(settings, to_undo)
                yield
        finally:
            with held_back():
                to_undo.close()


@contextmanager
def joined(address: str | None, settings: RaySettings) -> Iterator[None]:
    """The cluster at `address` (or $RAY_ADDRESS) joined for the whole block, where there is an address: a run is seen
    from outside to its end, and its networks find the cluster's GPUs.

    Else nothing: a local Ray is for teachers alone, since it has no GPU that this process lacks.
    """
    with ray_session(address, settings) if joins(address) else nullcontext():
        yield


def check_workers(address: str | None, settings: RaySettings) -> None:
    """Raise ConfigError where a local Ray is to have more CPUs or GPUs than this machine: it would wait for ever.

    A cluster that is joined may grow, so nothing is said about one.
    """
    if joins(address) or settings.workers.max is None:
        return
    here, needed = usable_cpus(), settings.workers.max * settings.cpus_per_worker
    if needed > here:
        most = max(1, int(here / settings.cpus_per_worker))
        text = f"ray.workers = {settings.workers.max}: they need {needed:g} CPUs, and this machine has {here}; "
        raise ConfigError(text + f"write {most} or fewer, leave it out for all there are, or join a cluster")


def _start_local(settings: RaySettings, to_undo: ExitStack) -> None:
    folder = to_undo.enter_context(private_folder())
    to_undo.enter_context(_settings_below(folder))
    import ray

    to_undo.callback(ray.shutdown)
    cpus = settings.workers.max * settings.cpus_per_worker if settings.workers.max else usable_cpus()
    _start(max(1, int(cpus)), folder)
    _own.append(None)
    to_undo.callback(_own.clear)


def started_here() -> bool:
    """Whether Ray was started by this process: no node will ever join it."""
    return bool(_own)


@contextmanager
def _settings_below(folder: Path) -> Iterator[None]:
    """What a local Ray is told through the environment, also where the calling program has already imported Ray."""
    token = secrets.token_hex(32)
    path = folder / "token"
    path.touch(mode=0o600)
    path.write_text(token)
    ours = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": None,  # it would go before the file
        "RAY_AUTH_TOKEN_PATH": str(path),
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # on Linux too: no other node can join, so all listen on loopback
        _NICENESS: os.environ.get(_NICENESS, "0"),  # at Ray's own 15, workers starve beside anything else
    }
    with _environment(ours):
        _read_settings_again()
        _check_token(token)
        yield
    _read_settings_again()


@contextmanager
def _environment(values: Mapping[str, str | None]) -> Iterator[None]:
    """Set these variables for a while, or unset them (None)."""
    before = {name: os.environ.get(name) for name in values}
    _set_environment(values)
    try:
        yield
    finally:
        _set_environment(before)


def _set_environment(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _read_settings_again() -> None:
    """Ray reads its environment when it is first imported, and only then."""
    from ray._private import ray_constants

    with suppress(AttributeError):  # what a version lacks, `_check_token` finds
        ray_constants.ENABLE_RAY_CLUSTER = ray_constants.env_bool(
            ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR, not ray_constants.IS_WINDOWS_OR_OSX
        )
        _core().Config.initialize("")
        _core().AuthenticationTokenLoader.instance().reset_cache()


def _check_token(token: str) -> None:
    import ray

    with suppress(AttributeError):
        mode, loader = _core().get_authentication_mode(), _core().AuthenticationTokenLoader.instance()
        if mode == _core().AuthenticationMode.TOKEN and loader.get_raw_token() == token:
            return
    raise RunError(f"Ray {ray.__version__} does not take a token of its own for a local run; install another version")


def _core() -> Any:
    """The compiled part of Ray."""
    from ray import _raylet

    return _raylet


def _start(cpus: int, folder: Path) -> None:
    """Start Ray. It waits half a minute for its own processes, too little on a busy machine: so try more than once."""
    import ray

    for attempt in range(_ATTEMPTS_TO_START):
        try:
            with held_back(), _needed_processes_only():
                ray.init(
                    num_cpus=cpus,
                    include_dashboard=False,
                    namespace=NAMESPACE,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    _temp_dir=str(ray_processes(folder)),
                )
            return
        except SystemExit:  # how Ray takes a SIGTERM meanwhile, instead of whoever is to take it
            signal.raise_signal(signal.SIGTERM)
            raise
        except Exception as error:
            ray.shutdown()
            end_processes(folder)  # Ray forgets those of an attempt that failed
            if "timed out during startup" in str(error) and attempt + 1 < _ATTEMPTS_TO_START:
                continue
            raise RunError(
                f"Ray did not start on this machine ({first_line(error)}); where it is busy or short of memory or "
                "disk, make room and try again"
            ) from None


@contextmanager
def _needed_processes_only() -> Iterator[None]:
    """Without the autoscaler, the reader of logs and the dashboard's server: nobody asks them anything in a local Ray,
    and it starts with two thirds of the work. Ray has no setting for that; where it is built otherwise, all start."""
    from ray._private.node import Node

    needless = ("start_monitor", "start_log_monitor", "start_api_server")
    before = {name: getattr(Node, name) for name in needless if hasattr(Node, name)}
    try:
        for name in before:
            setattr(Node, name, lambda *_, **__: None)
        yield
    finally:
        for name, method in before.items():
            setattr(Node, name, method)


@contextmanager
def private_folder(place: Path | None = None) -> Iterator[Path]:
    """A folder of mode 0700 that is removed at the end, with the processes that still write into it.

    `place` is where it is made: else the usual directory for temporary files, where names of sockets fit.
    """
    place = place.resolve() if place else _usual_place()
    _remove_abandoned(place)
    folder, lock = _new(place)
    try:
        yield folder
    finally:
        _remove(folder)
        os.close(lock)


def ray_processes(folder: Path) -> Path:
    """The directory below `folder` that Ray may open to everybody."""
    return folder / _RAYS_OWN


def end_processes(folder: Path) -> None:
    """Kill the processes whose output goes to a file below `folder`: what Ray has started and has not ended itself."""
    deadline = time.monotonic() + _SECONDS_TO_DIE
    while (left := list(_writers(folder))) and time.monotonic() < deadline:
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _usual_place() -> Path:
    usual = Path(tempfile.gettempdir()).resolve()
    return usual if len(os.fsencode(usual)) + len(_SOCKET) <= _LONGEST_SOCKET else Path("/tmp")


def _new(place: Path) -> tuple[Path, int]:
    """A new folder and its lock. A folder that another process removed as abandoned before the lock is given up."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))  # mode 0700
        lock = _locked(folder, wait=True)
        if lock is not None:
            return folder, lock


def _locked(folder: Path, wait: bool) -> int | None:
    """A descriptor that holds the folder's lock; None if another process has it, or the folder is gone."""
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        _flock(lock, wait)
        if os.path.samestat(os.fstat(lock), os.stat(folder, follow_symlinks=False)):
            return lock
    except OSError:
        pass
    os.close(lock)
    return None


def _flock(lock: int, wait: bool) -> None:
    """Lock. Without `wait`, raise OSError where another process has it, or where files cannot be locked at all."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        if not wait:
            raise


def _remove_abandoned(place: Path) -> None:
    for folder in place.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            found = folder.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
                continue
            lock = _locked(folder, wait=False)
            if lock is not None:
                _remove(folder)
                os.close(lock)


def _remove(folder: Path) -> None:
    """Remove a folder; first end the processes that could make new files in it."""
    for _ in range(_ATTEMPTS_TO_REMOVE):
        end_processes(folder)
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(0.1)


def _writers(folder: Path) -> Iterator[int]:
    """Processes whose standard output or error is a file below `folder`, where the system tells (Linux)."""
    below = f"{folder}/"
    for process in Path("/proc").glob("[0-9]*"):
        for stream in ("1", "2"):
            with suppress(OSError):
                if int(process.name) != os.getpid() and os.readlink(process / "fd" / stream).startswith(below):
                    yield int(process.name)
                    break
