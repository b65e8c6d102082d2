"""Ray's own AWS provider, given cluster/aws.yaml and an imitation of AWS: what it makes, and what it leaves alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from support import REPOSITORY

moto = pytest.importorskip("moto", reason="moto is not installed (pip install 'moto[ec2,iam]' boto3)")
boto3 = pytest.importorskip("boto3", reason="boto3 is not installed")

CLUSTER = REPOSITORY / "cluster"
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
