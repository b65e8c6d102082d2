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
from typing import Any

from pate.boundary._guard import Failed, error_kind, guarded, silence
from pate.cluster._resources import grows, has_gpus
from pate.components._registry import config_folder, make_importable
from pate.errors import ConfigError, RunError
from pate.networks._process import one_thread
from pate.runs._console import Console
from pate.storage._files import make_folder, write_atomically

_MAX_LOST = 3  # in a row, without any new state in between
_SECONDS_TO_WAIT = 600.0  # for a GPU that is busy, or to come
_SECONDS_BETWEEN_LOOKS = 30.0  # at whether the cluster has a GPU, or could bring one, while the task waits for it
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


class _NotThere(Exception):
    """No node can run it: for want of a GPU that is free, or of the user's own files."""


class _LostNode(Exception):
    """The task ended with its node or process: how, and whether it had kept anything new by then."""


def gpu_on_cluster(device: str) -> bool:
    """Whether what would take `device` can have a GPU of the cluster that this process has joined, and has none here.

    One that the cluster's autoscaler would bring counts. `device` is that of a model: auto, or one that the user
    chose, which is to be had here. A Ray that was started here has no GPU that this process lacks.
    """
    if device != "auto" or "ray" not in sys.modules or not sys.modules["ray"].is_initialized():
        return False
    import torch

    return not torch.cuda.is_available() and has_gpus()


def here() -> str:
    """This process as a place to train in: its machine and device."""
    import torch

    device = f"GPU {torch.cuda.get_device_name()}" if torch.cuda.is_available() else "CPU"
    return f"{socket.gethostname()}, {device}"


def on_gpu(task: RemoteTask, progress: Progress, console: Console) -> Any:
    """What the function of `task` returns, from a GPU of the cluster; else from here, and a line says why.

    `progress` is called here, and `task.kept` is a file here. RunError if the task was lost too often.
    """
    import ray

    sent, lost = ray.put((task.function, task.arguments)), 0
    while True:
        try:
            return _attempt(task, sent, progress, console)
        except _NotThere as reason:
            console.info(f"note: {task.what} is trained here instead: {reason}")
            return task.function(*task.arguments, kept=task.kept, progress=progress)
        except _LostNode as error:
            how, came_on = error.args
            lost = 1 if came_on else lost + 1
            if lost >= _MAX_LOST:
                text = (
                    f"{task.what}: the task that trained it was lost {lost} times in a row ({how}); all that was "
                    "paid for is kept. See that GPU nodes stay and have memory enough, then go on with {resume}"
                )
                raise RunError(text, resume=True) from None
            console.info(f"note: {task.what}: the node that trained it was lost ({how}); it goes on, on another")


def _attempt(task: RemoteTask, sent: Any, progress: Progress, console: Console) -> Any:
    """One Ray task, followed to its end."""
    import ray
    from ray.exceptions import RayError, RayTaskError
    from ray.util.queue import Queue
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    beside_us = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    news = Queue(actor_options={"num_cpus": 0, "scheduling_strategy": beside_us})
    name, state = "state", None
    if task.kept is not None:
        name, state = task.kept.name, task.kept.read_bytes() if task.kept.is_file() else None
    # no retries by Ray: it would begin without the state. The function is in a list, for the task itself to load.
    remote = ray.remote(num_cpus=1, num_gpus=1, max_retries=0)(_work).options(name=task.what)
    call = remote.remote([sent], state, name, config_folder(), task.private, news)
    waits_since = time.monotonic()
    began, came_on, looks = False, False, 0
    try:
        while True:
            done = ray.wait([call], timeout=_SECONDS_BETWEEN_NEWS)[0]  # before the news, which are then all there
            for event, content in news.get_nowait_batch(news.qsize()):
                if event == "began":
                    began = True
                    console.info(f"{task.what} is trained on node {content}")
                elif event == "progress":
                    progress(*content)
                elif task.kept is not None:
                    came_on = True
                    make_folder(task.kept.parent, 0o700)
                    write_atomically(task.kept, content)
            if done:
                end, content = ray.get(call)
                if end == "result":
                    return content
                raise content
            waited = time.monotonic() - waits_since
            if not began and waited > _SECONDS_TO_WAIT:
                raise _NotThere(f"no GPU of the cluster was free for {_SECONDS_TO_WAIT:.0f} s")
            if not began and waited > (looks + 1) * _SECONDS_BETWEEN_LOOKS:
                if ray.cluster_resources().get("GPU", 0) < 1 and not grows():
                    raise _NotThere("the cluster has no GPU any more")
                if not looks:
                    console.info(f"{task.what} waits for a GPU of the cluster")
                looks += 1
    except RayTaskError as error:
        raise Failed(f"{task.what} failed ({error_kind(error.cause)})") from None
    except RayError as error:
        raise _LostNode(type(error).__name__, came_on) from None
    finally:
        with suppress(Exception):  # stop it if it is still at work; it has a moment to remove its files
            ray.cancel(call)
            ray.wait([call], timeout=_SECONDS_TO_STOP)
            ray.cancel(call, force=True)
        with suppress(Exception):
            news.shutdown(force=True)


def _work(
    sent: list[Any], state: bytes | None, name: str, folder: Path | None, private: bool, news: Any
) -> tuple[str, Any]:
    """On the node: a result, or an error, as pairs of which of them it is and its content.

    `news` is a queue of pairs of what happened meanwhile (began, kept, progress) and its content.
    """
    import ray
    import torch

    if private:
        silence()
    node, lacks_folder = f"node {socket.gethostname()}", folder is not None and not folder.is_dir()
    without = f", and has no folder {folder}" if lacks_folder else ""
    if folder is not None:
        make_importable(folder)
    try:
        function, arguments = ray.get(sent[0])
    except Exception as error:
        return "error", _NotThere(f"{node} cannot load it ({error_kind(error)}){without}")
    with tempfile.TemporaryDirectory(prefix="pate-", ignore_cleanup_errors=True) as scratch:  # mode 0700
        kept, at = Path(scratch) / name, 0.0
        if state is not None:
            kept.write_bytes(state)
        known = _changed(kept)
        latest: list[tuple[str, Any]] = []

        def progress(*content: Any) -> None:
            nonlocal known, at
            latest[:] = [("progress", content)]
            if time.monotonic() - at < _SECONDS_BETWEEN_NEWS:
                return
            if (now := _changed(kept)) != known:
                known = now
                news.put(("kept", kept.read_bytes()))
            news.put(latest.pop())
            at = time.monotonic()

        lacking = "" if torch.cuda.is_available() else ": it was given a GPU that torch cannot use there"
        news.put(("began", f"{here()}{lacking}"))
        train = guarded("training")(function) if private else function
        try:
            with one_thread():  # Ray sets OMP_NUM_THREADS to the CPUs that it gave
                result = train(*arguments, kept=kept, progress=progress)
        except Exception as error:
            if lacks_folder and isinstance(error, ConfigError):
                return "error", _NotThere(f"{node} lacks something that the config names{without}")
            try:
                pickle.loads(pickle.dumps(error))
            except Exception:
                return "error", RuntimeError(f"{type(error).__name__}: {error}")
            return "error", error
        for last in latest:
            news.put(last)
        return "result", result


def _changed(path: Path) -> tuple[int, int] | None:
    """What differs whenever another file has taken that name."""
    return (path.stat().st_ino, path.stat().st_mtime_ns) if path.exists() else None
