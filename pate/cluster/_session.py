"""Starting, joining and leaving Ray: one place for all, and errors of one line, also where a head is gone.

Ray opens its own directory, and what it makes in there (sockets, logs, spilled objects), to every user of the machine.
So the directory of a local Ray lies below a private one, which is removed when the process that made it ends. The owner
holds a lock on it for as long as it lives; folders whose owner was killed are removed by the next one.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import secrets
import shutil
import signal
import socket
import ssl
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from pate.cluster._interrupts import held_back, interrupt_quietly, interruptible
from pate.config import RaySettings
from pate.errors import ConfigError, RunError, first_line
from pate.networks._process import usable_cpus

_NAMESPACE = "pate"
_SECONDS_TO_ANSWER = 5.0
_TLS_RECORDS = (b"\x15\x03", b"\x16\x03")  # how an alert and a handshake begin, in every version in use
_OTHER_VERSIONS = re.compile(r"Ray: (\S+)\s+Python: (\S+)")  # in Ray's complaint, first the cluster's, then ours
_SECONDS_BETWEEN_LOOKS = 2.0
_RAYS_PATIENCE = "RAY_gcs_rpc_server_reconnect_timeout_s"
_SECONDS_TO_LEAVE = 30.0  # before Ray's own end: without a head, leaving Ray alone took it 14
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


def check_cluster(backend: str, address: str | None, settings: RaySettings) -> None:
    """Raise PateError where teachers cannot be trained as the config's `backend` says; Ray is not started."""
    if backend == "ray":
        check_address(address)
        check_workers(address, settings)
    elif address is not None:
        raise ConfigError("{address}: backend: local trains in this process; leave out one of the two", address=address)


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


def started_here() -> bool:
    """Whether Ray was started by this process: no node will ever join it."""
    return bool(_own)


def use_token() -> None:
    """Send the cluster's token where there is one; to be called before Ray is first imported."""
    if "RAY_AUTH_TOKEN_PATH" in os.environ or (Path.home() / ".ray" / "auth_token").exists():
        os.environ.setdefault("RAY_AUTH_MODE", "token")


def check_address(address: str | None) -> None:
    """Raise RunError where there is an address, here or in $RAY_ADDRESS, and nobody can join a cluster there.

    Nothing listens, or one side encrypts and the other does not: Ray itself would try for minutes.
    """
    address = address or os.environ.get("RAY_ADDRESS")
    if not address:
        return
    if address.startswith(("http://", "https://")):
        text = "{address}: is a jobs address; use `pate submit`, or the head's own HOST:6379"
        raise RunError(text, address=address)
    place = _host_and_port(address)
    if place is None:
        return
    try:
        theirs = _uses_tls(*place)
    except OSError as error:
        text = f"{{address}}: cannot join that Ray cluster ({error.strerror or error})"
        raise RunError(text, address=address) from None
    ours = os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true")
    if theirs is None or theirs == ours:
        return
    if theirs:
        text = "the cluster encrypts with TLS, and this machine does not: it needs a certificate (cluster/tls.sh node) "
        text += "and RAY_USE_TLS=1 (source cluster/env.sh)"
    else:
        text = "this machine encrypts with TLS (RAY_USE_TLS), and the cluster does not: start every node with "
        text += "cluster/env.sh sourced or, where all nodes are one machine, unset RAY_USE_TLS here"
    raise RunError(f"{{address}}: {text}", address=address)


def joins(address: str | None) -> bool:
    """Whether a session at `address`, or $RAY_ADDRESS, joins a cluster rather than starts a Ray of its own."""
    return bool(address or os.environ.get("RAY_ADDRESS"))


def head(address: str) -> tuple[str, int]:
    """Where the head of the cluster listens that was joined."""
    import ray

    place = _host_and_port(address if address.startswith("ray://") else ray.get_runtime_context().gcs_address)
    assert place is not None
    return place


