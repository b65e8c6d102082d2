"""Where a run lives when its machine may be lost: a shared file system or an object store, by URL.

One operation carries all the safety: `create` makes an object that was not there, whole or not at all, and of any
number of callers, on any machine, one succeeds. Shared file systems do it with a hard link, S3 with
`If-None-Match: *`, Google's store with `ifGenerationMatch=0`. A store that cannot is refused before anything is
trained. Objects below `private/` are as private as the folder of that name in a local run.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from pate.errors import RunError, first_line
from pate.storage._files import make_folder, sync_folder, write_beside

_EXCLUSIVE = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs"}
_AT_ONCE = 64  # objects in memory on their way from or to a store


def is_url(place: object) -> bool:
    """Whether a run directory is named by URL.

    >>> is_url("s3://bucket/run"), is_url("runs/digits")
    (True, False)
    """
    return "://" in str(place)


class Storage(Protocol):
    """Named objects below a URL. Every failure is a `RunError` of one line."""

    url: str

    def create(self, name: str, content: bytes) -> bool:
        """Make an object that is not there yet; True if it is there with this content, False if with another."""

    def read(self, name: str) -> bytes | None:
        """An object's content, None where there is none."""

    def write(self, contents: Mapping[str, bytes]) -> None:
        """Make or replace objects, each whole or not at all."""

    def remove(self, name: str) -> None:
        """Remove an object."""

    def names(self, folder: str = "") -> list[str]:
        """All objects below a folder, by name from the URL on, sorted."""

    def read_all(self, names: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        """The content of many objects, fetched many at a time where the store can."""


def open_storage(url: str) -> Storage:
    """The store behind a URL; refused if it cannot create objects exclusively."""
    protocol, _, path = url.partition("://")
    if protocol in ("file", "local"):
        return _FileStorage(url, Path(path))
    if protocol not in _EXCLUSIVE:
        raise RunError(
            f"{url}: {protocol}:// cannot create objects exclusively as far as pate knows, so two aggregators could "
            "charge at once; use s3://, gs:// or file://"
        )
    return _ObjectStorage(url)


def check_exclusive(storage: Storage) -> None:
    """Raise RunError unless the store keeps `create` exclusive: some that speak S3 ignore the condition."""
    name = f"private/probe-{secrets.token_hex(8)}"
    first, second = storage.create(name, b"first"), storage.create(name, b"second")
    kept = storage.read(name)
    storage.remove(name)
    if not first or second or kept != b"first":
        raise RunError(
            f"{storage.url}: the store overwrites objects that it was asked to create only if they are not there, so "
            "two aggregators could charge at once; use another store (S3, Google Cloud Storage, a shared file system)"
        )


def pull(storage: Storage, folder: Path, wanted: Callable[[str], bool]) -> None:
    """Copy the objects whose names are `wanted` to a local folder, for its owner only."""
    names = [name for name in storage.names() if wanted(name)]
    for name, content in storage.read_all(names):
        if ".." in PurePosixPath(name).parts:
            raise RunError(f"{storage.url}: holds an object with the name {name!r}; not a run directory")
        path = folder / name
        make_folder(path.parent, 0o700)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(content)


@contextmanager
def _one_line(url: str, done: str) -> Iterator[None]:
    """Raise whatever a store raises as a RunError: file systems an OSError, libraries of object stores anything."""
    try:
        yield
    except OSError as error:
        raise RunError(f"{url}: cannot be {done} ({error.strerror or first_line(error)})") from None
    except Exception as error:
        raise RunError(f"{url}: cannot be {done} ({first_line(error)})") from None


class _FileStorage:
    """A shared file system. `private/` is for its owner only."""

    def __init__(self, url: str, root: Path) -> None:
        self.url, self._root = url, root
        if not root.is_absolute():
            raise RunError(f"{url}: write file:// and an absolute path, as in file:///mnt/shared/run")

    def create(self, name: str, content: bytes) -> bool:
        with _one_line(self.url, "written"):
            path, temporary = self._path(name), self._temporary(name, content)
            try:
                os.link(temporary, path)
            except FileExistsError:
                return path.read_bytes() == content
            finally:
                temporary.unlink()
            sync_folder(path.parent)
            return True

    def read(self, name: str) -> bytes | None:
        with _one_line(self.url, "read"):
            try:
                return self._path(name).read_bytes()
            except FileNotFoundError:
                return None

    def write(self, contents: Mapping[str, bytes]) -> None:
        with _one_line(self.url, "written"):
            for name, content in contents.items():
                self._temporary(name, content).rename(self._path(name))
                sync_folder(self._path(name).parent)

    def remove(self, name: str) -> None:
        with _one_line(self.url, "written"):
            self._path(name).unlink(missing_ok=True)

    def names(self, folder: str = "") -> list[str]:
        with _one_line(self.url, "read"):
            found = (Path(place) / file for place, _, files in os.walk(self._root / folder) for file in files)
            return sorted(p.relative_to(self._root).as_posix() for p in found if not p.name.startswith(".partial-"))

    def read_all(self, names: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        for name in names:
            content = self.read(name)
            if content is not None:
                yield name, content

    def _path(self, name: str) -> Path:
        return self._root / name

    def _temporary(self, name: str, content: bytes) -> Path:
        """The content on disk under a name of its own, beside where it will go."""
        private = PurePosixPath(name).parts[0] == "private"
        folder = self._path(name).parent
        make_folder(self._root)
        make_folder(folder, mode=0o700 if private else 0o755)
        return write_beside(self._path(name), content, 0o600 if private else 0o644)


class _ObjectStorage:
    """An object store through fsspec. Credentials come from the environment or the machine's role, never from here."""

    def __init__(self, url: str) -> None:
        import fsspec

        self.url = url.rstrip("/")
        protocol = url.partition("://")[0]
        try:
            self._fs, root = fsspec.url_to_fs(self.url, use_listings_cache=False)
        except ImportError:
            package = _EXCLUSIVE[protocol]
            raise RunError(f"{url}: {protocol}:// needs the package {package}: pip install {package}") from None
        except Exception as error:
            raise RunError(f"{url}: cannot be opened ({first_line(error)})") from None
        self._root = root.rstrip("/")

    def create(self, name: str, content: bytes) -> bool:
        try:
            self._fs.pipe_file(self._path(name), content, mode="create")
        except Exception as error:
            # Also where a library repeats a call whose first answer was lost: what is there tells.
            there = self.read(name)
            if there is None:
                raise RunError(f"{self.url}: cannot be written ({first_line(error)})") from None
            return there == content
        return True

    def read(self, name: str) -> bytes | None:
        with _one_line(self.url, "read"):
            try:
                content: bytes = self._fs.cat_file(self._path(name))
                return content
            except FileNotFoundError:
                return None

    def write(self, contents: Mapping[str, bytes]) -> None:
        with _one_line(self.url, "written"):
            self._fs.pipe({self._path(name): content for name, content in contents.items()})

    def remove(self, name: str) -> None:
        with _one_line(self.url, "written"):
            self._fs.rm_file(self._path(name))

    def names(self, folder: str = "") -> list[str]:
        with _one_line(self.url, "read"):
            try:
                found = self._fs.find(self._path(folder) if folder else self._root)
            except FileNotFoundError:
                return []
            return sorted(path.removeprefix(self._root).lstrip("/") for path in found)

    def read_all(self, names: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        wanted = list(names)
        for some in (wanted[i : i + _AT_ONCE] for i in range(0, len(wanted), _AT_ONCE)):
            with _one_line(self.url, "read"):
                contents: Any = self._fs.cat([self._path(name) for name in some])
                if isinstance(contents, bytes):  # asked for one
                    contents = {self._path(some[0]): contents}
                found = {path.lstrip("/"): content for path, content in contents.items()}
            for name in some:
                yield name, found[self._path(name).lstrip("/")]

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"
