"""`pate`, also as `python -m pate`: loads the command line, which takes a moment, and may be interrupted meanwhile."""

from __future__ import annotations

import os
import signal
from types import FrameType

_LINE = b"interrupted; nothing was begun\n"


def main() -> None:
    """Run a command and end. Ctrl-C is answered by one line and status 130, also while modules are loaded."""
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, _end)
    from pate import cli

    if ours:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        cli.main()
    finally:
        if ours:
            signal.signal(signal.SIGINT, _end_quietly)


def _end(number: int, _: FrameType | None) -> None:
    os.write(2, _LINE)
    os._exit(128 + number)


def _end_quietly(number: int, _: FrameType | None) -> None:
    """What there was to say is said, and what is left are the libraries' own ends."""
    os._exit(128 + number)


if __name__ == "__main__":
    main()
