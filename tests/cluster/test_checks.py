"""What `pate doctor` makes of what it finds."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from pate.cluster._checks import CheckResult, Cluster, Node, compare_versions, judge, try_teachers

WELL = Node(
    name="a (10.0.0.1)",
    versions={"python": "3.12.1", "ray": "2.60.0", "pate": "0.1.0", "torch": "2.15.0"}
    | {"numpy": "2.4.0", "scikit-learn": "1.9.0"},
    auth_mode="token",
    token_file="/home/u/.ray/auth_token",
    token_permissions=0o600,
    tls=True,
    tls_key="/home/u/.ray/tls/node.key",
    tls_key_permissions=0o600,
    session="/home/u/.ray/ray",
    session_open=False,
    seconds_to_notice=12.0,
    disk_free=0.5,
    memory_free=0.5,
    gpus_of_torch=1,
    clock=0.0,
    dashboard_reached=False,
    gpus_of_ray=1.0,
)
OTHER = replace(WELL, name="b (10.0.0.2)")


def findings(*nodes: Node, **cluster: object) -> list[CheckResult]:
    known: dict[str, object] = {"dashboard": "127.0.0.1:8265", "open_without_token": False}
    return judge(Cluster(list(nodes), **(known | cluster)))  # type: ignore[arg-type]


def test_a_sound_cluster_is_all_ok() -> None:
    found = findings(WELL, OTHER)
    assert [finding for finding in found if finding.level != "ok"] == []
    assert found[0].text == "2 answer: a (10.0.0.1), b (10.0.0.2)"


@pytest.mark.parametrize(
    ("change", "level", "what", "words"),
    [
        ({"versions": WELL.versions | {"ray": "2.59.0"}}, "fail", "ray", "2.59.0 on b (10.0.0.2)"),
        ({"versions": WELL.versions | {"torch": "missing"}}, "fail", "torch", "not installed on b (10.0.0.2)"),
        ({"auth_mode": "disabled"}, "fail", "token", "source cluster/env.sh"),
        ({"token_permissions": 0o644}, "fail", "token file", "chmod 600 /home/u/.ray/auth_token"),
        ({"tls": False}, "fail", "TLS", "cluster/tls.sh"),
        ({"tls_key_permissions": 0o640}, "fail", "TLS key", "chmod 600 /home/u/.ray/tls/node.key"),
        ({"dashboard_reached": True}, "warn", "dashboard", "--dashboard-host=127.0.0.1"),
        ({"session_open": True}, "warn", "session directory", "0700"),
        ({"seconds_to_notice": 65.0}, "warn", "silent node", "65 s"),
        ({"clock_error": 5.0}, "warn", "clock", "off by 5 s"),
        ({"clock_error": 90.0}, "fail", "clock", "off by 90 s"),
        ({"disk_free": 0.04}, "fail", "disk", "4 % free"),
        ({"memory_free": 0.1}, "warn", "memory", "10 % free"),
        ({"gpus_of_torch": 0}, "warn", "GPUs", "torch can use 0"),
        ({"gpus_of_ray": 0.0}, "warn", "GPUs", "--num-gpus"),
        ({"gpus_of_torch": None}, "warn", "GPUs", "cannot be imported"),
    ],
)
def test_each_fault_is_found_and_says_what_to_change(
    change: dict[str, object], level: str, what: str, words: str
) -> None:
    bad = [f for f in findings(WELL, replace(OTHER, **change)) if f.level != "ok"]  # type: ignore[arg-type]
    assert [(finding.level, finding.what) for finding in bad] == [(level, what)]
    assert words in bad[0].text


def test_your_versions_are_compared_with_each_nodes() -> None:
    """What is not installed here may be anything there."""
    here = WELL.versions | {"torch": "missing"}
    nodes = {node.name: node.versions for node in (WELL, OTHER)}
    assert compare_versions(here, nodes) == [CheckResult("ok", "your versions", "those of the cluster")]
    nodes["b (10.0.0.2)"] = WELL.versions | {"ray": "2.61.0", "pate": "0.2.0", "torch": "2.16.0"}
    of_ray, of_pate = compare_versions(here, nodes)
    assert of_ray == CheckResult("warn", "your ray", "2.60.0 here, 2.61.0 on b (10.0.0.2)")
    assert of_pate.text == "0.1.0 here, 0.2.0 on b (10.0.0.2); `pate submit` can pack and send yours"


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
    found = {f.what: f for f in findings(WELL, dashboard="10.0.0.1:8265", open_without_token=True)}
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


def test_a_node_that_does_not_answer_fails() -> None:
    assert findings(WELL, silent=["c (10.0.0.3): ModuleNotFoundError"])[1].level == "fail"
