"""Who works on what: the pool's decisions, as plain bookkeeping.

Nothing here knows Ray, reads a clock or sees a record: workers and calls are whatever the pool names them by, and the
time is an argument. So every rule about deaths, hangs and slow workers can be tested by calling it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from pate.voters.teachers._worker import TrainingJob

AT_HAND = 2  # calls a worker has, so that it never waits for the pool
STRIKES = 3  # a job is given up when it was at work in three workers that died, or hung or raised twice
HANGS = 2  # strikes for that
SLOW_FACTOR, SLOW_SECONDS = 4.0, 10.0  # beyond both, a job is also given to a worker that has nothing to do
MIN_SECONDS, LONGEST_FACTOR = 300.0, 50.0  # a job that takes longer hangs

Worker = Any
Call = Any
Kind = Hashable
"""Of workers: by what they have. A job goes to workers of its own kind only."""


@dataclass(frozen=True)
class WorkerTask:
    """A job, and those of its parts that are wanted; the other slots of a stack stay blank."""

    job: TrainingJob
    parts: tuple[int, ...]
    strikes: int = 0
    restores: bool = False

    def of(self, parts: Iterable[int], restores: bool = False) -> WorkerTask:
        """A task for some of this one's parts: to be trained, or restored from the store."""
        return replace(self, parts=tuple(parts), restores=restores)


@dataclass
class _Member:
    """What is known of a live worker: the parts it holds, and its calls in the order they are worked on."""

    kind: Kind = None
    parts: set[int] = field(default_factory=set)
    tasks: dict[Call, WorkerTask] = field(default_factory=dict)
    busy_since: float = 0.0


