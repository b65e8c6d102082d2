"""cluster/kubernetes, rendered: KubeRay's fields, the Pod Security Standard "restricted", and who reaches whom."""

from __future__ import annotations

import ipaddress
import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from kustomize import Document, kubectl, render
from support import REPOSITORY

KUBERNETES = REPOSITORY / "cluster" / "kubernetes"
FOLDERS = {name: KUBERNETES / "overlays" / name for name in ("run", "cluster")}
FOLDERS["once"] = KUBERNETES / "once"
FOLDERS["everything"] = Path(__file__).parent / "everything"
SCHEMA = json.loads((Path(__file__).parent / "kuberay.schema.json").read_text())
every_overlay = pytest.mark.parametrize("overlay", [name for name in FOLDERS if name != "once"])
_VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}


def rendered(overlay: str) -> list[Document]:
    return render(FOLDERS[overlay])


def of_kind(documents: list[Document], *kinds: str) -> list[Document]:
    return [document for document in documents if document["kind"] in kinds]


def ray_cluster(documents: list[Document]) -> Document:
    (found,) = of_kind(documents, "RayCluster", "RayJob")
    spec: Document = found["spec"]
    return spec["rayClusterSpec"] if found["kind"] == "RayJob" else spec


def pods(documents: list[Document]) -> dict[str, Document]:
    """Every pod template by what it is, labelled and completed as KubeRay does it: the head gets the autoscaler."""
    cluster = ray_cluster(documents)
    found = {"head": cluster["headGroupSpec"]["template"]}
    found |= {group["groupName"]: group["template"] for group in cluster["workerGroupSpecs"]}
    for name, template in found.items():
        kind = "head" if name == "head" else "worker"
        template["metadata"]["labels"] |= {"ray.io/is-ray-node": "yes", "ray.io/node-type": kind}
    options = cluster["autoscalerOptions"]
    taken = {key: options[key] for key in ("securityContext", "resources", "envFrom", "volumeMounts")}
    image = found["head"]["spec"]["containers"][0]["image"]
    found["head"]["spec"]["containers"].append({"name": "autoscaler", "image": image} | taken)
    for document in of_kind(documents, "RayJob"):
        found["submitter"] = document["spec"]["submitterPodTemplate"]
    for document in of_kind(documents, "StatefulSet"):
        found[document["metadata"]["name"]] = document["spec"]["template"]
    return found


def containers(pod: Document) -> Iterator[Document]:
    yield from pod["spec"].get("initContainers", [])
    yield from pod["spec"]["containers"]


def _claims(pod: Document) -> list[Document]:
    return [volume for volume in pod["spec"].get("volumes", []) if "persistentVolumeClaim" in volume]


@pytest.mark.parametrize("overlay", FOLDERS)
def test_the_real_kustomize_makes_the_same(overlay: str) -> None:
    theirs = kubectl(FOLDERS[overlay])
    if theirs is None:
        pytest.skip("kubectl is not installed: the tests' own rendering stands alone")

    def name(document: Document) -> tuple[str, str]:
        return document["kind"], document["metadata"]["name"]

    assert sorted(rendered(overlay), key=name) == sorted(theirs, key=name)


def test_every_component_is_looked_at() -> None:
    used = yaml.safe_load((FOLDERS["everything"] / "kustomization.yaml").read_text())["components"]
    used += yaml.safe_load((FOLDERS["run"] / "kustomization.yaml").read_text())["components"]
    assert {Path(name).name for name in used} == {path.name for path in (KUBERNETES / "components").iterdir()}


@every_overlay
def test_kuberay_knows_every_field(overlay: str) -> None:
    for document in of_kind(rendered(overlay), "RayCluster", "RayJob"):
        document["metadata"].pop("namespace")
        jsonschema.validate(document, SCHEMA)


def test_the_schema_finds_a_misspelt_key() -> None:
    (document,) = of_kind(rendered("cluster"), "RayCluster")
    document["spec"]["workerGroupSpecs"][0]["maxReplica"] = 3
    with pytest.raises(jsonschema.ValidationError, match="maxReplica"):
        jsonschema.validate(document, SCHEMA)


@every_overlay
def test_kubernetes_knows_every_field(overlay: str) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    documents = rendered(overlay) + rendered("once")
    plain = [d for d in documents if d["kind"] not in ("RayCluster", "RayJob", "PodMonitor")]
    plain += [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}} | pod for pod in pods(documents).values()
    ]
    for document in plain:
        validate.validate(document, "1.32", strict=True)


