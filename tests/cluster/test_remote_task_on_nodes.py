"""Tasks on a cluster with a GPU node (a fake one: torch finds no GPU there, so it is that node's CPU).

Clusters of their own, in processes of their own: Ray reads its settings once a process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow  # a minute to start and stop clusters

_ATTEMPTS_TO_START = 3  # Ray waits for its own processes, too little on a busy machine

WORK = """
import json, time
from pathlib import Path

def counted(steps, pause, *, kept, progress):
    begin = json.loads(kept.read_text()) if kept.exists() else 0
    for number in range(begin, steps):
        time.sleep(pause)
        if number % 10 == 0:
            partial = kept.with_suffix(".partial")
            partial.write_text(json.dumps(number))
            partial.rename(kept)
        progress(number + 1, str(kept.parent))
    import ray
    return begin, ray.get_runtime_context().get_node_id()

def failing(*, kept, progress):
    raise ValueError("quotes a record: 4711")
"""

BEGIN = """
import json, os, sys, time, types
from pathlib import Path
import numpy as np, ray
from ray.cluster_utils import Cluster
from pate.cluster import _remote_task as remote_task
from pate.cluster._remote_task import RemoteTask, gpu_on_cluster, on_gpu
from pate.runs._console import Quiet
from pate.components._registry import make_importable

out = Path(sys.argv[1])
make_importable(out)
import work

class Noted(Quiet):
    said = []
    def info(self, text):
        self.said.append(text)

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "num_gpus": 0})
gpu_node = cluster.add_node(num_cpus=2, num_gpus=1)
cluster.wait_for_nodes()
ray.init(address=cluster.address, log_to_driver=False)
found, console = {"gpu_node": gpu_node.node_id}, Noted()
"""

END = """
found["said"] = Noted.said
(out / "result.json").write_text(json.dumps(found))
ray.shutdown()
cluster.shutdown()
"""


def on_a_cluster(script: str, folder: Path, timeout: float = 280) -> dict[str, Any]:
    """What the script has found on a cluster of its own: a head without GPU, and a node with one."""
    (folder / "work.py").write_text(WORK)
    environment = dict(os.environ, RAY_AUTH_MODE="disabled", OMP_NUM_THREADS="1", RAY_worker_niceness="0")
    environment |= {"RAY_raylet_start_wait_time_s": "120"}
    command = [sys.executable, "-c", BEGIN + script + END, str(folder)]
    for _ in range(_ATTEMPTS_TO_START):
        shown = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment, cwd=folder)
        if "timed out during startup" not in shown.stderr:
            break
    assert shown.returncode == 0, shown.stderr[-3000:]
    result: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return result


TRAINED = """
import pate.baselines as nonprivate
from pate.baselines._run import run_baseline
from pate.config import BaselineConfig, parse_config
from pate.data._sources import load
from pate.students import build_student, _stage as stage
from pate.teachers import Recipe

# a function of the user's own folder: where it ran, what it kept, what it told
steps = []
task = RemoteTask("counting", work.counted, (30, 0.02), out / "kept")
found["counted"] = on_gpu(task, lambda done, folder: steps.append(done), console)
found["steps"], found["kept"] = steps, (out / "kept").read_text()

# a student, there and here
rng = np.random.default_rng(0)
X, y = rng.random((120, 8)).astype(np.float32), np.arange(30) % 2
def student():
    new = build_student("mixmatch", {"steps": 60, "hidden": 8}, 0)
    stage._fit(new, ((X[:30], y, X[30:]), {}), out / "checkpoint", console)
    return {name: value.tolist() for name, value in new.weights().items()} | {"shares": new.predict_proba(X).tolist()}
there = student()
found["checkpoint_left"] = (out / "checkpoint").exists()
found["elsewhere"] = gpu_on_cluster("auto"), gpu_on_cluster("cpu")

# one whose class no node can import
module = types.ModuleType("nowhere_else")
exec("def function(*, kept, progress):\\n    return 'here'", module.__dict__)
sys.modules["nowhere_else"] = module
found["nowhere_else"] = on_gpu(RemoteTask("the stray", module.function, ()), print, console)

# what goes wrong on private records is told by its kind alone; on others in its own words
for private in (True, False):
    try:
        on_gpu(RemoteTask("the broken", work.failing, (), private=private), print, console)
    except Exception as error:
        found[f"failed_{private}"] = f"{type(error).__name__}: {error}"

# interrupted: the GPU is given back, and nothing is left on the node
remote_task._SECONDS_TO_STOP = 60  # on a busy machine
def interrupt(done, folder):
    found["folder"] = folder
    raise KeyboardInterrupt
try:
    on_gpu(RemoteTask("the interrupted", work.counted, (10**6, 0.02), out / "interrupted"), interrupt, console)
except KeyboardInterrupt:
    found["interrupted"] = True
deadline = time.monotonic() + 60
while ray.available_resources().get("GPU", 0) < 1 and time.monotonic() < deadline:
    time.sleep(0.2)
found["free_again"] = ray.available_resources().get("GPU", 0)
found["folder_left"] = Path(found["folder"]).exists()

