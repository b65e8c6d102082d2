"""What `pate doctor` makes of what it finds."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pate.cluster import _checks as checks
from pate.cluster._checks import CheckResult, Node, compare_versions, find_faults, judge, try_teachers

WELL = Node(
    name="a (10.0.0.1)",
    versions={"python": "3.12.1", "ray": "2.60.0", "pate": "0.1.0", "torch": "2.15.0"}
    | {"numpy": "2.4.0", "scikit-learn": "1.9.0"},
    takes_token=True,
    tls=True,
    dashboard_reached=False,
    gpus=1.0,
    clock=0.0,
    faults=[],
)
OTHER = replace(WELL, name="b (10.0.0.2)")


def findings(*nodes: Node, dashboard: str = "127.0.0.1:8265", open_to_all: bool = False) -> list[CheckResult]:
    return judge(nodes, [], dashboard, open_to_all)


def test_a_sound_cluster_is_all_ok() -> None:
    found = findings(WELL, OTHER)
    assert [finding for finding in found if finding.level != "ok"] == []
    assert found[-1] == CheckResult("ok", "GPUs", "2 in all")


@pytest.mark.parametrize(
    ("change", "level", "what", "words"),
    [
        ({"versions": WELL.versions | {"ray": "2.59.0"}}, "fail", "ray", "2.59.0 on b (10.0.0.2)"),
        ({"versions": WELL.versions | {"torch": "missing"}}, "fail", "torch", "not installed on b (10.0.0.2)"),
        ({"takes_token": False}, "fail", "token", "source cluster/env.sh"),
        ({"tls": False}, "fail", "TLS", "cluster/tls.sh"),
        ({"dashboard_reached": True}, "warn", "dashboard", "--dashboard-host=127.0.0.1"),
        ({"faults": [CheckResult("warn", "disk", "9 % free")]}, "warn", "disk", "9 % free"),
        ({"faults": [CheckResult("fail", "TLS key", "others can")]}, "fail", "TLS key", "others can"),
    ],
)
def test_each_fault_is_found_and_says_what_to_change(
    change: dict[str, object], level: str, what: str, words: str
) -> None:
    bad = [f for f in findings(WELL, replace(OTHER, **change)) if f.level != "ok"]  # type: ignore[arg-type]
    assert [(finding.level, finding.what) for finding in bad] == [(level, what)]
    assert words in bad[0].text


@pytest.mark.parametrize(
    ("change", "level", "what", "words"),
    [
        ({"token": 0o644}, "fail", "token file", "chmod 600 {folder}/token"),
        ({"key": 0o640}, "fail", "TLS key", "chmod 600 {folder}/key"),
        ({"session": "/usr/ray"}, "warn", "session directory", "0700"),
        ({"period": "9000"}, "warn", "silent node", "50 s"),
        ({"disk": 0.04}, "fail", "disk", "4 % free"),
        ({"memory": 0.1}, "warn", "memory", "10 % free"),
        ({"gpus": 1.0}, "warn", "GPUs", "torch can use 0; check the driver"),
        ({}, "", "", ""),
    ],
)
def test_each_fault_of_a_node_is_found_there(
    change: dict[str, Any], level: str, what: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray._private import utils

    folder = tmp_path / "folder"
    folder.mkdir(mode=0o700)
    for name in ("token", "key"):
        (folder / name).touch()
        (folder / name).chmod(change.get(name, 0o600))
    settings = {"RAY_AUTH_TOKEN_PATH": folder / "token", "RAY_TLS_SERVER_KEY": folder / "key", "RAY_USE_TLS": "1"}
    settings |= {"RAY_health_check_period_ms": change.get("period", "1000"), "RAY_health_check_timeout_ms": "1000"}
    settings |= dict.fromkeys(("RAY_grpc_client_keepalive_time_ms", "RAY_grpc_client_keepalive_timeout_ms"), "2000")
    for name, value in settings.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.delenv("RAY_health_check_failure_threshold", raising=False)
    disk = SimpleNamespace(free=change.get("disk", 0.5), total=1.0)
    monkeypatch.setattr(checks.shutil, "disk_usage", lambda _: disk)
    monkeypatch.setattr(utils, "get_system_memory", lambda: 100)
    monkeypatch.setattr(utils, "get_used_memory", lambda: 100 * (1 - change.get("memory", 0.5)))
    if any(Path("/dev").glob("nvidia[0-9]*")):
        pytest.skip("this machine has GPUs")
    found = list(find_faults("a (10.0.0.1)", Path(change.get("session", folder)), change.get("gpus", 0.0)))
    assert [(fault.level, fault.what) for fault in found] == ([(level, what)] if what else [])
    assert all(words.format(folder=folder) in fault.text for fault in found)


def test_your_versions_are_compared_with_each_nodes() -> None:
    """What is not installed here may be anything there."""
    here = WELL.versions | {"torch": "missing"}
    nodes = {node.name: node.versions for node in (WELL, OTHER)}
    assert compare_versions(here, nodes) == [CheckResult("ok", "your versions", "those of the cluster")]
    nodes["b (10.0.0.2)"] = WELL.versions | {"ray": "2.61.0", "pate": "0.2.0", "torch": "2.16.0"}
    of_ray, of_pate = compare_versions(here, nodes)
    assert of_ray == CheckResult("warn", "your ray", "2.60.0 here, 2.61.0 on b (10.0.0.2)")
    assert of_pate.text == "0.1.0 here, 0.2.0 on b (10.0.0.2); `pate submit` can pack and send yours"


@pytest.mark.parametrize(("ahead", "level"), [(0, "ok"), (30, "warn"), (-30, "warn"), (90, "fail"), (-90, "fail")])
def test_clocks_and_the_dashboard_are_looked_at_from_the_head(
    ahead: float, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who can reach the head's own address can reach a dashboard that is open; of loopback nobody else could tell."""
    import ray

    asked: list[Any] = []

    def on_each(nodes: Any, function: Any, arguments: Any, seconds: Any) -> Any:
        asked.append((len(nodes), arguments))
        for node in nodes:
            yield node["NodeManagerAddress"], replace(WELL, clock=time.time() + ahead, faults=[]), ""

    head = {"NodeManagerAddress": "10.0.0.1", "Alive": True, "Resources": {"node:__internal_head__": 1.0}}
    other = {"NodeManagerAddress": "10.0.0.2", "Alive": True, "Resources": {}}
    monkeypatch.setattr(ray, "nodes", lambda: [other, other | {"Alive": False}, head])
    monkeypatch.setattr(ray._private.worker, "get_dashboard_url", lambda: "127.0.0.1:8265")
    monkeypatch.setattr(checks, "_on_each", on_each)
    monkeypatch.setattr(checks, "try_teachers", lambda nodes: [])
    monkeypatch.setattr(checks, "_open_without_token", lambda dashboard: False)
    results, _ = checks.examine()
    assert asked == [(2, ("10.0.0.1", 8265))]
    assert {result.level for result in results if result.what == "clock"} == {level}


