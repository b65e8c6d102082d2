"""What is seen of a run from outside: figures for Prometheus, through Ray's own exporter, and a job's metadata.

Only what may be published: no votes, no failures, nothing about parts or records. Prometheus knows the figures as
`ray_pate_…`, each with the tags `run`, the run's public id, which stays the same when it goes on, and `name`, the
config's. They are there from when the run has joined a cluster until it ends. Ray drops a gauge that is not set again
within two of its report intervals (20 s), so all are set every second. A Ray that the run itself starts, and stops
before its student, shows nothing.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

GAUGES = {
    "pate_stage": "1 for the stage that the run is in, 0 for all others",
    "pate_epsilon": "epsilon of the limits: what may be spent at most, true for every data set",
    "pate_teachers": "teachers that the run wants",
    "pate_teachers_trained": "teachers that a live worker holds, or whose votes are counted",
    "pate_queries": "most queries that the run may ask",
    "pate_queries_asked": "queries asked so far, stored and paid for",
    "pate_queries_answered": "queries answered so far, stored and paid for",
    "pate_student_steps": "training steps of the student",
    "pate_student_step": "training steps that the student has done",
}
STAGES = ("start", "train", "vote", "label", "account", "student", "report")
RUN_ID, STAGE = "pate_run_id", "pate_stage"  # in the metadata of a submitted job

_SECONDS_BETWEEN_SETTINGS = 1.0  # the shortest interval that Ray reports in
_SECONDS_TO_END = 5.0
_JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"  # set by Ray where a submitted job runs
_current: ContextVar[_Figures | None] = ContextVar("figures", default=None)


@contextmanager
def published_metrics(run: str, name: str, **figures: float) -> Iterator[None]:
    """Within, what `show` and `set_stage` are told is seen on the Ray that this process is in, if it is in one.

    `run` is the run's public id; `figures` as for `show`.
    """
    if "ray" not in sys.modules or not sys.modules["ray"].is_initialized():
        yield
        return
    shown = _Figures(run, name, figures)
    token = _current.set(shown)
    over = threading.Event()
    setter = threading.Thread(target=shown.keep_setting, args=(over,), name="pate: metrics", daemon=True)
    setter.start()
    try:
        yield
    finally:
        over.set()
        setter.join(_SECONDS_TO_END)  # before Ray is left
        _current.reset(token)


def show(**figures: float) -> None:
    """Show some figures of the run that is seen, by their names without `pate_`; nothing where none is."""
    shown = _current.get()
    if shown is not None:
        shown.show(figures)


def set_stage(name: str) -> None:
    """Show what the run is at, one of STAGES, among the figures and in the metadata of its job."""
    shown = _current.get()
    if shown is not None:
        shown.set_stage(name)


class _Figures:
    """The gauges of one run."""

    def __init__(self, run: str, name: str, figures: dict[str, float]) -> None:
        from ray.util.metrics import Gauge

        self.run, self.stage = run, STAGES[0]
        self._tags, self._values = {"run": run, "name": name}, dict(figures)
        self._lock = threading.RLock()
        self._gauges = {
            gauge: Gauge(gauge, description=text, tag_keys=("run", "name", *(["stage"] if gauge == STAGE else [])))
            for gauge, text in GAUGES.items()
        }

    def show(self, figures: dict[str, float]) -> None:
        with self._lock:
            self._values = self._values | figures
            for name, value in figures.items():
                self._gauges[f"pate_{name}"].set(float(value), tags=self._tags)

    def set_stage(self, name: str) -> None:
        with self._lock:
            self.stage = name
            for stage in STAGES:
                self._gauges[STAGE].set(float(stage == name), tags=self._tags | {"stage": stage})

    def keep_setting(self, over: threading.Event) -> None:
        """Also what a job's metadata say: a head that does not answer holds up nobody but this thread."""
        noted, ended = "", False
        while True:
            with self._lock:  # nothing older than what is shown meanwhile
                self.show(self._values)
                self.set_stage(self.stage)
            if self.stage != noted:
                noted = self.stage
                _note_in_job({RUN_ID: self.run, STAGE: noted})
            if ended:
                return
            ended = over.wait(_SECONDS_BETWEEN_SETTINGS)


def _note_in_job(values: dict[str, str]) -> None:
    """Add to the metadata of the job that this process was submitted as, if it was.

    Ray sets metadata when a job is submitted and has no call to change it; what it keeps is one JSON object in the
    head's store. Ray's supervisor of the job writes there before the job's process begins and after it has ended, so
    not meanwhile. Where a version keeps it otherwise, nothing is changed.
    """
    with suppress(Exception):
        from ray.experimental.internal_kv import _internal_kv_get, _internal_kv_put

        submitted = json.loads(os.environ[_JOB])["metadata"]["job_submission_id"]
        key = f"_ray_internal_job_info_{submitted}".encode()
        content: dict[str, Any] = json.loads(_internal_kv_get(key, namespace=b"job"))
        if content["status"] == "RUNNING":
            content["metadata"] = (content["metadata"] or {}) | values
            _internal_kv_put(key, json.dumps(content).encode(), overwrite=True, namespace=b"job")
