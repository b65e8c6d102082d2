"""One version of everything: the lock, the image, the launchers and the manifests agree."""

from __future__ import annotations

import re
import tomllib
from functools import cache

import pytest
import yaml
from packaging.requirements import Requirement
from support import REPOSITORY

CLUSTER = REPOSITORY / "cluster"
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
