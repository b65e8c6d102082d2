"""Which versions are here, and how those of a cluster differ, in words."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

PACKAGES = ("python", "ray", "pate", "torch", "numpy", "scikit-learn")
MISSING = "missing"
_COMPLAINT = re.compile(r"Ray: (\S+)\s+Python: (\S+)")


def installed() -> dict[str, str]:
    """What this process would use."""
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for package in PACKAGES[1:]:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = MISSING
    from pate import __version__

    return found | {"pate": __version__}  # the one in use: a packed one need not be installed


def ray_and_python_versions() -> dict[str, str]:
    """Versions of Ray and Python in this process; loads Ray."""
    import ray

    return {"ray": ray.__version__, "python": installed()["python"]}


def different_versions(here: Mapping[str, str], cluster: Mapping[str, str]) -> str:
    """Both sides' versions in words if Ray is not the same; empty if it is, or if the cluster's is not known.

    >>> different_versions({"ray": "2.59.0", "python": "3.12.1"}, {"ray": "2.60.0", "python": "3.11.7"})
    'this machine has Ray 2.59.0 and Python 3.12.1, the cluster Ray 2.60.0 and Python 3.11.7'
    """
    if cluster.get("ray") in (None, here["ray"]):
        return ""
    return _both(here["ray"], here["python"], cluster["ray"], cluster.get("python", "unknown"))


def both_versions(complaint: str) -> str:
    """Ray's own complaint about versions, which has many lines, in one; empty if it complains of something else."""
    found = _COMPLAINT.findall(complaint)
    return _both(*found[1], *found[0]) if len(found) == 2 else ""


def _both(our_ray: str, our_python: str, their_ray: str, their_python: str) -> str:
    here, there = f"Ray {our_ray} and Python {our_python}", f"Ray {their_ray} and Python {their_python}"
    return f"this machine has {here}, the cluster {there}"
