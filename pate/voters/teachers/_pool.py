"""The teachers of a run on a Ray cluster: actors that own them, and the controller that keeps the actors at work.

Decisions (who works on what, who hangs, what is given up) are made in `pate.voters.teachers._schedule` and carried out
here.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.boundary import PartialCounts
from pate.boundary._guard import Failed, WorkerLost, error_kind
from pate.cluster._resources import describe_resources, fits, has_gpus
from pate.cluster._session import started_here
from pate.config import RaySettings
from pate.errors import ConfigError, PateError, RunError
from pate.teachers import constant, pack
from pate.voters.teachers._checkpoints import Store
from pate.voters.teachers._schedule import HANGS, Kind, Schedule, WorkerTask
from pate.voters.teachers._worker import (
    QUERIES_AT_ONCE,
    PartData,
    RemotePart,
    Teaching,
    Worker,
    WorkerKind,
    kinds_of_workers,
)

_BLOCKS_AT_ONCE = 8  # of queries, whose features are in the object store meanwhile


class AskWorkers:
    """Counts votes by asking worker actors; can be sent to another process.

    The features of queries, which are public, are computed once for all workers, by all of them in turn. `recipes`
    are kinds of teachers, one for each chain of features.
    """

    def __init__(self, workers: Sequence[Any], recipes: Sequence[int] = ()) -> None:
        self._workers, self._recipes = workers, recipes

    def __call__(self, X: NDArray) -> list[PartialCounts]:
        from ray.exceptions import ObjectLostError, RayActorError, RayTaskError

        lost = "a teacher worker died while it was asked for votes; resume the run"
        blocks = [X[i : i + QUERIES_AT_ONCE] for i in range(0, max(len(X), 1), QUERIES_AT_ONCE)]
        found: list[list[PartialCounts]] = []
        try:
            for start in range(0, len(blocks), _BLOCKS_AT_ONCE):
                found += self._ask(blocks[start : start + _BLOCKS_AT_ONCE])
        except (RayActorError, ObjectLostError):
            raise WorkerLost(lost) from None
        except RayTaskError as error:
            cause = error.cause
            if isinstance(cause, (RayActorError, ObjectLostError)):  # of another worker, whose features it waited for
                raise WorkerLost(lost) from None
            raise (
                cause if isinstance(cause, Failed) else Failed(f"a teacher worker failed ({error_kind(cause)})")
            ) from None
        return [joined(of_worker) for of_worker in zip(*found, strict=True)]

    def _ask(self, blocks: Sequence[NDArray]) -> list[list[PartialCounts]]:
        """What each worker counted, block by block."""
        import ray

        shared, turns = [ray.put(block) for block in blocks], cycle(self._workers)
        features = [[next(turns).features.remote(recipe, X) for recipe in self._recipes] for X in shared]
        calls = [
            [worker.count.remote(X, self._recipes, *seen) for worker in self._workers]
            for X, seen in zip(shared, features, strict=True)
        ]
        partials: list[list[PartialCounts]] = [ray.get(of_block) for of_block in calls]
        return partials


def joined(blocks: Sequence[PartialCounts]) -> PartialCounts:
    """A worker's votes on all queries; refused unless the same parts voted on each of them."""
    if len({partial.parts for partial in blocks}) > 1:
        raise RunError("a worker's teachers changed while their votes were counted: nothing was drawn")
    return PartialCounts(blocks[0].parts, np.concatenate([partial.counts for partial in blocks]))


_FIRST_SAID, _SAID_EVERY = 5.0, 30.0  # seconds

Say = Callable[[str], None]
_MAX_DEATHS = 10  # workers that may die without one teacher getting finished in between
_MAX_PENDING = 128  # workers asked for and not there yet: demand enough to grow by, and no flood
_SECONDS_TO_START = 20.0  # of a worker that has a place; one that is not there by then waits for one
_SECONDS_TO_TRY = 900
_LOOK_EVERY = 1.0
_TAKES_LONG = 5.0  # seconds of a teacher
_SECONDS_TO_KNOW = 15.0  # until Ray has found out whether a node is lost


