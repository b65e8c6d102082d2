"""Signatures show which files of a run this user wrote: keyed digests, kept under `private/`.

Formal guarantee: a model's folder, the config and the places of a run pass only if they are, byte for byte, what this
user signed in this very run. The key comes from two secrets: the run's key, and a key of the user's outside of all
runs. So neither a file that somebody put into a run passes, nor a whole run that somebody sent. Of what a file without
a signature names, only what the user trusts by name is imported.
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

from pate.components._registry import check_names, dotted_names, importing_only, make_importable
from pate.errors import RunError
from pate.runs._files import CONFIG, MODEL_CARD, OBJECT, PRIVATE, SIGNATURES, STUDENT_CARD, TEACHERS, TENSORS, RunFiles
from pate.storage._files import create_key, make_state_folder, read_key, read_whole, state_folder, write_atomically

if TYPE_CHECKING:
    from pate.runs.run import Run

_OF_A_MODEL = (STUDENT_CARD, MODEL_CARD, TENSORS, OBJECT)
_without_a_key = secrets.token_bytes(32)  # of this process alone

OWN_TEACHERS = f"{PRIVATE}/{TEACHERS}"
"""What to trust for teachers that somebody else, or this user elsewhere, has trained: unpickling runs their code."""


def read_model_files(folder: Path) -> dict[str, bytes]:
    """Read the files of a model once, by name: so what is checked is what is loaded."""
    return {name: read_whole(folder / name) for name in _OF_A_MODEL if (folder / name).exists()}


def sign(run: RunFiles, *paths: Path, content: dict[str, bytes] | None = None) -> None:
    """Sign files and folders as written by this user, or the `content` that was written where that is given, whatever
    is found there. Does nothing where the user has no place for a key."""
    key = _key(run.key_file, create=True)
    if key is not None:
        named = {_name(run, path): _content(path) if content is None else content for path in paths}
        signatures = _signatures(run) | {name: _digest(key, name, found) for name, found in named.items()}
        write_atomically(run.private / SIGNATURES, json.dumps(signatures, indent=2) + "\n")


def is_signed(run: RunFiles, path: Path, content: dict[str, bytes] | None = None) -> bool:
    """Whether the file or folder `path`, or its `content` where given, is what this user signed in this run."""
    key, name = _key(run.key_file, create=False), _name(run, path)
    known = _signatures(run).get(name)
    try:
        content = _content(path) if content is None else content
    except OSError:
        return False
    return key is not None and isinstance(known, str) and hmac.compare_digest(known, _digest(key, name, content))


def is_own(run: RunFiles) -> bool:
    """Whether this user began the run, or went on with it: its config and its places are signed."""
    return is_signed(run, run.config_file) and is_signed(run, run.places_file)


@contextmanager
def own_or_trusted(trust: Iterable[str], *runs: Run) -> Iterator[None]:
    """Allow imports of what the configs of these runs name, from beside the configs too, if all runs are this user's.

    Otherwise only what the user's runs and `trust` name is imported, and classes of this package and of scikit-learn.
    Raises NotTrusted at once where that is not enough.
    """
    own = [run for run in runs if is_own(run)]
    for run in reversed(own):  # the folder of the first is in use then
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
    """A key that only this user can derive from the one in a file; it signs what would run code if it were read.

    Where the user has no place for a key, only this process can derive it.
    """
    return blake2b(_key(key_file, create=True) or _without_a_key, person=b"user", digest_size=32).digest()


def _components(run: Run) -> dict[str, Any]:
    """The sections of a run's config that name classes; names of files and columns are none."""
    no_classes: Any = {"data": True, "budget": True, "name": True, "report": True, "stored": {"file"}}
    return run.config.model_dump(mode="json", exclude=no_classes)


def _content(path: Path) -> dict[str, bytes]:
    return read_model_files(path) if path.is_dir() else {path.name: read_whole(path)}


def _key(key_file: Path, create: bool) -> bytes | None:
    """From a run's key and the user's; None where one of them is not there."""
    with suppress(OSError, RunError):
        own = user_key()
        if create and not own.exists():
            make_state_folder()
            create_key(own)
        return blake2b(read_key(key_file), key=read_key(own), person=b"signature", digest_size=32).digest()
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


def _signatures(run: RunFiles) -> dict[str, str]:
    try:
        content = json.loads((run.private / SIGNATURES).read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
