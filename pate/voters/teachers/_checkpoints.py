"""Trained teachers under `private/teachers/`, so that a crash costs only those that are unfinished.

A file is used only if this run wrote it for that part, and this user's own pate did: an HMAC under the run's key,
which is beside it, and one under a secret of the user's, which is not, stand before its content. It may be a pickle,
which runs code. Anything else counts as not there, and the teacher is trained again. Neither key goes to a worker.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Collection
from pathlib import Path

from pate.errors import RunError
from pate.runs._files import TEACHERS
from pate.storage._files import sync_folder, write_atomically

_SEAL_BYTES = 32
_STACKS = "stacks"
_NO_PART = 2**63  # what the seal of that file counts for


class InMemory:
    """Trained teachers, as bytes by part, while the process lives. `load` gives None for one that is not there.

    `failure` is the kind of error, if the teacher is a stand-in or a second try. `stacked` gives the kinds of teachers
    that are trained in stacks only because there were GPUs when the first was trained: decided then, kept from then
    on, so that a run which goes on elsewhere trains the same stacks.
    """

    def __init__(self) -> None:
        self.failures: dict[int, str] = {}
        self._payloads: dict[int, bytes] = {}
        self._stacked: tuple[int, ...] | None = None

    def save(self, part: int, payload: bytes, failure: str | None = None) -> None:
        self._payloads[part] = payload
        if failure is not None:
            self.failures[part] = failure

    def load(self, part: int) -> bytes | None:
        return self._payloads.get(part)

    def stacked(self, now: Collection[int]) -> tuple[int, ...]:
        if self._stacked is None:
            self._stacked = tuple(sorted(now))
        return self._stacked


class TeacherFiles:
    """Trained teachers on disk, one file per part: what `InMemory` does, beyond a crash.

    `user` is a secret of the user's (`pate.runs._signatures.user_secret`); with `trusted`, files that the run wrote
    elsewhere, or for somebody else, are used too.
    """

    def __init__(self, private: Path, key: bytes, round: int = 1, user: bytes = b"", trusted: bool = False) -> None:
        self._folder, self._trusted = private / TEACHERS, trusted
        self._to_note: bytes | None = None  # with the first teacher: before it nothing is decided for good
        person = b"checkpoint" if round == 1 else f"round {round}".encode()  # a file is of no other round
        self._key = hashlib.blake2b(key=key, person=person, digest_size=32).digest()
        self._user = hashlib.blake2b(self._key, key=user, person=b"user", digest_size=32).digest()

    @property
    def failures(self) -> dict[int, str]:
        """The teachers that are stand-ins or second tries, and why. Private, as everything here."""
        return {int(path.stem): path.read_text() for path in sorted(self._folder.glob("*.failure"))}

    def save(self, part: int, payload: bytes, failure: str | None = None) -> None:
        if self._to_note is not None:
            self._write(self._folder / _STACKS, self._to_note)
            self._to_note = None
        if failure is not None:
            self._write(self._path(part).with_suffix(".failure"), failure.encode())
        self._write(self._path(part), self._seal(part, payload) + payload)

    def _write(self, path: Path, content: bytes) -> None:
        try:
            self._folder.parent.mkdir(mode=0o700, exist_ok=True)  # of a later round
            self._folder.mkdir(mode=0o700, exist_ok=True)
            write_atomically(path, content, durable=False)
        except OSError as error:
            raise RunError(
                f"{self._folder}: a trained teacher cannot be stored ({error.strerror}); make room, then go on with "
                "{resume}: those stored so far are kept",
                resume=True,
            ) from None

    def load(self, part: int) -> bytes | None:
        return self._read(self._path(part), part)

    def stacked(self, now: Collection[int]) -> tuple[int, ...]:
        known = self._read(self._folder / _STACKS, _NO_PART)
        if known is None:
            begun = any(self._folder.glob("[0-9]*"))  # by a version that did not note it, and stacked none of these
            known = json.dumps([] if begun else sorted(now)).encode()
            self._to_note = self._seal(_NO_PART, known) + known
        return tuple(json.loads(known))

    @property
    def are_foreign(self) -> bool:
        """Whether teachers are there that the run wrote, but not this user here: as far as the first of them tells."""
        first = min(self._folder.glob("[0-9]" * 6), default=None)
        if first is None or self._trusted:
            return False
        return not self._read(first, int(first.name)) and bool(self._read(first, int(first.name), trusted=True))

    def _read(self, path: Path, part: int, trusted: bool = False) -> bytes | None:
        try:
            content = path.read_bytes()
        except OSError:
            return None
        seal, payload = content[: 2 * _SEAL_BYTES], content[2 * _SEAL_BYTES :]
        wanted = self._seal(part, payload)
        known = slice(_SEAL_BYTES if trusted or self._trusted else None)
        return payload if hmac.compare_digest(seal[known], wanted[known]) else None

    def erase(self, part: int) -> None:
        """Remove the teacher of a part for good, so that nothing of it can come back after a crash."""
        for path in self._folder.glob(f"{part:06d}*"):
            path.unlink(missing_ok=True)
        if self._folder.exists():
            sync_folder(self._folder)

    def _path(self, part: int) -> Path:
        return self._folder / f"{part:06d}"

    def _seal(self, part: int, payload: bytes) -> bytes:
        """Of the run, and of the user."""
        content = part.to_bytes(8, "little") + payload
        return hmac.digest(self._key, content, "sha256") + hmac.digest(self._user, content, "sha256")


Store = InMemory | TeacherFiles
"""Where an ensemble keeps what it has trained."""
