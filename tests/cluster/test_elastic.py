"""Clusters that are mixed, full, too small, or grow: who ran where, and that nothing waits for what never comes.

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

PREPARED = """
import json, sys, time
from pathlib import Path
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/cluster"]
import elastic_teachers
import numpy as np, ray
from support.teachers import KEY, KINDS, private_data
from pate.config import RaySettings, TeacherFamily
from pate.data.partition import split_into_parts
from pate.voters.teachers._checkpoints import InMemory
from pate.voters.teachers._pool import Pool
from pate.boundary import sum_counts
from pate.voters.teachers._worker import Teaching, Worker
from pate.errors import RunError
from pate.teachers import Recipe, assign_recipes, recipes

X, y = private_data(600)
found, told = {}, []

def teaching_of(kinds, n):
    here = [str(Path(sys.argv[1]) / "cluster"), sys.argv[1]]
    return Teaching(kinds, 3, 0, assign_recipes(kinds, n), here, shape=(4, 4))

def records_of(n):
    parts = split_into_parts(X, y, None, KEY, n)
    return lambda part: (X[parts[part]], y[parts[part]])

def alone(teaching, stacked, n):
    worker = Worker(teaching)
    for job in teaching.jobs(stacked):
        worker.train(job, {p: records_of(n)(p) for p in job.parts})
    return worker.count(X).counts

def patiently(start, **arguments):
    for attempt in range(6):  # Ray gives a node half a minute to start, which is little on a busy machine
        try:
            return start(**arguments)
        except Exception as error:
            if "timed out" not in str(error) or attempt == 5:
                raise

def finish():
    Path("result.json").write_text(json.dumps(found))
    ray.shutdown()
"""

MIXED = """
from ray.cluster_utils import Cluster
head = {"num_cpus": 0, "include_dashboard": False}
cluster = patiently(Cluster, initialize_head=True, head_node_args=head)
small = [patiently(cluster.add_node, num_cpus=3).node_id for _ in range(2)]
with_gpu = patiently(cluster.add_node, num_cpus=1, num_gpus=1).node_id
cluster.wait_for_nodes()
ray.init(address=cluster.address, log_to_driver=False)

N = 24
kinds = recipes([
    TeacherFamily(name="sklearn.naive_bayes.GaussianNB"),
    TeacherFamily(name="elastic_teachers.Sleeper", params={"seconds": 0.3}),
    TeacherFamily(name="network", params={"architecture": "cnn", "channels": 2, "depth": 1, "hidden": 4, "steps": 4}),
])
teaching, store = teaching_of(kinds, N), InMemory()
pool = Pool(teaching, store, RaySettings(cpus_per_worker=2, worker_timeout_seconds=400), told.append)
begun = time.monotonic()
pool.probe(X, 15)
pool.train(records_of(N), lambda _: None)
found["seconds"] = time.monotonic() - begun
found["pending_at_the_end"] = pool.pending
found["where"] = [[node, str(kind), teachers] for (node, kind), teachers in pool.where().items()]
found["nodes"] = {"small": small, "with_gpu": with_gpu}
found["same"] = bool((alone(teaching, store.stacked(()), N) == sum_counts(pool.voters(X), N)).all())
found["stacked"] = store.stacked(())

# another run finds no room, says so, and ends in one line
impatient = RaySettings(cpus_per_worker=2, worker_timeout_seconds=8)
full = Pool(teaching_of(kinds[:1], 4), InMemory(), impatient, told.append)
try:
    full.train(records_of(4), lambda _: None)
except RunError as error:
    found["full"] = str(error)
full.close()

# a node that joins while it waits, or trains, gets work
flag = Path("joined").resolve()
waiting = [Recipe("elastic_teachers.Sleeper", {"until": str(flag)})]  # no teacher is ready before the node has joined
patient = RaySettings(cpus_per_worker=2, worker_timeout_seconds=400)
late = Pool(teaching_of(waiting, 40), InMemory(), patient, told.append)
joined = {}
def join(count):
    if not joined:
        joined["node"] = patiently(cluster.add_node, num_cpus=2).node_id
        joined["at"] = time.monotonic()
    if "node" in joined and "seconds" not in joined and any(node == joined["node"] for node, _ in late.where()):
        joined["seconds"] = time.monotonic() - joined["at"]
        flag.touch()
