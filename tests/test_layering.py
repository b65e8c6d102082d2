"""Dependencies point one way, and nothing loads ray or torch before it is needed."""

from __future__ import annotations

import subprocess
import sys

import pytest

_LIGHT = [
    "pate",
    "pate.mechanisms",
    "pate.accounting",
    "pate.accounting.composition",
    "pate.planning.costs",
    "pate.planning.plan",
    "pate.accounting.sanitise",
    "pate.audit.mechanism",
    "pate.data.votes",
    "pate.ledger",
    "pate.data.partition",
    "pate.config",
    "pate.cluster.bundle",
    "pate.cluster.checks",
    "pate.cluster.jobs",
    "pate.cli",
]


@pytest.mark.parametrize("module", _LIGHT)
def test_imports_neither_ray_nor_torch(module: str) -> None:
    code = f"import {module}, sys; print(sorted({{'ray', 'torch', 'sklearn'}} & set(sys.modules)))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert shown.stdout.strip() == "[]"


@pytest.mark.parametrize("package", ["mechanisms", "accounting"])
def test_lowest_layer_knows_nothing_above_it(package: str) -> None:
    from pathlib import Path

    import pate

    allowed = ("pate.mechanisms", "pate.accounting", "pate.errors", "pate.naming")
    for path in (Path(pate.__file__).parent / package).glob("*.py"):
        for line in path.read_text().splitlines():
            if line.startswith(("from pate", "import pate")):
                assert line.split()[1].startswith(allowed), f"{path.name}: {line}"


def test_public_names_resolve() -> None:
    import pate

    for name in pate.__all__:
        assert getattr(pate, name) is not None
    with pytest.raises(AttributeError):
        _ = pate.no_such_name
