"""Joining a Ray cluster that is there already: why it cannot be joined, and that its head is gone, in one line each."""

from __future__ import annotations

import logging
import os
import re
import secrets
import socket
import ssl
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from pate.cluster._interrupts import held_back, interrupt_quietly
from pate.errors import RunError

NAMESPACE = "pate"
_SECONDS_TO_ANSWER = 5.0
_TLS_RECORDS = (b"\x15\x03", b"\x16\x03")  # how an alert and a handshake begin, in every version in use
_OTHER_VERSIONS = re.compile(r"Ray: (\S+)\s+Python: (\S+)")  # in Ray's complaint, first the cluster's, then ours
_SECONDS_BETWEEN_LOOKS = 2.0
_RAYS_PATIENCE = "RAY_gcs_rpc_server_reconnect_timeout_s"
_SECONDS_TO_LEAVE = 30.0  # before Ray's own end: without a head, leaving Ray alone took it 14


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
            ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
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
