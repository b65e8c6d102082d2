"""Workers that train teachers and count their votes.

`Worker` is a plain class, tested without Ray; `pate.voters.teachers._pool` runs it as an actor. A worker receives its
own parts only and returns counts with the parts they cover, never a single teacher's prediction. What goes wrong inside
a worker is reported by kind, never by message, which could quote a record.
"""

from __future__ import annotations

import json
import math
import os
import time
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pate.boundary import PartialCounts
from pate.boundary._guard import error_kind, guarded, guarded_class, raised_by_pate, silence
from pate.components._registry import import_folders, make_importable
from pate.config._components import Resources
from pate.data._shards import Block
from pate.errors import ConfigError
from pate.features import Features, Transform
from pate.networks._process import limit_threads, limit_torch_threads, seeded_globally
from pate.teachers import PartClassifier, Recipe, assign_recipes, constant, pack, recipes, seed_of_part, unpack
from pate.voters._readers import answers

if TYPE_CHECKING:
    from pate.config import RaySettings
    from pate.voters.teachers import TeachersConfig

STACK = 25  # networks trained at once, where that is faster
_ATTEMPTS = 2
QUERIES_AT_ONCE = 2000
_EXAMPLES_TO_TRY = 4  # per class, to find out in words what is wrong with a recipe

Records = tuple[NDArray, NDArray[np.int64]]
PartData = Callable[[int], "Records | RemotePart"]
_Made = tuple[PartClassifier, bytes, str | None]


@dataclass(frozen=True)
class RemotePart:
    """The records of one part, to be fetched from the readers by the worker that needs them."""

    readers: tuple[Any, ...]
    part: int

    def fetch(self) -> Records:
        """All records of the part, in the same order whoever reads them."""
        return Block.merged(answers(reader.part.remote(self.part) for reader in self.readers))

    def stand_in(self, n_classes: int) -> bytes:
        """A constant in place of the part's teacher; no record comes to this process."""
        import ray

        payload: bytes
        (payload,) = answers([ray.remote(_stand_in).options(num_cpus=0).remote(self, n_classes)])
        return payload


@guarded("a reader")
def _stand_in(part: RemotePart, n_classes: int) -> bytes:
    silence()
    _, labels = part.fetch()
    return pack(constant(labels, n_classes))


@dataclass(frozen=True)
class TrainingJob:
    """Parts that are trained by one call: a stack of networks, or a single part. From the configuration alone."""

    recipe: int
    parts: tuple[int, ...]


@dataclass(frozen=True)
class Teaching:
    """Which teachers there are, from the configuration alone: the kinds of them, and the kind that each part gets."""

    kinds: Sequence[Recipe]
    n_classes: int
    seed: int
    assignment: Sequence[int] = ()
    search_path: Sequence[str] = ()
    first: Transform | None = None
    shape: tuple[int, ...] | None = None

    @classmethod
    def of(
        cls,
        config: TeachersConfig,
        n_classes: int,
        config_dir: Path = Path(),
        first: Transform | None = None,
        shape: tuple[int, ...] | None = None,
    ) -> Teaching:
        """The teachers that a config describes; the user's own classes may be in files in `config_dir`.

        `first` is a public transform that comes before the features of every kind, and `shape` that of an example.
        """
        kinds = recipes(config.teachers)
        assignment = assign_recipes(kinds, config.n_teachers)
        return cls(tuple(kinds), n_classes, config.seed, tuple(assignment), import_folders(config_dir), first, shape)

    def chains(self) -> list[int]:
        """One kind of teachers for each chain of features that any teacher has; none for examples as they are."""
        found: dict[str, int] = {}
        for kind in sorted(set(self.assignment)):
            if self.kinds[kind].features or self.first is not None:
                found.setdefault(_chain_of(self.kinds[kind]), kind)
        return list(found.values())

    def jobs(self, stacked: Collection[int] = ()) -> list[TrainingJob]:
        """All the work. `stacked`: kinds whose networks are also stacked where only a GPU trains them faster so."""
        result = []
        for number, recipe in enumerate(self.kinds):
            parts = [part for part, kind in enumerate(self.assignment) if kind == number]
            is_stack = getattr(recipe.estimator(0), "stackable" if number in stacked else "stacks_well", False)
            size = STACK if is_stack else 1
            result += [TrainingJob(number, tuple(parts[i : i + size])) for i in range(0, len(parts), size)]
        return result


@dataclass(frozen=True)
class Trained:
    """A finished teacher for the checkpoint, and the kind of failure where it is only a stand-in or a second try."""

    part: int
    payload: bytes
    failure: str | None