pool.close()
late.train(records_of(40), join)
there = [teachers for (node, _), teachers in late.where().items() if node == joined["node"]]
found["late"] = {"seconds": joined.get("seconds"), "there": there}
late.close()
found["told"] = told
finish()
cluster.shutdown()
"""


def run(script: str, folder: Path, timeout: float = 1200) -> dict[str, Any]:
    tests = Path(__file__).parent.parent
    environment = os.environ | {"RAY_AUTH_MODE": "disabled", "OMP_NUM_THREADS": "1"}
    shown = subprocess.run(
        [sys.executable, "-c", PREPARED + script, str(tests)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=environment,
        cwd=folder,
    )
    assert shown.returncode == 0, shown.stderr[-3000:]
    content: dict[str, Any] = json.loads((folder / "result.json").read_text())
    print(json.dumps(content, indent=1))
    return content


@pytest.mark.slow
def test_networks_go_to_gpu_nodes_and_others_to_cpus_and_every_node_is_used(tmp_path: Path) -> None:
    """Two nodes of 3 CPUs hold one worker of 2 CPUs each: the others asked for never come, and stop nothing."""
    content = run(MIXED, tmp_path)
    used = {(node, kind) for node, kind, teachers in content["where"] if teachers}
    small, with_gpu = content["nodes"]["small"], content["nodes"]["with_gpu"]
    assert used == {(small[0], "2 CPUs"), (small[1], "2 CPUs"), *((n, k) for n, k in used if n == with_gpu)}
    assert {kind for node, kind in used if node == with_gpu} == {"0.125 GPU"}
    assert sum(teachers for node, _, teachers in content["where"] if node == with_gpu) == 8
    assert content["same"], "the votes are those of one worker"
    assert content["stacked"] == [2], "CNNs are stacked where there are GPUs"
    assert content["pending_at_the_end"] == 0
    assert any("torch cannot use" in text for text in content["told"]) or _cuda()
    assert any("waiting for a worker with 2 CPUs" in text and "of 7 CPUs" in text for text in content["told"])
    assert content["full"].startswith("8 s (ray.worker_timeout_seconds) were not enough for a worker with 2 CPUs")
    assert "\n" not in content["full"]
    assert "resume" in content["full"]
    assert content["late"]["there"], "a node that joined holds teachers"


def _cuda() -> bool:
    import torch

    return torch.cuda.is_available()


GROWING = """
import os
from pate.cluster._remote_task import RemoteTask, gpu_on_cluster, on_gpu
from pate.runs._console import Quiet
from pate.components._registry import make_importable
make_importable(Path(sys.argv[1]) / "cluster")
from support.growing import growing_cluster
os.environ["RAY_AUTH_MODE"] = "disabled"

def nodes():
    return sum(node["Alive"] for node in ray.nodes()) - 1

N = 40
types, most = {"cpu": {"CPU": 2}, "gpu": {"CPU": 1, "GPU": 1}}, {"cpu": 2, "gpu": 1}
kinds = recipes([
    TeacherFamily(name="elastic_teachers.Sleeper", params={"seconds": 1.0}),
    TeacherFamily(name="network", weight=0.25, params={"architecture": "mlp", "steps": 4, "hidden": 4}),
])
with growing_cluster(types, most, second=SECOND) as address:
    ray.init(address=address, log_to_driver=False)
    found["at_first"] = nodes()
    pool = Pool(teaching_of(kinds, N), InMemory(), RaySettings(worker_timeout_seconds=500), told.append)
    pool.probe(X, 15)
    seen = []
    pool.train(records_of(N), lambda _: seen.append(nodes()))
    found["most"] = max(seen)
    found["kinds"] = sorted({str(kind) for (_, kind), teachers in pool.where().items() if teachers})
    found["used"] = len({node for (node, _), teachers in pool.where().items() if teachers})
    found["votes"] = int(sum_counts(pool.voters(X), N).sum())
    pool.close()
    until = time.monotonic() + 120
    while nodes() and time.monotonic() < until:
        time.sleep(1)
    found["at_last"] = nodes()
    found["told"] = told

    # a student that comes after them: the cluster has no GPU at this moment, and brings one
    found["elsewhere"] = gpu_on_cluster("auto")
    node = on_gpu(RemoteTask("the student", elastic_teachers.node, ()), print, Quiet())
    found["its_gpus"] = [each["Resources"].get("GPU") for each in ray.nodes() if each["NodeID"] == node]
    finish()
"""


@pytest.mark.slow
@pytest.mark.parametrize("second", [False, True], ids=["autoscaler 1", "autoscaler 2"])
def test_an_empty_cluster_grows_by_what_is_asked_for_and_shrinks_back(second: bool, tmp_path: Path) -> None:
    """A head without CPUs: nodes of both kinds come because workers wait for them, GPUs without being named."""
    content = run(f"SECOND = {second}\n{GROWING}", tmp_path)
    assert content["at_first"] == 0
    assert content["most"] == 3
    assert content["used"] == 3
    assert content["kinds"] == ["0.125 GPU", "1 CPU"]
    assert content["votes"] == 600 * 40
    assert content["at_last"] == 0
    assert content["elsewhere"]
    assert content["its_gpus"] == [1]