@pytest.mark.slow
def test_teachers_are_trained_on_each_kind_of_a_real_cluster() -> None:
    """A head without CPUs, two CPU nodes and one with a pretended GPU: two kinds, one node of each."""
    import ray
    from ray.cluster_utils import Cluster as RayCluster

    cluster = RayCluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        for resources in ({"num_cpus": 1}, {"num_cpus": 1}, {"num_cpus": 1, "num_gpus": 1}):
            cluster.add_node(**resources)
        cluster.wait_for_nodes()
        ray.init(address=cluster.address, log_to_driver=False)
        nodes = ray.nodes()
        results = try_teachers(nodes)
    finally:
        ray.shutdown()
        cluster.shutdown()
    found = {result.what: result for result in results}
    assert {what: result.level for what, result in found.items()} == {
        "teachers on CPU nodes": "ok",
        "teachers on GPU nodes": "warn",
    }
    assert "torch finds no GPU there" in found["teachers on GPU nodes"].text


def test_an_open_dashboard_is_worse_without_a_token() -> None:
    found = {f.what: f for f in findings(WELL, dashboard="10.0.0.1:8265")}
    assert found["dashboard"].level == "warn"
    found = {f.what: f for f in findings(WELL, dashboard="10.0.0.1:8265", open_to_all=True)}
    assert found["dashboard"].level == found["token"].level == "fail"


def test_one_machine_may_go_without_tls() -> None:
    found = {f.what: f for f in findings(replace(WELL, tls=False), replace(WELL, tls=False))}
    assert found["TLS"].level == "warn"


def test_rays_defaults_are_as_assumed() -> None:
    import ray

    from pate.cluster._checks import _HEALTH, _KEEPALIVE

    for prefix, settings in (("health_check", _HEALTH), ("grpc_client_keepalive", _KEEPALIVE)):
        for name, value in settings.items():
            if f"RAY_{prefix}_{name}" not in os.environ:
                assert getattr(ray._config, f"{prefix}_{name}")() == value
