"""Kill -9 at random moments of the labelling stage, and see that nothing is lost or answered twice.

    python benchmarks/chaos.py [--kills 300] [--seed 0]

One Ray serves many drivers. A driver owns a real teacher worker and a real aggregator, asks for labels in small batches
and writes down every label it was told. The harness kills the aggregator, the worker, the driver or all of them, then
starts a driver again on the same run. After every kill it checks the ledger and what the world was told:
no query with two answers, no answer without a charge, no charge lost, no link of the chain broken.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

N_QUERIES = 4000
N_TEACHERS = 6
BATCH = 5
KEY = b"c" * 32


def driver(folder: Path, seed: int) -> None:
    """Ask for labels, some of them again, until killed or done; every answer is written down before the next."""
    import numpy as np
    import ray
    from ray.exceptions import RayActorError, RayTaskError

    from pate.boundary._aggregator import RemoteAggregator
    from pate.errors import PateError
    from pate.ledger import Ledger, Limits
    from pate.mechanisms import GNMax
    from pate.teachers import Recipe
    from pate.voters.teachers._pool import AskWorkers
    from pate.voters.teachers._worker import Teaching, TrainingJob, Worker

    ray.init(address="auto", namespace="chaos", log_to_driver=False, logging_level="ERROR")
    limits = Limits(N_QUERIES, N_QUERIES, "GNMax(2)")
    open_ledger = partial(Ledger, folder / "ledger.db", KEY, folder / "ledger.head", "chaos", limits)

    def hire() -> tuple[Any, Any]:
        """A teacher worker, trained, and an aggregator; their process ids are written down for the harness."""
        worker = (
            ray.remote(Worker)
            .options(num_cpus=0)
            .remote(Teaching([Recipe("sklearn.naive_bayes.GaussianNB", {})], 3, 0))
        )
        records = np.random.default_rng(0)
        for part in range(N_TEACHERS):
            y = np.arange(30) % 3
            worker.train.remote(TrainingJob(0, (part,)), {part: (records.normal(y[:, None], 1.0, (30, 2)), y)})
        aggregator = RemoteAggregator(
            mechanism=GNMax(2.0), open_ledger=open_ledger, private=folder, key=KEY, n_parts=N_TEACHERS
        )
        write_pids(aggregator, worker)
        return aggregator, worker

    def write_pids(aggregator: Any, worker: Any) -> None:
        pids = [aggregator.pid(), ray.get(worker.pid.remote())]
        (folder / "pids.partial").write_text(json.dumps([*pids, os.getpid()]))
        (folder / "pids.partial").rename(folder / "pids")

    rng = np.random.default_rng(seed)
    aggregator, worker = hire()
    done, batches = aggregator.spent().asked, 0
    while done < N_QUERIES:
        again = rng.integers(0, max(done, 1), size=2)
        queries = np.concatenate([again, np.arange(done, min(done + BATCH, N_QUERIES))])
        X = np.stack([queries, queries % 7], axis=1).astype(np.float64)
        try:
            aggregator.collect(X, AskWorkers([worker]))
            labels = aggregator.label(X).labels
            batches += 1
            if batches % 10 == 0:
                write_pids(aggregator, worker)  # an aggregator that was killed has come back as another process
        except (RayActorError, RayTaskError, PateError):
            aggregator.kill()  # as a driver that resumes: what is left of the old pair must not go on
            aggregator, worker = hire()
            done = aggregator.spent().asked
            continue
        with (folder / "told").open("a") as told:
            told.write(json.dumps([queries.tolist(), labels.tolist()]) + "\n")
        done += BATCH


def told_labels(folder: Path) -> Counter[tuple[int, int]]:
    """How often each (query, label) was told; a line cut off by the kill was told to nobody."""
    seen: Counter[tuple[int, int]] = Counter()
    for line in (folder / "told").read_text().splitlines() if (folder / "told").exists() else ():
        try:
            queries, labels = json.loads(line)
        except ValueError:
            continue
        seen.update(zip(queries, labels, strict=True))
    return seen


def violations(folder: Path, spent_before: int) -> tuple[Counter[str], int]:
    """What is wrong with the ledger and with what was told, and how much is charged now."""
    import numpy as np

    from pate.boundary._aggregator import query_ids
    from pate.errors import PateError
    from pate.ledger._chain import verify

    wrong: Counter[str] = Counter()
    if not (folder / "ledger.head").exists():
        return wrong, spent_before
    with sqlite3.connect(folder / "ledger.db", timeout=30) as db:
        answers = dict(db.execute("SELECT query, label FROM answers").fetchall())
        spent = int(db.execute("SELECT TOTAL(asked) FROM charges").fetchone()[0])
        uncharged = db.execute(
            "SELECT COUNT(*) FROM answers WHERE charge NOT IN (SELECT charge FROM charges)"
        ).fetchone()[0]
    seen = told_labels(folder)
    wrong["queries with two different answers"] = len(seen) - len({query for query, _ in seen})
    for query, label in seen:
        X = np.array([[query, query % 7]], dtype=np.float64)
        if answers.get(query_ids(X, KEY)[0]) != label:
            wrong["answers told that are not stored so"] += 1
    wrong["answers without a charge"] = uncharged + abs(len(answers) - spent)
    wrong["charges lost"] = max(0, spent_before - spent)
    try:
        verify(folder / "ledger.db", KEY, folder / "ledger.head")
    except PateError:
        # A kill between commit and head leaves the head behind, never ahead; opening the ledger mends it.
        from pate.ledger import Ledger, Limits

        limits = Limits(N_QUERIES, N_QUERIES, "GNMax(2)")
        Ledger(folder / "ledger.db", KEY, folder / "ledger.head", "chaos", limits).close()
        try:
            verify(folder / "ledger.db", KEY, folder / "ledger.head")
        except PateError:
            wrong["broken chains"] += 1
    return wrong, spent


def kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def harness(kills: int, seed: int) -> int:
    """Kill and resume; returns the number of violations."""
    from pate.cluster._session import ray_session
    from pate.config import RaySettings

    rng = random.Random(seed)
    done: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    runs, spent, started = 1, 0, time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="pate-chaos-"))
    process: subprocess.Popen[bytes] | None = None
    with ray_session(None, RaySettings(workers=2)):
        import ray

        environment = os.environ | {"RAY_ADDRESS": ray.get_runtime_context().gcs_address}
        while sum(done.values()) < kills:
            if process is None or process.poll() is not None:
                (folder / "pids").unlink(missing_ok=True)
                command = [sys.executable, __file__, "--driver", str(folder), "--seed", str(rng.random())]
                process = subprocess.Popen(
                    command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                )
            while not (folder / "pids").exists() and process.poll() is None:
                time.sleep(0.01)
            time.sleep(rng.uniform(0.0, 0.6))
            try:
                aggregator, worker, owner = json.loads((folder / "pids").read_text())
            except (OSError, ValueError):
                continue
            target = rng.choice(
                ["aggregator", "aggregator", "aggregator", "worker", "worker", "worker", "driver", "all"]
            )
            pids = {
                "aggregator": [aggregator],
                "worker": [worker],
                "driver": [owner],
                "all": [aggregator, worker, owner],
            }
            killed = [kill(pid) for pid in pids[target]]
            done[target] += any(killed)
            if target in ("driver", "all"):
                process.wait()
            time.sleep(rng.uniform(0.0, 1.0))  # the driver sees the death, or goes on with a restarted aggregator
            found, spent = violations(folder, spent)
            wrong += found
            if spent >= N_QUERIES:
                shutil.rmtree(folder)
                folder, spent, runs = Path(tempfile.mkdtemp(prefix="pate-chaos-")), 0, runs + 1
            if any(killed) and sum(done.values()) % 50 == 0:
                print(f"{sum(done.values())} kills, {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    print(f"{sum(done.values())} kills of {dict(done)} in {runs} runs, {time.monotonic() - started:.0f} s")
    names = ("queries with two different answers", "answers told that are not stored so", "answers without a charge")
    for name in (*names, "charges lost", "broken chains"):
        print(f"{wrong[name]:6d} {name}")
    print(f"{spent:6d} queries charged in the last run, {len(told_labels(folder))} told")
    if process is not None:
        process.kill()  # else it would go on in a Ray that was there before
        process.wait()
    shutil.rmtree(folder)
    return sum(wrong.values())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=float, default=0)
    parser.add_argument("--driver", type=Path)
    options = parser.parse_args()
    if options.driver is not None:
        driver(options.driver, int(options.seed * 2**32))
    else:
        sys.exit(1 if harness(options.kills, int(options.seed)) else 0)


if __name__ == "__main__":
    main()
