"""How much memory it takes to bring private records to their parts: the driver reads everything, or readers stream.

python benchmarks/readers.py --gigabytes 5 --source npz

Made-up records in shards. Three times: the driver reads and splits a small set (`read_by: driver`), readers on Ray
stream the same set, and readers stream the large one. Printed are the peaks of resident memory above what a process has
before it sees a record, and their ratio to what was read: all data by the driver, the largest shard by a reader.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pate.cluster._session import ray_session
from pate.config import RaySettings
from pate.data._records import Format
from pate.data._settings import CsvData, NpzData, ParquetData
from pate.data._shards import read_all
from pate.data.partition import parts_of
from pate.data.private import Shards
from pate.mechanisms.base import Split

KEY, PARTS = b"b" * 32, Split(250)


@dataclass(frozen=True)
class Peaks:
    """In megabytes, above what the process had before."""

    driver: float
    readers: list[float]
    seconds: float
    records: int


def resident(what: str) -> float:
    """VmHWM (the peak) or VmRSS of this process, in megabytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{what}:")) * 1024 / 1e6


def begin() -> float:
    """Forget the peak so far; returns what there is now."""
    Path("/proc/self/clear_refs").write_text("5")
    return resident("VmRSS")


def format_of(source: str, width: int) -> Format:
    names = tuple(f"f{i}" for i in range(width))
    files = {"private": "private", "public": "public", "classes": (0, 1)}
    if source == "npz":
        return Format(NpzData(source=source, **files), (width,))
    settings = CsvData if source == "csv" else ParquetData
    return Format(settings(source=source, label="y", **files), (width,), features=names)


def write(folder: Path, source: str, megabytes: float, shards: int, width: int) -> None:
    """Shards with `megabytes` of features in all."""
    rng, n = np.random.default_rng(0), int(megabytes * 1e6 / 4 / width / shards)
    for number in range(shards):
        X, y = rng.standard_normal((n, width), dtype=np.float32), rng.integers(0, 2, n)
        path = folder / f"{number}.{source}"
        if source == "npz":
            np.savez(path, X=X, y=y)
        elif source == "parquet":
            import pyarrow
            import pyarrow.parquet

            pyarrow.parquet.write_table(pyarrow.table({f"f{i}": X[:, i] for i in range(width)} | {"y": y}), path)
        else:
            names = ",".join([*format_of(source, width).features, "y"])
            np.savetxt(path, np.column_stack([X, y]), "%.5g", ",", header=names, comments="")


def in_the_driver(shards: Shards) -> Peaks:
    """Read and split by one process."""
    before, started = begin(), time.perf_counter()
    records = read_all(shards.paths, shards.format)
    rows = parts_of(records.X, records.y, records.ids, KEY, PARTS)
    found = sum(len(records.X[some]) for some in rows)
    return Peaks(resident("VmHWM") - before, [], time.perf_counter() - started, found)


def by_readers(shards: Shards, workers: int) -> Peaks:
    """Streamed by readers on Ray; every part is fetched once, by a task."""
    import ray

    from pate.voters._readers import Readers
    from pate.voters.teachers._worker import RemotePart

    with ray_session(None, RaySettings(workers=workers)):
        ray.get([ray.remote(resident).remote("VmRSS") for _ in range(2 * workers)])
        before, started = begin(), time.perf_counter()
        readers = Readers(shards, KEY, PARTS)
        fetch = ray.remote(lambda part: len(part.fetch()[1])).options(num_cpus=1)
        found = sum(ray.get([fetch.remote(RemotePart(readers.actors, part)) for part in range(PARTS.n_parts)]))
        seconds, driver = time.perf_counter() - started, resident("VmHWM") - before
        idle = bare(workers)
        peaks = [ray.get(one.__ray_call__.remote(lambda self: resident("VmHWM"))) - idle for one in readers.actors]
        readers.close()
    return Peaks(driver, peaks, seconds, found)


def bare(workers: int) -> float:
    """What a reader has before it reads: one of a single record."""
    import ray

    from pate.voters._readers import Readers

    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), "npz", 1e-5, 1, 2)
        readers = Readers(Shards((f"{folder}/0.npz",), format_of("npz", 2)), KEY, PARTS)
        found: float = ray.get(readers.actors[0].__ray_call__.remote(lambda self: resident("VmRSS")))
        readers.close()
    return found


def largest(shards: Shards) -> float:
    return max(Path(path).stat().st_size for path in shards.paths) / 1e6


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--gigabytes", type=float, default=5.0)
    arguments.add_argument("--small", type=float, default=0.3, help="gigabytes that the driver reads too")
    arguments.add_argument("--source", choices=["npz", "parquet", "csv"], default="npz")
    arguments.add_argument("--shards", type=int, default=4)
    arguments.add_argument("--width", type=int, default=200)
    arguments.add_argument("--workers", type=int, default=2)
    arguments.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    arguments.add_argument("--write", type=float, help=argparse.SUPPRESS)  # in a process of its own: megabytes
    chosen: Any = arguments.parse_args()
    if chosen.write:
        write(chosen.folder, chosen.source, chosen.write, chosen.shards, chosen.width)
        return
    format, ratios = format_of(chosen.source, chosen.width), {}
    for name, gigabytes in (("driver", chosen.small), ("readers", chosen.small), ("readers", chosen.gigabytes)):
        with tempfile.TemporaryDirectory(dir=chosen.folder) as folder:
            again = [sys.executable, __file__, "--write", str(gigabytes * 1000), "--folder", folder]
            options = ["--source", chosen.source, "--shards", str(chosen.shards), "--width", str(chosen.width)]
            subprocess.run([*again, *options], check=True)
            shards = Shards(tuple(str(path) for path in sorted(Path(folder).iterdir())), format)
            total = sum(Path(path).stat().st_size for path in shards.paths) / 1e6
            peaks = in_the_driver(shards) if name == "driver" else by_readers(shards, chosen.workers)
            print(f"{name:8} {total:8,.0f} MB in {len(shards.paths)} shards of {largest(shards):,.0f} MB: ", end="")
            print(f"driver +{peaks.driver:,.0f} MB", end="")
            if peaks.readers:
                print(f", readers +{max(peaks.readers):,.0f} MB at most", end="")
                ratios[gigabytes] = max(peaks.readers) / largest(shards)
                print(f" = {ratios[gigabytes]:.2f} × the largest shard", end="")
            else:
                ratios[name] = peaks.driver / total
                print(f" = {ratios[name]:.2f} × the data", end="")
            print(f"; {peaks.records:,} records in {peaks.seconds:.0f} s", flush=True)
    last = ratios[chosen.gigabytes]
    print(f"memory per byte read, driver ÷ reader: {ratios['driver'] / last:.1f}")


if __name__ == "__main__":
    main()
