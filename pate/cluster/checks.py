"""What `pate doctor` looks at on each node of a cluster, and what it concludes."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from pate.cluster.trial import Trial, try_teachers
from pate.cluster.versions import MISSING, PACKAGES, installed

Level = Literal["ok", "warn", "fail"]
_SECONDS_TO_ANSWER = 90
_NOTICED_WITHIN = 15.0  # seconds until a silent node is given up
# Ray's own defaults for how often, how long and how many times the head asks a node (ms, ms, times)
_HEALTH = {"period_ms": 3000, "timeout_ms": 10000, "failure_threshold": 5}
_KEEPALIVE = {"time_ms": 300_000, "timeout_ms": 120_000}  # and for how long a call waits on a dead connection


@dataclass(frozen=True)
class CheckResult:
    """One line of the result: how a thing stands and, if it is not well, what to change."""

    level: Level
    what: str
    text: str


@dataclass(frozen=True)
class Node:
    """What a node says of itself."""

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
    trials: list[Trial] = field(default_factory=list)


def look_around(head: str, dashboard_port: int | None) -> dict[str, Any]:
    """On a node, in a Ray task: what `Node` holds."""
    import ray

    session = ray.get_runtime_context().get_temp_dir()
    token, key = _token_file(), os.environ.get("RAY_TLS_SERVER_KEY")
    disk, (available, total) = shutil.disk_usage(_existing(Path(session))), _memory()
    node = Node(
        name=f"{socket.gethostname()} ({_own_address(head)})",
        versions=installed(),
        auth_mode=os.environ.get("RAY_AUTH_MODE", "not set").lower(),
        token_file=str(token) if token else None,
        token_permissions=_permissions(token),
        tls=os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"),
        tls_key=key,
        tls_key_permissions=_permissions(Path(key) if key else None),
        session=session,
        session_open=_open_to_others(Path(session)),
        seconds_to_notice=_seconds_to_notice(),
        disk_free=disk.free / disk.total,
        memory_free=available / total,
        gpus_of_torch=_gpus() if any(Path("/dev").glob("nvidia[0-9]*")) else 0,
        clock=time.time(),
        dashboard_reached=dashboard_port is not None and _reaches(head, dashboard_port),
    )
    return asdict(node)


def examine() -> Cluster:
    """Ask every node of the cluster that this process has joined."""
    import ray
    from ray.exceptions import RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    alive = [node for node in ray.nodes() if node["Alive"]]
    dashboard = _dashboard()
    host, _, port = (dashboard or "").rpartition(":")
    head = next((n["NodeManagerAddress"] for n in alive if "node:__internal_head__" in n["Resources"]), host)
    ask = ray.remote(num_cpus=0, max_retries=1)(look_around)
    calls = []
    for node in alive:
        place = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        asked = ask.options(scheduling_strategy=place).remote(head, int(port) if port.isdigit() else None)
        calls.append((node, time.time(), asked))
    nodes, silent = [], []
    for node, before, asked in calls:
        name = f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"
        try:
            content = ray.get(asked, timeout=_SECONDS_TO_ANSWER)
        except RayError as error:
            cause = getattr(error, "cause", None)
            silent.append(f"{name}: {type(cause or error).__name__}")
            continue
        content |= {"name": name, "gpus_of_ray": node["Resources"].get("GPU", 0.0)}
        content["clock_error"] = max(0.0, before - content["clock"], content["clock"] - time.time())
        nodes.append(Node(**content))
    open_to_all = _answers_without_token(f"http://{dashboard}") if dashboard else None
    return Cluster(nodes, silent, dashboard, open_to_all, try_teachers(alive))


def judge(cluster: Cluster) -> list[CheckResult]:
    """The result of every check, in the order in which people would mend things."""
    nodes, several = cluster.nodes, len({node.name for node in cluster.nodes}) > 1
    findings = [CheckResult("ok" if nodes else "fail", "nodes", f"{len(nodes)} answer: {_names(nodes)}")]
    for name in cluster.silent:
        findings.append(CheckResult("fail", "nodes", f"{name} did not answer; is the same pate installed there?"))
    findings += [_same_versions(nodes, package) for package in PACKAGES]
    findings += [_trained(trial) for trial in cluster.trials]
    findings += [_token_mode(cluster), *_each(nodes, _token_permissions, "token file", "for its owner only")]
    findings += [_tls(nodes, several), *(finding for node in nodes if (finding := _tls_key(node)))]
    findings += [_dashboard_open(cluster)]
    findings += _each(nodes, _session, "session directory", "closed to others")
    findings += _each(nodes, _health, "silent node", "noticed in time")
    findings += _each(nodes, _clock, "clock", "agrees within 2 s")
    findings += _each(nodes, _disk, "disk", "enough free")
    findings += _each(nodes, _memory_left, "memory", "enough free")
    return findings + _each(nodes, _gpus_seen, "GPUs", f"{sum(node.gpus_of_ray for node in nodes):g} in all")


def own_token() -> list[CheckResult]:
    """The token file on the machine this runs on, which need not be a node."""
    path = _token_file()
    mode = _permissions(path)
    if mode is not None and mode & 0o077:
        return [CheckResult("fail", "your token file", f"others can read it; run: chmod 600 {path}")]
    return []


def _same_versions(nodes: Sequence[Node], package: str) -> CheckResult:
    found: dict[str, list[Node]] = {}
    for node in nodes:
        found.setdefault(node.versions.get(package, MISSING), []).append(node)
    if MISSING in found:
        return CheckResult("fail", package, f"not installed on {_names(found[MISSING])}; install the same everywhere")
    if len(found) > 1:
        text = "; ".join(f"{which} on {_names(where)}" for which, where in sorted(found.items()))
        return CheckResult("fail", package, f"versions differ: {text}; install the same everywhere")
    return CheckResult("ok", package, f"{next(iter(found), 'unknown')} everywhere")


def compared(here: Mapping[str, str], nodes: Mapping[str, Mapping[str, str]]) -> list[CheckResult]:
    """Versions on the machine this runs on with those of the nodes, by name; what is not installed here may differ."""
    findings = []
    for package in PACKAGES:
        ours = here.get(package, MISSING)
        others = [f"{there[package]} on {name}" for name, there in nodes.items() if there.get(package, ours) != ours]
        if ours != MISSING and others:
            advice = "; `pate submit` can pack and send yours" if package == "pate" else ""
            findings.append(CheckResult("warn", f"your {package}", f"{ours} here, {'; '.join(others)}{advice}"))
    return findings or [CheckResult("ok", "your versions", "those of the cluster")]


def _trained(trial: Trial) -> CheckResult:
    if trial.error is not None:
        text = f"none could be trained on {trial.node}: {trial.error}"
        return CheckResult("fail", f"teachers on {trial.kind}", text)
    if trial.kind.startswith("GPU") and trial.device == "cpu":
        text = f"trained on {trial.node}, but networks on the CPU: torch finds no GPU there; check the driver"
        return CheckResult("warn", f"teachers on {trial.kind}", text)
    return CheckResult("ok", f"teachers on {trial.kind}", f"two trained on {trial.node}, networks on {trial.device}")


def _token_mode(cluster: Cluster) -> CheckResult:
    off = [node for node in cluster.nodes if node.auth_mode != "token"]
    if cluster.open_without_token:
        return CheckResult(
            "fail", "token", f"{cluster.dashboard} answers without one; set RAY_AUTH_MODE=token on every node"
        )
    if off:
        return CheckResult("fail", "token", f"RAY_AUTH_MODE is not token on {_names(off)}; source cluster/env.sh there")
    tried = "; a request without one was refused" if cluster.open_without_token is False else ""
    return CheckResult("ok", "token", f"wanted on every node{tried}")


def _token_permissions(node: Node) -> CheckResult | None:
    if node.token_permissions is not None and node.token_permissions & 0o077:
        return CheckResult(
            "fail", "token file", f"others on {node.name} can read it; there run: chmod 600 {node.token_file}"
        )
    return None


def _tls(nodes: Sequence[Node], several: bool) -> CheckResult:
    off = [node for node in nodes if not node.tls]
    if not off:
        return CheckResult("ok", "TLS", "between all nodes")
    if several:
        return CheckResult(
            "fail", "TLS", f"off on {_names(off)}: records cross the network in the clear; see cluster/tls.sh"
        )
    return CheckResult(
        "warn", "TLS", "off; no harm while all nodes are one machine, see cluster/tls.sh before adding another"
    )


def _tls_key(node: Node) -> CheckResult | None:
    if node.tls and node.tls_key_permissions is not None and node.tls_key_permissions & 0o077:
        return CheckResult("fail", "TLS key", f"others on {node.name} can read it; there run: chmod 600 {node.tls_key}")
    return None


def _dashboard_open(cluster: Cluster) -> CheckResult:
    advice = "start the head with --dashboard-host=127.0.0.1 and reach it through ssh -L"
    if cluster.dashboard is None:
        return CheckResult("ok", "dashboard", "there is none")
    loopback = cluster.dashboard.startswith(("127.", "localhost", "[::1]"))
    if loopback and not any(node.dashboard_reached for node in cluster.nodes if not _on_loopback(node)):
        return CheckResult("ok", "dashboard", f"on {cluster.dashboard} only")
    return CheckResult("fail" if cluster.open_without_token else "warn", "dashboard", f"open to the network; {advice}")


def _on_loopback(node: Node) -> bool:
    return "(127." in node.name


def _session(node: Node) -> CheckResult | None:
    if node.session_open:
        text = (
            f"others on {node.name} can enter {node.session}; give ray start a --temp-dir below a folder of mode 0700"
        )
        return CheckResult("warn", "session directory", text)
    return None


def _health(node: Node) -> CheckResult | None:
    if node.seconds_to_notice > _NOTICED_WITHIN:
        text = f"up to {node.seconds_to_notice:.0f} s until noticed, as {node.name} is set; source cluster/env.sh"
        return CheckResult("warn", "silent node", text)
    return None


def _clock(node: Node) -> CheckResult | None:
    if node.clock_error > 2:
        level: Level = "fail" if node.clock_error > 60 else "warn"
        return CheckResult(level, "clock", f"{node.name} is off by {node.clock_error:.0f} s; let chrony or NTP set it")
    return None


def _disk(node: Node) -> CheckResult | None:
    if node.disk_free < 0.1:
        level: Level = "fail" if node.disk_free < 0.05 else "warn"
        text = f"{100 * node.disk_free:.0f} % free below {node.session} on {node.name}; Ray stops writing below 5 %"
        return CheckResult(level, "disk", text)
    return None


def _memory_left(node: Node) -> CheckResult | None:
    if node.memory_free < 0.15:
        level: Level = "fail" if node.memory_free < 0.05 else "warn"
        text = f"{100 * node.memory_free:.0f} % free on {node.name}; Ray ends workers below 5 %, run fewer: ray.workers"
        return CheckResult(level, "memory", text)
    return None


def _gpus_seen(node: Node) -> CheckResult | None:
    if node.gpus_of_torch is None:
        return CheckResult("warn", "GPUs", f"{node.name} has some, but torch cannot be imported there")
    if node.gpus_of_ray > node.gpus_of_torch:
        text = f"Ray counts {node.gpus_of_ray:g} on {node.name}, torch can use {node.gpus_of_torch}; check the driver"
        return CheckResult("warn", "GPUs", text)
    if node.gpus_of_torch > node.gpus_of_ray:
        text = f"torch can use {node.gpus_of_torch} on {node.name}, Ray counts {node.gpus_of_ray:g}"
        text += "; see ray start --num-gpus"
        return CheckResult("warn", "GPUs", text)
    return None


def _each(
    nodes: Sequence[Node], check: Callable[[Node], CheckResult | None], what: str, good: str
) -> list[CheckResult]:
    """What is wrong, node by node; one line if nothing is."""
    return [finding for node in nodes if (finding := check(node))] or [CheckResult("ok", what, good)]


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


def _open_to_others(path: Path) -> bool:
    """Whether every folder on the way lets others through."""
    return all(folder.stat().st_mode & 0o005 for folder in [path, *path.parents] if folder.exists())


def _seconds_to_notice() -> float:
    """Until a silent node is given up, and until calls to it fail: the later of the two.

    Each health check waits for its answer, and the next comes a period later.
    """
    health = {name: float(os.environ.get(f"RAY_health_check_{name}", usual)) for name, usual in _HEALTH.items()}
    calls = [float(os.environ.get(f"RAY_grpc_client_keepalive_{name}", usual)) for name, usual in _KEEPALIVE.items()]
    given_up = health["failure_threshold"] * (health["period_ms"] + health["timeout_ms"])
    return max(given_up, sum(calls)) / 1000


def _memory() -> tuple[float, float]:
    """Bytes available and in total; within a container, of its limit."""
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines() if ":" in line)
    available, total = (1024.0 * int(lines[name].split()[0]) for name in ("MemAvailable", "MemTotal"))
    limit, used = (Path("/sys/fs/cgroup") / name for name in ("memory.max", "memory.current"))
    if limit.exists() and used.exists() and limit.read_text().strip().isdigit():
        most = float(limit.read_text())
        return max(0.0, min(available, most - float(used.read_text()))), min(total, most)
    return available, total


def _gpus() -> int | None:
    try:
        import torch
    except ImportError:
        return None
    return torch.cuda.device_count()


def _existing(path: Path) -> Path:
    return next(folder for folder in [path, *path.parents] if folder.exists())


def _own_address(head: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((head, 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "unknown address"


def _reaches(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=3).close()
    except OSError:
        return False
    return True


def _dashboard() -> str | None:
    import ray

    return ray._private.worker.get_dashboard_url() or None


def _answers_without_token(url: str) -> bool | None:
    """None where nothing can be reached from here."""
    try:
        with urlopen(f"{url}/api/jobs/", timeout=5):
            return True
    except HTTPError as error:
        return error.code not in (401, 403)
    except (URLError, OSError):
        return None
