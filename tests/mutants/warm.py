"""A process that has imported what the tests need of others (its arguments), and forks for each run of pytest.

Nothing of the project is imported before the fork, so every run sees the project as it is then. It reads a run per line
of standard input, {"cwd": …, "arguments": […], "limit": seconds}, and answers {"status": … or null, "said": …}.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from contextlib import suppress
from importlib import import_module


def main() -> None:
    sys.dont_write_bytecode = True
    for name in sys.argv[1:]:
        with suppress(ImportError):
            import_module(name)
    for line in sys.stdin:
        asked = json.loads(line)
        status, said = run(asked["cwd"], asked["arguments"], asked["limit"])
        print(json.dumps({"status": status, "said": said}), flush=True)


def run(cwd: str, arguments: list[str], limit: float) -> tuple[int | None, str]:
    """pytest's status in the folder, None if it did not end in time, and all that it said."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        _be_pytest(cwd, arguments, writing)
    os.close(writing)
    until, said = time.monotonic() + limit, b""
    while True:
        left = until - time.monotonic()
        if left <= 0:
            os.killpg(child, signal.SIGKILL)
            break
        if select.select([reading], [], [], left)[0]:
            piece = os.read(reading, 1 << 16)
            if not piece:
                break
            said += piece
    os.close(reading)
    _, how = os.waitpid(child, 0)
    return (os.waitstatus_to_exitcode(how) if left > 0 else None), said.decode(errors="replace")


def _be_pytest(cwd: str, arguments: list[str], writing: int) -> None:
    """The child: never returns."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    for stream in (1, 2):
        os.dup2(writing, stream)
    os.close(writing)
    os.chdir(cwd)
    os.environ["PYTHONPATH"] = cwd
    sys.path[0] = cwd
    status = 3
    try:
        import pytest

        status = int(pytest.main(arguments))
        sys.stdout.flush()
    finally:
        os._exit(status)


if __name__ == "__main__":
    main()