@every_overlay
def test_pods_are_restricted(overlay: str) -> None:
    """Each demand of the Pod Security Standard "restricted", and read-only root file systems."""
    documents = rendered(overlay)
    (namespace,) = of_kind(rendered("once"), "Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    for name, pod in pods(documents).items():
        spec, context = pod["spec"], pod["spec"]["securityContext"]
        assert context["runAsNonRoot"] is True, name
        assert context["runAsUser"] > 0, name
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec), name
        assert all(set(volume) - {"name"} <= _VOLUMES for volume in spec.get("volumes", [])), name
        for container in containers(pod):
            own = container["securityContext"]
            assert own["allowPrivilegeEscalation"] is False, (name, container["name"])
            assert own["capabilities"] == {"drop": ["ALL"]}, (name, container["name"])
            assert own["readOnlyRootFilesystem"] is True, (name, container["name"])
            assert not {"privileged", "runAsUser", "seccompProfile"} & set(own), (name, container["name"])
            assert not any("hostPort" in port for port in container.get("ports", [])), (name, container["name"])
        assert name == "head" or spec["automountServiceAccountToken"] is False  # the autoscaler needs the head's


@every_overlay
def test_containers_are_bounded_and_can_write_where_they_must(overlay: str) -> None:
    for name, pod in pods(rendered(overlay)).items():
        volumes = {volume["name"] for volume in pod["spec"].get("volumes", [])}
        for container in containers(pod):
            assert {"cpu", "memory"} <= set(container["resources"]["limits"]), (name, container["name"])
            assert {"cpu", "memory"} <= set(container["resources"]["requests"]), (name, container["name"])
            mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
            assert {"/tmp", "/home/ray"} <= set(mounts) or name == "redis", (name, container["name"])
            assert {mount["name"] for mount in mounts.values()} <= volumes | {"tables"}, (name, container["name"])
            assert re.search(r"(:[\w.]+|@sha256:[0-9a-f]{64})$", container["image"]), container["image"]
            assert not container["image"].endswith(":latest")


@every_overlay
def test_no_secret_is_written_down(overlay: str) -> None:
    documents = rendered(overlay)
    assert of_kind(documents, "Secret") == []
    telling = re.compile("(?i)password|token|secret|key")
    for document in of_kind(documents, "ConfigMap"):
        assert not any(telling.search(name) for name in document["data"])
    for pod in pods(documents).values():
        for variable in (variable for container in containers(pod) for variable in container.get("env", [])):
            assert "valueFrom" in variable or not telling.search(variable["name"])
    if overlay == "everything":
        password = ray_cluster(documents)["gcsFaultToleranceOptions"]["redisPassword"]
        assert password == {"valueFrom": {"secretKeyRef": {"name": "pate-redis", "key": "password"}}}


@every_overlay
def test_only_the_head_sees_runs_and_everybody_data_to_read(overlay: str) -> None:
    for name, pod in pods(rendered(overlay)).items():
        claims = {volume["name"]: volume["persistentVolumeClaim"] for volume in _claims(pod)}
        assert ("runs" in claims) == (name == "head")
        assert ("data" in claims) == (name in ("head", "cpu", "gpu"))
        assert all(claim.get("readOnly") for volume, claim in claims.items() if volume == "data")


def test_what_is_deleted_takes_no_ledger_along() -> None:
    access = {
        d["metadata"]["name"]: d["spec"]["accessModes"] for d in of_kind(rendered("once"), "PersistentVolumeClaim")
    }
    assert access["pate-runs"] == ["ReadWriteOncePod"]  # a ledger has one writer
    for overlay in ("run", "cluster", "everything"):
        documents = rendered(overlay)
        assert of_kind(documents, "Namespace", "PersistentVolumeClaim") == []
        named = {v["persistentVolumeClaim"]["claimName"] for pod in pods(documents).values() for v in _claims(pod)}
        assert named == set(access)


