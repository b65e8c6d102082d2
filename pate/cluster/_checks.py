"""What `pate doctor` asks each node of a cluster, and what it concludes."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
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
_WELL = {  # what is checked on each node, and what is said where none has that fault
    "TLS key": "",
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
    """What a node says of itself, and the faults that it finds, whatever the others are like."""

    name: str
    versions: dict[str, str]
    takes_token: bool
    tls: bool
    dashboard_reached: bool
    gpus: float
    clock: float
    faults: list[CheckResult]


def installed() -> dict[str, str]:
    """Versions of the packages that this process would use."""
    from pate import __version__

    found = dict.fromkeys(_PACKAGES, _MISSING)
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    # the pate in use: one that was sent along need not be installed
    return found | {"python": platform.python_version(), "pate": __version__}


def examine() -> tuple[list[CheckResult], dict[str, dict[str, str]]]:
    """Ask every node of the cluster that this process has joined, and try teachers on one node of each kind.

    Returns the result of every check, in the order in which people would mend things, and each node's versions.
    """
    import ray

    alive = [node for node in ray.nodes() if node["Alive"]]
    dashboard = ray._private.worker.get_dashboard_url() or None
    host, _, port = (dashboard or "").rpartition(":")
    head = next((n["NodeManagerAddress"] for n in alive if "node:__internal_head__" in n["Resources"]), host)
    arguments = head, int(port) if port.isdigit() else None
    results, nodes, before = list[CheckResult](), list[Node](), time.time()
    for name, found, reason in _on_each(alive, _look_around, arguments, _SECONDS_TO_ANSWER):
        if found is None:
            text = f"{name} did not answer ({reason}); is the same pate installed there?"
            results.append(CheckResult("fail", "nodes", text))
            continue
        nodes.append(found)
        error = max(0.0, before - found.clock, found.clock - time.time())
        if error > 2:
            text = f"{found.name} is off by {error:.0f} s; let chrony or NTP set it"
            found.faults.append(CheckResult("fail" if error > 60 else "warn", "clock", text))
    results.insert(0, CheckResult("ok" if nodes else "fail", "nodes", f"{len(nodes)} answer: {_names(nodes)}"))
    results += judge(nodes, try_teachers(alive), dashboard, _open_without_token(dashboard) if dashboard else None)
    return results, {node.name: node.versions for node in nodes}


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
    for kind, (name, device, reason) in zip(kinds, tried, strict=True):
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
) -> Iterator[tuple[str, Any, str]]:
    """Run a function in a task on each node, all at once; yields its name, and what was returned, or None and why."""
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
        yield _name(node), found, reason


def _look_around(head: str, dashboard_port: int | None) -> Node:
    """On a node, in a Ray task: what it says of itself."""
    import ray

    context = ray.get_runtime_context()
    own = next(node for node in ray.nodes() if node["NodeID"] == context.get_node_id())
    name, gpus = _name(own), own["Resources"].get("GPU", 0.0)
    reached = False
    if dashboard_port is not None:
        with suppress(OSError):
            socket.create_connection((head, dashboard_port), timeout=3).close()
            reached = True
    takes_token = os.environ.get("RAY_AUTH_MODE", "").lower() == "token"
    faults = list(find_faults(name, Path(context.get_temp_dir()), gpus))
    return Node(name, installed(), takes_token, _uses_tls(), reached, gpus, time.time(), faults)


def find_faults(name: str, session: Path, gpus_of_ray: float) -> Iterator[CheckResult]:
    """What is wrong on this node, `name`, whose Ray keeps its session below a folder and counts so many GPUs."""
    from ray._private import utils

    key = os.environ.get("RAY_TLS_SERVER_KEY")
    if _uses_tls() and key and _read_by_others(Path(key)):
        yield CheckResult("fail", "TLS key", f"others on {name} can read it; there run: chmod 600 {key}")
    if _read_by_others(token := _token_file()):
        yield CheckResult("fail", "token file", f"others on {name} can read it; there run: chmod 600 {token}")
    above = [folder for folder in [session, *session.parents] if folder.exists()]
    if all(folder.stat().st_mode & 0o005 for folder in above):
        text = f"others on {name} can enter {session}; give ray start a --temp-dir below a folder of mode 0700"
        yield CheckResult("warn", "session directory", text)
    # A silent node is given up after some health checks, each of which waits for its answer; calls fail on their own.
    health = {key: float(os.environ.get(f"RAY_health_check_{key}", usual)) for key, usual in _HEALTH.items()}
    calls = [float(os.environ.get(f"RAY_grpc_client_keepalive_{key}", usual)) for key, usual in _KEEPALIVE.items()]
    given_up = health["failure_threshold"] * (health["period_ms"] + health["timeout_ms"])
    if (seconds := max(given_up, sum(calls)) / 1000) > _NOTICED_WITHIN:
        text = f"up to {seconds:.0f} s until noticed, as {name} is set; source cluster/env.sh"
        yield CheckResult("warn", "silent node", text)
    disk = shutil.disk_usage(above[0])
    if (free := disk.free / disk.total) < 0.1:
        text = f"{100 * free:.0f} % free below {session} on {name}; Ray stops writing below 5 %"
        yield CheckResult("fail" if free < 0.05 else "warn", "disk", text)
    if (free := 1 - utils.get_used_memory() / utils.get_system_memory()) < 0.15:  # as Ray sees it, in containers too
        text = f"{100 * free:.0f} % free on {name}; Ray ends workers below 5 %, run fewer: ray.workers"
        yield CheckResult("fail" if free < 0.05 else "warn", "memory", text)
    gpus_of_torch = 0
    if any(Path("/dev").glob("nvidia[0-9]*")):
        try:
            import torch

            gpus_of_torch = torch.cuda.device_count()
        except ImportError:
            yield CheckResult("warn", "GPUs", f"{name} has some, but torch cannot be imported there")
            return
    if gpus_of_ray != gpus_of_torch:
        advice = "check the driver" if gpus_of_ray > gpus_of_torch else "see ray start --num-gpus"
        text = f"Ray counts {gpus_of_ray:g} on {name}, torch can use {gpus_of_torch}; {advice}"
        yield CheckResult("warn", "GPUs", text)


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


def _open_without_token(dashboard: str) -> bool | None:
    """Whether the dashboard answers a request without a token; None where it cannot be reached from here."""
    try:
        return bool(urlopen(f"http://{dashboard}/api/jobs/", timeout=5))
    except HTTPError as refused:
        return refused.code not in (401, 403)
    except OSError:
        return None


def judge(
    nodes: Sequence[Node], teachers: Sequence[CheckResult], dashboard: str | None, open_to_all: bool | None
) -> list[CheckResult]:
    """What is concluded from what nodes said, and from whether the dashboard answers `open_to_all`, if it is known."""
    results = [*(_same_version(nodes, package) for package in _PACKAGES), *teachers]
    if open_to_all:
        text = f"{dashboard} answers without one; set RAY_AUTH_MODE=token on every node"
        results.append(CheckResult("fail", "token", text))
    elif off := [node for node in nodes if not node.takes_token]:
        text = f"RAY_AUTH_MODE is not token on {_names(off)}; source cluster/env.sh there"
        results.append(CheckResult("fail", "token", text))
    else:
        tried = "; a request without one was refused" if open_to_all is False else ""
        results.append(CheckResult("ok", "token", f"wanted on every node{tried}"))
    if not (off := [node for node in nodes if not node.tls]):
        results.append(CheckResult("ok", "TLS", "between all nodes"))
    elif len({node.name for node in nodes}) > 1:
        text = f"off on {_names(off)}: records cross the network in the clear; see cluster/tls.sh"
        results.append(CheckResult("fail", "TLS", text))
    else:
        text = "off; no harm while all nodes are one machine, see cluster/tls.sh before adding another"
        results.append(CheckResult("warn", "TLS", text))
    loopback = dashboard is None or dashboard.startswith(("127.", "localhost", "[::1]"))
    if not loopback or any(node.dashboard_reached for node in nodes if "(127." not in node.name):
        text = "open to the network; start the head with --dashboard-host=127.0.0.1 and reach it through ssh -L"
        results.append(CheckResult("fail" if open_to_all else "warn", "dashboard", text))
    else:
        text = "there is none" if dashboard is None else f"on {dashboard} only"
        results.append(CheckResult("ok", "dashboard", text))
    for what, well in (_WELL | {"GPUs": f"{sum(node.gpus for node in nodes):g} in all"}).items():
        faults = [fault for node in nodes for fault in node.faults if fault.what == what]
        results += faults or ([CheckResult("ok", what, well)] if well else [])
    return results


def _same_version(nodes: Sequence[Node], package: str) -> CheckResult:
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


def own_token() -> list[CheckResult]:
    """The token file on the machine this runs on, which need not be a node."""
    path = _token_file()
    text = f"others can read it; run: chmod 600 {path}"
    return [CheckResult("fail", "your token file", text)] if _read_by_others(path) else []


def _name(node: Mapping[str, Any]) -> str:
    """What a node is called, as `ray.nodes()` lists it."""
    return f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"


def _names(nodes: Sequence[Node]) -> str:
    return ", ".join(dict.fromkeys(node.name for node in nodes)) or "none"


def _uses_tls() -> bool:
    return os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true")


def _token_file() -> Path | None:
    if "RAY_AUTH_TOKEN" in os.environ:
        return None
    return Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")


def _read_by_others(path: Path | None) -> bool:
    with suppress(OSError):
        return path is not None and bool(path.stat().st_mode & 0o077)
    return False