@dataclass(frozen=True)
class _Starting:
    """A worker that was asked for: it waits for a place, or is being started there."""

    worker: Any
    kind: WorkerKind
    since: float


class Pool:
    """Worker actors of one or more kinds, as many as there is work for and the cluster gives.

    Workers are asked for as actors, and those that wait for a place are the demand by which a cluster grows: it needs
    no other. A run begins with the workers that it gets; those that come later, on nodes that joined, get work at
    once; those lost are asked for again; what is asked for shrinks with the work that is left, and all is given back
    at the end.

    A worker that dies is replaced: its finished teachers come back from the store, what it was working on is
    handed out again and turns out the same. A job that takes much longer than others of its kind is also given to a
    worker that has nothing to do: the first result counts, and the slower worker is replaced. A job that takes its
    worker down again and again, or never ends, is given up and a constant stands in for its teacher, so that no
    record can stop a run. When a whole node is lost, that does not count against any job.
    """

    def __init__(self, teaching: Teaching, store: Store, settings: RaySettings, say: Say = lambda _: None) -> None:
        import ray

        self._teaching, self._store, self._settings, self._say = teaching, store, settings, say
        self._kinds = kinds_of_workers(teaching, settings, has_gpus)
        stacked = store.stacked([number for number, kind in enumerate(self._kinds) if kind.gpus])
        self._jobs = teaching.jobs(stacked)
        self._schedule = self._new_schedule()
        self._schedule.want()
        self._most = settings.workers.max or len(self._jobs)
        if started_here():  # more would wait for nothing, and have to be taken back when the run is interrupted
            self._most = min(self._most, max(1, sum(fits(kind.needs) for kind in set(self._kinds))))
        self._least = min(settings.workers.min, len(self._jobs))
        self._lacking_since: float | None = None
        self._told = 0.0
        self._actor, self._shared = ray.remote(Worker), ray.put(teaching)
        self._examples: Any = None
        self._seconds: Sequence[float] = ()
        self._unreadable: set[int] = set()
        self._starting: dict[Any, _Starting] = {}
        self._nodes: dict[Any, str] = {}
        self._told_of_gpus = False
        self._deaths = 0
        self._ask_for_workers()

    @property
    def voters(self) -> AskWorkers:
        """Counts the votes of all teachers that live workers hold."""
        return AskWorkers(self._schedule.holders, self._teaching.chains())

    @property
    def pending(self) -> int:
        """How many workers were asked for and are not there yet."""
        return len(self._starting)

    def where(self) -> Counter[tuple[str, Kind]]:
        """How many teachers live on each node, by its id, with each kind of worker: for the operator."""
        found: Counter[tuple[str, Kind]] = Counter()
        for worker in self._schedule.workers:
            place = self._nodes[worker], self._schedule.kind_of(worker)
            found[place] += len(self._schedule.parts_of(worker))
        return found

    def pids(self) -> list[int]:
        """The process ids of the workers that are ready."""
        import ray

        found: list[int] = ray.get([worker.pid.remote() for worker in self._schedule.workers])
        return found

    def wait_for(self, workers: int) -> None:
        """Until so many workers are ready, at most the configured time from when there were none."""
        while (there := len(self._schedule.workers)) < workers:
            self._lack(self._kinds, f"{there} of the first {workers} are there")
            self._ask_for_workers()
            self._look_for_results()
        self._lack(())

    def probe(self, X_public: NDArray, n_records: int) -> float:
        """Try every recipe on public examples; returns the expected seconds of training on the nodes that there are.

        Each is tried in a worker of its kind where there is one, else in another: nothing waits for workers that may
        never come. The others, and those that come later, load meanwhile what their first teacher would wait for.
        """
        import ray

        self.wait_for(self._least)
        self._examples, kinds = ray.put(X_public[:2000]), self._teaching.kinds
        chosen = [next(iter(self._schedule.of_kind(kind) or self._schedule.workers)) for kind in self._kinds]
        tries = []
        for number, worker in enumerate(chosen):
            at_home = self._schedule.kind_of(worker) == self._kinds[number]
            stack = max((len(j.parts) for j in self._jobs if j.recipe == number and at_home), default=1)
            tries.append(worker.probe.remote(number, self._examples, n_records, stack))
        self._let_others_try(chosen)
        seconds = []
        for number, reference in enumerate(tries):
            result = self._answer(chosen[number], reference, kinds[number].name)
            if isinstance(result, str):
                raise ConfigError(result)
            seconds.append(result)
        self._schedule.expect(seconds)
        self._seconds = seconds
        work = dict.fromkeys(self._kinds, 0.0)
        for number in self._teaching.assignment:
            work[self._kinds[number]] += seconds[number]
        return max(total / max(1, min(fits(kind.needs), self._most)) for kind, total in work.items())

    def train(self, part_data: PartData, done: Callable[[int], None], parts: Collection[int] | None = None) -> None:
        """Train every part, or those of `parts`, that no live worker holds."""
        self._schedule.want(parts)
        if not self._schedule.held:
            self.wait_for(min(self._least, self._schedule.waiting))
        while not self._schedule.finished:
            self._ask_for_workers()
            since = time.monotonic() - _SECONDS_TO_START  # those asked for before wait for a place
            soon_there: Counter[Kind] = Counter(
                starting.kind for starting in self._starting.values() if starting.since > since
            )
            for worker, task in self._schedule.hand_out(soon_there):
                self._hand_to(worker, task, part_data)
            self._look_for_results()
            done(len(self._schedule.held))
            self._check_progress(part_data)
            for worker, task in self._schedule.doubled(time.monotonic()):
                self._hand_to(worker, task, part_data)
        self._ask_for_workers()  # for none: what is still on its way is given back

    def forget_dead(self) -> None:
        """Drop workers that no longer answer, so that `train` restores or trains again what they held."""
        import ray
        from ray.exceptions import RayError

        for worker in self._schedule.workers:
            try:
                ray.get(worker.__ray_ready__.remote())
            except RayError as error:
                self._replace(worker, node_lost=_node_lost(worker, error))

    def close(self) -> None:
        """End all workers; what they held is in the store."""
        import ray

        for worker in [*self._schedule.workers, *(starting.worker for starting in self._starting.values())]:
            ray.kill(worker)
        self._starting, self._nodes = {}, {}
        self._schedule = self._new_schedule()

    def _new_schedule(self) -> Schedule:
        most = self._settings.teacher_timeout_seconds
        return Schedule(self._jobs, teacher_timeout_seconds=most, kinds=self._kinds)

    def _ask_for_workers(self) -> None:
        """Have as many workers on their way as the schedule lacks, of each kind; give back what is too much."""
        import ray

        for kind, number in self._schedule.lacking(self._most, _MAX_PENDING).items():
            assert isinstance(kind, WorkerKind)
            pending = [reference for reference, starting in self._starting.items() if starting.kind == kind]
            for reference in pending[number:]:
                ray.kill(self._starting.pop(reference).worker)
            for _ in range(number - len(pending)):
                worker = self._actor.options(**kind.options, max_restarts=0).remote(
                    self._shared, hide_gpus=not kind.gpus, own_process=True, threads=kind.threads
                )
                self._starting[self._arrival(worker, kind)] = _Starting(worker, kind, time.monotonic())

    def _arrival(self, worker: Any, kind: Any) -> Any:
        """A call that is answered when the worker is ready for the kinds of teachers it gets.

        It tries each of them first, but for those that take long: what it loads by that is little beside them.
        """
        takes_long = _TAKES_LONG if self._settings.teacher_timeout_seconds is None else math.inf
        slow = [number for number, seconds in enumerate(self._seconds) if seconds > takes_long]
        recipes = [number for number, own in enumerate(self._kinds) if own == kind and number not in slow]
        return worker.warm_up.remote(recipes, self._examples, gpu=bool(kind.gpus))

    def _let_others_try(self, chosen: Collection[Any]) -> None:
        """Workers that are not `chosen` for a trial load meanwhile what it loads, and are ready when they have."""
        others = {worker: self._schedule.kind_of(worker) for worker in self._schedule.workers if worker not in chosen}
        starting = [*self._starting.values()]
        for worker, kind in others.items():
            assert isinstance(kind, WorkerKind)
            self._schedule.lose(worker, strikes=0)
            starting.append(_Starting(worker, kind, time.monotonic()))
        self._starting = {self._arrival(one.worker, one.kind): one for one in starting}

    def _look_for_results(self) -> None:
        """Take in what is ready: workers, and what they have done."""
        import ray

        awaited = [*self._schedule.calls, *self._starting]
        if not awaited:
            time.sleep(_LOOK_EVERY)
            return
        for reference in ray.wait(awaited, num_returns=1, timeout=_LOOK_EVERY)[0]:
            if reference in self._starting:
                self._welcome(reference)
            else:
                self._finish(reference)

    def _answer(self, worker: Any, reference: Any, what: str) -> Any:
        """What a worker says before it has any private record."""
        import ray
        from ray.exceptions import GetTimeoutError, RayError

        try:
            return ray.get(reference, timeout=_SECONDS_TO_TRY)
        except GetTimeoutError:
            raise ConfigError(f"{what}: did not finish on public examples within {_SECONDS_TO_TRY} s") from None
        except RayError as error:
            if _node_lost(worker, error):
                raise RunError(
                    "a node was lost with its worker before training; go on with {resume}", resume=True
                ) from None
            raise ConfigError(f"{what}: took its worker down on public examples ({type(error).__name__})") from None

    def _welcome(self, reference: Any) -> None:
        import ray
        from ray.exceptions import RayError

        starting = self._starting.pop(reference)
        worker, kind = starting.worker, starting.kind
        try:
            node, lacks_gpu = ray.get(reference)
        except RayError as error:
            self._count_death(_node_lost(worker, error))
            return
        if len(self._schedule.workers) >= self._most and self._schedule.of_kind(kind):  # another kind was quicker
            ray.kill(worker)
            return
        self._schedule.join(worker, kind)
        self._nodes[worker] = node
        if lacks_gpu and not self._told_of_gpus:
            self._told_of_gpus = True
            self._say("note: workers were given GPUs that torch cannot use; networks train on the CPU")

    def _hand_to(self, worker: Any, task: WorkerTask, part_data: PartData) -> None:
        missing = []
        for part in task.parts:
            payload = None if part in self._unreadable else self._store.load(part)
            if payload is None:
                missing.append(part)
            else:
                reference = worker.restore.remote(task.job.recipe, part, payload)
                self._schedule.begin(worker, reference, task.of((part,), restores=True), time.monotonic())
        if missing:
            reference = worker.train.remote(task.job, {part: part_data(part) for part in missing})
            self._schedule.begin(worker, reference, task.of(missing), time.monotonic())

    def _finish(self, reference: Any) -> None:
        import ray
        from ray.exceptions import RayError, RayTaskError

        worker: Any = self._schedule.at_work(reference)
        if worker is None:  # found dead a moment ago
            return
        try:
            results = ray.get(reference)
        except RayTaskError as error:  # teachers are no reason to stop, unreadable records are
            if isinstance(error.cause, PateError) and not isinstance(error.cause, Failed):
                raise error.cause from None
            failed = self._schedule.fail(reference, time.monotonic())
            self._unreadable.update(failed.parts if failed.restores else ())
            return
        except RayError as error:  # a dead worker or node, its memory run out, a result that was lost
            self._replace(worker, node_lost=_node_lost(worker, error))
            return
        slower = self._schedule.finish(reference, time.monotonic())
        if worker not in slower:
            for trained in results or ():
                self._store.save(trained.part, trained.payload, trained.failure)
                self._unreadable.discard(trained.part)
            self._deaths = 0
        for other in slower:
            self._replace(other, strikes=0)

    def _replace(self, worker: Any, strikes: int = 1, node_lost: bool = False) -> None:
        """Drop a dead worker; there will be another. `node_lost`: its node is gone, which is not its job's fault."""
        import ray

        strikes = 0 if node_lost else strikes
        self._count_death(nobodys_fault=strikes == 0)
        self._schedule.lose(worker, strikes)
        self._nodes.pop(worker, None)
        ray.kill(worker)

    def _count_death(self, nobodys_fault: bool) -> None:
        self._deaths += not nobodys_fault
        if self._deaths > _MAX_DEATHS:
            raise RunError(
                f"{self._deaths} teacher workers died in a row: give them more memory, or run fewer at a time with "
                "ray.workers, then resume"
            )

    def _check_progress(self, part_data: PartData) -> None:
        """End jobs that hang, give up those that did so before, and do not wait for ever for a place to run."""
        for worker in self._schedule.hanging(time.monotonic()):
            self._replace(worker, strikes=HANGS)
        for task in self._schedule.hopeless():
            (part,) = task.parts
            records, n_classes = part_data(part), self._teaching.n_classes
            payload = (
                records.stand_in(n_classes)
                if isinstance(records, RemotePart)
                else pack(constant(records[1], n_classes))
            )
            self._store.save(part, payload, "GivenUp")
            self._unreadable.discard(part)
        there = f"{len(self._schedule.held)} of {len(self._teaching.assignment)} teachers are there"
        self._lack(self._schedule.stuck, there)

    def _lack(self, kinds: Sequence[Any], so_far: str = "") -> None:
        """Say now and then that workers of `kinds` are lacking, and end the run when it is too long.

        Without any, the run has what it needs: the time begins anew.
        """
        if not kinds:
            self._lacking_since = None
            return
        now, wait = time.monotonic(), self._settings.worker_timeout_seconds
        if self._lacking_since is None:
            self._lacking_since, self._told = now, now - _SAID_EVERY + _FIRST_SAID
        left = self._lacking_since + wait - now
        if left > 0 and now - self._told < _SAID_EVERY:
            return
        lacking = [kind for kind in dict.fromkeys(kinds) if not self._schedule.of_kind(kind)] or list(kinds)
        each = " and one with ".join(str(kind) for kind in dict.fromkeys(lacking))
        what = f"a worker with {each} ({so_far}): {describe_resources([kind.needs for kind in lacking])}"
        if left <= 0:
            text = f"{wait:g} s (ray.worker_timeout_seconds) were not enough for {what}; "
            raise RunError(text + "go on with {resume} when there is room", resume=True)
        self._told = now
        self._say(f"waiting for {what}; {left:.0f} s more (ray.worker_timeout_seconds)")


def _node_lost(worker: Any, error: Exception) -> bool:
    """Whether a worker was lost with its node or the connection to it; in Ray's error only the text says so.

    A connection that broke says nothing yet: soon Ray knows what it was, and a dead worker's own node tells at once.
    """
    import ray
    from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayError

    until = time.monotonic() + _SECONDS_TO_KNOW
    while isinstance(error, ActorUnavailableError):
        try:
            ray.get(worker.pid.remote(), timeout=_SECONDS_TO_KNOW)
            return True
        except GetTimeoutError:
            return True
        except RayError as known:
            error = known
        if time.monotonic() > until:
            return True
        time.sleep(0.2)
    return "node has died" in str(error)
