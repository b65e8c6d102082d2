"""A small teacher trained on each kind of node, as `pate doctor` does: on made-up numbers, with no record there yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pate.errors import first_line

_SECONDS = 180.0  # a busy node may take a minute to load torch alone
_TEACHERS: dict[str, dict[str, Any]] = {
    "sklearn.svm.SVC": {},
    "network": {"architecture": "mlp", "hidden": 4, "steps": 2, "batch_size": 4},
}
_ACCELERATOR = "accelerator_type:"


@dataclass(frozen=True)
class Trial:
    """How a kind of node did: on which node, on which device its network was trained, or what went wrong."""

    kind: str
    node: str
    device: str | None = None
    error: str | None = None


def node_kind(resources: Mapping[str, float]) -> str | None:
    """In words, by what teachers can have there; None where they can have nothing.

    >>> node_kind({"CPU": 8.0, "GPU": 2.0, "accelerator_type:A100": 1.0, "memory": 9e9})
    'GPU nodes (A100)'
    >>> node_kind({"CPU": 4.0}), node_kind({"memory": 9e9})
    ('CPU nodes', None)
    """
    names = sorted(name.removeprefix(_ACCELERATOR) for name in resources if name.startswith(_ACCELERATOR))
    if resources.get("GPU", 0) > 0:
        return f"GPU nodes ({', '.join(names)})" if names else "GPU nodes"
    return "CPU nodes" if resources.get("CPU", 0) > 0 else None


def train_teachers() -> str:
    """In a task on a node: train one teacher of scikit-learn and one network; returns the device networks use there."""
    import numpy as np

    from pate.networks.tensors import resolve_device
    from pate.teachers import build_estimator

    X, y = np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32), np.arange(16) % 2
    for name, params in _TEACHERS.items():
        build_estimator(name, params, 0, "teachers").fit(X, y).predict(X)
    return resolve_device("auto").type


def try_teachers(nodes: Sequence[Mapping[str, Any]]) -> list[Trial]:
    """On one of each kind of `nodes`, as `ray.nodes()` lists them: all kinds at once, with next to no resources."""
    import ray
    from ray.exceptions import GetTimeoutError, RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    kinds = {kind: node for node in reversed(nodes) if (kind := node_kind(node["Resources"])) is not None}
    train, calls = ray.remote(num_cpus=0, max_retries=1)(train_teachers), []
    for kind, node in kinds.items():
        place = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        share = 0.01 if node["Resources"].get("GPU", 0) > 0 else 0
        calls.append((kind, node, train.options(scheduling_strategy=place, num_gpus=share).remote()))
    trials = []
    for kind, node, call in calls:
        name = f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"
        try:
            trials.append(Trial(kind, name, device=ray.get(call, timeout=_SECONDS)))
        except GetTimeoutError:
            ray.cancel(call)
            trials.append(Trial(kind, name, error=f"not done after {_SECONDS:.0f} s; is everything there taken?"))
        except RayError as error:
            trials.append(Trial(kind, name, error=first_line(getattr(error, "cause", None) or error)))
    return trials
