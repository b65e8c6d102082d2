"""Several nodes on one machine: a node goes, and the votes are those of an undisturbed run.

A cluster of its own, in a process of its own: Ray reads its settings once a process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import json, sys, time
sys.path.insert(0, sys.argv[1])
import numpy as np, ray, torch
from ray.cluster_utils import Cluster
from pate.voters.teachers._checkpoints import TeacherFiles
from pate.config import RaySettings, TeacherFamily
from pate.data.partition import split_into_parts
from pate.boundary import sum_counts
from pate.voters.teachers._worker import Teaching, Worker
from pate.voters.teachers._pool import Pool
from pate.teachers import assign_recipes, recipes
from pathlib import Path

N, KEY = 24, b"k" * 32
rng = np.random.default_rng(1)
X, y = rng.random((600, 6, 6)).astype(np.float32), rng.integers(3, size=600)
kinds = recipes([
    TeacherFamily(name="sklearn.svm.SVC"),
    TeacherFamily(name="network", params={"architecture": "mlp", "steps": 20, "hidden": 8}),
    TeacherFamily(name="network", params={"architecture": "cnn", "steps": 10, "channels": 2, "batch_norm": True}),
])
assignment = assign_recipes(kinds, N)
parts = split_into_parts(X, y, None, KEY, N)
data = lambda part: (X[parts[part]], y[parts[part]])

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "num_gpus": 0})
nodes = [cluster.add_node(num_cpus=2, num_gpus=1) for _ in range(2)]
cluster.wait_for_nodes()
ray.init(address=cluster.address)
settings = RaySettings(gpus_per_worker=0.25, cpus_per_worker=0.5)
teaching = Teaching(kinds, 3, 0, assignment)
said = []
pool = Pool(teaching, TeacherFiles(Path(sys.argv[2]), KEY), settings, said.append)
removed = []
def done(count):
    if count >= N // 3 and not removed:
        removed.append(time.monotonic())
        cluster.remove_node(nodes[0], allow_graceful=False)
pool.train(data, done)
pool.forget_dead()
pool.train(data, lambda _: None)
kinds_used = sorted({str(kind) for (_, kind), teachers in pool.where().items() if teachers})
seconds = time.monotonic() - removed[0]
counts = sum_counts(pool.voters(X), N)
alone = Worker(teaching)
for job in teaching.jobs(stacked=[1, 2]):
    alone.train(job, {p: data(p) for p in job.parts})
same = bool((alone.count(X).counts == counts).all())
lacks = any("torch cannot use" in text for text in said)
result = {"kinds": kinds_used, "lacks_gpu": lacks, "same": same, "cuda": torch.cuda.is_available()}
Path(sys.argv[2], "result.json").write_text(json.dumps(result))
ray.shutdown()
cluster.shutdown()
"""


@pytest.mark.slow
def test_a_removed_node_costs_only_its_unfinished_teachers(tmp_path: Path) -> None:
    environment = dict(os.environ, RAY_AUTH_MODE="disabled", OMP_NUM_THREADS="1")
    environment |= {"RAY_health_check_period_ms": "1000", "RAY_health_check_failure_threshold": "3"}
    command = [sys.executable, "-c", SCRIPT, str(Path(__file__).parent.parent), str(tmp_path)]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=280, env=environment, cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr[-3000:]
    content = json.loads((tmp_path / "result.json").read_text())
    assert content["kinds"] == ["0.25 GPU", "0.5 CPUs"]
    assert content["lacks_gpu"] == (not content["cuda"])
    assert content["same"]
