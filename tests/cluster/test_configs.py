"""What cluster/ holds for Ray's launcher parses, and is safe by default: Ray's own schema, and bash."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import REPOSITORY

CLUSTER = REPOSITORY / "cluster"
LAUNCHER = [CLUSTER / name for name in ("aws.yaml", "gcp.yaml", "local.yaml")]
CLOUDS = [CLUSTER / name for name in ("aws.yaml", "gcp.yaml")]


def read(path: Path) -> dict[str, Any]:
    content = yaml.safe_load(path.read_text())
    assert isinstance(content, dict)
    return content


def named(paths: list[Path]) -> Any:
    return pytest.mark.parametrize("path", paths, ids=lambda path: path.name)


def test_every_file_is_looked_at() -> None:
    assert {path for path in CLUSTER.iterdir() if path.suffix == ".yaml"} == set(LAUNCHER)


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
    assert "--disable-usage-stats" in head  # else `ray up` turns it on, whatever env.sh says
    setup = " ".join(content["setup_commands"])
    assert content["setup_commands"][0] == "~/pate/cluster/install.sh ~/pate-venv"
    assert "curl" not in setup + head
    assert "cluster/tls.sh node ~/.ray/tls" in setup
    assert "echo '. ~/pate/cluster/env.sh' >> ~/.bashrc" in setup
    assert not any(private in content["file_mounts"] for private in ("~/pate", "~/pate/runs", "~/pate/data"))


@named(CLOUDS)
def test_cloud_workers_are_spot_and_come_when_asked_for(path: Path) -> None:
    content = read(path)
    kinds = content["available_node_types"]
    head = kinds.pop(content["head_node_type"])
    assert head["resources"] == {"CPU": 0}
    assert not re.search(r"spot|'preemptible': True", str(head["node_config"]))
    for name, kind in kinds.items():
        assert re.search(r"spot|'preemptible': True", str(kind["node_config"])), name
        assert kind["min_workers"] == 0 < kind["max_workers"], name
    assert {name.split("_")[0] for name in kinds} == {"gpu", "cpu"}


def test_aws_nodes_have_their_own_group_and_role() -> None:
    """What a node type does not name Ray makes: a group open to ssh from everywhere, a role with all of EC2 and S3."""
    for name, kind in read(CLUSTER / "aws.yaml")["available_node_types"].items():
        node = kind["node_config"]
        assert node["SecurityGroupIds"] == ["sg-REPLACE"], name
        assert node["IamInstanceProfile"] == {"Name": "pate-head" if name == "head" else "pate-worker"}, name
        assert node["ImageId"].startswith("resolve:ssm:/aws/service/"), name  # Ray's own default is an Ubuntu 18.04
        assert node["MetadataOptions"]["HttpTokens"] == "required", name
        assert node["BlockDeviceMappings"][0]["Ebs"]["Encrypted"] is True, name


def test_gcp_nodes_have_their_own_network() -> None:
    content = read(CLUSTER / "gcp.yaml")
    for kind in content["available_node_types"].values():
        (interface,) = kind["node_config"]["networkInterfaces"]
        assert interface["subnetwork"] == f"regions/{content['provider']['region']}/subnetworks/pate"


@named(sorted((CLUSTER / "aws").glob("*.json")))
def test_aws_roles_may_do_little(path: Path) -> None:
    name = read(CLUSTER / "aws.yaml")["cluster_name"]
    for statement in json.loads(path.read_text())["Statement"]:
        actions = statement["Action"] if isinstance(statement["Action"], list) else [statement["Action"]]
        assert not any("*" in action for action in actions)
        if statement["Resource"] == "*":
            assert all(action.startswith("ec2:Describe") for action in actions)
        if "ec2:TerminateInstances" in actions:
            assert statement["Condition"] == {"StringEquals": {"aws:ResourceTag/ray-cluster-name": name}}
        if "iam:PassRole" in actions:
            assert statement["Resource"].endswith(":role/pate-worker")
        assert path.name == "head.json" or all(action.startswith("s3:") for action in actions)
        assert path.name == "head.json" or not any(re.search("Put|Delete", action) for action in actions)


@pytest.mark.parametrize("words", [["aws/setup.sh", "bucket"], ["gcp/setup.sh", "project", "us-west1"]])
@pytest.mark.parametrize("address", ["0.0.0.0/0", "::/0", "203.0.113.7"])
def test_ssh_is_not_opened_to_everybody(words: list[str], address: str) -> None:
    command = [str(CLUSTER / words[0]), *words[1:], address]
    shown = subprocess.run(command, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"})
    assert shown.returncode == 2
    assert shown.stderr.startswith(address)


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


@named(sorted(CLUSTER.rglob("*.sh")))
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
