"""250 teachers on three nodes with fake GPUs: a node goes in training, another in voting, the aggregator in labelling.

A run as people start it, on a cluster of its own in a process of its own. Blows fall at chosen moments: where the
run tells how far it is.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import json, os, signal, sqlite3, sys, time
import numpy as np, ray
from contextlib import contextmanager
from pathlib import Path
from ray.cluster_utils import Cluster
import pate.voters.teachers._schedule
from pate import pipeline
from pate.boundary._aggregator import query_ids
from pate.config import parse_config
from pate.runs._console import Console
from pate.data._sources import load
from pate.ledger._chain import verify

N, folder = int(sys.argv[1]), Path(sys.argv[2])
out = folder / "run"
pate.voters.teachers._schedule.STRIKES = 1  # a lost node must not count against a job even once
config = parse_config({
    "name": "nodes", "n_teachers": N, "data": {"source": "digits"},
    "teachers": [{"name": "sklearn.naive_bayes.GaussianNB", "params": {"var_smoothing": 0.01}}],
    "mechanism": {"name": "gnmax", "sigma": 20}, "budget": {"max_queries": 200},
    "student": {"name": "supervised", "params": {"estimator": "sklearn.naive_bayes.GaussianNB"}},
    "ray": {"cpus_per_worker": 1},
})
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "num_gpus": 0})
nodes = [cluster.add_node(num_cpus=2, num_gpus=1) for _ in range(3)]
cluster.wait_for_nodes()
struck, told, times = {}, [], {}

def strike(name, blow):
    if name not in struck:
        struck[name] = time.monotonic()
        blow()

class Watching(Console):
    @contextmanager
    def track(self, what, total):
        def update(done, note=""):
            if what.startswith("training teachers"):
                if done >= total // 3:
                    strike("training", lambda: cluster.remove_node(nodes[0], allow_graceful=False))
                if done == total:
                    for name in ("training", "voting"):
                        if name in struck and name not in times:
                            times[name] = time.monotonic() - struck[name]
            else:
                if "labelling" in struck and "labelling" not in times:
                    times["labelling"] = time.monotonic() - struck["labelling"]
                strike("labelling", kill_aggregator)
        yield update

    @contextmanager
    def working(self, what):
        if what == "counting votes":
            strike("voting", lambda: cluster.remove_node(nodes[1], allow_graceful=False))
        yield

def kill_aggregator():
    from hashlib import blake2b
    key = (out / "private" / "key").read_bytes()
    actor = ray.get_actor(f"aggregator-{blake2b(key, digest_size=8).hexdigest()}")
    os.kill(ray.get(actor.__ray_call__.remote(lambda self: __import__("os").getpid())), signal.SIGKILL)


from pate.boundary._aggregator import RemoteAggregator
label = RemoteAggregator.label
def listening(self, X):
    answer = label(self, X)
    told.extend(answer.labels.tolist())
    return answer
RemoteAggregator.label = listening

begun = time.monotonic()
outcome = pipeline.run(config, out, address=cluster.address, force=True, console=Watching())
seconds = time.monotonic() - begun
with np.load(out / "labels.npz") as archive:
    labels = archive["labels"].tolist()
key = (out / "private" / "key").read_bytes()
queries = load(config.data, None, Path())[0].X_public[:200]
with sqlite3.connect(out / "ledger.db") as db:
    answers = dict(db.execute("SELECT query, label FROM answers").fetchall())
    charged = db.execute("SELECT TOTAL(asked), TOTAL(answered), COUNT(*) FROM charges").fetchone()
verify(out / "ledger.db", key, out / "private" / "ledger.head")
result = {
    "struck": sorted(struck), "times": times, "seconds": seconds, "stages": outcome.seconds,
    "as_the_ledger_says": labels == [answers.get(query) for query in query_ids(queries, key)],
    "as_told": labels == told, "charged": charged,
    "failures": json.loads((out / "private" / "failures.json").read_text())["teachers"],
}
(folder / "result.json").write_text(json.dumps(result))
cluster.shutdown()
"""


@pytest.mark.slow
def test_two_nodes_and_the_aggregator_lost_cost_no_label_and_no_charge(tmp_path: Path) -> None:
    environment = os.environ | {"RAY_AUTH_MODE": "disabled", "OMP_NUM_THREADS": "1"}
    environment |= {"RAY_health_check_period_ms": "1000", "RAY_health_check_failure_threshold": "5"}
    environment |= {"RAY_raylet_start_wait_time_s": "120"}
    command = [sys.executable, "-c", SCRIPT, "250", str(tmp_path)]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=900, env=environment, cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr[-3000:]
    content = json.loads((tmp_path / "result.json").read_text())
    print(json.dumps(content, indent=1))  # shown with -s: how long recovery took
    assert content["struck"] == ["labelling", "training", "voting"]
    assert set(content["times"]) == {"labelling", "training", "voting"}
    assert content["as_the_ledger_says"]
    assert content["as_told"]
    assert content["charged"] == [200, 200, 4]
    assert content["failures"] == {}
