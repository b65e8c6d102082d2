"""Clusters that grow, shrink, lose nodes and are shared: what a run makes of them.

    python benchmarks/elastic.py [growing] [two-runs] [lost-node] [mixed]     [--teachers 250] [--sleep 1.0]

    growing    an autoscaling cluster from zero to four nodes and back, under one run of PATE
    two-runs   two runs at once on such a cluster, with what one run alone took beside it
    lost-node  all workers lost for 150 s with their only node; the run goes on when a node is back
    mixed      CPU nodes and nodes with (fake) GPUs: who ran where, and that every node was used

Whole runs, as people start them, by `pate run --address`; the ledger is verified after each by `pate ledger verify`.
Teachers sleep instead of computing, so that two cores suffice for many nodes; networks are small. The nodes are
Ray's, on this machine: its autoscaler with a provider of fake nodes, or `ray.cluster_utils.Cluster`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent.resolve()
sys.path[:0] = [str(HERE), str(HERE.parent / "tests")]
PARTS = ("growing", "two-runs", "lost-node", "mixed")


class Sleeper:
    """A teacher whose training is waiting, and which is so many bytes to store."""

    def __init__(self, seconds: float = 1.0, size: int = 0) -> None:
        self.seconds, self.size = seconds, size

    def get_params(self, deep: bool = True) -> dict[str, float]:
        return {"seconds": self.seconds, "size": self.size}

    def set_params(self, **params: float) -> Sleeper:
        self.__dict__.update(params)
        return self

    def fit(self, X: np.ndarray, y: np.ndarray) -> Sleeper:
        time.sleep(self.seconds)
        self.label_, self.weights_ = int(y[0]) if len(y) else 0, np.zeros(int(self.size), dtype=np.uint8)
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:
        return np.full(len(X), self.label_, dtype=np.int64)


def write_config(folder: Path, teachers: int, sleep: float, networks: bool = False, **ray: Any) -> Path:
    """A config beside a file that holds the sleeping teacher, as a user's own class would be."""
    (folder / "elastic.py").write_text(Path(__file__).read_text())
    families: list[dict[str, Any]] = [{"name": "elastic.Sleeper", "params": {"seconds": sleep}}]
    if networks:
        params = {"architecture": "cnn", "channels": 2, "depth": 1, "hidden": 8, "steps": 20}
        families.append({"name": "network", "weight": 0.25, "params": params})
    config = {
        "name": "elastic",
        "n_teachers": teachers,
        "data": {"source": "digits"},
        "teachers": families,
        "mechanism": {"name": "gnmax", "sigma": 20},
        "budget": {"max_queries": 50},
        "student": {"name": "supervised", "params": {"estimator": "sklearn.naive_bayes.GaussianNB"}},
        "ray": ray,
    }
    path = folder / "elastic.yaml"
    path.write_text(json.dumps(config))
    return path


def start_run(config: Path, out: Path, address: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "pate.cli", "run", str(config), "--out", str(out), "--address", address, "--force"]
    log = out.with_suffix(".log").open("w")
    return subprocess.Popen(command, stdout=log, stderr=log, text=True, cwd=HERE.parent)


def ended(run: subprocess.Popen[str], out: Path) -> None:
    """Wait for the run, and verify its ledger."""
    if run.wait():
        sys.exit(out.with_suffix(".log").read_text()[-3000:])
    command = [sys.executable, "-m", "pate.cli", "ledger", "verify", str(out)]
    shown = subprocess.run(command, capture_output=True, text=True, cwd=HERE.parent)
    print(f"  pate ledger verify: {'ok' if shown.returncode == 0 else shown.stderr.strip()}", flush=True)
    seconds = json.loads((out / "private" / "seconds.json").read_text())
    print(
        "  stages: " + ", ".join(f"{name} {value:.0f} s" for name, value in seconds.items() if value >= 1), flush=True
    )


