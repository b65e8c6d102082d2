"""`pate run --out URL`: the first machine is killed with SIGKILL, another one goes on from storage."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import yaml
from support.command_line import PATE, in_process

from pate.ledger._stored import FOLDER


def config(folder: Path, read_by: str) -> Path:
    """Three kinds of points, private ones in shards."""
    rng = np.random.default_rng(0)
    for name, n in {"shard-0": 150, "shard-1": 200, "shard-2": 250, "public": 450}.items():
        y = rng.integers(3, size=n)
        rows = [
            f"{a:.4f},{b:.4f},{label}" for (a, b), label in zip(rng.normal(3 * y[:, None], 1, (n, 2)), y, strict=True)
        ]
        (folder / f"{name}.csv").write_text("\n".join(["a,b,kind", *rows]) + "\n")
    data = {"source": "csv", "private": "shard-*.csv", "public": "public.csv", "label": "kind", "classes": [0, 1, 2]}
    content = {
        "n_teachers": 20,
        "data": data | {"read_by": read_by},
        "teachers": [{"name": "sklearn.naive_bayes.GaussianNB"}],
        "mechanism": {"name": "gnmax", "sigma": 20},
        "budget": {"max_queries": 400},
        "student": {"name": "supervised", "params": {"estimator": "sklearn.naive_bayes.GaussianNB"}},
    }
    (folder / f"{read_by}.yaml").write_text(yaml.safe_dump(content))
    return folder / f"{read_by}.yaml"


def machine(folder: Path) -> dict[str, str]:
    """The environment of a machine of its own: another home, nothing of an earlier run."""
    folder.mkdir()
    return os.environ | {"HOME": str(folder), "XDG_CACHE_HOME": str(folder / "cache")}


def links(store: Path) -> list[dict]:
    return [json.loads(path.read_text()) for path in sorted((store / FOLDER).glob("0*"))]


def answers(records: list[dict]) -> dict[str, int]:
    charges = [record["content"][8:] for record in records if record["kind"] == "charges"]
    return {query: label for charge in charges for _, query, label in charge}


def test_a_run_goes_on_elsewhere_after_its_head_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = tmp_path / "store"
    arguments = ["run", str(config(tmp_path, "driver")), "--out", f"file://{store}", "--json", "--set", "backend=local"]
    first, second = machine(tmp_path / "first"), machine(tmp_path / "second")
    head = subprocess.Popen(
        [*PATE, *arguments],
        env=first,
        cwd=tmp_path,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    until = time.monotonic() + 200
    while not any(record["kind"] == "charges" for record in links(store)):
        assert head.poll() is None, head.communicate()[1].decode()
        assert time.monotonic() < until
        time.sleep(0.002)
    os.killpg(head.pid, signal.SIGKILL)
    head.communicate(timeout=30)
    paid = links(store)
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, second[name])
    monkeypatch.chdir(tmp_path)
    begun = in_process(*arguments)
    assert begun.returncode == 2
    assert "add --resume" in begun.stderr
    shown = in_process(*arguments, "--resume")
    assert shown.returncode == 0, shown.stderr
    assert "training teachers" not in shown.stderr  # votes came from storage
    after = links(store)
    assert after[: len(paid)] == paid  # nothing of the history is ever rewritten
    assert [record["kind"] for record in after].count("owners") == 2
    assert answers(after).items() >= answers(paid).items()
    content = json.loads(shown.stdout)
    assert content["run"] == f"file://{store}"
    assert content["queries"]["asked"] == len(answers(after)) == 400
    with np.load(io.BytesIO((store / "labels.npz").read_bytes())) as released:
        assert sorted(released["labels"]) == sorted(answers(after).values())
    assert (store / "student" / "student.json").exists()
    assert json.loads((store / "report.json").read_text())["queries"] == content["queries"]
    assert not (store / "ledger.db").exists()
    assert content["privacy"]["unit"] == "record"
    assert [path.suffix for path in (tmp_path / "second" / "cache" / "pate" / "work").iterdir()] == [".lock"]


@pytest.mark.slow
def test_votes_are_those_of_the_run_where_the_driver_reads(tmp_path: Path) -> None:
    """Two whole runs on Ray with one key: the same parts, teachers and votes, also where shards are read by workers."""
    votes = []
    for read_by in ("driver", "workers"):
        out = tmp_path / read_by
        (out / "private").mkdir(parents=True, mode=0o700)
        (out / "private" / "key").write_bytes(b"k" * 32)
        command = [*PATE, "run", str(config(tmp_path, read_by)), "--out", str(out), "--resume", "--log-json"]
        shown = subprocess.run(command, capture_output=True, text=True, timeout=900)
        assert shown.returncode == 0, shown.stderr
        assert all(json.loads(line)["event"] for line in shown.stderr.splitlines())
        with np.load(out / "private" / "votes.npz") as archive:
            votes.append(
                {bytes(i): counts.tolist() for i, counts in zip(archive["ids"], archive["counts"], strict=True)}
            )
    assert votes[0] == votes[1]
    assert len(votes[0]) > 390
