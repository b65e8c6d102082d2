"""A plain function on a GPU of the cluster that was joined, where this process has none: networks that train for long.

Nothing is sent but the function, by name, and its arguments: so whoever makes a `Task` decides what leaves this
process. It runs as one Ray task, with one CPU and one GPU. What it tells of its progress, and the file that it keeps
its state in, come back while it runs; a task that is lost with its node begins again from that file.
"""

from __future__ import annotations

import pickle
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pate.boundary.guard import Failed, error_kind, guarded, silence
from pate.cluster.resources import grows, has_gpus
from pate.components.registry import component_folders, make_importable
from pate.errors import ConfigError, RunError
from pate.networks.threads import one_thread
from pate.runs.console import Console
from pate.storage.files import make_folder, write_atomically

_MAX_LOST = 3  # in a row, without any new state in between
_SECONDS_TO_WAIT = 600.0  # for a GPU that is busy, or to come
_SECONDS_WITHOUT_ANY = 30.0  # until a cluster that lost its last GPU, and brings no other, is no longer waited for
_SECONDS_BETWEEN_NEWS = 0.5
_SECONDS_TO_STOP = 5.0
THREAD = "placed"

Progress = Callable[..., None]


@dataclass(frozen=True)
class RemoteTask:
    """`function(*arguments, kept=…, progress=…)`: `kept` is a file that it may go on from, and `progress` is told how
    far it is, as often as it likes. The function is a module's own, and neither it nor its result belong to a device.

    Of one that handles `private` records nothing comes back in words but this package's own, and what it prints is
    kept nowhere.
    """

    what: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    kept: Path | None = None
    private: bool = False


class Place(NamedTuple):
    """Where a task runs, as people and as Ray name it."""

    host: str
    node: str
    device: str
    lacks_gpu: bool

    def __str__(self) -> str:
        return f"{self.host}, {self.device}"


def gpu_on_cluster(device: str) -> bool:
    """Whether what would take `device` can have a GPU of the cluster that this process has joined, and has none here.

    One that the cluster's autoscaler would bring counts. `device` is that of a model: auto, or one that the user
    chose, which is to be had here. A Ray that was started here has no GPU that this process lacks.
    """
    if device != "auto" or "ray" not in sys.modules or not sys.modules["ray"].is_initialized():
        return False
    import torch

    return not torch.cuda.is_available() and has_gpus()


def here() -> Place:
    """This process as a place to train in."""
    import torch

    usable = torch.cuda.is_available()
    device = f"GPU {torch.cuda.get_device_name()}" if usable else "CPU"
    return Place(socket.gethostname(), "", device, lacks_gpu=not usable)


def on_gpu(task: RemoteTask, progress: Progress, console: Console) -> Any:
    """What the function of `task` returns, from a GPU of the cluster; else from here, and a line says why.

    `progress` is called here, and `task.kept` is a file here. RunError if the task was lost too often.
    """
    import ray

    packed, buffers = _packed(task)
    sent = [ray.put(buffer) for buffer in buffers]
    lost = 0
    while True:
        try:
            return _Attempt(task, progress, console).follow(packed, sent)
        except _NotThere as reason:
            console.info(f"note: {task.what} is trained here instead: {reason}")
            return task.function(*task.arguments, kept=task.kept, progress=progress)
        except _LostNode as error:
            lost = 1 if error.had_come_on else lost + 1
            if lost >= _MAX_LOST:
                text = (
                    f"{task.what}: the task that trained it was lost {lost} times in a row ({error}); all that was "
                    "paid for is kept. See that GPU nodes stay and have memory enough, then go on with {resume}"
                )
                raise RunError(text, resume=True) from None
            console.info(f"note: {task.what}: the node that trained it was lost ({error}); it goes on, on another")


class _NotThere(Exception):
    """No node can run it: for want of a GPU that is free, or of the user's own files."""


class _LostNode(Exception):
    """The task ended with its node or process; `had_come_on` if it had kept anything new by then."""

    def __init__(self, text: str, had_come_on: bool) -> None:
        super().__init__(text)
        self.had_come_on = had_come_on


class _Attempt:
    """One Ray task, followed to its end."""

    def __init__(self, task: RemoteTask, progress: Progress, console: Console) -> None:
        self._task, self._progress, self._console = task, progress, console
        self._began = self._had_come_on = False

    def follow(self, packed: bytes, buffers: list[Any]) -> Any:
        import ray
        from ray.exceptions import RayError, RayTaskError

        kept = self._task.kept
        state = kept.read_bytes() if kept is not None and kept.is_file() else None
        name = "state" if kept is None else kept.name
        folders = [str(folder) for folder in component_folders()]
        # no retries by Ray: it would begin without the state
        remote = ray.remote(num_cpus=1, num_gpus=1, max_retries=0, num_returns="streaming")(_streamed)
        news = remote.options(name=self._task.what).remote(packed, state, name, folders, self._task.private, *buffers)
        try:
            while True:
                self._wait_for(news)
                event, content = ray.get(next(news))
                if event == "result":
                    return content
                self._take(event, content)
        except RayTaskError as error:
            raise Failed(f"{self._task.what} failed ({error_kind(error.cause)})") from None
        except (RayError, StopIteration) as error:
            raise _LostNode(type(error).__name__, self._had_come_on) from None
        finally:
            _end(news)

    def _wait_for(self, news: Any) -> None:
        """Until there is something; before it begins, no longer than a GPU is worth waiting for."""
        import ray

        since = any_gpu = time.monotonic()
        told = False
        while not ray.wait([news], timeout=_SECONDS_BETWEEN_NEWS)[0]:
            now = time.monotonic()
            if self._began:
                continue
            if now - since > _SECONDS_TO_WAIT:
                raise _NotThere(f"no GPU of the cluster was free for {_SECONDS_TO_WAIT:.0f} s")
            if _gpus() >= 1 or (now - any_gpu > _SECONDS_WITHOUT_ANY and grows()):
                any_gpu = now
            if now - any_gpu > _SECONDS_WITHOUT_ANY:
                raise _NotThere("the cluster has no GPU any more")
            if not told and now - since > _SECONDS_WITHOUT_ANY:
                told = True
                self._console.info(f"{self._task.what} waits for a GPU of the cluster")

    def _take(self, event: str, content: Any) -> None:
        task = self._task
        if event == "began":
            self._began = True
            lacking = ": it was given a GPU that torch cannot use there" if content.lacks_gpu else ""
            self._console.info(f"{task.what} is trained on node {content}{lacking}")
        elif event == "kept" and task.kept is not None:
            self._had_come_on = True
            make_folder(task.kept.parent, 0o700)
            write_atomically(task.kept, lambda path: path.write_bytes(content))
        elif event == "progress":
            self._progress(*content)
        elif event == "unseen":
            raise _NotThere(content)
        elif event == "failed":
            raise content


