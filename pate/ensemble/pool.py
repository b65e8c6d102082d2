"""The pool of worker actors: hands out the work, makes up for workers that die, keeps what is finished."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from numpy.typing import NDArray

from pate.boundary import Failed
from pate.config import RaySettings
from pate.ensemble.checkpoints import Store
from pate.ensemble.worker import Job, Records, Unread, Worker, jobs_of
from pate.errors import ConfigError, PateError, RunError
from pate.teachers import Recipe
from pate.teachers.payload import constant, pack

_IN_FLIGHT = 2  # calls a worker has at hand, so that it never waits for the driver
_STRIKES = 3  # a job is given up when it was at work in three workers that died, or hung or raised twice
_HANGS = 2  # strikes for that
_MOST_DEATHS = 10  # workers that may die without one teacher getting finished in between
_SECONDS_TO_START = 120
_SECONDS_TO_TRY = 900
_LOOK_EVERY = 1.0
_SECONDS_TO_KNOW = 15.0  # until Ray has found out whether a node is lost
_SLOW_FACTOR, _SLOW_SECONDS = 4.0, 10.0  # beyond both, a job is also given to a worker that has nothing to do

PartData = Callable[[int], Records | Unread]


@dataclass(frozen=True)
class _Task:
    """A job, and those of its parts that are wanted; the other slots of a stack stay blank."""

    job: Job
    parts: tuple[int, ...]
    strikes: int = 0
    restores: bool = False


@dataclass
class _Member:
    """What the pool knows of a live worker."""

    parts: set[int] = field(default_factory=set)
    tasks: dict[Any, _Task] = field(default_factory=dict)  # in the order they are worked on
    busy_since: float = 0.0


class Pool:
    """Worker actors sized to the cluster.

    A worker that dies is replaced: its finished teachers come back from the store, what it was working on is
    handed out again and turns out the same. A job that takes much longer than others of its kind is also given to a
    worker that has nothing to do: the first result counts, and the slower worker is replaced. A job that takes its
    worker down again and again, or never ends, is given up and a constant stands in for its teacher, so that no
    record can stop a run. A lost node is no job's fault.
    """

    def __init__(
        self,
        kinds: Sequence[Recipe],
        assignment: Sequence[int],
        n_classes: int,
        seed: int,
        settings: RaySettings,
        store: Store,
        search_path: Sequence[str] = (),
    ) -> None:
        import ray

        self._kinds, self._assignment, self._n_classes = kinds, assignment, n_classes
        self._settings, self._store = settings, store
        self._jobs = jobs_of(kinds, assignment, stack_all=settings.gpus_per_worker > 0)
        self._seconds = [0.0] * len(kinds)
        self._seen: list[list[float]] = [[] for _ in kinds]  # seconds a teacher of each kind took
        self._actor = ray.remote(Worker).options(
            num_cpus=settings.cpus_per_worker, num_gpus=settings.gpus_per_worker, max_restarts=0
        )
        self._arguments = (list(kinds), n_classes, seed, list(search_path), settings.gpus_per_worker == 0, True)
        self._trial: tuple[Any, ...] = ()
        self._unreadable: set[int] = set()
        self._members: dict[Any, _Member] = {}
        self._starting: dict[Any, Any] = {}
        self._deaths = 0
        for _ in range(_pool_size(settings, len(self._jobs))):
            self._start_worker()

    @property
    def workers(self) -> list[Any]:
        """The actors that hold teachers."""
        return [worker for worker, member in self._members.items() if member.parts]

    @property
    def _held(self) -> set[int]:
        return set().union(*(member.parts for member in self._members.values()))

    def lacks_gpu(self) -> bool:
        """Whether workers were given GPUs that torch cannot use."""
        return self._settings.gpus_per_worker > 0 and bool(self._answer(self._first().lacks_gpu.remote(), "torch"))

    def probe(self, X_public: NDArray, n_records: int) -> float:
        """Try every recipe on public examples, in every worker; returns the expected seconds of training.

        That also loads in each worker what its first teacher would otherwise wait for; a worker that has to be
        replaced later is tried in the same way before it gets work.
        """
        import ray

        first, examples = self._first(), ray.put(X_public[:2000])
        sizes = [max((len(j.parts) for j in self._jobs if j.recipe == i), default=1) for i in range(len(self._kinds))]
        self._trial = tuple((i, examples, n_records, size) for i, size in enumerate(sizes))
        everyone = [*self._members, *self._starting.values()]
        tries = {worker: [worker.probe.remote(*trial) for trial in self._trial] for worker in everyone}
        for number, reference in enumerate(tries[first]):
            result = self._answer(reference, self._kinds[number].name)
            if isinstance(result, str):
                raise ConfigError(result)
            self._seconds[number] = result
        ray.wait([last[-1] for last in tries.values()], num_returns=len(tries), timeout=_SECONDS_TO_START)
        return sum(self._seconds[kind] for kind in self._assignment) / len(everyone)

    def train(self, part_data: PartData, done: Callable[[int], None]) -> None:
        """Train every part that no live worker holds; the longest jobs first, so that no core idles at the end."""
        import ray

        held = self._held
        missing = [_Task(job, tuple(p for p in job.parts if p not in held)) for job in self._jobs]
        waiting = deque(sorted((task for task in missing if task.parts), key=self._expected, reverse=True))
        while waiting or any(member.tasks for member in self._members.values()):
            self._hand_out(waiting, part_data)
            at_work = [reference for member in self._members.values() for reference in member.tasks]
            ready, _ = ray.wait([*at_work, *self._starting], num_returns=1, timeout=_LOOK_EVERY)
            for reference in ready:
                if reference in self._starting:
                    self._welcome(reference)
                else:
                    self._finish(reference, waiting)
            done(len(self._held))
            self._check_progress(waiting, part_data)
            if not waiting:
                self._double_slow_ones(part_data)

    def forget_dead(self) -> None:
        """Drop workers that no longer answer, so that `train` makes up for what they held."""
        import ray
        from ray.exceptions import RayError

        for worker in list(self._members):
            try:
                ray.get(worker.__ray_ready__.remote())
            except RayError as error:
                self._bury(worker, node_lost=_node_lost(worker, error))

    def close(self) -> None:
        """End all workers; what they held is in the store."""
        import ray

        for worker in [*self._members, *self._starting.values()]:
            ray.kill(worker)
        self._members, self._starting = {}, {}

    def _first(self) -> Any:
        import ray

        while not self._members:
            ready, _ = ray.wait(list(self._starting), num_returns=1, timeout=_SECONDS_TO_START)
            if not ready:
                raise RunError(self._no_room())
            self._welcome(ready[0])
        return next(iter(self._members))

    def _answer(self, reference: Any, what: str) -> Any:
        """What a worker says before it has any private record."""
        import ray
        from ray.exceptions import GetTimeoutError, RayError

        try:
            return ray.get(reference, timeout=_SECONDS_TO_TRY)
        except GetTimeoutError:
            raise ConfigError(f"{what}: did not finish on public examples within {_SECONDS_TO_TRY} s") from None
        except RayError as error:
            raise ConfigError(f"{what}: took its worker down on public examples ({type(error).__name__})") from None

    def _start_worker(self) -> None:
        worker = self._actor.remote(*self._arguments)
        trials = [worker.probe.remote(*trial) for trial in self._trial]
        self._starting[trials[-1] if trials else worker.__ray_ready__.remote()] = worker
        self._started_at = time.monotonic()

    def _welcome(self, reference: Any) -> None:
        import ray
        from ray.exceptions import RayError

        worker = self._starting.pop(reference)
        try:
            ray.get(reference)
            self._members[worker] = _Member()
        except RayError as error:
            self._count_death(_node_lost(worker, error))
            self._start_worker()

    def _expected(self, task: _Task) -> float:
        return self._seconds[task.job.recipe] * len(task.parts)

    def _hand_out(self, waiting: deque[_Task], part_data: PartData) -> None:
        """A job for each idle worker first; then a second one at hand, while there are enough for all."""
        for at_hand in range(_IN_FLIGHT):
            for worker, member in self._members.items():
                enough = at_hand == 0 or len(waiting) >= len(self._members) + len(self._starting)
                if waiting and enough and len(member.tasks) <= at_hand:
                    self._hand_to(worker, member, waiting.popleft(), part_data)

    def _hand_to(self, worker: Any, member: _Member, task: _Task, part_data: PartData) -> None:
        missing = []
        for part in task.parts:
            payload = None if part in self._unreadable else self._store.load(part)
            if payload is None:
                missing.append(part)
            else:
                reference = worker.restore.remote(task.job.recipe, part, payload)
                self._give(member, reference, replace(task, parts=(part,), restores=True))
        if missing:
            reference = worker.train.remote(task.job, {part: part_data(part) for part in missing})
            self._give(member, reference, replace(task, parts=tuple(missing), restores=False))

    def _give(self, member: _Member, reference: Any, task: _Task) -> None:
        if not member.tasks:
            member.busy_since = time.monotonic()
        member.tasks[reference] = task

    def _finish(self, reference: Any, waiting: deque[_Task]) -> None:
        import ray
        from ray.exceptions import RayError, RayTaskError

        worker = next((w for w, member in self._members.items() if reference in member.tasks), None)
        if worker is None:  # found dead a moment ago
            return
        member = self._members[worker]
        try:
            results = ray.get(reference)
        except RayTaskError as error:  # teachers are no reason to stop, unreadable records are
            if isinstance(error.cause, PateError) and not isinstance(error.cause, Failed):
                raise error.cause from None
            waiting.appendleft(self._failed(member.tasks.pop(reference)))
            member.busy_since = time.monotonic()
            return
        except RayError as error:  # a dead worker or node, its memory run out, a result that was lost
            waiting.extendleft(self._missing(self._bury(worker, node_lost=_node_lost(worker, error))))
            return
        if self._held & set(member.tasks[reference].parts):  # another was quicker
            waiting.extendleft(self._missing(self._bury(worker, strikes=0)))
            return
        task = member.tasks.pop(reference)
        if not task.restores:
            self._seen[task.job.recipe].append((time.monotonic() - member.busy_since) / len(task.parts))
        member.busy_since = time.monotonic()
        for trained in results or ():
            self._store.save(trained.part, trained.payload, trained.failure)
            self._unreadable.discard(trained.part)
        member.parts.update(task.parts)
        self._deaths = 0
        for other in [w for w, m in self._members.items() if any(t.parts == task.parts for t in m.tasks.values())]:
            waiting.extendleft(self._missing(self._bury(other, strikes=0)))

    def _missing(self, tasks: list[_Task]) -> list[_Task]:
        """Those that nobody has finished or is working on."""
        at_work = {part for m in self._members.values() for task in m.tasks.values() for part in task.parts}
        return [task for task in tasks if not (self._held | at_work) & set(task.parts)]

    def _double_slow_ones(self, part_data: PartData) -> None:
        """Give what takes much longer than its like to workers that have nothing else to do."""
        idle = [worker for worker, member in self._members.items() if not member.tasks]
        tasks = [task for member in self._members.values() for task in member.tasks.values()]
        for member in list(self._members.values()):
            first = next(iter(member.tasks.values()), None)
            if first is None or time.monotonic() - member.busy_since < self._slow(first):
                continue
            for task in list(member.tasks.values()):
                if idle and not task.restores and tasks.count(task) == 1:
                    worker = idle.pop()
                    self._hand_to(worker, self._members[worker], task, part_data)

    def _slow(self, task: _Task) -> float:
        seen = self._seen[task.job.recipe]
        usual = median(seen) if seen else self._seconds[task.job.recipe]
        return max(_SLOW_SECONDS, _SLOW_FACTOR * usual * len(task.parts))

    def _failed(self, task: _Task) -> _Task:
        """A stored teacher that cannot be read is trained again; training that raises is a strike, or two."""
        if task.restores:
            self._unreadable.update(task.parts)
            return replace(task, restores=False)
        return replace(task, strikes=task.strikes + _HANGS)

    def _bury(self, worker: Any, strikes: int = 1, node_lost: bool = False) -> list[_Task]:
        """Replace a dead worker; returns what has to be done again, the job it died on with a strike against it.

        A node that is lost, as preemptible ones are, takes all its workers along: that is no job's fault.
        """
        import ray

        strikes = 0 if node_lost else strikes
        self._count_death(node_lost or strikes == 0)
        member = self._members.pop(worker)
        ray.kill(worker)
        self._start_worker()
        tasks = list(member.tasks.values())
        if tasks and not tasks[0].restores:
            tasks[0] = replace(tasks[0], strikes=tasks[0].strikes + strikes)
        again = [_Task(job, tuple(p for p in job.parts if p in member.parts)) for job in self._jobs]
        return tasks + [task for task in again if task.parts]

    def _count_death(self, nobodys_fault: bool = False) -> None:
        self._deaths += not nobodys_fault
        if self._deaths > _MOST_DEATHS:
            raise RunError(
                f"{self._deaths} teacher workers died in a row: give them more memory, or run fewer at a time with "
                "ray.workers, then go on with --resume"
            )

    def _check_progress(self, waiting: deque[_Task], part_data: PartData) -> None:
        """End jobs that hang, give up those that did so before, and do not wait for ever for a place to run."""
        for worker, member in list(self._members.items()):
            task = next(iter(member.tasks.values()), None)
            if task and not task.restores and time.monotonic() - member.busy_since > self._longest(task):
                waiting.extendleft(self._bury(worker, strikes=_HANGS))
        for task in [task for task in waiting if task.strikes >= _STRIKES]:
            waiting.remove(task)
            if len(task.parts) > 1:  # find out which of the stack it is
                waiting.extend(_Task(task.job, (part,)) for part in task.parts)
            else:
                records = part_data(task.parts[0])
                _, labels = records.fetch() if isinstance(records, Unread) else records
                stand_in = pack(constant(labels, self._n_classes))
                self._store.save(task.parts[0], stand_in, "GivenUp")
                self._unreadable.discard(task.parts[0])
                waiting.append(replace(task, strikes=0))
        if not self._members and time.monotonic() - self._started_at > _SECONDS_TO_START:
            raise RunError(self._no_room())

    def _longest(self, task: _Task) -> float:
        if self._settings.seconds_per_teacher is not None:
            return self._settings.seconds_per_teacher * len(task.parts)
        return 300 + 50 * self._expected(task)

    def _no_room(self) -> str:
        return (
            f"no teacher worker could start for {_SECONDS_TO_START} s: the cluster has no room for "
            f"{self._settings.cpus_per_worker:g} CPUs and {self._settings.gpus_per_worker:g} GPUs "
            "(ray.cpus_per_worker, ray.gpus_per_worker); go on with --resume when it has"
        )


def _node_lost(worker: Any, error: Exception) -> bool:
    """Whether a worker was lost with its node, or with the way to it. Ray tells that from its own death in words only.

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


def _pool_size(settings: RaySettings, n_jobs: int) -> int:
    import ray

    resources = ray.cluster_resources()
    fits = int(resources.get("CPU", 0) // settings.cpus_per_worker)
    if settings.gpus_per_worker:
        fits = min(fits, int(resources.get("GPU", 0) // settings.gpus_per_worker))
    size = min(settings.workers or fits, fits, n_jobs)
    if size < 1:
        raise RunError(
            f"the cluster has {resources.get('CPU', 0):g} CPUs and {resources.get('GPU', 0):g} GPUs: not enough for "
            f"one worker (ray.cpus_per_worker = {settings.cpus_per_worker:g}, "
            f"ray.gpus_per_worker = {settings.gpus_per_worker:g})"
        )
    return size
