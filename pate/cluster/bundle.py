"""The part of a run directory that may leave, as text: it travels in a job's log, so that the jobs port is enough.

`python -m pate.cluster.bundle RUN` prints it, on the cluster; `unpack` writes it, where the user is.
"""

from __future__ import annotations

import base64
import io
import sys
import tarfile
from contextlib import suppress
from pathlib import Path

from pate.errors import RunError
from pate.runs.files import MAY_LEAVE, RunFiles, may_leave

MOST_BYTES = 256 * 2**20
_BEGIN, _END = "-----BEGIN PATE RUN-----", "-----END PATE RUN-----"


def pack(run: Path) -> str:
    """Everything of the run that may leave; nothing else, above all not `private/`."""
    files = RunFiles(run)
    if not files.report_file.exists():
        raise RunError(f"{run}: there is no finished run")
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for name in files.may_leave():
            archive.add(run / name, arcname=name, filter=_anonymous)
    if content.tell() > MOST_BYTES:
        raise RunError(f"{run}: {content.tell() >> 20} MB are too much to send; copy it from the head yourself")
    return "\n".join([_BEGIN, base64.encodebytes(content.getvalue()).decode().strip(), _END])


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Without the file's owner on the cluster, and its times."""
    return member.replace(mode=0o644, uid=0, gid=0, uname="", gname="", mtime=0, deep=False)


def unpack(text: str, folder: Path) -> list[str]:
    """Write what `pack` made, found anywhere in `text`; returns the names."""
    _, begun, rest = text.partition(_BEGIN)
    body, ended, _ = rest.partition(_END)
    folder.mkdir(parents=True, exist_ok=True)
    if begun and ended:
        with (
            suppress(tarfile.TarError, ValueError),
            tarfile.open(fileobj=io.BytesIO(base64.b64decode(body)), mode="r:gz") as archive,
        ):
            members = [member for member in archive if may_leave(member.name) and member.isfile()]
            archive.extractall(folder, members=members, filter="data")
    if not RunFiles(folder).report_file.exists():
        raise RunError("the run could not be read on the cluster")
    return [name for name in MAY_LEAVE if (folder / name).exists()]


if __name__ == "__main__":
    try:
        print(pack(Path(sys.argv[1]).expanduser()))
    except RunError as error:
        sys.exit(f"pate: error: {error}")
