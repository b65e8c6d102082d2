"""The teachers of a run on a Ray cluster: actors that own them, and the controller that keeps the actors at work.

Decisions (who works on what, who hangs, what is given up) are made in `pate.ensemble.schedule` and carried out here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from numpy.typing import NDArray

from pate.boundary import Failed, WorkerLost, kind_of
from pate.config import RaySettings
from pate.ensemble.checkpoints import Store
from pate.ensemble.schedule import HANGS, Schedule, Task
from pate.ensemble.worker import PartData, PartialCounts, Teaching, Unread, Worker
from pate.errors import ConfigError, PateError, RunError
from pate.teachers.payload import constant, pack

_MOST_DEATHS = 10  # workers that may die without one teacher getting finished in between
_SECONDS_TO_START = 120
_SECONDS_TO_TRY = 900
_LOOK_EVERY = 1.0
_SECONDS_TO_KNOW = 15.0  # until Ray has found out whether a node is lost


class Pool:
    """Worker actors sized to the cluster.

    A worker that dies is replaced: its finished teachers come back from the store, what it was working on is
    handed out again and turns out the same. A job that takes much longer than others of its kind is also given to a
    worker that has nothing to do: the first result counts, and the slower worker is replaced. A job that takes its
    worker down again and again, or never ends, is given up and a constant stands in for its teacher, so that no
    record can stop a run. When a whole node is lost, that does not count against any job.
    """

    def __init__(self, teaching: Teaching, store: Store, settings: RaySettings) -> None:
        import ray

        self._teaching, self._store, self._settings = teaching, store, settings
        self._jobs = teaching.jobs(stack_all=settings.gpus_per_worker > 0)
        self._schedule = Schedule(self._jobs, seconds_per_teacher=settings.seconds_per_teacher)
        self._actor = ray.remote(Worker).options(
            num_cpus=settings.cpus_per_worker, num_gpus=settings.gpus_per_worker, max_restarts=0
        )
        self._trial: tuple[Any, ...] = ()
        self._unreadable: set[int] = set()
        self._starting: dict[Any, Any] = {}
        self._deaths = 0
        for _ in range(_pool_size(settings, len(self._jobs))):
            self._start_worker()

    @property
    def voters(self) -> AskWorkers:
        """Counts the votes of all teachers that live workers hold."""
        return AskWorkers(self._schedule.holders)

    @property
    def size(self) -> int:
        """How many workers there are, those that are starting included."""
        return len(self._schedule.workers) + len(self._starting)

    def wait_until_ready(self) -> None:
        """Until every worker has started; training begins with those there are, so only measurements need this."""
        import ray

        while self._starting:
            self._welcome(ray.wait(list(self._starting), num_returns=1)[0][0])

    def pids(self) -> list[int]:
        """The process ids of the workers that are ready."""
        import ray

        found: list[int] = ray.get([worker.pid.remote() for worker in self._schedule.workers])
        return found

    def lacks_gpu(self) -> bool:
        """Whether workers were given GPUs that torch cannot use."""
        return self._settings.gpus_per_worker > 0 and bool(self._answer(self._first().lacks_gpu.remote(), "torch"))

    def probe(self, X_public: NDArray, n_records: int) -> float:
        """Try every recipe on public examples, in every worker; returns the expected seconds of training.

        That also loads in each worker what its first teacher would otherwise wait for; a worker that has to be
        replaced later is tried in the same way before it gets work.
        """
        import ray

        first, examples, kinds = self._first(), ray.put(X_public[:2000]), self._teaching.kinds
        sizes = [max((len(j.parts) for j in self._jobs if j.recipe == i), default=1) for i in range(len(kinds))]
        self._trial = tuple((i, examples, n_records, size) for i, size in enumerate(sizes))
        everyone = [*self._schedule.workers, *self._starting.values()]
        tries = {worker: [worker.probe.remote(*trial) for trial in self._trial] for worker in everyone}
        seconds = []
        for number, reference in enumerate(tries[first]):
            result = self._answer(reference, kinds[number].name)
            if isinstance(result, str):
                raise ConfigError(result)
            seconds.append(result)
        self._schedule.expect(seconds)
        ray.wait([last[-1] for last in tries.values()], num_returns=len(tries), timeout=_SECONDS_TO_START)
        return float(sum(seconds[kind] for kind in self._teaching.assignment) / len(everyone))

    def train(self, part_data: PartData, done: Callable[[int], None], parts: Collection[int] | None = None) -> None:
        """Train every part, or those of `parts`, that no live worker holds."""
        import ray

        self._schedule.want(parts)
        while not self._schedule.finished:
            for worker, task in self._schedule.hand_out(len(self._starting)):
                self._hand_to(worker, task, part_data)
            ready, _ = ray.wait([*self._schedule.calls, *self._starting], num_returns=1, timeout=_LOOK_EVERY)
            for reference in ready:
                if reference in self._starting:
                    self._welcome(reference)
                else:
                    self._finish(reference)
            done(len(self._schedule.held))
            self._check_progress(part_data)
            for worker, task in self._schedule.doubled(time.monotonic()):
                self._hand_to(worker, task, part_data)

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

        for worker in [*self._schedule.workers, *self._starting.values()]:
            ray.kill(worker)
        self._starting = {}
        self._schedule = Schedule(self._jobs)

    def _first(self) -> Any:
        import ray

        while not self._schedule.workers:
            ready, _ = ray.wait(list(self._starting), num_returns=1, timeout=_SECONDS_TO_START)
            if not ready:
                raise RunError(self._no_room())
            self._welcome(ready[0])
        return self._schedule.workers[0]

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
        worker = self._actor.remote(self._teaching, hide_gpus=self._settings.gpus_per_worker == 0, own_process=True)
        trials = [worker.probe.remote(*trial) for trial in self._trial]
        self._starting[trials[-1] if trials else worker.__ray_ready__.remote()] = worker
        self._started_at = time.monotonic()

    def _welcome(self, reference: Any) -> None:
        import ray
        from ray.exceptions import RayError

        worker = self._starting.pop(reference)
        try:
            ray.get(reference)
            self._schedule.join(worker)
        except RayError as error:
            self._count_death(_node_lost(worker, error))
            self._start_worker()

    def _hand_to(self, worker: Any, task: Task, part_data: PartData) -> None:
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
        """Start a new worker for a dead one. `node_lost`: its node is gone, which does not count against its job."""
        import ray

        strikes = 0 if node_lost else strikes
        self._count_death(nobodys_fault=strikes == 0)
        self._schedule.lose(worker, strikes)
        ray.kill(worker)
        self._start_worker()

    def _count_death(self, nobodys_fault: bool) -> None:
        self._deaths += not nobodys_fault
        if self._deaths > _MOST_DEATHS:
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
            records = part_data(part)
            _, labels = records.fetch() if isinstance(records, Unread) else records
            self._store.save(part, pack(constant(labels, self._teaching.n_classes)), "GivenUp")
            self._unreadable.discard(part)
        if not self._schedule.workers and time.monotonic() - self._started_at > _SECONDS_TO_START:
            raise RunError(self._no_room())

    def _no_room(self) -> str:
        return (
            f"no teacher worker could start for {_SECONDS_TO_START} s: the cluster has no room for "
            f"{self._settings.cpus_per_worker:g} CPUs and {self._settings.gpus_per_worker:g} GPUs "
            "(ray.cpus_per_worker, ray.gpus_per_worker); resume when it has"
        )


class AskWorkers:
    """Counts votes by asking worker actors; can be sent to another process."""

    def __init__(self, workers: Sequence[Any]) -> None:
        self._workers = workers

    def __call__(self, X: NDArray) -> list[PartialCounts]:
        import ray
        from ray.exceptions import RayActorError, RayTaskError

        data = ray.put(X)
        try:
            partials: list[PartialCounts] = ray.get([worker.count.remote(data) for worker in self._workers])
        except RayActorError:
            raise WorkerLost("a teacher worker died while it was asked for votes; resume the run") from None
        except RayTaskError as error:
            cause = error.cause
            raise (
                cause if isinstance(cause, Failed) else Failed(f"a teacher worker failed ({kind_of(cause)})")
            ) from None
        return partials


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