@guarded_class("a teacher worker")
class Worker:
    """Owns the teachers of some parts."""

    def __init__(
        self, teaching: Teaching, hide_gpus: bool = False, own_process: bool = False, threads: int = 1
    ) -> None:
        self._threads = threads
        if own_process:
            silence()  # Ray would keep in its files what the user's own classes print
            limit_threads(threads)
        if hide_gpus:  # Ray leaves those visible that it gave to nobody
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
        for folder in teaching.search_path:
            make_importable(Path(folder))
        self._kinds, self._n_classes, self._seed = teaching.kinds, teaching.n_classes, teaching.seed
        self._first = teaching.first
        self._teachers: dict[int, tuple[int, PartClassifier]] = {}
        self._chains: dict[str, Features] = {}

    def pid(self) -> int:
        """The id of the process it runs in."""
        return os.getpid()

    def warm_up(
        self, recipes: Sequence[int] = (), X_public: NDArray | None = None, gpu: bool = False
    ) -> tuple[str, bool]:
        """Ready to work: on the node of which id, and whether torch lacks the `gpu` that Ray gave it.

        Given public examples, each of these kinds of teachers is tried on a few of them first, which loads what the
        first real one would otherwise wait for.
        """
        import ray

        if X_public is not None:
            for recipe in recipes:
                with suppress(Exception):
                    self._seconds_per_teacher(recipe, X_public, _EXAMPLES_TO_TRY * self._n_classes, stack=0)
        node: str = ray.get_runtime_context().get_node_id()
        if gpu:
            import torch

            return node, not torch.cuda.is_available()
        return node, False

    def probe(self, recipe: int, X_public: NDArray, n_records: int, stack: int = 1) -> float | str:
        """Seconds per teacher, measured on public examples with made-up labels, or what is wrong with the recipe."""
        try:
            return self._seconds_per_teacher(recipe, X_public, max(n_records, 2 * self._n_classes), stack)
        except Exception as error:  # its text could tell how many records a part has
            if isinstance(error, ConfigError) and raised_by_pate(error):
                return str(error)
            kind, told = self._kinds[recipe], f"on as many examples as a part has ({error_kind(error)})"
        try:
            self._seconds_per_teacher(recipe, X_public, _EXAMPLES_TO_TRY * self._n_classes, stack)
        except Exception as error:
            told = f"on {_EXAMPLES_TO_TRY * self._n_classes} public examples: {error}"
        return f"{kind.key}.name = {kind.name!r}: cannot be fitted {told}"

    def _seconds_per_teacher(self, recipe: int, X_public: NDArray, size: int, stack: int) -> float:
        """Train on `size` public examples twice: the first time loads libraries, the second is timed (unless `stack`
        is 0)."""
        rng = np.random.default_rng(0)
        X, y = X_public[rng.integers(len(X_public), size=size)], np.arange(size) % self._n_classes
        kind, features = self._kinds[recipe], self._features(recipe)
        teacher = PartClassifier(kind.estimator(0))
        with warnings.catch_warnings(action="ignore"):
            teacher.fit(features.transform(X), y)
            unpack(pack(teacher), kind)
            _checked_votes(teacher.predict(features.transform(X[:3])), 3, self._n_classes)
            limit_torch_threads(self._threads)
            if stack == 0:
                return 0.0
            started = time.perf_counter()
            if stack > 1:
                job = TrainingJob(recipe, tuple(range(stack)))
                self._fit_stack(job, dict.fromkeys(job.parts, (features.transform(X), y)))
            else:
                teacher.fit(features.transform(X), y)
        return (time.perf_counter() - started) / stack

    def train(self, job: TrainingJob, data: Mapping[int, Records | RemotePart]) -> list[Trained]:
        """Train the teachers of the parts whose records are given; the other slots of a stack stay blank.

        A teacher that fails is trained once more with another seed, then a constant stands in. The kind of
        failure is for the operator and never published.
        """
        limit_torch_threads(self._threads)
        result = []
        read = {part: records.fetch() if isinstance(records, RemotePart) else records for part, records in data.items()}
        made = self._train_stack(job, read) if len(job.parts) > 1 else {}
        for part, records in read.items():
            teacher, payload, failure = made.get(part) or self._train_one(job.recipe, part, records)
            self._teachers[part] = job.recipe, teacher
            result.append(Trained(part, payload, failure))
        return result

    def restore(self, recipe: int, part: int, payload: bytes) -> None:
        """Take over a teacher that was trained before. The payload must be this run's own."""
        self._teachers[part] = recipe, unpack(payload, self._kinds[recipe])

    def features(self, recipe: int, X: NDArray) -> NDArray:
        """What teachers of that recipe see of public examples `X`, for all workers."""
        return self._features(recipe).transform(X)

    def count(self, X: NDArray, recipes: Sequence[int] = (), *features: NDArray) -> PartialCounts:
        """The votes of all teachers that this worker holds, on `X`.

        `features` are those of `X` for each of `recipes`, where they were computed before.
        """
        blocks = []
        for start in range(0, max(len(X), 1), QUERIES_AT_ONCE):
            block = slice(start, start + QUERIES_AT_ONCE)
            known = {_chain_of(self._kinds[kind]): found[block] for kind, found in zip(recipes, features, strict=True)}
            blocks.append(self._count(X[block], known))
        return PartialCounts(tuple(sorted(self._teachers)), np.concatenate(blocks))

    def _count(self, X: NDArray, known: dict[str, NDArray]) -> NDArray[np.int64]:
        counts = np.zeros((len(X), self._n_classes), dtype=np.int64)
        rows = np.arange(len(X))
        for part, (recipe, teacher) in self._teachers.items():
            chain = _chain_of(self._kinds[recipe])
            if chain not in known:
                known[chain] = self.features(recipe, X)
            counts[rows, self._votes(part, teacher, known[chain])] += 1
        return counts

    def _votes(self, part: int, teacher: PartClassifier, X: NDArray) -> NDArray[np.int64]:
        """One vote on each example. A teacher that cannot answer votes for class 0: it must not stop the others.

        Each teacher gets examples of its own: one that scales them in place must not reach the next.
        """
        try:
            with seeded_globally(seed_of_part(self._seed, part)), warnings.catch_warnings(action="ignore"):
                return _checked_votes(teacher.predict(X.copy()), len(X), self._n_classes)
        except Exception:
            return np.zeros(len(X), dtype=np.int64)

    def _train_one(self, recipe: int, part: int, records: Records) -> _Made:
        X, y = records
        failure = None
        for attempt in range(_ATTEMPTS):
            seed = seed_of_part(self._seed, part, attempt)
            try:
                with seeded_globally(seed), warnings.catch_warnings(action="ignore"):
                    teacher = PartClassifier(self._kinds[recipe].estimator(seed))
                    transformed = self._features(recipe).transform(X)
                    teacher.fit(transformed, y).predict(transformed[:1])
                return teacher, pack(teacher), failure
            except Exception as error:
                failure = type(error).__name__
        stand_in = constant(y, self._n_classes)
        return stand_in, pack(stand_in), failure

    def _train_stack(self, job: TrainingJob, data: Mapping[int, Records]) -> dict[int, _Made]:
        """The networks of the stack that trained well; parts that are missing have to be trained alone.

        A part that cannot take part leaves its slot blank, so that the others come out as they would anyway.
        """
        from pate.teachers.network import diverged

        slots: dict[int, Records] = {}
        for part, (X, y) in data.items():
            with suppress(Exception), seeded_globally(seed_of_part(self._seed, part)):
                transformed = np.asarray(self._features(job.recipe).transform(X), dtype=np.float32)
                usual = self._features(job.recipe).transform(np.zeros_like(X[:1])).shape[1:]
                if len(np.unique(y)) > 1 and transformed.shape == (len(y), *usual):
                    slots[part] = transformed, y
        made: dict[int, _Made] = {}
        for part, network in (self._networks(job, slots) if slots else {}).items():
            if part in slots and not diverged(network):
                teacher = PartClassifier(network)
                teacher.present_ = np.unique(slots[part][1])
                made[part] = teacher, pack(teacher), None
        return made

    def _networks(self, job: TrainingJob, slots: Mapping[int, Records]) -> dict[int, Any]:
        """Networks trained as a stack; where that fails, each alone with the other slots blank.

        Those that fail are left out; the others come out as they would have in the stack."""
        try:
            return self._fit_stack(job, slots)
        except Exception:
            networks = {}
        for part, records in slots.items():
            with suppress(Exception):
                networks[part] = self._fit_stack(job, {part: records})[part]
        return networks

    def _fit_stack(self, job: TrainingJob, data: Mapping[int, Records]) -> dict[int, Any]:
        from pate.teachers.network import fit_stack

        networks = {
            part: self._kinds[job.recipe].estimator(seed_of_part(self._seed, part, attempt=0)) for part in job.parts
        }
        X, y = next(iter(data.values()))
        blank = X[:0], y[:0]
        fit_stack(list(networks.values()), [data.get(part, blank) for part in job.parts], self._n_classes)
        return networks

    def _features(self, recipe: int) -> Features:
        """The chain of transforms; recipes with the same chain share one."""
        name = _chain_of(self._kinds[recipe])
        if name not in self._chains:
            own = self._kinds[recipe].build_features()
            self._chains[name] = own if self._first is None else Features([self._first, own])
        return self._chains[name]


