"""What a run has written itself is known by a seal: a keyed digest of a student's files, kept under `private/`.

Formal guarantee: a folder passes only if its files are, byte for byte, what this user's own pate sealed in this very
run. The seal's key comes from two secrets, the run's key and one of the user's own outside of all runs: so neither a
student that somebody put into a run, nor a whole run with a `private/` of its own that somebody sent, passes.
"""

from __future__ import annotations

import hmac
import json
import os
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from pate.errors import RunError
from pate.runs.files import OBJECT, SEALS, STUDENT_CARD, TENSORS, RunFiles
from pate.storage.files import (
    create_key,
    make_state_folder,
    read_key,
    regular_file,
    state_folder,
    write_atomically,
)

_SEALED = (STUDENT_CARD, TENSORS, OBJECT)


def read_student(folder: Path) -> dict[str, bytes]:
    """The files of a student, by name, read once: what is checked is what is loaded."""
    found = {name: regular_file(folder / name) for name in _SEALED if (folder / name).exists()}
    return {name: path.read_bytes() for name, path in found.items()}


def seal(run: RunFiles, folder: Path) -> None:
    """Note that this run wrote the student in `folder`. Where the user has no place for a key, nothing is noted."""
    key = _key(run, create=True)
    if key is not None:
        seals = _seals(run) | {_name(run, folder): _digest(key, _name(run, folder), read_student(folder))}
        write_atomically(run.private / SEALS, lambda path: path.write_text(json.dumps(seals, indent=2) + "\n"))


def is_sealed(run: RunFiles, folder: Path, content: dict[str, bytes]) -> bool:
    """Whether `content` is what this run wrote in `folder`."""
    key, name = _key(run, create=False), _name(run, folder)
    known = _seals(run).get(name)
    return key is not None and isinstance(known, str) and hmac.compare_digest(known, _digest(key, name, content))


def _key(run: RunFiles, create: bool) -> bytes | None:
    """From the run's key and the user's; None where one of them is not there."""
    with suppress(OSError, RunError):
        own = user_key()
        if create and not own.exists():
            make_state_folder()
            create_key(own)
        return blake2b(read_key(run.key_file), key=read_key(own), person=b"seal", digest_size=32).digest()
    return None


def user_key() -> Path:
    """Where the user's own secret is, outside of all runs."""
    return state_folder() / "key"


def _digest(key: bytes, name: str, content: dict[str, bytes]) -> str:
    whole = blake2b(name.encode(), key=key, digest_size=16)
    for file, data in sorted(content.items()):
        whole.update(f"/{file}:{len(data)}:".encode() + data)
    return whole.hexdigest()


def _name(run: RunFiles, folder: Path) -> str:
    return os.path.relpath(folder, run.path)


def _seals(run: RunFiles) -> dict[str, str]:
    try:
        content = json.loads((run.private / SEALS).read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