class Watch:
    """Looks at the cluster every half second: how many nodes it has besides the head, and what is in use."""

    def __init__(self, address: str) -> None:
        import ray

        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        self.seen: list[tuple[float, int, float]] = []
        self._ended = threading.Event()
        self._started = time.monotonic()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        import ray

        while not self._ended.wait(0.5):
            there, free = ray.cluster_resources().get("CPU", 0.0), ray.available_resources().get("CPU", 0.0)
            nodes = sum(node["Alive"] for node in ray.nodes()) - 1
            self.seen.append((time.monotonic() - self._started, nodes, there - free))

    def first(self, wanted: Callable[[int, float], bool], after: float = 0.0) -> float | None:
        """When this was first seen."""
        return next((at for at, nodes, used in self.seen if at >= after and wanted(nodes, used)), None)

    def wait(self, wanted: Callable[[int, float], bool], after: float, seconds: float = 300.0) -> float | None:
        """When this was first seen after that time; waits for it."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and self.first(wanted, after) is None:
            time.sleep(0.5)
        return self.first(wanted, after)

    def now(self) -> float:
        return time.monotonic() - self._started

    def close(self) -> None:
        import ray

        self._ended.set()
        self._thread.join()
        ray.shutdown()


def growing() -> AbstractContextManager[str]:
    from support.growing import growing_cluster

    return growing_cluster({"cpu": {"CPU": 2}}, {"cpu": 4}, 10.0)


def shown(at: float | None, since: float = 0.0) -> str:
    return "never" if at is None else f"{at - since:.0f} s"


def one_run_growing(folder: Path, teachers: int, sleep: float) -> None:
    with growing() as address:
        watch = Watch(address)
        out = folder / "growing"
        run = start_run(write_config(folder, teachers, sleep), out, address)
        run.wait()
        end = watch.now()
        ended(run, out)
        most = max(nodes for _, nodes, _ in watch.seen)
        print(
            f"growing: 0 nodes at first, the first after {shown(watch.first(lambda n, _: n > 0))}, all {most} after "
            f"{shown(watch.first(lambda n, _: n == most))}, all {most * 2} CPUs in use after "
            f"{shown(watch.first(lambda _, used: used >= most * 2))}; a run of {teachers} teachers, "
            f"{sleep:g} s each, ended after {end:.0f} s"
        )
        print(f"  back at 0 nodes {shown(watch.wait(lambda n, _: n == 0, end), end)} after its end", flush=True)
        watch.close()


def two_runs(folder: Path, teachers: int, sleep: float) -> None:
    """Each asks for as much as the cluster can ever have; the sum of what both get is what one would."""
    with growing() as address:
        watch = Watch(address)
        begun = time.monotonic()
        outs = [folder / f"run-{number}" for number in (1, 2)]
        runs = [start_run(write_config(folder, teachers, sleep), out, address) for out in outs]
        for run, out in zip(runs, outs, strict=True):
            ended(run, out)
        both = time.monotonic() - begun
        most = max(nodes for _, nodes, _ in watch.seen)
        print(f"two-runs: both of {teachers} teachers ended after {both:.0f} s; at most {most} nodes", flush=True)
        watch.close()


def lost_node(folder: Path, teachers: int, sleep: float, away: float = 150.0) -> None:
    import ray
    from ray.cluster_utils import Cluster

    cluster = patiently(Cluster, initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    node = patiently(cluster.add_node, num_cpus=4)
    out = folder / "lost"
    run = start_run(write_config(folder, teachers, sleep), out, cluster.address)
    stored = out / "private" / "teachers"
    while run.poll() is None and len(list(stored.glob("[0-9]*"))) < teachers // 3:
        time.sleep(0.5)
    had = len(list(stored.glob("[0-9]*")))
    cluster.remove_node(node, allow_graceful=False)
    time.sleep(away)
    meanwhile = len(list(stored.glob("[0-9]*")))
    patiently(cluster.add_node, num_cpus=4)
    back = time.monotonic()
    while run.poll() is None and len(list(stored.glob("[0-9]*"))) <= meanwhile:
        time.sleep(0.5)
    again = time.monotonic() - back
    ended(run, out)
    said = [line for line in out.with_suffix(".log").read_text().splitlines() if line.startswith("waiting")]
    print(
        f"lost-node: all workers lost with {had} of {teachers} teachers stored, no node for {away:.0f} s, the next "
        f"teacher stored {again:.0f} s after a node was back; the run said {len(said)} times what it waited for"
        f"{chr(10)}  {said[-1] if said else ''}",
        flush=True,
    )
    ray.shutdown()
    cluster.shutdown()


def mixed(folder: Path, teachers: int, sleep: float) -> None:
    """Through the pool itself, which knows who ran where."""
    import ray
    from ray.cluster_utils import Cluster

    from pate.boundary import sum_counts
    from pate.config import RaySettings, TeacherFamily
    from pate.teachers import assign_recipes, recipes
    from pate.voters.teachers._checkpoints import InMemory
    from pate.voters.teachers._pool import Pool
    from pate.voters.teachers._worker import Teaching

    cluster = patiently(Cluster, initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    names = {patiently(cluster.add_node, num_cpus=2).node_id: "CPU node" for _ in range(2)}
    names |= {patiently(cluster.add_node, num_cpus=1, num_gpus=1).node_id: "GPU node" for _ in range(2)}
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    params = {"architecture": "cnn", "channels": 2, "depth": 1, "hidden": 8, "steps": 20}
    kinds = recipes(
        [
            TeacherFamily(name="elastic.Sleeper", params={"seconds": sleep}),
            TeacherFamily(name="network", params=params),
        ]
    )
    rng = np.random.default_rng(0)
    X, y = rng.random((100, 8, 8)).astype(np.float32), rng.integers(10, size=100)
    teaching = Teaching(kinds, 10, 0, assign_recipes(kinds, teachers), [str(HERE)], shape=(8, 8))
    pool = Pool(teaching, InMemory(), RaySettings(), print)
    pool.probe(X, 100)
    started = time.monotonic()
    pool.train(lambda _: (X, y), lambda _: None)
    seconds = time.monotonic() - started
    assert sum_counts(pool.voters(X), teachers).sum() == 100 * teachers
    print(f"mixed: {teachers} teachers, half of them networks, in {seconds:.0f} s")
    for (node, kind), count in sorted(pool.where().items(), key=lambda item: names[item[0][0]]):
        print(f"  {names[node]} {node[:6]}: a worker with {kind} has {count} teachers")
    used = {node for (node, _), count in pool.where().items() if count}
    print(f"  nodes used: {len(used)} of {len(names)}", flush=True)
    pool.close()
    ray.shutdown()
    cluster.shutdown()


def patiently(start: Callable[..., Any], **arguments: Any) -> Any:
    """Ray gives a node half a minute to start, which is little on a busy machine."""
    for attempt in range(6):
        try:
            return start(**arguments)
        except Exception as error:
            if "timed out" not in str(error) or attempt == 5:
                raise
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], help=argparse.SUPPRESS)
    parser.add_argument("--teachers", type=int, default=250)
    parser.add_argument("--sleep", type=float, default=1.0)
    parser.add_argument("--one", choices=PARTS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    scenes: Mapping[str, Callable[[Path, int, float], None]] = {
        "growing": one_run_growing,
        "two-runs": two_runs,
        "lost-node": lost_node,
        "mixed": mixed,
    }
    if arguments.one:  # a process of its own: Ray reads its settings once
        with tempfile.TemporaryDirectory() as folder:
            scenes[arguments.one](Path(folder), arguments.teachers, arguments.sleep)
        return
    chosen: Sequence[str] = arguments.parts or PARTS
    environment = os.environ | {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
    for part in chosen:
        print(f"{part}: {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
        options = ["--one", part, "--teachers", str(arguments.teachers), "--sleep", str(arguments.sleep)]
        subprocess.run([sys.executable, __file__, *options], env=environment, check=False)


if __name__ == "__main__":
    main()