def _chain_of(recipe: Recipe) -> str:
    """What the transforms before a kind of teachers are known by."""
    return json.dumps(recipe.features, sort_keys=True)


def _checked_votes(votes: Any, n_examples: int, n_classes: int) -> NDArray[np.int64]:
    """One class for each example, or an error."""
    votes = np.asarray(votes)
    if votes.size != n_examples or not ((votes >= 0) & (votes < n_classes)).all():
        raise ValueError(f"predict gave {votes.shape} for {n_examples} examples: one class each is wanted")
    result: NDArray[np.int64] = votes.reshape(n_examples).astype(np.int64)
    return result


_GPU_BYTES = 16_000_000_000  # the smallest GPU in common use: a share must fit on any
_MAX_ON_A_GPU = 8  # they share its time too
_FINEST = 10_000  # Ray counts resources in steps of 1/10000


@dataclass(frozen=True)
class WorkerKind:
    """What a worker of this kind has. Jobs go to workers of their kind only."""

    cpus: float = 1.0
    gpus: float = 0.0
    memory: int | None = None
    accelerator_type: str | None = None
    labels: tuple[tuple[str, str], ...] = ()
    custom: tuple[tuple[str, float], ...] = ()

    @property
    def threads(self) -> int:
        """How many threads a worker computes with: one for each whole CPU."""
        return max(1, int(self.cpus))

    @property
    def options(self) -> dict[str, Any]:
        """These resources as Ray's options of an actor."""
        options: dict[str, Any] = {"num_cpus": self.cpus, "num_gpus": self.gpus}
        if self.memory is not None:
            options["memory"] = self.memory
        if self.accelerator_type is not None:
            options["accelerator_type"] = self.accelerator_type
        if self.labels:
            options["label_selector"] = dict(self.labels)
        if self.custom:
            options["resources"] = dict(self.custom)
        return options

    @property
    def needs(self) -> dict[str, float]:
        """The amounts, by Ray's names of resources."""
        amounts = {"CPU": self.cpus, "GPU": self.gpus, "memory": float(self.memory or 0), **dict(self.custom)}
        if self.accelerator_type is not None:
            amounts[f"accelerator_type:{self.accelerator_type}"] = 1 / _FINEST
        return {name: amount for name, amount in amounts.items() if amount}

    def __str__(self) -> str:
        words = [
            f"{self.cpus:g} CPU{'s' * (self.cpus != 1)}" if self.cpus else "",
            f"{self.gpus:g} GPU{'s' * (self.gpus > 1)}" if self.gpus else "",
            f"{self.memory / 1e9:.3g} GB" if self.memory else "",
            self.accelerator_type or "",
            *(f"{name}={value}" for name, value in self.labels),
            *(f"{amount:g} {name}" for name, amount in self.custom),
        ]
        return " and ".join(word for word in words if word) or "no resources"


