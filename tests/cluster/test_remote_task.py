"""Who is sent to a GPU elsewhere, with what, and what becomes of tasks that are lost; without a cluster."""

from __future__ import annotations

import pickle
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import ray
import ray.util.queue
import torch
from ray import cloudpickle

import pate.baselines as nonprivate
from pate import pipeline
from pate.baselines._run import run_baseline
from pate.boundary._guard import Failed
from pate.cluster import _remote_task as remote_task
from pate.cluster._remote_task import RemoteTask
from pate.config import BaselineConfig, parse_config
from pate.errors import ConfigError, RunError
from pate.runs._console import Quiet
from pate.students import _stage as stage


class Noted(Quiet):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def info(self, text: str) -> None:
        self.said.append(text)


@pytest.mark.parametrize(
    ("device", "joined", "cuda_here", "gpus", "elsewhere"),
    [
        ("auto", True, False, 1.0, True),
        ("auto", True, False, 0.0, False),
        ("auto", True, True, 4.0, False),
        ("auto", False, False, 4.0, False),
        ("cpu", True, False, 4.0, False),
        ("cuda", True, False, 4.0, False),
    ],
)
def test_only_what_lacks_a_gpu_here_and_finds_one_there_goes(
    device: str, joined: bool, cuda_here: bool, gpus: float, elsewhere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = SimpleNamespace(is_initialized=lambda: joined, cluster_resources=lambda: {"GPU": gpus, "CPU": 8.0})
    monkeypatch.setitem(sys.modules, "ray", ray)  # type: ignore[arg-type]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda_here)
    assert remote_task.gpu_on_cluster(device) is elsewhere


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[RemoteTask]:
    """Tasks that would go to a cluster; they are done here, from what would arrive there."""
    found: list[RemoteTask] = []

    def noted(task: RemoteTask, progress: Callable[..., None], console: Any) -> Any:
        found.append(task)
        function, arguments = pickle.loads(bytes_of(task))
        kept = task.kept
        if kept is not None:
            kept.parent.mkdir(exist_ok=True, parents=True)
        return function(*arguments, kept=kept, progress=progress)

    for module in (stage, nonprivate, sys.modules["pate.baselines._run"]):
        monkeypatch.setattr(module, "gpu_on_cluster", lambda device: device == "auto")
        monkeypatch.setattr(module, "on_gpu", noted)
    return found


def bytes_of(task: RemoteTask) -> bytes:
    return bytes(cloudpickle.dumps((task.function, task.arguments), protocol=5))


def table(folder: Path, n: int = 120) -> dict[str, Any]:
    """A config's data: a table whose private records have features that no public one has."""
    rng = np.random.default_rng(0)
    X, y = rng.random((n, 3)).astype(np.float32), np.arange(n) % 2
    np.savez(folder / "private.npz", X=X, y=y)
    np.savez(folder / "public.npz", X=rng.random((60, 3)).astype(np.float32))
    return {"source": "npz", "private": "private.npz", "public": "public.npz", "classes": ["0", "1"]}


FOUR_TEACHERS: dict[str, Any] = {
    "n_teachers": 4,
    "teachers": [{"name": "sklearn.naive_bayes.GaussianNB"}],
    "mechanism": {"name": "gnmax", "sigma": 20.0},
    "budget": {"max_queries": 20},
    "backend": "local",
}
DP_SGD: dict[str, Any] = {
    "records": 120,
    "budget": {"epsilon": 5.0},
    "baseline": {"name": "dp_sgd", "params": {"model": "linear", "lot_size": 30, "epochs": 1, "accountant": "rdp"}},
}


def test_a_student_is_sent_public_examples_and_released_labels_alone(sent: list[RemoteTask], tmp_path: Path) -> None:
    config = FOUR_TEACHERS | {
        "data": table(tmp_path),
        "student": {"name": "mixmatch", "params": {"steps": 2, "hidden": 4}},
    }
    pipeline.run(config, tmp_path / "run", config_dir=tmp_path, console=Quiet(), force=True)
    assert {task.what for task in sent} == {"the student"}
    assert len(sent) == 2  # and one without a third of the labels: there is no test set
    private = np.load(tmp_path / "private.npz")["X"]
    public = np.load(tmp_path / "public.npz")["X"]
    for task in sent:
        content = bytes_of(task)
        assert public[0].tobytes() in content
        assert not any(row.tobytes() in content for row in private)
        student, (examples, further) = task.arguments
        labelled, labels, unlabelled = examples
        assert (len(labelled), len(labels), len(unlabelled), further) == (20, 20, 40, {})
        assert student.get_params()["steps"] == 2
    key = (tmp_path / "run" / "private" / "key").read_bytes()
    assert not any(key in bytes_of(task) for task in sent)


def test_a_student_without_a_network_is_sent_nowhere(sent: list[RemoteTask], tmp_path: Path) -> None:
    config = FOUR_TEACHERS | {
        "data": table(tmp_path),
        "student": {"name": "supervised", "params": {"estimator": "sklearn.naive_bayes.GaussianNB"}},
    }
    pipeline.run(config, tmp_path / "run", config_dir=tmp_path, console=Quiet(), force=True)
    assert sent == []


def test_dp_sgd_on_private_records_is_a_private_task(sent: list[RemoteTask], tmp_path: Path) -> None:
    config = DP_SGD | {"data": table(tmp_path)}
    outcome = run_baseline(parse_config(config, BaselineConfig), tmp_path / "run", data_dir=tmp_path, console=Quiet())
    (task,) = sent
    assert task.private
    assert task.kept == tmp_path / "run" / "private" / "state.safetensors"
    assert outcome.report.privacy.epsilon <= 5.0


def test_dp_sgd_says_that_it_is_trained_here(tmp_path: Path) -> None:
    config = DP_SGD | {"data": table(tmp_path)}
    console = Noted()
    run_baseline(parse_config(config, BaselineConfig), tmp_path / "run", data_dir=tmp_path, console=console)
    assert f"the baseline is trained here: {remote_task.here()}" in console.said


# A task that is lost

LOST, CAME_ON, DONE = (
    remote_task._LostNode("NodeDiedError", False),
    remote_task._LostNode("NodeDiedError", True),
    "result",
)


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the attempts to come will end with, without Ray."""
    ends: list[Any] = []

    def follow(*_: Any) -> Any:
        end = ends.pop(0)
        if isinstance(end, Exception):
            raise end
        return end

    monkeypatch.setattr(remote_task, "_attempt", follow)
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(put=lambda content: content))  # type: ignore[arg-type]
    return ends


def counted(*_: Any, **__: Any) -> str:
    return "here"


@pytest.mark.parametrize(
    "ends", [[DONE], [LOST, DONE], [LOST, LOST, DONE], [LOST, LOST, CAME_ON, LOST, DONE], [CAME_ON] * 5 + [DONE]]
)
def test_a_lost_task_is_begun_again(ends: list[Any], attempts: list[Any]) -> None:
    attempts += ends
    console = Noted()
    assert remote_task.on_gpu(RemoteTask("the student", counted, ()), print, console) == "result"
    assert len(console.said) == len(ends) - 1


@pytest.mark.parametrize("ends", [[LOST, LOST, LOST], [LOST, CAME_ON, LOST, LOST]])
def test_one_that_is_lost_again_and_again_ends_the_run(ends: list[Any], attempts: list[Any]) -> None:
    attempts += [*ends, DONE]
    with pytest.raises(
        RunError, match=r"lost 3 times in a row .NodeDiedError.; all that was paid for is kept"
    ) as raised:
        remote_task.on_gpu(RemoteTask("the student", counted, ()), print, Noted())
    assert "resume" in str(raised.value)
    assert attempts == [DONE]


def test_without_a_node_for_it_it_is_done_here(attempts: list[Any]) -> None:
    attempts.append(remote_task._NotThere("no GPU of the cluster was free for 600 s"))
    console = Noted()
    assert remote_task.on_gpu(RemoteTask("the student", counted, ()), print, console) == "here"
    assert console.said == [
        "note: the student is trained here instead: no GPU of the cluster was free for 600 s",
    ]


class OneNode:
    """In place of Ray: a node that runs a task the moment it is sent there, from what was sent."""

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(get_node_id=lambda: "0" * 56)

    def put(self, content: Any) -> bytes:
        return bytes(cloudpickle.dumps(content, protocol=5))

    def get(self, content: Any) -> Any:
        return pickle.loads(content) if isinstance(content, bytes) else content

    def remote(self, **options: Any) -> Any:
        assert options == {"num_cpus": 1, "num_gpus": 1, "max_retries": 0}
        return lambda function: SimpleNamespace(
            options=lambda name: SimpleNamespace(name=name, remote=lambda *sent: function(*sent))
        )

    def wait(self, calls: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        return calls, []

    def cancel(self, call: Any, force: bool = False) -> None:
        """It has ended."""


class Queue(list[Any]):
    """In place of Ray's queue."""

    def __init__(self, **_: Any) -> None:
        super().__init__()

    put, qsize = list.append, list.__len__

    def get_nowait_batch(self, n: int) -> list[Any]:
        taken, self[:] = self[:n], self[n:]
        return taken


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("put", "get", "remote", "wait", "cancel", "get_runtime_context"):
        monkeypatch.setattr(ray, name, getattr(OneNode(), name))
    monkeypatch.setattr(ray.util.queue, "Queue", Queue)
    monkeypatch.setattr(remote_task, "silence", lambda: None)
    monkeypatch.setattr(remote_task, "_SECONDS_BETWEEN_NEWS", 0.0)


def going_on(steps: int, *, kept: Path, progress: Callable[..., None]) -> tuple[int, str]:
    begin = int(kept.read_text()) if kept.exists() else 0
    for step in range(begin + 1, steps + 1):
        kept.with_suffix(".partial").write_text(str(step))
        kept.with_suffix(".partial").rename(kept)
        progress(step, steps)
    return begin, kept.name


@pytest.mark.usefixtures("node")
def test_a_task_goes_on_from_what_is_kept_here_and_what_it_keeps_comes_back(tmp_path: Path) -> None:
    kept, told, console = tmp_path / "private" / "state.bin", list[tuple[int, int]](), Noted()
    task = RemoteTask("the student", going_on, (3,), kept)
    assert remote_task.on_gpu(task, lambda *now: told.append(now), console) == (0, "state.bin")
    assert (kept.read_text(), told) == ("3", [(1, 3), (2, 3), (3, 3)])
    assert kept.parent.stat().st_mode & 0o777 == 0o700
    further = RemoteTask("the student", going_on, (5,), kept)
    assert remote_task.on_gpu(further, lambda *now: told.append(now), console) == (3, "state.bin")
    assert (kept.read_text(), told[3:]) == ("5", [(4, 5), (5, 5)])
    assert all(text.startswith("the student is trained on node ") for text in console.said)


@pytest.mark.usefixtures("node")
@pytest.mark.parametrize(("private", "said"), [(True, "training failed (ValueError)"), (False, "the record is 4711")])
def test_what_a_private_task_says_is_not_heard_here_either(private: bool, said: str) -> None:
    with pytest.raises(Exception, match=re.escape(said)) as raised:
        remote_task.on_gpu(RemoteTask("the baseline", quoting, (), private=private), print, Noted())
    assert private != ("4711" in str(raised.value))


# What a node does


def telling(number: int, *, kept: Path, progress: Callable[..., None]) -> int:
    progress(1, 2)
    kept.with_suffix(".partial").write_text("half")
    kept.with_suffix(".partial").rename(kept)
    progress(2, 2)
    return number


def lacking(*, kept: Path, progress: Callable[..., None]) -> None:
    raise ConfigError("checkpoint = 'mine.safetensors': cannot be read")


class News(list[Any]):
    put = list.append


def done(
    monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any], *arguments: Any, seen: Path, private: bool = False
) -> tuple[list[Any], tuple[str, Any]]:
    """What is told of a task meanwhile, but that it began, and how it ends; without Ray."""
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(get=pickle.loads))  # type: ignore[arg-type]
    monkeypatch.setattr(remote_task, "silence", lambda: None)
    told = News()
    end = remote_task._work([pickle.dumps((function, arguments))], None, "state", seen, private, told)
    assert told.pop(0)[1].startswith(remote_task.here())
    return told, end


