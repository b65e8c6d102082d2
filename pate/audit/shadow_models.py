"""Membership inference by shadow models: models of a known kind, to compare the model under attack with.

They learn from random halves of the examples asked about, so that every example is in exactly half of them. Of a shadow
model only its confidence in each example is kept, in a file of its own below a private folder: so an interrupted audit
goes on, and models under attack share the shadows of a kind. They are trained as tasks of a Ray that this process has
joined, else by local processes.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.audit._target import Subject, Trainer
from pate.audit.membership import Asked, Scores, asked_about, confidence, membership_result
from pate.audit.results import Attack, AttackResult, Options, scratch_folder
from pate.boundary._guard import guarded
from pate.components._registry import config_folder, make_importable
from pate.networks._process import limit_threads, usable_cpus
from pate.storage._files import make_folder, write_arrays

_ASSUMES = (
    "the attacker has the model's probabilities, records with true labels, and trains {} shadow models ({}) on data of "
    "the same source"
)
_OTHER_KIND = (
    "shadow models are of the kind without privacy: the attacker calibrates how hard each record is, and does not "
    "imitate the whole pipeline"
)
_WORTH_A_PROCESS = 6.0  # seconds of training that are left: starting processes takes some of them
_ENOUGH_FOR_A_SPREAD_EACH = 64
_MIN_SPREAD = 1e-3


@dataclass(frozen=True)
class Shadows:
    """What shadow models say of the examples asked about. `own_kind`: trained as the model under attack was."""

    inside: NDArray[np.bool_]
    """bool[shadows, examples]: whom each was trained on."""
    confidence: Scores
    """float[shadows, examples]"""
    description: str
    own_kind: bool


class _ShadowAttack(Attack):
    """An attack that compares the model's confidence in each example with that of shadow models."""

    def run(self, subject: Subject, options: Options) -> Iterable[AttackResult]:
        asked = asked_about(subject, options)
        shadows = shadows_for(subject, asked, options)
        observed = confidence(subject.model, asked.X, asked.y)
        if not shadows.own_kind:  # with the shadows' mean and spread
            spread = max(float(observed.std()), _MIN_SPREAD)
            observed = (observed - observed.mean()) / spread * shadows.confidence.std() + shadows.confidence.mean()
        assumes = _ASSUMES.format(options.shadows, shadows.description)
        note = "" if shadows.own_kind else _OTHER_KIND
        for name, scores in self.scores(observed, shadows, len(asked.members)):
            yield membership_result(name, subject, options, assumes, asked, scores, note)

    @abstractmethod
    def scores(self, observed: Scores, shadows: Shadows, n_members: int) -> Iterable[tuple[str, Scores]]:
        """The attack's names and scores of all examples, given how sure the model is of each."""


class LiRA(_ShadowAttack):
    """Likelihood ratios against shadow models.

    Carlini, Chien, Nasr, Song, Terzis, Tramèr 2022, "Membership Inference Attacks From First Principles". For each
    example, shadow models that learned from it and those that did not give two normal distributions of confidence;
    online, the score is the ratio of their densities at the model's confidence; offline only the models without it are
    used, and the score is how far above them the model is. With fewer than 64 shadow models the spread is pooled over
    examples, as the paper does.
    """

    name, title = "lira", "LiRA"
    explanation = (
        "Trains models of its own on similar data, with and without the record, and asks which of them the model looks "
        "like. The strongest attack on single records."
    )

    def scores(self, observed: Scores, shadows: Shadows, n_members: int) -> Iterable[tuple[str, Scores]]:
        mean_in, spread_in = _normal(shadows.confidence, shadows.inside)
        mean_out, spread_out = _normal(shadows.confidence, ~shadows.inside)
        inside, outside = (observed - mean_in) / spread_in, (observed - mean_out) / spread_out
        yield "LiRA, online", (-0.5 * inside**2 - np.log(spread_in)) - (-0.5 * outside**2 - np.log(spread_out))
        yield "LiRA, offline", outside


class RMIA(_ShadowAttack):
    """Robust membership inference (Zarifzadeh, Liu, Shokri 2024, "Low-Cost High-Power Membership Inference Attacks").

    How much likelier the model makes an example than models at large do, p(x | model)/p(x), is compared with the same
    ratio of records outside: the score is the share of those that it exceeds (by the paper's factor γ = 1), ties by the
    ratio itself. It gains most where there are few shadow models.
    """

    name, title = "rmia", "RMIA"
    explanation = (
        "Also trains models of its own, and compares how much likelier the model makes this record than others that "
        "were certainly outside."
    )

    def scores(self, observed: Scores, shadows: Shadows, n_members: int) -> Iterable[tuple[str, Scores]]:
        probable = _probability(shadows.confidence)
        groups = (np.ma.masked_array(probable, ~which) for which in (shadows.inside, ~shadows.inside))
        mean = sum(group.mean(axis=0).filled(0.5) for group in groups) / 2
        ratio = _probability(observed) / np.maximum(mean, 1e-12)
        population = np.sort(ratio[n_members:])
        share = np.searchsorted(population, ratio, side="right") / len(population)
        yield "RMIA", share + 1e-6 * ratio / max(float(ratio.max()), 1e-12)