class Schedule:
    """All the work of an ensemble, and which worker does what.

    When a worker is lost, its work is queued again, and so is what it had finished, for the store to restore. A job
    that takes much longer than others of its kind is given to a second worker, and the first result counts. A job that
    takes its worker down again and again, or never ends, is hopeless.
    """

    def __init__(
        self,
        jobs: Sequence[TrainingJob],
        seconds: Sequence[float] = (),
        teacher_timeout_seconds: float | None = None,
        kinds: Sequence[Kind] = (),
    ) -> None:
        """Plan the jobs.

        `seconds` is what a teacher of each recipe is expected to take, `teacher_timeout_seconds` when it counts as
        hung, and `kinds` the kind of worker that each recipe wants, where there is more than one.
        """
        self._jobs = jobs
        recipes = 1 + max((job.recipe for job in jobs), default=0)
        self._expected = list(seconds) or [0.0] * recipes
        self._most = teacher_timeout_seconds
        self._seen: list[list[float]] = [[] for _ in range(recipes)]  # seconds a teacher of each recipe took
        self._members: dict[Worker, _Member] = {}
        self._kinds = list(kinds) or [None] * recipes
        self._waiting: dict[Kind, deque[WorkerTask]] = {kind: deque() for kind in self._kinds}

    @property
    def workers(self) -> list[Worker]:
        """All live workers."""
        return list(self._members)

    @property
    def holders(self) -> list[Worker]:
        """Workers that hold teachers."""
        return [worker for worker, member in self._members.items() if member.parts]

    @property
    def held(self) -> set[int]:
        """The parts whose teachers some live worker holds."""
        return set().union(*(member.parts for member in self._members.values()))

    @property
    def calls(self) -> list[Call]:
        """All that is being worked on."""
        return [call for member in self._members.values() for call in member.tasks]

    @property
    def finished(self) -> bool:
        """Whether nothing waits and nobody is at work."""
        return not any(self._waiting.values()) and not self.calls

    @property
    def waiting(self) -> int:
        """How many jobs wait for a worker."""
        return sum(map(len, self._waiting.values()))

    @property
    def stuck(self) -> list[Kind]:
        """Kinds of workers that work waits for and that are not there, where nobody is at work: nothing goes on."""
        return [] if self.calls else [kind for kind, tasks in self._waiting.items() if tasks and not self.of_kind(kind)]

    def of_kind(self, kind: Kind) -> list[Worker]:
        """The live workers of a kind."""
        return [worker for worker, member in self._members.items() if member.kind == kind]

    def kind_of(self, worker: Worker) -> Kind:
        """What kind of worker it is."""
        return self._members[worker].kind

    def parts_of(self, worker: Worker) -> set[int]:
        """The parts it holds."""
        return self._members[worker].parts

    def lacking(self, most: int, at_once: int) -> dict[Kind, int]:
        """How many workers of each kind should be on their way, `at_once` at the most.

        As many as there are jobs that no worker has or is free for, while there are fewer than `most` workers in all;
        but one for every kind that has none and work to do. The kinds take turns, in the order they are named in.
        """
        wanted = {}
        for kind, tasks in self._waiting.items():
            room = max(most - len(self._members), 0 if self.of_kind(kind) else 1)
            wanted[kind] = max(0, min(len(tasks) - len(self._idle(kind)), room))
        granted = dict.fromkeys(wanted, 0)
        while at_once and any(granted[kind] < wanted[kind] for kind in wanted):
            for kind in wanted:
                if at_once and granted[kind] < wanted[kind]:
                    granted[kind] += 1
                    at_once -= 1
        return granted

    def expect(self, seconds: Sequence[float]) -> None:
        """What a teacher of each kind takes, now that it was tried."""
        self._expected = list(seconds)

    def want(self, parts: Collection[int] | None = None) -> None:
        """Queue every part, or those of `parts`, that no live worker holds; the longest jobs first, so that no worker
        is idle at the end."""
        wanted = {part for job in self._jobs for part in job.parts if parts is None or part in parts} - self.held
        missing = [WorkerTask(job, tuple(p for p in job.parts if p in wanted)) for job in self._jobs]
        for tasks in self._waiting.values():
            tasks.clear()
        for task in sorted((task for task in missing if task.parts), key=self._estimate, reverse=True):
            self._queue_of(task).append(task)

    def join(self, worker: Worker, kind: Kind = None) -> None:
        """Add a worker that is ready."""
        self._members[worker] = _Member(kind)

    def hand_out(self, starting: Mapping[Kind, int]) -> Iterator[tuple[Worker, WorkerTask]]:
        """Work for workers that have too little: first a job for each idle worker, then a second one to have at hand
        if there are enough for all workers of its kind, `starting` ones included. The caller calls `begin` for each in
        turn."""
        there = Counter(member.kind for member in self._members.values())
        for at_hand in range(AT_HAND):
            for worker, member in list(self._members.items()):
                waiting = self._waiting.get(member.kind)
                enough = at_hand == 0 or len(waiting or ()) >= there[member.kind] + starting.get(member.kind, 0)
                if waiting and enough and len(member.tasks) <= at_hand:
                    yield worker, waiting.popleft()

    def begin(self, worker: Worker, call: Call, task: WorkerTask, now: float) -> None:
        """Note that the worker has been called with this task."""
        member = self._members[worker]
        if not member.tasks:
            member.busy_since = now
        member.tasks[call] = task

    def at_work(self, call: Call) -> Worker | None:
        """The worker of a call; None if it was lost since."""
        return next((worker for worker, member in self._members.items() if call in member.tasks), None)

    def finish(self, call: Call, now: float) -> list[Worker]:
        """The call succeeded. Returns the workers to replace: this one, if another was quicker, else those that are
        still working on the same."""
        worker = self._member_of(call)
        member = self._members[worker]
        task = member.tasks[call]
        if self.held & set(task.parts):
            return [worker]
        del member.tasks[call]
        if not task.restores:
            self._seen[task.job.recipe].append((now - member.busy_since) / len(task.parts))
        member.busy_since = now
        member.parts.update(task.parts)
        return [w for w, m in self._members.items() if any(t.parts == task.parts for t in m.tasks.values())]

    def fail(self, call: Call, now: float) -> WorkerTask:
        """The call raised: a teacher that could not be restored is trained, training that raises is two strikes."""
        member = self._members[self._member_of(call)]
        task = member.tasks.pop(call)
        member.busy_since = now
        again = replace(task, strikes=task.strikes + (0 if task.restores else HANGS), restores=False)
        self._queue_of(again).appendleft(again)
        return task

    def lose(self, worker: Worker, strikes: int) -> None:
        """A worker is gone: its work is queued again, and `strikes` are counted against the job it was working on."""
        member = self._members.pop(worker)
        tasks = list(member.tasks.values())
        if tasks and not tasks[0].restores:
            tasks[0] = replace(tasks[0], strikes=tasks[0].strikes + strikes)
        again = [WorkerTask(job, tuple(p for p in job.parts if p in member.parts)) for job in self._jobs]
        for task in self._unattended([*tasks, *(task for task in again if task.parts)]):
            self._queue_of(task).appendleft(task)

    def hanging(self, now: float) -> list[Worker]:
        """Workers whose job should have ended long ago."""
        found = []
        for worker, member in self._members.items():
            task = next(iter(member.tasks.values()), None)
            if task and not task.restores and now - member.busy_since > self._longest(task):
                found.append(worker)
        return found

    def hopeless(self) -> list[WorkerTask]:
        """Single parts to be given up. A stack that fails is first taken apart, to find out which part it is."""
        given_up = []
        for task in [task for tasks in self._waiting.values() for task in tasks if task.strikes >= STRIKES]:
            waiting = self._queue_of(task)
            waiting.remove(task)
            if len(task.parts) > 1:
                waiting.extend(WorkerTask(task.job, (part,)) for part in task.parts)
            else:
                waiting.append(replace(task, strikes=0))
                given_up.append(task)
        return given_up

    def doubled(self, now: float) -> Iterator[tuple[Worker, WorkerTask]]:
        """When nothing waits: jobs that take much longer than others of their kind, for workers with nothing to do."""
        idle = {kind: [] if tasks else self._idle(kind) for kind, tasks in self._waiting.items()}
        tasks = [task for member in self._members.values() for task in member.tasks.values()]
        for member in list(self._members.values()):
            first = next(iter(member.tasks.values()), None)
            if first is None or now - member.busy_since < self._slow(first):
                continue
            for task in list(member.tasks.values()):
                if idle[member.kind] and not task.restores and tasks.count(task) == 1:
                    yield idle[member.kind].pop(), task

    def _idle(self, kind: Kind) -> list[Worker]:
        return [worker for worker, member in self._members.items() if member.kind == kind and not member.tasks]

    def _queue_of(self, task: WorkerTask) -> deque[WorkerTask]:
        return self._waiting[self._kinds[task.job.recipe]]

    def _unattended(self, tasks: Iterable[WorkerTask]) -> list[WorkerTask]:
        """Tasks that nobody has finished or is working on."""
        at_work = {part for m in self._members.values() for task in m.tasks.values() for part in task.parts}
        return [task for task in tasks if not (self.held | at_work) & set(task.parts)]

    def _member_of(self, call: Call) -> Worker:
        worker = self.at_work(call)
        assert worker is not None
        return worker

    def _estimate(self, task: WorkerTask) -> float:
        return self._expected[task.job.recipe] * len(task.parts)

    def _slow(self, task: WorkerTask) -> float:
        seen = self._seen[task.job.recipe]
        usual = median(seen) if seen else self._expected[task.job.recipe]
        return max(SLOW_SECONDS, SLOW_FACTOR * usual * len(task.parts))

    def _longest(self, task: WorkerTask) -> float:
        if self._most is not None:
            return self._most * len(task.parts)
        return MIN_SECONDS + LONGEST_FACTOR * self._estimate(task)