@every_overlay
def test_the_cluster_grows_by_itself_and_has_gpus(overlay: str) -> None:
    cluster = ray_cluster(rendered(overlay))
    assert cluster["enableInTreeAutoscaling"] is True
    assert cluster["autoscalerOptions"]["version"] == "v2"
    assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    assert cluster["authOptions"] == {"mode": "token"}
    assert cluster["tlsOptions"] == {"enabled": True}
    groups = {group["groupName"]: group for group in cluster["workerGroupSpecs"]}
    assert all(g["minReplicas"] == 0 < g["maxReplicas"] and g["rayStartParams"] == {} for g in groups.values())
    resources = {name: g["template"]["spec"]["containers"][0]["resources"] for name, g in groups.items()}
    gpus = {name: r["limits"].pop("nvidia.com/gpu", "0") for name, r in resources.items()}
    assert gpus == {"cpu": "0", "gpu": "1"}
    assert resources["gpu"]["requests"].pop("nvidia.com/gpu") == "1"
    assert groups["gpu"]["template"]["spec"].pop("tolerations")
    assert groups["gpu"]["template"] == groups["cpu"]["template"]  # but for the GPU


def test_settings_are_those_of_other_clusters() -> None:
    """ray.env says what cluster/env.sh sets, but for what differs: where files lie, token and certificates."""
    script = f"mkdir() {{ :; }}; chmod() {{ :; }}; . {REPOSITORY}/cluster/env.sh && env"
    clean = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
    shown = subprocess.run(["bash", "-c", script], env=clean, capture_output=True, text=True, check=True)
    ours = dict(line.split("=", 1) for line in shown.stdout.splitlines() if line.startswith("RAY_"))
    operators = re.compile("RAY_(AUTH|TLS|USE_TLS|TMPDIR)")
    (settings,) = of_kind(rendered("cluster"), "ConfigMap")
    theirs = {name: value for name, value in settings["data"].items() if name.startswith("RAY_")}
    assert theirs == {name: value for name, value in ours.items() if not operators.match(name)}
    assert theirs["RAY_worker_niceness"] == "0"
    for pod in pods(rendered("run")).values():
        assert all(c["envFrom"] == [{"configMapRef": {"name": "ray-settings"}}] for c in containers(pod))


def test_the_job_runs_again_by_itself() -> None:
    (job,) = of_kind(rendered("run"), "RayJob")
    assert job["spec"]["backoffLimit"] > 0
    assert "--resume=auto" in job["spec"]["entrypoint"].split()
    assert job["spec"]["shutdownAfterJobFinishes"] is True
    assert of_kind(rendered("run"), "RayCluster") == []


def test_the_entrypoint_is_a_command_of_ours() -> None:
    from typer.testing import CliRunner

    from pate.cli import app

    (job,) = of_kind(rendered("run"), "RayJob")
    program, *words = shlex.split(job["spec"]["entrypoint"])
    assert program == "pate"
    shown = CliRunner().invoke(app, [*words, "--help"])  # all options are looked at before the help is shown
    assert shown.exit_code == 0, shown.output
    config = words[1].removeprefix("/opt/pate/")
    assert (REPOSITORY / config).exists()


# Who reaches whom: a pod that a NetworkPolicy selects for a direction is open that way only as policies say.

OPERATOR: Any = ({"app.kubernetes.io/name": "kuberay-operator"}, "ray-system")
PROMETHEUS: Any = ({"app": "prometheus"}, "monitoring")
DNS: Any = ({"k8s-app": "kube-dns"}, "kube-system")
STRANGER: Any = ({"app": "shop"}, "shop")
NEIGHBOUR: Any = ({"app": "notebook"}, "pate")


def selects(selector: Document, labels: dict[str, str]) -> bool:
    expressions = selector.get("matchExpressions", [])
    assert all(expression["operator"] == "In" for expression in expressions)
    return all(labels.get(k) == v for k, v in selector.get("matchLabels", {}).items()) and all(
        labels.get(expression["key"]) in expression["values"] for expression in expressions
    )


def names(peer: Document, other: Any) -> bool:
    if isinstance(other, str):
        block = peer.get("ipBlock")
        address = ipaddress.ip_address(other)
        return (
            block is not None
            and address in ipaddress.ip_network(block["cidr"])
            and not any(address in ipaddress.ip_network(inner) for inner in block.get("except", []))
        )
    labels, namespace = other
    if "ipBlock" in peer:
        return False
    its = {"kubernetes.io/metadata.name": namespace}
    inside = selects(peer["namespaceSelector"], its) if "namespaceSelector" in peer else namespace == "pate"
    return inside and selects(peer.get("podSelector", {}), labels)


