"""What a job prints, line by line as it prints it, through the jobs port: over a connection that may be lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from pate.errors import RunError

if TYPE_CHECKING:
    from pate.cluster.jobs import Job

SECONDS_OF_SILENCE = 300.0  # how long the head may be away before following ends
_SECONDS_BETWEEN_TRIES = 1.0
_HEARTBEAT = 15.0  # seconds; half as much later a connection without an answer counts as lost


class Unreachable(RunError):
    """The head does not answer; it may do so later."""


class _LostConnection(Exception):
    """The connection ended before the job did."""


class _Head(Protocol):
    def info(self, job: str) -> Job: ...
    def log(self, job: str) -> str: ...


class _Lines:
    """Whole lines out of text that comes in parts, each part perhaps more than once from its beginning."""

    def __init__(self) -> None:
        self.seen = 0  # characters
        self._rest = ""

    def add(self, start: int, text: str) -> list[str]:
        """The lines that are new in `text`, which stands at `start`."""
        new = text[max(0, self.seen - start) :]
        self.seen = max(self.seen, start + len(text))
        *lines, self._rest = (self._rest + new).split("\n")
        return lines

    def last(self) -> list[str]:
        """What is left: a last line that does not end."""
        rest, self._rest = self._rest, ""
        return [rest] if rest else []


def follow(head: _Head, client: Any, job: str, say: Callable[[str], None]) -> Iterator[str]:
    """The lines that a job prints, until it ends; no line twice and none left out, whatever happens to the connection.

    Ray sends a log as it grows, from its beginning each time somebody connects: what is known already is skipped. A
    head that is away is asked again for five minutes, and `say` is told. Where no such connection can be made at all,
    as behind some proxies, the log comes at the end.
    """
    lines, away_since = _Lines(), None
    while True:
        whole, start = True, 0
        try:
            for text in _sent(client, job):
                yield from lines.add(start, text)
                start += len(text)
        except _LostConnection:
            whole = False
        try:
            ended = head.info(job).finished
            rest = head.log(job) if ended and not whole else ""
        except Unreachable:
            if away_since is None:
                away_since = time.monotonic()
                say(f"lost the connection to the head; trying again for {SECONDS_OF_SILENCE / 60:.0f} minutes …")
            elif time.monotonic() - away_since > SECONDS_OF_SILENCE:
                raise
        else:
            if away_since is not None:
                say("connected again")
            away_since = None
            if ended:
                yield from [*lines.add(0, rest), *lines.last()]
                return
        time.sleep(_SECONDS_BETWEEN_TRIES)


def _sent(client: Any, job: str) -> Iterator[str]:
    """What the head sends of a job's log, from its beginning until the job has ended; else _LostConnection.

    Ray's own `tail_job_logs` does the same without a heartbeat: on a connection that died silently it waits for ever.
    """
    import aiohttp

    # What is given is how Ray's client itself connects.
    async def connect() -> tuple[aiohttp.ClientSession, aiohttp.ClientWebSocketResponse]:
        session = aiohttp.ClientSession(cookies=client._cookies, headers=client._headers)
        try:
            url = f"{client._address}/api/jobs/{job}/logs/tail"
            return session, await session.ws_connect(url, heartbeat=_HEARTBEAT, max_msg_size=0, ssl=client._ssl_context)
        except BaseException:
            await session.close()
            raise

    with asyncio.Runner() as runner:
        try:
            session, socket = runner.run(connect())
        except (aiohttp.ClientError, OSError, TimeoutError):
            raise _LostConnection from None
        try:
            while (message := runner.run(socket.receive())).type == aiohttp.WSMsgType.TEXT:
                yield message.data
            if socket.close_code != aiohttp.WSCloseCode.OK:
                raise _LostConnection
        finally:
            runner.run(session.close())