def test_state_and_progress_come_before_the_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_task, "_SECONDS_BETWEEN_NEWS", 0.0)
    told, end = done(monkeypatch, telling, 7, seen=tmp_path)
    assert told == [("progress", (1, 2)), ("kept", b"half"), ("progress", (2, 2))]
    assert end == ("result", 7)
    monkeypatch.setattr(remote_task, "_SECONDS_BETWEEN_NEWS", 60.0)
    assert done(monkeypatch, telling, 7, seen=tmp_path)[0][-1] == ("progress", (2, 2))  # the last one, always


def test_a_node_without_the_configs_folder_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    event, error = done(monkeypatch, lacking, seen=tmp_path / "nowhere")[1]
    assert (event, type(error)) == ("error", remote_task._NotThere)
    assert str(error).endswith(f"lacks something that the config names, and has no folder {tmp_path / 'nowhere'}")
    event, error = done(monkeypatch, lacking, seen=tmp_path)[1]
    assert (event, str(error)) == ("error", "checkpoint = 'mine.safetensors': cannot be read")


def test_what_a_private_task_says_of_a_record_stays_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    event, error = done(monkeypatch, quoting, seen=tmp_path, private=True)[1]
    assert (event, type(error), str(error)) == ("error", Failed, "training failed (ValueError)")
    assert error.__context__ is None


def quoting(*, kept: Path, progress: Callable[..., None]) -> None:
    raise ValueError("the record is 4711")


def test_as_many_threads_as_cpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")  # what Ray says where it gave two
    assert done(monkeypatch, threads_of_torch, seen=tmp_path)[1] == ("result", 2)


def threads_of_torch(*, kept: Path, progress: Callable[..., None]) -> int:
    return torch.get_num_threads()
