"""What a run has written itself is known by a seal: a keyed digest of its files, kept under `private/`.

Formal guarantee: a student's folder, the config and the places that it was begun with pass only if they are, byte for
byte, what this user's own pate sealed in this very run. The seal's key comes from two secrets, the run's key and one of
the user's own outside of all runs: so neither a file that somebody put into a run, nor a whole run with a `private/` of
its own that somebody sent, passes. What does not pass is somebody's: of what it names only that is imported which the
user trusts by name.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pate.components.registry import check_names, dotted_names, importing_only, make_importable
from pate.errors import RunError
from pate.runs.files import CONFIG, OBJECT, PRIVATE, SEALS, STUDENT_CARD, TEACHERS, TENSORS, RunFiles
from pate.storage.files import create_key, make_state_folder, read_key, regular_file, state_folder, write_atomically

if TYPE_CHECKING:
    from pate.runs.run import Run

_SEALED = (STUDENT_CARD, TENSORS, OBJECT)
_without_a_key = secrets.token_bytes(32)  # of this process alone

OWN_TEACHERS = f"{PRIVATE}/{TEACHERS}"
"""What to trust for teachers that somebody else, or this user elsewhere, has trained: unpickling runs their code."""


def read_student(folder: Path) -> dict[str, bytes]:
    """The files of a student, by name, read once: what is checked is what is loaded."""
    found = {name: regular_file(folder / name) for name in _SEALED if (folder / name).exists()}
    return {name: path.read_bytes() for name, path in found.items()}


def seal(run: RunFiles, *paths: Path) -> None:
    """Note that this run wrote these files and students' folders. Where the user has no place for a key, nothing is."""
    key = _key(run.key_file, create=True)
    if key is not None:
        seals = _seals(run) | {_name(run, path): _digest(key, _name(run, path), _content(path)) for path in paths}
        write_atomically(run.private / SEALS, lambda path: path.write_text(json.dumps(seals, indent=2) + "\n"))


def is_sealed(run: RunFiles, path: Path, content: dict[str, bytes] | None = None) -> bool:
    """Whether `content`, or else what is there now, is what this run wrote in the file or folder `path`."""
    key, name = _key(run.key_file, create=False), _name(run, path)
    known = _seals(run).get(name)
    try:
        content = _content(path) if content is None else content
    except (OSError, ValueError):
        return False
    return key is not None and isinstance(known, str) and hmac.compare_digest(known, _digest(key, name, content))


def is_own(run: RunFiles) -> bool:
    """Whether this user began the run, or went on with it: its config and its places are sealed."""
    return is_sealed(run, run.config_file) and is_sealed(run, run.places_file)


@contextmanager
def own_or_trusted(trust: Iterable[str], *runs: Run) -> Iterator[None]:
    """Within it, what the configs of these runs name is imported where all runs are this user's own, from beside their
    configs too. Else only what own ones name, what `trust` does, and classes of this package's and scikit-learn's are:
    `NotTrusted` is raised at once where that is not enough."""
    own = [run for run in runs if is_own(run)]
    for run in own:
        make_importable(run.places[1])
    if len(own) == len(runs):
        yield
        return
    named = [dotted_names(_components(run)) for run in own]
    with importing_only(set(trust).union(*named)):
        for run in runs:
            if run not in own:
                check_names(_components(run), f"{run.place}/{CONFIG}: was not written by you here, and")
        yield


def user_secret(key_file: Path) -> bytes:
    """What nobody but this user can make of the key in a file; where the user has no place for a key, nobody but this
    process. It seals what would run code if it were read."""
    return blake2b(_key(key_file, create=True) or _without_a_key, person=b"user", digest_size=32).digest()


def _components(run: Run) -> dict[str, Any]:
    """What a run's config names classes in."""
    return run.config.model_dump(mode="json", exclude={"data", "budget", "name"})


def _content(path: Path) -> dict[str, bytes]:
    return read_student(path) if path.is_dir() else {path.name: regular_file(path).read_bytes()}


def _key(key_file: Path, create: bool) -> bytes | None:
    """From a run's key and the user's; None where one of them is not there."""
    with suppress(OSError, RunError):
        own = user_key()
        if create and not own.exists():
            make_state_folder()
            create_key(own)
        return blake2b(read_key(key_file), key=read_key(own), person=b"seal", digest_size=32).digest()
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
