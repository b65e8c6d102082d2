"""Shadow models: models of a known kind on random halves of the examples asked about, to compare a model with.

Every example is in exactly half of them. Of a shadow model only its confidence in each example is kept, in a file of
its own below a private folder: so an interrupted audit goes on, and models under attack share the shadows of a kind.
They are trained as tasks of a Ray that this process has joined, else by local processes.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from pate.audit.learners import Trainer
from pate.audit.membership import Asked, Scores, confidence
from pate.audit.results import Options
from pate.audit.target import Subject
from pate.boundary.guard import guarded
from pate.networks.threads import usable_cpus
from pate.storage.files import write_atomically

_WORTH_A_PROCESS = 6.0  # seconds of training that are left: starting processes takes some of them


@dataclass(frozen=True)
class Shadows:
    """What shadow models say of the examples asked about. `own_kind`: trained as the model under attack was."""

    inside: NDArray[np.bool_]
    """bool[shadows, examples]: whom each was trained on."""
    confidence: Scores
    """float[shadows, examples]"""
    description: str
    own_kind: bool


@dataclass(frozen=True)
class _Task:
    """One shadow model; goes to another process."""

    trainer: Trainer
    seed: int

    @guarded("a shadow model")
    def run(self, number: int, inside: NDArray[np.bool_], X: NDArray, y: NDArray[np.int64]) -> NDArray[np.float32]:
        """The model's confidence in each example."""
        model = self.trainer.train(X[inside], y[inside], self.seed + number)
        return confidence(model, X, y).astype(np.float32)


def shadows_for(subject: Subject, asked: Asked, options: Options) -> Shadows:
    """Shadow models of the kind of the model under attack; for a student, and where it must be quick, of the kind
    without privacy."""
    own_kind = subject.kind == "without privacy" or (subject.kind == "baseline" and not options.quick)
    trainer: Trainer = subject.trainer if own_kind else subject.reference
    inside = halves(options.shadows, len(asked.X), options.seed)
    task = _Task(trainer, options.seed + 1_000)
    with _folder(options.work, _digest(task, asked, options)) as folder:
        missing = [n for n in range(options.shadows) if not _file(folder, n).exists()]
        if missing:
            with options.console.track(f"shadow models ({trainer.description})", options.shadows) as update:
                done = options.shadows - len(missing)
                for number, values in _trained(task, missing, inside, asked, options):
                    _store(_file(folder, number), values)
                    done += 1
                    update(done)
        found = np.stack([np.load(_file(folder, n), allow_pickle=False) for n in range(options.shadows)])
    return Shadows(inside, found.astype(np.float64), trainer.description, own_kind)


def halves(shadows: int, examples: int, seed: int) -> NDArray[np.bool_]:
    """Whom each shadow model is trained on: each example is in half of them."""
    order = np.random.default_rng([seed, 3]).random((shadows, examples)).argsort(axis=0)
    return order < shadows // 2


def _trained(
    task: _Task, missing: list[int], inside: NDArray[np.bool_], asked: Asked, options: Options
) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Each missing shadow's confidences, as they come."""
    X, y = asked.X, asked.y
    if "ray" in sys.modules and sys.modules["ray"].is_initialized():
        yield from _by_ray(task, missing, inside, X, y)
        return
    started = time.perf_counter()
    yield missing[0], task.run(missing[0], inside[missing[0]], X, y)
    each = time.perf_counter() - started
    rest = missing[1:]
    processes = min(options.processes or usable_cpus(), len(rest))
    if processes < 2 or each * len(rest) < _WORTH_A_PROCESS:
        for number in rest:
            yield number, task.run(number, inside[number], X, y)
        return
    with ProcessPoolExecutor(processes, get_context("spawn"), _begin, (task, X, y)) as pool:
        waiting = {pool.submit(_run_here, number, inside[number]): number for number in rest}
        for ended in as_completed(waiting):
            yield waiting[ended], ended.result()


def _by_ray(
    task: _Task, missing: list[int], inside: NDArray[np.bool_], X: NDArray, y: NDArray[np.int64]
) -> Iterator[tuple[int, NDArray[np.float32]]]:
    import ray

    @ray.remote(max_retries=3)
    def train(number: int, mask: NDArray[np.bool_], X: NDArray, y: NDArray[np.int64]) -> NDArray[np.float32]:
        from pate.networks.threads import limit_threads

        limit_threads()
        return task.run(number, mask, X, y)

    shared = ray.put(X), ray.put(y)
    waiting = {train.remote(number, inside[number], *shared): number for number in missing}
    while waiting:
        ended, _ = ray.wait(list(waiting))
        for one in ended:
            yield waiting.pop(one), ray.get(one)


_here: list[Callable[[int, NDArray[np.bool_]], NDArray[np.float32]]] = []  # of a process that trains shadows


def _begin(task: _Task, X: NDArray, y: NDArray[np.int64]) -> None:
    from pate.networks.threads import limit_threads

    os.environ["OMP_NUM_THREADS"] = "1"
    limit_threads()
    _here.append(lambda number, mask: task.run(number, mask, X, y))


def _run_here(number: int, mask: NDArray[np.bool_]) -> NDArray[np.float32]:
    return _here[0](number, mask)


def _digest(task: _Task, asked: Asked, options: Options) -> str:
    """Equal for the same shadow models: their kind, seed and number, and the examples in their order."""
    digest = hashlib.blake2b(digest_size=12)
    digest.update(repr((task, options.shadows)).encode())
    for array in (asked.X, asked.y):
        digest.update(repr((array.shape, str(array.dtype))).encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _folder(work: Path | None, name: str) -> _Kept | TemporaryDirectory[str]:
    return TemporaryDirectory(prefix="pate-shadows-") if work is None else _Kept(work / f"shadows-{name}")


class _Kept:
    """A private folder that stays, as a context manager."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> str:
        for folder in (self.path.parent, self.path):
            folder.mkdir(exist_ok=True, mode=0o700)
        return str(self.path)

    def __exit__(self, *error: object) -> None:
        pass


def _file(folder: str, number: int) -> Path:
    return Path(folder) / f"{number}.npy"


def _store(path: Path, values: NDArray[np.float32]) -> None:
    def write(partial: Path) -> None:
        with partial.open("wb") as file:
            np.save(file, values, allow_pickle=False)

    write_atomically(path, write, durable=False)