def _normal(values: Scores, which: NDArray[np.bool_]) -> tuple[Scores, Scores]:
    """Mean and standard deviation of each column over the rows that `which` selects in it."""
    chosen = np.ma.masked_array(values, ~which)
    mean = chosen.mean(axis=0).filled(0.0)
    if len(values) >= _ENOUGH_FOR_A_SPREAD_EACH:
        spread = chosen.std(axis=0).filled(1.0)
    else:
        spread = np.full(values.shape[1], float((chosen - mean).std()))
    return np.asarray(mean), np.maximum(np.asarray(spread), _MIN_SPREAD)


def _probability(confidence: Scores) -> Scores:
    return 1 / (1 + np.exp(-np.clip(confidence, -40, 40)))


# Training them


def shadows_for(subject: Subject, asked: Asked, options: Options) -> Shadows:
    """Shadow models of the kind of the model under attack; for a student, and where it must be quick, of the kind
    without privacy."""
    own_kind = subject.kind == "without privacy" or (subject.kind == "baseline" and not options.quick)
    trainer: Trainer = subject.trainer if own_kind else subject.reference
    inside = halves(options.shadows, len(asked.X), options.seed)
    task = _Task(trainer, options.seed + 1_000)
    with scratch_folder() as folder:
        if options.work is not None:
            folder = options.work / f"shadows-{_digest(task, asked, options)}"
            make_folder(folder, 0o700)
        files = [folder / f"{number}.npy" for number in range(options.shadows)]
        missing = [number for number, file in enumerate(files) if not file.exists()]
        if missing:
            with options.console.track(f"shadow models ({trainer.description})", options.shadows) as update:
                found = _trained(task, missing, inside, asked.X, asked.y, options.processes)
                for done, (number, values) in enumerate(found, start=options.shadows - len(missing) + 1):
                    write_arrays(files[number], values, durable=False)
                    update(done)
        kept = np.stack([np.load(file, allow_pickle=False) for file in files])
    return Shadows(inside, kept.astype(np.float64), trainer.description, own_kind)


def halves(shadows: int, examples: int, seed: int) -> NDArray[np.bool_]:
    """Whom each shadow model is trained on: each example is in half of them."""
    order = np.random.default_rng([seed, 3]).random((shadows, examples)).argsort(axis=0)
    return order < shadows // 2


@dataclass(frozen=True)
class _Task:
    """Trains shadow models; goes to another process."""

    trainer: Trainer
    seed: int

    @guarded("a shadow model")
    def run(self, number: int, inside: NDArray[np.bool_], X: NDArray, y: NDArray[np.int64]) -> NDArray[np.float32]:
        """The confidence of one model in each example."""
        model = self.trainer.train(X[inside], y[inside], self.seed + number)
        return confidence(model, X, y).astype(np.float32)


def _trained(
    task: _Task, missing: list[int], inside: NDArray[np.bool_], X: NDArray, y: NDArray[np.int64], processes: int
) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Each missing shadow's confidences, as they come."""
    if "ray" in sys.modules and sys.modules["ray"].is_initialized():
        yield from _trained_by_ray(task, missing, inside, X, y)
        return
    started = time.perf_counter()
    yield missing[0], task.run(missing[0], inside[missing[0]], X, y)
    each, rest = time.perf_counter() - started, missing[1:]
    processes = min(processes or usable_cpus(), len(rest))
    if processes < 2 or each * len(rest) < _WORTH_A_PROCESS:
        for number in rest:
            yield number, task.run(number, inside[number], X, y)
        return
    with ProcessPoolExecutor(processes, get_context("spawn"), _begin, (config_folder(), task, X, y)) as pool:
        waiting = {pool.submit(_run_here, number, inside[number]): number for number in rest}
        for ended in as_completed(waiting):
            yield waiting[ended], ended.result()


def _trained_by_ray(
    task: _Task, missing: list[int], inside: NDArray[np.bool_], X: NDArray, y: NDArray[np.int64]
) -> Iterator[tuple[int, NDArray[np.float32]]]:
    import ray

    folder = config_folder()

    @ray.remote(max_retries=3)
    def train(number: int, mask: NDArray[np.bool_], X: NDArray, y: NDArray[np.int64]) -> NDArray[np.float32]:
        limit_threads()
        if folder is not None:
            make_importable(folder)
        return task.run(number, mask, X, y)

    shared = ray.put(X), ray.put(y)
    waiting = {train.remote(number, inside[number], *shared): number for number in missing}
    while waiting:
        ended, _ = ray.wait(list(waiting))
        for one in ended:
            yield waiting.pop(one), ray.get(one)


_here: dict[str, Any] = {}  # the task and the examples of a process that trains shadows


def _begin(folder: Path | None, task: _Task, X: NDArray, y: NDArray[np.int64]) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    limit_threads()
    if folder is not None:
        make_importable(folder)
    _here.update(task=task, X=X, y=y)


def _run_here(number: int, mask: NDArray[np.bool_]) -> NDArray[np.float32]:
    found: NDArray[np.float32] = _here["task"].run(number, mask, _here["X"], _here["y"])
    return found


def _digest(task: _Task, asked: Asked, options: Options) -> str:
    """Equal for the same shadow models: their kind, seed and number, and the examples in their order."""
    digest = hashlib.blake2b(digest_size=12)
    digest.update(repr((task, options.shadows)).encode())
    for array in (asked.X, asked.y):
        digest.update(repr((array.shape, str(array.dtype))).encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
