"""Teachers trained once, and their votes kept for every row that asks them. All of it stays under `private/`."""

from __future__ import annotations

import hashlib
import json
import secrets
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pate.data.private import Records
from pate.data.public import PublicData
from pate.runs.console import Console
from pate.runs.run import KEY_BYTES
from pate.runs.signatures import user_secret
from pate.storage.files import make_folder, write_atomically
from pate.voters.teachers.checkpoints import TeacherFiles
from pate.voters.teachers.readers import split_records
from pate.voters.teachers.settings import TeachersConfig
from pate.voters.teachers.worker import Teaching


def votes_of(
    config: TeachersConfig,
    data: PublicData,
    records: Records,
    rows: NDArray[np.int64],
    private: Path,
    start_ray: Callable[[], None],
    console: Console,
) -> tuple[NDArray[np.int64], dict[str, float]]:
    """Histograms int[rows, classes] of the config's teachers on public examples `rows`, and the seconds it took.

    Counted once and stored below `private`, under a digest of what the teachers depend on; an interrupted training is
    continued.
    `start_ray` is called if there is something to train.
    """
    folder = private / f"teachers-{config.n_teachers}-seed-{config.seed}-{_digest(config, rows)}"
    stored, times = folder / "votes.npy", folder / "seconds.json"
    if not (stored.exists() and times.exists()):
        start_ray()
        votes, seconds = _train_and_count(config, data, records, data.X_public[rows], folder, console)
        text = json.dumps({"private": "do not publish", **seconds})
        write_atomically(times, lambda path: path.write_text(text))
        write_atomically(stored, lambda path: _save(path, votes))
        shutil.rmtree(folder / "teachers", ignore_errors=True)
    seconds = json.loads(times.read_text())
    return np.load(stored, allow_pickle=False), {name: seconds[name] for name in ("train", "vote")}


def _digest(config: TeachersConfig, rows: NDArray[np.int64]) -> str:
    content = config.model_dump(
        mode="json",
        include={"data", "teachers", "n_teachers", "seed"},
        exclude={"teachers": {"__all__": {"resources"}}},
    )
    if (split := config.build_mechanism().split(config.n_teachers)).rate is not None:  # records are sampled
        content["split"] = [split.rate, split.max_parts]
    text = json.dumps(content, sort_keys=True).encode()
    return hashlib.sha256(text + rows.astype("<i8").tobytes()).hexdigest()[:12]


def _save(path: Path, votes: NDArray[np.int64]) -> None:
    with path.open("wb") as file:
        np.save(file, votes)


def _train_and_count(
    config: TeachersConfig, data: PublicData, known: Records, X: NDArray, folder: Path, console: Console
) -> tuple[NDArray[np.int64], dict[str, float]]:
    from pate.voters.teachers.ensemble import Ensemble

    make_folder(folder, 0o700)
    if not (folder / "key").exists():
        write_atomically(folder / "key", lambda path: path.write_bytes(secrets.token_bytes(KEY_BYTES)))
    key = (folder / "key").read_bytes()
    started = time.perf_counter()
    records = split_records(config, known, key)
    teaching = Teaching.of(config, data.n_classes, shape=data.X_public.shape[1:])
    store = TeacherFiles(folder, key, user=user_secret(folder / "key"))
    with Ensemble(teaching, records, store, config.ray, console.info) as ensemble:
        with console.working(f"trying each kind of teacher, {records.n_records // config.n_teachers} records each"):
            ensemble.probe(data.X_public)
        with console.track(f"training {config.n_teachers} teachers", config.n_teachers) as update:
            ensemble.train(update)
        trained = time.perf_counter()
        with console.working(f"counting votes on {len(X)} examples"):
            votes = ensemble.count(X)
    return votes, {"train": trained - started, "vote": time.perf_counter() - trained}
