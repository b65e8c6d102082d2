"""Files that are written whole or not at all: text, arrays, tensors (safetensors, which holds no code) and keys; locks;
and checks of what files from elsewhere hold."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pate.errors import RunError

if TYPE_CHECKING:
    from torch import Tensor, nn

KEY_BYTES = 32


def read_whole(path: Path, max_bytes: int | None = None) -> bytes:
    """The content of a file; OSError if it is larger than `max_bytes`, or a folder, device or pipe."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    with path.open("rb") as file:
        content = file.read() if max_bytes is None else file.read(max_bytes + 1)
    if max_bytes is not None and len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"larger than {max_bytes:,} bytes", str(path))
    return content


def write_atomically(
    path: Path, content: str | bytes | Callable[[Path], Any], mode: int = 0o600, durable: bool = True
) -> None:
    """Write a file whole or not at all, durably, whenever the machine stops; `content` may be what writes it.

    Without `durable`, a machine that stops may lose the file or leave it damaged: only for what can be made again.
    """
    partial = path.with_name(path.name + ".partial")
    partial.unlink(missing_ok=True)
    partial.touch(mode=mode)
    if isinstance(content, str):
        partial.write_text(content, encoding="utf-8")
    elif isinstance(content, bytes):
        partial.write_bytes(content)
    else:
        content(partial)
    if not durable:
        partial.rename(path)
        return
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    partial.rename(path)
    sync_folder(path.parent)


def write_arrays(path: Path, content: Any, mode: int = 0o600, durable: bool = True) -> None:
    """Write an array as .npy, or a mapping of names to arrays as .npz, as `write_atomically` does."""

    def write(partial: Path) -> None:
        with partial.open("wb") as file:
            if isinstance(content, dict):
                np.savez(file, **content)
            else:
                np.save(file, content, allow_pickle=False)

    write_atomically(path, write, mode, durable)


def make_folder(path: Path, mode: int = 0o755) -> None:
    """Make a folder, and those above it that are missing. Nobody but its owner can write there, whatever the umask."""
    if path.is_dir():
        return
    if path.parent != path:
        make_folder(path.parent, mode)
    path.mkdir(mode=mode, exist_ok=True)


def state_folder() -> Path:
    """Where pate keeps what is the user's own, outside of all runs; OSError where the user has no home."""
    state = os.environ.get("XDG_STATE_HOME")
    try:
        return (Path(state) if state else Path.home() / ".local" / "state") / "pate"
    except RuntimeError as error:
        raise OSError(errno.ENOENT, str(error)) from None


def make_state_folder(name: str = "") -> Path:
    """The user's state folder, or the folder `name` in it, made where it is missing; only the user can read it."""
    folder = state_folder()
    make_folder(folder.parent)
    make_folder(folder / name, 0o700)
    return folder / name


_ABOUT = "pate"


