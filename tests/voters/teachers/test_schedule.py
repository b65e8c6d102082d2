"""The pool's decisions: no Ray, no clock, no records."""

from __future__ import annotations

from pate.voters.teachers._schedule import HANGS, MIN_SECONDS, SLOW_SECONDS, STRIKES, Schedule, WorkerTask
from pate.voters.teachers._worker import TrainingJob

SINGLES = [TrainingJob(0, (part,)) for part in range(6)]
STACKED = [TrainingJob(0, (0, 1, 2)), TrainingJob(1, (3,))]


def started(jobs: list[TrainingJob], *workers: str) -> Schedule:
    schedule = Schedule(jobs, [1.0, 1.0])
    for worker in workers:
        schedule.join(worker)
    schedule.want()
    return schedule


def hand_out(schedule: Schedule, now: float = 0.0, starting: int = 0) -> dict[str, list[WorkerTask]]:
    """Give out all there is to give; a call is named by its worker and part."""
    given: dict[str, list[WorkerTask]] = {}
    for worker, task in schedule.hand_out({None: starting}):
        schedule.begin(worker, (worker, task.parts), task, now)
        given.setdefault(worker, []).append(task)
    return given


def test_a_job_each_first_and_a_second_only_while_there_are_enough_for_all() -> None:
    schedule = started(SINGLES[:2], "a", "b")
    assert {worker: len(tasks) for worker, tasks in hand_out(schedule).items()} == {"a": 1, "b": 1}
    schedule = started(SINGLES, "a", "b")
    assert {worker: len(tasks) for worker, tasks in hand_out(schedule).items()} == {"a": 2, "b": 2}
    schedule = started(SINGLES[:4], "a", "b")  # two would be left, for two that work and one that starts
    assert {worker: len(tasks) for worker, tasks in hand_out(schedule, starting=1).items()} == {"a": 1, "b": 1}


def test_the_longest_jobs_go_first_and_every_part_is_held_once_at_the_end() -> None:
    schedule = Schedule([TrainingJob(0, (0,)), TrainingJob(1, (1,)), TrainingJob(1, (2, 3, 4))], [5.0, 2.0])
    schedule.join("a")
    schedule.want()
    order = []
    while not schedule.finished:
        for tasks in hand_out(schedule).values():
            order += [task.parts for task in tasks]
        assert schedule.finish(schedule.calls[0], 1.0) == []
    assert order == [(2, 3, 4), (0,), (1,)]
    assert schedule.held == {0, 1, 2, 3, 4}
    assert schedule.holders == ["a"]


def test_only_what_is_wanted_is_handed_out() -> None:
    schedule = Schedule(STACKED, [1.0, 1.0])
    schedule.join("a")
    schedule.want([1, 3])
    assert sorted(task.parts for task in hand_out(schedule)["a"]) == [(1,), (3,)]


def test_a_lost_worker_gives_back_its_work_with_a_strike_and_what_it_held_without() -> None:
    schedule = started(SINGLES[:3], "a")
    hand_out(schedule)
    schedule.finish(("a", (0,)), 1.0)
    hand_out(schedule)
    schedule.lose("a", strikes=1)
    assert schedule.held == set()
    for worker in ("b", "c", "d"):
        schedule.join(worker)
    again = [task for tasks in hand_out(schedule).values() for task in tasks]
    assert sorted((task.parts, task.strikes) for task in again) == [((0,), 0), ((1,), 1), ((2,), 0)]


def test_a_job_that_takes_workers_down_is_given_up_and_a_stack_is_first_taken_apart() -> None:
    schedule = started(STACKED[:1])
    for number in range(STRIKES):
        assert schedule.hopeless() == []
        schedule.join(number)
        hand_out(schedule)
        schedule.lose(number, strikes=1)
    assert schedule.hopeless() == []  # a stack: now three jobs of one part
    schedule.join("a")
    singles = hand_out(schedule)["a"]
    assert [task.parts for task in singles][:1] == [(0,)]
    schedule = started(SINGLES[:1])
    for number in range(2):
        schedule.join(number)
        hand_out(schedule)
        schedule.lose(number, strikes=HANGS)
    assert [task.parts for task in schedule.hopeless()] == [(0,)]
    assert schedule.hopeless() == []  # it waits for its stand-in, with a clean slate
    schedule.join("c")
    assert hand_out(schedule)["c"][0].strikes == 0


def test_training_that_raises_is_two_strikes_and_a_teacher_that_cannot_be_restored_none() -> None:
    schedule = started(SINGLES[:1], "a")
    (_, task), *_ = schedule.hand_out({})
    schedule.begin("a", "call", task.of([0], restores=True), 0.0)
    assert schedule.fail("call", 1.0).restores
    assert hand_out(schedule)["a"][0] == WorkerTask(SINGLES[0], (0,))
    schedule.fail(("a", (0,)), 1.0)
    assert hand_out(schedule)["a"][0].strikes == HANGS


