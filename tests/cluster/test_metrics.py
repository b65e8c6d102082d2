"""What Prometheus sees of a run: real scrapes of a real Ray, and the dashboard that draws them."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from support import REPOSITORY
from support.command_line import PATE
from support.heads import head

from pate import pipeline
from pate.cluster._metrics import GAUGES, STAGES, published_metrics, set_stage, show
from pate.runs._console import Quiet
from pate.runs.run import Run

DASHBOARD = json.loads((REPOSITORY / "cluster" / "grafana" / "pate.json").read_text())

HELD_UP = (REPOSITORY / "tests" / "support" / "held_up.py").read_text()

CONFIG = """
name: seen
n_teachers: 10
data: {source: digits}
teachers: [{name: held_up.HeldUp}]
mechanism: {name: gnmax, sigma: 20}
budget: {max_queries: 40}
student: {name: mixmatch, params: {steps: 1000000}}
"""


def figures(text: str, run: str) -> dict[str, float]:
    """What of a run was scraped: values by name, that of the stage by the stage's too."""
    lines = re.findall(r'^ray_(pate_\w+)\{(.*\brun="([^"]*)".*)\} (\S+)$', text, re.MULTILINE)
    found: dict[str, float] = {}
    for name, tags, of_run, value in lines:
        if of_run == run:
            stage = re.search(r'\bstage="(\w+)"', tags)
            found[f"{name} {stage[1]}" if stage else name] = float(value)
    return found


def names(found: dict[str, float]) -> set[str]:
    return {name.partition(" ")[0] for name in found}


