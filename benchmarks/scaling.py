"""The same 250 teachers on 1, 2 and 4 nodes, and what one teacher costs besides its training.

    python benchmarks/scaling.py [--nodes 1 2 4] [--teachers 250] [--sleep 0.2]

Nodes are Ray nodes on this one machine (`ray.cluster_utils.Cluster`), each with one worker, so they share its cores:
teachers that compute cannot get faster by more of them than there are cores. Teachers that sleep can, and
show what scheduling costs: the time a worker is not asleep, a job. Sleeping teachers are stored with as many bytes
as `--bytes` says, which all pass the driver.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np


def measure(n_nodes: int, n_teachers: int, name: str, params: dict[str, float]) -> dict[str, float]:
    """One cluster, one ensemble: seconds of each stage."""
    import ray
    from ray.cluster_utils import Cluster

    from pate.boundary import sum_counts
    from pate.config import RaySettings
    from pate.data.partition import split_into_parts
    from pate.teachers import Recipe
    from pate.voters.teachers._checkpoints import InMemory
    from pate.voters.teachers._pool import Pool
    from pate.voters.teachers._worker import Teaching

    rng = np.random.default_rng(0)
    X, y = rng.random((240 * n_teachers, 32), dtype=np.float32), rng.integers(10, size=240 * n_teachers)
    started = time.perf_counter()
    parts = split_into_parts(X, y, None, b"k" * 32, n_teachers)
    split = time.perf_counter() - started
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    for _ in range(n_nodes):
        cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    store = InMemory()
    folder = str(Path(__file__).parent.resolve())
    pool = Pool(Teaching([Recipe(name, params)], 10, 0, [0] * n_teachers, [folder]), store, RaySettings())
    pool.probe(X[:200], 50)
    pool.wait_for(n_nodes)
    started, own = time.perf_counter(), time.process_time()
    pool.train(lambda part: (X[parts[part]], y[parts[part]]), lambda _: None)
    train, driver = time.perf_counter() - started, time.process_time() - own
    started = time.perf_counter()
    partials = pool.voters(X[:1000])
    vote = time.perf_counter() - started
    assert sum_counts(partials, n_teachers).sum() == 1000 * n_teachers
    payloads = [store.load(part) or b"" for part in range(n_teachers)]
    pool.close()
    ray.shutdown()
    cluster.shutdown()
    return {
        "split": split,
        "train": train,
        "driver": driver / n_teachers,
        "vote": vote,
        "bytes_stored": float(np.mean([len(payload) for payload in payloads])),
        "bytes_sent": float(np.mean([X[rows].nbytes + y[rows].nbytes for rows in parts])),
        "bytes_votes": float(partials[0].counts.nbytes),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--teachers", type=int, default=250)
    parser.add_argument("--sleep", type=float, default=0.2)
    parser.add_argument("--bytes", type=int, default=50_000)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:  # a process of its own: Ray reads its settings once
        kind, nodes = arguments.one
        chosen = ("sklearn.naive_bayes.GaussianNB", {})
        if kind == "sleeping":
            chosen = ("elastic.Sleeper", {"seconds": arguments.sleep, "size": arguments.bytes})
            sys.path.insert(0, str(Path(__file__).parent))
        print(json.dumps(measure(int(nodes), arguments.teachers, *chosen)))
        return
    print(f"{arguments.teachers} teachers; {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start")
    for kind in ("sleeping", "computing"):
        first = None
        for nodes in arguments.nodes:
            options = ["--teachers", arguments.teachers, "--sleep", arguments.sleep, "--bytes", arguments.bytes]
            command = [sys.executable, __file__, "--one", kind, str(nodes), *map(str, options)]
            environment = os.environ | {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
            shown = subprocess.run(command, capture_output=True, text=True, env=environment)
            if shown.returncode:
                sys.exit(shown.stderr[-2000:])
            figures = json.loads(shown.stdout.splitlines()[-1])
            first = first or figures["train"]
            asleep = arguments.sleep * arguments.teachers if kind == "sleeping" else 0.0
            overhead = (figures["train"] * nodes - asleep) / arguments.teachers
            kept, sent = figures["bytes_stored"] / 1e3, figures["bytes_sent"] / 1e3
            print(
                f"{kind:9s} {nodes} nodes: {figures['train']:.1f} s ({first / figures['train']:.2f} × the first), "
                f"{1000 * overhead:.0f} ms per teacher {'not asleep' if asleep else 'of a worker'}; "
                f"{1000 * figures['driver']:.1f} ms of the driver's CPU; "
                f"votes on 1,000 queries {figures['vote']:.2f} s; {sent:.0f} kB of records and {kept:.1f} kB stored a "
                f"teacher; splitting {figures['split']:.1f} s; load {os.getloadavg()[0]:.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