def test_who_hangs_is_known_by_the_time_its_job_should_take() -> None:
    schedule = started(SINGLES[:1], "a")
    hand_out(schedule, now=10.0)
    assert schedule.hanging(10.0 + MIN_SECONDS) == []
    assert schedule.hanging(10.0 + MIN_SECONDS + 51) == ["a"]
    limited = Schedule(STACKED, teacher_timeout_seconds=4.0)
    limited.join("a")
    limited.want()
    hand_out(limited)
    assert limited.hanging(12.0) == []
    assert limited.hanging(12.5) == ["a"]


def test_a_slow_job_is_doubled_and_the_first_result_counts() -> None:
    schedule = started(SINGLES[:1], "a", "b")
    hand_out(schedule)
    assert list(schedule.doubled(SLOW_SECONDS - 1)) == []
    ((worker, task),) = schedule.doubled(SLOW_SECONDS + 1)
    assert worker == "b"
    schedule.begin("b", "second", task, 20.0)
    assert list(schedule.doubled(40.0)) == []  # two are enough
    assert schedule.finish("second", 21.0) == ["a"]  # the slower one is to be replaced
    schedule.lose("a", strikes=0)
    assert schedule.finished
    assert schedule.held == {0}


def test_a_result_that_comes_second_replaces_its_worker() -> None:
    schedule = started(SINGLES[:1], "a", "b")
    hand_out(schedule)
    ((_, task),) = schedule.doubled(SLOW_SECONDS + 1)
    schedule.begin("b", "second", task, 20.0)
    schedule.finish(("a", (0,)), 21.0)
    assert schedule.finish("second", 22.0) == ["b"]
    assert schedule.held == {0}


MIXED = [TrainingJob(0, (part,)) for part in range(4)] + [TrainingJob(1, (4, 5)), TrainingJob(1, (6, 7))]


def mixed(**workers: str) -> Schedule:
    schedule = Schedule(MIXED, [1.0, 1.0], kinds=["cpu", "gpu"])
    for worker, kind in workers.items():
        schedule.join(worker, kind)
    schedule.want()
    return schedule


def hand_out_mixed(schedule: Schedule, now: float = 0.0) -> dict[str, list[int]]:
    given: dict[str, list[int]] = {}
    for worker, task in schedule.hand_out({}):
        schedule.begin(worker, (worker, task.parts), task, now)
        given.setdefault(worker, []).append(task.job.recipe)
    return given


def test_a_job_goes_to_workers_of_its_kind_only_and_both_kinds_are_busy() -> None:
    schedule = mixed(a="cpu", g="gpu")
    assert hand_out_mixed(schedule) == {"a": [0, 0], "g": [1, 1]}
    schedule = mixed(a="cpu", b="cpu")
    while given := hand_out_mixed(schedule):
        assert {recipe for recipes in given.values() for recipe in recipes} == {0}
        assert not schedule.stuck  # somebody is at work
        for call in schedule.calls:
            schedule.finish(call, 1.0)
    assert schedule.stuck == ["gpu"]
    assert not schedule.finished
    schedule.lose("a", strikes=0)
    assert set(hand_out_mixed(schedule)) == {"b"}, "what a lost worker held goes to its own kind again"


def test_a_slow_job_is_doubled_by_a_worker_of_its_kind() -> None:
    schedule = mixed(a="cpu", b="cpu", g="gpu", h="gpu")
    while hand_out_mixed(schedule):
        for call in [call for call in schedule.calls if call[0] != "g"]:
            schedule.finish(call, 1.0)
    assert [worker for worker, _ in schedule.doubled(SLOW_SECONDS + 9)] == ["h"]


def test_as_many_workers_are_asked_for_as_there_are_jobs_for_them() -> None:
    schedule = mixed()
    assert schedule.lacking(most=100, at_once=100) == {"cpu": 4, "gpu": 2}
    assert schedule.lacking(most=100, at_once=3) == {"cpu": 2, "gpu": 1}, "never a flood, and the kinds take turns"
    assert schedule.lacking(most=3, at_once=100) == {"cpu": 3, "gpu": 2}
    schedule.join("a", "cpu")
    schedule.join("b", "cpu")
    assert schedule.lacking(most=3, at_once=100) == {"cpu": 1, "gpu": 1}
    assert schedule.lacking(most=2, at_once=100) == {"cpu": 0, "gpu": 1}, "one of each kind in any case"
    while hand_out_mixed(schedule):
        for call in schedule.calls:
            schedule.finish(call, 1.0)
    assert schedule.lacking(most=100, at_once=100) == {"cpu": 0, "gpu": 2}, "less is asked for as less is left"
    schedule.lose("a", strikes=0)
    schedule.lose("b", strikes=0)
    assert schedule.lacking(most=100, at_once=100)["cpu"] == 4, "those lost are made up for"
