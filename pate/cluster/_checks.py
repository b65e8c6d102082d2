"""What `pate doctor` asks each node of a cluster, and what it concludes."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal
from urllib.error import HTTPError
from urllib.request import urlopen

from pate.errors import first_line

Level = Literal["ok", "warn", "fail"]
_PACKAGES = ("python", "ray", "pate", "torch", "numpy", "scikit-learn")
_MISSING = "missing"
_SECONDS_TO_ANSWER, _SECONDS_TO_TRAIN = 90, 180  # a busy node may take a minute to load torch alone
_TYPE = "accelerator_type:"  # a resource of nodes that have such GPUs
_NOTICED_WITHIN = 15.0  # seconds until a silent node is given up
# Ray's own defaults for how often, how long and how many times the head asks a node (ms, ms, times)
_HEALTH = {"period_ms": 3000, "timeout_ms": 10000, "failure_threshold": 5}
_KEEPALIVE = {"time_ms": 300_000, "timeout_ms": 120_000}  # and for how long a call waits on a dead connection
_WELL = {  # what is said where no node has a fault
    "token file": "for its owner only",
    "session directory": "closed to others",
    "silent node": "noticed in time",
    "clock": "agrees within 2 s",
    "disk": "enough free",
    "memory": "enough free",
}


@dataclass(frozen=True)
class CheckResult:
    """One line of the result: how a thing stands and, if it is not well, what to change."""

    level: Level
    what: str
    text: str


@dataclass(frozen=True)
class Node:
    """What a node says of itself; permissions are None where there is no such file."""

    name: str
    versions: dict[str, str]
    auth_mode: str
    token_file: str | None
    token_permissions: int | None
    tls: bool
    tls_key: str | None
    tls_key_permissions: int | None
    session: str
    session_open: bool
    seconds_to_notice: float
    disk_free: float
    memory_free: float
    gpus_of_torch: int | None
    clock: float
    dashboard_reached: bool
    gpus_of_ray: float = 0.0
    clock_error: float = 0.0


@dataclass(frozen=True)
class Cluster:
    """What is known of the cluster as a whole."""

    nodes: list[Node]
    silent: list[str] = field(default_factory=list)
    dashboard: str | None = None
    open_without_token: bool | None = None
    teachers: list[CheckResult] = field(default_factory=list)


def installed() -> dict[str, str]:
    """Versions of the packages that this process would use."""
    from pate import __version__

    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = _MISSING
    # the pate in use: one that was sent along need not be installed
    return found | {"python": ".".join(map(str, sys.version_info[:3])), "pate": __version__}


def examine() -> Cluster:
    """Ask every node of the cluster that this process has joined, and try teachers on one node of each kind."""
    import ray

    alive = [node for node in ray.nodes() if node["Alive"]]
    dashboard = ray._private.worker.get_dashboard_url() or None
    host, _, port = (dashboard or "").rpartition(":")
    head = next((n["NodeManagerAddress"] for n in alive if "node:__internal_head__" in n["Resources"]), host)
    nodes, silent, before = [], [], time.time()
    arguments = head, int(port) if port.isdigit() else None
    for node, name, found, reason in _on_each(alive, _look_around, arguments, _SECONDS_TO_ANSWER):
        if found is None:
            silent.append(f"{name}: {reason}")
        else:
            error = max(0.0, before - found.clock, found.clock - time.time())
            gpus = node["Resources"].get("GPU", 0.0)
            nodes.append(replace(found, name=name, gpus_of_ray=gpus, clock_error=error))
    open_to_all = None
    if dashboard:
        try:
            open_to_all = bool(urlopen(f"http://{dashboard}/api/jobs/", timeout=5))
        except HTTPError as refused:
            open_to_all = refused.code not in (401, 403)
        except OSError:  # not to be reached from here
            pass
    return Cluster(nodes, silent, dashboard, open_to_all, try_teachers(alive))


def try_teachers(nodes: Sequence[Mapping[str, Any]]) -> list[CheckResult]:
    """Train dummy teachers on one node of each kind (CPU, each type of GPU), as `ray.nodes()` lists them."""
    kinds: dict[str, Mapping[str, Any]] = {}
    for node in nodes:
        resources = node["Resources"]
        types = sorted(name.removeprefix(_TYPE) for name in resources if name.startswith(_TYPE))
        if resources.get("GPU", 0) > 0:
            kinds.setdefault(f"GPU nodes ({', '.join(types)})" if types else "GPU nodes", node)
        elif resources.get("CPU", 0) > 0:
            kinds.setdefault("CPU nodes", node)
    results = []
    tried = _on_each(list(kinds.values()), _train_teachers, (), _SECONDS_TO_TRAIN, share_of_gpu=0.01)
    for kind, (_, name, device, reason) in zip(kinds, tried, strict=True):
        level: Level = "ok"
        text = f"two trained on {name}, networks on {device}"
        if device is None:
            level, text = "fail", f"none could be trained on {name}: {reason}"
        elif device == "cpu" and kind.startswith("GPU"):
            level = "warn"
            text = f"trained on {name}, but networks on the CPU: torch finds no GPU there; check the driver"
        results.append(CheckResult(level, f"teachers on {kind}", text))
    return results


def _on_each(
    nodes: Sequence[Mapping[str, Any]],
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    seconds: int,
    share_of_gpu: float = 0.0,
) -> Iterator[tuple[Mapping[str, Any], str, Any, str]]:
    """Run a function in a task on each node, all at once; yields node, its name, what was returned, or None and why."""
    import ray
    from ray.exceptions import GetTimeoutError, RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    calls = []
    for node in nodes:
        place = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        gpus = share_of_gpu if node["Resources"].get("GPU", 0) > 0 else 0
        remote = ray.remote(num_cpus=0, max_retries=1)(function)
        calls.append(remote.options(scheduling_strategy=place, num_gpus=gpus).remote(*arguments))
    for node, call in zip(nodes, calls, strict=True):
        found, reason = None, ""
        try:
            found = ray.get(call, timeout=seconds)
        except GetTimeoutError:
            ray.cancel(call)
            reason = f"not done after {seconds} s; is everything there taken?"
        except RayError as error:
            reason = first_line(getattr(error, "cause", None) or error)
        yield node, f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})", found, reason


def _look_around(head: str, dashboard_port: int | None) -> Node:
    """On a node, in a Ray task: what it says of itself."""
    import ray

    session = Path(ray.get_runtime_context().get_temp_dir())
    above = [folder for folder in [session, *session.parents] if folder.exists()]
    token, key = _token_file(), os.environ.get("RAY_TLS_SERVER_KEY")
    disk = shutil.disk_usage(above[0])
    gpus: int | None = 0
    if any(Path("/dev").glob("nvidia[0-9]*")):
        try:
            import torch

            gpus = torch.cuda.device_count()
        except ImportError:
            gpus = None
    reached = False
    if dashboard_port is not None:
        try:
            socket.create_connection((head, dashboard_port), timeout=3).close()
            reached = True
        except OSError:
            pass
    # A silent node is given up after some health checks, each of which waits for its answer; calls fail on their own.
    health = {name: float(os.environ.get(f"RAY_health_check_{name}", usual)) for name, usual in _HEALTH.items()}
    calls = [float(os.environ.get(f"RAY_grpc_client_keepalive_{name}", usual)) for name, usual in _KEEPALIVE.items()]
    given_up = health["failure_threshold"] * (health["period_ms"] + health["timeout_ms"])
    return Node(
        name=socket.gethostname(),
        versions=installed(),
        auth_mode=os.environ.get("RAY_AUTH_MODE", "not set").lower(),
        token_file=str(token) if token else None,
        token_permissions=_permissions(token),
        tls=os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"),
        tls_key=key,
        tls_key_permissions=_permissions(Path(key) if key else None),
        session=str(session),
        session_open=all(folder.stat().st_mode & 0o005 for folder in above),
        seconds_to_notice=max(given_up, sum(calls)) / 1000,
        disk_free=disk.free / disk.total,
        memory_free=_free_memory(),
        gpus_of_torch=gpus,
        clock=time.time(),
        dashboard_reached=reached,
    )


def _train_teachers() -> str:
    """In a task on a node: train one teacher of scikit-learn and one network; returns the device networks use there."""
    import numpy as np

    from pate.networks._architectures import resolve_device
    from pate.teachers import build_estimator

    X, y = np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32), np.arange(16) % 2
    network = {"architecture": "mlp", "hidden": 4, "steps": 2, "batch_size": 4}
    for name, params in (("sklearn.svm.SVC", {}), ("network", network)):
        build_estimator(name, params, 0, "teachers").fit(X, y).predict(X)
    return resolve_device("auto").type


def judge(cluster: Cluster) -> list[CheckResult]:
    """The result of every check, in the order in which people would mend things."""
    nodes = cluster.nodes
    results = [CheckResult("ok" if nodes else "fail", "nodes", f"{len(nodes)} answer: {_names(nodes)}")]
    for name in cluster.silent:
        results.append(CheckResult("fail", "nodes", f"{name} did not answer; is the same pate installed there?"))
    results += [_same_versions(nodes, package) for package in _PACKAGES]
    results += [*cluster.teachers, _token(cluster), _tls(nodes), _dashboard(cluster)]
    well = _WELL | {"GPUs": f"{sum(node.gpus_of_ray for node in nodes):g} in all"}
    faults = [fault for node in nodes for fault in _faults(node)]
    results += [fault for fault in faults if fault.what not in well]
    for what, text in well.items():
        results += [fault for fault in faults if fault.what == what] or [CheckResult("ok", what, text)]
    return results


def _faults(node: Node) -> Iterator[CheckResult]:
    """What is wrong on one node, whatever the others are like."""
    if (node.token_permissions or 0) & 0o077:
        text = f"others on {node.name} can read it; there run: chmod 600 {node.token_file}"
        yield CheckResult("fail", "token file", text)
    if node.tls and (node.tls_key_permissions or 0) & 0o077:
        yield CheckResult("fail", "TLS key", f"others on {node.name} can read it; there run: chmod 600 {node.tls_key}")
    if node.session_open:
        text = f"others on {node.name} can enter {node.session}; give ray start a --temp-dir below a folder of "
        yield CheckResult("warn", "session directory", text + "mode 0700")
    if node.seconds_to_notice > _NOTICED_WITHIN:
        text = f"up to {node.seconds_to_notice:.0f} s until noticed, as {node.name} is set; source cluster/env.sh"
        yield CheckResult("warn", "silent node", text)
    if node.clock_error > 2:
        text = f"{node.name} is off by {node.clock_error:.0f} s; let chrony or NTP set it"
        yield CheckResult("fail" if node.clock_error > 60 else "warn", "clock", text)
    if node.disk_free < 0.1:
        text = f"{100 * node.disk_free:.0f} % free below {node.session} on {node.name}; Ray stops writing below 5 %"
        yield CheckResult("fail" if node.disk_free < 0.05 else "warn", "disk", text)
    if node.memory_free < 0.15:
        text = f"{100 * node.memory_free:.0f} % free on {node.name}; Ray ends workers below 5 %, run fewer: ray.workers"
        yield CheckResult("fail" if node.memory_free < 0.05 else "warn", "memory", text)
    if node.gpus_of_torch is None:
        yield CheckResult("warn", "GPUs", f"{node.name} has some, but torch cannot be imported there")
    elif node.gpus_of_ray != node.gpus_of_torch:
        advice = "check the driver" if node.gpus_of_ray > node.gpus_of_torch else "see ray start --num-gpus"
        text = f"Ray counts {node.gpus_of_ray:g} on {node.name}, torch can use {node.gpus_of_torch}; {advice}"
        yield CheckResult("warn", "GPUs", text)


def _same_versions(nodes: Sequence[Node], package: str) -> CheckResult:
    found: dict[str, list[Node]] = {}
    for node in nodes:
        found.setdefault(node.versions.get(package, _MISSING), []).append(node)
    if _MISSING in found:
        return CheckResult("fail", package, f"not installed on {_names(found[_MISSING])}; install the same everywhere")
    if len(found) > 1:
        text = "; ".join(f"{which} on {_names(where)}" for which, where in sorted(found.items()))
        return CheckResult("fail", package, f"versions differ: {text}; install the same everywhere")
    return CheckResult("ok", package, f"{next(iter(found), 'unknown')} everywhere")


def compare_versions(here: Mapping[str, str], nodes: Mapping[str, Mapping[str, str]]) -> list[CheckResult]:
    """Versions on the machine this runs on with those of the nodes, by name; what is not installed here may differ."""
    results = []
    for package in _PACKAGES:
        ours = here.get(package, _MISSING)
        others = [f"{there[package]} on {name}" for name, there in nodes.items() if there.get(package, ours) != ours]
        if ours != _MISSING and others:
            advice = "; `pate submit` can pack and send yours" if package == "pate" else ""
            results.append(CheckResult("warn", f"your {package}", f"{ours} here, {'; '.join(others)}{advice}"))
    return results or [CheckResult("ok", "your versions", "those of the cluster")]


def _token(cluster: Cluster) -> CheckResult:
    off = [node for node in cluster.nodes if node.auth_mode != "token"]
    if cluster.open_without_token:
        text = f"{cluster.dashboard} answers without one; set RAY_AUTH_MODE=token on every node"
        return CheckResult("fail", "token", text)
    if off:
        return CheckResult("fail", "token", f"RAY_AUTH_MODE is not token on {_names(off)}; source cluster/env.sh there")
    tried = "; a request without one was refused" if cluster.open_without_token is False else ""
    return CheckResult("ok", "token", f"wanted on every node{tried}")


def own_token() -> list[CheckResult]:
    """The token file on the machine this runs on, which need not be a node."""
    path = _token_file()
    if (_permissions(path) or 0) & 0o077:
        return [CheckResult("fail", "your token file", f"others can read it; run: chmod 600 {path}")]
    return []


def _tls(nodes: Sequence[Node]) -> CheckResult:
    off = [node for node in nodes if not node.tls]
    if not off:
        return CheckResult("ok", "TLS", "between all nodes")
    if len({node.name for node in nodes}) > 1:
        text = f"off on {_names(off)}: records cross the network in the clear; see cluster/tls.sh"
        return CheckResult("fail", "TLS", text)
    text = "off; no harm while all nodes are one machine, see cluster/tls.sh before adding another"
    return CheckResult("warn", "TLS", text)


def _dashboard(cluster: Cluster) -> CheckResult:
    if cluster.dashboard is None:
        return CheckResult("ok", "dashboard", "there is none")
    loopback = cluster.dashboard.startswith(("127.", "localhost", "[::1]"))
    if loopback and not any(node.dashboard_reached for node in cluster.nodes if "(127." not in node.name):
        return CheckResult("ok", "dashboard", f"on {cluster.dashboard} only")
    text = "open to the network; start the head with --dashboard-host=127.0.0.1 and reach it through ssh -L"
    return CheckResult("fail" if cluster.open_without_token else "warn", "dashboard", text)


def _names(nodes: Sequence[Node]) -> str:
    return ", ".join(dict.fromkeys(node.name for node in nodes)) or "none"


def _token_file() -> Path | None:
    if "RAY_AUTH_TOKEN" in os.environ:
        return None
    named = os.environ.get("RAY_AUTH_TOKEN_PATH")
    return Path(named) if named else Path.home() / ".ray" / "auth_token"


def _permissions(path: Path | None) -> int | None:
    try:
        return path.stat().st_mode & 0o777 if path else None
    except OSError:
        return None


def _free_memory() -> float:
    """Share of memory that is available; within a container, of its limit."""
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines() if ":" in line)
    available, total = (1024.0 * int(lines[name].split()[0]) for name in ("MemAvailable", "MemTotal"))
    limit, used = (Path("/sys/fs/cgroup") / name for name in ("memory.max", "memory.current"))
    if limit.exists() and used.exists() and limit.read_text().strip().isdigit():
        most = float(limit.read_text())
        available, total = max(0.0, min(available, most - float(used.read_text()))), min(total, most)
    return available / total
