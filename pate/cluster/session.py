"""One place that starts, joins and leaves Ray."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from pate.cluster.connect import NAMESPACE, head, join, joins
from pate.cluster.folder import end_processes, private_folder, ray_processes
from pate.cluster.head_watchdog import raise_on_head_loss
from pate.cluster.interrupts import held_back, interruptible
from pate.config import RaySettings
from pate.errors import ConfigError, RunError, first_line
from pate.networks.threads import usable_cpus

_ATTEMPTS_TO_START = 4
_NICENESS = "RAY_worker_niceness"
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
