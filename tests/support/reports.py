"""A small report, as a run stores it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FACTS = {
    "kind": "teachers",
    "method": "PATE, gnmax, 9 teachers",
    "labelled": 10,
    "figures": [],
    "counts": [],
    "steps": [],
    "summary": "s",
    "sensitivity": "s",
    "limits": [],
    "labels": "l",
}
QUERIES = {"asked": 10, "answered": 10, "max_queries": 10, "max_answers": 10}
_OF_A_RUN = {
    "voters": FACTS,
    "mechanism": {"name": "gnmax"},
    "description": {"title": "t", "releases": "r"},
    "queries": QUERIES,
}
SANITISED = {"epsilon": 1.5, "delta": 1e-5, "order": 8.0, "rdp_bound": 0.1, "release_rdp": 0.01}


def report_content(baseline: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """The report of a run with these fields; that of a baseline, if `baseline` is its method."""
    own = _OF_A_RUN if baseline is None else {"kind": "baseline", "method": baseline, "planned": {}}
    privacy = {"epsilon": 3.0, "delta": 1e-5, "unit": "record", "statement": "s", "sanitised": SANITISED}
    common = {"name": "p", "pate_version": "1", "config_digest": "d", "classes": ["a", "b"], "benchmark": None}
    content = common | own | {"student": {}} | changes
    student = {"name": "s", "accuracy": 0.8, "test_examples": 200} | content["student"]
    return content | {"privacy": privacy | changes.get("privacy", {}), "student": student}


def store_run(folder: Path, config: str = "student: {name: supervised}", **changes: Any) -> Path:
    """A folder with such a report, a config, and a data-dependent ε."""
    (folder / "private").mkdir(parents=True)
    (folder / "report.json").write_text(json.dumps(report_content(**changes)))
    (folder / "config.yaml").write_text(f"seed: 1\n{config}\n")
    (folder / "private" / "epsilon.json").write_text('{"epsilon_data_dependent": 0.7, "delta": 1e-5}')
    return folder