# DP-SGD and the model without privacy, as `pate baseline` runs them
content = {
    "data": {"source": "digits"}, "budget": {"epsilon": 20.0},
    "baseline": {"name": "dp_sgd", "params": {"model": "linear", "epochs": 20, "accountant": "rdp"}},
    "nonprivate": {"name": "network", "params": {"architecture": "mlp", "steps": 200, "hidden": 32}},
}
report = run_baseline(parse_config(content, BaselineConfig), out / "baseline", console=console).report
found["baseline"] = report.privacy.epsilon, report.student.accuracy, report.benchmark.nonprivate_accuracy
found["state"] = sorted(p.name for p in (out / "baseline/private").glob("state*"))

stage.gpu_on_cluster = nonprivate.gpu_on_cluster = lambda device: False
found["same"] = student() == there
config = parse_config(content, BaselineConfig)
without = Recipe(config.nonprivate.name, dict(config.nonprivate.params))
public, private = load(config.data, None, out)
found["here"] = nonprivate.nonprivate_accuracy(without, public, private, 0, console)
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return on_a_cluster(TRAINED, tmp_path_factory.mktemp("cluster"))


def test_a_task_runs_on_the_gpu_node_and_tells_of_itself(trained: dict[str, Any]) -> None:
    begin, node = trained["counted"]
    assert (begin, node) == (0, trained["gpu_node"])
    assert trained["steps"][-1] == 30
    assert trained["steps"] == sorted(trained["steps"])
    assert trained["kept"] == "20"


def test_a_student_is_the_same_as_trained_here(trained: dict[str, Any]) -> None:
    assert trained["elsewhere"] == [True, False]
    assert trained["same"]
    assert not trained["checkpoint_left"]
    told = [text for text in trained["said"] if text.startswith("the student is trained on node ")]
    assert len(told) == 1
    assert told[0].endswith("CPU: it was given a GPU that torch cannot use there")


def test_what_no_node_can_import_runs_here(trained: dict[str, Any]) -> None:
    assert trained["nowhere_else"] == "here"
    assert any(text.startswith("note: the stray is trained here instead: node ") for text in trained["said"])


def test_of_private_records_only_the_kind_of_a_failure_comes_back(trained: dict[str, Any]) -> None:
    assert trained["failed_True"] == "Failed: training failed (ValueError)"
    assert trained["failed_False"] == "ValueError: quotes a record: 4711"


def test_an_interrupted_task_gives_its_gpu_back_and_leaves_nothing(trained: dict[str, Any]) -> None:
    assert trained["interrupted"]
    assert trained["free_again"] == 1
    assert not trained["folder_left"]


def test_dp_sgd_says_where_it_ran(trained: dict[str, Any]) -> None:
    for what in ("the baseline", "the model without privacy"):
        assert sum(text.startswith(f"{what} is trained on node ") for text in trained["said"]) == 1, what
    epsilon, accuracy, nonprivate = trained["baseline"]
    assert 0 < epsilon <= 20
    assert accuracy > 0.5  # of ten classes; 0.80 to 0.87 in six trainings
    assert nonprivate == trained["here"] > 0.7


LOST = """
spare = []
def lose(done, folder):
    if done > 30 and not spare:
        spare.append(cluster.add_node(num_cpus=2, num_gpus=1))
        cluster.remove_node(gpu_node, allow_graceful=False)
task = RemoteTask("counting", work.counted, (400, 0.02), out / "kept")
found["counted"] = on_gpu(task, lose, console)
found["spare"] = spare[0].node_id
cluster.remove_node(spare[0], allow_graceful=False)
(out / "kept").unlink()
before = time.monotonic()
while gpu_on_cluster("auto") and time.monotonic() - before < 60:
    time.sleep(0.5)
found["none_left"] = not gpu_on_cluster("auto")
"""


def test_a_lost_node_costs_what_was_not_kept(tmp_path: Path) -> None:
    found = on_a_cluster(LOST, tmp_path)
    begin, node = found["counted"]
    assert begin >= 20
    assert node == found["spare"]
    assert sum("was lost" in text for text in found["said"]) == 1
    assert found["none_left"]


RUN = """
from pate.runs._console import Console
from pate.pipeline import run
ray.shutdown()
content = {
    "n_teachers": 6, "data": {"source": "digits"}, "teachers": [{"name": "sklearn.naive_bayes.GaussianNB"}],
    "mechanism": {"name": "gnmax", "sigma": 10.0}, "budget": {"max_queries": 40},
    "student": {"name": "mixmatch", "params": {"steps": 60, "hidden": 16, "channels": 4}},
    "nonprivate": {"name": "network", "params": {"architecture": "mlp", "steps": 30, "hidden": 8}},
}
run(content, out / "run", address=cluster.address, console=console)
found["joined_still"] = ray.is_initialized()
"""


def test_a_run_that_joins_a_cluster_has_its_student_there(tmp_path: Path) -> None:
    found = on_a_cluster(RUN, tmp_path)
    for what in ("the student", "the model without privacy"):
        assert sum(text.startswith(f"{what} is trained on node ") for text in found["said"]) == 1, what
    assert not found["joined_still"]