def wait_for(what: Callable[[], dict[str, float]], wanted: dict[str, float], seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not wanted.items() <= (found := what()).items():
        assert time.monotonic() < deadline, found
        time.sleep(0.2)


@pytest.mark.usefixtures("local_ray")
def test_figures_of_a_run_are_scraped_and_are_the_newest() -> None:
    import ray

    (node,) = ray.nodes()
    address = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"

    def scraped() -> dict[str, float]:
        with urlopen(address, timeout=30) as answer:
            return figures(answer.read().decode(), "one")

    show(epsilon=3)  # nobody is seen: nothing
    with published_metrics("one", "name", epsilon=1.5, teachers=7, teachers_trained=0):
        show(teachers_trained=3, queries_asked=4)
        set_stage("label")
        stages = {f"pate_stage {stage}": float(stage == "label") for stage in STAGES}
        told = {"pate_epsilon": 1.5, "pate_teachers": 7.0, "pate_teachers_trained": 3.0, "pate_queries_asked": 4.0}
        wait_for(scraped, stages | told)
        assert set(scraped()) == {*stages, *told}


class Recorded:
    """In place of Ray's gauge: what it was set to, in order, with the tags that a run has."""

    def __init__(self, name: str, description: str, tag_keys: tuple[str, ...]) -> None:
        self.name, self.values, self.of = name, list[float](), set[tuple[str, str]]()
        self.stages: list[str] = []
        GAUGES_MADE[name] = self

    def set(self, value: float, tags: dict[str, str]) -> None:
        self.of.add((tags["run"], tags["name"]))
        if value and "stage" in tags:
            self.stages.append(tags["stage"])
        self.values.append(value)


GAUGES_MADE: dict[str, Recorded] = {}


@pytest.mark.parametrize("voters", ["teachers", "neighbours"])
def test_figures_of_a_run_are_those_of_its_report(voters: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is seen at last is what the report says, and no figure but the stage ever goes back.

    A query is answered with a probability of at most 0.75 (12 votes, threshold 10, σ₁ = 3): all 60 in 3 of 10⁸ runs.
    """
    import ray
    import ray.util.metrics

    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray.util.metrics, "Gauge", Recorded)
    GAUGES_MADE.clear()
    outcome = pipeline.run(OF_VOTERS[voters] | SMALL, tmp_path / "run", console=Quiet(), pages=False, force=True)
    report, last = outcome.report, {name: gauge.values[-1] for name, gauge in GAUGES_MADE.items() if gauge.values}
    assert set(last) <= set(GAUGES)
    told = {"pate_epsilon": report.privacy.epsilon, "pate_student_step": 1, "pate_student_steps": 1}
    if voters == "teachers":
        assert 0 < report.queries.answered < report.queries.asked
        told |= {"pate_queries_asked": report.queries.asked, "pate_queries_answered": report.queries.answered}
        told |= {"pate_queries": 60, "pate_teachers": 12, "pate_teachers_trained": 12}
        assert sorted(set(GAUGES_MADE["pate_teachers_trained"].values)) == list(range(13))
    assert {name: last[name] for name in told} == pytest.approx(told)
    for name in set(last) - {"pate_stage"}:
        assert GAUGES_MADE[name].values == sorted(GAUGES_MADE[name].values), name
    assert {run for gauge in GAUGES_MADE.values() for run in gauge.of} == {(Run.load(outcome.path).id, "seen")}
    seen = list(dict.fromkeys(GAUGES_MADE["pate_stage"].stages))
    assert seen == [stage for stage in STAGES if stage in seen]
    assert {"start", "student", "report"} | ({"train", "vote", "label"} if voters == "teachers" else set()) <= set(seen)


SMALL = {
    "name": "seen",
    "data": {"source": "digits"},
    "student": {"name": "supervised", "params": {"estimator": "sklearn.naive_bayes.GaussianNB"}},
    "backend": "local",
}
OF_VOTERS: dict[str, dict[str, Any]] = {
    "teachers": {
        "n_teachers": 12,
        "teachers": [{"name": "sklearn.naive_bayes.GaussianNB"}],
        "mechanism": {"name": "confident_gnmax", "threshold": 10, "sigma1": 3, "sigma2": 3},
        "budget": {"max_queries": 60},
    },
    "neighbours": {"voters": "neighbours", "neighbours": {"cells": 10}, "mechanism": {"name": "histogram", "scale": 2}},
}


def test_a_run_that_is_on_no_cluster_shows_nothing_and_loads_no_ray() -> None:
    code = """import sys
from pate.cluster._metrics import published_metrics, show, set_stage
with published_metrics("one", "name", epsilon=1):
    show(teachers_trained=3)
    set_stage("train")
print("ray" in sys.modules)"""
    shown = subprocess.run([PATE[0], "-c", code], capture_output=True, text=True, timeout=60)
    assert shown.stdout == "False\n", shown.stderr


@pytest.mark.slow
def test_all_of_a_run_is_seen_until_it_ends_and_no_longer(tmp_path: Path) -> None:
    (tmp_path / "held_up.py").write_text(HELD_UP)
    (tmp_path / "seen.yaml").write_text(CONFIG)
    out, log, hold = tmp_path / "run", tmp_path / "log", tmp_path / "hold"
    with head() as cluster, log.open("w") as stream:
        command = [*PATE, "run", str(tmp_path / "seen.yaml"), "--out", str(out), "--address", cluster.address]
        run = subprocess.Popen(command, stdout=stream, stderr=stream, env=cluster.environment, cwd=REPOSITORY)
        hold.touch()
        while not (out / "private" / "key").exists():
            assert run.poll() is None, log.read_text()
            time.sleep(0.05)
        name = Run.load(out).id

        def scraped() -> dict[str, float]:
            assert run.poll() is None, log.read_text()
            return figures(cluster.scraped(), name)

        wait_for(scraped, {"pate_stage train": 1, "pate_teachers_trained": 0, "pate_teachers": 10, "pate_queries": 40})
        begun = {"stage", "epsilon", "teachers", "teachers_trained", "queries", "queries_asked", "queries_answered"}
        assert names(scraped()) == {f"pate_{name}" for name in begun}
        hold.unlink()
        paid = {"pate_queries_asked": 40.0, "pate_queries_answered": 40.0, "pate_teachers_trained": 10.0}
        wait_for(scraped, paid | {"pate_stage student": 1, "pate_stage train": 0, "pate_student_steps": 1e6})
        before = scraped()
        time.sleep(25)  # longer than Ray shows what is not set again
        wait_for(scraped, paid | {"pate_stage student": 1})
        after = scraped()
        assert names(after) == set(GAUGES)
        assert after["pate_epsilon"] == before["pate_epsilon"] > 0
        assert after["pate_student_step"] > before["pate_student_step"]
        run.send_signal(signal.SIGTERM)
        assert run.wait(timeout=60) == 128 + signal.SIGTERM
        deadline = time.monotonic() + 90
        while figures(cluster.scraped(), name):
            assert time.monotonic() < deadline
            time.sleep(0.5)


def test_the_dashboard_draws_every_figure_and_no_other() -> None:
    drawn = set(re.findall(r"\bray_(pate_\w+)", json.dumps(DASHBOARD)))
    assert drawn == set(GAUGES)


def test_the_dashboard_is_one_that_grafana_takes() -> None:
    panels = DASHBOARD["panels"]
    assert DASHBOARD["schemaVersion"] >= 36  # data sources by type and uid
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {(place["x"] + i, place["y"] + j) for i in range(place["w"]) for j in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references) > 0
        for target in panel["targets"]:
            assert target["datasource"] == panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            assert target["expr"].count("(") == target["expr"].count(")")
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    used = set(re.findall(r"\$\{?([a-z]+)", json.dumps(panels)))
    assert used == variables == {"datasource", "run"}
