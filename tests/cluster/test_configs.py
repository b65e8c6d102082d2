"""What cluster/ holds parses, and is safe by default: Ray's own schema, a schema of KubeRay's kinds, and bash."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from support import REPOSITORY

CLUSTER = REPOSITORY / "cluster"
LAUNCHER = [CLUSTER / name for name in ("aws.yaml", "gcp.yaml", "local.yaml")]
KUBERAY = [CLUSTER / name for name in ("kuberay-cluster.yaml", "kuberay-job.yaml")]
SCHEMA = json.loads((Path(__file__).parent / "kuberay.schema.json").read_text())


def read(path: Path) -> dict[str, Any]:
    content = yaml.safe_load(path.read_text())
    assert isinstance(content, dict)
    return content


def named(paths: list[Path]) -> Any:
    return pytest.mark.parametrize("path", paths, ids=lambda path: path.name)


def test_every_file_is_looked_at() -> None:
    known = {*LAUNCHER, *KUBERAY, CLUSTER / "kuberay-network.yaml"}
    assert {path for path in CLUSTER.iterdir() if path.suffix == ".yaml"} == known


@named(LAUNCHER)
def test_launcher_accepts_it(path: Path) -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    content = read(path)
    prepared = prepare_config(content)
    validate_config(prepared)
    assert set(content) <= set(prepared) | {"min_workers"}
    for mount in content["file_mounts"].values():
        assert mount.startswith("~/.ray/") or (REPOSITORY / mount).exists()


@named(LAUNCHER)
def test_launcher_clusters_are_safe_by_default(path: Path) -> None:
    content = read(path)
    head = " ".join(content["head_start_ray_commands"])
    assert "--dashboard-host=127.0.0.1" in head
    setup = " ".join(content["setup_commands"])
    assert "cluster/tls.sh node ~/.ray/tls" in setup
    assert "echo '. ~/pate/cluster/env.sh' >> ~/.bashrc" in setup
    assert not any(private in content["file_mounts"] for private in ("~/pate", "~/pate/runs", "~/pate/data"))


@named([CLUSTER / "aws.yaml", CLUSTER / "gcp.yaml"])
def test_cloud_workers_are_spot_and_the_head_is_not(path: Path) -> None:
    content = read(path)
    kinds = content["available_node_types"]
    spot = {name for name, kind in kinds.items() if re.search(r"spot|'preemptible': True", str(kind["node_config"]))}
    assert spot == set(kinds) - {content["head_node_type"]}
    assert any("gpu" in name for name in spot)


@named(KUBERAY)
def test_kuberay_manifest(path: Path) -> None:
    content = read(path)
    jsonschema.validate(content, SCHEMA)
    for pod in pods(content):
        mounts = {mount["name"] for container in containers(pod) for mount in container.get("volumeMounts", [])}
        assert mounts == {volume["name"] for volume in pod["volumes"]}


def test_the_schema_finds_a_misspelt_key() -> None:
    content = read(KUBERAY[0])
    content["spec"]["workerGroupSpecs"][0]["maxReplica"] = 3
    with pytest.raises(jsonschema.ValidationError, match="maxReplica"):
        jsonschema.validate(content, SCHEMA)


def test_job_and_cluster_run_the_same_pods() -> None:
    cluster, job = read(KUBERAY[0])["spec"], read(KUBERAY[1])["spec"]
    assert job["rayClusterSpec"] == cluster
    assert cluster["authOptions"] == {"mode": "token"}


def test_workers_never_see_runs_and_the_head_never_sees_the_authority() -> None:
    head, worker = pods(read(KUBERAY[0]))
    main = {mount["name"] for container in head["containers"] for mount in container["volumeMounts"]}
    assert main == {"tls", "data", "runs"}
    assert {volume["name"] for volume in worker["volumes"]} == {"tls", "ca"}


def test_settings_are_the_same_everywhere() -> None:
    """Pods get what cluster/env.sh sets, but for what differs: where files lie, and the operator's token."""
    script = f". {CLUSTER}/env.sh && env"
    clean = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "PATE_RAY_HOME": os.environ.get("TMPDIR", "/tmp")}
    # mkdir and chmod of an existing folder of somebody else may fail; only the settings are of interest
    shown = subprocess.run(
        ["bash", "-c", f"mkdir() {{ :; }}; chmod() {{ :; }}; {script}"], env=clean, capture_output=True, text=True
    )
    ours = dict(line.split("=", 1) for line in shown.stdout.splitlines() if line.startswith("RAY_"))
    assert ours.pop("RAY_AUTH_MODE") == "token"
    ours = {name: value for name, value in ours.items() if name not in ("RAY_AUTH_TOKEN_PATH", "RAY_TMPDIR")}
    for pod in pods(read(KUBERAY[0])):
        theirs = {e["name"]: e["value"] for e in pod["containers"][0]["env"] if e["name"].startswith("RAY_")}
        assert set(theirs) == set(ours)
        assert all(theirs[name] == ours[name] for name in ours if not name.startswith("RAY_TLS"))


def test_ray_knows_every_setting() -> None:
    import ray

    names = set(re.findall(r"\bRAY_\w+(?==)", (CLUSTER / "env.sh").read_text()))
    assert len(names) >= 12
    folder = Path(ray.__file__).parent
    binary = (folder / "_raylet.so").read_bytes()
    python = "".join((folder / name).read_text() for name in ("_common/utils.py", "_common/usage/usage_constants.py"))
    unknown = [name for name in names if name.encode() not in binary and name not in python]
    assert unknown == []


def test_a_silent_node_is_given_up_within_15_seconds() -> None:
    found = dict(re.findall(r"RAY_(\w+_(?:ms|threshold))=(\d+)", (CLUSTER / "env.sh").read_text()))
    checks = int(found["health_check_failure_threshold"])
    each = int(found["health_check_period_ms"]) + int(found["health_check_timeout_ms"])
    assert checks * each <= 15_000
    assert int(found["grpc_client_keepalive_time_ms"]) + int(found["grpc_client_keepalive_timeout_ms"]) <= 15_000


@named(sorted(CLUSTER.glob("*.sh")))
def test_shell(path: Path) -> None:
    subprocess.run(["bash", "-n", str(path)], check=True)
    assert path.name == "env.sh" or os.access(path, os.X_OK)


def test_certificates_name_their_addresses(tmp_path: Path) -> None:
    subprocess.run([str(CLUSTER / "secrets.sh"), str(tmp_path)], check=True)
    token = (tmp_path / "auth_token").read_text()
    subprocess.run([str(CLUSTER / "tls.sh"), "node", str(tmp_path / "tls"), "10.9.8.7", "head.svc"], check=True)
    shown = subprocess.run(
        ["openssl", "x509", "-in", str(tmp_path / "tls" / "node.crt"), "-noout", "-text"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "IP Address:10.9.8.7" in shown
    assert "DNS:head.svc" in shown
    assert all(path.stat().st_mode & 0o077 == 0 for path in [tmp_path / "auth_token", *(tmp_path / "tls").iterdir()])
    verified = ["openssl", "verify", "-CAfile", str(tmp_path / "tls" / "ca.crt"), str(tmp_path / "tls" / "node.crt")]
    subprocess.run(verified, check=True, capture_output=True)
    subprocess.run([str(CLUSTER / "secrets.sh"), str(tmp_path)], check=True)
    assert (tmp_path / "auth_token").read_text() == token  # made once


def pods(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    spec = manifest["spec"].get("rayClusterSpec", manifest["spec"])
    return [group["template"]["spec"] for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"])]


def containers(pod: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from pod["initContainers"]
    yield from pod["containers"]
