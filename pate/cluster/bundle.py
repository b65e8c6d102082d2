"""What may leave a run, on its way from a cluster to whoever submitted it.

A run in storage is read from there. One on the head's own disk is offered by a small job, `python -m
pate.cluster.bundle RUN`: it lays an archive, in pieces, below Ray's folder of logs, from where the jobs port sends any
file byte by byte (`/api/v0/logs/file`), and takes it away again when it is stopped. Ray has no other way out: its store
of packages (`/api/packages`) takes files and never gives one back, and a job's log is text that passes through the
memory of three processes whole, and stays in the session.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import shutil
import signal
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from pate.errors import RunError
from pate.runs.files import MAY_LEAVE, OF_A_STUDY, REPORT, RESULTS, RunFiles, may_leave
from pate.storage import open_storage, pull
from pate.storage.files import make_folder

PIECE = 8 * 2**20  # bytes that are fetched at once, and again if the connection is lost
_SECONDS_OFFERED = 3600.0
_OFFER = "pate: offered: "


@dataclass(frozen=True)
class Offer:
    """An archive that waits on a node: below which folder of its logs, and what each piece must hash to."""

    node: str
    folder: str
    pieces: list[str]

    @classmethod
    def said(cls, line: str) -> Offer | None:
        """The offer in a line of a job's log, if there is one."""
        return cls(**json.loads(line.removeprefix(_OFFER))) if line.startswith(_OFFER) else None


class _Pieces:
    """A file that is written in pieces, each a file of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._rest, self.hashes = folder, b"", list[str]()

    def write(self, content: bytes) -> int:
        self._rest += content
        while len(self._rest) >= PIECE:
            self.lay()
        return len(content)

    def lay(self) -> None:
        """Make a file of what was written last."""
        piece, self._rest = self._rest[:PIECE], self._rest[PIECE:]
        (self._folder / str(len(self.hashes))).write_bytes(piece)
        self.hashes.append(hashlib.sha256(piece).hexdigest())


def pack(run: Path, folder: Path) -> list[str]:
    """Lay an archive of what may leave the run into `folder`, nothing else; returns what its pieces hash to."""
    if (run / REPORT).exists():
        names = RunFiles(run).may_leave()
    elif (run / RESULTS).exists():
        names = [name for name in OF_A_STUDY if (run / name).is_file() and not (run / name).is_symlink()]
    else:
        raise RunError(f"{run}: there is no finished run")
    pieces = _Pieces(folder)
    with tarfile.open(fileobj=pieces, mode="w|gz", bufsize=PIECE) as archive:  # type: ignore[call-overload]
        for name in names:
            archive.add(run / name, arcname=name, filter=_anonymous)
    pieces.lay()
    return pieces.hashes


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Without the file's owner on the cluster, and its times."""
    return member.replace(mode=0o644, uid=0, gid=0, uname="", gname="", mtime=0, deep=False)


class _Joined:
    """The pieces as one file to be read once; each is fetched when it is needed, and must hash to what was said."""

    def __init__(self, piece: Callable[[int], bytes], hashes: Sequence[str]) -> None:
        self._rest, self._left = b"", self._checked(piece, hashes)

    def _checked(self, piece: Callable[[int], bytes], hashes: Sequence[str]) -> Iterator[bytes]:
        for number, expected in enumerate(hashes):
            content = piece(number)
            if hashlib.sha256(content).hexdigest() != expected:
                raise RunError("what was fetched is not what the cluster sent; fetch it again")
            yield content

    def read(self, size: int) -> bytes:
        while len(self._rest) < size and (content := next(self._left, b"")):
            self._rest += content
        wanted, self._rest = self._rest[:size], self._rest[size:]
        return wanted


def unpack(piece: Callable[[int], bytes], hashes: Sequence[str], folder: Path) -> list[str]:
    """Write what `pack` made to a new folder, whole or not at all; returns the names."""
    with _whole(folder) as partial:
        try:
            with tarfile.open(fileobj=_Joined(piece, hashes), mode="r|gz") as archive:  # type: ignore[call-overload]
                for member in archive:
                    if (may_leave(member.name) or member.name in OF_A_STUDY) and member.isfile():
                        archive.extract(member, partial, filter="data")
        except (tarfile.TarError, ValueError, EOFError):
            raise RunError("the run could not be read on the cluster") from None
    return names_in(folder)


def copy_from_storage(url: str, folder: Path) -> list[str]:
    """Write what may leave the run at a URL to a new folder, whole or not at all; returns the names."""
    with _whole(folder) as partial:
        pull(open_storage(url), partial, may_leave)
        if not RunFiles(partial).report_file.exists():
            raise RunError(f"{url}: no finished run is seen there from this machine")
    return names_in(folder)


def names_in(folder: Path) -> list[str]:
    """What was fetched, files and folders."""
    return [name for name in (*MAY_LEAVE, *OF_A_STUDY) if (folder / name).exists()]


def require_empty_folder(folder: Path) -> None:
    """Raise RunError if something is in the way."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunError(f"{folder}: is not empty; choose another place with {{to}}", to=None)


@contextmanager
def _whole(folder: Path) -> Iterator[Path]:
    """A folder to write to, which takes its name at the end if nothing went wrong."""
    require_empty_folder(folder)
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    make_folder(partial)
    try:
        yield partial
        if not names_in(partial):
            raise RunError("the run could not be read on the cluster")
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _offer(run: Path) -> None:
    """In a job on the head: offer what may leave until the job is stopped, an hour at most."""
    import ray

    ray.init(log_to_driver=False, logging_level="ERROR")
    here = ray.get_runtime_context()
    node, logs = here.get_node_id(), Path(here.get_temp_dir(), here.get_session_name(), "logs")
    ray.shutdown()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    folder = logs / f"pate-{secrets.token_hex(8)}"
    folder.mkdir(mode=0o700)
    try:
        offer = Offer(node, folder.name, pack(run, folder))
        print(_OFFER + json.dumps(asdict(offer)), flush=True)
        time.sleep(_SECONDS_OFFERED)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    try:
        _offer(Path(sys.argv[1]).expanduser())
    except RunError as error:
        sys.exit(f"pate: error: {error}")
