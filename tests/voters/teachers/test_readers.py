"""Readers on Ray: tried so many times, little memory, records in files without names, and nothing past the driver."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pate import pipeline
from pate.data import _formats as formats
from pate.data._records import Format
from pate.data._settings import CsvData
from pate.data._sources import load
from pate.data.private import Shards
from pate.errors import DataError, RunError
from pate.mechanisms.base import Split
from pate.teachers import constant, pack
from pate.voters._readers import Readers
from pate.voters.teachers._worker import RemotePart

KEY = b"r" * 32
FILES = {"private": "private", "public": "public", "classes": (0, 1)}
TABLE = Format(CsvData(source="csv", label="y", **FILES), (1,), features=("a",))
SECRET = "86.75309"


def links(pid: int | str) -> Iterator[tuple[Path, str]]:
    """The open files of a process, as the system shows them."""
    with suppress(OSError):  # it has ended
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                yield link, os.readlink(link)


@pytest.mark.usefixtures("local_ray")
def test_a_reader_that_keeps_dying_is_given_up(tmp_path: Path) -> None:
    """The shard is a pipe that never ends, so that a reader can be killed whenever it has begun."""
    pipe, killed, over = tmp_path / "shard.csv", set(), threading.Event()
    os.mkfifo(pipe)
    held = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    os.write(held, f"a,y\n{SECRET},1\n".encode())

    def kill_readers() -> None:
        while not over.is_set():
            for process in Path("/proc").glob("[0-9]*"):
                pid = int(process.name)
                if pid != os.getpid() and pid not in killed and str(pipe) in [name for _, name in links(pid)]:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                        killed.add(pid)
            time.sleep(0.05)

    killer = threading.Thread(target=kill_readers)
    killer.start()
    try:
        with pytest.raises(RunError) as caught:
            Readers(Shards((str(pipe),), TABLE), KEY, Split(3))
    finally:
        over.set()
        killer.join()
        os.close(held)
    assert len(killed) == 4
    assert "a reader died 4 times" in str(caught.value)
    assert "raise ray.memory_per_reader" in str(caught.value)
    assert "smaller shards" in str(caught.value)
    assert SECRET not in str(caught.value)


def spilled(reader: Any) -> list[tuple[Path, str]]:
    import ray

    pid = ray.get(reader.__ray_call__.remote(lambda self: os.getpid()))
    return [(link, name) for link, name in links(pid) if name.endswith(" (deleted)") and "/dev/shm" not in name]


@pytest.mark.usefixtures("local_ray")
def test_records_wait_in_files_without_names(tmp_path: Path) -> None:
    """Below the run's `private/` where a reader sees that, else where its machine keeps temporary files."""
    (tmp_path / "shard.csv").write_text(f"a,y\n{SECRET},1\n1,0\n")
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    for key, place in ((KEY, private / "spill"), (b"of another run" * 3, Path(tempfile.gettempdir()))):
        (private / "key").write_bytes(key[:32])
        readers = Readers(Shards((str(tmp_path / "shard.csv"),), TABLE), KEY, Split(1), private)
        files = [link for link, name in spilled(readers.actors[0]) if Path(name).parent == place]
        assert len(files) == 1
        assert files[0].stat().st_mode & 0o777 == 0o600
        assert (np.float32(SECRET).tobytes() in files[0].read_bytes()) is True
        if place.parent == private:
            assert place.stat().st_mode & 0o777 == 0o700
            assert not list(place.iterdir())
        X, y = RemotePart(readers.actors, 0).fetch()
        assert sorted(X[:, 0].tolist()) == [1.0, float(np.float32(SECRET))]
        assert sorted(y.tolist()) == [0, 1]
        assert RemotePart(readers.actors, 0).stand_in(2) == pack(constant(y, 2))  # made by another process than this
        readers.close()
        assert not (private / "spill").exists()