def kinds_of_workers(teaching: Teaching, settings: RaySettings, has_gpus: Callable[[], bool]) -> list[WorkerKind]:
    """The kind of worker that each kind of teacher gets.

    `has_gpus` tells whether the cluster has GPUs, or will have; it is asked where a family can use one and nothing
    says how many. A GPU worker takes no CPU unless its family says so: workers without GPUs, which are many, would
    else take the CPUs of a GPU's node before it, and leave the GPU idle.
    """
    found: list[WorkerKind] = []
    for number, recipe in enumerate(teaching.kinds):
        own, able = recipe.resources or Resources(), bool(getattr(recipe.estimator(0), "uses_gpu", False))
        gpus = own.gpus if own.gpus is not None else settings.gpus_per_worker if able else 0.0
        if gpus == "auto":
            gpus = _share(teaching, number) if able and has_gpus() else 0.0
        cpus = own.cpus if own.cpus is not None else 0.0 if gpus else settings.cpus_per_worker
        found.append(
            WorkerKind(
                float(cpus),
                float(gpus),
                own.memory,
                own.accelerator_type,
                tuple(sorted(own.labels.items())),
                tuple(sorted(own.custom.items())),
            )
        )
    return found


def _share(teaching: Teaching, number: int) -> float:
    """1/k of a GPU, with room for a stack of these; a whole one where the class does not say what it needs."""
    recipe = teaching.kinds[number]
    estimator: Any = recipe.estimator(0)
    if not hasattr(estimator, "gpu_bytes") or teaching.shape is None:
        return 1.0
    blank = np.zeros((1, *teaching.shape), dtype=np.float32)
    first = blank if teaching.first is None else teaching.first.transform(blank)
    shape = np.asarray(recipe.build_features().transform(first)).shape[1:]  # of an example as the teacher sees it
    needed = estimator.gpu_bytes(shape, teaching.n_classes, STACK if getattr(estimator, "stackable", False) else 1)
    return math.floor(_FINEST / max(1, min(_MAX_ON_A_GPU, _GPU_BYTES // max(1, needed)))) / _FINEST
