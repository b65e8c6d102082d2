"""Training teachers: this project beside a plain PyTorch and scikit-learn loop, and beside itself.

    python benchmarks/teachers.py --data-dir DIR          DIR/MNIST/raw holds MNIST; all parts, about 15 minutes
    python benchmarks/teachers.py --data-dir DIR mlp cnn  only those

Parts: mlp, cnn, mixture (against the plain loop), workers (1 against 2), overhead (Ray against one process),
many (1,000 and 5,000 teachers). Each prints a ratio; times are medians of --repeat runs, taken in turn.
The plain loop is what one would write first: one model after the other, default layout, threads and Adam.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from pate.boundary import sum_counts
from pate.config import RaySettings, TeacherFamily, load_config
from pate.data._benchmarks import load_images
from pate.data.private import Records
from pate.data.public import PublicData
from pate.networks._process import one_thread
from pate.teachers import Recipe, assign_recipes, recipes
from pate.teachers.network import _Batches, _move
from pate.voters.teachers._checkpoints import TeacherFiles
from pate.voters.teachers._pool import Pool
from pate.voters.teachers._worker import Teaching, Worker

KEY = b"b" * 32
QUERIES = 2000
MLP = TeacherFamily(name="network", features=["upright", "hog"], params={"architecture": "mlp", "steps": 160})
CNN = TeacherFamily(name="network", params={"architecture": "cnn", "channels": 16, "steps": 160})


class Setting:
    """The data in parts of equal size; each run trains the same teachers."""

    def __init__(
        self,
        data: tuple[PublicData, Records],
        families: Sequence[TeacherFamily],
        n_teachers: int,
        records: int = 240,
    ) -> None:
        self.public, self.private = data
        rows = np.random.default_rng(0).permutation(len(self.private))
        self.parts = [rows.take(range(i * records, (i + 1) * records), mode="wrap") for i in range(n_teachers)]
        self.n_teachers = n_teachers
        self.kinds: list[Recipe] = recipes(families)
        self.assignment = assign_recipes(self.kinds, n_teachers)

    def records(self, part: int) -> tuple[np.ndarray, np.ndarray]:
        return self.private.X[self.parts[part]], self.private.y[self.parts[part]]

    def accuracy(self, counts: np.ndarray) -> float:
        """The accuracy of a single teacher, on average."""
        y = self.public.y_public[:QUERIES]  # type: ignore[index]
        return float(counts[np.arange(QUERIES), y].mean() / self.n_teachers)


def plain(setting: Setting) -> tuple[float, float]:
    """Seconds and accuracy of the obvious loop."""
    started = time.perf_counter()
    models: list[Callable[[np.ndarray], np.ndarray]] = []
    for part in range(setting.n_teachers):
        recipe = setting.kinds[setting.assignment[part]]
        X, y = setting.records(part)
        X = recipe.build_features().transform(X)
        models.append(_plain_network(recipe, X, y) if recipe.name == "network" else _plain_sklearn(recipe, X, y))
    seconds = time.perf_counter() - started
    counts = np.zeros((QUERIES, 10), dtype=int)
    queries = [kind.build_features().transform(setting.public.X_public[:QUERIES]) for kind in setting.kinds]
    for part, model in enumerate(models):
        counts[np.arange(QUERIES), model(queries[setting.assignment[part]])] += 1
    return seconds, setting.accuracy(counts)


def _plain_sklearn(recipe: Recipe, X: np.ndarray, y: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    model = recipe.estimator(0).fit(X.reshape(len(X), -1), y)
    return lambda Z: model.predict(Z.reshape(len(Z), -1))


def _plain_network(recipe: Recipe, X: np.ndarray, y: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    import torch
    from torch import nn

    settings: Any = recipe.estimator(0)
    settings.classes_, settings.shape_ = np.arange(10), list(X.shape[1:])
    model = settings._layers()

    def tensor(Z: np.ndarray) -> torch.Tensor:
        return torch.tensor(Z).unsqueeze(1) if Z.ndim == 3 else torch.tensor(Z)

    inputs, targets = tensor(X), torch.tensor(y)
    batches = _Batches(settings, len(X))  # the same random moves of images, if any
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-3, weight_decay=1e-4)
    step = 0
    while step < settings.steps:
        for rows in torch.randperm(len(X)).split(settings.batch_size):
            moves = batches.moves(inputs)
            moved = _move(inputs[rows], None if moves is None else moves[: len(rows)])
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(moved), targets[rows]).backward()
            optimiser.step()
            step += 1
    model.eval()

    def predict(Z: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return np.concatenate([model(block).argmax(1).numpy() for block in tensor(Z).split(1000)])

    return predict


def pooled(setting: Setting, workers: int, folder: Path | None = None) -> tuple[float, float, list[float], float]:
    """Seconds once the workers are up, accuracy, by how many MB each worker grew, and seconds of processor of all."""
    with tempfile.TemporaryDirectory() as temporary:
        store = TeacherFiles(folder or Path(temporary), KEY)
        pool = Pool(Teaching(setting.kinds, 10, 0, setting.assignment), store, RaySettings(workers=workers))
        pool.probe(setting.public.X_public, len(setting.parts[0]))
        pool.wait_for(workers)
        before = {pid: _own_memory(pid) for pid in pool.pids()}
        started, used = time.perf_counter(), time.process_time() + sum(map(_processor, before))
        pool.train(setting.records, lambda _: None)
        seconds = time.perf_counter() - started
        used = time.process_time() + sum(map(_processor, before)) - used
        memory = [_own_memory(pid) - grown for pid, grown in before.items()]
        partials = pool.voters(setting.public.X_public[:QUERIES])
        pool.close()
    return seconds, setting.accuracy(sum_counts(partials, setting.n_teachers)), memory, used


def in_one_process(setting: Setting) -> tuple[float, float]:
    """Seconds of the same work without Ray, and of processor; with one thread, as a Ray worker with one CPU has."""
    teaching = Teaching(setting.kinds, 10, 0, setting.assignment)
    worker = Worker(teaching)
    for recipe in range(len(setting.kinds)):
        worker.probe(recipe, setting.public.X_public[:2000], len(setting.parts[0]))
    started, used = time.perf_counter(), time.process_time()
    with one_thread(), threadpool_limits(1):
        for job in teaching.jobs():
            worker.train(job, {part: setting.records(part) for part in job.parts})
    return time.perf_counter() - started, time.process_time() - used


def _processor(pid: int) -> float:
    """Seconds of processor that a process has had."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _own_memory(pid: int) -> float:
    """In MB, without files and what is shared with other processes."""
    lines = Path(f"/proc/{pid}/status").read_text().split("\n")
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon"))


