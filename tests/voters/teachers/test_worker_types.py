"""Which workers a family gets, and that a run keeps to the stacks it began with. No Ray."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.teachers import KEY

from pate.config import RaySettings, TeacherFamily
from pate.config._components import Resources
from pate.teachers import assign_recipes, recipes
from pate.teachers.network import Network
from pate.voters.teachers._checkpoints import InMemory, TeacherFiles
from pate.voters.teachers._worker import STACK, Teaching, Worker, WorkerKind, kinds_of_workers
from pate.voters.teachers.ensemble import Local

SVC = {"name": "sklearn.svm.SVC"}
MLP = {"name": "network", "params": {"architecture": "mlp"}}
CNN = {"name": "network", "params": {"architecture": "cnn"}}


def teaching_of(*families: dict, shape: tuple[int, ...] | None = (28, 28), n: int = 60) -> Teaching:
    kinds = recipes([TeacherFamily.model_validate(family) for family in families])
    return Teaching(kinds, 10, 0, assign_recipes(kinds, n), shape=shape)


def kinds_of(*families: dict, gpus: bool = True, **settings: object) -> list[WorkerKind]:
    return kinds_of_workers(teaching_of(*families), RaySettings(**settings), lambda: gpus)  # type: ignore[arg-type]


def test_networks_get_a_share_of_a_gpu_where_there_are_some_and_others_never() -> None:
    svc, mlp = kinds_of(SVC, MLP)
    assert svc == WorkerKind(cpus=1.0, gpus=0.0)
    assert mlp.gpus == 0.125
    assert mlp.cpus == 0, "CPU workers would take the CPUs of its node before it"
    assert kinds_of(SVC, MLP, gpus=False) == [WorkerKind(), WorkerKind()], "one kind of worker for both"
    assert [kind.gpus for kind in kinds_of(SVC, MLP, gpus_per_worker=0.5)] == [0.0, 0.5]
    assert [kind.gpus for kind in kinds_of(SVC, MLP, gpus_per_worker=0)] == [0.0, 0.0]
    on_cpu = {"name": "network", "params": {"device": "cpu"}}
    assert kinds_of(on_cpu) == [WorkerKind()]


def test_nobody_is_asked_about_gpus_that_nobody_could_use() -> None:
    def never() -> bool:
        raise AssertionError

    given = {**MLP, "resources": {"gpus": 1}}
    assert [kind.gpus for kind in kinds_of_workers(teaching_of(SVC, given), RaySettings(), never)] == [0.0, 1.0]


def test_a_share_has_room_for_the_stack() -> None:
    small, large = Network("mlp"), Network("cnn", channels=256, hidden=4096, depth=2)
    assert small.gpu_bytes((28, 28), 10, STACK) < 2e9
    needed = large.gpu_bytes((32, 32, 3), 10, STACK)
    weights = sum(w.numel() for w in _built(large, (32, 32, 3)).parameters())
    assert needed > STACK * weights * 4 * 4, "weights, gradients and Adam's two moments at least"
    params = {"architecture": "cnn", "channels": 256, "hidden": 4096, "depth": 2}
    teaching = teaching_of({"name": "network", "params": params}, shape=(32, 32, 3))
    assert kinds_of_workers(teaching, RaySettings(), lambda: True)[0].gpus == 1.0
    unknown = teaching_of(MLP, shape=None)
    assert kinds_of_workers(unknown, RaySettings(), lambda: True)[0].gpus == 1.0


def _built(network: Network, shape: tuple[int, ...]):  # type: ignore[no-untyped-def]
    network.shape_, network.classes_ = list(shape), np.arange(10)
    return network.build()


def test_memory_grows_with_the_stack_and_the_batch() -> None:
    one = Network("mlp").gpu_bytes((64,), 10, 1)
    assert Network("mlp").gpu_bytes((64,), 10, 25) > one
    assert Network("mlp", batch_size=3200).gpu_bytes((64,), 10, 1) > one


def test_what_a_family_names_is_what_ray_is_asked_for() -> None:
    resources = {"cpus": 4, "gpus": 0.5, "memory": "2GiB", "accelerator_type": "A10G", "labels": {"zone": "a"}}
    (kind,) = kinds_of({**SVC, "resources": {**resources, "custom": {"licence": 1}}})
    assert kind.options == {
        "num_cpus": 4.0,
        "num_gpus": 0.5,
        "memory": 2 * 2**30,
        "accelerator_type": "A10G",
        "label_selector": {"zone": "a"},
        "resources": {"licence": 1.0},
    }
    assert kind.threads == 4
    assert kind.needs["CPU"] == 4
    assert kind.needs["licence"] == 1
    assert "4 CPUs and 0.5 GPU" in str(kind)
    assert WorkerKind(cpus=0.5).threads == 1


def test_a_run_keeps_to_the_stacks_it_began_with(tmp_path: Path) -> None:
    teaching = teaching_of(CNN, MLP)
    for store, again in (
        (InMemory(), None),
        (TeacherFiles(tmp_path, KEY), TeacherFiles(tmp_path, KEY)),
    ):
        assert store.stacked([0]) == (0,), "there were GPUs"
        store.save(1, b"a teacher")
        assert (again or store).stacked([]) == (0,), "there are none any more, and nothing changes"
    stacks = {len(job.parts) for job in teaching.jobs([0]) if job.recipe == 0}
    assert stacks == {STACK, 30 - STACK}
    assert {len(job.parts) for job in teaching.jobs() if job.recipe == 0} == {1}
    assert Local(teaching, TeacherFiles(tmp_path, KEY))._jobs == teaching.jobs([0]), "nor without Ray"
    begun = TeacherFiles(tmp_path / "before", KEY)
    begun.save(3, b"trained alone")
    assert begun.stacked([0]) == ()
    assert TeacherFiles(tmp_path, b"x" * 32).stacked([1]) == (), "not this run's own"


@pytest.mark.parametrize("threads", [1, 2])
def test_a_worker_computes_with_the_threads_it_has_cpus_for(threads: int) -> None:
    import torch

    before = torch.get_num_threads()
    try:
        worker = Worker(teaching_of(MLP), threads=threads)
        X, y = np.zeros((4, 28, 28), dtype=np.float32), np.array([0, 1, 0, 1])
        worker.train(teaching_of(MLP).jobs()[0], {0: (X, y)})
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"gpus": 1.5}, "whole number"),
        ({"gpus": "two"}, "auto"),
        ({"gpus": -1}, "at least 0"),
        ({"memory": "much"}, "2GB"),
        ({"custom": {"GPU": 1}}, "key of its own"),
        ({"custom": {"licence": 0}}, "more than 0"),
        ({"cpu": 1}, "cpu"),
    ],
)
def test_resources_that_cannot_be_are_refused(content: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Resources.model_validate(content)
