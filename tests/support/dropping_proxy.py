"""A proxy before a port on this machine whose connections can be cut, silenced or refused."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType


class DroppingProxy:
    """Passes bytes on to `port`, until it is told otherwise."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._lock = threading.Lock()
        self._pairs: list[socket.socket] = []
        self.accepted = 0
        self._away = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> DroppingProxy:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._listener.close()
        self.cut()

    def cut(self, stay_away: bool = False) -> None:
        """Close every connection; with `stay_away`, new ones too, at once, until `come_back`."""
        with self._lock:
            self._away = stay_away
            for one in self._pairs:
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
                one.close()
            self._pairs.clear()

    def come_back(self) -> None:
        self._away = False

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                with self._lock:
                    self.accepted += 1
                    if self._away:
                        client.close()
                        continue
                    server = socket.create_connection(("127.0.0.1", self._target))
                    self._pairs += [client, server]
                for source, sink in ((client, server), (server, client)):
                    threading.Thread(target=_pass_on, args=(source, sink), daemon=True).start()


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while content := source.recv(1 << 16):
            sink.sendall(content)
    for one in (source, sink):
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
