"""A plain function on a GPU of the cluster that was joined, where this process has none: networks that train for long.

Nothing is sent but the function, by name, and its arguments: so whoever makes a `RemoteTask` decides what leaves this
process. It runs as one Ray task, with one CPU and one GPU. Its progress, and the file that it keeps its state in, come
back while it runs; a task that is lost with its node begins again from that file.
"""

from __future__ import annotations

import pickle
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pate.boundary._guard import Failed, error_kind, guarded, silence
from pate.cluster._resources import grows, has_gpus
from pate.components._registry import config_folder, make_importable
from pate.errors import ConfigError, RunError
from pate.networks._process import one_thread
from pate.runs._console import Console
from pate.storage._files import make_folder, write_atomically

_MAX_LOST = 3  # in a row, without any new state in between
_SECONDS_TO_WAIT = 600.0  # for a GPU that is busy, or to come
_SECONDS_WITHOUT_ANY = 30.0  # until a cluster that lost its last GPU, and brings no other, is no longer waited for
_SECONDS_BETWEEN_NEWS = 0.5
_SECONDS_TO_STOP = 5.0

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


class _Place(NamedTuple):
    """Where a task runs."""

    host: str
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


def here() -> _Place:
    """This process as a place to train in."""
    import torch

    usable = torch.cuda.is_available()
    device = f"GPU {torch.cuda.get_device_name()}" if usable else "CPU"
    return _Place(socket.gethostname(), device, lacks_gpu=not usable)


def on_gpu(task: RemoteTask, progress: Progress, console: Console) -> Any:
    """What the function of `task` returns, from a GPU of the cluster; else from here, and a line says why.

    `progress` is called here, and `task.kept` is a file here. RunError if the task was lost too often.
    """
    import ray

    sent = ray.put((task.function, task.arguments))
    lost = 0
    while True:
        try:
            return _attempt(task, sent, progress, console)
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


def _attempt(task: RemoteTask, sent: Any, progress: Progress, console: Console) -> Any:
    """One Ray task, followed to its end."""
    import ray
    from ray.exceptions import RayError, RayTaskError
    from ray.util.queue import Queue
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    beside_us = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    news = Queue(actor_options={"num_cpus": 0, "scheduling_strategy": beside_us})
    state = task.kept.read_bytes() if task.kept is not None and task.kept.is_file() else None
    folders = [str(folder)] if (folder := config_folder()) else []
    # no retries by Ray: it would begin without the state. The function is in a list, for the task itself to load.
    remote = ray.remote(num_cpus=1, num_gpus=1, max_retries=0)(_work).options(name=task.what)
    name = "state" if task.kept is None else task.kept.name
    call = remote.remote([sent], state, name, folders, task.private, news)
    since = any_gpu = time.monotonic()
    began = had_come_on = waits = False
    try:
        while True:
            done = ray.wait([call], timeout=_SECONDS_BETWEEN_NEWS)[0]  # before the news, which are then all there
            for event, content in news.get_nowait_batch(news.qsize()):
                if event == "began":
                    began = True
                    lacking = ": it was given a GPU that torch cannot use there" if content.lacks_gpu else ""
                    console.info(f"{task.what} is trained on node {content}{lacking}")
                elif event == "progress":
                    progress(*content)
                elif task.kept is not None:
                    had_come_on = True
                    make_folder(task.kept.parent, 0o700)
                    write_atomically(task.kept, content)
            if done:
                end, content = ray.get(call)
                if end == "unseen":
                    raise _NotThere(content)
                if end == "failed":
                    raise content
                return content
            now = time.monotonic()
            if began:
                continue
            if now - since > _SECONDS_TO_WAIT:
                raise _NotThere(f"no GPU of the cluster was free for {_SECONDS_TO_WAIT:.0f} s")
            if ray.cluster_resources().get("GPU", 0) >= 1 or (now - any_gpu > _SECONDS_WITHOUT_ANY and grows()):
                any_gpu = now
            if now - any_gpu > _SECONDS_WITHOUT_ANY:
                raise _NotThere("the cluster has no GPU any more")
            if not waits and now - since > _SECONDS_WITHOUT_ANY:
                waits = True
                console.info(f"{task.what} waits for a GPU of the cluster")
    except RayTaskError as error:
        raise Failed(f"{task.what} failed ({error_kind(error.cause)})") from None
    except RayError as error:
        raise _LostNode(type(error).__name__, had_come_on) from None
    finally:
        with suppress(Exception):  # stop it if it is still at work; it has a moment to remove its files
            ray.cancel(call)
            ray.wait([call], timeout=_SECONDS_TO_STOP)
            ray.cancel(call, force=True)
        with suppress(Exception):
            news.shutdown(force=True)


def _work(
    function: list[Any], state: bytes | None, name: str, folders: list[str], private: bool, news: Any
) -> tuple[str, Any]:
    """On the node: how it ended (a result, a failure, or what is not there) and its content.

    `news` is a queue of pairs of what happened meanwhile and its content.
    """
    import ray

    if private:
        silence()
    for folder in folders:
        make_importable(Path(folder))
    missing = [folder for folder in folders if not Path(folder).is_dir()]
    unseen = f"node {socket.gethostname()} {{}}" + (f", and has no folder {missing[0]}" if missing else "")
    try:
        call, arguments = ray.get(function[0])
    except Exception as error:
        return "unseen", unseen.format(f"cannot load it ({error_kind(error)})")
    with tempfile.TemporaryDirectory(prefix="pate-", ignore_cleanup_errors=True) as scratch:  # mode 0700
        kept, known, latest, told = Path(scratch) / name, 0, None, 0.0
        if state is not None:
            kept.write_bytes(state)
            known = _version(kept)

        def tell(*progress: Any) -> None:
            nonlocal latest, known, told
            latest = progress
            if time.monotonic() - told < _SECONDS_BETWEEN_NEWS:
                return
            if (now := _version(kept)) != known:
                known = now
                news.put(("kept", kept.read_bytes()))
            news.put(("progress", latest))
            latest, told = None, time.monotonic()

        news.put(("began", here()))
        try:
            with one_thread():  # Ray sets OMP_NUM_THREADS to the CPUs that it gave
                result = (guarded("training")(call) if private else call)(*arguments, kept=kept, progress=tell)
        except Exception as error:
            if missing and isinstance(error, ConfigError):
                return "unseen", unseen.format("lacks something that the config names")
            try:
                pickle.loads(pickle.dumps(error))
            except Exception:
                return "failed", RuntimeError(f"{type(error).__name__}: {error}")
            return "failed", error
        if latest is not None:
            news.put(("progress", latest))
        return "result", result


def _version(path: Path) -> int:
    """A number that differs whenever another file has taken that name; 0 where there is none."""
    return hash((path.stat().st_ino, path.stat().st_mtime_ns)) if path.exists() else 0
