"""What a joined cluster has, what is free, and whether it could bring GPUs."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pate.cluster._session import started_here

_SECONDS_TO_TELL = 15.0  # an autoscaler looks at demand every 5 s
_LOOKS_TO_TELL = 3  # after so many the second version of the autoscaler has seen what it was asked for
_SHOWN = ("CPU", "GPU")
_NO_AUTOSCALER = "node_"  # how the one that only watches names the types of nodes: by their ids


def fits(needs: Mapping[str, float]) -> int:
    """How many workers of these needs the nodes that there are could hold, if nothing else ran on them."""
    import ray

    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return sum(
        int(min((there.get(name, 0.0) / amount for name, amount in needs.items()), default=0)) for there in alive
    )


def describe_resources(kinds: Sequence[Mapping[str, float]]) -> str:
    """What the cluster has of what these kinds of workers need, free and in all, in words."""
    import ray

    needs = {name for kind in kinds for name in kind}
    free, there = ray.available_resources(), ray.cluster_resources()
    names = [name for name in sorted(needs) if name not in _SHOWN and there.get(name)]
    shown = [*(name for name in _SHOWN if there.get(name) or name in needs), *names]
    parts = [
        f"{free.get(name, 0.0):.4g} of {there.get(name, 0.0):.4g} {name}{'s' * (name in _SHOWN)}" for name in shown
    ]
    too_small = "" if any(fits(kind) for kind in kinds) else "; no node is big enough"
    return f"the cluster has {', '.join(parts) or 'no CPUs'} free{too_small}"


def has_gpus() -> bool:
    """Whether the cluster has GPUs, or its autoscaler would bring some.

    Ray 2.60 does not tell which types of nodes its autoscaler has. So where there is no GPU yet it is asked for one, by
    a placement group that stays pending: within seconds it starts a node, or it has none of the kind.
    """
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group

    if ray.cluster_resources().get("GPU", 0) > 0:
        return True
    if not grows():
        return False
    try:
        before = _autoscaler().looks
        wish = placement_group([{"GPU": 1}])
        try:
            until = time.monotonic() + _SECONDS_TO_TELL
            while time.monotonic() < until:
                now = _autoscaler()
                if ray.cluster_resources().get("GPU", 0) > 0 or now.starts_gpus:
                    return True
                if now.refuses_gpus or now.looks >= before + _LOOKS_TO_TELL:
                    return not now.refuses_gpus
                time.sleep(0.5)
        finally:
            remove_placement_group(wish)
    except Exception:  # as in `grows`
        pass
    return False


def grows() -> bool:
    """Whether there is an autoscaler that starts nodes: one that cannot names nodes by their ids.

    On a cluster that has only just started it has not said anything yet, and is waited for.
    """
    if started_here():
        return False
    try:
        until = time.monotonic() + _SECONDS_TO_TELL
        while not (types := _autoscaler().node_types) and time.monotonic() < until:
            time.sleep(0.5)
    except Exception:  # all of this is Ray's own business, and another version may do it otherwise
        return False
    return any(not name.startswith(_NO_AUTOSCALER) for name in types)


class _Autoscaler(NamedTuple):
    """What the autoscaler says of itself."""

    node_types: set[str]
    starts_gpus: bool = False  # told by its first version alone
    refuses_gpus: bool = False  # told by its second version alone: no type of node has any
    looks: int = 0  # how often the second version has looked at what is asked for


def _autoscaler() -> _Autoscaler:
    import ray
    from ray import _raylet
    from ray._private.ray_constants import DEBUG_AUTOSCALING_STATUS
    from ray.autoscaler.v2.utils import is_autoscaler_v2
    from ray.core.generated.autoscaler_pb2 import GetClusterStatusReply
    from ray.experimental.internal_kv import _internal_kv_get

    if not is_autoscaler_v2(fetch_from_server=True):
        report = json.loads(_internal_kv_get(DEBUG_AUTOSCALING_STATUS) or b"{}").get("autoscaler_report") or {}
        starting = report.get("pending_resources", {}).get("GPU")
        return _Autoscaler(set(report.get("active_nodes", {})), starts_gpus=bool(starting))
    core: Any = _raylet
    reply: Any = GetClusterStatusReply()
    client = core.GcsClient(address=ray.get_runtime_context().gcs_address)
    reply.ParseFromString(client.get_cluster_status(timeout_s=10))
    types = {node.ray_node_type_name for node in reply.cluster_resource_state.node_states} - {""}
    state = reply.autoscaling_state
    gangs = state.infeasible_gang_resource_requests
    refused = [request for gang in gangs for request in gang.requests]
    refused += [request for gang in gangs for one in gang.bundle_selectors for request in one.resource_requests]
    no_gpus = any("GPU" in request.resources_bundle for request in refused)
    return _Autoscaler(types, refuses_gpus=no_gpus, looks=state.autoscaler_state_version)