def _host_and_port(address: str) -> tuple[str, int] | None:
    """None where an address is a word, like "auto"."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    return (host.strip("[]"), int(port)) if host and port.isdigit() else None


def _uses_tls(host: str, port: int) -> bool | None:
    """Whether who listens there answers TLS's first words in TLS; None if it says nothing for five seconds.

    OSError where nobody listens.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is said, so nobody has to be trusted
    context.set_alpn_protocols(["h2"])
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing).do_handshake()
    with socket.create_connection((host, port), timeout=_SECONDS_TO_ANSWER) as connection:
        try:
            connection.sendall(outgoing.read())
            return connection.recv(2) in _TLS_RECORDS
        except TimeoutError:
            return None
        except OSError:  # hung up on us
            return False


def join(address: str, to_undo: ExitStack) -> None:
    """Join the cluster at `address`, until `to_undo` is closed."""
    check_address(address)
    use_token()
    import ray

    to_undo.callback(ray.shutdown)
    try:
        with held_back():
            ray.init(address=address, namespace=_NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        if len(found := _OTHER_VERSIONS.findall(str(error))) == 2:
            (their_ray, their_python), (our_ray, our_python) = found
            text = (
                f"{{address}}: cannot join that Ray cluster: this machine has Ray {our_ray} and Python {our_python}, "
                f"the cluster Ray {their_ray} and Python {their_python}; install the cluster's versions here"
            )
            raise RunError(text, address=address) from None
        lines = str(error).strip().splitlines() or [type(error).__name__]
        reason = lines[-1 if lines[0].endswith(":") else 0].strip()  # the first may only announce the last
        text = f"{{address}}: cannot join that Ray cluster ({reason}); if it takes a token, name its file in "
        raise RunError(text + "RAY_AUTH_TOKEN_PATH", address=address) from None


def check_visible(folder: Path) -> None:
    """Raise RunError where this process is outside the cluster (ray://) and the cluster does not see its folder."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    if not ray.util.client.ray.is_connected():
        return
    head = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    sign = folder / f".seen-{secrets.token_hex(8)}"
    sign.touch()
    try:
        look = ray.remote(num_cpus=0, scheduling_strategy=head)(os.path.exists)
        if not ray.get(look.remote(str(sign))):
            raise RunError(
                f"{folder.parent}: the cluster does not see this run directory, and with ray:// votes and ledger are "
                "worked on there; use `pate submit`, or a folder that both sides share under the same name"
            )
    finally:
        sign.unlink()


@contextmanager
def raise_on_head_loss(address: str, head: tuple[str, int]) -> Iterator[None]:
    """Within, loss of the head of the cluster at `address`, which listens at `head`, ends in RunError.

    So does what fails meanwhile because of it. In the main thread the block is interrupted, by the signal that
    `interruptible` takes; where a call of Ray's does not heed it, the process ends with status 2 after the same words.
    In another thread the error comes when something fails.

    Ray looks for a head that does not answer for `RAY_gcs_rpc_server_reconnect_timeout_s` (60), since one that keeps
    its state in Redis may come back, and then ends the process from within, whatever it is doing. This is earlier.
    """
    lost, over = threading.Event(), threading.Event()
    if threading.current_thread() is threading.main_thread():
        watcher = threading.Thread(target=_watch, args=(address, head, lost, over), name="pate: the head", daemon=True)
        watcher.start()
    try:
        yield
    except BaseException as error:
        over.set()
        if lost.is_set() or (isinstance(error, Exception) and not _answers(*head)):
            raise _gone(address) from None
        raise
    finally:
        over.set()


def _answers(host: str, port: int) -> bool:
    """Whether something listens there."""
    try:
        socket.create_connection((host, port), timeout=_SECONDS_TO_ANSWER).close()
    except OSError:
        return False
    return True


def _gone(address: str) -> RunError:
    text = "{address}: the head of that Ray cluster is gone. What was paid for is kept: once there is a cluster again, "
    return RunError(text + "the same command with {resume} goes on", address=address, resume=True)


def _watch(address: str, head: tuple[str, int], lost: threading.Event, over: threading.Event) -> None:
    patience = max(0.0, float(os.environ.get(_RAYS_PATIENCE, 60)) - _SECONDS_TO_LEAVE)
    heard = time.monotonic()
    while not over.wait(_SECONDS_BETWEEN_LOOKS):
        if _answers(*head):
            heard = time.monotonic()
        elif time.monotonic() - heard > patience:
            lost.set()
            interrupt_quietly()
            if not over.wait(_SECONDS_TO_LEAVE / 2):
                said = _gone(address).worded(lambda name, value: "--resume" if name == "resume" else str(value))
                print(f"pate: error: {said}", file=sys.stderr, flush=True)
                os._exit(2)
            return


def _start_local(settings: RaySettings, to_undo: ExitStack) -> None:
    folder = to_undo.enter_context(private_folder())
    to_undo.enter_context(_settings_below(folder))
    import ray

    to_undo.callback(ray.shutdown)
    cpus = settings.workers.max * settings.cpus_per_worker if settings.workers.max else usable_cpus()
    # Ray waits half a minute for its own processes, too little on a busy machine: so try more than once.
    for attempt in range(_ATTEMPTS_TO_START):
        try:
            with held_back(), _needed_processes_only():
                ray.init(
                    num_cpus=max(1, int(cpus)),
                    include_dashboard=False,
                    namespace=_NAMESPACE,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    _temp_dir=str(ray_processes(folder)),
                )
            break
        except SystemExit:  # how Ray takes a SIGTERM meanwhile, instead of whoever is to take it
            signal.raise_signal(signal.SIGTERM)
            raise
        except Exception as error:
            ray.shutdown()
            end_processes(folder)  # Ray forgets those of an attempt that failed
            if "timed out during startup" not in str(error) or attempt + 1 == _ATTEMPTS_TO_START:
                raise RunError(
                    f"Ray did not start on this machine ({first_line(error)}); where it is busy or short of memory or "
                    "disk, make room and try again"
                ) from None
    _own.append(None)
    to_undo.callback(_own.clear)


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
    before = {name: os.environ.get(name) for name in ours}
    try:
        _set_environment(ours, token)
        yield
    finally:
        _set_environment(before)


def _set_environment(values: Mapping[str, str | None], token: str | None = None) -> None:
    """Set these variables, or unset them (None), and let Ray read them, which it does only when it is first imported.

    RunError if it does not take the token then.
    """
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    import ray
    from ray import _raylet
    from ray._private import ray_constants as constants

    core: Any = _raylet
    with suppress(AttributeError):  # what a version lacks is found below
        usual = not constants.IS_WINDOWS_OR_OSX
        constants.ENABLE_RAY_CLUSTER = constants.env_bool(constants.ENABLE_RAY_CLUSTERS_ENV_VAR, usual)
        core.Config.initialize("")
        core.AuthenticationTokenLoader.instance().reset_cache()
        loader, by_token = core.AuthenticationTokenLoader.instance(), core.AuthenticationMode.TOKEN
        if token is None or (core.get_authentication_mode() == by_token and loader.get_raw_token() == token):
            return
    if token is not None:
        text = f"Ray {ray.__version__} does not take a token of its own for a local run; install another version"
        raise RunError(text)


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
    if place is None:
        place = Path(tempfile.gettempdir()).resolve()
        place = place if len(os.fsencode(place)) + len(_SOCKET) <= _LONGEST_SOCKET else Path("/tmp")
    place = place.resolve()
    for found in place.glob(f"{_PREFIX}*"):  # those whose owner was killed
        with suppress(OSError):
            about = found.lstat()
            if stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid():
                lock = _locked(found, wait=False)
                if lock is not None:
                    _remove(found)
                    os.close(lock)
    lock = None
    while lock is None:  # another process may remove a new folder as abandoned before it is locked
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))  # mode 0700
        lock = _locked(folder, wait=True)
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


def _locked(folder: Path, wait: bool) -> int | None:
    """A descriptor that holds the folder's lock; None if another process has it, or the folder is gone.

    Who may `wait` has made the folder: it is taken too where files cannot be locked at all.
    """
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        with suppress(OSError) if wait else nullcontext():
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        if os.path.samestat(os.fstat(lock), os.stat(folder, follow_symlinks=False)):
            return lock
    except OSError:
        pass
    os.close(lock)
    return None


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