def tensors_to_bytes(tensors: Mapping[str, Any], about: Any = None) -> bytes:
    """Tensors of torch and arrays of numpy by name, with a note that JSON can hold, as one file."""
    metadata = None if about is None else {_ABOUT: json.dumps(about)}
    if all(isinstance(tensor, np.ndarray) for tensor in tensors.values()):
        from safetensors.numpy import save

        return bytes(save({name: np.require(array, requirements="C") for name, array in tensors.items()}, metadata))
    import torch
    from safetensors.torch import save as save_torch

    # copies: safetensors refuses tensors that share memory, as tied weights do
    whole = {name: torch.as_tensor(tensor).detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    return bytes(save_torch(whole, metadata))


def tensors_from_bytes(content: bytes, framework: Literal["pt", "np"] = "pt") -> tuple[dict[str, Any], Any]:
    """What `tensors_to_bytes` was given, as tensors of torch or arrays of numpy; and the note, None if there is none.

    Raises SafetensorError, or ValueError, for anything else.
    """
    if framework == "pt":
        from safetensors.torch import load
    else:
        from safetensors.numpy import load
    tensors: dict[str, Any] = load(content)
    length = int.from_bytes(content[:8], "little")
    about = json.loads(content[8 : 8 + length]).get("__metadata__", {}).get(_ABOUT)
    return tensors, None if about is None else json.loads(about)


def check_weights(build: Callable[[], nn.Module], weights: Mapping[str, Tensor]) -> None:
    """Raise ValueError unless `weights` are just what the module that `build` makes would hold.

    Sizes come from a file that anybody may have written. So the module is built without memory behind it: a layer
    of 10⁹ units is refused because the file does not hold it, not because memory ran out.
    """
    import torch

    def shapes(tensors: Mapping[str, Tensor]) -> dict[str, str]:
        return {name: f"{tuple(tensor.shape)} of {tensor.dtype}" for name, tensor in tensors.items()}

    with torch.device("meta"):
        expected = shapes(build().state_dict())
    found = shapes(weights)
    if found != expected:
        name = sorted(dict(found.items() ^ expected.items()))[0]
        raise ValueError(f"tensor {name!r} is {found.get(name)}; by the parameters it would be {expected.get(name)}")


def check_values(weights: Mapping[str, Any]) -> None:
    """Raise ValueError for a tensor without elements (its sizes would cost a file nothing), or with NaN or infinity."""
    for name, tensor in weights.items():
        if 0 in tensor.shape:
            raise ValueError(f"tensor {name!r} is empty")
        finite = np.isfinite(tensor) if isinstance(tensor, np.ndarray) else tensor.isfinite()
        if not finite.all():
            raise ValueError(f"tensor {name!r} holds NaN or infinity")


_MAX_AXES = 8


def sizes(values: Any, key: str) -> list[int]:
    """`values`, if that is the shape of an array; ValueError else."""
    if not isinstance(values, list) or any(type(value) is not int or not 0 < value < 2**31 for value in values):
        raise ValueError(f"{key}: must be a list of whole numbers above 0")
    if not 1 <= len(values) <= _MAX_AXES:
        raise ValueError(f"{key}: must have 1 to {_MAX_AXES} of them")
    return values


def whole_numbers(values: Any, key: str) -> list[int]:
    """`values`, if those are different whole numbers, one at least; ValueError else."""
    if not isinstance(values, list) or any(type(value) is not int or abs(value) >= 2**62 for value in values):
        raise ValueError(f"{key}: must be a list of whole numbers")
    if not values or len(set(values)) < len(values):
        raise ValueError(f"{key}: must hold at least one number, and none twice")
    return values


def sync_folder(path: Path) -> None:
    """Make durable what was added to a folder or removed from it."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextmanager
def locked(path: Path, wait: bool = True) -> Iterator[None]:
    """Hold a lock file; raises BlockingIOError if another process holds it and `wait` is False."""
    with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield


def write_beside(path: Path, content: bytes, mode: int = 0o600) -> Path:
    """Write the content, durably, beside where it will go, under a name that nobody else has; returns that."""
    temporary = path.with_name(f".partial-{secrets.token_hex(8)}")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def create_key(path: Path) -> None:
    """Draw a random key, for its owner only. Of several callers at once one draws it, and the others find it."""
    temporary = write_beside(path, secrets.token_bytes(KEY_BYTES))
    try:
        with suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        temporary.unlink()
    sync_folder(path.parent)


def read_key(path: Path) -> bytes:
    """The key in a file; RunError if it is gone or damaged."""
    try:
        with path.open("rb") as file:
            key = file.read(KEY_BYTES + 1)
    except FileNotFoundError:
        raise RunError(f"{path}: the key is gone, so what was made with it cannot be vouched for") from None
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror})") from None
    if len(key) != KEY_BYTES:
        raise RunError(f"{path}: is damaged: a key has {KEY_BYTES} bytes")
    return key
