"""A cluster whose head is gone: told in one line, before Ray ends this process with words of its own.

Ray looks for a head that does not answer for `RAY_gcs_rpc_server_reconnect_timeout_s` (60), since one that keeps its
state in Redis may come back, and then ends the process from within, whatever it is doing.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from pate.cluster.interrupts import interrupt_quietly
from pate.errors import RunError

_SECONDS_BETWEEN_LOOKS = 2.0
_SECONDS_FOR_AN_ANSWER = 5.0
_RAYS_PATIENCE = "RAY_gcs_rpc_server_reconnect_timeout_s"
_SECONDS_TO_LEAVE = 30.0  # before Ray's own end: without a head, leaving Ray alone took it 14


@contextmanager
def raise_on_head_loss(address: str, head: tuple[str, int]) -> Iterator[None]:
    """Within, loss of the head of the cluster at `address`, which listens at `head`, ends in RunError.

    So does what fails meanwhile because of it. In the main thread the block is interrupted, by the signal that
    `interruptible` takes; where a call of Ray's does not heed it, the process ends with status 2 after the same words.
    In another thread the error comes when something fails.
    """
    lost, over = threading.Event(), threading.Event()
    if threading.current_thread() is threading.main_thread():
        watcher = threading.Thread(target=_watch, args=(address, head, lost, over), name="pate: the head", daemon=True)
        watcher.start()
    try:
        yield
    except BaseException as error:
        over.set()
        if lost.is_set() or (isinstance(error, Exception) and not answers(*head)):
            raise _gone(address) from None
        raise
    finally:
        over.set()


def answers(host: str, port: int, timeout: float = _SECONDS_FOR_AN_ANSWER) -> bool:
    """Whether something listens there."""
    try:
        socket.create_connection((host, port), timeout=timeout).close()
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
        if answers(*head):
            heard = time.monotonic()
        elif time.monotonic() - heard > patience:
            lost.set()
            interrupt_quietly()
            if not over.wait(_SECONDS_TO_LEAVE / 2):
                said = _gone(address).worded(lambda name, value: "--resume" if name == "resume" else str(value))
                print(f"pate: error: {said}", file=sys.stderr, flush=True)
                os._exit(2)
            return