@pytest.mark.usefixtures("local_ray")
def test_files_that_only_readers_see_may_be_named_by_a_pattern(tmp_path: Path) -> None:
    (tmp_path / "public.csv").write_text("a\n0\n9\n")
    content = {"source": "csv", "private": "shard-*.csv", "public": "public.csv", "label": "y", "classes": [0, 1]}
    settings = CsvData.model_validate(content)
    with pytest.raises(DataError, match="no file here matches"):
        load(settings, None, tmp_path)
    _, left = load(settings, None, tmp_path, by_workers=True)
    assert isinstance(left, Shards)
    with pytest.raises(DataError, match="no file here matches"):
        Readers(left, KEY, Split(1))
    for number in range(3):
        (tmp_path / f"shard-{number}.csv").write_text(f"a,y\n{number},1\n")
    readers = Readers(left, KEY, Split(1))
    assert readers.records == 3
    assert sorted(RemotePart(readers.actors, 0).fetch()[0][:, 0].tolist()) == [0, 1, 2]
    readers.close()


MEASURED = """
import sys
from pathlib import Path
from pate.data.private import Shards
from pate.data._records import Format
from pate.data._settings import NpzData
from pate.data._shards import ShardReader
from pate.mechanisms.base import Split

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024

settings = NpzData(source="npz", classes=(0, 1), private="private", public="public")
format = Format(settings, (1000,))
for path in sys.argv[1:]:
    reader = ShardReader(Shards((path,), format), b"r" * 32, Split(10))
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = peak()
    print(reader.load().records, sum(len(reader.part(part).y) for part in range(10)), peak() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the system does not tell peaks of memory")
def test_memory_does_not_grow_with_the_shard(tmp_path: Path) -> None:
    """100 MB, of which a reader that took the shard whole would need several times as much."""
    rng, size = np.random.default_rng(0), 25_000
    for name, n in (("small", 10), ("large", size)):
        X = rng.standard_normal((n, 1000), dtype=np.float32)
        np.savez(tmp_path / f"{name}.npz", X=X, y=rng.integers(0, 2, n))
    paths = [str(tmp_path / f"{name}.npz") for name in ("small", "large")]
    shown = subprocess.run([sys.executable, "-c", MEASURED, *paths], capture_output=True, text=True, timeout=240)
    assert shown.returncode == 0, shown.stderr
    records, in_parts, peak = map(int, shown.stdout.splitlines()[1].split())
    assert records == in_parts == size
    assert peak < 100e6, peak


@pytest.mark.slow
@pytest.mark.usefixtures("local_ray")
def test_on_a_cluster_the_driver_opens_no_private_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole runs with one key: one that joins a cluster, and goes on without it; one whose driver reads."""
    import ray

    rng = np.random.default_rng(0)
    for name, n in {"shard-0": 60, "shard-1": 90, "public": 60}.items():
        y = rng.integers(2, size=n)
        rows = (f"{a:.4f},{label}" for a, label in zip(rng.normal(3 * y, 1), y, strict=True))
        (tmp_path / f"{name}.csv").write_text("\n".join(["a,y", *rows]) + "\n")
    config = {
        "n_teachers": 6,
        "data": {"source": "csv", "private": "shard-*.csv", "public": "public.csv", "label": "y", "classes": [0, 1]},
        "teachers": [{"name": "sklearn.naive_bayes.GaussianNB"}],
        "mechanism": {"name": "gnmax", "sigma": 20},
        "budget": {"max_queries": 20},
        "student": {"name": "supervised", "params": {"estimator": "sklearn.naive_bayes.GaussianNB"}},
        "ray": {"workers": 2},
    }
    opened, open_file = [], formats._open

    def watched(path: str) -> Any:
        opened.append(Path(path).name)
        return open_file(path)

    monkeypatch.setattr(formats, "_open", watched)
    address, votes = ray.get_runtime_context().gcs_address, []
    for out, where in ((tmp_path / "cluster", address), (tmp_path / "alone", None)):
        (out / "private").mkdir(parents=True, mode=0o700)
        (out / "private" / "key").write_bytes(KEY)
        opened.clear()
        pipeline.run(config, out, config_dir=tmp_path, address=where, resume=True, pages=False)
        assert ("shard-0.csv" in opened) == (where is None)
        assert "public.csv" in opened
        with np.load(out / "private" / "votes.npz") as archive:
            votes.append({bytes(i): list(c) for i, c in zip(archive["ids"], archive["counts"], strict=True)})
    assert votes[0] == votes[1]
    pipeline.run(config, tmp_path / "cluster", config_dir=tmp_path, resume=True, pages=False)  # the same data