def one_way(policies: list[Document], way: str, pod: Any, other: Any, port: int, protocol: str) -> bool:
    if isinstance(pod, str) or pod[1] != "pate":
        return True  # not ours to say
    mine = [
        p["spec"] for p in policies if selects(p["spec"]["podSelector"], pod[0]) and way in p["spec"]["policyTypes"]
    ]
    assert mine, "the namespace's own policy selects every pod"
    side = "from" if way == "Ingress" else "to"
    return any(
        any(names(peer, other) for peer in rule[side])
        and any(
            p == {"protocol": protocol, "port": port} for p in rule.get("ports", [{"protocol": protocol, "port": port}])
        )
        for policy in mine
        for rule in policy.get(way.lower(), [])
    )


def reaches(documents: list[Document], source: Any, target: Any, port: int, protocol: str = "TCP") -> bool:
    policies = of_kind(documents, "NetworkPolicy")
    return one_way(policies, "Egress", source, target, port, protocol) and one_way(
        policies, "Ingress", target, source, port, protocol
    )


@every_overlay
def test_who_reaches_whom(overlay: str) -> None:
    documents = rendered(overlay)
    assert {p["metadata"]["namespace"] for p in of_kind(documents, "NetworkPolicy")} == {"pate"}
    own = {name: (pod["metadata"]["labels"], "pate") for name, pod in pods(documents).items()}
    head, cpu, gpu = own["head"], own["cpu"], own["gpu"]
    for source, target in ((head, cpu), (cpu, head), (gpu, cpu), (cpu, gpu)):
        assert reaches(documents, source, target, 6379)
        assert reaches(documents, source, target, 31234)
    assert reaches(documents, OPERATOR, head, 8265)
    assert not reaches(documents, OPERATOR, cpu, 8265)
    assert not reaches(documents, OPERATOR, head, 6379)
    for name in own:
        assert reaches(documents, own[name], DNS, 53, "UDP")
        for other in (STRANGER, NEIGHBOUR):
            for port in (22, 6379, 8080, 8265, 10001):  # refused by the target, whatever the source may
                assert not one_way(of_kind(documents, "NetworkPolicy"), "Ingress", own[name], other, port, "TCP")
        for address in ("169.254.169.254", "10.1.2.3", "8.8.8.8"):
            assert not reaches(documents, own[name], address, 80)
        assert not reaches(documents, own[name], "169.254.169.254", 443)
        assert not reaches(documents, own[name], "10.1.2.3", 443)
    stored, watched = overlay == "everything", overlay == "everything"
    assert reaches(documents, cpu, "52.216.0.1", 443) == reaches(documents, head, "52.216.0.1", 443) == stored
    assert reaches(documents, PROMETHEUS, head, 8080) == reaches(documents, PROMETHEUS, gpu, 8080) == watched
    assert not reaches(documents, PROMETHEUS, head, 8265)
    if "submitter" in own:
        assert reaches(documents, own["submitter"], head, 8265)
        assert not reaches(documents, own["submitter"], head, 6379)
        assert not reaches(documents, own["submitter"], cpu, 6379)
    if "redis" in own:
        assert reaches(documents, head, own["redis"], 6379)
        assert not reaches(documents, cpu, own["redis"], 6379)
        assert not reaches(documents, own["redis"], "52.216.0.1", 443)
    api_server = "192.0.2.1"  # until an overlay names it
    assert reaches(documents, head, api_server, 443)
    assert not reaches(documents, cpu, api_server, 443) or stored


@every_overlay
def test_prometheus_finds_the_ports_it_may_read(overlay: str) -> None:
    documents = rendered(overlay)
    for monitor in of_kind(documents, "PodMonitor"):
        ports = {p["name"]: p["containerPort"] for p in pods(documents)["head"]["spec"]["containers"][0]["ports"]}
        wanted = {ports[endpoint["port"]] for endpoint in monitor["spec"]["podMetricsEndpoints"]}
        (policy,) = [p for p in of_kind(documents, "NetworkPolicy") if p["metadata"]["name"] == "prometheus"]
        assert wanted == {rule["port"] for rule in policy["spec"]["ingress"][0]["ports"]}
        assert selects(monitor["spec"]["selector"], pods(rendered(overlay))["cpu"]["metadata"]["labels"])