def against_the_plain_loop(name: str, setting: Setting, repeat: int) -> None:
    loop, ours = [], []
    for _ in range(repeat):
        loop.append(plain(setting))
        ours.append(pooled(setting, 2)[:2])
    (loop_seconds, loop_right), (our_seconds, our_right) = (
        [statistics.median(c) for c in zip(*r, strict=True)] for r in (loop, ours)
    )
    print(
        f"{name}: {setting.n_teachers} teachers, plain loop {loop_seconds:.1f} s ({loop_right:.2%}), "
        f"pate {our_seconds:.1f} s ({our_right:.2%}): ratio {loop_seconds / our_seconds:.2f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=["mlp", "cnn", "mixture", "workers", "overhead", "many"])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    data = load_images("mnist", [options.data_dir])
    mixture = load_config(Path(__file__).parent.parent / "configs" / "mnist.yaml").teachers

    from pate.cluster._session import ray_session

    with ray_session(None, RaySettings(workers=2)):
        if "mlp" in options.what:
            against_the_plain_loop("mlp", Setting(data, [MLP], 100), options.repeat)
        if "cnn" in options.what:
            against_the_plain_loop("cnn", Setting(data, [CNN], 20), options.repeat)
        if "mixture" in options.what:
            against_the_plain_loop("mixture", Setting(data, mixture, 100), options.repeat)
        if "workers" in options.what:
            setting = Setting(data, mixture, 100)
            runs = [(pooled(setting, 1)[0], pooled(setting, 2)[0]) for _ in range(options.repeat)]
            one, two = (statistics.median(column) for column in zip(*runs, strict=True))
            print(f"workers: 100 of the mixture, one {one:.1f} s, two {two:.1f} s: ratio {one / two:.2f}", flush=True)
        if "overhead" in options.what:
            setting = Setting(data, mixture, 100)
            runs = [(*in_one_process(setting), *pooled(setting, 1)[::3]) for _ in range(options.repeat)]
            bare, bare_used, ray, used = (statistics.median(column) for column in zip(*runs, strict=True))
            print(f"overhead: one process {bare:.1f} s, one Ray worker {ray:.1f} s: ratio {ray / bare:.3f}", flush=True)
            print(f"  of processor, driver and worker: {bare_used:.1f} and {used:.1f} s: ratio {used / bare_used:.3f}")
        if "many" in options.what:
            light = [family for family in mixture if family.params.get("architecture") != "cnn"]
            for n_teachers in (1000, 5000):
                with tempfile.TemporaryDirectory() as folder:
                    seconds, _, memory, _ = pooled(Setting(data, light, n_teachers, records=24), 2, Path(folder))
                    weights = sum(path.stat().st_size for path in (Path(folder) / "teachers").iterdir()) / 1e6
                print(
                    f"many: {n_teachers} teachers of 24 records {seconds:.1f} s, {1000 * seconds / n_teachers:.1f} ms "
                    f"each; workers grew by {' and '.join(f'{m:.0f}' for m in memory)} MB, the checkpoints of all "
                    f"teachers are {weights:.0f} MB",
                    flush=True,
                )


if __name__ == "__main__":
    main()
