"""What cluster/ holds for Ray's launcher parses and is safe by default; lock, image, launchers, manifests agree."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
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


# One version of everything
EXTRAS = ("s3", "gs", "parquet")
NODES = [
    {"python_version": python, "python_full_version": f"{python}.5", "platform_machine": machine}
    | {"sys_platform": "linux", "platform_system": "Linux", "platform_python_implementation": "CPython", "extra": ""}
    for python in ("3.11", "3.12")
    for machine in ("x86_64", "aarch64")
]


@cache
def locked() -> list[Requirement]:
    lines = (CLUSTER / "requirements.lock").read_text().splitlines()
    return [Requirement(line.rstrip(" \\")) for line in lines if re.match(r"[A-Za-z0-9]", line)]


def versions(node: dict[str, str]) -> dict[str, str]:
    found = [r for r in locked() if r.marker is None or r.marker.evaluate(node)]
    assert len({r.name for r in found}) == len(found)
    return {r.name: str(r.specifier).removeprefix("==") for r in found}


def ray_version() -> str:
    (version,) = re.findall(r"^ray\[default\]==(\S+)$", (CLUSTER / "requirements.in").read_text(), re.MULTILINE)
    return version


@pytest.mark.parametrize("node", NODES, ids=lambda node: f"{node['python_version']}-{node['platform_machine']}")
def test_the_lock_holds_what_pate_needs(node: dict[str, str]) -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    wanted = [Requirement(line) for line in project["dependencies"]]
    wanted += [Requirement(line) for extra in EXTRAS for line in project["optional-dependencies"][extra]]
    have = versions(node)
    for requirement in wanted:
        name = requirement.name.lower().replace("_", "-")
        assert name in have, f"{name}: see cluster/requirements.in"
        assert requirement.specifier.contains(have[name]), f"{requirement}: the lock has {have[name]}"
    assert {"boto3", "google-api-python-client", "hatchling", "editables"} <= set(have)
    assert have["ray"] == ray_version()


def test_every_package_is_pinned_and_hashed() -> None:
    text = (CLUSTER / "requirements.lock").read_text()
    assert all(re.fullmatch(r"==[^,*]+", str(requirement.specifier)) for requirement in locked())
    blocks = re.split(r"(?m)^(?=[A-Za-z0-9])", text)[1:]
    assert len(blocks) == len(locked()) > 100
    assert all("--hash=sha256:" in block for block in blocks)
    assert not re.search(r"(?m)^\s*(-|\.|file:)(?!-hash)", text)


def test_image_and_nodes_install_the_lock_and_nothing_else() -> None:
    image, script = (CLUSTER / "Containerfile").read_text(), (CLUSTER / "install.sh").read_text()
    for text in (image, script):
        installs = re.findall(r"pip\"? install (.*)", text)
        assert len(installs) == 2
        assert "--require-hashes --only-binary=:all:" in installs[0]
        assert "requirements.lock" in installs[0]
        assert "--no-deps --no-build-isolation --no-index" in installs[1]
    assert re.search(r"(?m)^USER 1000:1000$", image)
    assert "openssl" in image  # KubeRay looks into a pod's certificate with it


def test_the_builder_sees_what_is_copied() -> None:
    image = (CLUSTER / "Containerfile").read_text()
    copied = {word for line in re.findall(r"(?m)^COPY (.*) \S+$", image) for word in line.split()}
    seen = (CLUSTER / "Containerfile.dockerignore").read_text().split("\n")
    assert "*" in seen
    assert {word.split("/")[0] for word in copied} == {line[1:] for line in seen if line.startswith("!")}


def test_manifests_want_that_ray_and_this_pate() -> None:
    cluster = yaml.safe_load((CLUSTER / "kubernetes" / "base" / "cluster.yaml").read_text())
    assert cluster["spec"]["rayVersion"] == ray_version()
    version = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
    for name in ("run", "cluster"):
        overlay = yaml.safe_load((CLUSTER / "kubernetes" / "overlays" / name / "kustomization.yaml").read_text())
        assert overlay["images"] == [{"name": "pate", "newName": "REGISTRY/pate", "newTag": version}]
    assert f"REGISTRY/pate:{version}" in (CLUSTER / "Containerfile").read_text()


# An imitation of AWS

REGION, ADDRESS = "us-west-2", "203.0.113.7/32"


def made_by_setup(ec2: Any, iam: Any) -> str:
    """As cluster/aws/setup.sh does it; the id of the security group."""
    group = ec2.create_security_group(GroupName="pate", Description="pate")["GroupId"]
    ec2.authorize_security_group_ingress(GroupId=group, IpProtocol="tcp", FromPort=22, ToPort=22, CidrIp=ADDRESS)
    for role in ("head", "worker"):
        policy = (CLUSTER / "aws" / f"{role}.json").read_text()
        for word, value in (("REGION", REGION), ("ACCOUNT", "123456789012"), ("GROUP", group), ("BUCKET", "bucket")):
            policy = policy.replace(word, value)
        iam.create_role(RoleName=f"pate-{role}", AssumeRolePolicyDocument="{}")
        iam.put_role_policy(RoleName=f"pate-{role}", PolicyName=f"pate-{role}", PolicyDocument=policy)
        iam.create_instance_profile(InstanceProfileName=f"pate-{role}")
        iam.add_role_to_instance_profile(InstanceProfileName=f"pate-{role}", RoleName=f"pate-{role}")
    return str(group)


def test_ray_opens_nothing_and_gives_no_more_than_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's own AWS provider, given cluster/aws.yaml and an imitation of AWS: what it makes, and leaves alone."""
    moto = pytest.importorskip("moto", reason="moto is not installed (pip install 'moto[ec2,iam]' boto3)")
    boto3 = pytest.importorskip("boto3", reason="boto3 is not installed")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, "none")
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    with moto.mock_aws():
        ec2, iam = boto3.client("ec2"), boto3.client("iam")
        group = made_by_setup(ec2, iam)
        from ray.autoscaler._private.aws.config import bootstrap_aws
        from ray.autoscaler._private.aws.node_provider import AWSNodeProvider
        from ray.autoscaler._private.util import prepare_config

        content = yaml.safe_load((CLUSTER / "aws.yaml").read_text().replace("sg-REPLACE", group))
        filled = AWSNodeProvider.fillout_available_node_types_resources(prepare_config(content))
        resources = {name: kind["resources"] for name, kind in filled["available_node_types"].items()}
        assert resources["head"]["CPU"] == 0
        assert resources["gpu_spot"]["GPU"] == 1
        assert "GPU" not in resources["cpu_spot"]

        config = bootstrap_aws(filled)
        provider = AWSNodeProvider(config["provider"], config["cluster_name"])
        image = ec2.describe_images()["Images"][0]["ImageId"]  # the imitation knows no resolve:ssm:
        for name, kind in config["available_node_types"].items():
            tags = {"ray-node-type": "head" if name == "head" else "worker"}
            provider.create_node(kind["node_config"] | {"ImageId": image}, tags, 1)

        open_to = [
            span["CidrIp"]
            for found in ec2.describe_security_groups()["SecurityGroups"]
            for rule in found["IpPermissions"]
            for span in rule["IpRanges"]
        ]
        assert open_to == [ADDRESS]
        assert {role["RoleName"] for role in iam.list_roles()["Roles"]} == {"pate-head", "pate-worker"}
        for reservation in ec2.describe_instances()["Reservations"]:
            for instance in reservation["Instances"]:
                kind = "head" if instance["InstanceType"] == "m5.xlarge" else "worker"
                assert instance["IamInstanceProfile"]["Arn"].endswith(f"/pate-{kind}")
                assert [one["GroupId"] for one in instance["SecurityGroups"]] == [group]
                assert {"Key": "ray-cluster-name", "Value": "pate"} in instance["Tags"]