def _packed(task: RemoteTask) -> tuple[bytes, list[np.ndarray]]:
    """The function and its arguments as bytes, and the content of arrays apart, which Ray passes without copies."""
    from ray import cloudpickle

    buffers: list[pickle.PickleBuffer] = []
    packed = cloudpickle.dumps((task.function, task.arguments), protocol=5, buffer_callback=buffers.append)
    return packed, [np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers]


def _gpus() -> float:
    import ray

    return float(ray.cluster_resources().get("GPU", 0))


def _end(news: Any) -> None:
    """Stop a task that is still at work; it has a moment to remove its files."""
    import ray

    with suppress(Exception):
        ray.cancel(news)
        deadline = time.monotonic() + _SECONDS_TO_STOP
        while time.monotonic() < deadline:
            if ray.wait([news], timeout=_SECONDS_BETWEEN_NEWS)[0]:
                next(news)  # until it has none, which is raised
        ray.cancel(news, force=True)


def _streamed(
    packed: bytes, state: bytes | None, name: str, folders: list[str], private: bool, *buffers: np.ndarray
) -> Iterator[tuple[str, Any]]:
    """On the node: pairs of what happened and its content, ending with a result, a failure or what is not there."""
    if private:
        silence()
    with tempfile.TemporaryDirectory(prefix="pate-", ignore_cleanup_errors=True) as scratch:  # mode 0700
        yield "began", _place_of_task()
        work = _Work(packed, buffers, folders, Path(scratch) / name, private)
        if state is not None:
            work.kept.write_bytes(state)
        yield from work.news_until_done()


def _place_of_task() -> Place:
    import ray

    return here()._replace(node=ray.get_runtime_context().get_node_id())


class _Work:
    """The function in a thread of its own, so that this one can tell of it."""

    def __init__(self, packed: bytes, buffers: Any, folders: list[str], kept: Path, private: bool) -> None:
        self._packed, self._buffers, self._folders, self._private = packed, buffers, folders, private
        self.kept = kept
        self._latest: tuple[Any, ...] | None = None
        self._outcome: tuple[str, Any] = "failed", RunError("the task ended without a result")
        self._stopped = False

    def news_until_done(self) -> Iterator[tuple[str, Any]]:
        thread = threading.Thread(target=self._run, name=THREAD, daemon=True)
        known = _version(self.kept)
        thread.start()
        try:
            over = False
            while not over:
                thread.join(_SECONDS_BETWEEN_NEWS)
                over = not thread.is_alive()
                latest, self._latest = self._latest, None  # before the state, which is then at least as new
                if (now := _version(self.kept)) != known:
                    known = now
                    yield "kept", self.kept.read_bytes()
                if latest is not None:
                    yield "progress", latest
            yield self._outcome
        finally:
            self._stopped = True
            thread.join(_SECONDS_TO_STOP)

    def _run(self) -> None:
        for folder in self._folders:
            make_importable(Path(folder))
        try:
            function, arguments = pickle.loads(self._packed, buffers=self._buffers)
        except Exception as error:
            self._outcome = "unseen", self._unseen(f"cannot load it ({error_kind(error)})")
            return
        call = guarded("training")(function) if self._private else function
        try:
            with one_thread():  # Ray sets OMP_NUM_THREADS to the CPUs that it gave
                self._outcome = "result", call(*arguments, kept=self.kept, progress=self._tell)
        except _Stopped:
            pass
        except Exception as error:
            missing = any(not Path(folder).is_dir() for folder in self._folders)
            if missing and isinstance(error, ConfigError):
                self._outcome = "unseen", self._unseen("lacks something that the config names")
            else:
                self._outcome = "failed", _sendable(error)

    def _tell(self, *progress: Any) -> None:
        if self._stopped:
            raise _Stopped
        self._latest = progress

    def _unseen(self, why: str) -> str:
        missing = [folder for folder in self._folders if not Path(folder).is_dir()]
        where = f", and has no folder {missing[0]}" if missing else ""
        return f"node {socket.gethostname()} {why}{where}"


class _Stopped(BaseException):
    """Nobody waits for the result any more."""


def _version(path: Path) -> tuple[int, ...] | None:
    try:
        about = path.stat()
    except OSError:
        return None
    return about.st_ino, about.st_mtime_ns, about.st_size


def _sendable(error: Exception) -> Exception:
    """An error that can be sent to another process, and says the same."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
