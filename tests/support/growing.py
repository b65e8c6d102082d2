"""A Ray cluster on this machine that grows and shrinks by itself: Ray's autoscaler with its provider of fake nodes.

`ray.cluster_utils.AutoscalingCluster` would do, but it stops every Ray of the machine before it starts its own, and
wants a file that Ray's packages lack. What is started here is ended by its process ids.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pate.cluster._session import end_processes

_PROVIDER = "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider"
_HEAD = "ray.head.default"  # as the provider calls it
_SECONDS_TO_START = 120.0
_ATTEMPTS = 4  # Ray gives a head half a minute, which is little on a busy machine
_STORE = 80_000_000


def growing_config(types: Mapping[str, Mapping[str, float]], most: Mapping[str, int], idle_seconds: float) -> dict:
    """What the autoscaler is told: types of nodes by their resources, and how many of each there can be."""
    nodes: dict[str, Any] = {
        name: {
            "resources": {**resources, "object_store_memory": _STORE},
            "node_config": {},
            "min_workers": 0,
            "max_workers": most[name],
        }
        for name, resources in types.items()
    }
    nodes[_HEAD] = {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0}
    lists = ("initialization", "setup", "head_setup", "worker_setup", "head_start_ray", "worker_start_ray")
    return {
        "cluster_name": "growing",
        "max_workers": sum(most.values()),
        "provider": {
            "type": "fake_multinode",
            "use_node_id_as_ip": True,
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
        },
        "available_node_types": nodes,
        "head_node_type": _HEAD,
        "auth": {},
        "upscaling_speed": 1.0,
        "idle_timeout_minutes": idle_seconds / 60,
        "docker": {},
        "file_mounts": {},
        "cluster_synced_files": [],
        "file_mounts_sync_continuously": False,
        "rsync_exclude": [],
        "rsync_filter": [],
        **{f"{name}_commands": [] for name in lists},
    }


@contextmanager
def growing_cluster(
    types: Mapping[str, Mapping[str, float]], most: Mapping[str, int], idle_seconds: float = 6.0, second: bool = False
) -> Iterator[str]:
    """A head with 0 CPUs whose autoscaler adds nodes of these types as they are asked for; its address.

    `second`: the second version of the autoscaler.
    """
    from ray.cluster_utils import FAKE_HEAD_NODE_ID

    with tempfile.TemporaryDirectory(prefix="pate-growing-", ignore_cleanup_errors=True) as name:
        folder, port = Path(name), _free_port()
        config = growing_config(types, most, idle_seconds)
        config["provider"]["gcs_address"] = f"127.0.0.1:{port}"
        environment = os.environ | {
            "RAY_AUTH_MODE": "disabled",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_FAKE_CLUSTER": "1",
            "AUTOSCALER_UPDATE_INTERVAL_S": "1",
        }
        if second:
            config["provider"] |= {"launch_multiple": True, "head_node_id": FAKE_HEAD_NODE_ID}
            config["provider"] |= {"type": "external", "module": _PROVIDER}  # by its type it wants a file Ray lacks
            environment |= {"RAY_enable_autoscaler_v2": "1", "RAY_CLOUD_INSTANCE_ID": FAKE_HEAD_NODE_ID}
            environment |= {"RAY_OVERRIDE_NODE_ID_FOR_TESTING": FAKE_HEAD_NODE_ID, "RAY_NODE_TYPE_NAME": _HEAD}
        (folder / "autoscaler.json").write_text(json.dumps(config))
        options = [
            f"--autoscaling-config={folder / 'autoscaler.json'}",
            f"--port={port}",
            f"--temp-dir={folder / 'ray'}",
        ]
        options += ["--num-cpus=0", "--include-dashboard=false", f"--object-store-memory={_STORE}"]
        options += ["--node-ip-address=127.0.0.1"]
        command = [str(Path(sys.executable).parent / "ray"), "start", "--head", "--block", *options]
        for _ in range(_ATTEMPTS):
            with (folder / "told").open("w") as file:
                head = subprocess.Popen(command, stdout=file, stderr=file, env=environment)
            try:
                if _is_up(port, head, folder / "told"):
                    yield f"127.0.0.1:{port}"
                    return
            finally:
                head.send_signal(signal.SIGTERM)
                with suppress(subprocess.TimeoutExpired):
                    head.wait(20)
                head.kill()
                head.wait()
                end_processes(folder)
                _end_named(folder)
        raise RuntimeError((folder / "told").read_text()[-2000:])


def _end_named(folder: Path) -> None:
    """Kill the processes that were started with `folder` in their words: Ray's log monitor outlives its head."""
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if str(folder).encode() in place.read_bytes():
                os.kill(int(place.parent.name), signal.SIGKILL)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _is_up(port: int, head: subprocess.Popen[bytes], told: Path) -> bool:
    until = time.monotonic() + _SECONDS_TO_START
    while time.monotonic() < until and head.poll() is None:
        if "Ray runtime started" in told.read_text():
            with suppress(OSError):
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                return True
        time.sleep(0.2)
    return False
